"""Drift: where the code asks for something else than the log holds, the first field that differs (rule 3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from . import canonical
from .calls import Input, Runtime
from .canonical import encode
from .effects import PolicyChange, StepDefinition, policy_changes
from .errors import Diverged, NotCanonical
from .events import Event
from .fold import StepRecord, fold_steps

DIFFERENCES = 20
"""So many fields that differ a case lists."""


def stored_params(runtime: Runtime, task_id: str, path: str) -> str:
    """The params that the log holds at this place."""
    for row in runtime.store.rows(task_id, path=path):
        if row.path == path and row.input_ref is not None:
            return runtime.content.get(row.input_ref)
    return "{}"


class Difference(NamedTuple):
    """One field that differs, as ``params.lines[3].amount``, with what is logged and what the code asks for."""

    field: str
    logged: Any
    asked: Any


def differences(logged: str, asked: str, hidden: frozenset[str] = frozenset()) -> Iterator[Difference]:
    """The fields in which two canonical params differ, in the order of their names."""

    def walk(a: Any, b: Any, where: str) -> Iterator[Difference]:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}, key=str):
                if not (where == "params" and key in hidden):
                    yield from walk(a.get(key, "(missing)"), b.get(key, "(missing)"), f"{where}.{key}")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from walk(x, y, f"{where}[{i}]")
        elif a != b or type(a) is not type(b):
            yield Difference(where, _short(a), _short(b))

    return walk(canonical.decode(logged), canonical.decode(asked), "params")


def first_difference(logged: str, asked: str, hidden: frozenset[str] = frozenset()) -> Difference:
    """The first of them."""
    alike = Difference("params", "(as logged)", "(differs only in its canonical form)")
    return next(differences(logged, asked, hidden), alike)


def _short(value: Any) -> Any:
    try:
        text = encode(value)
    except NotCanonical:
        text = repr(value)
    return value if len(text) <= 200 and isinstance(value, str | int | float | bool | None) else text[:200]


def place_order(path: str) -> tuple[int, ...]:
    """A place as it is ordered: the branches of a group in their order, each with its steps."""
    return tuple(int(part) for part in path.split("."))


def behind(place: str, other: str) -> bool:
    """Whether code reaches the other place only after this one: branches of one group are side by side.

    A path alternates places and branches: ``4.1.2`` is the second place of the first branch of the group at place 4.
    """
    if not other[0].isdigit():
        return False  # a compensation: no place of the code
    here, there = place_order(place), place_order(other)
    for level, (a, b) in enumerate(zip(here, there, strict=False)):
        if a != b:
            return level % 2 == 0 and b > a
    return False


def explained(
    runtime: Runtime, task_id: str, error: Diverged, definition: StepDefinition | None = None, given: Input | None = None
) -> dict[str, Any]:  # fmt: skip
    """What a person needs to see of a divergence beside its first field: all that differs, what it may be, what to type.

    Shapes: `step_seq` of the logged step; `differences` and `definition` (how today's differs from the intent's) as
    ``{"field", "logged" | "was", "asked" | "now"}``; `perhaps` a sentence; `choices` sentences with commands.
    """
    rows = runtime.store.rows(task_id)
    within = f"{error.path}."
    logged = [row for row in rows if row.path is not None and (row.path == error.path or row.path.startswith(within))]
    seq = min((row.step_seq for row in logged if row.step_seq is not None), default=None)
    more: dict[str, Any] = {} if seq is None else {"step_seq": seq}
    record = fold_steps(logged).get(error.path)
    if record is not None and error.field != "step" and definition is not None and given is not None:
        hidden = definition.volatile | definition.secret
        text = runtime.content.get(record.input_ref) if record.input_ref is not None else "{}"
        more["differences"] = [d._asdict() for d in islice(differences(text, given.text, hidden), DIFFERENCES)]
    if record is not None and (changes := definition_changes(runtime, record)):
        more["definition"] = [change._asdict() for change in changes]
    perhaps = _perhaps(runtime, rows, record, definition, given)
    if perhaps:
        more["perhaps"] = perhaps
    return {**more, "choices": _choices(task_id, error, seq)}


def definition_changes(runtime: Runtime, record: StepRecord) -> list[PolicyChange]:
    """How today's definition differs from the one that this write's intent has frozen: field by field; a step that is gone."""
    if record.policy_digest is None or not runtime.known():
        return []  # of a read no definition is kept; an app without steps only looks
    current = runtime.find(record.name)
    if current is not None and current.definition_hash == record.policy_digest:
        return []
    frozen = canonical.decode(runtime.content.get(record.policy_digest))
    return policy_changes(frozen, None if current is None else current.policy())


def _perhaps(
    runtime: Runtime, rows: list[Event], record: StepRecord | None, definition: StepDefinition | None, given: Input | None
) -> str:  # fmt: skip
    """What may have been done to the code, where that can be told."""
    if record is None or definition is None or record.name == definition.name:
        return ""
    if runtime.find(record.name) is None and record.name not in runtime.known() and not record.name.startswith("$"):
        same = given is not None and record.input_hash == given.digest
        renamed = f"; it has the same params as {definition.name}: name={record.name!r} in its declaration keeps the old name"
        return f"step {record.name} is not in the table any more" + (renamed if same else "")
    if definition.name not in {row.step_name for row in rows}:
        keep = "app.changed(…) keeps old tasks on the old way"
        return f"the log knows no step {definition.name}: it may have been inserted; {keep}"
    return ""


def _choices(task_id: str, error: Diverged, seq: int | None) -> list[str]:
    from shlex import quote

    task = quote(task_id)
    found = [
        f"deploy code that asks for {error.logged!r} at place {error.path} again, then: doubtless resume MODULE:APP {task}",
        "fail it: what it did and has to be undone is listed then",
    ]
    if seq is not None:
        found.insert(1, f"let a new task go today's way from there: doubtless fork MODULE:APP {task} --at {seq}")
    return found
