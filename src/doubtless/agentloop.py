"""The loop of an agent: the choices and the calls of its turns, from the log as far as it goes, then from its model.

Written once as a generator (`turns`); `code_of` and `async_code_of` are its sync and async drivers.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from json import loads
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .agentstate import EMPTY, AgentState, CallResult, TurnRecord, fold, from_json, to_json
from .agentview import State, Viewer
from .blobs import show_ref
from .branches import run_group
from .calling import adrive_place, drive_place
from .calls import Input, current
from .choices import CHOOSE, Refuse, recorded
from .effects import StepDefinition
from .errors import BudgetUsedUp, Diverged, Refused, StepFailed, step_failed
from .events import Effect, StepStatus, dump
from .inputs import prepare
from .log import Settled, TaskLog
from .outputs import open_output_case, replayed
from .passes import Pass, Scope
from .repeats import REPEATS, STANDING
from .toolbox import NotAllowed, Toolbox

if TYPE_CHECKING:
    from .agents import Agent

# ---------------------------------------------------------------- the choice


class Asking(NamedTuple):
    """What a choice is made from, and what refuses a call of it."""

    state: State
    refuse: Refuse


_asking: contextvars.ContextVar[Asking] = contextvars.ContextVar("doubtless_asking")
"""For the `$choose` step that runs in this context: the state is no param of it, so that the log grows linearly."""


def asked(choose: Callable[[State], Any]) -> Callable[..., dict[str, Any]]:
    def ask(turn: int) -> dict[str, Any]:
        asking = _asking.get()
        answer = choose(asking.state)
        if hasattr(answer, "__await__") and hasattr(answer, "close"):
            answer.close()
        return recorded(answer, asking.refuse)

    return ask


def asked_async(choose: Callable[[State], Any]) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
    async def ask(turn: int) -> dict[str, Any]:
        asking = _asking.get()
        return recorded(await choose(asking.state), asking.refuse)

    return ask


# ---------------------------------------------------------------- the loop


class Ask(NamedTuple):
    """Ask the driver to make this choice at this place."""

    path: str
    given: Input
    asking: Asking


class Take(NamedTuple):
    """Ask the driver to take these calls of a turn side by side; None of a call that is refused."""

    calls: Sequence[Mapping[str, Any] | None]


def turns(agent: Agent, scope: Scope, goal: Any) -> Generator[Ask | Take, None, Any]:
    """The agent's turns, from the log as far as it goes, then asked of the model; returns what it finishes with."""
    run = scope.run
    log, runtime, definition = run.log, run.runtime, agent.choice
    log.remember = True
    toolbox = agent.toolbox(runtime.find)
    viewer = Viewer(runtime.content, run.task_id, goal, agent.settings.bounds, lambda: toolbox.schemas)
    state = EMPTY if run.restored is None else from_json(loads(run.restored.state))
    while True:
        next_path = f"{scope.prefix}{scope.count + 1}"
        if next_path not in log.settled:
            check_budget(agent, state, log.tries.get(next_path, 0))
        given = prepare(runtime, definition, {"turn": state.choices + 1})
        path = scope.place(CHOOSE)
        settled = run.enter(definition, path, given)
        if settled is None:
            yield Ask(path, given, Asking(viewer.show(state), partial(_refuse, run, toolbox, state)))
            settled = log.settled.pop(path)
        choice = replayed(run, definition, path, settled)
        if "finish" in choice:
            return choice["finish"]
        cost = (definition.cost or 0) * (log.tries.get(path, 0) + 1)
        record = TurnRecord(str(show_ref(settled.output_ref)), cost=cost)
        if choice["calls"]:
            record = yield from _calls(scope, choice["calls"], record)
        state = fold(state, record)
        run.snapshot_state(partial(_text_of, state))


def _text_of(state: AgentState) -> str:
    return dump(to_json(state))


def _calls(scope: Scope, calls: Sequence[Mapping[str, Any]], record: TurnRecord) -> Generator[Take, None, TurnRecord]:
    """The calls of one turn: each a branch of the turn's group, also the only one, and also one that is refused."""
    run, log = scope.run, scope.run.log
    group = f"{scope.prefix}{scope.count + 1}"
    paths = [f"{group}.{number}.1" for number in range(1, len(calls) + 1)]
    accepted = {path: call for path, call in zip(paths, calls, strict=True) if "refused" not in call}
    if all(path in log.settled for path in accepted):
        scope.place("a turn")
        run.enter_group(group)
    else:
        log.turns.add(group)
        yield Take([None if "refused" in call else call for call in calls])
        log.turns.discard(group)
    results, cost, standing = list[CallResult](), record.cost, list[tuple[str, str]]()
    for path, call in zip(paths, calls, strict=True):
        if path not in accepted:
            results.append(CallResult("refused"))
            continue
        settled = log.settled.pop(path)
        if settled.name != call["name"]:
            _diverge(run, path, settled.name, call["name"], "the log holds another step than the choice names")
        result = result_of(run, path, settled)
        results.append(result)
        cost += spent(log, run.runtime.find(settled.name), path, settled)
        if result.status == "uncertain" and settled.input_hash is not None:
            standing.append((settled.name, settled.input_hash.hex()))
    return record._replace(results=tuple(results), cost=cost, standing=tuple(standing))


def _refuse(run: Pass, toolbox: Toolbox, state: AgentState, name: str, params: Mapping[str, Any]) -> str | None:
    """Why this call may not run, for the model; None: it may."""
    try:
        given = toolbox.given(run.runtime, name, params)
    except NotAllowed as why:
        return str(why)
    if (name, given.digest.hex()) in state.standing:
        return f"an earlier call of {name} with these params {STANDING}; it is not sent again"
    return None


def result_of(run: Pass, path: str, settled: Settled) -> CallResult:
    """What a settled step is to the model. Raises Parking while a person has to give its output."""
    error = loads(settled.error or "{}")
    kind = error.get("kind", "")
    said = ": ".join(str(part) for part in (kind, error.get("detail") or error.get("code")) if part)[:500]
    if settled.status in (StepStatus.DONE, StepStatus.COMPENSATED):
        if settled.error is None:
            return CallResult("done", show_ref(settled.output_ref))
        if kind != "abandoned":
            raise open_output_case(run, path)
        return CallResult("done", None, "it happened; its output is not available")
    if "holder" in error:  # a business key: another step has done it, or may have
        refused = step_failed(error, step=settled.name, path=path)
        return CallResult("refused", None, refused.text_for_model if isinstance(refused, Refused) else said)
    if REPEATS in error:
        return CallResult("refused", None, error["detail"])
    if settled.status == StepStatus.NOT_APPLIED:
        return CallResult("not_applied", None, f"it had no effect ({said})")
    if kind == "abandoned":
        return CallResult("uncertain", None, f"it {STANDING}")
    return CallResult("failed", None, f"it gave no answer ({said})")


def spent(log: TaskLog, definition: StepDefinition | None, path: str, settled: Settled) -> int | float:
    """What a step's calls cost: of a read each call that the log counts, of a write one."""
    if definition is None or not definition.cost:
        return 0
    if definition.effect != Effect.READ:
        return definition.cost
    return definition.cost * (log.tries.get(path, 0) + (settled.status == StepStatus.DONE))


def check_budget(agent: Agent, state: AgentState, tried: int) -> None:
    """Before a choice that is not recorded: raise BudgetUsedUp, which parks the task with a case."""
    settings, cost = agent.settings, state.cost + (agent.choice.cost or 0) * tried
    if settings.max_choices is not None and state.choices >= settings.max_choices:
        _used_up(agent, f"has made {state.choices} choices, its max_choices", "max_choices")
    if settings.max_cost is not None and cost >= settings.max_cost:
        _used_up(agent, f"has spent {cost:g}, of its max_cost {settings.max_cost:g}", "max_cost")


def _used_up(agent: Agent, what: str, option: str) -> NoReturn:
    raise BudgetUsedUp(
        f"agent {agent.name} {what}; its model was not asked again, and what it did stands",
        hint=f"raise {option} in app.agent and answer retry, or answer fail",
    )


def _diverge(run: Pass, path: str, logged: Any, asked: Any, what: str) -> NoReturn:
    message = f"task {run.task_id}: at place {path}: {what}; nothing was sent"
    raise run.diverged(Diverged(message, path=path, field="step", logged=logged, asked=asked))


# ---------------------------------------------------------------- the two drivers


def code_of(agent: Agent) -> Callable[..., Any]:
    def code(goal: Any) -> Any:
        scope = current.get()
        assert isinstance(scope, Scope)
        loop = turns(agent, scope, goal)
        while True:
            try:
                request = next(loop)
            except StopIteration as end:
                return end.value
            if isinstance(request, Ask):
                _asking.set(request.asking)
                drive_place(scope, agent.choice, request.path, request.given)
            else:
                run_group(agent.name, [partial(_take, agent, call) for call in request.calls], agent.settings.concurrency)

    return code


def async_code_of(agent: Agent) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def code(goal: Any) -> Any:
        scope = current.get()
        assert isinstance(scope, Scope)
        loop = turns(agent, scope, goal)
        while True:
            try:
                request = next(loop)
            except StopIteration as end:
                return end.value
            if isinstance(request, Ask):
                _asking.set(request.asking)
                await adrive_place(scope.run, agent.choice, request.path, request.given)
            else:
                await run_group(agent.name, [partial(_atake, agent, call) for call in request.calls], agent.settings.concurrency)

    return code


def _take(agent: Agent, call: Mapping[str, Any] | None) -> None:
    """One call in its branch; a step that failed for good is a fact for the model, and fails no task."""
    scope = current.get()
    assert isinstance(scope, Scope)
    placed = _placed(agent, scope, call)
    if placed is not None:
        try:
            drive_place(scope, *placed)
        except StepFailed:
            pass


async def _atake(agent: Agent, call: Mapping[str, Any] | None) -> None:
    scope = current.get()
    assert isinstance(scope, Scope)
    placed = _placed(agent, scope, call)
    if placed is not None:
        try:
            await adrive_place(scope.run, *placed)
        except StepFailed:
            pass


def _placed(agent: Agent, scope: Scope, call: Mapping[str, Any] | None) -> tuple[StepDefinition, str, Input] | None:
    """The step to run, its place and its params; None where nothing is left to do.

    What is begun goes on by name with its stored params; what was only chosen has to be the agent's today.
    """
    if call is None:
        return None
    run, name = scope.run, call["name"]
    path = scope.place(name)
    if path in run.log.settled:
        return None
    definition = run.runtime.find(name)
    record = run.log.record(path) if path in run.log.open else None
    if record is not None and record.name != name:
        _diverge(run, path, record.name, name, "the log holds another step than the choice names")
    if definition is not None and record is not None and record.input_ref is not None and record.input_hash is not None:
        return definition, path, Input(run.runtime.content.get(record.input_ref), "", record.input_hash)
    try:
        given = agent.toolbox(run.runtime.find).given(run.runtime, name, call["params"])
    except NotAllowed as why:
        _diverge(run, path, name, None, f"the model chose step {name}, which this release cannot call ({why})")
    assert definition is not None
    known = run.enter(definition, path, given)  # of a fork: what another task did beyond it
    if known is not None:
        run.log.settled[path] = known
        return None
    return definition, path, given
