"""What earlier openings of a session have left: acknowledged calls, and writes that are recorded and not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import canonical
from .calls import Runtime
from .canonical import encode
from .events import IDLE, Effect, Event, Kind, StepStatus, TaskStatus, draft, dump
from .fold import StepRecord, fold_steps
from .log import TaskLog
from .outcomes import storable
from .store.base import Head

SESSION = "$session"
"""The name that every session has as a task."""

BETWEEN, UNREAD = IDLE

SHOWN = 300
"""Characters of one call's params, or of its output, that a text for a model shows."""


class Left(NamedTuple):
    """A write of an earlier opening whose result the host has not acknowledged."""

    record: StepRecord

    @property
    def path(self) -> str:
        return self.record.path

    @property
    def stands(self) -> bool:
        """Whether its effect is there or may be: what is proven without effect has to be told to nobody."""
        return self.record.settled and self.record.status != StepStatus.NOT_APPLIED


class History(NamedTuple):
    """What an opening has to know of the ones before. `ids`: the acknowledged call ids. `last`: the last place."""

    ids: set[str]
    left: list[Left]
    last: int


def read_history(rows: Iterable[Event]) -> History:
    """Fold a session's rows into what its next opening has to know."""
    acknowledged: set[str] = set()
    ids: set[str] = set()
    steps: dict[str, list[Event]] = {}
    last = 0
    for row in rows:
        if row.kind == Kind.CALLS_ACKNOWLEDGED:
            data = row.details
            ids.update(data["ids"])
            acknowledged.update(data["paths"])
            for path in data["paths"]:
                steps.pop(path, None)
        elif row.path is None:
            if row.kind == Kind.TASK_CLAIMED:
                for known in steps.values():
                    known.append(row)
        elif row.path.isdecimal():
            last = max(last, int(row.path))
            if row.path not in acknowledged:
                steps.setdefault(row.path, []).append(row)
    left: list[Left] = []
    for path, known in sorted(steps.items(), key=lambda one: int(one[0])):
        record = fold_steps(known).get(path)
        if record is not None and record.effect != Effect.READ:
            left.append(Left(record))
    return History(ids, left, last)


def acknowledged_row(task_id: str, log: TaskLog, paths: Iterable[str], ids: Iterable[str], runtime: Runtime) -> Event:
    """The row that says which calls' results the host has."""
    data = {"paths": sorted(paths, key=int), "ids": sorted(ids)}
    return draft(task_id, Kind.CALLS_ACKNOWLEDGED, runtime.store.now(), data=data, epoch=log.epoch)


def without_effect(log: TaskLog) -> list[StepRecord]:
    """The open writes of which it is known that nothing has happened: a host that goes on without them gives them up."""
    return [
        record
        for record in log.open_records()
        if record.effect != Effect.READ
        and record.path.isdecimal()
        and not (record.settled or record.in_doubt or record.answer or record.evidence)
        and record.in_flight is None
    ]


def given_up_row(task_id: str, log: TaskLog, record: StepRecord, runtime: Runtime) -> Event:
    """Settle such a write as not applied: its host has gone on without it."""
    error = {"kind": "not_applied", "code": "given_up", "detail": "the host went on without it; nothing had been carried out"}
    return draft(
        task_id, Kind.STEP_SETTLED, runtime.store.now(), step_seq=record.step_seq, path=record.path, step_name=record.name,
        status=StepStatus.NOT_APPLIED, attempt=len(record.attempts) or None, error=dump(error), epoch=log.epoch,
    )  # fmt: skip


def told(runtime: Runtime, record: StepRecord) -> str:
    """One write in words for a model: what was asked, and what is known of it."""
    call = call_text(runtime, record)
    match record.status:
        case StepStatus.DONE:
            return f"{call} was carried out{output_text(runtime, record)}"
        case StepStatus.COMPENSATED:
            return f"{call} was carried out and has been undone since"
        case StepStatus.NOT_APPLIED:
            return f"{call} was not carried out"
        case _:
            return f"{call} may have been carried out; nobody could find out"


def call_text(runtime: Runtime, record: StepRecord) -> str:
    """``pay(amount=500, order="o1")``, from the stored params."""
    params: Any = {}
    if record.input_ref is not None:
        params = canonical.decode(runtime.content.get(record.input_ref))
    said = ", ".join(f"{name}={_short(value)}" for name, value in params.items())
    return f"{record.name}({said if len(said) <= SHOWN else said[:SHOWN] + '…'})"


def output_text(runtime: Runtime, record: StepRecord) -> str:
    if record.output_ref is None:
        return ""
    text = runtime.content.get(record.output_ref)
    return f"; its result: {storable(text)[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


def _short(value: Any) -> str:
    text = encode(value)
    return text if len(text) <= 100 else text[:100] + "…"


def is_idle(head: Head) -> bool:
    """Whether this is a session that only waits for its host: nobody else has anything to do with it."""
    return head.task_name == SESSION and head.status == TaskStatus.WAITING and head.why in (BETWEEN, UNREAD)
