"""Appends that share a statement and its commit: of threads that come while another one is on its way, and of an event loop.

There is no delay: who finds nobody on the way goes at once, by itself. Who does not puts its row down and waits; the first to
have its turn takes all that lie there, in one round trip. One statement needs no session, so that it goes through a pooler.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence

from ... import host
from ...errors import StoreError, StoreUnavailable
from ...events import Event, Instant
from ..base import Blob
from ..tickets import Ticket, Waiting
from .arrays import elements
from .batch import Batch, Rows
from .link import Link, Refusal, Row
from .rows import blob_arrays

MOST = 1000
"""How many rows go in one statement."""

MOST_CONTENT = 8 << 20
"""How many bytes of content go in one statement, after which the next rows wait for the next one."""


class Sharing:
    """The rows that wait for a commit, and the commit that they share.

    `turn`: held by who is on the way to the server with a row. `standing`: which of these rows are in the log, compared whole.
    `timed`: whether the server's clock is wanted when this machine's says so; `took`: takes it in, told after a statement that
    was sent at that moment.
    """

    def __init__(
        self,
        link: Link,
        queries: Mapping[str, str],
        *,
        clock: Callable[[], Instant],
        timed: Callable[[int], bool],
        took: Callable[[int, Instant], None],
        standing: Callable[[Sequence[Event]], set[tuple[str, int]]],
        newest: Callable[[Event], None],
    ) -> None:
        self.begin()
        self._link = link
        self.statement = Batch(queries)
        self._clock = clock
        self._timed = timed
        self._took = took
        self._standing = standing
        self._newest = newest
        _SHARINGS.add(self)

    def begin(self) -> None:
        """Nobody is on the way, and nothing waits; also in the child of a fork, whose parent's rows are not its own."""
        self.waiting: Waiting[Ticket] = Waiting()
        self.turn = host.lock()

    def put(self, event: Event, guard: str | None, blobs: Sequence[Blob] = ()) -> Ticket:
        """Put a row down; it is durable when its ticket is done and not alone."""
        ticket = Ticket(event, guard, blobs)
        with contextlib.suppress(UnicodeEncodeError):  # what is no text is refused with its commit
            ticket.sent = elements(event, guard)
        self.waiting.append(ticket)
        return ticket

    def commit(self, most: int | None = None, gone: Callable[[], None] | None = None) -> None:
        """Commit the rows that wait, or the oldest of them; the caller holds `turn` (`base.Store.flush`).

        One that is refused does not harm the others.
        Raises only what is no error (a signal's exception): then too every ticket is done.
        """
        left = len(self.waiting) if most is None else min(most, len(self.waiting))  # not what comes meanwhile
        while tickets := self.waiting.take(min(left, MOST)):
            left -= len(tickets)
            part: list[Ticket] = []
            size = 0
            try:
                for ticket in tickets:
                    more = sum(len(blob.content) for blob in ticket.blobs)
                    if part and size + more > MOST_CONTENT:
                        self._commit(part, gone)
                        part, size = [], 0
                    part.append(ticket)
                    size += more
                self._commit(part, gone)
            finally:
                for ticket in tickets:
                    if not ticket.done:  # something broke in on it: each looks for itself
                        ticket.alone = ticket.done = True

    def _commit(self, tickets: list[Ticket], gone: Callable[[], None] | None) -> None:
        tickets.sort(key=_place)  # in one order for all writers, so that no two wait for each other
        written: set[tuple[str, int]] = set()
        failed: StoreUnavailable | None = None
        try:
            if self._write(tickets, written, gone):
                self._newest(tickets[-1].event)
                for ticket in tickets:
                    ticket.done = True
                return
        except StoreUnavailable as error:
            failed = error
        except (Refusal, StoreError, ValueError):  # nothing was written: each asks for itself, so that a row's fault is its own
            pass
        for ticket in tickets:
            if _place(ticket) in written:
                self._newest(ticket.event)
            elif failed is None:
                ticket.alone = True
            else:
                ticket.error = copied(failed)
            ticket.done = True

    def _write(self, tickets: list[Ticket], written: set[tuple[str, int]], gone: Callable[[], None] | None) -> bool:
        """Send these rows in one statement. True: all of them stand; `written`: takes in those that do where not all may."""
        sent = self._clock()
        guarded = any(ticket.guard is not None for ticket in tickets)
        blobs = [blob for ticket in tickets if ticket.blobs for blob in ticket.blobs]
        rows = Rows(tickets, guarded, self._timed(sent.boot), *blob_arrays(blobs), gone)

        def stand() -> bool | None:
            written.update(self._standing([ticket.event for ticket in tickets]))
            return True if len(written) == len(tickets) else None

        def made(found: list[Row]) -> bool:
            now, places = found[0]
            if now is not None:
                self._took(now, sent)
            if places is not None:
                written.update((task, seq) for seq, task in places)
            return places is None

        return self._link.write("append", self.statement, rows, stand, made)


def _place(ticket: Ticket) -> tuple[str, int]:
    return ticket.event.task_id, ticket.event.event_seq


def copied(error: StoreUnavailable) -> StoreUnavailable:
    """The same error for one more who waits: each raises its own."""
    made = StoreUnavailable(error.message, hint=error.hint, **error.context)
    made.__cause__ = error.__cause__
    return made


_SHARINGS: weakref.WeakSet[Sharing] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for sharing in _SHARINGS:
        sharing.begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
