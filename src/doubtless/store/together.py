"""What share a commit in SQLite, written together: one statement for the rows of all, and one for the heads that change.

A statement for each of them costs the loop's thread more than the disk: between two of them the interpreter is let go and
taken again. Whoever cannot be written so, or is refused, takes all of it back: then each is written by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import apsw

from ..events import Event
from .schema import NEW_HEAD, NEW_ROW, OLD_HEAD, ROW, queries
from .tickets import Ticket
from .transaction import put_blobs

if TYPE_CHECKING:
    from apsw import SQLiteValue

MOST = 256
"""How many rows go in one statement: SQLite's driver keeps its text compiled while it is shorter than 16 KiB."""


class NotTogether(Exception):
    """This piece of work cannot be written with others as it was said; what was written of it is taken back."""


class Together(NamedTuple):
    """What a piece of work writes, where that is rows and one head: of a task that begins with them, or of one that ends."""

    rows: Sequence[Event]
    begins: Sequence[SQLiteValue] | None
    ends: Sequence[SQLiteValue] | None


class Statement:
    """A statement for any number of rows. There are not many texts of it that have to be compiled: some rows are none."""

    def __init__(self, name: str, row: str) -> None:
        self._name = name
        self._row = row
        self._nothing = [None] * row.count("?")
        self._made: dict[int, str] = {}

    def of(self, count: int, values: list[SQLiteValue]) -> tuple[str, list[SQLiteValue]]:
        """The text for so many rows, and the values that it takes."""
        full = count if count <= 4 else -(-count // 8) * 8
        if full not in self._made:
            self._made[full] = queries()[self._name].replace(self._row, ",".join([self._row] * full))
        return self._made[full], values + self._nothing * (full - count)


_append = Statement("append_shared", ROW)
_new_heads = Statement("begin_heads", NEW_HEAD)
_new_rows = Statement("begin_rows", NEW_ROW)
_old_heads = Statement("end_heads", OLD_HEAD)


def appending(rows: Sequence[Ticket]) -> tuple[str, list[SQLiteValue]]:
    """The statement that appends these rows, each with its guard and checked by itself; no more than `MOST` of them."""
    values: list[SQLiteValue] = []
    for row in rows:
        values += row.event
        values.append(row.guard)
    return _append.of(len(rows), values)


def write_together(cursor: apsw.Cursor, works: Sequence[Together], tickets: Sequence[Ticket]) -> None:
    """Write all of it, in a transaction that is open. Raises: apsw.ConstraintError, where one is refused; nothing says which."""
    begun = [work for work in works if work.begins is not None]
    _write(cursor, _new_heads, [work.begins for work in begun if work.begins is not None])
    _write(cursor, _new_rows, [event for work in begun for event in work.rows])
    rows = [Ticket(event, None, ()) for work in works if work.begins is None for event in work.rows]
    for ticket in tickets:
        put_blobs(cursor, ticket.blobs)
        rows.append(ticket)
    for first in range(0, len(rows), MOST):
        cursor.execute(*appending(rows[first : first + MOST]))
    _write(cursor, _old_heads, [work.ends for work in works if work.ends is not None])


def _write(cursor: apsw.Cursor, statement: Statement, rows: Sequence[Sequence[SQLiteValue]]) -> None:
    for first in range(0, len(rows), MOST):
        some = rows[first : first + MOST]
        cursor.execute(*statement.of(len(some), [value for row in some for value in row]))
