"""What ends a step without one more attempt: a late success, giving it up, a question to a person."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .attempts import intent
from .calls import Input, Reply, Request, Run
from .canonical import idempotency_key
from .effects import StepDefinition
from .errors import Moved, StepFailed
from .events import READ, UNDO, CaseKind, Effect, Kind, StepStatus, draft, dump
from .fold import StepRecord
from .outputs import Output
from .protocol import Fail, Reuse
from .recording import closing_rows, key_data, settled_rows, tell_cases


def ask(run: Run, record: StepRecord, why: str, *, anew: bool = False) -> Generator[Request, Reply, None]:
    """Open a case unless one is open, and park unless the machine has something left to do."""
    if record.doubt_case is None or anew:
        kind = CaseKind.COMPENSATION if record.undoes else CaseKind.DOUBT
        row = draft(
            run.task_id, Kind.CASE_OPENED, run.runtime.store.now(), step_seq=record.step_seq, path=record.path,
            step_name=record.name, status=StepStatus.NEEDS_HUMAN, data={"kind": kind, "why": why[:1000]}, epoch=run.log.epoch,
        )  # fmt: skip
        try:
            run.log.append(row)
        except Moved:
            return
        tell_cases(run, record.path, kind)
        return  # decide again: with the case open, the machine may still have something to do
    raise run.park(f"{record.name} at {record.path}: {why}", human=True)
    yield  # a generator like its siblings


def ask_unsent(run: Run, definition: StepDefinition, path: str, given: Input | None, why: str) -> None:
    """Open the case of a write whose time is over before it was sent: with its intent, which was never called."""
    assert given is not None
    now, step_seq, kind = run.runtime.store.now(), run.log.next_step_seq(), CaseKind.DOUBT
    if path[0] == UNDO:
        kind = CaseKind.COMPENSATION
    key = idempotency_key(run.runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
    row, blobs = intent(run, definition, path, given, step_seq, key, now)
    common: dict[str, Any] = {"step_seq": step_seq, "path": path, "step_name": definition.name, "epoch": run.log.epoch}
    error = dump({"kind": "not_sent", "code": "deadline", "detail": why})
    ended = draft(
        run.task_id, Kind.ATTEMPT_ENDED, now, status=StepStatus.UNCERTAIN, attempt=1, error=error, finished_at=now.wall, **common
    )  # fmt: skip
    opened = draft(
        run.task_id, Kind.CASE_OPENED, now, status=StepStatus.NEEDS_HUMAN, data={"kind": kind, "why": why}, **common
    )  # fmt: skip
    try:
        run.log.append(row, ended, opened, blobs=blobs)
    except Moved:
        return
    tell_cases(run, path, kind)


def settle_reused(run: Run, record: StepRecord, action: Reuse) -> None:
    """A late success of an attempt settles the step (rule 12); a second unprotected attempt is a contradiction."""
    if action.attempt is None:
        run.log.load()  # settled by somebody else between two looks
        return
    now = run.runtime.store.now()
    output = Output(action.output_ref, (), None, None, late_fault(run, record, action.attempt))
    started = next((a.started for a in record.attempts if a.number == action.attempt), now)
    rows = settled_rows(
        run, record.effect, record.path, record.name, record.step_seq, action.attempt, output, started, record.once
    )
    rows += closing_rows(run, record, now, f"attempt {action.attempt} succeeded late")
    unprotected = record.effect == Effect.NON_IDEM_WRITE and any(a.number > action.attempt for a in record.attempts)
    if unprotected:
        why = f"attempt {action.attempt} of {record.name} succeeded late, and another attempt had begun"
        rows.append(
            draft(
                run.task_id,
                Kind.CASE_OPENED,
                now,
                data={"kind": CaseKind.CONTRADICTION, "why": why},
                step_seq=record.step_seq,
                path=record.path,
                step_name=record.name,
                epoch=run.log.epoch,
            )  # fmt: skip
        )
    try:
        run.log.append(*rows)
    except Moved:
        return
    if output.fault is not None:
        tell_cases(run, record.path, CaseKind.OUTPUT)
    if unprotected:
        tell_cases(run, record.path, CaseKind.CONTRADICTION)


def late_fault(run: Run, record: StepRecord, attempt: int) -> str | None:
    """Why the late result of this attempt is no usable output, as its evidence says; None when it is one."""
    for row in run.log.open.get(record.path, ()):
        if row.kind == Kind.EVIDENCE_STORED and row.attempt == attempt and "fault" in row.details:
            return str(row.details["fault"])
    return None


def not_wanted(record: StepRecord) -> Fail:
    """What a person's permission to send again comes to in a task whose code runs no more: nobody is there to want it."""
    by = "" if record.answer is None else f", said by {record.answer.by}"
    return Fail("not_applied", "did_not_happen", f"it did not happen{by}; the task is ending, so that it is not sent again")


def settle_failed(run: Run, definition: StepDefinition | None, record: StepRecord, action: Fail, given: Input | None) -> None:
    """Give the step up: `not_applied` for a write, `failed` for a read; then raise what task code sees."""
    if not action.settled:
        now = run.runtime.store.now()
        read = record.effect == READ
        row = draft(
            run.task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
            status=StepStatus.FAILED if read else StepStatus.NOT_APPLIED, attempt=len(record.attempts) or None,
            error=dump({"kind": action.kind, "code": action.code, "detail": action.detail}), epoch=run.log.epoch,
            effect_class=READ if read else None, input_hash=record.input_hash if read else None,
            input_ref=record.input_ref if read else None, data=key_data(record.once),
        )  # fmt: skip
        try:
            run.log.append(row, *closing_rows(run, record, now, f"settled: {action.kind}"))
        except Moved:
            return
    if given is not None:
        if not run.log.remember:
            run.log.settled.pop(record.path, None)
        run.log.open.pop(record.path, None)
        raise StepFailed(action.kind, action.code, action.detail, step=record.name, path=record.path)
