"""The steps of an agent as a model sees them: a JSON Schema of each, and the check of what it asks for.

The schemas and the checks are pydantic's (extra ``agents``). A model sees and sets the params that a step's function
declares, without injected, secret and bound ones; nothing of a step's policy (I10).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import canonical
from .calls import Input, Runtime
from .declaring import OPTIONS
from .effects import StepDefinition
from .errors import DoubtlessError, UsageError
from .inputs import prepare

Bound = Mapping[str, Mapping[str, Any]]
"""Params that the developer gives, by step: ``{"pay": {"token": Secret("env:PAY_TOKEN")}}``."""

POLICY = frozenset({*OPTIONS, "policy", "retry", "key", "effect_class", "call_id", "task_id"}) - {"name"}
"""Names that speak of policy: a param of such a name is refused with that reason, unless the function declares it."""


class NotAllowed(Exception):
    """Why a call may not run: a sentence for the model."""


class Tool(NamedTuple):
    """One step as the model may call it. `visible`: the params that are its own; `bound`: those that it is given."""

    definition: StepDefinition
    visible: tuple[str, ...]
    bound: Mapping[str, Any]
    adapters: Mapping[str, Any]
    schema: dict[str, Any]


class Toolbox:
    """The tools of one agent, made at first use."""

    def __init__(self, definitions: Iterable[StepDefinition], bound: Bound) -> None:
        self._tools = {one.name: make_tool(one, bound.get(one.name, {})) for one in definitions}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """What the model is told of its tools, anew for each caller."""
        schemas: list[dict[str, Any]] = json.loads(json.dumps([tool.schema for tool in self._tools.values()]))
        return schemas

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def given(self, runtime: Runtime, name: str, params: Mapping[str, Any]) -> Input:
        """The call's params in their stored form, checked and typed. Raises: NotAllowed."""
        tool = self._tools.get(name)
        if tool is None:
            raise NotAllowed(f"there is no step {name!r}; the steps are {', '.join(sorted(self._tools)) or 'none'}")
        strangers = [_stranger(tool, param) for param in params if param not in tool.visible]
        if strangers:
            raise NotAllowed("; ".join(strangers))
        typed = _typed(tool, params)
        try:
            given = prepare(runtime, tool.definition, tool.definition.binder.bind((), {**typed, **tool.bound}))
            tool.definition.restore_params(canonical.decode(given.text))  # what its function could not be given
            return given
        except DoubtlessError as error:
            raise NotAllowed(error.message) from None


def _stranger(tool: Tool, param: str) -> str:
    definition = tool.definition
    takes = f"it takes {', '.join(tool.visible) or 'no params'}"
    if param in definition.binder.injected or param in tool.bound or param in definition.secret or param in POLICY:
        return f"{param!r} is not yours to set: {definition.name} is given it by its developer; {takes}"
    return f"{definition.name} has no param {param!r}; {takes}"


def _typed(tool: Tool, params: Mapping[str, Any]) -> dict[str, Any]:
    """The params in the types of their annotations. Raises: NotAllowed, with everything that does not fit."""
    from pydantic import ValidationError

    typed: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in params.items():
        adapter = tool.adapters.get(name)
        if adapter is None or (value is None and tool.definition.binder.defaults.get(name, name) is None):
            typed[name] = value
            continue
        try:
            typed[name] = adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            for one in error.errors(include_url=False, include_input=False, include_context=False):
                place = ".".join(str(part) for part in (name, *one["loc"]))
                wrong.append(f"{place}: {one['msg']}")
        except Exception as error:  # a number without end, or what a model's own validator raises  # noqa: BLE001
            wrong.append(f"{name}: could not be read ({type(error).__name__})")
    missing = [name for name in tool.definition.binder.required if name in tool.visible and name not in params]
    wrong += [f"{name}: is missing" for name in missing]
    if wrong:
        raise NotAllowed(f"the params of {tool.definition.name} do not fit: " + "; ".join(wrong))
    return typed


def make_tool(definition: StepDefinition, bound: Mapping[str, Any]) -> Tool:
    """A step as a tool. Raises UsageError: pydantic is missing, or has no JSON Schema for an annotation."""
    require_pydantic()
    from pydantic import TypeAdapter

    hidden = {*bound, *definition.secret}
    visible = tuple(name for name in definition.binder.names if name not in hidden)
    adapters = {}
    for name in visible:
        if name in definition.unresolved:
            raise UsageError(
                f"step {definition.name}: the annotation of {name!r} cannot be resolved, so that nothing given for it is checked",
                hint="define what it names in the module of the step",
                step=definition.name,
                param=name,
            )
        if name in definition.param_types:
            try:
                adapters[name] = TypeAdapter(definition.param_types[name])
                adapters[name].json_schema()
            except Exception as error:  # pydantic's and whatever a type's own hooks raise
                raise UsageError(
                    f"step {definition.name}: the annotation of {name!r} has no JSON Schema, so no model can be told what it "
                    f"takes: {_first_line(error)}",
                    hint="annotate it with a JSON type, a dataclass, a TypedDict (of typing_extensions before Python 3.12) or a "
                    "pydantic model",
                    step=definition.name,
                    param=name,
                ) from error
    return Tool(definition, visible, bound, adapters, _schema(definition, visible, adapters))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def schema_faults(where: str, definitions: Iterable[StepDefinition], bound: Bound) -> list[str]:
    """Which steps cannot be told to a model: sentences."""
    found = []
    for one in definitions:
        try:
            make_tool(one, bound.get(one.name, {}))
        except UsageError as error:
            found.append(f"{where}: {error}")
    return found


def _schema(definition: StepDefinition, visible: tuple[str, ...], adapters: Mapping[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    made, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], ref_template="#/$defs/{model}"
    )
    properties: dict[str, Any] = {}
    for name in visible:
        properties[name] = dict(made[name, "validation"]) if name in adapters else {}
        default = definition.binder.defaults.get(name)
        if default is not None and isinstance(default, str | int | float | bool):
            properties[name].setdefault("default", default)
    required = [name for name in definition.binder.required if name in visible]
    parameters: dict[str, Any] = {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False, **shared
    }  # fmt: skip
    return {"name": definition.name, "description": describe(definition), "parameters": parameters}


def describe(definition: StepDefinition) -> str:
    """A step's docstring, without its indentation."""
    from inspect import getdoc

    return getdoc(definition.fn) or ""


def require_pydantic() -> None:
    """Raise UsageError where the extra is not installed."""
    from importlib.util import find_spec

    if find_spec("pydantic") is None:
        raise UsageError(
            "agents need pydantic for the JSON Schema of their steps, and it is not installed",
            hint="pip install 'doubtless[agents]'",
        )


def bound_faults(where: str, definitions: Iterable[StepDefinition], bound: Bound) -> list[str]:
    """What is wrong with the params that the developer binds: sentences."""
    from .secrets import Secret

    known = {one.name: one for one in definitions}
    found = [f"{where}: bind names {name!r}, which is none of its steps" for name in bound if name not in known]
    for name, definition in known.items():
        given = bound.get(name, {})
        strangers = [repr(param) for param in given if param not in definition.binder.accepts]
        if strangers:
            found.append(f"{where}: bind gives step {name!r} {', '.join(strangers)}, which it does not take")
        for param in sorted(definition.secret):
            if param not in given and param in definition.binder.required:
                found.append(
                    f"{where}: step {name!r} needs the secret {param!r}, which no model may see: "
                    f"say bind={{{name!r}: {{{param!r}: Secret('env:NAME')}}}}"
                )
            elif param in given and not isinstance(given[param], Secret | None):
                found.append(f"{where}: bind gives step {name!r} the secret {param!r} as a raw value: say Secret('env:NAME')")
    return found
