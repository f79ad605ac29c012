"""Find the true differences between what was ordered and what the bank booked. Pure: no files, no clock.

Every entry is put to the documents (orders, credit notes) that it speaks of; then each document's sum is
compared with what was expected. What is only noise leaves no trace: dates that moved, instalments, declared
fees, the shared charges of a wire, a booking that was exported twice, a double payment that was reversed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import NamedTuple, TypedDict

from .load import Entry, Order
from .money import plain

GRACE = timedelta(days=5)  # a payment may be on its way for so long after its day
EARLY = timedelta(days=5)  # and may be booked so long before the order, when somebody paid on a quotation
WIRE_CHARGES = {  # what the banks between may keep of a wire with shared charges
    "CNY": Decimal("200.00"),
    "EUR": Decimal("25.00"),
    "GBP": Decimal("20.00"),
    "JPY": Decimal(4000),
    "USD": Decimal("30.00"),
}

# Not \b: in 订单SO-100123货款 the neighbours are letters too.
_DOCUMENT = re.compile(r"(?<![A-Z0-9])(SO|CN)[-\s]?([0-9]{6})(?![0-9])")
_BANK_REF = re.compile(r"(?<![A-Z0-9])BR[0-9]{8}(?![0-9])")


class Difference(TypedDict):
    """One true difference, ready to be written down. Shapes: amounts as ``"1234.50"``; `delta` is received − expected."""

    id: str
    kind: str
    order: str
    entries: list[str]
    customer: str
    currency: str
    expected: str
    received: str
    delta: str


def match(statement: Iterable[Entry], orders: Iterable[Order], day: date) -> list[Difference]:
    """Return every true difference as of `day`, in an order that depends on nothing but the ids."""
    accounts = {order.document_id: _Account(order) for order in orders}
    finder = _Finder(accounts)
    differences: list[Difference] = []
    for entry in sorted(_booked(statement), key=lambda entry: (entry.value_date, entry.entry_id)):
        if entry.type == "fee":
            continue
        found = [] if entry.type == "reversal" else finder.accounts_of(entry)
        if found:
            _put(entry, found)
        else:
            differences.append(_stray(entry))
    for account in accounts.values():
        kind = account.verdict(day)
        if kind:
            differences.append(account.difference(kind))
    return sorted(differences, key=lambda difference: difference["id"])


class _Account:
    """One document, and what was booked for it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        owed = Decimal(0) if order.status == "cancelled" else order.amount
        self.expected = -owed if order.kind == "credit" else owed
        self.received = Decimal(0)
        self.entries: list[Entry] = []
        self.foreign = False

    def verdict(self, day: date) -> str:
        """The kind of the difference, or "" where there is none."""
        gap = self.received - self.expected
        if self.foreign:
            return "wrong_currency"
        if gap == 0:
            return ""
        late = self.order.due_on + GRACE < day
        if self.order.kind == "credit":
            return ("missing_refund" if late else "") if not self.entries else "wrong_refund"
        if self.order.status == "cancelled":
            return "paid_although_cancelled" if gap > 0 else "wrong_refund"
        if gap > 0:
            return "duplicate_payment" if self._paid_again() else "overpayment"
        if not late or -gap <= self._charges():
            return ""
        return "underpayment" if self.entries else "missing_payment"

    def _paid_again(self) -> bool:
        return len(self.entries) > 1 and all(_gross(entry) == self.order.amount for entry in self.entries)

    def _charges(self) -> Decimal:
        return sum((WIRE_CHARGES[entry.currency] for entry in self.entries if entry.type == "wire"), Decimal(0))

    def difference(self, kind: str) -> Difference:
        order = self.order
        entries = sorted(entry.entry_id for entry in self.entries)
        return _difference(kind, order.document_id, entries, order.customer, _Sums(order.currency, self.expected, self.received))


class _Finder:
    """Finds the documents that an entry speaks of: by the ids in its text, else by name and exact amount."""

    def __init__(self, accounts: Mapping[str, _Account]) -> None:
        self._accounts = accounts
        self._by_amount: dict[tuple[str, Decimal], list[_Account]] = {}
        for account in accounts.values():
            if account.order.kind == "order":
                self._by_amount.setdefault((account.order.currency, account.order.amount), []).append(account)

    def accounts_of(self, entry: Entry) -> list[_Account]:
        ids = _documents_in(entry.reference)
        known = [self._accounts[name] for name in ids if name in self._accounts]
        orders = [account for account in known if account.order.kind == "order"]
        notes = [account for account in known if account.order.kind == "credit"]
        if entry.type == "refund":
            return notes or orders
        return orders or self._likely(entry)

    def _likely(self, entry: Entry) -> list[_Account]:
        """The one order with this very amount and this customer; two of them are no answer."""
        likely = [
            account
            for account in self._by_amount.get((entry.currency, _gross(entry)), [])
            if _same_name(account.order.customer, entry.counterparty) and entry.value_date >= account.order.ordered_on - EARLY
        ]
        return likely if len(likely) == 1 else []


def _booked(statement: Iterable[Entry]) -> list[Entry]:
    """The entries that stand: each booking once, and without those that the bank took back."""
    by_ref: dict[str, list[Entry]] = {}
    reversals: list[Entry] = []
    seen: set[tuple[str, date, str, Decimal]] = set()
    for entry in statement:
        booking = (entry.bank_ref, entry.value_date, entry.currency, entry.amount)
        if booking in seen:  # two exports that overlap hold the same booking under two entry ids
            continue
        seen.add(booking)
        if entry.type == "reversal":
            reversals.append(entry)
        else:
            by_ref.setdefault(entry.bank_ref, []).append(entry)
    left: list[Entry] = []
    for reversal in reversals:
        if not _take_back(reversal, by_ref):
            left.append(reversal)
    return left + [entry for entries in by_ref.values() for entry in entries]


def _take_back(reversal: Entry, by_ref: Mapping[str, list[Entry]]) -> bool:
    for name in _BANK_REF.findall(_folded(reversal.reference).upper()):
        for entry in by_ref.get(name, []):
            if (entry.currency, entry.amount) == (reversal.currency, -reversal.amount):
                by_ref[name].remove(entry)
                return True
    return False


def _put(entry: Entry, accounts: Sequence[_Account]) -> None:
    """Fill the documents in the order in which the entry names them; what is left over goes to the last."""
    sign = -1 if entry.amount < 0 else 1
    rest = abs(_gross(entry))
    for account in accounts:
        account.entries.append(entry)
        if account.order.currency != entry.currency:
            account.foreign = True
            continue
        open_amount = max((account.expected - account.received) * sign, Decimal(0))
        part = rest if account is accounts[-1] else min(rest, open_amount)
        account.received += part * sign
        rest -= part


def _stray(entry: Entry) -> Difference:
    kind = "refund_without_order" if entry.type == "refund" else "unknown_payment"
    return _difference(kind, "", [entry.entry_id], entry.counterparty, _Sums(entry.currency, Decimal(0), _gross(entry)))


class _Sums(NamedTuple):
    currency: str
    expected: Decimal
    received: Decimal


def _difference(kind: str, order: str, entries: list[str], customer: str, sums: _Sums) -> Difference:
    currency, expected, received = sums
    return Difference(
        id=f"{order or entries[0]}:{kind}",
        kind=kind,
        order=order,
        entries=entries,
        customer=customer,
        currency=currency,
        expected=plain(expected, currency),
        received=plain(received, currency),
        delta=plain(received - expected, currency),
    )


def _gross(entry: Entry) -> Decimal:
    return entry.amount + entry.fee


def _documents_in(text: str) -> list[str]:
    found = (f"{kind}-{number}" for kind, number in _DOCUMENT.findall(_folded(text).upper()))
    return list(dict.fromkeys(found))


def _folded(text: str) -> str:
    """One spelling for full-width and half-width forms: ＳＯ－１００１２３ is SO-100123."""
    return unicodedata.normalize("NFKC", text)


def _same_name(full: str, booked: str) -> bool:
    """Banks shout, cut names short and lose the punctuation."""
    whole, start = _name_key(full), _name_key(booked)
    return bool(start) and whole.startswith(start)


def _name_key(name: str) -> str:
    return "".join(sign for sign in _folded(name).casefold() if sign.isalnum())
