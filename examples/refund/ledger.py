"""What the gateway keeps: orders as they were paid, refunds, mails, and (see `counting`) every effect that was real.

Amounts are whole cents. A refund is `pending` until it is paid out, and can be cancelled until then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..reconciliation.counting import Body, Counted, Refused, need, text_in
from ..reconciliation.faults import Clock

DAY_S = 24 * 3600.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, currency TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lines (
  order_id TEXT NOT NULL, line INTEGER NOT NULL, amount INTEGER NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE IF NOT EXISTS refunds (
  id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, line INTEGER NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL,
  reference TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS mails (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, text TEXT NOT NULL);
"""


class Declined(Exception):
    """The gateway understood, and says no: in the body of a 200, as real gateways do."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(code)


class Ledger(Counted):
    """Orders and their refunds. An idempotency key is remembered for a day, and then it is as if it had never been."""

    def __init__(self, path: Path, clock: Clock, key_window_s: float = DAY_S) -> None:
        super().__init__(path, clock, _SCHEMA, key_window_s)
        self._working: set[str] = set()
        self._working_lock = threading.Lock()

    @contextmanager
    def working_on(self, key: str) -> Iterator[None]:
        """While a request with this key is worked on, a second one is told so, and nothing else."""
        with self._working_lock:
            if key in self._working:
                raise Refused(409, "a request with this key is in progress")
            self._working.add(key)
        try:
            yield
        finally:
            with self._working_lock:
                self._working.discard(key)

    # ------------------------------------------------------------ orders

    def capture(self, order_id: str, body: Mapping[str, Any]) -> Body:
        """The shop's act: the order is paid."""
        currency, lines = need(body, "currency", str), need(body, "lines", dict)
        with self._effect("capture", "", order_id):
            self._insert("INSERT INTO orders VALUES (?, ?)", (order_id, currency))
            for line, amount in lines.items():
                self._insert("INSERT INTO lines VALUES (?, ?, ?)", (order_id, int(line), int(amount)))
        return self.order(order_id)

    def order(self, order_id: str) -> Body:
        """An order by the merchant's own id, with what is refunded of each line."""
        with self._changed:
            orders = self._rows("SELECT id, currency FROM orders WHERE id = ?", (order_id,))
            if not orders:
                raise Refused(404, "no such order")
            lines = self._rows("SELECT line, amount FROM lines WHERE order_id = ? ORDER BY line", (order_id,))
            found = [
                {"line": row["line"], "amount": row["amount"], "refunded": self._refunded(order_id, row["line"])} for row in lines
            ]
        return {"id": order_id, "currency": orders[0]["currency"], "lines": found}

    def _refunded(self, order_id: str, line: int) -> int:
        [row] = self._rows(
            "SELECT coalesce(sum(amount), 0) AS n FROM refunds WHERE order_id = ? AND line = ? AND state != 'cancelled'",
            (order_id, line),
        )
        return int(row["n"])

    # ------------------------------------------------------------ refunds

    def refund(self, key: str, body: Mapping[str, Any]) -> Body:
        """One refund per key, as long as the key is remembered; without it, one per request. Raises Declined."""
        order_id, line, amount = need(body, "merchant_order_id", str), need(body, "line", int), need(body, "amount", int)
        reference = text_in(body, "reference")
        with self._changed:
            known = self._remembered(key, body)
            if known is not None:
                return known
            order = self.order(order_id)
            left = {found["line"]: found["amount"] - found["refunded"] for found in order["lines"]}
            if line not in left:
                raise Declined("unknown_line", f"order {order_id} has no line {line}")
            if not 0 < amount <= left[line]:
                raise Declined("amount_exceeds_line", f"{left[line]} of line {line} are left to refund")
            with self._effect("refund", reference, f"{order_id}:{line}") as at:
                number = self._insert(
                    "INSERT INTO refunds (order_id, line, amount, currency, reference, state, created_at)"
                    " VALUES (?, ?, ?, ?, ?, 'pending', ?)",
                    (order_id, line, amount, order["currency"], reference, at),
                )
                made = self._refund(number)
                self._remember(key, body, made, at)
        return made

    def find_refunds(self, order_id: str, reference: str, lag_s: float) -> list[Body]:
        rows = self._rows(
            "SELECT id FROM refunds WHERE order_id = ? AND reference = ? AND created_at <= ? ORDER BY id",
            (order_id, reference, self._clock.now() - lag_s),
        )
        return [self._refund(row["id"]) for row in rows]

    def cancel_refund(self, number: int) -> Body:
        """The refund is cancelled, unless it is paid out; asking again changes nothing. Raises Declined."""
        with self._changed:
            found = self._refund(number)
            if found["state"] == "paid":
                raise Declined("already_paid", f"refund {found['id']} is with the customer's bank")
            if found["state"] != "cancelled":
                with self._effect("cancellation", found["reference"], f"{found['merchant_order_id']}:{found['line']}"):
                    self._database.execute("UPDATE refunds SET state = 'cancelled' WHERE id = ?", (number,))
            return self._refund(number)

    def pay_out(self, number: int) -> Body:
        """The bank's act: from now on the refund cannot be cancelled."""
        with self._changed:
            found = self._refund(number)
            if found["state"] != "pending":
                raise Refused(409, f"already {found['state']}")
            with self._effect("payout", found["reference"], f"{found['merchant_order_id']}:{found['line']}"):
                self._database.execute("UPDATE refunds SET state = 'paid' WHERE id = ?", (number,))
            return self._refund(number)

    def _refund(self, number: int) -> Body:
        row = self._one(
            "SELECT id, order_id AS merchant_order_id, line, amount, currency, reference, state FROM refunds WHERE id = ?",
            number,
            "refund",
        )
        return dict(row) | {"id": f"R-{row['id']}"}

    # ------------------------------------------------------------ mail

    def send_mail(self, body: Mapping[str, Any]) -> Body:
        customer, text = need(body, "customer", str), need(body, "text", str)
        with self._effect("mail", "", customer):
            number = self._insert("INSERT INTO mails (customer, text) VALUES (?, ?)", (customer, text))
        return {"id": f"M-{number}", "customer": customer}
