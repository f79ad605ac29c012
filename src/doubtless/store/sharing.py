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
from ..events import Event
from .base import Blob
from .tickets import Ticket, Waiting, Waits
from .together import MOST, NotTogether, Together, appending, write_together
from .transaction import bump, put_blobs, same

if TYPE_CHECKING:
    from .link import Link


class Work(Waits):
    """What more than one row takes, waiting for a commit that it shares: all of it is done, or nothing.

    `body`: what is done in the transaction, and gives the result; it may be done again, when what it did was taken back.
    `stands`: looks up, after an error of the driver, whether it was; `after`: told whether it is durable, once that is known.
    `together`: the same for the usual case, so that it can be written with others. `counts`: whether it is a claim, a park or an
    end; `count`: what the mark is raised to then (0: it stays).
    """

    __slots__ = ("after", "body", "count", "counts", "result", "stands", "together", "what")

    def __init__(
        self, what: str, body: Callable[[apsw.Cursor], Any], stands: Callable[[apsw.Cursor], Any],
        after: Callable[[bool], None], together: Together | None = None, counts: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.what = what
        self.body = body
        self.stands = stands
        self.after = after
        self.together = together
        self.counts = counts
        self.count = 0
        self.result: Any = None

    def do(self, cursor: apsw.Cursor) -> Any:
        """Do it in a transaction of its own."""
        self.result = self.body(cursor)
        count_all(cursor, [self])
        return self.result


def count_all(cursor: apsw.Cursor, works: Sequence[Work]) -> int:
    """Count the claims, parks and ends of one transaction; what the mark is raised to when it is committed (0: it stays)."""
    counting = [work for work in works if work.counts and work.error is None and work.result is not None]  # None: it was there
    count = bump(cursor) if counting else 0
    for work in counting:
        work.count = count
    return count


class Sharing:
    """The rows that wait for a commit, and the commit that they share.

    `counted`: told, once for all that a commit held, what the mark is raised to.
    """

    def __init__(self, link: Link, counted: Callable[[int], None]) -> None:
        self._link = link
        self._counted = counted
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
        """Commit all that waits, or the oldest of each kind; the caller holds the link's lock (`base.Store.flush`).

        One that is refused does not harm the others.
        Raises only what is no error of the store (a signal's exception): then too every ticket is done.
        """
        works, left = self.works.take(most), len(self.waiting) if most is None else most
        while (tickets := self.waiting.take(min(left, MOST))) or works:
            self._commit(works, tickets, gone)
            works, left = [], left - len(tickets)

    def _commit(self, works: list[Work], tickets: list[Ticket], gone: Callable[[], None] | None) -> None:
        hooks = self._link.hooks
        try:
            self._write(works, tickets, gone)
        except BaseException:
            self._link.take_back()
            for one in (*works, *tickets):
                one.alone = True
            raise
        finally:
            for one in (*works, *tickets):
                one.done = True
        if hooks is not None:
            for one in (*works, *tickets):
                if not one.alone and one.error is None:
                    hooks(one.what + ":after")

    def _write(self, works: list[Work], tickets: list[Ticket], gone: Callable[[], None] | None) -> None:
        link = self._link
        count = 0
        try:
            cursor = link.writable("append")
            if link.hooks is not None:
                for _ in tickets:
                    link.hooks("append:before")
            if works or any(ticket.blobs for ticket in tickets):
                count = self._in_one(cursor, works, tickets, gone)
            else:
                statement = appending([(ticket.event, ticket.guard) for ticket in tickets])
                if gone is not None:
                    gone()
                try:
                    cursor.execute(*statement)
                except apsw.ConstraintError:  # nothing of it is written
                    self._in_one(cursor, [], tickets, None, True)
        except apsw.Error as error:
            link.take_back()
            for ticket in tickets:
                self._look_up(ticket, error)
            for work in works:
                self._look_up_work(work, error)
        except StoreError as error:
            for one in (*works, *tickets):
                one.error = error
        else:
            if count:
                self._counted(count)

    def _in_one(
        self, cursor: apsw.Cursor, works: list[Work], tickets: list[Ticket], gone: Callable[[], None] | None, each: bool = False
    ) -> int:
        """Write all of it in one transaction; what the mark is raised to. `each`: one after the other."""
        cursor.execute("BEGIN IMMEDIATE")
        if each or not self._together(cursor, works, tickets):
            for ticket in tickets:
                self._do_row(cursor, ticket)
            for work in works:
                self._do(cursor, work)
        count = count_all(cursor, works)
        if gone is not None:
            gone()
        cursor.execute("COMMIT")
        return count

    def _together(self, cursor: apsw.Cursor, works: list[Work], tickets: list[Ticket]) -> bool:
        """Write all of it with few statements; False: one cannot be written so, or is refused, and nothing of it is written."""
        try:
            write_together(cursor, [work.together for work in works if work.together is not None], tickets)
            for work in works:
                work.result = work.body(cursor) if work.together is None else work.together.written()
                if self._link.hooks is not None:
                    self._link.hooks(work.what + ":before")
        except (apsw.ConstraintError, DoubtlessError, NotTogether):
            cursor.execute("ROLLBACK")
            cursor.execute("BEGIN IMMEDIATE")
            return False
        return True

    def _do_row(self, cursor: apsw.Cursor, ticket: Ticket) -> None:
        put_blobs(cursor, ticket.blobs)
        try:
            cursor.execute(*appending([(ticket.event, ticket.guard)]))
        except apsw.ConstraintError:
            ticket.alone = True

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

    def _look_up(self, ticket: Ticket, error: apsw.Error) -> None:
        if ticket.alone:
            return
        try:
            self._link.fate("append", error, lambda cursor: True if same(cursor, [ticket.event]) else None)
        except StoreError as failed:
            ticket.error = failed

    def _look_up_work(self, work: Work, error: apsw.Error) -> None:
        if work.error is None:
            try:
                work.result = self._link.fate(work.what, error, work.stands)
            except StoreError as failed:
                work.error = failed


_SHARINGS: weakref.WeakSet[Sharing] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for sharing in _SHARINGS:
        sharing.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
