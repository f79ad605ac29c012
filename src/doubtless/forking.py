"""Making a fork: a new task whose first steps are answered from another task's log, which is never touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .beyond import POLICIES, Standing, Terms, WritePolicy, children_in, effects_of, standing, terms_of
from .calls import Runtime
from .errors import InputDiffers, TaskBusy, UsageError
from .events import CaseKind, Effect, Event, Kind, StepStatus, TaskStatus, draft
from .fold import StepRecord, fold_steps
from .inbox import read_ref
from .store.base import CaseRow, Head, Store

ASKED_ANEW = frozenset({"$wait_for"})
"""Steps that are not taken over: what a person or an event has answered to one task is no answer to another."""


class Stands(NamedTuple):
    """An effect that stands beyond a fork point, or may: `status` done, uncertain, needs_human or failed (abandoned).

    Shapes: `task` and `path` say where it was made; `params` and `output` are plain JSON.
    """

    task: str
    path: str
    step: str
    effect: str
    status: str
    params: Any
    output: Any


class Forked(NamedTuple):
    """A fork as it was made: its id, from where, how many steps were taken over, and what stands beyond that point."""

    id: str
    forked_from: str
    at: int
    taken: int
    stands: tuple[Stands, ...]


def make_fork(runtime: Runtime, head: Head, at: int, task_id: str, writes: Mapping[str, WritePolicy]) -> Forked:
    """Record the fork: its first row and the steps before `at`, in one transaction. The same call again is the same fork.

    Raises: UsageError (nothing was written), TaskBusy, InputDiffers when the id is another task's.
    """
    for effect, policy in writes.items():
        if policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise UsageError(f"{effect}={policy!r} is no policy of a fork; nothing was written", hint=f"one of {known}")
    store = runtime.store
    rows = store.rows(head.task_id)
    terms = Terms(head.task_id, at, writes)
    found = store.head(task_id)
    if found is None:
        accepted = rows[0]
        now = store.now()
        first = draft(
            task_id, Kind.TASK_ACCEPTED, now, step_name=accepted.step_name, status=TaskStatus.READY,
            input_hash=accepted.input_hash, input_ref=accepted.input_ref, data=terms.details(),
        )  # fmt: skip
        taken = [_taken(task_id, head.task_id, record, now) for record in _before(runtime, head, rows, at)]
        found = store.accept(first, taken=taken)
    if found is not None and terms_of(store.first(task_id)) != terms:
        raise InputDiffers(
            f"task {task_id} exists, and is no such fork of {head.task_id}; nothing was written",
            hint="give the fork another id: task_id=… (--as on the command line)",
            task=task_id,
        )
    number = sum(row.epoch is None and "from" in row.details for row in store.rows(task_id))
    return Forked(task_id, head.task_id, at, number, tuple(_told(runtime, one) for one in standing(store, terms)))


def _told(runtime: Runtime, one: Standing) -> Stands:
    params, output = read_ref(runtime, one.input_ref), read_ref(runtime, one.output_ref)
    return Stands(one.made[0], one.made[1], one.step, one.effect, one.status, params, output)


def _taken(task_id: str, origin: str, record: StepRecord, now: Any) -> Event:
    """The row that answers a step of the fork from the original's log: settled, without an intent, so without obligation."""
    made = record.origin or (origin, record.path)
    return draft(
        task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name, status=record.status,
        effect_class=record.effect, input_hash=record.input_hash, input_ref=record.input_ref, output_ref=record.output_ref,
        error=record.error, data={"from": made[0], "path": made[1]},
    )  # fmt: skip


def _before(runtime: Runtime, head: Head, rows: Sequence[Event], at: int) -> list[StepRecord]:
    """The original's steps before the fork point, fit to be taken over. Raises: UsageError, TaskBusy."""
    task_id = head.task_id
    records = fold_steps(rows)
    last = max((record.step_seq for record in records.values()), default=0)
    if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= last + 1:
        raise UsageError(
            f"task {task_id} has no place {at!r} to fork at; nothing was written",
            hint=f"its steps are 1 to {last}; {last + 1} takes all of them over: doubtless show {task_id}",
            task=task_id,
        )
    _refuse_moving(runtime, head, rows)
    asked = {case.path for case in runtime.store.cases(task_id=task_id) if case.kind == CaseKind.OUTPUT}
    children = children_in(rows)
    taken: list[StepRecord] = []
    for record in sorted(records.values(), key=lambda r: r.step_seq):
        if record.step_seq > at or record.path.startswith("~") or record.name in ASKED_ANEW:
            continue
        fault = _fault(record, at, undone=f"~{record.path}" in records, asked=record.path in asked)
        if not fault and not record.settled and any(
            one.status not in (StepStatus.DONE, StepStatus.FAILED)
            for one in effects_of(runtime.store, f"{task_id}/{record.path}", 1, {})
        ):
            fault = "is a child task with a write in doubt"
        if not fault and record.settled and record.step_seq < at and _was_answered(runtime.store, children.get(record.path)):
            fault = "is a child task that a person or an event has answered, and that is no answer to a fork"
        if fault:
            raise UsageError(
                f"task {task_id} cannot be forked at {at}: step {record.step_seq}, {record.name} at {record.path}, {fault}; "
                "nothing was written",
                hint=_way_out(task_id, record),
                task=task_id,
                step=record.name,
            )
        if record.step_seq < at and record.settled:  # a read that is not settled is called anew
            taken.append(record)
    return taken


def _refuse_moving(runtime: Runtime, head: Head, rows: Sequence[Event]) -> None:
    """Refuse an original that is being run, or whose effects may be undone next."""
    store, task_id = runtime.store, head.task_id
    if rows[0].details.get("session"):
        raise UsageError(f"task {task_id} is a session: its loop is its host's, and cannot be run from the top", task=task_id)
    if head.owner is not None and store.owner_alive(head.owner):
        raise TaskBusy(
            f"task {task_id} is being run: what it has in flight is not known yet; no fork was made",
            hint=f"wait for that run, or doubtless cancel MODULE:APP {task_id}; then fork again",
            task=task_id,
        )
    holds: list[CaseRow] = [case for case in store.cases(task_id=task_id) if case.kind == CaseKind.HOLD]
    if head.status == TaskStatus.COMPENSATING or holds:
        how = f"doubtless inbox {holds[0].case_id}" if holds else f"doubtless resume MODULE:APP {task_id}"
        raise UsageError(
            f"task {task_id} has failed, and whether its effects are undone is not settled; no fork was made",
            hint=f"settle that first: {how}",
            task=task_id,
        )


def _fault(record: StepRecord, at: int, *, undone: bool, asked: bool) -> str:
    """Why there is no forking behind this step's record; empty when it can be taken over, or lies at the fork point."""
    write = record.effect != Effect.READ
    if write and not record.settled and (record.in_doubt or record.in_flight is not None or record.evidence is not None):
        return "is in doubt"
    if record.step_seq >= at:
        return ""
    if write and not record.settled:
        return "is not settled"
    if record.status == StepStatus.COMPENSATED or undone:
        return "was undone, or is being undone"
    return "waits for its output" if asked else ""


def _was_answered(store: Store, child: str | None) -> bool:
    """Whether this child task, or a child of it, has waited for an answer: its output would carry that into the fork."""
    if child is None:
        return False
    rows = store.rows(child)
    return any(record.name in ASKED_ANEW for record in fold_steps(rows).values()) or any(
        _was_answered(store, one) for one in children_in(rows).values()
    )


def _way_out(task_id: str, record: StepRecord) -> str:
    if record.settled:
        return f"fork at it or before: doubtless fork MODULE:APP {task_id} --at {record.step_seq}"
    return f"settle it first: doubtless resume MODULE:APP {task_id}, then doubtless inbox"


def default_id(task_id: str, at: int) -> str:
    """The id that a fork has when none is given: the same each time, so that a call that is repeated makes one fork."""
    return f"{task_id.replace('/', '.')}@{at}"
