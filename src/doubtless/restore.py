"""Give a decoded value the types that an annotation promises, or say where it does not fit.

An annotation is compiled once; restoring a value is then a walk over closures. The log keeps plain trees (`canonical.decode`):
the annotation turns a list into a tuple again, a dict into a dataclass or pydantic model, a value into an enum member, an int
into the float that it was. pydantic is never imported: its models come with their own means.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections import abc
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from . import restore_plans as plans
from .errors import DoesNotFit, UsageError
from .restore_plans import ANYTHING, Plan

__all__ = ["DoesNotFit", "restorer"]


def restorer(annotation: Any) -> Callable[[Any], Any] | None:
    """Compile an annotation into the function that restores a decoded value; None where every value stays as it is.

    Meaning: the function returns the typed value, or raises `DoesNotFit`; what needs no change is only checked. A bool is
    no int, an int no str. Of a union the first member that fits exactly is taken, else the first that fits. Text is taken
    for a date, time, Decimal, UUID where the annotation asks for one: that is how JSON from outside spells them. A dataclass
    takes no field that it does not know; a TypedDict may have more keys than it names.

    Shapes: `annotation` has its forward references resolved (`typing.get_type_hints(…, include_extras=True)`). A class of no
    known kind takes its own instances only.

    Raises: `UsageError` for an annotation with a name that cannot be resolved.
    """
    plan = _Compiler().plan(annotation)
    return None if plan is ANYTHING else plan.restore


class _Compiler:
    """Turns annotations into plans. A class is compiled once and may name itself: its plan exists before its fields do."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Any, Plan] = {}

    def plan(self, annotation: Any) -> Plan:
        if annotation is None:
            return plans.NONE
        if any(annotation is word for word in _OPEN) or isinstance(annotation, typing.TypeVar):
            return ANYTHING
        if isinstance(annotation, (str, typing.ForwardRef)):
            raise UsageError(f"the annotation {annotation!r} is a name that nobody resolved", hint=_RESOLVE)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.plan(annotation.__supertype__)
        if type(annotation).__name__ == "TypeAliasType":
            return self._alias(annotation)
        origin = typing.get_origin(annotation)
        if origin is None or annotation is typing.Tuple:  # noqa: UP006  (bare: no arguments would mean the empty tuple)
            return self._class(origin or annotation)
        expected = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation))  # without the names of modules
        return self._generic(origin, typing.get_args(annotation), expected)

    def _generic(self, origin: Any, args: tuple[Any, ...], expected: str) -> Plan:
        if origin in WRAPPERS:
            return self.plan(args[0])
        if origin is typing.Literal:
            return plans.literal_of(args)
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin is tuple:
            return self._tuple(args, expected)
        if origin in LISTS:
            return plans.list_of(self.plan(args[0]) if args else ANYTHING, expected)
        if origin in DICTS:
            key, item = args or (Any, Any)
            return plans.dict_of(self.plan(key), self.plan(item), expected)
        return self.plan(origin)  # a generic class of the user: its type variables stand for anything

    def _union(self, args: tuple[Any, ...]) -> Plan:
        # A plain dict takes every object: it comes last, whatever the order of the annotation.
        ordered = sorted(args, key=lambda arg: any(plain in (arg, typing.get_origin(arg)) for plain in DICTS))
        members = [self.plan(arg) for arg in ordered]
        return ANYTHING if ANYTHING in members else plans.union_of(members)

    def _tuple(self, args: tuple[Any, ...], expected: str) -> Plan:
        if len(args) == 2 and args[1] is Ellipsis:
            return plans.tuple_of_any_length(self.plan(args[0]), expected)
        return plans.tuple_of(tuple(self.plan(arg) for arg in args), expected)

    def _alias(self, alias: Any) -> Plan:
        if alias not in self._known:
            later: list[Plan] = []
            self._known[alias] = Plan(
                alias.__name__, lambda value: later[0].restore(value), lambda value: later[0].is_exact(value)
            )
            later.append(self.plan(_resolved(alias.__name__, lambda: alias.__value__)))
            self._known[alias] = later[0]
        return self._known[alias]

    def _class(self, kind: Any) -> Plan:
        if kind is typing.LiteralString:
            return plans.SCALARS[str]
        if kind is typing.Never or kind is typing.NoReturn:
            return plans.union_of([])
        if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
            return ANYTHING  # no class, so nothing that a value could be an instance of
        if kind in plans.SCALARS:
            return plans.SCALARS[kind]
        if kind in self._known:
            return self._known[kind]
        if kind is tuple:
            return plans.tuple_of_any_length(ANYTHING, "tuple")
        if kind in LISTS or kind in DICTS:
            return self._generic(kind, (), kind.__name__)
        return self._user_class(kind)

    def _user_class(self, kind: Any) -> Plan:
        if issubclass(kind, Enum):
            return plans.enum_of(kind)
        if issubclass(kind, dict) and hasattr(kind, "__required_keys__"):
            return self._typed_dict(kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        if hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate"):
            return self._model(kind)
        if hasattr(kind, "__dataclass_fields__"):
            return self._dataclass(kind)
        if (kind.__module__, kind.__qualname__) == ("decimal", "Decimal"):
            return plans.scalar(kind, lambda value: plans.finite(kind(value)), (str, int))
        if (kind.__module__, kind.__qualname__) == ("uuid", "UUID"):
            return plans.scalar(kind, kind, (str,))
        return plans.instance_of(kind)

    def _typed_dict(self, kind: Any) -> Plan:
        hints = _hints(kind)
        required = set(kind.__required_keys__)  # what `from __future__ import annotations` hides from it is in the hints
        for name, hint in hints.items():
            while (origin := typing.get_origin(hint)) in WRAPPERS:
                if origin is typing.Required:
                    required.add(name)
                elif origin is typing.NotRequired:
                    required.discard(name)
                hint = typing.get_args(hint)[0]
        fields: dict[str, Plan] = {}
        self._known[kind] = plans.object_of(kind.__name__, fields, frozenset(required), lambda values: values)
        fields.update((name, self.plan(hint)) for name, hint in hints.items())
        return self._known[kind]

    def _named_tuple(self, kind: Any) -> Plan:
        hints = _hints(kind)
        items: list[Plan] = []
        self._known[kind] = plans.named_tuple_of(kind, items)
        items.extend(self.plan(hints.get(name, Any)) for name in kind._fields)
        return self._known[kind]

    def _dataclass(self, kind: Any) -> Plan:
        from dataclasses import MISSING  # loaded already, by whoever wrote the class
        from dataclasses import fields as fields_of

        own = fields_of(kind)
        is_init = {field.name: field.init for field in own}
        for name, parameter in inspect.signature(kind).parameters.items():
            if name not in is_init and parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
                hint = "give it a default, or make it a field"
                raise UsageError(f"{kind.__name__} cannot be restored: it takes {name!r}, which is not stored", hint=hint)
        required = {field.name for field in own if field.init and field.default is MISSING is field.default_factory}
        fields: dict[str, Plan] = {}
        self._known[kind] = plans.dataclass_of(kind, fields, frozenset(required), is_init)
        hints = _hints(kind)
        fields.update((name, self.plan(hints.get(name, Any))) for name in is_init)
        return self._known[kind]

    def _model(self, kind: Any) -> Plan:
        accepts = inspect.signature(kind.model_validate).parameters
        flags = {name: True for name in ("by_alias", "by_name") if name in accepts}  # stored by name; from outside by alias
        strict_fields: dict[str, Plan] = {}
        if kind.model_config.get("strict"):
            self._known[kind] = plans.model_of(kind, strict_fields, flags)
            strict_fields.update((name, self.plan(field.annotation)) for name, field in kind.__pydantic_fields__.items())
            return self._known[kind]
        return plans.model_of(kind, strict_fields, flags)


def _hints(kind: Any) -> dict[str, Any]:
    hints: dict[str, Any] = _resolved(kind.__name__, lambda: typing.get_type_hints(kind, include_extras=True))
    return hints


def _resolved(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except NameError as error:
        raise UsageError(f"the annotations of {name} cannot be resolved: {error}", hint=_RESOLVE) from error


_OPEN: Final = (Any, object, inspect.Parameter.empty)
_RESOLVE: Final = "import the name at run time, not only for type checking"
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
WRAPPERS: Final = (
    typing.Annotated,
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing.ClassVar,
    getattr(typing, "ReadOnly", typing.Annotated),
)
LISTS: Final = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable, abc.Reversible)
DICTS: Final = (dict, abc.Mapping, abc.MutableMapping)
