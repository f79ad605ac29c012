"""Read the two files, or say what is wrong with them: every bad row by file, line and column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TypeVar

from .money import NOTATIONS, parse_amount

STATEMENT_COLUMNS = (
    "entry_id", "bank_ref", "booked_on", "value_date", "type", "counterparty", "currency", "amount", "fee", "reference",
)  # fmt: skip
ORDER_COLUMNS = (
    "document_id", "kind", "ordered_on", "due_on", "customer", "currency", "amount", "status", "credit_for", "note",
)  # fmt: skip
ENTRY_TYPES = ("payment", "card", "wire", "refund", "reversal", "fee")

_SHOWN = 60  # characters of a bad value that a message repeats
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the bank statement. `amount` is what was booked; `fee` was kept back by the bank before."""

    entry_id: str
    bank_ref: str
    booked_on: date
    value_date: date
    type: str
    counterparty: str
    currency: str
    amount: Decimal
    fee: Decimal
    reference: str


@dataclass(frozen=True, slots=True)
class Order:
    """One line of the order ledger: an order, or a credit note for one. `amount` is positive in both."""

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


class BadRow(NamedTuple):
    """One fault of a file. `line` counts the file's lines from 1 as an editor does; 0: the file as a whole."""

    file: str
    line: int
    column: str
    problem: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.column}: {self.problem}" if self.column else f"{place}: {self.problem}"


class BadInput(Exception):
    """The files cannot be used as they are; `rows` names every fault that was found. Nothing was started."""

    def __init__(self, rows: tuple[BadRow, ...]) -> None:
        self.rows = rows
        super().__init__("\n".join(str(row) for row in rows))


Record = TypeVar("Record")


def load_statement(path: str | Path) -> list[Entry]:
    """Return the entries of a bank statement. Raises: BadInput."""
    return _load(Path(path), STATEMENT_COLUMNS, _entry)


def load_orders(path: str | Path) -> list[Order]:
    """Return the orders and credit notes of a ledger. Raises: BadInput."""
    return _load(Path(path), ORDER_COLUMNS, _order)


def check(statement: str | Path, orders: str | Path) -> None:
    """Both files can be loaded. Raises: BadInput, with the faults of both."""
    faults: list[BadRow] = []
    for load, path in ((load_statement, statement), (load_orders, orders)):
        try:
            load(path)
        except BadInput as bad:
            faults += bad.rows
    if faults:
        raise BadInput(tuple(faults))


class _Row:
    """One record of the file: its fields by column, and where each of them begins."""

    def __init__(self, file: str, line: int, columns: tuple[str, ...], fields: list[str], faults: list[BadRow]) -> None:
        self._file = file
        self._faults = faults
        self._values = dict(zip(columns, fields, strict=True))
        self._lines: dict[str, int] = {}
        for column, value in self._values.items():
            self._lines[column] = line
            line += len(_LINE_BREAK.findall(value))

    def text(self, column: str, *, may_be_empty: bool = False) -> str:
        value = self._values[column]
        if not value.strip() and not may_be_empty:
            self.fault(column, "is empty")
        return value

    def one_of(self, column: str, allowed: tuple[str, ...]) -> str:
        value = self._values[column]
        if value not in allowed:
            self.fault(column, f"{_shown(value)} is none of {', '.join(allowed)}")
        return value

    def day(self, column: str) -> date:
        value = self._values[column]
        # fromisoformat reads more forms than this one (20261128, 2026-W48-6), and two forms in one column hide slips
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
        self.fault(column, f"{_shown(value)} is not a day like 2026-11-28")
        return date.min

    def amount(self, column: str, currency: str, *, may_be_empty: bool = False) -> Decimal:
        value = self._values[column]
        if (may_be_empty and not value) or currency not in NOTATIONS:  # an unknown currency is named already
            return Decimal(0)
        try:
            return parse_amount(value, currency)
        except ValueError as error:
            self.fault(column, f"{_shown(value)} is {error}")
            return Decimal(0)

    def fault(self, column: str, problem: str) -> None:
        self._faults.append(BadRow(self._file, self._lines[column], column, problem))


def _entry(row: _Row) -> Entry:
    currency = row.one_of("currency", tuple(NOTATIONS))
    entry = Entry(
        entry_id=row.text("entry_id"),
        bank_ref=row.text("bank_ref"),
        booked_on=row.day("booked_on"),
        value_date=row.day("value_date"),
        type=row.one_of("type", ENTRY_TYPES),
        counterparty=row.text("counterparty"),
        currency=currency,
        amount=row.amount("amount", currency),
        fee=row.amount("fee", currency, may_be_empty=True),
        reference=row.text("reference", may_be_empty=True),
    )
    if entry.type in ("payment", "card", "wire") and entry.amount < 0:
        row.fault("amount", f"a {entry.type} cannot be negative")
    if entry.type in ("refund", "fee") and entry.amount > 0:
        row.fault("amount", f"a {entry.type} must be negative")
    if entry.fee < 0:
        row.fault("fee", "cannot be negative")
    return entry


def _order(row: _Row) -> Order:
    currency = row.one_of("currency", tuple(NOTATIONS))
    order = Order(
        document_id=row.text("document_id"),
        kind=row.one_of("kind", ("order", "credit")),
        ordered_on=row.day("ordered_on"),
        due_on=row.day("due_on"),
        customer=row.text("customer"),
        currency=currency,
        amount=row.amount("amount", currency),
        status=row.one_of("status", ("open", "cancelled")),
        credit_for=row.text("credit_for", may_be_empty=True),
        note=row.text("note", may_be_empty=True),
    )
    if order.amount < 0:
        row.fault("amount", "cannot be negative; a credit note has its own kind")
    return order


def _load(path: Path, columns: tuple[str, ...], make: Callable[[_Row], Record]) -> list[Record]:
    faults: list[BadRow] = []
    records: list[Record] = []
    first_lines: dict[str, int] = {}
    try:
        text = _text(path)
        for line, fields in _records(path, text, columns, faults):
            if len(fields) != len(columns):
                faults.append(BadRow(str(path), line, "", f"has {len(fields)} fields; {len(columns)} are expected"))
                continue
            row = _Row(str(path), line, columns, fields, faults)
            records.append(make(row))
            key = fields[0]
            if key and first_lines.setdefault(key, line) != line:
                row.fault(columns[0], f"{_shown(key)} stands in line {first_lines[key]} already")
        if not records and not faults:
            faults.append(BadRow(str(path), 1, "", "has a header but no rows"))
    except BadInput as bad:
        faults += bad.rows
    if faults:
        raise BadInput(tuple(faults))
    return records


def _text(path: Path) -> str:
    """The file's text without its byte order mark."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput((BadRow(str(path), 0, "", f"cannot be read: {error.strerror}"),)) from error
    if not data.strip(b"\xef\xbb\xbf \t\r\n"):
        raise BadInput((BadRow(str(path), 0, "", "is empty"),))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput((BadRow(str(path), 1, "", "is UTF-16; save it as UTF-8"),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        body = data.removeprefix(b"\xef\xbb\xbf")
        before = body[: error.start].decode("utf-8")
        line = len(_LINE_BREAK.findall(before)) + 1
        raise BadInput(
            (BadRow(str(path), line, "", f"byte 0x{body[error.start]:02x} is not UTF-8; save the file as UTF-8"),)
        ) from error
    if "\0" in text:
        line = len(_LINE_BREAK.findall(text[: text.index("\0")])) + 1
        raise BadInput((BadRow(str(path), line, "", "holds a NUL character; this is not a CSV file"),))
    return text


def _records(path: Path, text: str, columns: tuple[str, ...], faults: list[BadRow]) -> Iterator[tuple[int, list[str]]]:
    """The records after the header, each with the line on which it begins; blank lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        begins = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # Where a quote is broken nobody knows which record a later line belongs to.
            faults.append(BadRow(str(path), begins, "", f"a quoted field is broken ({error}); the lines after it were not read"))
            return
        if header is None:
            header = fields
            _check_header(path, header, columns)
        elif fields:
            yield begins, fields


def _check_header(path: Path, header: list[str], columns: tuple[str, ...]) -> None:
    if tuple(header) == columns:
        return
    missing = [column for column in columns if column not in header]
    unknown = [column for column in header if column not in columns]
    says = {"lacks": missing, "does not know": unknown}
    parts = [f"{verb} {', '.join(map(_shown, names))}" for verb, names in says.items() if names]
    problem = "; ".join(parts) or "has its columns in another order"
    raise BadInput((BadRow(str(path), 1, "", f"the header {problem} (expected: {','.join(columns)})"),))


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
