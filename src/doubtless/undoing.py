"""What a compensation said: done with evidence, undone already, not undoable, or nothing that shows anything (section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from .calls import PLAIN, Raised, Reply, Returned
from .canonical import encode
from .errors import NotCanonical
from .events import UNDO, Event, Instant, Kind, StepStatus, TaskStatus, draft, dump
from .fold import NO_EVIDENCE, NOT_UNDOABLE, StepRecord
from .log import Origin
from .outcomes import AlreadyUndone, NotUndoable, Outcome, Rejected


def heard(task_id: str, path: str, reply: Reply) -> Reply | Outcome:
    """What a call came to; of a compensation, and in a task that is one: what it said about the effect.

    Only evidence makes a compensation done; of one that is a task, its end is what has to show something.
    """
    if not (path[0] == UNDO or "/~" in task_id) or not isinstance(reply, Returned | Raised):
        return reply
    said = reply.value if isinstance(reply, Returned) else reply.error
    if isinstance(said, type) and issubclass(said, AlreadyUndone):
        said = said()
    if isinstance(said, AlreadyUndone):
        return Returned({"already_undone": _plain(said.detail)})
    if isinstance(said, NotUndoable):
        return Raised(Rejected(NOT_UNDOABLE, said.reason))
    if isinstance(reply, Raised) or path[0] != UNDO:
        return reply
    if shows_nothing(said):
        what = repr(said) if said is None or isinstance(said, bool) else f"an empty {type(said).__name__}"
        return _nothing(f"{what},")
    if type(said) in PLAIN:
        return reply
    kept = _storable(said)
    return _nothing(f"a {type(said).__name__}, which is no reply and") if kept is None else Returned(kept)


def _nothing(what: str) -> Outcome:
    return Outcome("unknown", NO_EVIDENCE, f"it returned {what} which shows nothing: return what the other side said", None)


def shows_nothing(value: Any) -> bool:
    """Whether a compensation's output is no evidence: None, a bool, or something empty."""
    if value is None or isinstance(value, bool):
        return True
    if type(value) in PLAIN:
        return not value
    return isinstance(value, Sized) and len(value) == 0


def _plain(detail: object) -> Any:
    try:
        encode(detail)
    except NotCanonical:
        return str(type(detail).__name__)
    return detail


def _storable(value: Any) -> Any:
    """Nobody asks a person for the output of a compensation: where it has no stored form, its type is what is kept.

    None: it is no reply of anybody, and what it stands for may never have run.
    """
    from .clients import is_response
    from .outcomes import Signal

    if isinstance(value, BaseException | Signal) or is_response(value):
        return value  # no output: classified like any
    if isinstance(value, type):
        return value if issubclass(value, Signal) else None
    try:
        encode(value)
    except NotCanonical as error:
        return None if _is_no_reply(value) else {"returned": type(value).__name__, "why": error.message}
    return value


def _is_no_reply(value: Any) -> bool:
    """Whether this is something that has yet to run (a generator, a future, a thread, a function), or says no by itself."""
    if isinstance(value, Iterator) or callable(value) or any(hasattr(value, name) for name in _UNFINISHED):
        return True
    try:
        return value in (NotImplemented, ...) or not value
    except Exception:  # noqa: BLE001  whatever a foreign type makes of these questions, it has answered neither with no
        return False


_UNFINISHED = ("__await__", "add_done_callback", "join")
"""What futures, threads and processes of all libraries have."""


def undone_row(task_id: str, path: str, origin: Origin, now: Instant, epoch: int | None) -> Event:
    """The row that makes a done step compensated: written with the one that settles its compensation, never without."""
    return draft(
        task_id, Kind.STEP_SETTLED, now, step_seq=origin.step_seq, path=path.removeprefix(UNDO), step_name=origin.name,
        status=StepStatus.COMPENSATED, epoch=epoch,
    )  # fmt: skip


def let_stand(task_id: str, path: str, record: StepRecord, now: Instant, epoch: int | None) -> Event:
    """The row of a compensation that a person has given up."""
    answer = record.answer
    error = dump({"kind": "not_applied", "code": "did_not_happen", "detail": f"said by {answer.by if answer else ''}"})
    return draft(
        task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=path, epoch=epoch, step_name=record.name,
        status=StepStatus.NOT_APPLIED, error=error,
    )  # fmt: skip


def undo_row(task_id: str, failure: Any, now: Instant, count: int | None) -> Event:
    """The row that lets a task's effects be undone: its owner, or whoever resumes it, does that and runs its code no more."""
    why = "undoing what it did" if count is None else f"undoing {count} of its effects"
    data = {"failure": failure, "wake_at": None, "why": why}
    return draft(task_id, Kind.TASK_PARKED, now, status=TaskStatus.COMPENSATING, data=data)
