"""The gateway's HTTP interface: one function, one request (see the reconciliation's `client.call`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast
from urllib.parse import quote, urlencode

from ..reconciliation.client import TIMEOUT_S, BadReply, call


class Declined(Exception):
    """The gateway said no inside a 200: nothing was done."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(code, message)


class Line(TypedDict):
    """A line of an order: what was paid for it, and what of that is refunded."""

    line: int
    amount: int
    refunded: int


class Order(TypedDict):
    """An order as it was paid."""

    id: str
    currency: str
    lines: list[Line]


class Refund(TypedDict):
    """A refund of a part of one line; `state` is pending, paid or cancelled."""

    id: str
    merchant_order_id: str
    line: int
    amount: int
    currency: str
    reference: str
    state: str


class Mail(TypedDict):
    """A mail that was sent."""

    id: str
    customer: str


def find_order(gateway: str, order_id: str, *, timeout: float = TIMEOUT_S) -> Order:
    """Return an order by the merchant's own id."""
    return cast(Order, _record(call(gateway, "GET", f"/orders/{quote(order_id, safe='')}", None, timeout=timeout)))


def refund(
    gateway: str, *, order_id: str, line: int, amount: int, reference: str, key: str, timeout: float = TIMEOUT_S
) -> Refund:
    """Refund a part of one line. The same key within 24 hours gives the same answer, and no second refund."""
    body = {"merchant_order_id": order_id, "line": line, "amount": amount, "reference": reference}
    return _accepted(call(gateway, "POST", "/refunds", body, {"Idempotency-Key": key}, timeout=timeout))


def find_refunds(gateway: str, *, order_id: str, reference: str, timeout: float = TIMEOUT_S) -> list[Refund]:
    """Return the refunds of an order that bear `reference`."""
    search = urlencode({"merchant_order_id": order_id, "reference": reference})
    reply = call(gateway, "GET", f"/refunds?{search}", None, timeout=timeout)
    items = reply.get("items") if isinstance(reply, dict) else None
    if not isinstance(items, list):
        raise BadReply(f"not a search result: {reply!r}")
    return [cast(Refund, _record(item)) for item in items]


def cancel_refund(gateway: str, refund_id: str, *, timeout: float = TIMEOUT_S) -> Refund:
    """Cancel a refund that is not paid out yet; cancelling it again changes nothing."""
    return _accepted(call(gateway, "POST", f"/refunds/{quote(refund_id, safe='')}/cancel", {}, timeout=timeout))


def send_mail(gateway: str, *, customer: str, text: str, timeout: float = TIMEOUT_S) -> Mail:
    """Send a mail. Nobody can ask later whether it was sent."""
    return cast(Mail, _record(call(gateway, "POST", "/mails", {"customer": customer, "text": text}, timeout=timeout)))


def _accepted(reply: Any) -> Refund:
    """What the gateway accepted. Raises Declined, and BadReply for what nobody understands: that is no success."""
    match reply:
        case {"result": "accepted", "refund": made}:
            return cast(Refund, _record(made))
        case {"result": "declined", "code": str(code), "message": str(message)}:
            raise Declined(code, message)
        case _:
            raise BadReply(f"not an answer to a refund: {reply!r}")


def _record(reply: Any) -> Mapping[str, Any]:
    if not isinstance(reply, dict) or not isinstance(reply.get("id"), str):
        raise BadReply(f"not a record with an id: {reply!r}")
    return reply
