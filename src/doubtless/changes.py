"""What one row changes beside the log: its task's head, cases, freezes, business keys.

Pure: no clock, no I/O. A store applies `project` in the row's own transaction, and `verify` folds it again from the log (I9).
"""

from __future__ import annotations

from typing import NamedTuple

from .events import Event, Kind, StepStatus, TaskStatus


class HeadChange(NamedTuple):
    """What a row changes in its task's head row. `only_from`: applies only while the status is one of these.

    `awaits`: the business key whose holder the task waits for.
    """

    status: str
    wake_at: int | None
    why: str | None
    release: bool
    only_from: tuple[str, ...] = ()
    awaits: str | None = None


class CaseOpened(NamedTuple):
    """A case row to write: its id is ``<task_id>:<event_seq>`` of the row that opened it."""

    case_id: str
    path: str | None
    kind: str


class CaseClosed(NamedTuple):
    """A case row to settle, once: compare-and-set on `settled_seq` being empty (I8)."""

    case_id: str
    by: str


class Freeze(NamedTuple):
    """A step (``*``: every step) to freeze with a reason, or to thaw (`why` None)."""

    step: str
    why: str | None


class KeyTaken(NamedTuple):
    """A business key that a step takes: its `turn` follows the turn of the holder before, who has let it go."""

    once: str
    path: str
    turn: int
    window_us: int | None


class KeyMoved(NamedTuple):
    """The holder of a business key is settled: ``done`` and ``failed`` keep the key, ``freed`` lets it go."""

    once: str
    path: str
    state: str


Change = HeadChange | CaseOpened | CaseClosed | Freeze | KeyTaken | KeyMoved

_KEY_STATES: dict[str, str] = {StepStatus.DONE: "done", StepStatus.NOT_APPLIED: "freed", StepStatus.FAILED: "failed"}


def names_key(event: Event) -> bool:
    """Whether this row may change a business key; of a row that one statement can append, read off before it is decoded."""
    return isinstance(event.data, str) and '"once":' in event.data


_ASLEEP = (TaskStatus.WAITING, TaskStatus.NEEDS_HUMAN)
_WAKE = HeadChange(TaskStatus.READY, None, None, False, _ASLEEP)


def wakes(event: Event) -> bool:
    """Whether this row gives a task that sleeps something to do: an answer, an event, a wish to cancel."""
    return _WAKE in project(event)


def case_id(task_id: str, event_seq: int) -> str:
    """A case's id: its task and the place of the row that opened it."""
    return f"{task_id}:{event_seq}"


class Placing(NamedTuple):
    """Which workers take a task, in which order, and from when on; what its TaskAccepted row says."""

    queue: str = "default"
    priority: int = 0
    not_before: int | None = None


_PLACED = Placing()


def placing(accepted: Event) -> Placing:
    """What a task's first row says of its place among others."""
    if accepted.data is None:
        return _PLACED
    data = accepted.details
    return Placing(data.get("queue", "default"), data.get("priority", 0), data.get("not_before"))


def project(event: Event) -> tuple[Change, ...]:
    """What this row changes in the projections. TaskAccepted makes the head row itself and changes nothing."""
    match event.kind:
        case Kind.TASK_CLAIMED:
            return (HeadChange(TaskStatus.RUNNING, None, None, False),)
        case Kind.TASK_PARKED:
            data = event.details
            status = event.status or TaskStatus.WAITING
            return (HeadChange(status, data.get("wake_at"), data.get("why"), True, awaits=data.get("awaits")),)
        case Kind.TASK_ENDED:
            return (HeadChange(event.status or TaskStatus.FAILED, None, event.details.get("why"), True),)
        case Kind.CASE_OPENED:
            return (CaseOpened(case_id(event.task_id, event.event_seq), event.path, event.details["kind"]),)
        case Kind.CASE_SETTLED:
            data = event.details
            closed = CaseClosed(data["case_id"], data["by"])
            return (closed, _WAKE) if data.get("wake") else (closed,)
        case Kind.CANCEL_REQUESTED | Kind.EVENT_RECEIVED:
            return (_WAKE,)
        case Kind.EVIDENCE_STORED if event.details.get("wake"):
            return (_WAKE,)
        case Kind.STORE_FROZEN | Kind.STORE_THAWED:
            return (Freeze(event.step_name or "*", event.details.get("why", "") if event.kind == Kind.STORE_FROZEN else None),)
        case Kind.STEP_INTENDED | Kind.RETRY_ALLOWED | Kind.STEP_SETTLED if names_key(event):
            return _key_change(event)
        case _:
            return ()


def _key_change(event: Event) -> tuple[Change, ...]:
    """A step with a business key takes it with its intent, or anew when it is reopened, and is settled with it."""
    data, path = event.details, event.path or ""
    if "once" not in data:
        return ()
    if event.kind != Kind.STEP_SETTLED:
        return (KeyTaken(data["once"], path, data["turn"], data.get("window_us")),)
    state = _KEY_STATES.get(event.status or "")
    return () if state is None else (KeyMoved(data["once"], path, state),)
