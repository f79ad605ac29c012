"""Appends that share a commit: of threads that come while another one is syncing, and of one turn of an event loop.

There is no delay: who finds the store free commits at once, by itself. Who does not puts its row down and waits for the
connection; the first to have it commits all that lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any

import apsw

from ..errors import DoubtlessError, StoreError
from ..events import Event
from .base import Blob
from .tickets import Ticket, Waiting
from .transaction import put_blobs, same

if TYPE_CHECKING:
    from .link import Link


class Work:
    """What more than one row takes, waiting for a commit that it shares: all of it is done, or nothing.

    `body`: what is done in the transaction, and gives the result; `stands`: looks up, after an error of the driver, whether it
    was; `after`: told whether it is durable, once that is known.
    """

    __slots__ = ("after", "alone", "body", "done", "error", "result", "stands", "what")

    def __init__(
        self, what: str, body: Callable[[apsw.Cursor], Any], stands: Callable[[apsw.Cursor], Any],
        after: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self.what = what
        self.body = body
        self.stands = stands
        self.after = after
        self.done = False
        self.alone = False
        self.error: DoubtlessError | None = None
        self.result: Any = None


class Sharing:
    """The rows that wait for a commit, and the commit that they share. `plain`, `unfrozen`: the statements of an append."""

    def __init__(self, link: Link, plain: str, unfrozen: str) -> None:
        self.waiting: Waiting[Ticket | Work] = Waiting()
        self._link = link
        self._plain = plain
        self._unfrozen = unfrozen

    def put(self, event: Event, guard: str | None, blobs: Sequence[Blob] = ()) -> Ticket:
        """Put a row down; it is durable when its ticket is done and not alone."""
        ticket = Ticket(event, guard, blobs)
        self.waiting.append(ticket)
        return ticket

    def add(self, work: Work) -> Work:
        """Put down what is more than a row."""
        self.waiting.append(work)
        return work

    def commit(self) -> None:
        """Commit all rows that wait; the caller holds the link's lock. One that is refused does not harm the others.

        Raises only what is no error of the store (a signal's exception): then too every ticket is done.
        """
        tickets = self.waiting.take()
        if not tickets:
            return
        hooks = self._link.hooks
        try:
            self._write(tickets)
        except BaseException:
            self._link.take_back()
            for ticket in tickets:
                ticket.alone = True
            raise
        finally:
            for ticket in tickets:
                ticket.done = True
        if hooks is not None:
            for ticket in tickets:
                if not ticket.alone and ticket.error is None:
                    hooks(f"{ticket.what}:after" if isinstance(ticket, Work) else "append:after")

    def _write(self, waiting: list[Ticket | Work]) -> None:
        link = self._link
        works = [one for one in waiting if isinstance(one, Work)]
        tickets = [one for one in waiting if isinstance(one, Ticket)]
        try:
            cursor = link.writable("append")
            cursor.execute("BEGIN IMMEDIATE")
            for work in works:
                self._do(cursor, work)
            for ticket in tickets:
                if link.hooks is not None:
                    link.hooks("append:before")
                if ticket.blobs:
                    put_blobs(cursor, ticket.blobs)
            guarded = [ticket for ticket in tickets if ticket.guard is not None]
            if guarded:
                self._insert(cursor, self._unfrozen, guarded)
            if len(guarded) < len(tickets):
                self._insert(cursor, self._plain, [ticket for ticket in tickets if ticket.guard is None])
            cursor.execute("COMMIT")
        except apsw.Error as error:
            link.take_back()
            for one in waiting:
                self._look_up(one, error)
        except StoreError as error:
            for one in waiting:
                one.error = error

    def _do(self, cursor: apsw.Cursor, work: Work) -> None:
        """Do it, or none of it: what it is refused for is its own."""
        cursor.execute("SAVEPOINT one")
        try:
            work.result = work.body(cursor)
            if self._link.hooks is not None:
                self._link.hooks(work.what + ":before")
        except DoubtlessError as error:
            work.error = error
            cursor.execute("ROLLBACK TO one")
        cursor.execute("RELEASE one")

    def _insert(self, cursor: apsw.Cursor, sql: str, tickets: list[Ticket]) -> None:
        """Write rows, one after the other, but for those that are refused."""
        rows = iter([ticket.event for ticket in tickets])
        while True:
            try:
                cursor.executemany(sql, rows)
                return
            except apsw.ConstraintError:  # only the statement of this row is undone; go on after it
                tickets[-1 - length_hint(rows)].alone = True

    def _look_up(self, one: Ticket | Work, error: apsw.Error) -> None:
        if one.alone or one.error is not None:
            return
        try:
            if isinstance(one, Work):
                one.result = self._link.fate(one.what, error, one.stands)
            else:
                event = one.event
                self._link.fate("append", error, lambda cursor: True if same(cursor, [event]) else None)
        except StoreError as failed:
            one.error = failed
