"""What happens to an order: first the noise that must leave no difference behind, then the true differences.

Each function writes one story on the desk. Those of the second kind say what they planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from .desk import CUSTOMERS, Desk
from .match import WIRE_CHARGES
from .money import NOTATIONS

STRANGERS = ("Quartz & Lime Estates", "张伟", "Nobody In Particular S.A.")


# ---------------------------------------------------------------- noise: none of it is a difference


def plain_payment(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)


def _no_reference(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount, text=desk.rng.choice(("", "thanks", "货款")))


def _mistyped_reference(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount, text=f"SO-{desk.rng.randrange(900_000, 999_999)}")


def _instalments(desk: Desk) -> None:
    order = desk.order()
    for part in desk.parts(order.amount, desk.rng.choice((2, 3))):
        desk.book(order, part)


def _instalment_before_due(desk: Desk) -> None:
    order = desk.order(age=(3, 8), terms=30)
    desk.book(order, desk.parts(order.amount, 2)[0])


def _not_due(desk: Desk) -> None:
    desk.order(age=(1, 8), terms=30)


def _in_transit(desk: Desk) -> None:
    desk.order(age=(14, 18), terms=14)


def _collective(desk: Desk) -> None:
    customer = desk.rng.choice(CUSTOMERS)
    orders = [desk.order(customer=customer) for _ in range(desk.rng.choice((2, 3)))]
    desk.book(orders[-1], sum((order.amount for order in orders), Decimal(0)), text=desk.text(orders))


def _declared_fee(desk: Desk) -> None:
    order = desk.order()
    fee = max(desk.parts(order.amount, 12)) / 20
    fee = fee.quantize(Decimal(1).scaleb(-NOTATIONS[order.currency].decimals))
    desk.book(order, order.amount - fee, type="card", fee=fee)


def _wire_charges(desk: Desk) -> None:
    order = desk.order()
    most = min(WIRE_CHARGES[order.currency], order.amount / 2)
    kept = (most * desk.rng.randint(10, 100) / 100).quantize(Decimal(1).scaleb(-NOTATIONS[order.currency].decimals))
    desk.book(order, order.amount - kept, type="wire")


def _reversed_double(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    again = desk.book(order, order.amount)
    desk.book(order, -order.amount, type="reversal", text=f"Storno {again.bank_ref}\nbooked in error")


def _exported_twice(desk: Desk) -> None:
    order = desk.order()
    desk.bookings.append(replace(desk.book(order, order.amount)))


def _refunded(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    credit = desk.credit(order, desk.parts(order.amount, 2)[0])
    desk.book(order, -credit.amount, type="refund", text=f"Refund {credit.document_id}, for {order.document_id}")


def _cancelled(desk: Desk) -> None:
    order = desk.order(status="cancelled")
    if desk.rng.random() < 0.5:
        desk.book(order, order.amount)
        desk.book(order, -order.amount, type="refund", text=f"cancelled: {order.document_id}")


def _bank_charges(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    booking = desk.book(order, -desk.amount(order.currency), type="fee", text="Account charges")
    booking.counterparty = "Our own bank"


NOISE: tuple[Callable[[Desk], None], ...] = (
    _no_reference, _mistyped_reference, _instalments, _instalment_before_due, _not_due, _in_transit, _collective,
    _declared_fee, _wire_charges, _reversed_double, _exported_twice, _refunded, _cancelled, _bank_charges,
)  # fmt: skip


# ---------------------------------------------------------------- true differences


def _missing_payment(desk: Desk) -> None:
    order = desk.order(age=(40, 60))
    desk.plant("missing_payment", order, [], order.amount, Decimal(0))


def _missing_instalment(desk: Desk) -> None:
    order = desk.order(age=(40, 60))
    parts = desk.parts(order.amount, 3)[:2]
    desk.plant("underpayment", order, [desk.book(order, part) for part in parts], order.amount, sum(parts, Decimal(0)))


def _short_wire(desk: Desk) -> None:
    order = desk.order(age=(40, 60), customer=("Northwind Freight Services, Inc.", "USD"))
    order.amount += 1000
    desk.amounts.add((order.currency, order.amount))
    received = order.amount - 3 * WIRE_CHARGES["USD"]
    desk.plant("underpayment", order, [desk.book(order, received, type="wire")], order.amount, received)


def _overpayment(desk: Desk) -> None:
    order = desk.order()
    received = order.amount + 27
    desk.plant("overpayment", order, [desk.book(order, received)], order.amount, received)


def _duplicate_payment(desk: Desk) -> None:
    order = desk.order()
    bookings = [desk.book(order, order.amount), desk.book(order, order.amount, text="")]
    desk.plant("duplicate_payment", order, bookings, order.amount, 2 * order.amount)


def _unknown_payment(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    amount = desk.amount("EUR")
    booking = desk.book(order, amount, currency="EUR", text="as agreed")
    booking.counterparty = desk.rng.choice(STRANGERS)
    desk.plant("unknown_payment", None, [booking], Decimal(0), amount)


def _refund_without_order(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    amount = -desk.amount(order.currency)
    booking = desk.book(order, amount, type="refund", text=f"Refund CN-{desk.rng.randrange(800_000, 899_999)}")
    desk.plant("refund_without_order", None, [booking], Decimal(0), amount)


def _missing_refund(desk: Desk) -> None:
    order = desk.order()
    desk.book(order, order.amount)
    credit = desk.credit(order, desk.parts(order.amount, 2)[0])
    desk.plant("missing_refund", credit, [], -credit.amount, Decimal(0))


def _wrong_currency(desk: Desk) -> None:
    order = desk.order(customer=("Bäckerei Groß GmbH", "EUR"))
    desk.plant("wrong_currency", order, [desk.book(order, order.amount, currency="USD")], order.amount, Decimal(0))


def _paid_although_cancelled(desk: Desk) -> None:
    order = desk.order(status="cancelled")
    desk.plant("paid_although_cancelled", order, [desk.book(order, order.amount)], Decimal(0), order.amount)


DIFFERENCES: tuple[Callable[[Desk], None], ...] = (
    _missing_payment, _missing_payment, _missing_instalment, _short_wire, _overpayment, _duplicate_payment, _duplicate_payment,
    _unknown_payment, _refund_without_order, _missing_refund, _wrong_currency, _paid_although_cancelled,
)  # fmt: skip
