"""Drift: where the code asks for something else than the log holds, the first field that differs (rule 3)."""

from __future__ import annotations

from typing import Any

from . import canonical
from .calls import Runtime
from .canonical import encode
from .errors import NotCanonical


def stored_params(runtime: Runtime, task_id: str, path: str) -> str:
    """The params that the log holds at this place."""
    for row in runtime.store.rows(task_id, path=path):
        if row.path == path and row.input_ref is not None:
            return runtime.content.get(row.input_ref)
    return "{}"


def first_difference(logged: str, asked: str, hidden: frozenset[str] = frozenset()) -> tuple[str, Any, Any]:
    """The first field in which two canonical params differ, as ``params.lines[3].amount``, with both values."""

    def walk(a: Any, b: Any, where: str) -> tuple[str, Any, Any] | None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}, key=str):
                if where == "params" and key in hidden:
                    continue
                found = walk(a.get(key, "(missing)"), b.get(key, "(missing)"), f"{where}.{key}")
                if found:
                    return found
            return None
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                found = walk(x, y, f"{where}[{i}]")
                if found:
                    return found
            return None
        return None if a == b and type(a) is type(b) else (where, _short(a), _short(b))

    found = walk(canonical.decode(logged), canonical.decode(asked), "params")
    return found or ("params", "(as logged)", "(differs only in its canonical form)")


def _short(value: Any) -> Any:
    try:
        text = encode(value)
    except NotCanonical:
        text = repr(value)
    return value if len(text) <= 200 and isinstance(value, str | int | float | bool | None) else text[:200]


def place_order(path: str) -> tuple[int, ...]:
    """A place as it is ordered: the branches of a group in their order, each with its steps."""
    return tuple(int(part) for part in path.split("."))
