"""Agents: a model chooses steps, the library's loop takes them, and both are recorded.

A turn is two places of the task's top level: ``$choose``, a read that records what the model wants (and why a call is
refused), and a parallel group with a branch for each call. A choice that is recorded is never asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .agentloop import asked, asked_async, async_code_of, code_of
from .agentstate import FORM
from .agentview import Bounds, State
from .binding import is_async, signature_of
from .choices import CHOOSE
from .conclusion import OnFailure, TaskCode
from .declaring import define
from .effects import StepDefinition
from .events import Effect
from .snapshots import Plan
from .steps import Task
from .toolbox import Bound, Toolbox, bound_faults, schema_faults

Find = Callable[[str], StepDefinition | None]


class Settings(NamedTuple):
    """An agent's numbers. `max_choices`, `max_cost`: None is no limit."""

    on_failure: OnFailure
    max_choices: int | None
    max_cost: int | float | None
    concurrency: int
    snapshot_every: int | None
    bounds: Bounds


class Agent(Task[..., Any]):
    """A task whose steps a model chooses. Give it to `app.run` or `app.start` with its ``goal``."""

    def __init__(
        self, name: str, choose: Callable[[State], Any], steps: Sequence[str], bound: Bound, settings: Settings,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.choose = choose
        self.step_names = tuple(steps)
        self.bound = bound
        self.settings = settings
        self.is_async = is_async(choose)
        definition, faults = define(CHOOSE, call=asked_async(choose) if self.is_async else asked(choose), **options)
        assert definition is not None
        self.choice = definition
        fn = async_code_of(self) if self.is_async else code_of(self)
        signature, of_name = define(name, call=fn, effect=Effect.READ)
        assert signature is not None
        faults += of_name + _choose_faults(choose)
        if name.startswith("$"):
            faults.append("agent: names that begin with '$' are the library's own; choose another name")
        self._faults = [f"agent {name}: {fault.partition(': ')[2]}" for fault in faults]
        every = settings.snapshot_every
        plan = None if every is None else Plan(every, f"agent:{FORM}")
        super().__init__(TaskCode(name, fn, self.is_async, signature, plan, settings.on_failure), fn)
        self._toolbox: Toolbox | None = None

    def definitions(self, find: Find) -> list[StepDefinition]:
        """The definitions of its steps, of those that exist."""
        return [one for one in map(find, self.step_names) if one is not None]

    def toolbox(self, find: Find) -> Toolbox:
        """Its steps as tools, made at first use."""
        if self._toolbox is None:
            self._toolbox = Toolbox(self.definitions(find), self.bound)
        return self._toolbox

    def faults(self, find: Find) -> list[str]:
        """What is wrong with its declaration, a sentence each."""
        where = f"agent {self.name}"
        found = list(self._faults)
        for name in self.step_names:
            definition = find(name)
            if definition is None:
                found.append(f"{where}: there is no step {name!r}: declare it, or take it out")
            elif definition.is_async and not self.is_async:
                found.append(f"{where}: step {name!r} is async and choose is not: declare choose with async def")
        found += bound_faults(where, self.definitions(find), self.bound)
        return found + schema_faults(where, self.definitions(find), self.bound)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"


def _choose_faults(choose: Any) -> list[str]:
    try:
        signature_of(choose).bind(None)
    except (TypeError, ValueError):
        return ["step: choose has to take one thing by position, the state, and ask for no more"]
    return []
