"""What a store says when it does not write a row: the same words for every dialect."""

from __future__ import annotations

from ..errors import Frozen, Moved, StaleEpoch, UnknownTask
from ..events import Event
from .base import Head


def moved(event: Event, last: int) -> Moved:
    """The log is not where the writer of a row believed it."""
    return Moved(
        f"task {event.task_id}: row {event.event_seq} was expected next, and the log stands at {last}",
        hint="fold the newer rows and decide again",
        task=event.task_id,
        expected=event.event_seq,
        last=last,
    )


def stale(event: Event, head: Head, pid: int) -> StaleEpoch:
    """The writer of a row does not own its task any more (I4)."""
    by = f"process {pid} owns it now" if head.owner else "it was released"
    return StaleEpoch(
        f"task {event.task_id}: this run does not own it any more ({by}); row {event.event_seq} is not written",
        hint=f"stop; doubtless show {event.task_id}",
        task=event.task_id,
        epoch=event.epoch,
        owner=head.owner,
    )


def frozen(guard: str, step: str, why: str) -> Frozen:
    """A step is frozen, or all of them are."""
    what = "every step" if step == "*" else f"step {guard}"
    return Frozen(f"{what} is frozen: {why}", hint=f"doubtless thaw {step}", step=guard, frozen=step)


def unknown(task_id: str) -> UnknownTask:
    """There is no such task."""
    return UnknownTask(f"there is no task {task_id}", hint="doubtless tasks lists them", task=task_id)
