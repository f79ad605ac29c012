"""Whether an annotation can keep its word: has what it names a stored form, and can a union be told apart once stored.

Read from the annotations alone, before anything runs: a result that cannot be stored, or that comes back as another class,
would show only after its effect. Only what surely goes wrong is a fault; what is not understood passes.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from itertools import combinations, product
from typing import Any, Final, NamedTuple

from .canonical import encode
from .restore import DICTS, LISTS, WRAPPERS


def faults_of(annotation: Any, *, place: str, verb: str, every_member: bool) -> list[str]:
    """What is wrong with the type of a result or param, one half-sentence each.

    Shapes: `place` begins the sentence (``the result``), `verb` says what to do instead (``return`` or ``pass``).
    `every_member`: each member of a union has to have a stored form (a result comes after the effect, when a refusal
    comes too late); without it one that has is enough.
    """
    return list(dict.fromkeys(_Reader(verb, every_member).read(annotation, place)))


class _Fields(NamedTuple):
    """What a class is stored as: an object with these fields. `closed`: it takes no others when it is restored."""

    hints: dict[str, Any]
    always: frozenset[str]
    required: frozenset[str]
    closed: bool
    lax: bool


class _Reader:
    """One walk over an annotation. A class is read once, so that it may name itself."""

    __slots__ = ("_every_member", "_seen", "_verb")

    def __init__(self, verb: str, every_member: bool) -> None:
        self._verb = verb
        self._every_member = every_member
        self._seen: set[int] = set()

    def read(self, annotation: Any, place: str, *, by_tag_function: bool = False) -> Iterator[str]:
        members = list(_members(annotation))
        if any(_is_open(member) for member in members):
            return
        found = [list(self._member(member, place)) for member in members]
        if self._every_member or all(found):
            yield from (fault for faults in found for fault in faults)
        for one, other in () if by_tag_function else combinations(members, 2):
            shared = _alike(one, other)
            if shared is not None:
                yield (
                    f"{place}'s union {_spelled(one)} | {_spelled(other)} cannot be told apart once stored: {shared}; "
                    "give one of them a required field that the other lacks, or both a Literal tag"
                )

    def _member(self, annotation: Any, place: str) -> Iterator[str]:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        kind = origin or annotation
        if kind is typing.Literal or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
            return
        if issubclass(kind, (set, frozenset)) or kind in (abc.Set, abc.MutableSet):
            yield f"{place}'s type {_spelled(annotation)} has no stored form: {self._verb} a sorted list"
        elif issubclass(kind, abc.Mapping) and args:
            if any(_is_no_key(key) for key in _members(args[0])):
                hint = f"{self._verb} a dict with keys of type str, or a list of pairs"
                yield f"{place}'s type {_spelled(annotation)} has no stored form: {hint}"
            yield from self.read(args[-1], place)
        elif kind is tuple or kind in LISTS:
            for arg in args:
                if arg is not Ellipsis:
                    yield from self.read(arg, place)
        elif not _has_form(kind):
            yield f"{place}'s type {_spelled(annotation)} has no stored form: {self._verb} {_instead_of(kind)}"
        elif id(kind) not in self._seen:
            self._seen.add(id(kind))
            yield from self._fields(kind)

    def _fields(self, kind: Any) -> Iterator[str]:
        if _is_model(kind):
            for name, field in kind.__pydantic_fields__.items():
                place = f"{kind.__name__}.{name}"
                if field.exclude:
                    yield f"{place} is excluded from serialisation, so it is not stored: {self._verb} the other fields, as a dict"
                elif not any(hasattr(extra, "func") for extra in field.metadata):  # a validator may make another type of it
                    tagged = any(type(extra).__name__ == "Discriminator" for extra in (*field.metadata, field.discriminator))
                    yield from self.read(field.annotation, place, by_tag_function=tagged)
            return
        for name, hint in _hints(kind).items():
            yield from self.read(hint, f"{kind.__name__}.{name}")


# ---------------------------------------------------------------- members of a union


def _members(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the one type that an annotation is, without its wrappers."""
    seen: set[int] = set()
    todo = [annotation]
    while todo:
        one = todo.pop(0)
        origin = typing.get_origin(one)
        if origin in (typing.Union, types.UnionType):
            todo[:0] = typing.get_args(one)
        elif origin in WRAPPERS:
            todo.insert(0, typing.get_args(one)[0])
        elif hasattr(one, "__supertype__"):  # NewType
            todo.insert(0, one.__supertype__)
        elif type(one).__name__ == "TypeAliasType":
            if id(one) not in seen:
                seen.add(id(one))
                todo.insert(0, _quietly(partial(getattr, one, "__value__"), Any))
        else:
            yield one


def _is_open(annotation: Any) -> bool:
    return annotation in (Any, object) or isinstance(annotation, (str, typing.ForwardRef, typing.TypeVar))


def _alike(one: Any, other: Any) -> str | None:
    """Why a stored value of one of these types may be taken for the other, or None."""
    kind, other_kind = typing.get_origin(one) or one, typing.get_origin(other) or other
    if not isinstance(kind, type) or not isinstance(other_kind, type):
        return None
    args, other_args = typing.get_args(one), typing.get_args(other)
    for parts in ((*LISTS, tuple), DICTS):
        if kind in parts and other_kind in parts and args and other_args and _length(one) == _length(other) == _ANY_LENGTH:
            at = 0 if parts is not DICTS else -1
            pairs = product(_members(args[at]), _members(other_args[at]))
            return next((shared for a, b in pairs if a is not b and (shared := _alike(a, b)) is not None), None)
    if kind is other_kind:
        return None
    if hasattr(kind, "_fields") or hasattr(other_kind, "_fields"):
        return _alike_in_length(one, other)
    fields, other_fields = _fields_of(kind), _fields_of(other_kind)
    if fields is None or other_fields is None or _is_tagged(fields, other_fields):
        return None
    if _is_kept_out(fields, other_fields) and _is_kept_out(other_fields, fields):
        return None
    both = sorted(fields.hints.keys() & other_fields.hints.keys())
    return f"both have the field{'s' if len(both) > 1 else ''} {', '.join(both)}" if both else "neither requires a field"


def _is_kept_out(one: _Fields, of: _Fields) -> bool:
    """Whether a stored object of the one class is surely refused by the other."""
    return bool(of.required - one.hints.keys() or (of.closed and one.required - of.hints.keys()))


def _is_tagged(one: _Fields, other: _Fields) -> bool:
    """Whether a field that is always stored has values in the one that it never has in the other."""
    lax = one.lax or other.lax  # pydantic makes an int of a text
    return any(_are_apart(one.hints[name], other.hints[name], lax=lax) for name in one.always & other.always)


def _are_apart(one: Any, other: Any, *, lax: bool) -> bool:
    kinds, others = list(_members(one)), list(_members(other))
    texts, other_texts = _literal_texts(kinds), _literal_texts(others)
    if texts and other_texts:
        return texts.isdisjoint(other_texts)
    if lax or not all(kind in _WRITTEN_AS for kind in (*kinds, *others)):
        return False
    return {_WRITTEN_AS[kind] for kind in kinds}.isdisjoint(_WRITTEN_AS[kind] for kind in others)


def _literal_texts(kinds: list[Any]) -> set[str]:
    """The canonical texts of a Literal's values; empty where it is not one."""
    if not all(typing.get_origin(kind) is typing.Literal for kind in kinds):
        return set()
    values = [value for kind in kinds for value in typing.get_args(kind)]
    return {encode(value._value_ if isinstance(value, Enum) else value) for value in values}


_ANY_LENGTH: Final = (0, float("inf"))


def _length(annotation: Any) -> tuple[float, float] | None:
    """How many items a type that is stored as a list has; None for another type."""
    kind, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return len(kind._fields) - len(kind._field_defaults), len(kind._fields)
    if kind is tuple and args and args[-1] is not Ellipsis:
        return len(args), len(args)
    return _ANY_LENGTH if kind is tuple or kind in LISTS else None


def _alike_in_length(one: Any, other: Any) -> str | None:
    """Two types that are stored as lists, of which one is a NamedTuple."""
    length, other_length = _length(one), _length(other)
    if length is None or other_length is None or length[1] < other_length[0] or other_length[1] < length[0]:
        return None
    if any(_are_apart(a, b, lax=False) for a, b in zip(_items(one), _items(other), strict=False)):
        return None
    return "both are stored as lists of the same length"


def _items(annotation: Any) -> list[Any]:
    """The types of the items that are there in each value."""
    kind = typing.get_origin(annotation) or annotation
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        return [hints.get(name, Any) for name in kind._fields if name not in kind._field_defaults]
    return [] if _length(annotation) == _ANY_LENGTH else list(typing.get_args(annotation))


# ---------------------------------------------------------------- classes


def _fields_of(kind: Any) -> _Fields | None:
    """The fields of a class that is stored as an object; None for another one, and where they cannot be read."""
    if _is_model(kind):
        if getattr(kind, "__pydantic_root_model__", False):
            return None
        own = kind.__pydantic_fields__
        required = frozenset(name for name, field in own.items() if field.is_required())
        closed = kind.model_config.get("extra") == "forbid"
        return _Fields({name: field.annotation for name, field in own.items()}, frozenset(own), required, closed, True)
    hints = _hints(kind)
    if hasattr(kind, "__required_keys__"):
        said = {name: typing.get_origin(hint) for name, hint in hints.items()}  # what a text hides from the class itself
        required = frozenset(
            name
            for name in hints
            if said[name] is typing.Required or (name in kind.__required_keys__ and said[name] is not typing.NotRequired)
        )
        return _Fields(hints, required, required, False, False)
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    from dataclasses import MISSING, fields  # loaded already, by whoever wrote the class

    own_fields = fields(kind)
    required = frozenset(field.name for field in own_fields if field.init and field.default is MISSING is field.default_factory)
    stored = {field.name: hints.get(field.name, Any) for field in own_fields}
    return _Fields(stored, frozenset(stored), required, True, hasattr(kind, "__pydantic_fields__"))


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_fields__") and not hasattr(kind, "__dataclass_fields__")


def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields; none where one of them cannot be resolved: that is a note of its own."""
    if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__required_keys__") or hasattr(kind, "_fields"):
        found = _quietly(lambda: typing.get_type_hints(kind, include_extras=True), {})
        stored = getattr(kind, "__dataclass_fields__", found)  # without an InitVar or a ClassVar
        return {name: hint for name, hint in found.items() if name in stored and not _is_unstored(hint)}
    return {}


def _is_unstored(hint: Any) -> bool:
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar or type(hint).__name__ == "InitVar"


def _quietly(read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - evaluating an annotation may raise anything
        return otherwise


def _is_no_key(kind: Any) -> bool:
    """Whether no instance of this class can be the key of a stored dict: an enum's member never is, not even a StrEnum's."""
    if _is_open(kind) or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return False
    return issubclass(kind, Enum) or not (issubclass(kind, str) or _quietly(lambda: issubclass(str, kind), True))


def _has_form(kind: Any) -> bool:
    if any(hasattr(kind, mark) for mark in ("__dataclass_fields__", "__pydantic_fields__", "__required_keys__")):
        return True
    if issubclass(kind, (*_STORED, Enum)) or any((c.__module__, c.__qualname__) in _BY_NAME for c in kind.__mro__):
        return True
    if hasattr(kind, "__get_pydantic_core_schema__"):  # it may stand for a plain value, as EmailStr does; a secret never does
        return (kind.__module__, kind.__qualname__) not in _PYDANTIC_SECRETS
    # A number, a Hashable, and so on: what is stored may be one.
    return bool(_quietly(lambda: any(issubclass(stored, kind) for stored in _STORED), True))


def _instead_of(kind: Any) -> str:
    if any(base.__name__ == "PurePath" for base in kind.__mro__):
        return "it as a str"
    if (kind.__module__, kind.__qualname__) in _PYDANTIC_SECRETS:
        return "what is no secret"
    return "plain data, a dataclass or a pydantic model"


def _spelled(annotation: Any) -> str:
    return re.sub(r"\b(?:\w+\.|<locals>\.)+(?=\w)", "", inspect.formatannotation(annotation))  # without the names of modules


_WRITTEN_AS: Final = {str: "text", int: "number", float: "number", bool: "bool", bytes: "bytes", type(None): "null"}
_STORED: Final = (
    type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, dt.datetime, dt.date, dt.time, dt.timedelta,
)  # fmt: skip
_BY_NAME: Final = frozenset({("decimal", "Decimal"), ("uuid", "UUID")})
_PYDANTIC_SECRETS: Final = frozenset({("pydantic.types", "SecretStr"), ("pydantic.types", "SecretBytes")})
