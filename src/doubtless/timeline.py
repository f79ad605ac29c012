"""What a person sees of a task: its steps, how often each was really called, and how each doubt was settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import canonical
from .calls import Runtime
from .changes import case_id
from .drift import definition_changes
from .effects import PolicyChange
from .errors import StoreDamaged
from .events import UNDO, Effect, Event, Kind, StepStatus
from .fold import StepRecord, fold_steps
from .inbox import Case, jsonable, read_case, shown_json, wish_to_cancel
from .questions import WAIT_FOR
from .standing import SESSION, read_history
from .store.base import CaseRow, Head


class AttemptView(NamedTuple):
    """One call of the step's function. `outcome`: done, not_sent, rejected, unknown, or None while in flight."""

    number: int
    outcome: str | None
    code: str
    detail: Any
    started_at: int
    ended_at: int | None


class Moment(NamedTuple):
    """One line of a step's story: when (microseconds), and what happened, in words."""

    at: int
    what: str


class StepView(NamedTuple):
    """A step as the log tells it. `calls`: how often its function was called; `settled_by`: what settled it.

    `changed`: of a write, how today's definition differs from the one that its intent has frozen (``field``, ``was``,
    ``now``); it is the intent's that holds, or the stricter of both. Empty where the app has no steps and only looks.
    `child`: the id of the child task that was called at this place, whose own steps `show` tells under that id.
    """

    path: str
    step_seq: int
    name: str
    effect: str
    status: str
    calls: int
    params: Any
    output: Any
    error: Any
    keys: tuple[str, ...]
    handles: tuple[Any, ...]
    attempts: tuple[AttemptView, ...]
    settled_by: str | None
    story: tuple[Moment, ...]
    changed: tuple[PolicyChange, ...] = ()
    child: str | None = None


class TaskView(NamedTuple):
    """A task with its steps in order of first arrival, and its open cases. Times are microseconds.

    `stands`: of a task that ended failed, the effects that a person has let stand. `forked_from`: of a fork, the task and
    the `step_seq` that it was forked at. `unacknowledged`: of a session, the places of the writes whose results its host has
    not acknowledged. `cancelled`: of a task that has not ended, who wants it cancelled, and why (``by``, ``why``).
    """

    id: str
    name: str
    status: str
    why: str | None
    params: Any
    output: Any
    error: Any
    created_at: int
    updated_at: int
    wake_at: int | None
    owner: str | None
    owner_alive: bool
    steps: tuple[StepView, ...]
    cases: tuple[Case, ...]
    stands: tuple[dict[str, Any], ...] = ()
    forked_from: tuple[str, int] | None = None
    unacknowledged: tuple[str, ...] = ()
    cancelled: dict[str, Any] | None = None


def view(runtime: Runtime, head: Head) -> TaskView:
    """Everything that `show` tells of a task."""
    head, owner_alive = runtime.store.owned(head)
    rows = runtime.store.rows(head.task_id)
    if not rows:
        raise StoreDamaged(f"task {head.task_id} has a head and no rows in the log", hint="doubtless verify", task=head.task_id)
    records = fold_steps(rows)
    by_path: dict[str, list[Event]] = {}
    for row in rows:
        if row.path is not None:
            by_path.setdefault(row.path, []).append(row)
        elif row.kind == Kind.TASK_CLAIMED:
            for path, record in records.items():  # noqa: B007
                if path in by_path and not record_settled_before(by_path[path]):
                    by_path[path].append(row)
    accepted, last = rows[0], rows[-1]
    ended = last if last.kind == Kind.TASK_ENDED else next((r for r in reversed(rows) if r.kind == Kind.TASK_ENDED), None)
    return TaskView(
        id=head.task_id,
        name=head.task_name,
        status=head.status,
        why=head.why,
        params=content(runtime, accepted.input_ref),
        output=content(runtime, ended.output_ref) if ended else None,
        error=shown_json(ended.error) if ended and ended.error else None,
        created_at=head.created_at,
        updated_at=max(head.updated_at, last.at.wall),
        wake_at=head.wake_at,
        owner=head.owner,
        owner_alive=owner_alive,
        steps=tuple(step_view(runtime, records[path], by_path[path]) for path in records),
        cases=tuple(read_case(runtime, case) for case in cases_of(runtime, head.task_id)),
        stands=tuple(ended.details.get("stands", ())) if ended else (),
        forked_from=(accepted.details["forked_from"], accepted.details["at"]) if "forked_from" in accepted.details else None,
        unacknowledged=tuple(left.path for left in read_history(rows).left) if head.task_name == SESSION else (),
        cancelled=wish_to_cancel(rows),
    )


def cases_of(runtime: Runtime, task_id: str) -> list[CaseRow]:
    """The open cases of a task and of its children, at any depth."""
    own, below = runtime.store.cases(task_id=task_id), f"{task_id}/"
    return own + [case for case in runtime.store.cases() if case.task_id.startswith(below)]


def record_settled_before(rows: Sequence[Event]) -> bool:
    """Whether these rows of a step end settled."""
    return any(r.kind == Kind.STEP_SETTLED for r in rows)


def content(runtime: Runtime, ref: str | bytes | None) -> Any:
    """The content behind a ref as plain JSON, or None."""
    return None if ref is None else jsonable(canonical.decode(runtime.content.get(ref)))


def step_view(runtime: Runtime, record: StepRecord, rows: Sequence[Event]) -> StepView:
    """One step's view."""
    called = [a for a in record.attempts if a.code != "suspect"]
    settled = next((r for r in reversed(rows) if r.kind == Kind.STEP_SETTLED), None)
    attempts = tuple(
        AttemptView(a.number, a.outcome, a.code, a.detail, a.started.wall, a.ended.wall if a.ended else None)
        for a in record.attempts
    )
    calls = len(called)
    taken = record.origin is not None
    if record.effect == Effect.READ and settled is not None and record.status == StepStatus.DONE and not taken:
        calls += record.name != WAIT_FOR and not any(a.number == settled.attempt for a in called)
    output = content(runtime, record.output_ref) if record.output_ref is not None else None
    return StepView(
        record.path, record.step_seq, record.name, str(record.effect), record.status, calls, content(runtime, record.input_ref),
        output, shown_json(record.error) if record.error else None, tuple(k.hex() for k in record.keys), tuple(record.handles),
        attempts, settled_by(rows) if record.settled else None, tuple(story(rows)), tuple(definition_changes(runtime, record)),
        rows[0].details.get("child"),
    )  # fmt: skip


def settled_by(rows: Sequence[Event]) -> str:
    """What settled the step, in one phrase."""
    at = max(i for i, r in enumerate(rows) if r.kind == Kind.STEP_SETTLED)
    if "from" in (of := rows[at].details):
        made = f"the step at {of['path']} of task {of['from']}"
        return f"{made}, which has done it under {of['key']!r}" if "key" in of else f"{made}: taken over by the fork"
    if "child" in of and rows[at].status == StepStatus.DONE:
        return f"its end, see {of['child']}"
    row, before = rows[at], [r for r in rows[:at] if r.kind != Kind.CASE_SETTLED]
    closed = rows[at - 1].details if at and rows[at - 1].kind == Kind.CASE_SETTLED else {}
    match closed.get("answer"):
        case "happened" | "abandon":
            return f"a person: {closed['by']}"
        case "answer" | "deny" if row.step_name == WAIT_FOR:
            return f"a person: {closed['by']}"
        case "event":
            return str(closed["by"])
        case "expired":
            return "its deadline"
        case _ if row.step_name == WAIT_FOR and row.status == StepStatus.DONE:
            return "an event that had come before"
    if row.status == StepStatus.COMPENSATED:
        return f"undone by {row.path and UNDO + row.path}"
    if row.status == StepStatus.DONE and before and before[-1].kind == Kind.LOOKED_BACK:
        return "the look-back found it"
    if row.status == StepStatus.DONE and any(r.kind == Kind.EVIDENCE_STORED for r in before):
        return "a late reply"
    if row.status == StepStatus.DONE:
        return "its reply"
    return str(shown_json(row.error or "{}").get("kind", row.status))


def story(rows: Sequence[Event]) -> list[Moment]:
    """A step's rows in words."""
    moments: list[Moment] = []
    for row in rows:
        text = _tell(row)
        if text:
            moments.append(Moment(row.at.wall, text))
    return moments


def said(code: Any, detail: Any) -> str:
    """An outcome's code and detail on one line; an exception's own text often begins with its type's name already."""
    return (
        str(detail)
        if code and str(detail or "").startswith(f"{code}: ")
        else ": ".join(str(part) for part in (code, detail) if part)
    )


def _tell(row: Event) -> str:
    data = row.details
    error = shown_json(row.error) if row.error else {}
    detail = said(error.get("code"), error.get("detail"))
    match row.kind:
        case Kind.STEP_INTENDED:
            return (
                f"intent recorded; counts as sent, outcome unknown ({detail})"
                if error
                else "intent recorded, then called (attempt 1)"
            )
        case Kind.ATTEMPT_STARTED if "child" in data:
            return f"child task {data['child']} started"
        case Kind.ATTEMPT_STARTED:
            return f"attempt {row.attempt} recorded, then called" + (" under a new key" if row.idempotency_key else "")
        case Kind.ATTEMPT_ENDED:
            still = "; its call is still running" if data.get("running") else ""
            return f"attempt {row.attempt}: {error.get('kind')} ({detail}){still}"
        case Kind.HANDLE_RECORDED:
            return f"handle recorded: {data['handle']}"
        case Kind.LOOKED_BACK:
            why = f" ({data['why']})" if data.get("why") else ""
            counted = "; that is proof" if data.get("counts") else ""
            return f"looked back: {data['answer']}{why}{counted}"
        case Kind.RETRY_ALLOWED:
            return f"retry allowed by {data.get('by')}"
        case Kind.STEP_SETTLED if row.step_name == WAIT_FOR:
            taken = f" with event {data['event']} of the log" if "event" in data else ""
            return f"settled: {error.get('code') or row.status}{taken}"
        case Kind.STEP_SETTLED:
            of = ""
            if "from" in data:
                of = f", by the step at {data['path']} of task {data['from']}; nothing was sent"
            return f"settled: {row.status}{of}" + (f" ({error.get('kind')}: {detail})" if error else "")
        case Kind.EVIDENCE_STORED:
            return f"late news of attempt {row.attempt}: {data['what'].replace('_', ' ')}" + (f" ({detail})" if detail else "")
        case Kind.CASE_OPENED:
            return f"case {case_id(row.task_id, row.event_seq)} opened: {data.get('why', data['kind'])}"
        case Kind.CASE_SETTLED:
            who = {"settled": "closed", "expired": "expired, recorded", "event": "answered"}.get(data["answer"])
            who = who or f"answered {data['answer']}"
            why = f" ({data['why']})" if data.get("why") else ""
            return f"case {data['case_id']} {who} by {data['by']}{why}"
        case Kind.TASK_CLAIMED:
            return "its owner was gone: what was in flight is in doubt" if data.get("was") else ""
        case _:
            return ""
