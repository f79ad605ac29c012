"""What an answer has to look like: an annotation described as JSON Schema, and a value checked against that.

The description is stored with the question, so that a process without the task's code can refuse a bad answer, too.
What it cannot say (a model's own validators) is checked where the type is at hand (`restore.restorer`).
"""

from __future__ import annotations

import re
import types
import typing
from collections import abc
from collections.abc import Mapping
from enum import Enum
from typing import Any

Schema = Mapping[str, Any]

_FORMATS = {
    "datetime.datetime": "date-time", "datetime.date": "date", "datetime.time": "time", "datetime.timedelta": "duration",
    "decimal.Decimal": "decimal", "uuid.UUID": "uuid", "builtins.bytes": "byte",
}  # fmt: skip
_SCALARS: dict[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", None: "null", types.NoneType: "null",
}  # fmt: skip


def describe(annotation: Any) -> dict[str, Any]:
    """An annotation as JSON Schema; what has no word there allows anything (``{}``).

    Shapes: ``{"type": "object", "properties": {…}, "required": […]}``, ``{"enum": ["yes", "no"]}``, ``{"anyOf": […]}``.
    """
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if hasattr(annotation, "__supertype__"):
        return describe(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe(arguments[0])
    if origin is typing.Literal:
        return _one_of([value.value if isinstance(value, Enum) else value for value in arguments])
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [describe(one) for one in arguments]}
    if origin in (list, abc.Sequence) or annotation is list:
        return {"type": "array", "items": describe(arguments[0]) if arguments else {}}
    if origin in (dict, abc.Mapping) or annotation is dict:
        return {"type": "object", "additionalProperties": describe(arguments[1]) if arguments else {}}
    return _of_class(annotation) if isinstance(annotation, type) else {}


def _of_class(kind: type) -> dict[str, Any]:
    if (spelled := f"{kind.__module__}.{kind.__qualname__}") in _FORMATS:
        return {"type": "string", "format": _FORMATS[spelled]}
    if issubclass(kind, Enum):
        return _one_of([member.value for member in kind])
    if hasattr(kind, "model_json_schema"):
        made: dict[str, Any] = kind.model_json_schema()
        return made
    if typing.is_typeddict(kind):
        return _object(kind, sorted(kind.__required_keys__), closed=False)  # type: ignore[attr-defined]
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import MISSING, fields

        made_here = [field for field in fields(typing.cast("Any", kind)) if field.init]
        required = [f.name for f in made_here if f.default is MISSING and f.default_factory is MISSING]
        return _object(kind, required, closed=True)
    return {}


def _one_of(values: list[Any]) -> dict[str, Any]:
    plain = all(isinstance(value, str | int | float | None) for value in values)
    return {"enum": values} if plain else {}


def _object(kind: type, required: list[str], *, closed: bool) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except Exception:  # noqa: BLE001 - evaluating an annotation may raise anything
        hints = {}
    schema: dict[str, Any] = {"type": "object", "properties": {name: describe(hint) for name, hint in hints.items()}}
    if required:
        schema["required"] = required
    if closed and hints:
        schema["additionalProperties"] = False
    return schema


# ---------------------------------------------------------------- checking


def misfit(
    schema: Schema, value: Any, *, where: str = "", root: Schema | None = None, refs: frozenset[str] = frozenset()
) -> str | None:
    """Why a decoded value does not fit, in words that name its place and never its content; None when it fits.

    `refs`: what was followed for this very value; a reference that comes back to itself fits nothing.
    """
    root = schema if root is None else root
    place = where or "the value"
    if "$ref" in schema:
        ref = str(schema["$ref"])
        if ref in refs:
            return f"{place}: its schema refers to itself ({ref})"
        return misfit(_referred(root, ref), value, where=where, root=root, refs=refs | {ref})
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return f"{place}: expected one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{place}: expected {schema['const']!r}"
    if "anyOf" in schema:
        members = [misfit(one, value, where=where, root=root, refs=refs) for one in schema["anyOf"]]
        return None if None in members else f"{place}: fits none of what is allowed ({'; '.join(map(str, members))})"
    kind = schema.get("type")
    if kind is not None and not _is_a(kind, schema, value):
        return f"{place}: expected {kind}, got {_kind_of(value)}"
    if isinstance(value, dict):
        return _misfit_in(schema, value, where, root)
    if isinstance(value, list) and "items" in schema:
        faults = (misfit(schema["items"], one, where=f"{where}[{i}]", root=root) for i, one in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    return _out_of_bounds(schema, value, place)


def _misfit_in(schema: Schema, value: dict[str, Any], where: str, root: Schema) -> str | None:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where or 'the value'}: {name} is missing"
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, one in value.items():
        if name not in properties and rest is False:
            return f"{where or 'the value'}: there is no {name}"
        wanted = properties.get(name, rest)
        if isinstance(wanted, Mapping) and (fault := misfit(wanted, one, where=f"{where}.{name}", root=root)):
            return fault
    return None


def _out_of_bounds(schema: Schema, value: Any, place: str) -> str | None:
    if isinstance(value, str):
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if len(value) < low or (high is not None and len(value) > high):
            return f"{place}: has {len(value)} characters; {low} to {'any number' if high is None else high} are allowed"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return f"{place}: does not match {schema['pattern']}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        for bound, holds in (("minimum", value.__ge__), ("maximum", value.__le__), ("exclusiveMinimum", value.__gt__),
                             ("exclusiveMaximum", value.__lt__)):  # fmt: skip
            if bound in schema and holds(schema[bound]) is False:
                return f"{place}: {bound} is {schema[bound]}"
    return None


def _referred(root: Schema, ref: str) -> Schema:
    found: Any = root
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part, {})
    return typing.cast("Schema", found)


def _is_a(kind: str, schema: Schema, value: Any) -> bool:
    match kind:
        case "string" if "format" in schema:  # stored with a type of its own, or spelled as a text
            return not isinstance(value, bool | int | float | dict | list | None)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return True


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _kind_of(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
