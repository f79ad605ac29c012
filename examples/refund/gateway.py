"""A payment gateway, as a real server in a process of its own; it also sends the shop's mails.

    python -m examples.refund.gateway --db gateway.db

How it listens, has accidents and stops is `serving` of the reconciliation; what it keeps is `ledger`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..reconciliation.counting import Refused
from ..reconciliation.faults import Clock
from ..reconciliation.serving import Answer, Request, Route, World, serve
from .ledger import DAY_S, Declined, Ledger


class Gateway(World):
    """The state of the server: its ledger, its clock, its faults."""

    def __init__(self, path: Path, key_window_s: float = DAY_S) -> None:
        clock = Clock()
        self.ledger = Ledger(path, clock, key_window_s)
        super().__init__(clock, self.ledger)

    def underway(self, route: Route, request: Request) -> AbstractContextManager[object]:
        return self.ledger.working_on(request.key) if route.method == "POST" and request.key else nullcontext()

    def capture(self, request: Request) -> Answer:
        return Answer(201, self.ledger.capture(request.id, request.body))

    def order(self, request: Request) -> Answer:
        return Answer(200, self.ledger.order(request.id))

    def refund(self, request: Request) -> Answer:
        if not request.key:
            raise Refused(400, "the header Idempotency-Key is missing")
        try:
            return Answer(200, {"result": "accepted", "refund": self.ledger.refund(request.key, request.body)})
        except Declined as declined:
            return _declined(declined)

    def find_refunds(self, request: Request) -> Answer:
        order, reference = request.search.get("merchant_order_id", ""), request.search.get("reference", "")
        if not order or not reference:
            raise Refused(400, "merchant_order_id and reference are needed")
        return Answer(200, {"items": self.ledger.find_refunds(order, reference, request.lag_s)})

    def cancel_refund(self, request: Request) -> Answer:
        try:
            return Answer(200, {"result": "accepted", "refund": self.ledger.cancel_refund(_number(request.id))})
        except Declined as declined:
            return _declined(declined)

    def pay_out(self, request: Request) -> Answer:
        return Answer(200, self.ledger.pay_out(_number(request.id)))

    def send_mail(self, request: Request) -> Answer:
        return Answer(201, self.ledger.send_mail(request.body))

    def mails(self, request: Request) -> Answer:
        raise Refused(403, "nobody can ask what has been mailed")


ROUTES = (
    Route("PUT", "/orders/{id}", Gateway.capture),
    Route("GET", "/orders/{id}", Gateway.order),
    Route("POST", "/refunds", Gateway.refund),
    Route("GET", "/refunds", Gateway.find_refunds),
    Route("POST", "/refunds/{id}/cancel", Gateway.cancel_refund),
    Route("POST", "/refunds/{id}/pay_out", Gateway.pay_out),
    Route("POST", "/mails", Gateway.send_mail),
    Route("GET", "/mails", Gateway.mails),
)


def _declined(declined: Declined) -> Answer:
    return Answer(200, {"result": "declined", "code": declined.code, "message": declined.message})


def _number(text: str) -> int:
    digits = text.removeprefix("R-")
    if not (text.startswith("R-") and digits.isascii() and digits.isdigit()):
        raise Refused(404, f"no such id: {text}")
    return int(digits)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="a payment gateway that has accidents when it is told to")
    parser.add_argument("--db", type=Path, required=True, help="its SQLite file; made if need be")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--key-window", type=float, default=DAY_S, metavar="SECONDS", help="how long a key is remembered")
    chosen = parser.parse_args(argv)
    return serve(Gateway(chosen.db, chosen.key_window), ROUTES, chosen.port)


if __name__ == "__main__":
    sys.exit(main())
