"""The chain of a task's rows, checked where they are read: damage is told before anything is done because of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from ..errors import StoreDamaged
from ..events import Effect, Event, Kind, StepStatus, TaskStatus, row_hash, upcast
from .base import Head

Link = tuple[int, bytes]
"""A row's place and its hash; ``(0, b"")`` stands before the first one."""

Linked = tuple[int, bytes | None, bytes]
"""A row's place, the hash that it has of the row before it, and its own."""

START: Link = (0, b"")
KINDS = frozenset(map(str, Kind))
EFFECTS = frozenset({None, *map(str, Effect)})
ALL_STATUSES = frozenset({None, *map(str, StepStatus), *map(str, TaskStatus)})
STATUSES = frozenset(map(str, TaskStatus))
KEPT = 10_000
"""Of how many tasks is remembered how far they were seen to chain."""


def as_events(rows: Iterable[Sequence[Any]], event_of: Callable[[Sequence[Any]], Event] = upcast) -> list[Event]:
    """Stored rows as events. Raises: StoreDamaged for a row whose words are none that are written."""
    try:
        events = [event_of(row) for row in rows]
    except (TypeError, ValueError) as error:
        raise StoreDamaged(f"a row of the log cannot be read: {error}", hint=HINT) from error
    for event in events:
        if event.kind not in KINDS or event.status not in ALL_STATUSES or event.effect_class not in EFFECTS:
            refuse(event.task_id, event.event_seq)
    return events


def as_head(row: Sequence[Any]) -> Head:
    """A stored head row. Raises: StoreDamaged for a status that there is not: nothing is concluded from it."""
    head = Head._make(row)
    if head.status not in STATUSES:
        raise StoreDamaged(f"task {head.task_id}: its head row has the status {head.status!r}", hint=HINT, task=head.task_id)
    return head


def links_of(rows: Iterable[Event]) -> Iterable[Linked]:
    """Rows as what `follow` looks at."""
    return ((row.event_seq, row.prev_hash, hashed(row)) for row in rows)


def hashed(row: Event) -> bytes:
    """The hash of a row as it is read; no hash at all where a value is of another type than its column's."""
    try:
        return row_hash(row)
    except (AttributeError, TypeError, ValueError):
        return b""


def follow(task_id: str, rows: Iterable[Linked], link: Link, tail: Link | None) -> Link:
    """Follow a task's rows from a link on, past its head's `tail`; the last link.

    Raises: StoreDamaged for a gap, for a row that is not what it was when the next one (or the head) was written, and
    for rows that are missing at the end.
    """
    seq, digest = link
    for place, before, own in rows:
        if place != seq + 1 or (before or b"") != digest:
            refuse(task_id, max(seq, 1))
        seq, digest = place, own
        if tail is not None and seq == tail[0] and digest != tail[1]:
            refuse(task_id, seq)
    if tail is not None and seq < tail[0]:
        raise StoreDamaged(f"task {task_id}: its log ends at row {seq}, and had row {tail[0]}", hint=HINT, task=task_id)
    return seq, digest


def followed(task_id: str, rows: Iterable[Event], tail: Link | None) -> Iterator[Event]:
    """A task's rows from the first one on, each once it is known to be chained to those before it. Raises: StoreDamaged."""
    link = START
    for row in rows:
        link = follow(task_id, links_of((row,)), link, None)
        if tail is not None and link[0] == tail[0] and link[1] != tail[1]:
            refuse(task_id, link[0])
        yield row
    follow(task_id, (), link, tail)


def check_last(last: Event, tail: Link | None) -> None:
    """Check a task's last row against what was noted of it, before anything is concluded from it or chained to it.

    Raises: StoreDamaged for another row than the noted one, and for rows that are missing at the end.
    """
    if tail is not None and (last[1] < tail[0] or (last[1] == tail[0] and hashed(last) != tail[1])):
        refuse(last[0], tail[0])


def check_pairs(rows: Sequence[Event], wanted: Collection[int]) -> None:
    """Check these rows, each against the one after it, which is here too. Raises: StoreDamaged."""
    for row, after in pairwise(rows):
        if row.event_seq in wanted and (after.event_seq != row.event_seq + 1 or after.prev_hash != hashed(row)):
            refuse(row.task_id, row.event_seq)


def refuse(task_id: str, seq: int) -> NoReturn:
    """Say which row is damaged."""
    raise StoreDamaged(f"task {task_id}: row {seq} of its log is not what was written", hint=HINT, task=task_id, event_seq=seq)


HINT = "doubtless verify shows what is damaged; restore a backup, then doubtless recover"
