"""The desk on which the generator writes its two files: orders, credit notes, and what the bank booked for them.

Every word is drawn from one random source, so that a seed decides all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal

from .money import NOTATIONS

CUSTOMERS = (
    ("深圳市华强电子有限公司", "CNY"), ("上海海鸥贸易有限公司", "CNY"), ("北京中科（国际）物流有限公司", "CNY"),
    ("广州白云机械设备有限公司", "CNY"), ("成都天府食品有限公司", "USD"), ("杭州西湖茶叶进出口公司", "EUR"),
    ("山田商事株式会社", "JPY"), ("Yokohama Marine Parts K.K.", "JPY"),
    ("Müller, Söhne & Co. KG", "EUR"), ("Bäckerei Groß GmbH", "EUR"), ("Société Générale d'Outillage", "EUR"),
    ("Łódź Textil Sp. z o.o.", "EUR"), ("Ferretería O'Higgins, S.L.", "EUR"),
    ('Smith "Bros" Ltd', "GBP"), ("Harbour & Pike Wholesale, Leeds", "GBP"), ("Tamsin Oakley", "GBP"),
    ("Northwind Freight Services, Inc.", "USD"), ("Delta Valve & Fitting Co.", "USD"), ("A. Okafor", "USD"),
    ("Prairie Organic Growers Cooperative", "USD"),
)  # fmt: skip
ID_STYLES = ("SO-{}", "SO-{}", "SO {}", "so{}", "ＳＯ－{}")
TEXTS = ("{}", "{}", "Invoice {}", "RG {}, vielen Dank", "货款{}", "Payment for\n{}, thank you", 'our ref "{}"; Kd-Nr 4711')
BANK_NAME_LENGTH = 27  # what fits into the bank's field; the rest of a name is cut off


@dataclass(slots=True)
class Document:
    document_id: str
    kind: str
    ordered_on: date
    due_on: date
    customer: str
    currency: str
    amount: Decimal
    status: str
    credit_for: str
    note: str


@dataclass(slots=True)
class Booking:
    bank_ref: str
    booked_on: date
    value_date: date
    type: str
    counterparty: str
    currency: str
    amount: Decimal
    fee: Decimal
    reference: str
    entry_id: str = ""


@dataclass(slots=True)
class Planted:
    kind: str
    order: str
    bookings: list[Booking]
    currency: str
    expected: Decimal
    received: Decimal


@dataclass(slots=True)
class Desk:
    """The two files while they are made."""

    rng: random.Random
    day: date
    documents: list[Document] = field(default_factory=list)
    bookings: list[Booking] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    amounts: set[tuple[str, Decimal]] = field(default_factory=set)
    references: set[str] = field(default_factory=set)

    def amount(self, currency: str) -> Decimal:
        """An amount that no other document of this currency has: a payment without a reference must be decidable."""
        low, high = self.rng.choice(((2_000, 50_000), (50_000, 500_000), (500_000, 9_000_000)))
        while True:
            units = self.rng.randrange(low, high)
            amount = Decimal(units) if not NOTATIONS[currency].decimals else Decimal(units).scaleb(-2)
            if (currency, amount) not in self.amounts:
                self.amounts.add((currency, amount))
                return amount

    def order(
        self, *, age: tuple[int, int] = (20, 60), terms: int = 14, status: str = "open", customer: tuple[str, str] | None = None
    ) -> Document:
        """An order of `age` days ago; due `terms` days after it."""
        name, currency = customer or self.rng.choice(CUSTOMERS)
        ordered_on = self.day - timedelta(days=self.rng.randint(*age))
        document = Document(
            document_id=f"SO-{100_000 + 3 * len(self.documents) + self.rng.randrange(3)}",
            kind="order",
            ordered_on=ordered_on,
            due_on=ordered_on + timedelta(days=terms),
            customer=name,
            currency=currency,
            amount=self.amount(currency),
            status=status,
            credit_for="",
            note=self.rng.choice(("", "", "", "first delivery, then invoice", "加急", "net of\nfreight")),
        )
        self.documents.append(document)
        return document

    def credit(self, order: Document, amount: Decimal, *, age: int = 18) -> Document:
        """A credit note for `order`."""
        when = self.day - timedelta(days=age)
        document_id = f"CN-{700_000 + len(self.documents)}"
        note = Document(
            document_id, "credit", when, when, order.customer, order.currency, amount, "open", order.document_id, "goods returned"
        )
        self.documents.append(note)
        return note

    def book(
        self,
        order: Document,
        amount: Decimal,
        *,
        type: str = "payment",
        fee: Decimal = Decimal(0),
        text: str | None = None,
        currency: str = "",
    ) -> Booking:
        """A booking for `order`: dates shifted, name mangled, the order's id in one of the ways people write it."""
        latest = (self.day - timedelta(days=2) - order.ordered_on).days
        value_date = order.ordered_on + timedelta(days=min(self.rng.randint(-2, 18), latest))
        booking = Booking(
            bank_ref=self.bank_ref(),
            booked_on=value_date + timedelta(days=self.rng.choice((0, 0, 0, 1, 2, 3, -1))),
            value_date=value_date,
            type=type,
            counterparty=self.mangled(order.customer),
            currency=currency or order.currency,
            amount=amount,
            fee=fee,
            reference=self.text([order]) if text is None else text,
        )
        self.bookings.append(booking)
        return booking

    def bank_ref(self) -> str:
        while True:
            reference = f"BR{self.rng.randrange(10**8):08d}"
            if reference not in self.references:
                self.references.add(reference)
                return reference

    def mangled(self, name: str) -> str:
        style = self.rng.randrange(4)
        if style == 0:
            return name.upper()[:BANK_NAME_LENGTH]
        if style == 1:
            return name.replace("（", "(").replace("）", ")").replace(",", " ")[:BANK_NAME_LENGTH]
        return name[:BANK_NAME_LENGTH]

    def text(self, orders: Sequence[Document]) -> str:
        ids = ", ".join(self.rng.choice(ID_STYLES).format(order.document_id[3:]) for order in orders)
        return self.rng.choice(TEXTS).format(ids)

    def parts(self, amount: Decimal, count: int) -> list[Decimal]:
        """`amount` in `count` unequal parts, exact to the last unit."""
        unit = Decimal(1).scaleb(amount.as_tuple().exponent)  # type: ignore[arg-type]  # amounts are finite
        units = int(amount / unit)
        cuts = sorted(self.rng.sample(range(units // 10, units), count - 1))
        return [Decimal(end - start) * unit for start, end in zip([0, *cuts], [*cuts, units], strict=True)]

    def plant(self, kind: str, order: Document | None, bookings: Iterable[Booking], expected: Decimal, received: Decimal) -> None:
        bookings = list(bookings)
        currency = order.currency if order else bookings[0].currency
        self.planted.append(Planted(kind, order.document_id if order else "", bookings, currency, expected, received))
