"""Refunds as a durable task: three steps at a gateway that remembers a key for 24 hours.

    DOUBTLESS_STORE=sqlite:///refunds.db REFUND_GATEWAY=http://127.0.0.1:8124 \\
        doubtless steps examples.refund.app:app

The accident to keep in mind: the refund's reply is lost, and the process that waited for it comes back a day later.
Its idempotency key is worth nothing by then. Whoever sends it again refunds twice.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, TypedDict

from doubtless import Abort, Doubtless, NotSent, NotUndoable, Rejected, Several, Task, injected

from . import client

REFERENCE = 32
"""The gateway's references have 32 characters at most. Half of our key does: it is still 128 bits."""


class Claim(TypedDict):
    """What the customer is to get back: cents of one line."""

    line: int
    amount: int


class Refunds(NamedTuple):
    """The app and its task."""

    app: Doubtless
    refund_order: Task[..., dict[str, Any]]


def refused(answer: object) -> Rejected | None:
    """What the gateway declines has had no effect. Its 200 says nothing of that, so the step has to be told."""
    return Rejected(answer.code, answer.message) if isinstance(answer, client.Declined) else None


def build(store_url: str | None = None, gateway_url: str | None = None, **options: Any) -> Refunds:
    """Return the app and its task. Without arguments: $DOUBTLESS_STORE and $REFUND_GATEWAY, read when they are needed.

    `options` are those of `Doubtless`: the scenes give it a clock to turn.
    """
    app = Doubtless(store_url, **options)

    def gateway() -> str:
        address = gateway_url or os.environ.get("REFUND_GATEWAY")
        if not address:
            raise NotSent("REFUND_GATEWAY is not set")
        return address

    @app.step(effect="read")
    def find_order(order_id: str) -> client.Order:
        return client.find_order(gateway(), order_id)

    def find_refund(order_id: str, idempotency_key: str) -> client.Refund | Several | None:
        found = client.find_refunds(gateway(), order_id=order_id, reference=idempotency_key[:REFERENCE])
        return Several(found) if len(found) > 1 else found[0] if found else None

    @app.step(effect="idem_write", idempotent_by="the refund's id: it is cancelled or not", single_request=True)
    def cancel_refund(result: client.Refund) -> client.Refund:
        try:
            return client.cancel_refund(gateway(), result["id"])
        except client.Declined as declined:  # it is with the customer's bank, and nobody may pretend that away
            raise NotUndoable(declined.message) from declined

    @app.step(
        effect="idem_write",
        key_window="PT24H",  # inside it, the same key is sent again; after it, the gateway is asked
        query=find_refund,
        absent_after="PT5M",  # its search is up to date after five minutes: not found by then, it never arrived
        on_absent="retry",
        settle_within="PT48H",
        classify=refused,
        single_request=True,
        compensate=cancel_refund,
        compensate_deadline="PT30M",  # later it may be paid out any moment; a person decides then
        once="refund:{order_id}:{line}",  # whoever asks, in whatever task: a line is refunded once
    )
    def refund_line(order_id: str, line: int, amount: int, idempotency_key: str = injected()) -> client.Refund:
        return client.refund(
            gateway(), order_id=order_id, line=line, amount=amount, reference=idempotency_key[:REFERENCE], key=idempotency_key
        )

    # Nobody can ask whether a mail was sent. If the reply is lost, a person has to look.
    @app.step(effect="non_idem_write", single_request=True, once="told:{refunds}")
    def notify_customer(customer: str, refunds: str, text: str) -> client.Mail:
        return client.send_mail(gateway(), customer=customer, text=text)

    @app.task
    def refund_order(order_id: str, customer: str, claims: list[Claim]) -> dict[str, Any]:
        """Refund all claims of one order, or none of them."""
        if not claims:
            raise Abort(f"nothing is claimed of order {order_id}")
        order = find_order(order_id=order_id)
        refunds = [refund_line(order_id=order_id, line=claim["line"], amount=claim["amount"]) for claim in claims]
        ids, total = [refund["id"] for refund in refunds], sum(refund["amount"] for refund in refunds)
        text = f"You get {total / 100:.2f} {order['currency']} back for order {order_id}."
        notify_customer(customer=customer, refunds=" ".join(ids), text=text)
        return {"refunds": ids, "total": total}

    return Refunds(app, refund_order)


app, refund_order = build()
