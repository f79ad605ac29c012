"""Keeping a result that the store does not take: offered again, spilled beside the database, taken in later (rule 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import Run
from .canonical import encode
from .effects import StepDefinition
from .errors import StoreDamaged, StoreError, StoreUnavailable
from .events import Event
from .outputs import Output


def keep_trying(run: Run, record: Callable[[], Any], otherwise: Callable[[StoreUnavailable], Any] | None = None) -> Any:
    """Record something of an effect that has happened, again and again while the store refuses it (rule 6)."""
    begun: float | None = None
    while True:
        try:
            return record()
        except StoreUnavailable as error:
            begun = run.runtime.monotonic() if begun is None else begun
            if run.runtime.monotonic() - begun < run.runtime.patience and not run.stop.is_set():
                run.runtime.pause(0.2, run.stop)
            elif otherwise is None:
                raise
            else:
                return otherwise(error)


def unstored(run: Run, definition: StepDefinition, value: Any, why: StoreUnavailable) -> Output:
    """An output whose content the store does not take: its text is spilled with the row."""
    text = run.runtime.vault.mask(encode(value, where=f"the output of {definition.name}"))
    return Output(None, (), text, None, None, text, why)


def spill_result(run: Run, row: Event, text: str | None, error: StoreError | None = None) -> StoreError:
    """Keep a result beside the database, or at least in this process; the next claim takes it in as evidence.

    `text`: the output in its stored form; None when it has none, and the row says why. The error to raise is of the same kind.
    """
    row = row._replace(output_ref=None if text is None else "inline:" + text)
    try:
        place = f"in {run.runtime.store.spill(row)}"
    except StoreUnavailable:
        run.runtime.kept.setdefault(run.task_id, []).append(row)
        place = "only in this process, which must not end before the store can be written"
    mended = ((error and error.hint) or "make the store writable again").removesuffix(", then resume")
    kind = StoreDamaged if isinstance(error, StoreDamaged) else StoreUnavailable
    return kind(
        f"task {run.task_id}: {row.step_name} at {row.path} is done but cannot be recorded"
        f" ({error.message if error else 'its output cannot be stored'}); its result is kept {place}",
        hint=f"{mended}, then: doubtless resume MODULE:APP {run.task_id}; the step is not run again",
        task=run.task_id,
        step=row.step_name,
    )
