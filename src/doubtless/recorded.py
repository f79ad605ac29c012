"""The library's own steps: what task code would otherwise get from outside, recorded, so that a replay sees the same.

Each is an ordinary `read` step with a definition of its own whose name begins with ``$``: it takes a place, is one row of
the log, and is answered from there ever after. `own_step` makes such a definition, `call_own` calls it in task code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from .calling import call_step
from .calls import Frame, Runtime, current
from .declaring import define
from .effects import StepDefinition
from .errors import OutsideTask
from .events import Effect
from .passes import Scope
from .questions import moment

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


def own_step(name: str, call: Callable[..., Any], *, returns: Any = None, **options: Any) -> StepDefinition:
    """Make the definition of one of the library's own steps, a `read` that is in no table.

    Shapes: `name` begins with ``$`` (no user's step does); `returns` is the type that its output is restored to, given
    here and not as an annotation because it is often known only at run time; `options` are those of `app.step`.
    """
    assert name.startswith("$")
    call.__annotations__ = {} if returns is None else {"return": returns}
    # independent: it asks nobody, and on an event loop, which it would block, it cannot wait until a doubt is settled there
    definition, faults = define(name, call=call, effect=Effect.READ, independent=True, **options)
    assert definition is not None and not faults, faults
    return definition


def call_own(definition: StepDefinition, said: str, **params: Any) -> Any:
    """Call one of the library's own steps in task code; `said` is how a user writes the call, for the refusal elsewhere.

    Shapes: its output; of an async `call` an awaitable of it, as for every step.
    Raises: OutsideTask, before anything is written.
    """
    in_task_code(said)
    return call_step(definition, (), params)


def in_task_code(said: str) -> Scope:
    """The scope whose code is running. Raises OutsideTask where none is: in a step, and outside of tasks."""
    scope = current.get()
    if isinstance(scope, Scope):
        return scope
    where = "outside a task" if scope is None else "inside a step"
    raise OutsideTask(
        f"{said} was called {where}; nothing was written", hint="call it in a task's own code: there it is recorded"
    )


def runtime_here() -> Runtime:
    """The parts that the running step works with."""
    frame = current.get()
    assert isinstance(frame, Frame)
    return frame.run.runtime


# ---------------------------------------------------------------- now, uuid, random


@cache
def _now() -> StepDefinition:
    from datetime import datetime

    return own_step("$now", lambda: moment(runtime_here().store.now().wall), returns=datetime)


@cache
def _uuid() -> StepDefinition:
    from uuid import UUID

    return own_step("$uuid", lambda: UUID(bytes=runtime_here().randomness(16), version=4), returns=UUID)


@cache
def _random() -> StepDefinition:
    return own_step("$random", lambda: (int.from_bytes(runtime_here().randomness(7)) >> 3) / 2**53, returns=float)


class Recorded:
    """Time, ids and random numbers for task code, recorded.

    Meaning: the same in sync and async tasks, without `await`; one durable row each.
    """

    def now(self) -> datetime:
        """Give the store's time, recorded: the same on each replay.

        Shapes: an aware datetime in UTC, with microseconds. In a step take the time yourself: its output is recorded.
        Raises: OutsideTask, before anything is written.
        """
        time: datetime = call_own(_now(), "app.now()")
        return time

    def uuid(self) -> UUID:
        """Make a random UUID (version 4), recorded: the same on each replay. Raises OutsideTask."""
        made: UUID = call_own(_uuid(), "app.uuid()")
        return made

    def random(self) -> float:
        """Draw a random number from 0 up to but not including 1, recorded: the same on each replay. Raises OutsideTask."""
        drawn: float = call_own(_random(), "app.random()")
        return drawn
