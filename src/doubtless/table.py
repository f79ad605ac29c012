"""The step table: the steps of one app, and every fault of the whole of it found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from .binding import OFFERED, RESULT, function_name, select
from .declaring import LAMBDA, bare_function, nearest, read_options
from .effects import Function, StepDefinition
from .errors import StepTableError, UnknownStep
from .events import Effect


class StepTable:
    """The steps of one app, by name. `check` and `validate` see the whole: references may point forward.

    `tasks` is the app's live mapping of task names to their functions (or objects with `.fn`), because a
    compensation may be a task.
    """

    def __init__(self, tasks: Mapping[str, Any] | None = None) -> None:
        self._tasks: Mapping[str, Any] = {} if tasks is None else tasks
        self._steps: dict[str, StepDefinition] = {}
        self._implied: dict[str, StepDefinition] = {}
        self._names: set[str] = set()
        self._faults: list[str] = []
        self._valid = False

    def add(self, name: str | None, options: Mapping[str, Any]) -> StepDefinition | None:
        """Take a step in. Its faults are kept for `check`; None only where no function could be found in it."""
        self._valid = False
        if not isinstance(options, Mapping):
            self._faults.append(f"step {name!r}: {options!r} is no mapping of options: say {{'effect': …, 'call': …}}")
            return None
        rest = {option: value for option, value in options.items() if option not in ("name", "call")}
        own_name, call = options.get("name"), options.get("call")
        asked = own_name if name in (None, LAMBDA) else name
        definition, faults = read_options(asked, call, rest, compensates=False)
        if own_name not in (None, asked):
            faults.append(f"step {asked!r}: says name={own_name!r} too: say one of them")
        taken = function_name(bare_function(call)) if asked is None else asked
        if isinstance(taken, str):
            if taken in self._names:
                faults.append(f"step {taken!r}: is declared twice: give one of them another name")
            elif definition is not None:
                self._steps[taken] = definition
            self._names.add(taken)
        if isinstance(taken, str) and taken.startswith("$"):
            faults.append(f"step {taken!r}: names that begin with '$' are the library's own: choose another name")
        self._faults += faults
        return definition

    def get(self, name: str) -> StepDefinition | None:
        """The step of this name, or None: one that is gone from the code is a case for a person, not a crash."""
        return self._steps.get(name) or self._implied.get(name)

    def __getitem__(self, name: str) -> StepDefinition:
        definition = self.get(name)
        if definition is None:
            near = nearest(name, list(self), {})
            raise UnknownStep(
                f"there is no step {name!r}", hint=near or f"the steps are {', '.join(self) or 'none yet'}", step=name
            )
        return definition

    def __contains__(self, name: object) -> bool:
        return name in self._steps or name in self._implied

    def __iter__(self) -> Iterator[str]:
        yield from self._steps
        yield from (name for name in self._implied if name not in self._steps)

    def __len__(self) -> int:
        return len(set(self._steps) | set(self._implied))

    def validate(self) -> None:
        """Refuse a table with faults: one `StepTableError` that lists all of them. A sound one is checked once."""
        if self._valid:
            return
        faults = self.check()
        if faults:
            raise StepTableError(faults)
        self._valid = True

    def check(self) -> list[str]:
        """Every fault of the whole table, one sentence each; empty when there is none.

        Functions given as `compensate` become steps here (a non_idem_write without a query), and tasks and steps
        named there are looked up.
        """
        faults = list(self._faults)
        self._implied = {}
        for definition in list(self._steps.values()):
            if definition.compensate_given is not None and definition.effect is not Effect.READ:
                faults += [f"step {definition.name!r}: {half}" for half in self._check_compensation(definition)]
        for definition in (*self._steps.values(), *self._implied.values()):
            faults += [f"step {definition.name!r}: {half}" for half in definition.type_faults]
        return faults

    def _check_compensation(self, definition: StepDefinition) -> list[str]:
        undo, name = definition.compensate_given, definition.compensate
        if name is None:
            if callable(undo):
                return [f"compensate is {undo!r}, which has no name: register it as a step of its own and name that"]
            return [f"compensate is {undo!r}: say a step, a task, their name, or a function"]
        step = getattr(undo, "definition", None)
        if callable(undo) and not isinstance(step, StepDefinition) and not isinstance(getattr(undo, "name", None), str):
            return self._imply(definition, undo, name)
        target: object = self._steps.get(name) or self._tasks.get(name)
        if target is None:
            if name in self._names:
                return []  # declared, and its own faults are listed already
            near = nearest(name, [*self._steps, *self._tasks], {})
            return [f"compensate names {name!r}, which is no step and no task{f'; {near}' if near else ': declare it'}"]
        if not isinstance(undo, str) and target is not (step or undo):
            return [f"compensate is a step or task {name!r}, but the one of that name here is another: say the one of this app"]
        return self._check_target(definition, name, target)

    def _imply(self, definition: StepDefinition, fn: Function, name: str) -> list[str]:
        """A function as compensation: what it already is, or a new non_idem_write without a query."""
        registered: dict[str, object] = {**self._steps, **self._tasks}
        for known_as, target in registered.items():
            if getattr(target, "fn", target) == fn:  # bound methods are equal, not the same
                if known_as != name:
                    return [
                        f"compensate is the function {name}, which is registered as {known_as!r}: say compensate={known_as!r}"
                    ]
                return self._check_target(definition, name, target)
        known = self._implied.get(name)
        if name in self._names or name in self._tasks or (known is not None and known.fn != fn):
            return [
                f"compensate is a function named {name}, as another step or task is: register it as a step under its own name"
            ]
        faults: list[str] = []
        if known is None:
            known, faults = read_options(name, fn, {"effect": Effect.NON_IDEM_WRITE}, compensates=True)
            if known is None:
                return [f"compensate: {fault}" for fault in faults]
            self._implied[name] = known
        return [f"compensate: {fault}" for fault in faults] + self._check_target(definition, name, known)

    def _check_target(self, definition: StepDefinition, name: str, target: object) -> list[str]:
        """Whether that step or task can undo this one, and is offered all that it asks for."""
        if target is definition:
            return ["compensates itself: say the step that undoes it"]
        if isinstance(target, StepDefinition):
            if target.effect is Effect.READ:
                return [f"compensate names {name!r}, which is a read: a read undoes nothing"]
            required = target.binder.required
        else:
            required = select(cast("Function", getattr(target, "fn", target))).required
        names = definition.binder.names
        offered = (*names, *(extra for extra in (*OFFERED, RESULT) if extra not in names))
        strangers = ", ".join(repr(param) for param in required if param not in offered)
        if not strangers:
            return []
        return [f"compensate: {name} asks for {strangers}, which it is not offered; it can have {', '.join(offered)}"]
