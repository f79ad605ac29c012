"""Declaring an agent: its options read, with every fault of them as a sentence of the table's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .agents import Agent, Settings
from .agentstate import KEEP
from .agentview import Bounds
from .errors import UsageError
from .events import Effect
from .steps import Step
from .toolbox import require_pydantic

if TYPE_CHECKING:
    from .app import Doubtless


def declare_agent(
    app: Doubtless, name: str, choose: Any, steps: Iterable[Any], bind: Mapping[str, Mapping[str, Any]], *,
    on_failure: Any, cost: Any, timeout: Any, attempts: Any, backoff: Any, **numbers: Any,
) -> Agent:  # fmt: skip
    """An agent of this app. Raises UsageError for what is no agent at all, and where pydantic is missing."""
    require_pydantic()
    if not isinstance(name, str) or not name:
        raise UsageError(f"agent {name!r}: say its name, a text")
    if not callable(choose) or isinstance(choose, type):
        raise UsageError(f"agent {name}: choose is {choose!r}: say a function", hint="choose(state) gives a Turn or Finish")
    if not isinstance(steps, Iterable):
        raise UsageError(f"agent {name}: steps is {steps!r}: say a list of steps, or their names")
    if not isinstance(bind, Mapping) or not all(isinstance(params, Mapping) for params in bind.values()):
        raise UsageError(f"agent {name}: bind is {type(bind).__name__}", hint="bind={'pay': {'token': Secret('env:PAY_TOKEN')}}")
    names, faults = _names(name, steps)
    for key, least in (("concurrency", 1), ("last_turns", 1), ("last_bytes", 1), ("output_bytes", 1)):
        if type(numbers[key]) is not int or numbers[key] < least:
            faults.append(f"agent {name}: {key} is {numbers[key]!r}: say a whole number, {least} or more")
    for key in ("snapshot_every", "max_choices"):
        if numbers[key] is not None and (type(numbers[key]) is not int or numbers[key] < 1):
            faults.append(f"agent {name}: {key} is {numbers[key]!r}: say a whole number, 1 or more, or None")
            numbers[key] = None
    if on_failure not in ("compensate", "hold"):
        faults.append(f"agent {name}: on_failure is {on_failure!r}: say 'compensate' or 'hold'")
    most = numbers["max_cost"]
    if most is not None and (isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < float("inf")):
        faults.append(f"agent {name}: max_cost is {most!r}: say a number above zero, or None")
    if type(numbers["last_turns"]) is int and numbers["last_turns"] > KEEP:
        faults.append(f"agent {name}: last_turns is {numbers['last_turns']}: at most {KEEP} are held")
    settings = Settings(
        on_failure,
        numbers["max_choices"], most, numbers["concurrency"], numbers["snapshot_every"],
        Bounds(numbers["last_turns"], numbers["last_bytes"], numbers["output_bytes"]),
    )  # fmt: skip
    options = {"effect": Effect.READ, "timeout": timeout, "attempts": attempts, "backoff": backoff, "retry_rejected": True}
    if cost is not None:
        options["cost"] = cost
    agent = Agent(name, choose, names, {step: dict(params) for step, params in bind.items()}, settings, options)
    app._adopt(agent, faults)
    return agent


def _names(agent: str, steps: Iterable[Any]) -> tuple[list[str], list[str]]:
    names: list[str] = []
    faults: list[str] = []
    for step in [steps] if isinstance(steps, str) else steps:
        name = step.name if isinstance(step, Step) else step
        if not isinstance(name, str):
            faults.append(f"agent {agent}: {step!r} is no step: say steps, or their names")
        elif name in names:
            faults.append(f"agent {agent}: step {name!r} stands twice in its steps")
        else:
            names.append(name)
    return names, faults
