"""What `step(…)` does in task code: it takes a place, and is answered from the log or run there."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from .calls import Input, current
from .drivers import drive_step
from .effects import StepDefinition
from .errors import OutsideTask, UsageError
from .inputs import prepare
from .outputs import replayed
from .passes import Pass, Scope


def call_step(definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], *, threaded: bool = False) -> Any:
    """What `step(…)` does in task code: bind, take a place, answer from the log or run the step."""
    scope = current.get()
    if not isinstance(scope, Scope):
        raise outside(definition.name, inside=scope is not None)
    this = scope.run
    if definition.is_async and this.loop is None:
        raise UsageError(
            f"step {definition.name} is async and task {this.task_id} is not; nothing was written",
            hint="declare the task with async def, or the step without",
        )
    given = prepare(this.runtime, definition, definition.binder.bind(args, kwargs))
    path = scope.place(definition.name)
    if definition.is_async or threaded:
        this.undriven[path] = definition.name
        return adrive_place(this, definition, path, given, met=False)
    settled = this.log.settled.pop(path, None)  # as `enter` does, without a frame more: this is what a replay is made of
    if settled is None or settled[1] != given.digest or settled[0] != definition.name:
        settled = this.meet(definition, path, given, settled)
        if settled is None:
            return drive_place(scope, definition, path, given)
    return replayed(this, definition, path, settled)


def drive_place(scope: Scope, definition: StepDefinition, path: str, given: Input) -> Any:
    """Run the step at a place that was given in this scope, in its thread."""
    this = scope.run
    if not scope.prefix:
        return drive_step(this, definition, path, given)
    with this.lock:  # once the pass is given up no branch begins: the next pass begins when those that had begun are through
        this.check()
        this.driving.add(path)  # another branch that meets it in doubt waits for what this one makes of it
    try:
        return drive_step(this, definition, path, given)
    finally:
        this.driving.discard(path)


def adrive_place(this: Pass, definition: StepDefinition, path: str, given: Input, *, met: bool = True) -> Awaitable[Any]:
    """Run the step at a place that was given, in the asyncio.Task of its scope (`adrivers.adrive_step`)."""
    assert this.adrive_step is not None
    return this.adrive_step(this, definition, path, given, met)


def outside(name: str, *, inside: bool) -> OutsideTask:
    """The error for a step called where no task code runs."""
    if inside:
        return OutsideTask(
            f"step {name} was called inside another step; nothing was written",
            hint="call it from the task, or use step.fn for the bare function",
        )
    return OutsideTask(
        f"step {name} was called outside a task; nothing was written",
        hint="call it from a function declared with @app.task, or use step.fn for the bare function",
    )
