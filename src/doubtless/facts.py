"""Facts: what happened in a task, from its log alone; for building a model's context after its history was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import canonical
from .blobs import parse_ref, show_ref
from .calls import Runtime
from .choices import CHOOSE
from .errors import StoreDamaged, UsageError
from .events import Effect, Event, StepStatus
from .fold import StepRecord, fold_steps
from .inbox import jsonable
from .repeats import REPEATS, STANDING
from .timeline import said, settled_by

OUTPUT_CHARS = 4096
"""An output whose JSON text is longer is shown by its beginning and its ref."""


class Fact(NamedTuple):
    """One step, and what is known of it.

    Shapes: `status` is ``done``, ``compensated``, ``not_applied``, ``failed``, ``uncertain``, ``needs_human``, ``started``
    (a read that has no answer yet) or ``refused`` (a model's call that was not sent); `output` is JSON, of a large one
    the beginning of its text, and `ref` where the whole is (`app.content`); `text` says in neutral words what has no
    output; `turn` and `call_id` are those of an agent's choice; `at` is when it was last heard of, microseconds of the
    store's clock; `settled_by` one phrase, ``"its reply"``, ``"the look-back found it"``, ``"a person: anna"``.
    """

    path: str | None
    step: str
    params: Any
    status: str
    output: Any
    ref: str | None
    text: str | None
    turn: int | None
    call_id: str | None
    at: int
    settled_by: str | None


class _Chosen(NamedTuple):
    turn: int
    call: Mapping[str, Any]


def facts_of(runtime: Runtime, task_id: str, limit: int = OUTPUT_CHARS) -> list[Fact]:
    """The facts of a task in the order in which its steps were first called."""
    rows = runtime.store.rows(task_id)
    by_path: dict[str, list[Event]] = {}
    for row in rows:
        if row.path is not None:
            by_path.setdefault(row.path, []).append(row)
    chosen: dict[str, _Chosen] = {}
    found: list[Fact] = []
    for path, record in fold_steps(rows).items():
        if record.name == CHOOSE:
            found += _refusals(runtime, record, by_path[path][-1].at.wall, chosen)
        elif not record.name.startswith("$"):
            found.append(_fact(runtime, record, by_path[path], chosen.get(path), limit))
    return found


def _refusals(runtime: Runtime, record: StepRecord, at: int, chosen: dict[str, _Chosen]) -> list[Fact]:
    """Note who chose what at which place; give the calls of this choice that were refused."""
    if record.output_ref is None:
        return []
    choice = canonical.decode(runtime.content.get(record.output_ref))
    turn = canonical.decode(runtime.content.get(record.input_ref))["turn"]
    refused = []
    level, dot, last = record.path.rpartition(".")
    for number, call in enumerate(choice.get("calls", ()), 1):
        chosen[f"{level}{dot}{int(last) + 1}.{number}.1"] = _Chosen(turn, call)
        if "refused" in call:
            refused.append(
                Fact(None, call["name"], call["params"], "refused", None, None, call["refused"], turn, call["call_id"], at, None)
            )
    return refused


def _fact(runtime: Runtime, record: StepRecord, rows: Sequence[Event], chosen: _Chosen | None, limit: int) -> Fact:
    output, whole = _output(runtime, record.output_ref, limit)
    params = {} if record.input_ref is None else jsonable(canonical.decode(runtime.content.get(record.input_ref)))
    status, text = words(record, record.output_ref is not None)
    return Fact(
        record.path, record.name, params, status, output, whole, text, chosen and chosen.turn,
        chosen and chosen.call["call_id"], rows[-1].at.wall, settled_by(rows) if record.settled else None,
    )  # fmt: skip


def _output(runtime: Runtime, ref: str | bytes | None, limit: int) -> tuple[Any, str | None]:
    """An output to show, and its ref where it is not the whole."""
    if ref is None:
        return None, None
    text = runtime.content.get(ref)
    if len(text) <= limit:
        return jsonable(canonical.decode(text)), None
    return text[:limit], show_ref(ref)


def words(record: StepRecord, has_output: bool) -> tuple[str, str | None]:
    """A step's status as a model may be told it, and the sentence beside it: neutral where nobody knows."""
    error = canonical.decode(record.error) if record.error else {}
    why = said(error.get("kind"), error.get("detail") or error.get("code"))
    match record.status:
        case StepStatus.DONE:
            return "done", None if has_output else "it happened; its output is not available"
        case StepStatus.COMPENSATED:
            return "compensated", "it happened, and was undone since"
        case StepStatus.NOT_APPLIED if REPEATS in error:
            return "refused", error["detail"]
        case StepStatus.NOT_APPLIED:
            return "not_applied", f"it had no effect ({why})"
        case StepStatus.FAILED if record.effect == Effect.READ:
            return "failed", f"it gave no answer ({why})"
        case StepStatus.FAILED:
            return "uncertain", f"it {STANDING}"
        case StepStatus.NEEDS_HUMAN:
            return "needs_human", "it may have happened; a person is asked; do not repeat it"
        case StepStatus.UNCERTAIN:
            return "uncertain", "it may have happened; being checked; do not repeat it"
        case _:
            return "started", "it has no answer yet"


def read_content(runtime: Runtime, ref: str) -> Any:
    """What a ref points to, as JSON: stored content, or the earlier facts of an agent (``facts:TASK:1-57``)."""
    if not isinstance(ref, str):
        raise UsageError(f"{type(ref).__name__} is no ref", hint="a ref is a text: sha256:<hex>, inline:… or facts:TASK:1-57")
    if ref.startswith("facts:"):
        task_id, _, span = ref[6:].rpartition(":")
        first, _, last = span.partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(span) < 40):
            raise UsageError(f"{ref[:80]!r} is no ref", hint="it looks like facts:TASK:1-57")
        runtime.store.first(task_id)  # raises UnknownTask
        return [
            fact._asdict()
            for fact in facts_of(runtime, task_id)
            if fact.turn is not None and int(first) <= fact.turn <= int(last)
        ]
    try:
        parsed = parse_ref(ref)
    except StoreDamaged as error:  # of what a person says; in the log it would be damage
        raise UsageError(error.message, hint=error.hint) from None
    return jsonable(canonical.decode(runtime.content.get(parsed)))

