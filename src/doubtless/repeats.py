"""A model's call that repeats another one of its turn which was given up: refused at its place, and never sent.

A model that chooses two equal calls means two effects, and gets them. But when a person gives the first up, nobody knows
whether it happened, and the second would be the repetition that nobody asked for.
"""

from __future__ import annotations

from typing import Final

from .calls import Input, Run
from .effects import StepDefinition
from .errors import Moved
from .events import Kind, StepStatus, draft, dump

STANDING: Final = "may have happened; nobody could find out; do not repeat it"
"""What a model is told of a write that was given up."""

REPEATS: Final = "repeats"
"""In the error of a call that was refused so: the place of the one that it would repeat."""


def settle_repeat(run: Run, definition: StepDefinition, path: str, given: Input, other: str) -> None:
    """Settle this call as refused: one row without an intent, so that replay meets the same. Nothing is sent."""
    detail = f"an equal call of this turn, at {other}, {STANDING}; this one was not sent"
    ref, blob = run.runtime.content.put(given.text)
    row = draft(
        run.task_id, Kind.STEP_SETTLED, run.runtime.store.now(), step_seq=run.log.next_step_seq(), path=path,
        step_name=definition.name, status=StepStatus.NOT_APPLIED, effect_class=definition.effect, input_hash=given.digest,
        input_ref=ref, error=dump({"kind": "not_applied", "code": "refused", "detail": detail, REPEATS: other}),
        epoch=run.log.epoch,
    )  # fmt: skip
    try:
        run.log.append(row, blobs=() if blob is None else (blob,))
    except Moved:
        pass  # decide again
