"""What an annotation is compiled into: plans that restore one value, check one, or refuse it.

A plan is a pair of closures; containers hold the plans of their parts. Plans of classes get their fields after they were made,
so that a class may name itself. `restore` decides which plan an annotation gets.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from typing import Any, Final

from .canonical import encode
from .errors import DoesNotFit, NotCanonical


class Plan:
    """One compiled annotation: `restore` a value, or ask whether it `is_exact` (decides unions)."""

    __slots__ = ("expected", "is_exact", "kind", "restore")

    def __init__(
        self,
        expected: str,
        restore: Callable[[Any], Any],
        is_exact: Callable[[Any], bool] | None = None,
        kind: type | None = None,
    ) -> None:
        self.expected = expected
        self.restore = restore
        self.is_exact = is_exact or (lambda value: False)
        self.kind = kind  # of a plain type whose values are only checked


ANYTHING: Final = Plan("anything", lambda value: value, lambda value: True)


def got(value: object) -> str:
    """What came, by its type: a value may be a secret."""
    return "None" if value is None else type(value).__qualname__


# ---------------------------------------------------------------- scalars


def scalar(kind: type, convert: Callable[[Any], Any] | None = None, takes: tuple[type, ...] = ()) -> Plan:
    """Values of exactly this type; and of those in `takes` after `convert`, which refuses by a ValueError."""
    expected = "None" if kind is type(None) else kind.__name__

    def restore(value: Any) -> Any:
        found = type(value)
        if found is kind:
            return value
        if convert is not None and found in takes:
            try:
                return convert(value)
            except (ArithmeticError, ValueError):
                raise DoesNotFit("", expected, f"{got(value)} that is none") from None
        if isinstance(value, kind) and not (kind is int and found is bool) and not (kind is dt.date and found is dt.datetime):
            return value
        raise DoesNotFit("", expected, got(value))

    return Plan(expected, restore, lambda value: type(value) is kind, kind=None if convert else kind)


def finite(number: Any) -> Any:
    if not number.is_finite():
        raise ValueError("not finite")
    return number


def _float_of_int(value: int) -> float:
    number = float(value)
    if number != value:
        raise ValueError("no float is this int")
    return number


NONE: Final = scalar(type(None))
SCALARS: Final[dict[type, Plan]] = {
    type(None): NONE,
    bool: scalar(bool),
    int: scalar(int),
    str: scalar(str),
    bytes: scalar(bytes),
    float: scalar(float, _float_of_int, (int,)),
    bytearray: scalar(bytearray, bytearray, (bytes,)),
    dt.datetime: scalar(dt.datetime, dt.datetime.fromisoformat, (str,)),
    dt.date: scalar(dt.date, dt.date.fromisoformat, (str,)),
    dt.time: scalar(dt.time, dt.time.fromisoformat, (str,)),
    dt.timedelta: scalar(dt.timedelta),
    dict: scalar(dict),
    list: scalar(list),
}


def members_of(expected: str, by_text: dict[str, Any], is_flag_of: Any = None) -> Plan:
    """The members of an enum or Literal, found by the canonical text of their value (so 1, True and "1" are three)."""

    def find(value: Any) -> Any:
        try:
            member = by_text.get(encode(value), _MISSING)
        except NotCanonical:
            member = _MISSING
        if member is _MISSING and is_flag_of is not None and type(value) is int:
            try:
                return is_flag_of(value)
            except ValueError:
                return _MISSING
        return member

    def restore(value: Any) -> Any:
        member = find(value)
        if member is _MISSING:
            raise DoesNotFit("", expected, f"{got(value)} that is none of them")
        return member

    return Plan(expected, restore, lambda value: find(value) is not _MISSING)


_MISSING: Final = object()


def enum_of(kind: type[Enum]) -> Plan:
    by_text: dict[str, Any] = {}
    for member in kind.__members__.values():
        try:
            by_text[encode(member._value_)] = by_text[encode(member)] = member
        except NotCanonical:  # such a member cannot have been stored
            continue
    return members_of(f"a value of {kind.__name__}", by_text, kind if issubclass(kind, Flag) else None)


def literal_of(values: tuple[Any, ...]) -> Plan:
    texts = {encode(value._value_ if isinstance(value, Enum) else value): value for value in values}
    return members_of(f"one of {', '.join(map(repr, values))}", texts)


# ---------------------------------------------------------------- containers


def list_of(item: Plan, expected: str) -> Plan:
    only = {item.kind}

    def is_plain(value: Any) -> bool:
        return type(value) is list and (item is ANYTHING or set(map(type, value)) <= only)

    def restore(value: Any) -> Any:
        if is_plain(value):
            return value
        if not isinstance(value, (list, tuple)):
            raise DoesNotFit("", expected, got(value))
        return _items(item, value)

    return Plan(expected, restore, is_plain)


def _items(item: Plan, values: Iterable[Any]) -> list[Any]:
    restored: list[Any] = []
    try:
        for value in values:
            restored.append(item.restore(value))
    except DoesNotFit as misfit:
        raise misfit.within(f"[{len(restored)}]") from misfit.__cause__
    return restored


def tuple_of(items: tuple[Plan, ...], expected: str) -> Plan:
    def restore(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise DoesNotFit("", expected, got(value))
        if len(value) != len(items):
            raise DoesNotFit("", expected, f"{len(value)} items")
        return tuple(at(f"[{index}]", plan, item) for index, (plan, item) in enumerate(zip(items, value, strict=True)))

    return Plan(expected, restore, lambda value: isinstance(value, (list, tuple)) and len(value) == len(items))


def tuple_of_any_length(item: Plan, expected: str) -> Plan:
    def restore(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise DoesNotFit("", expected, got(value))
        return tuple(_items(item, value))

    return Plan(expected, restore)


def at(place: str, plan: Plan, value: Any) -> Any:
    try:
        return plan.restore(value)
    except DoesNotFit as misfit:
        raise misfit.within(place) from misfit.__cause__


def dict_of(key: Plan, item: Plan, expected: str) -> Plan:
    only = {item.kind}
    plain_keys = key is ANYTHING or key.kind is str

    def is_plain(value: Any) -> bool:
        return type(value) is dict and plain_keys and (item is ANYTHING or set(map(type, value.values())) <= only)

    def restore(value: Any) -> Any:
        if is_plain(value):
            return value
        if not isinstance(value, dict):
            raise DoesNotFit("", expected, got(value))
        return {at(f"[{name!r}]", key, name): at(_step(name), item, member) for name, member in value.items()}

    return Plan(expected, restore, is_plain)


def _step(name: object) -> str:
    return f".{name}" if str(name).isidentifier() else f"[{name!r}]"


def union_of(members: list[Plan]) -> Plan:
    expected = " | ".join(plan.expected for plan in members) or "no value"

    def restore(value: Any) -> Any:
        misfit: DoesNotFit | None = None
        for wanted in (True, False):  # the exact ones first
            for plan in members:
                if plan.is_exact(value) is not wanted:
                    continue
                try:
                    return plan.restore(value)
                except DoesNotFit as error:
                    if misfit is None or len(error.where) > len(misfit.where):
                        misfit = error  # the one that came furthest says most
        if misfit is not None and misfit.where:
            raise misfit
        raise DoesNotFit("", expected, got(value))

    return Plan(expected, restore, lambda value: any(plan.is_exact(value) for plan in members))


# ---------------------------------------------------------------- classes


def object_of(
    expected: str,
    fields: Mapping[str, Plan],
    required: frozenset[str],
    build: Callable[[dict[str, Any]], Any],
    kind: type | None = None,
) -> Plan:
    """A dict with these fields, built into a `kind`; without a kind (TypedDict) it stays a dict and may have more keys."""

    def restore(value: Any) -> Any:
        if kind is not None and isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise DoesNotFit("", expected, got(value))
        if missing := required - value.keys():
            raise DoesNotFit("", expected, f"a dict without {_names(missing)}")
        if kind is not None and (unknown := value.keys() - fields.keys()):
            raise DoesNotFit("", expected, f"a dict with {_names(unknown)}, which it does not know")
        return build({name: at(_step(name), fields.get(name, ANYTHING), item) for name, item in value.items()})

    def is_exact(value: Any) -> bool:
        least = required if kind is None else fields.keys()  # what was stored of an object has all its fields
        return isinstance(value, dict) and least <= value.keys() <= fields.keys()

    return Plan(expected, restore, is_exact)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def refused_by(expected: str, error: Exception) -> DoesNotFit:
    """The misfit for values that the class's own code refused. What pydantic says comes without the input."""
    told = getattr(error, "errors", None)
    if callable(told) and hasattr(type(error), "error_count"):
        first = told()[0]  # its "input" stays out of the message
        where = "".join(f"[{step}]" if isinstance(step, int) else _step(step) for step in first["loc"])
        return DoesNotFit(where, expected, f"what it refuses: {first['msg']}")
    return DoesNotFit("", expected, f"what it refuses: {type(error).__name__}: {error}"[:200])


def dataclass_of(kind: Any, fields: Mapping[str, Plan], required: frozenset[str], is_init: Mapping[str, bool]) -> Plan:
    def build(values: dict[str, Any]) -> Any:
        try:
            made = kind(**{name: value for name, value in values.items() if is_init[name]})
        except Exception as error:
            raise refused_by(kind.__name__, error) from error
        for name, value in values.items():
            if not is_init[name]:  # as it was stored, whatever __post_init__ makes of it today; frozen classes too
                object.__setattr__(made, name, value)
        return made

    return object_of(kind.__name__, fields, required, build, kind)


def named_tuple_of(kind: Any, items: list[Plan]) -> Plan:
    names, least = kind._fields, len(kind._fields) - len(kind._field_defaults)

    def restore(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, (list, tuple)):
            raise DoesNotFit("", kind.__name__, got(value))
        if not least <= len(value) <= len(names):
            raise DoesNotFit("", kind.__name__, f"{len(value)} items")
        return kind(*(at(f".{name}", plan, item) for name, plan, item in zip(names, items, value, strict=False)))

    return Plan(kind.__name__, restore, lambda value: isinstance(value, (list, tuple)) and len(value) == len(names))


def model_of(kind: Any, strict_fields: Mapping[str, Plan], flags: Mapping[str, bool]) -> Plan:
    """A pydantic model. A strict one gets parts that have their types already: it would take no list for a tuple."""
    names = frozenset() if getattr(kind, "__pydantic_root_model__", False) else kind.__pydantic_fields__.keys()

    def restore(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if strict_fields and isinstance(value, dict):
            value = {name: at(_step(name), strict_fields.get(name, ANYTHING), item) for name, item in value.items()}
        try:
            return kind.model_validate(value, **flags)
        except Exception as error:
            raise refused_by(kind.__name__, error) from error

    return Plan(kind.__name__, restore, lambda value: isinstance(value, dict) and bool(names) and value.keys() == names)


def instance_of(kind: type) -> Plan:
    return Plan(kind.__name__, scalar(kind).restore, lambda value: isinstance(value, kind))
