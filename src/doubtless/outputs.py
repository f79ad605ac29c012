"""A step's output, to the stored form and back: the same on the first run and on replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from .calls import Run, Runtime
from .canonical import decode, encode
from .effects import StepDefinition
from .errors import DoesNotFit, Moved, NotCanonical, Parking, StaleEpoch, StoreError, StoreUnavailable, step_failed
from .events import CaseKind, Kind, StepStatus, draft
from .log import Settled
from .store.base import Blob


class Output(NamedTuple):
    """An output in its stored form. `fault`: why a person has to give the output instead (rule 6)."""

    ref: str | bytes | None
    blobs: Sequence[Blob]
    text: str | None
    value: Any
    fault: str | None
    unstored: str | None = None
    """The text of an output whose content could not be put anywhere yet."""
    refused: StoreUnavailable | None = None
    """Why it could not."""


def store_output(runtime: Runtime, definition: StepDefinition, value: Any) -> Output:
    """Encode an output and give it back as the log will: the same on the first run and on replay."""
    try:
        text = encode(value, where="the output")
    except NotCanonical as error:
        return Output(None, (), None, None, f"{type(value).__name__} cannot be stored: {error.message}")
    if not runtime.vault.empty:
        text = runtime.vault.mask(text)
    ref, blob = runtime.content.put(text)
    blobs = () if blob is None else (blob,)
    back, restore = decode(text), definition.restore_return
    if restore is not None:
        try:
            back = restore(back)
        except DoesNotFit as error:
            return Output(ref, blobs, text, None, str(error))
    return Output(ref, blobs, text, back, None)


def open_output_case(run: Run, path: str) -> Parking:
    """Park on a step that is done without a usable output."""
    return run.park(f"the step at {path} is done; a person has to give its output", human=True)


def replayed(run: Run, definition: StepDefinition | None, path: str, settled: Settled) -> Any:
    """What task code sees of a settled step: its output as the log has it, or the failure that it had.

    An output that does not fit today's annotation is asked of a person, as on the first run (rule 6).
    """
    name, _, status, ref, failure = settled
    if failure is None and ref is not None:
        if ref.__class__ is str and ref[:7] == "inline:":
            value = decode(ref, 7)
        else:
            try:
                text = run.runtime.content.get(ref)
            except StoreError as unread:  # here task code listens: it must not take this for the step's failure, and go on
                raise run.broken(unread) from unread
            value = decode(text)
        restore = None if definition is None else definition.restore_return
        if restore is not None:
            try:
                value = restore(value)
            except DoesNotFit as misfit:
                raise ask_output(run, path, name, str(misfit)) from None
        if run.log.cases:
            fits_again(run, path, name)
        return value
    error = json.loads(failure or "{}")
    if status in (StepStatus.DONE, StepStatus.COMPENSATED) and error.get("kind") != "abandoned":
        raise open_output_case(run, path)
    raise step_failed(error, step=name, path=path)  # of a done step: a person denied its output


def output_case(run: Run, path: str) -> str | None:
    """The id of the open case that asks for the output of the step at `path`."""
    found = [case for case, opened in list(run.log.cases.items()) if opened.path == path and opened.kind == CaseKind.OUTPUT]
    return found[-1] if found else None


def ask_output(run: Run, path: str, name: str, fault: str) -> Parking:
    """Ask a person for an output that the log has, and the annotation does not take any more: once, then park."""
    try:
        while output_case(run, path) is None:
            data = {"kind": CaseKind.OUTPUT, "why": f"{name} is done, but its logged output does not fit any more: {fault}"}
            row = draft(
                run.task_id, Kind.CASE_OPENED, run.runtime.store.now(), path=path, step_name=name, step_seq=step_seq(run, path),
                status=StepStatus.DONE, data=data, epoch=run.log.epoch,
            )  # fmt: skip
            try:
                run.log.append(row)
            except Moved:
                continue
            case = output_case(run, path)
            if case is not None:
                run.runtime.case_opened(case)
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error
    return open_output_case(run, path)


def fits_again(run: Run, path: str, name: str) -> None:
    """The annotation takes the logged output again: the case that asked for another one is closed."""
    try:
        while (case := output_case(run, path)) is not None:
            data = {"case_id": case, "answer": "settled", "by": "doubtless", "why": "the logged output fits again"}
            row = draft(
                run.task_id, Kind.CASE_SETTLED, run.runtime.store.now(), path=path, step_name=name, step_seq=step_seq(run, path),
                data=data, epoch=run.log.epoch,
            )  # fmt: skip
            try:
                run.log.append(row)
            except Moved:
                if output_case(run, path) is None:  # a person has answered: what the log says now counts, not what was read
                    raise run.park(f"the output of {name} at {path} was answered meanwhile") from None
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def step_seq(run: Run, path: str) -> int | None:
    """The number of the step at `path`, whose rows are not kept any more."""
    rows = run.runtime.store.rows(run.task_id, path=path)
    return next((row.step_seq for row in rows if row.path == path and row.step_seq is not None), None)
