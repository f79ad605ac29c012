"""What is more than a row and shares a statement: tasks that are begun, and rows that change projections.

Each is judged by itself, as when it comes alone; what would be refused is left out, and asks for itself. `Sharing` does the
same for plain rows, which are nearly all that a log has, in a statement that costs less.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...changes import HeadChange, placing, project
from ...errors import StoreError, StoreUnavailable
from ...events import Event, TaskStatus, row_hash
from ..base import Beginning, Blob, Claim
from ..tickets import Waiting, Waits
from .arrays import arrays, digests, elements, numbers, texts
from .heads import Given, Heads
from .link import Link, Refusal, Row, Statement
from .rows import blob_arrays, changes_json, rows_json, shared_row, text
from .sharing import copied

MOST = 50
"""How many go in one statement: rows that change projections are a transaction within it, of which a server remembers 64."""


class Begun(Waits):
    """A task that is to be begun. `claim`: what came of it, once it is done; None: its id exists."""

    __slots__ = ("begun", "blobs", "claim")

    def __init__(self, begun: Beginning, blobs: Sequence[Blob]) -> None:
        super().__init__()
        self.begun = begun
        self.blobs = blobs
        self.claim: Claim | None = None

    @property
    def task_id(self) -> str:
        return self.begun.accepted.task_id

    @property
    def epoch(self) -> int:
        assert self.begun.claimed.epoch is not None
        return self.begun.claimed.epoch


class Several(Waits):
    """Sealed rows of one task, all or none of which are written. `release`: the owner gives the task up with them.

    `head`: what they change, where that is the task's head and nothing else, so that nothing but their places and their epoch
    can refuse them; the row that changes it. `digest`: the hash of the last row, where it is known.
    """

    __slots__ = ("blobs", "digest", "events", "guard", "head", "release")

    def __init__(
        self, events: Sequence[Event], guard: str | None, blobs: Sequence[Blob], digest: bytes | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.digest = digest
        self.events = events
        self.guard = guard
        self.blobs = blobs
        changes = [(change, event) for event in events for change in project(event)]
        heads = [(change, event) for change, event in changes if isinstance(change, HeadChange)]
        self.release = any(change.release for change, _ in heads)
        self.head = heads[0] if len(changes) == 1 and heads and not heads[0][0].only_from else None

    @property
    def tells(self) -> bool:
        """Whether workers that listen are told of it."""
        return self.head is not None and self.head[0].status == TaskStatus.READY

    def said(self) -> str:
        """As `append_several` takes it."""
        first, guard = self.events[0], json.dumps(self.guard)
        return (
            f'{{"task":{json.dumps(first.task_id)},"epoch":{first.epoch},"rows":{rows_json(self.events)},'
            f'"changes":{changes_json(self.events)[0]},"guard":{guard},"release":{"true" if self.release else "false"}}}'
        )

    def head_said(self) -> dict[str, Any]:
        """What `append_heads` takes beside the rows."""
        assert self.head is not None
        change, event = self.head
        first, last = self.events[0], self.events[-1] if self.release else event
        return {
            "task_id": first.task_id, "epoch": first.epoch, "place": first.event_seq, "count": len(self.events),
            "guard": self.guard, "release": self.release, "status": change.status, "wake_at": change.wake_at,
            "why": text(change.why), "awaits": text(change.awaits), "at": event.at.wall, "seq": last.event_seq,
            "hash": ((self.digest if last is self.events[-1] else None) or row_hash(last)).hex(),
        }  # fmt: skip


class Batches:
    """What waits for a statement that it shares; the caller of `commit` has the turn of `Sharing`.

    `begin`: begins tasks in one statement and says which (their claims). `took`: takes in the server's clock; `standing`:
    which of these rows are in the log; `newest`: told of the rows of a commit.
    """

    def __init__(
        self,
        link: Link,
        queries: Mapping[str, str],
        *,
        clock: Callable[[], Any],
        took: Callable[[int, Any], None],
        standing: Callable[[Sequence[Event]], set[tuple[str, int]]],
        newest: Callable[[Sequence[Event]], None],
        begin: Callable[[Sequence[Begun]], dict[str, Claim]],
    ) -> None:
        self._link = link
        self._queries = queries
        self._heads = Heads(queries)
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

    def commit(self, most: int | None = None) -> None:
        """Commit what waits, or the oldest of each kind. What is refused does not harm the others."""
        left = len(self.begun) if most is None else min(most, len(self.begun))
        while some := self.begun.take(min(left, MOST)):
            left -= len(some)
            self._each(some, self._begin_some)
        left = len(self.several) if most is None else min(most, len(self.several))
        while more := self.several.take(min(left, MOST)):
            left -= len(more)
            plain = [ticket for ticket in more if ticket.head is not None]
            if plain:
                self._each(plain, self._write_heads)
            if len(plain) < len(more):
                self._each([ticket for ticket in more if ticket.head is None], self._write_some)

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
            if names.setdefault(ticket.task_id, ticket) is not ticket:
                ticket.alone = True  # the same id twice: it looks again when the first one stands
        claims = self._begin([ticket for ticket in tickets if not ticket.alone])
        for ticket in tickets:
            ticket.claim = None if ticket.alone else claims.get(ticket.task_id)

    def _write_heads(self, tickets: list[Several]) -> None:
        events = [event for ticket in tickets for event in ticket.events]
        contents = blob_arrays([blob for ticket in tickets for blob in ticket.blobs])
        guarded = any(ticket.guard is not None for ticket in tickets)
        told = any(ticket.tells for ticket in tickets)

        def args() -> Sequence[Any]:
            heads = json.dumps([ticket.head_said() for ticket in tickets], ensure_ascii=False)
            return heads, f"[{','.join([shared_row(event, None) for event in events])}]", guarded, *contents

        plain = not guarded and not told and contents[0] is None
        values = partial(_heads_values, tickets, events) if plain else None
        given = Given([ticket.events[0].task_id for ticket in tickets], len(events), values, args)
        self._write(self._heads, tickets, given)

    def _write_some(self, tickets: list[Several]) -> None:
        tickets.sort(key=lambda ticket: ticket.events[0].task_id)  # in one order for all writers
        said = "[" + ",".join(ticket.said() for ticket in tickets) + "]"
        contents = blob_arrays([blob for ticket in tickets for blob in ticket.blobs])
        self._write(self._queries["append_several"], tickets, (said, *contents))

    def _write(self, sql: str | Statement, tickets: list[Several], args: Sequence[Any]) -> None:
        events = [event for ticket in tickets for event in ticket.events]
        sent, refused = self._clock(), set[str]()

        def stand() -> bool | None:
            standing = self._standing(events)
            return True if all((event.task_id, event.event_seq) in standing for event in events) else None

        def made(found: list[Row]) -> bool:
            now, not_written = found[0]
            if now is not None:
                self._took(now, sent)
            refused.update(not_written)
            return True

        self._link.write("append", sql, args, stand, made)
        written: list[Event] = []
        for ticket in tickets:
            if ticket.events[0].task_id in refused:
                ticket.alone = True
            else:
                written += ticket.events
        if written:
            self._newest(written)


def _heads_values(tickets: Sequence[Several], events: Sequence[Event]) -> list[bytes | None]:
    """What `append_heads_direct` takes."""
    said = [ticket.head_said() for ticket in tickets]
    counted: list[int | None] = []
    for each in said:
        counted += (each["epoch"], each["place"], int(each["release"]), each["wake_at"], each["at"], each["seq"])
    return [
        *arrays([elements(event, None) for event in events]),
        texts([each["task_id"] for each in said]),
        numbers(counted),
        texts([each["status"] for each in said]),
        texts([each["why"] for each in said]),
        texts([each["awaits"] for each in said]),
        digests([bytes.fromhex(each["hash"]) for each in said]),
    ]


def begun_values(tickets: Sequence[Begun], owner: str, granted: int, at: int | None) -> list[bytes | None]:
    """What `begin_direct` takes."""
    rows = [row for ticket in tickets for row in (ticket.begun.accepted, ticket.begun.claimed)]
    accepted = [ticket.begun.accepted for ticket in tickets]
    placed = [placing(row) for row in accepted]
    counted: list[int | None] = []
    for ticket, (_, priority, _) in zip(tickets, placed, strict=True):
        claimed = ticket.begun.claimed
        counted += (ticket.begun.accepted.at.wall, claimed.at.wall, priority, claimed.epoch)
    return [
        *arrays([elements(row, None) for row in rows]),
        texts([row.task_id for row in accepted]),
        texts([row.step_name for row in accepted]),
        texts([ticket.begun.claimed.status for ticket in tickets]),
        digests([row.input_hash or b"" for row in accepted]),
        digests([ticket.begun.digest for ticket in tickets]),
        texts([queue for queue, _, _ in placed]),
        numbers(counted),
        owner.encode(),
        _pack(granted),
        None if at is None else _pack(at),
    ]


_pack = struct.Struct("!q").pack


def tasks_json(tickets: Sequence[Begun]) -> tuple[str, str]:
    """Tasks that are to be begun, as their statement takes them: what their heads say, and their rows."""
    heads, rows = [], []
    for ticket in tickets:
        first, second, digest = ticket.begun
        queue, priority, _ = placing(first)
        assert first.input_hash is not None
        heads.append(
            {
                "task_id": first.task_id, "task_name": first.step_name, "status": second.status, "at": first.at.wall,
                "input_hash": first.input_hash.hex(), "since": second.at.wall, "tail": digest.hex(), "queue": queue,
                "priority": priority, "epoch": second.epoch,
            }
        )  # fmt: skip
        rows += [shared_row(first, None), shared_row(second, None)]
    return json.dumps(heads, ensure_ascii=False, separators=(",", ":")), f"[{','.join(rows)}]"


_BATCHES: weakref.WeakSet[Batches] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for batches in _BATCHES:
        batches.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
