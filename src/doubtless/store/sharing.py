"""Appends that share a commit: of threads that come while another one is syncing, and of one turn of an event loop.

There is no delay: who finds the store free commits at once, by itself. Who does not puts its row down and waits for the
connection; the first to have it commits all that lie there.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import length_hint
from typing import TYPE_CHECKING

import apsw

from ..errors import StoreError
from ..events import Event
from .base import Blob
from .tickets import Ticket, Waiting
from .transaction import put_blobs, same

if TYPE_CHECKING:
    from .link import Link


class Sharing:
    """The rows that wait for a commit, and the commit that they share. `plain`, `unfrozen`: the statements of an append."""

    def __init__(self, link: Link, plain: str, unfrozen: str) -> None:
        self.waiting = Waiting()
        self._link = link
        self._plain = plain
        self._unfrozen = unfrozen

    def put(self, event: Event, guard: str | None, blobs: Sequence[Blob] = ()) -> Ticket:
        """Put a row down; it is durable when its ticket is done and not alone."""
        ticket = Ticket(event, guard, blobs)
        self.waiting.append(ticket)
        return ticket

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
            for _ in [ticket for ticket in tickets if not ticket.alone and ticket.error is None]:
                hooks("append:after")

    def _write(self, tickets: list[Ticket]) -> None:
        link = self._link
        try:
            cursor = link.writable("append")
            cursor.execute("BEGIN IMMEDIATE")
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
            for ticket in tickets:
                self._look_up(ticket, error)
        except StoreError as error:
            for ticket in tickets:
                ticket.error = error

    def _insert(self, cursor: apsw.Cursor, sql: str, tickets: list[Ticket]) -> None:
        """Write rows, one after the other, but for those that are refused."""
        rows = iter([ticket.event for ticket in tickets])
        while True:
            try:
                cursor.executemany(sql, rows)
                return
            except apsw.ConstraintError:  # only the statement of this row is undone; go on after it
                tickets[-1 - length_hint(rows)].alone = True

    def _look_up(self, ticket: Ticket, error: apsw.Error) -> None:
        if ticket.alone:
            return
        try:
            self._link.fate("append", error, lambda cursor: True if same(cursor, [ticket.event]) else None)
        except StoreError as failed:
            ticket.error = failed
