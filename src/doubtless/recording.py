"""Recording what came of a call: a result is never lost, an outcome never guessed (rule 6)."""

from __future__ import annotations

from typing import Any

from .calls import Frame, Run
from .errors import Moved, StaleEpoch, StoreDamaged, StoreUnavailable
from .events import ASKING, READ, UNDO, CaseKind, Event, Instant, Kind, StepStatus, done_row, draft, dump
from .fold import StepRecord
from .keeping import keep_trying, spill_result, unstored
from .latenews import late_result
from .outcomes import Outcome
from .outputs import Output, open_output_case, replayed, store_output
from .store.base import Blob
from .undoing import undone_row


def record_result(frame: Frame, value: Any) -> Any:
    """The call returned: settle the step as done. A result is always appended again, never lost (rule 6)."""
    run, definition, path, given, record = frame.run, frame.definition, frame.path, frame.given, frame.record
    try:
        output = store_output(run.runtime, definition, value)
    except StoreUnavailable:
        output = keep_trying(
            run, lambda: store_output(run.runtime, definition, value), lambda why: unstored(run, definition, value, why)
        )
    once = record.once if record is not None else given.once if given is not None else None
    rows = settled_rows(run, definition.effect, path, definition.name, frame.step_seq, frame.attempt, output, frame.started, once)
    if output.unstored is not None:
        raise spill_result(run, rows[0], output.unstored, output.refused)
    if record is None:
        if definition.effect == READ and given is not None:
            ref, blob = keep_trying(run, lambda: run.runtime.content.put(given.text))
            rows[0] = rows[0]._replace(input_hash=given.digest, input_ref=ref)
            if blob is not None:
                output = output._replace(blobs=(*output.blobs, blob))
    elif record.doubt_case is not None:
        rows += closing_rows(run, record, run.runtime.store.now(), f"attempt {frame.attempt} succeeded")
    if not append_result(frame, rows, output, forget=given is not None):
        return replayed(run, definition, path, run.log.settled[path] if given is None else run.log.settled_at(path))
    if output.fault is not None:
        raise open_output_case(run, path)
    return output.value


def settled_rows(
    run: Run, effect: str, path: str, name: str, step_seq: int, number: int, output: Output, started: Instant,
    once: str | None = None,
) -> list[Event]:  # fmt: skip
    """The row that settles a step as done; with a fault also the case that asks a person for the output."""
    now = run.runtime.store.now()
    error = None if output.fault is None else dump({"kind": "output", "detail": output.fault})
    began = started.wall if effect == READ else None
    log = run.log
    settled = done_row(
        run.task_id, now, step_seq, path, name, number, output.ref, error, log.epoch, began, log.seq + 1, log.hash
    )  # fmt: skip
    if once is not None:
        settled = settled._replace(data=dump({"once": once}))
    if path[0] == UNDO:
        return [settled, undone_row(run.task_id, path, run.log.origins[path], now, run.log.epoch)]
    if output.fault is None:
        return [settled]
    data = {"kind": CaseKind.OUTPUT, "why": f"{name} is done, but its output is not usable: {output.fault}"}
    opened = draft(
        run.task_id, Kind.CASE_OPENED, now, step_seq=step_seq, path=path, step_name=name, status=StepStatus.DONE, data=data,
        epoch=run.log.epoch,
    )  # fmt: skip
    return [settled, opened]


def key_data(once: str | None) -> dict[str, Any] | None:
    """The `data` of a row that settles a step: what tells the store to move its business key."""
    return None if once is None else {"once": once}


def append_result(frame: Frame, rows: list[Event], output: Output, *, forget: bool) -> bool:
    """Append what is known of an effect; only the death of this process can turn it into a doubt.

    `forget`: task code gets the output now and does not ask for this place again in this pass. False: somebody has
    settled the step while its call ran; the result is kept as evidence, and what stands is what the task goes on with.
    Where the frame's driver waits for it, the row shares a commit; it calls this again when that comes to nothing. Not where the
    output is unusable: nothing is handed on then, and nobody would wait.
    """
    run, path = frame.run, frame.path
    forget = forget and output.fault is None
    while True:
        try:
            try:
                if frame.shares and output.fault is None:
                    frame.flight = run.log.submit(*rows, blobs=output.blobs, forget=forget)
                else:
                    run.log.append(*rows, blobs=output.blobs, forget=forget)
            except StoreUnavailable:
                keep_trying(run, lambda: run.log.append(*rows, blobs=output.blobs, forget=forget))
        except Moved:
            settled = run.log.settled.get(path)
            if settled is None:  # a case that a person has answered meanwhile is not closed again
                rows[:] = [row for row in rows if row.kind != Kind.CASE_SETTLED or row.details["case_id"] in run.log.cases]
                continue
            late_result(run.runtime, run.task_id, rows[0], output.blobs)
            return False
        except StaleEpoch:
            late_result(run.runtime, run.task_id, rows[0], output.blobs)
            raise
        except (StoreUnavailable, StoreDamaged) as error:
            raise spill_result(run, rows[0], output.text, error) from error
        break
    if output.fault is not None:
        tell_cases(run, path, CaseKind.OUTPUT)
    return True


def record_outcome(frame: Frame, outcome: Outcome, *, running: bool = False) -> None:
    """The call gave no output: write the attempt's outcome. `running`: its thread or task still has the call."""
    run, definition, path, given, record = frame.run, frame.definition, frame.path, frame.given, frame.record
    runtime = run.runtime
    now = runtime.store.now()
    read = definition.effect == READ
    error: dict[str, Any] = {"kind": outcome.kind, "code": outcome.code, "detail": runtime.vault.mask(outcome.detail)}
    if outcome.retry_after_us is not None:
        error["retry_after_us"] = outcome.retry_after_us
    blobs: list[Blob] = []
    first: dict[str, Any] = {}
    if read and record is None and given is not None:
        ref, blob = keep_trying(run, lambda: runtime.content.put(given.text))
        first = {"input_hash": given.digest, "input_ref": ref, "effect_class": READ}
        blobs = [] if blob is None else [blob]
    row = draft(
        run.task_id, Kind.ATTEMPT_ENDED, now, step_seq=frame.step_seq, path=path, step_name=definition.name,
        status=StepStatus.STARTED if read else StepStatus.UNCERTAIN, attempt=frame.attempt, error=dump(error),
        started_at=frame.started.wall if read else None, finished_at=now.wall, epoch=run.log.epoch, **first,
    )  # fmt: skip
    while True:
        # Its late news says when it has ended, and must not stand before a row that says that it still runs.
        still = running and not frame.done
        row = row._replace(data=dump({"running": True}) if still else None)
        try:
            keep_trying(run, lambda: run.log.append(row, blobs=blobs))  # noqa: B023
            return
        except Moved:
            if path in run.log.settled:  # a person was faster
                return


def closing_rows(run: Run, record: StepRecord, now: Instant, why: str) -> list[Event]:
    """What the machine settles first closes the step's open doubt in the same transaction."""
    return [
        draft(
            run.task_id,
            Kind.CASE_SETTLED,
            now,
            step_seq=record.step_seq,
            path=record.path,
            step_name=record.name,
            data={"case_id": case, "answer": "settled", "by": "doubtless", "why": why},
            epoch=run.log.epoch,
        )  # fmt: skip
        for case, kind in record.cases.items()
        if kind in ASKING
    ]


def unsent_rows(run: Run, record: StepRecord, ended: str) -> list[Event]:
    """The rows that settle a write of a task that ends, all of whose attempts are known to have had no effect."""
    now = run.runtime.store.now()
    error = {"kind": "not_applied", "code": ended, "detail": "the task ended before it was sent again"}
    settled = draft(
        run.task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
        status=StepStatus.NOT_APPLIED, attempt=len(record.attempts) or None, error=dump(error), epoch=run.log.epoch,
        data=key_data(record.once),
    )  # fmt: skip
    return [settled, *closing_rows(run, record, now, f"the task ended {ended}")]


def tell_cases(run: Run, path: str, kind: CaseKind) -> None:
    """Call the hook for the newest open case of this kind at this path."""
    found = [case for case, opened in run.log.cases.items() if opened.path == path and opened.kind == kind]
    if found:
        run.runtime.case_opened(found[-1])
