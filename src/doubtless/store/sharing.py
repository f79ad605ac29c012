"""Appends that share a commit: of threads that come while another one is syncing, and of one turn of an event loop.

There is no delay: who finds the store free commits at once, by itself. Who does not puts its row down and waits for the
connection; the first to have it commits all that lie there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import apsw

from ..errors import DoubtlessError, StoreError
from ..events import Event
from .base import Blob
from .tickets import Ticket, Waiting
from .together import MOST, NotTogether, appending, write_together
from .transaction import put_blobs, same
from .works import Work, count_all, hold_all

if TYPE_CHECKING:
    from .link import Link


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
        left = len(self.waiting) if most is None else min(most, len(self.waiting))  # not what comes meanwhile
        works = self.works.take(most)
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
                statement = appending(tickets)
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
            hold_all(works)
            for work in works:
                work.result = work.body(cursor) if work.together is None else work.written()
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
            cursor.execute(*appending([ticket]))
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
