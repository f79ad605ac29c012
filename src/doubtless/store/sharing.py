"""Appends that share a commit: of threads that come while another one is syncing, and of one turn of an event loop.

There is no delay: who finds the store free commits at once, by itself. Who does not puts its row down and waits for the
connection; the first to have it commits all that lie there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import apsw

from ..errors import DoubtlessError, StoreError
from ..events import COLUMNS, Event
from .base import Blob
from .schema import ROW
from .tickets import Ticket, Waiting, Waits
from .transaction import put_blobs, same

if TYPE_CHECKING:
    from apsw import SQLiteValue

    from .link import Link


class Work(Waits):
    """What more than one row takes, waiting for a commit that it shares: all of it is done, or nothing.

    `body`: what is done in the transaction, and gives the result; `stands`: looks up, after an error of the driver, whether it
    was; `after`: told whether it is durable, once that is known. `count`: what the mark is raised to then; 0: it stays.
    """

    __slots__ = ("after", "body", "count", "result", "stands", "what")

    def __init__(
        self, what: str, body: Callable[[apsw.Cursor], Any], stands: Callable[[apsw.Cursor], Any],
        after: Callable[[bool], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self.what = what
        self.body = body
        self.stands = stands
        self.after = after
        self.count = 0
        self.result: Any = None


MOST = 256
"""How many rows go in one statement: SQLite's driver keeps its text compiled while it is shorter than 16 KiB."""

_NO_ROW = [None] * (len(COLUMNS) + 1)


class Sharing:
    """The rows that wait for a commit, and the commit that they share.

    `sql`: the statement of them all, for one row; `counted`: told, once for all that a commit held, what the mark is raised to.
    """

    def __init__(self, link: Link, sql: str, counted: Callable[[int], None]) -> None:
        self._link = link
        self._sql = sql
        self._counted = counted
        self._made: dict[int, str] = {}
        self.forget()
        _SHARINGS.add(self)

    def forget(self) -> None:
        """Nothing waits; also in the child of a fork, whose parent's rows are not its own."""
        self.waiting: Waiting[Ticket] = Waiting()
        self.works: Waiting[Work] = Waiting()

    def put(self, event: Event, guard: str | None, blobs: Sequence[Blob] = ()) -> Ticket:
        """Put a row down; it is durable when its ticket is done and not alone."""
        ticket = Ticket(event, guard, blobs)
        self.waiting.append(ticket)
        return ticket

    def add(self, work: Work) -> Work:
        """Put down what is more than a row."""
        self.works.append(work)
        return work

    def commit(self, most: int | None = None, gone: Callable[[], None] | None = None) -> None:
        """Commit all rows that wait, or the oldest of them; the caller holds the link's lock (`base.Store.flush`).

        One that is refused does not harm the others.
        Raises only what is no error of the store (a signal's exception): then too every ticket is done.
        """
        while works := self.works.take(most):
            self._commit_works(works)
            if most is not None:
                break
        left = len(self.waiting) if most is None else most
        while tickets := self.waiting.take(min(left, MOST)):
            left -= len(tickets)
            self._commit(tickets, gone)

    def _commit(self, tickets: list[Ticket], gone: Callable[[], None] | None) -> None:
        hooks = self._link.hooks
        try:
            self._write(tickets, gone)
        except BaseException:
            self._link.take_back()
            for ticket in tickets:
                ticket.alone = True
            raise
        finally:
            for ticket in tickets:
                ticket.done = True
        if hooks is not None:
            for _ in [ticket for ticket in tickets if not ticket.alone and ticket.error is None]:
                hooks("append:after")

    def _commit_works(self, works: list[Work]) -> None:
        """Commit what is more than a row, in one transaction; each of them whole, or not at all."""
        link = self._link
        try:
            self._do_all(works)
        except BaseException:
            link.take_back()
            for work in works:
                work.alone = True
            raise
        finally:
            for work in works:
                work.done = True
        if link.hooks is not None:
            for work in works:
                if work.error is None:
                    link.hooks(work.what + ":after")

    def _do_all(self, works: list[Work]) -> None:
        link = self._link
        try:
            cursor = link.writable("append")
            cursor.execute("BEGIN IMMEDIATE")
            for work in works:
                self._do(cursor, work)
            cursor.execute("COMMIT")
        except apsw.Error as error:
            link.take_back()
            for work in works:
                if work.error is None:
                    try:
                        work.result = link.fate(work.what, error, work.stands)
                    except StoreError as failed:
                        work.error = failed
        except StoreError as error:
            for work in works:
                work.error = error
        else:
            if count := max((work.count for work in works if work.error is None), default=0):
                self._counted(count)

    def _do(self, cursor: apsw.Cursor, work: Work) -> None:
        cursor.execute("SAVEPOINT one")
        try:
            work.result = work.body(cursor)
        except DoubtlessError as error:  # what it is refused for is its own
            work.error = error
            cursor.execute("ROLLBACK TO one")
        else:
            if self._link.hooks is not None:
                self._link.hooks(work.what + ":before")
        cursor.execute("RELEASE one")

    def _write(self, tickets: list[Ticket], gone: Callable[[], None] | None) -> None:
        link = self._link
        try:
            cursor = link.writable("append")
            if link.hooks is not None:
                for _ in tickets:
                    link.hooks("append:before")
            if any(ticket.blobs for ticket in tickets):
                self._write_all(cursor, tickets)
            else:
                sql, values = self._sql_of(len(tickets)), _values(tickets)
                if gone is not None:
                    gone()
                try:
                    cursor.execute(sql, values)
                except apsw.ConstraintError:  # nothing of it is written
                    self._write_all(cursor, tickets)
        except apsw.Error as error:
            link.take_back()
            for ticket in tickets:
                self._look_up(ticket, error)
        except StoreError as error:
            for ticket in tickets:
                ticket.error = error

    def _write_all(self, cursor: apsw.Cursor, tickets: list[Ticket]) -> None:
        """Write rows one after the other, with their content, in one transaction; but for those that are refused."""
        cursor.execute("BEGIN IMMEDIATE")
        sql = self._sql_of(1)
        for ticket in tickets:
            put_blobs(cursor, ticket.blobs)
            try:
                cursor.execute(sql, _values([ticket]))
            except apsw.ConstraintError:
                ticket.alone = True
        cursor.execute("COMMIT")

    def _sql_of(self, count: int) -> str:
        """The statement for so many rows, and a few more that are none: so there are not many that have to be compiled."""
        count = _rounded(count)
        if count not in self._made:
            self._made[count] = self._sql.replace(ROW, ",".join([ROW] * count))
        return self._made[count]

    def _look_up(self, ticket: Ticket, error: apsw.Error) -> None:
        if ticket.alone:
            return
        try:
            self._link.fate("append", error, lambda cursor: True if same(cursor, [ticket.event]) else None)
        except StoreError as failed:
            ticket.error = failed


def _rounded(count: int) -> int:
    return count if count <= 4 else -(-count // 8) * 8


def _values(tickets: list[Ticket]) -> list[SQLiteValue]:
    values: list[SQLiteValue] = []
    for ticket in tickets:
        values += ticket.event
        values.append(ticket.guard)
    return values + _NO_ROW * (_rounded(len(tickets)) - len(tickets))


_SHARINGS: weakref.WeakSet[Sharing] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for sharing in _SHARINGS:
        sharing.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
