"""What is more than a row and shares a statement: tasks that are begun, and rows that change projections.

Each is judged by itself, as when it comes alone; what would be refused is left out, and asks for itself. `Sharing` does the
same for plain rows, which are nearly all that a log has, in a statement that costs less.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DoubtlessError, StoreError, StoreUnavailable
from ...events import Event, TaskStatus, row_hash
from ...fold import placing
from ..base import Blob, Claim, Head
from ..tickets import Waiting
from .link import Link, Refusal, Row
from .rows import blob_arrays, changes_json, rows_json
from .sharing import copied

MOST = 50
"""How many go in one statement: rows that change projections are a transaction within it, of which a server remembers 64."""


class Begun:
    """A task that is to be begun. `claim`: what came of it, once it is done; None: its id exists."""

    __slots__ = ("alone", "blobs", "claim", "done", "epoch", "error", "event")

    def __init__(self, event: Event, blobs: Sequence[Blob], epoch: int) -> None:
        self.event = event
        self.blobs = blobs
        self.epoch = epoch
        self.done = False
        self.alone = False
        self.error: DoubtlessError | None = None
        self.claim: Claim | None = None


class Several:
    """Sealed rows of one task, all or none of which are written. `release`: the owner gives the task up with them."""

    __slots__ = ("alone", "blobs", "changes", "done", "error", "events", "guard", "release")

    def __init__(self, events: Sequence[Event], guard: str | None, blobs: Sequence[Blob]) -> None:
        self.events = events
        self.guard = guard
        self.blobs = blobs
        self.changes, self.release = changes_json(events)
        self.done = False
        self.alone = False
        self.error: DoubtlessError | None = None

    def said(self) -> str:
        """As the statement takes it."""
        first, guard = self.events[0], json.dumps(self.guard)
        return (
            f'{{"task":{json.dumps(first.task_id)},"epoch":{first.epoch},"rows":{rows_json(self.events)},"changes":{self.changes},'
            f'"guard":{guard},"release":{"true" if self.release else "false"}}}'
        )


class Batches:
    """What waits for a statement that it shares; the caller of `commit` has the turn of `Sharing`.

    `begin`: begins tasks in one statement and says which (their claims). `took`: takes in the server's clock; `standing`:
    which of these rows are in the log; `newest`: told of a row that is written.
    """

    def __init__(
        self,
        link: Link,
        sql: str,
        *,
        clock: Callable[[], Any],
        took: Callable[[int, Any], None],
        standing: Callable[[Sequence[Event]], set[tuple[str, int]]],
        newest: Callable[[Event], None],
        begin: Callable[[Sequence[Begun]], dict[str, Claim]],
    ) -> None:
        self._link = link
        self._sql = sql
        self._clock = clock
        self._took = took
        self._standing = standing
        self._newest = newest
        self._begin = begin
        self.forget()
        _BATCHES.add(self)

    def forget(self) -> None:
        """Nothing waits; also in the child of a fork."""
        self.begun: Waiting[Begun] = Waiting()
        self.several: Waiting[Several] = Waiting()

    @property
    def waiting(self) -> bool:
        """Whether something waits."""
        return bool(self.begun or self.several)

    def commit(self) -> None:
        """Commit what waits. What is refused does not harm the others."""
        while some := self.begun.take(MOST):
            self._each(some, self._begin_some)
        while more := self.several.take(MOST):
            self._each(more, self._write_some)

    def _each(self, tickets: Sequence[Any], commit: Callable[[Any], None]) -> None:
        try:
            commit(tickets)
        except StoreUnavailable as error:
            for ticket in tickets:
                ticket.error = copied(error)
        except (Refusal, StoreError, ValueError):  # nothing was written: each asks for itself, so that a fault is its own
            for ticket in tickets:
                ticket.alone = True
        except BaseException:
            for ticket in tickets:
                ticket.alone = True
            raise
        finally:
            for ticket in tickets:
                ticket.done = True

    def _begin_some(self, tickets: list[Begun]) -> None:
        names: dict[str, Begun] = {}
        for ticket in tickets:
            if names.setdefault(ticket.event.task_id, ticket) is not ticket:
                ticket.alone = True  # the same id twice: it looks again when the first one stands
        claims = self._begin([ticket for ticket in tickets if not ticket.alone])
        for ticket in tickets:
            ticket.claim = None if ticket.alone else claims.get(ticket.event.task_id)

    def _write_some(self, tickets: list[Several]) -> None:
        tickets.sort(key=lambda ticket: ticket.events[0].task_id)  # in one order for all writers
        events = [event for ticket in tickets for event in ticket.events]
        blobs = [blob for ticket in tickets for blob in ticket.blobs]
        args = ("[" + ",".join(ticket.said() for ticket in tickets) + "]", *blob_arrays(blobs))
        sent, refused = self._clock(), set[str]()

        def stand() -> bool | None:
            standing = self._standing(events)
            return True if all((event.task_id, event.event_seq) in standing for event in events) else None

        def made(found: list[Row]) -> bool:
            now, said = found[0]
            self._took(now, sent)
            refused.update(said)
            return True

        self._link.write("append", self._sql, args, stand, made)
        for ticket in tickets:
            if ticket.events[0].task_id in refused:
                ticket.alone = True
            else:
                self._newest(ticket.events[-1])


def tasks_json(tickets: Sequence[Begun]) -> str:
    """Tasks that are to be begun, as their statement takes them: what their heads say, and their first rows."""
    said = []
    for ticket in tickets:
        event = ticket.event
        queue, priority, not_before = placing(event)
        assert event.input_hash is not None
        said.append(
            json.dumps(
                {
                    "task_id": event.task_id, "task_name": event.step_name, "status": str(event.status or TaskStatus.READY),
                    "input_hash": event.input_hash.hex(), "at": event.at.wall, "tail": row_hash(event).hex(), "queue": queue,
                    "priority": priority, "wake_at": not_before, "epoch": ticket.epoch,
                },
                ensure_ascii=False,
            )[:-1]
            + f',"row":{rows_json([event])[1:-1]}}}'
        )  # fmt: skip
    return "[" + ",".join(said) + "]"


def begun_head(ticket: Begun, owner: str) -> Head:
    """The head of a task that was begun."""
    event = ticket.event
    queue, priority, not_before = placing(event)
    assert event.input_hash is not None and event.step_name is not None
    return Head(
        event.task_id, event.step_name, str(event.status or TaskStatus.READY), event.input_hash, owner, ticket.epoch, not_before,
        event.at.wall, event.at.wall, None, None, queue, priority,
    )  # fmt: skip


_BATCHES: weakref.WeakSet[Batches] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for batches in _BATCHES:
        batches.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
