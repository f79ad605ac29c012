"""Declaring: steps, tasks and agents of an app, and the faults of all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from ..binding import is_async, validate_task_signature
from ..conclusion import OnFailure, TaskCode
from ..declaring import define
from ..effects import StepDefinition
from ..errors import UsageError
from ..events import Effect
from ..snapshots import Plan
from ..steps import Step, Task
from .base import Face

if TYPE_CHECKING:
    from datetime import timedelta

    from ..agents import Agent
    from ..agentview import State
    from ..app import Doubtless
    from ..choices import Finish, Turn
    from ..inbox import Case

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

EffectName = Literal["read", "idem_write", "non_idem_write"] | Effect


class Declaring(Face):
    """What an app's code declares."""

    def step(
        self,
        *,
        effect: EffectName,
        name: str | None = None,
        query: Callable[..., Any] | None = None,
        compensate: str | Callable[..., Any] | Step[..., Any] | Task[..., Any] | None = None,
        compensate_deadline: str | int | float | timedelta | None = None,
        volatile: str | Iterable[str] = (),
        secret: str | Iterable[str] = (),
        timeout: str | int | float | timedelta = "PT30S",
        attempts: int = 3,
        backoff: str | int | float | timedelta = "PT1S",
        retry_rejected: bool = False,
        key_window: str | int | float | timedelta | None = None,
        absent_after: str | int | float | timedelta | None = None,
        on_absent: Literal["fail", "retry"] | None = None,
        query_attempts: int = 5,
        settle_within: str | int | float | timedelta = "PT1H",
        single_request: bool = False,
        classify: Callable[..., Any] | None = None,
        idempotent_by: str | None = None,
        once: str | None = None,
        once_window: str | int | float | timedelta | None = None,
        independent: bool = False,
        cost: int | float | None = None,
        **unknown: Any,
    ) -> Callable[[Callable[P, R]], Step[P, R]]:
        """Declare a step. See docs/steps.md for each option; faults are collected and raised together at first use."""
        options: dict[str, Any] = {
            "effect": effect, "query": query, "compensate": compensate, "compensate_deadline": compensate_deadline,
            "volatile": volatile, "secret": secret, "timeout": timeout, "attempts": attempts, "backoff": backoff,
            "retry_rejected": retry_rejected, "key_window": key_window, "absent_after": absent_after, "on_absent": on_absent,
            "query_attempts": query_attempts, "settle_within": settle_within, "single_request": single_request,
            "classify": classify, "idempotent_by": idempotent_by, "once": once, "once_window": once_window,
            "independent": independent, "cost": cost,
        }  # fmt: skip
        options = {k: v for k, v in options.items() if v is not None} | unknown

        def declare(fn: Callable[P, R]) -> Step[P, R]:
            return self._declare(name, {**options, "call": fn}, fn)

        return declare

    def _declare(self, name: str | None, options: Mapping[str, Any], fn: Callable[P, R]) -> Step[P, R]:
        definition = self._table.add(name, options)
        if definition is None:  # a fault: the table says so at first use; the name stays callable for tools
            definition = broken_definition(str(name or getattr(fn, "__name__", "?")))
        step: Step[P, R] = Step(definition, fn)
        self._steps[definition.name] = step
        self._checked = False
        return step

    def add_steps(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Declare steps as data: name → options, with the function as ``call``. They are then in `app.steps`."""
        for name, options in table.items():
            self._declare(name, options, options.get("call", _nothing) if isinstance(options, Mapping) else _nothing)

    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, on_failure: OnFailure = "compensate", snapshot_every: int | None = None
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self, fn: Any = None, /, *, name: str | None = None, on_failure: OnFailure = "compensate",
        snapshot_every: int | None = None,
    ) -> Any:  # fmt: skip
        """Declare a task: a function whose steps are recorded, and which is resumed where it stopped.

        Meaning: a task that fails for good compensates what it did; with ``on_failure="hold"`` a person says whether. With
        `snapshot_every` a snapshot of its log is made each time so many steps were settled, so that a long task resumes
        sooner; deleting all snapshots changes nothing but speed.
        """
        if fn is None:
            return lambda f: self._declare_task(f, name, on_failure, snapshot_every)
        return self._declare_task(fn, name, on_failure, snapshot_every)

    def _adopt(self, task: Task[..., Any], faults: Iterable[str] = ()) -> None:
        """Take in a task that the library has made of somebody's code: an agent."""
        self._faults += faults
        if task.name in self._tasks:
            self._faults.append(f"task {task.name}: declared twice; give one of them another name")
        self._tasks[task.name] = task
        self._checked = False

    def _declare_task(
        self, fn: Callable[P, R], name: str | None, on_failure: OnFailure = "compensate", snapshot_every: int | None = None
    ) -> Task[P, R]:
        called = str(name or getattr(fn, "__name__", ""))
        self._faults += validate_task_signature(fn, called)
        if called.startswith("$"):
            self._faults.append(f"task {called}: names that begin with '$' are the library's own; choose another name")
        if snapshot_every is not None and (type(snapshot_every) is not int or snapshot_every < 1):
            self._faults.append(f"task {called}: snapshot_every is {snapshot_every!r}, and is a number of steps, 1 or more")
            snapshot_every = None
        if called in self._tasks:
            self._faults.append(f"task {called}: declared twice; give one of them another name")
        definition, _ = define(called, call=fn, effect=Effect.READ)  # a task's own faults were collected above
        if on_failure not in ("compensate", "hold"):
            self._faults.append(f"task {called}: on_failure is {on_failure!r}: say 'compensate' or 'hold'")
        plan = None if snapshot_every is None else Plan(snapshot_every)
        code = TaskCode(called, fn, is_async(fn), definition or broken_definition(called), plan, on_failure)
        task: Task[P, R] = Task(code, fn)
        self._tasks[called] = task
        self._checked = False
        return task

    def agent(
        self,
        name: str,
        *,
        choose: Callable[[State], Turn | Finish] | Callable[[State], Awaitable[Turn | Finish]],
        steps: Iterable[str | Step[..., Any]],
        bind: Mapping[str, Mapping[str, Any]] | None = None,
        on_failure: OnFailure = "compensate",
        snapshot_every: int | None = 20,
        max_choices: int | None = None,
        max_cost: int | float | None = None,
        cost: int | float | None = None,
        timeout: str | int | float | timedelta = "PT2M",
        attempts: int = 3,
        backoff: str | int | float | timedelta = "PT1S",
        concurrency: int = 8,
        last_turns: int = 20,
        last_bytes: int = 131_072,
        output_bytes: int = 4096,
    ) -> Agent:
        """Declare an agent: a task whose steps a model chooses; ``app.run(agent, "an-id", goal="…")`` starts or resumes it.

        Meaning: `choose(state)` gives a `Turn` or `Finish`, sync or async; each choice is recorded, and one that is
        recorded is never asked for again. It is called as a read: `timeout`, `attempts`, `backoff` hold for it, `cost` is
        the cost of one call. Before a choice beyond `max_choices` or `max_cost` the task parks with a case. `bind` gives
        steps params that the model neither sees nor sets, secrets above all.
        Shapes: `steps` are names or steps; the model is shown the `last_turns` (at most 50), `last_bytes` of them, and of
        one output `output_bytes`; up to `concurrency` calls of a turn run side by side.
        Raises: UsageError without pydantic; faults of the declaration come with the table's, at first use.
        """
        from ..declare_agent import declare_agent

        return declare_agent(
            cast("Doubtless", self), name, choose, steps, bind or {}, on_failure=on_failure, snapshot_every=snapshot_every,
            max_choices=max_choices, max_cost=max_cost, cost=cost, timeout=timeout, attempts=attempts, backoff=backoff,
            concurrency=concurrency, last_turns=last_turns, last_bytes=last_bytes, output_bytes=output_bytes,
        )  # fmt: skip

    def tools(
        self, steps: Iterable[str | Step[..., Any]], *, bind: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """The steps as a model is told of them: ``{"name", "description", "parameters": <JSON Schema>}`` of each.

        Meaning: without what no model may see or set: policy, injected and secret params, and those of `bind`.
        Raises: UsageError (pydantic is missing, an annotation has no JSON Schema), UnknownStep.
        """
        from ..toolbox import Toolbox

        return Toolbox([self._table[name_of_step(step)] for step in steps], bind or {}).schemas

    @property
    def steps(self) -> Mapping[str, Any]:
        """The declared steps by name, callable in task code: ``app.steps["match_orders"](day=…)``."""
        return self._steps

    @property
    def declared_tasks(self) -> Mapping[str, Task[..., Any]]:
        """The declared tasks by name."""
        return self._tasks

    @property
    def definitions(self) -> list[StepDefinition]:
        """The step table's definitions in the order of declaration."""
        return [self._table[name] for name in self._table]

    def check(self) -> list[str]:
        """All faults of the step table and the tasks, one line each; empty when there is none. Raises nothing."""
        faults = [*self._table.check(), *self._faults]
        for task in list(self._tasks.values()):
            faults += task.faults(self._table.get)
        return faults

    def on_case(self, hook: Callable[[Case], object]) -> Callable[[Case], object]:
        """Call `hook(case)` for each case that opens: at least once, after its commit; errors of it change nothing."""
        self._case_hooks.append(hook)
        return hook


def _nothing() -> None:
    """What a step without a function holds until the table is refused."""


def broken_definition(name: str) -> StepDefinition:
    """A stand-in for a step whose declaration has faults; the table raises them before anything runs."""
    definition, _ = define(name, call=_nothing, effect="read")
    assert definition is not None
    return definition


def name_of_step(step: object) -> str:
    """The name of a step that is given by itself or by its name."""
    name = step.name if isinstance(step, Step) else step
    if not isinstance(name, str):
        raise UsageError(f"{step!r} is no step", hint="say steps, or their names")
    return name
