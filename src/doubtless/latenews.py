"""Late news: what a call said after its attempt was given up. Evidence, and where possible the settlement (rule 12)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .calls import Frame, Raised, Returned, Run, Runtime
from .canonical import encode
from .errors import Moved, NotCanonical
from .events import CaseKind, Effect, Event, Kind, StepStatus, draft, dump
from .fold import StepRecord, fold_steps
from .keeping import spill_result
from .outcomes import Outcome, classify_returned, storable, text_of
from .outputs import store_output
from .store.base import Blob
from .undoing import heard


def take_in(runtime: Runtime, row: Event) -> None:
    """Make a result that was spilled or kept the evidence that it is; once, however often it is offered."""
    if row.effect_class == Effect.READ:
        return  # nothing stands on it: the step is called again
    ref, blob = row.output_ref, None
    if isinstance(ref, str):
        ref, blob = runtime.content.put(ref.removeprefix("inline:"))
    for event in runtime.store.rows(row.task_id, path=row.path):
        known = event.status == StepStatus.DONE or event.details.get("what") == "late_result"
        if known and (event.path, event.attempt, event.output_ref) == (row.path, row.attempt, ref):
            return  # taken in before a crash; or the append whose fate was unknown did land
    late_result(runtime, row.task_id, row._replace(output_ref=ref), () if blob is None else (blob,))


def late_result(runtime: Runtime, task_id: str, row: Event, blobs: Sequence[Blob]) -> None:
    """Store a success that came too late as evidence (I3); a contradiction of what is settled opens a case."""
    common: dict[str, Any] = {"step_seq": row.step_seq, "path": row.path, "step_name": row.step_name}
    data: dict[str, Any] = {"what": "late_result"}
    if row.error is not None:  # it is no usable output
        data["fault"] = json.loads(row.error)["detail"]
    while True:
        now, events = runtime.store.now(), runtime.store.rows(task_id)
        if row.effect_class == Effect.READ and all(event.path != row.path for event in events):
            return  # an old owner's read of which no row says what was asked: it is called again
        record = fold_steps(events).get(row.path or "")
        unsettled = {} if record is None or record.settled else {"wake": True}  # whoever runs the task next settles the step
        rows = [
            draft(
                task_id,
                Kind.EVIDENCE_STORED,
                now,
                attempt=row.attempt,
                output_ref=row.output_ref,
                epoch=row.epoch,
                data=data | unsettled,
                **common,
            )  # fmt: skip
        ]
        why = contradiction(record, row)
        if why is not None:
            rows.append(draft(task_id, Kind.CASE_OPENED, now, data={"kind": CaseKind.CONTRADICTION, "why": why}, **common))
        try:
            written = runtime.store.add(task_id, rows, expect=events[-1].event_seq, blobs=blobs)
        except Moved:
            continue  # what is settled may be another thing now
        for event in written:
            if event.kind == Kind.CASE_OPENED:
                runtime.case_opened(f"{task_id}:{event.event_seq}")
        return


def contradiction(record: StepRecord | None, row: Event) -> str | None:
    """Why a late success contradicts what is settled, or None (rule 12)."""
    if record is None or not record.settled or record.effect == Effect.READ:
        return None
    late = f"attempt {row.attempt} of {row.step_name} succeeded late"
    if record.status in (StepStatus.NOT_APPLIED, StepStatus.FAILED):
        return f"{late}, after the step was settled as {record.status}"
    if record.effect == Effect.NON_IDEM_WRITE and any(a.number > (row.attempt or 0) for a in record.attempts):
        return f"{late}, and another attempt, which no key protects, had begun"
    return None


def store_late_news(runtime: Runtime, task_id: str, epoch: int, frame: Frame, reply: Returned | Raised) -> None:
    """Keep what a call said after its attempt was given up: evidence, which settles what is unsettled (rule 12)."""
    now = runtime.store.now()
    step = frame.definition
    if step.effect == Effect.READ and not runtime.store.rows(task_id, path=frame.path):
        return  # its attempt could not be recorded, so no row says what was asked: nothing stands on it, it is called again
    said = heard(task_id, frame.path, reply)
    common: dict[str, Any] = {
        "step_seq": frame.step_seq, "path": frame.path, "step_name": frame.name, "attempt": frame.attempt, "epoch": epoch,
    }  # fmt: skip
    if isinstance(said, Outcome):
        outcome: Outcome | None = said
    elif isinstance(said, Returned):
        outcome = classify_returned(
            said.value, single_request=step.single_request, classify=step.classify, uncertain_before=True, handle_recorded=False,
            mask=runtime.vault.mask,
        )  # fmt: skip
    else:
        assert isinstance(said, Raised)
        outcome = Outcome("unknown", type(said.error).__name__, storable(runtime.vault.mask(text_of(said.error)))[:500], None)
    if outcome is not None or not isinstance(said, Returned):
        error = dump({"kind": "unknown", "code": outcome.code if outcome else "", "detail": outcome.detail if outcome else ""})
        runtime.store.add(
            task_id, [draft(task_id, Kind.EVIDENCE_STORED, now, error=error, data={"what": "late_error"}, **common)]
        )
        return
    output = store_output(runtime, step, said.value)
    fault = None if output.fault is None else dump({"kind": "output", "detail": output.fault})
    row = draft(task_id, Kind.EVIDENCE_STORED, now, output_ref=output.ref, error=fault, **common)
    late_result(runtime, task_id, row, output.blobs)


def spill_late_news(run: Run, frame: Frame, reply: Returned | Raised) -> None:
    """Keep a late success that the store does not take: it may be the only proof of the effect (rule 6)."""
    runtime, step = run.runtime, frame.definition
    if step.effect == Effect.READ:
        return  # nothing stands on it: the step is called again
    said = heard(run.task_id, frame.path, reply)
    if not isinstance(said, Returned) or classify_returned(
        said.value, single_request=step.single_request, classify=step.classify, uncertain_before=True, handle_recorded=False
    ):
        return
    try:
        text = runtime.vault.mask(encode(said.value, where=f"the output of {step.name}"))
    except NotCanonical:
        return
    row = draft(
        run.task_id, Kind.EVIDENCE_STORED, runtime.store.now(), step_seq=frame.step_seq, path=frame.path, step_name=step.name,
        attempt=frame.attempt, epoch=run.log.epoch, data={"what": "late_result"},
    )  # fmt: skip
    spill_result(run, row, text)
