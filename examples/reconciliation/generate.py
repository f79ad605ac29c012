"""Make a bank statement and an order ledger as a finance team has them, with about a dozen true differences.

The same seed gives the same bytes. What was planted as a true difference is told as well, so that a matcher
can be compared with it; the rest of the mess (see `mess.NOISE`) must leave no difference behind.

    python -m examples.reconciliation.generate --seed 7 --out books/
"""

from __future__ import annotations

import argparse
import csv
import io
import random
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from .desk import Desk, Planted
from .load import ORDER_COLUMNS, STATEMENT_COLUMNS
from .mess import DIFFERENCES, NOISE, plain_payment
from .money import plain, write_amount

DAY = date(2026, 11, 28)
ROWS = 520
BOM = b"\xef\xbb\xbf"
OF_EACH = 9  # how often each kind of noise comes; the rest is plain


class Truth(NamedTuple):
    """One planted difference. Shapes: `expected` and `received` as ``"1234.50"`` in `currency`."""

    kind: str
    order: str
    entries: tuple[str, ...]
    currency: str
    expected: str
    received: str


class Generated(NamedTuple):
    """Two files as bytes, the day they are for, and the true differences between them."""

    statement: bytes
    orders: bytes
    day: date
    truth: tuple[Truth, ...]


def generate(seed: int = 1, *, rows: int = ROWS, day: date = DAY) -> Generated:
    """Return two files of at least `rows` rows each (never fewer than the mess needs), and the truth about them."""
    desk = Desk(random.Random(seed), day)
    makers = [*DIFFERENCES, *(NOISE * OF_EACH)]
    desk.rng.shuffle(makers)
    for make in makers:
        make(desk)
    while min(len(desk.documents), len(desk.bookings)) < rows:
        plain_payment(desk)
    desk.bookings.sort(key=lambda booking: (booking.booked_on, booking.bank_ref))
    for number, booking in enumerate(desk.bookings, start=1):
        booking.entry_id = f"ST-{number:06d}"
    desk.documents.sort(key=lambda document: (document.ordered_on, document.document_id))
    truth = sorted(_told(planted) for planted in desk.planted)
    return Generated(_statement(desk), BOM + _orders(desk), day, tuple(truth))


def _told(planted: Planted) -> Truth:
    currency = planted.currency
    entries = tuple(sorted(booking.entry_id for booking in planted.bookings))
    return Truth(
        planted.kind, planted.order, entries, currency, plain(planted.expected, currency), plain(planted.received, currency)
    )


def _statement(desk: Desk) -> bytes:
    rows = []
    for booking in desk.bookings:
        amount = write_amount(booking.amount, booking.currency, grouped=desk.rng.random() < 0.9)
        fee = write_amount(booking.fee, booking.currency) if booking.fee else ""
        rows.append(_fields(booking, STATEMENT_COLUMNS, amount=amount, fee=fee))
    return _csv(STATEMENT_COLUMNS, rows, "\n")


def _orders(desk: Desk) -> bytes:
    rows = [_fields(each, ORDER_COLUMNS, amount=write_amount(each.amount, each.currency)) for each in desk.documents]
    return _csv(ORDER_COLUMNS, rows, "\r\n")


def _fields(record: object, columns: Sequence[str], **written: str) -> list[str]:
    return [written[column] if column in written else str(getattr(record, column)) for column in columns]


def _csv(columns: Sequence[str], rows: Iterable[Sequence[str]], line_end: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def write(folder: Path, seed: int = 1, *, rows: int = ROWS) -> Generated:
    """Write ``statement.csv`` and ``orders.csv`` into `folder`, which is made if need be."""
    made = generate(seed, rows=rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "statement.csv").write_bytes(made.statement)
    (folder / "orders.csv").write_bytes(made.orders)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="make a bank statement and an order ledger")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--out", type=Path, default=Path("books"))
    chosen = parser.parse_args(argv)
    made = write(chosen.out, chosen.seed, rows=chosen.rows)
    print(f"{chosen.out}/statement.csv and {chosen.out}/orders.csv, for {made.day}; true differences: {len(made.truth)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
