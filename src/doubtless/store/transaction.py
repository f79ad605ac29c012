"""The parts that the SQLite store's transactions are made of: each runs inside one, on its cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import apsw

from ..errors import TaskBusy
from ..events import STORE_TASK, Event, Instant, Kind, TaskStatus, draft, row_hash, seal, upcast
from .applying import apply, check_refusal
from .base import Blob, Head
from .chain import check_last
from .link import first
from .owners import Owner, alive, describe, how_to_end
from .projections import show_time
from .refusals import frozen, moved, stale, unknown
from .schema import queries


def head_of(cursor: apsw.Cursor, task_id: str) -> Head | None:
    """The task's head row."""
    row = first(cursor, queries()["head"], (task_id,))
    return None if row is None else Head._make(row)


def known(cursor: apsw.Cursor, task_id: str) -> Head:
    """The task's head row. Raises: UnknownTask."""
    head = head_of(cursor, task_id)
    if head is None:
        raise unknown(task_id)
    return head


def same(cursor: apsw.Cursor, events: Sequence[Event]) -> bool:
    """True when these very rows stand in the log: compared whole, at their places."""
    rows = cursor.execute(queries()["rows"], (events[0].task_id, events[0].event_seq - 1)).fetchall()
    return rows[: len(events)] == [tuple(event) for event in events]


def sealed(cursor: apsw.Cursor, task_id: str, drafts: Sequence[Event]) -> list[Event]:
    """Drafts with their places after the task's last row."""
    row = first(cursor, queries()["last"], (task_id,))
    if row is None:
        return seal(drafts, 0, None)
    last = upcast(row)
    noted = first(cursor, queries()["tail"], (task_id,))
    check_last(last, None if noted is None else (noted[0], noted[1]))
    return seal(drafts, last.event_seq, row_hash(last))


def insert(cursor: apsw.Cursor, events: Sequence[Event], path: str) -> None:
    """Write sealed rows whose place and right were checked."""
    for event in events:
        try:
            cursor.execute(queries()["insert"], event)
        except apsw.ConstraintError as error:
            check_refusal(error, path)
            raise moved(event, _last_seq(cursor, event.task_id)) from None
        note_store_tail(cursor, event)


def note_tail(cursor: apsw.Cursor, event: Event) -> None:
    """Note a task's last row in its head, so that its loss shows."""
    cursor.execute(queries()["set_tail"], (event.task_id, event.event_seq, row_hash(event)))


def note_store_tail(cursor: apsw.Cursor, event: Event) -> None:
    """Note the last row of the store's own task: no head and no later row would show what happens to it."""
    if event.task_id == STORE_TASK:
        cursor.execute(queries()["store_tail"], (event.event_seq, row_hash(event)))


def put_blobs(cursor: apsw.Cursor, blobs: Sequence[Blob]) -> None:
    """Write content beside the rows that name it."""
    for blob in blobs:
        cursor.execute(queries()["put_blob"], blob)


def bump(cursor: apsw.Cursor) -> int:
    """Count one more claim, park or end; the mark is raised to the number after the commit."""
    row = first(cursor, queries()["bump"])
    assert row is not None
    return int(row[0])


def insert_owned(cursor: apsw.Cursor, events: Sequence[Event], guard: str | None, owner: Owner, path: str) -> bool:
    """Write an owner's sealed rows; False when they stand already (their fate was unknown to who appends again).

    Raises: StaleEpoch, Frozen, Moved.
    """
    event = events[0]
    if owner.tasks.get(event.task_id) == event.epoch:  # I4, also for the child of a fork
        try:
            if guard is None:
                cursor.execute(queries()["append"], event)
            else:
                cursor.execute(queries()["append_guarded"], (*event, guard))
        except apsw.ConstraintError as error:
            check_refusal(error, path)
        else:
            insert(cursor, events[1:], path)
            return True
    if not same(cursor, events):
        refuse(cursor, event, guard, owner)
    return False


def refuse(cursor: apsw.Cursor, event: Event, guard: str | None, owner: Owner) -> NoReturn:
    """Say why a row was not written."""
    head = known(cursor, event.task_id)
    if head.epoch is None or head.epoch != event.epoch or owner.tasks.get(event.task_id) != event.epoch:
        if event.epoch is not None and head.epoch != event.epoch:
            owner.let_go(event.task_id, event.epoch)
        raise stale(event, head, describe(owner.folder, head.owner).pid if head.owner else 0)
    if guard is not None and (found := first(cursor, queries()["frozen_step"], (guard,))) is not None:
        raise frozen(guard, *found)
    raise moved(event, _last_seq(cursor, event.task_id))


def _last_seq(cursor: apsw.Cursor, task_id: str) -> int:
    row = first(cursor, queries()["last"], (task_id,))
    return 0 if row is None else int(row[1])


def head_to_claim(cursor: apsw.Cursor, task_id: str, owner: Owner) -> Head:
    """The head of a task that has no living owner. Raises: TaskBusy, UnknownTask."""
    head = known(cursor, task_id)
    ours = head.owner is not None and head.owner == owner.id
    if head.owner is not None and (task_id in owner.tasks if ours else alive(owner.folder, head.owner)):
        row = first(cursor, queries()["claimed_at"], (task_id,))
        raise busy(head, head.owner, row[0] if row else head.updated_at, owner, ours=ours)
    return head


def busy(head: Head, name: str, since: int, owner: Owner, *, ours: bool) -> TaskBusy:
    """Who has the task, since when, and how to end that process."""
    who = describe(owner.folder, name)
    place = "this process" if ours else f"process {who.pid} ({who.program or 'unknown program'} on {who.host or 'this host'})"
    return TaskBusy(
        f"task {head.task_id} is run by {place} since {show_time(since)}",
        hint="a thread of it has the task; wait for that run" if ours else how_to_end(who),
        task=head.task_id,
        pid=who.pid,
        host=who.host,
        program=who.program,
        owner=name,
        since=since,
    )


def insert_taken(cursor: apsw.Cursor, head: Head, *, owner: str, epoch: int, now: Instant, path: str) -> None:
    """Write the row of a takeover: what was in flight is in doubt from here on."""
    data = {"owner": owner, "was": head.owner}
    row = draft(head.task_id, Kind.TASK_CLAIMED, now, status=TaskStatus.RUNNING, epoch=epoch, data=data)
    (event,) = sealed(cursor, head.task_id, [row])
    insert(cursor, [event], path)
    apply(cursor, event)
