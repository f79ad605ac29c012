"""A step's output, to the stored form and back: the same on the first run and on replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import canonical
from .calls import Run, Runtime
from .canonical import encode
from .effects import StepDefinition
from .errors import DoesNotFit, NotCanonical, Parking, StepFailed
from .events import StepStatus
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


def store_output(runtime: Runtime, definition: StepDefinition, value: Any) -> Output:
    """Encode an output and give it back as the log will: the same on the first run and on replay."""
    try:
        text = encode(value, where=f"the output of {definition.name}")
    except NotCanonical as error:
        return Output(None, (), None, None, f"{type(value).__name__} cannot be stored: {error.message}")
    if not runtime.vault.empty:
        text = runtime.vault.mask(text)
    ref, blob = runtime.content.put(text)
    blobs = () if blob is None else (blob,)
    try:
        return Output(ref, blobs, text, definition.restore_output(canonical.decode(text)), None)
    except DoesNotFit as error:
        return Output(ref, blobs, text, None, str(error))


def open_output_case(run: Run, path: str) -> Parking:
    """Park on a step that is done without a usable output."""
    return run.park(f"the step at {path} is done; a person has to give its output", human=True)


def replayed(run: Run, definition: StepDefinition | None, path: str, settled: Settled) -> Any:
    """What task code sees of a settled step: its output as the log has it, or the failure that it had."""
    if settled.error is None and settled.output_ref is not None:
        tree = canonical.decode(run.runtime.content.get(settled.output_ref))
        restore = None if definition is None else definition.restore_return
        try:
            return tree if restore is None else restore(tree)
        except DoesNotFit:  # a person's answer, or the code's annotation, says otherwise than the log
            return tree
    error = json.loads(settled.error or "{}")
    if settled.status in (StepStatus.DONE, StepStatus.COMPENSATED) and error.get("kind") != "abandoned":
        raise open_output_case(run, path)
    raise StepFailed(  # of a done step: a person denied its output
        error.get("kind", "not_applied"), error.get("code", ""), error.get("detail", ""), step=settled.name, path=path
    )
