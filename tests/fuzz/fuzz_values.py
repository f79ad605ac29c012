"""The values that are tried: trees that have a canonical form, things that have none, and damage to texts."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, quote_plus
from uuid import UUID

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.one_of(texts, st.sampled_from(["$date", "$map", "$", "$object", "$decimal", "a", "b"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 3), floats, texts, st.binary(max_size=8), decimals, st.uuids(),
    st.dates(), st.times(), st.datetimes(), st.timedeltas(), st.integers(min_value=10**30, max_value=10**40),
    st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))]), min_value=dt.datetime(2, 1, 1)),
)  # fmt: skip
trees: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)), max_leaves=12
)


class Color(enum.Enum):
    RED = "red"


class _Own:
    pass


anything: st.SearchStrategy[Any] = st.one_of(
    trees,
    st.recursive(
        st.one_of(
            scalars, st.text(), st.sampled_from([math.nan, math.inf, -0.0, Color.RED, Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")]),
            st.builds(_Own), st.sets(st.integers(), max_size=2), st.complex_numbers(), st.builds(object), st.just(len), st.just("\ud800"),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.one_of(keys, st.integers(), st.none()), inner, max_size=3)
        ),
        max_leaves=8,
    ),
)  # fmt: skip


def plain(value: Any) -> Any:
    """What a value is, as the canonical form counts: a bool is no number, one instant is one, digits of a Decimal count."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case int() | float():
            return ("number", value)
        case Decimal():
            return ("decimal", "0" if False else str(value) if value else str(abs(value)))
        case dt.datetime() if value.tzinfo is not None:
            return ("instant", value.astimezone(dt.UTC))
        case dt.datetime():
            return ("naive", value)
        case dict():
            return ("object", tuple(sorted((key, plain(item)) for key, item in value.items())))
        case list() | tuple():
            return ("array", tuple(plain(item) for item in value))
        case _:
            return (type(value).__name__, value)


def respelled(value: Any, chance: Any) -> Any:
    """The same value in another spelling: other order of keys, ``1.0`` for ``1``, a tuple for a list, another zone."""
    match value:
        case bool():
            return value
        case int() if abs(value) < 2**53 and chance.random() < 0.5:
            return float(value)
        case dict():
            items = [(key, respelled(item, chance)) for key, item in value.items()]
            chance.shuffle(items)
            return dict(items)
        case list():
            return tuple(respelled(item, chance) for item in value)
        case dt.datetime() if value.tzinfo is not None and 2 < value.year < 9998:
            return value.astimezone(dt.timezone(dt.timedelta(hours=chance.randint(-12, 12))))
        case _:
            return value


# ---------------------------------------------------------------- damage


class Mutation(NamedTuple):
    """One damage of some bytes: where, as a part of the whole, and what."""

    what: str
    at: float
    byte: int
    span: int


mutations = st.builds(
    Mutation,
    st.sampled_from(["flip", "set", "cut", "drop", "double", "insert", "zero"]),
    st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.integers(1, 8),
)  # fmt: skip


def mutated(content: bytes, mutation: Mutation) -> bytes:
    """The bytes with one damage."""
    what, part, byte, span = mutation
    at = int(part * len(content))
    match what:
        case "flip" if content:
            return content[:at] + bytes([content[at] ^ byte]) + content[at + 1 :]
        case "set" if content:
            return content[:at] + bytes([byte]) + content[at + 1 :]
        case "cut":
            return content[:at]
        case "drop":
            return content[:at] + content[at + span :]
        case "double":
            return content[:at] + content[at : at + span] + content[at:]
        case "zero":
            return content[:at] + bytes(min(span, len(content) - at)) + content[at + span :]
        case _:
            return content[:at] + bytes([byte]) + content[at:]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), floats, st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
json_texts = st.one_of(
    st.builds(json.dumps, json_values),
    st.builds(
        lambda value, mutation: mutated(json.dumps(value).encode(), mutation).decode("utf-8", "replace"), json_values, mutations
    ),
)
refs = st.one_of(
    st.from_regex(r"sha256:[0-9a-fA-F ]{0,70}", fullmatch=True), st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True),
    st.builds("inline:{}".format, st.text(max_size=10)),
)  # fmt: skip
durations = st.one_of(
    st.from_regex(r"[+-]?P([0-9.,]{1,4}[YMWDymwd]){0,3}(T([0-9.,]{1,4}[HMShms]){0,3})?", fullmatch=True),
    st.from_regex(r"[0-9]{1,20} ?(s|sec|m|min|hours?|d|days|weeks|x)?", fullmatch=True),
)

ECHOES: Sequence[Callable[[str], str]] = (
    str, lambda v: repr(v)[1:-1], lambda v: ascii(v)[1:-1], quote, quote_plus, lambda v: json.dumps(v)[1:-1],
    lambda v: json.dumps(v, ensure_ascii=False)[1:-1], lambda v: json.dumps(json.dumps(v))[2:-2],
)  # fmt: skip
"""How another system writes a value in what it says."""

# ---------------------------------------------------------------- schemas


def _is(*kinds: type, but: tuple[type, ...] = ()) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, but)


_text, _whole, _flag = _is(str), _is(int, but=(bool,)), _is(bool)

annotations: st.SearchStrategy[Any] = st.sampled_from([
    (str, _text), (int, _whole), (bool, _flag), (None, lambda v: v is None), (float, _is(int, float, but=(bool,))),
    (list[int], lambda v: isinstance(v, list) and all(map(_whole, v))),
    (dict[str, str], lambda v: isinstance(v, dict) and all(map(_text, v.values()))),
    (bool | None, lambda v: v is None or isinstance(v, bool)), (str | int, lambda v: _text(v) or _whole(v)),
    (Literal["a", 1, True], lambda v: (v == "a" or v == 1) and not isinstance(v, list)),
    (Annotated[int, "x"], _whole), (Color, lambda v: v == "red"), (Any, lambda v: True), (list, _is(list)), (dict, _is(dict)),
    (dt.date, None), (Decimal, None), (UUID, None), (bytes, None), ("a forward reference", None), (set[int], None),
])  # fmt: skip
"""Annotations, and what exactly fits them (None: whatever)."""

_words = st.sampled_from([
    "type", "properties", "required", "items", "enum", "const", "anyOf", "$ref", "additionalProperties", "minLength", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "pattern", "format",
])  # fmt: skip
wild_schemas: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "unheard-of"]),
            "minLength": st.integers(0, 5), "maxLength": st.integers(0, 5), "minimum": st.one_of(st.integers(), floats),
            "maximum": st.one_of(st.integers(), floats), "exclusiveMinimum": st.integers(-3, 3), "pattern": st.sampled_from(["^a", "b+$"]),
            "enum": st.lists(json_values, max_size=3), "const": json_values, "required": st.lists(st.text(max_size=2), max_size=2),
            "format": st.sampled_from(["date", "x"]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "items": inner, "properties": st.dictionaries(st.text(max_size=2), inner, max_size=2), "anyOf": st.lists(inner, max_size=3),
            "additionalProperties": st.one_of(st.booleans(), inner), "$ref": st.sampled_from(["#/$defs/A", "#/$defs/none", "#"]),
            "$defs": st.fixed_dictionaries({"A": inner}),
        },
    ),
    max_leaves=5,
)  # fmt: skip
"""JSON Schemas as another version, or a model's class, may have stored them."""
