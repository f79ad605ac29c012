"""The callables that decorators give back: a step, called in task code, and a task, given to `app.run`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from .calling import call_step
from .calls import current
from .effects import StepDefinition
from .errors import UsageError
from .passes import Scope

if TYPE_CHECKING:
    from .conclusion import TaskCode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Step(Generic[P, R]):
    """A declared step. Called in task code it takes its place, is answered from the log, or runs.

    Meaning: `step(…)` runs it (an async step gives an awaitable); `await step.acall(…)` runs a sync step from an
    async task without blocking its event loop; `step.fn` is the bare function, for tests of the function itself.
    Raises: StepFailed when it failed for good; OutsideTask, UsageError before anything is written.
    """

    def __init__(self, definition: StepDefinition, fn: Callable[P, R]) -> None:
        self.definition = definition
        self.fn = fn
        self.__name__ = definition.name
        self.__doc__ = fn.__doc__

    @property
    def name(self) -> str:
        """The step's name in the table and in the log."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = call_step(self.definition, args, kwargs)
        return result

    @overload
    def acall(self: Step[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    @overload
    def acall(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step from an async task; a sync function runs in a thread of its own."""
        scope = current.get()
        if isinstance(scope, Scope) and scope.run.loop is None:
            raise UsageError(f"{self.name}.acall() is for async tasks", hint=f"call {self.name}(…) itself in a sync task")
        return call_step(self.definition, args, kwargs, threaded=True)

    def __repr__(self) -> str:
        return f"<step {self.name}: {self.definition.effect}>"


def branch_of(fn: Callable[..., Any], item: Any) -> Callable[[], Any]:
    """A branch that calls `fn` with the item; a sync step in an async task without blocking its event loop."""
    scope = current.get()
    if isinstance(fn, Step) and not fn.definition.is_async and isinstance(scope, Scope) and scope.run.loop is not None:
        return partial(fn.acall, item)
    return partial(fn, item)


class Task(Generic[P, R]):
    """A declared task: one durable execution of its function per id. Give it to `app.run` or `app.start`.

    Meaning: called inside a task it is a child task, whose id is its parent's and its place: it is started at most once,
    met again when its parent is resumed, and gives its output; `acall` does so in an async task without blocking its loop.
    Raises: StepFailed of kind ``child`` when it ended without an output; UsageError when called outside a task.
    """

    def __init__(self, code: TaskCode, fn: Callable[P, R]) -> None:
        self.code = code
        self.fn = fn
        self.__name__ = code.name
        self.__doc__ = fn.__doc__

    @property
    def name(self) -> str:
        """The task's name in the log."""
        return self.code.name

    def faults(self, find: Callable[[str], StepDefinition | None]) -> list[str]:
        """What is wrong with it in view of the whole table: of an agent, its steps and its model."""
        return []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._child(args, kwargs)
        return result

    @overload
    def acall(self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    @overload
    def acall(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Run this task as a child of an async task; a sync one in threads of its own, without blocking the event loop."""
        scope = current.get()
        if isinstance(scope, Scope) and scope.run.loop is None:
            raise UsageError(f"{self.name}.acall() is for async tasks", hint=f"call {self.name}(…) itself in a sync task")
        return self._child(args, kwargs, threaded=True)

    def _child(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, threaded: bool = False) -> Any:
        scope = current.get()
        if not isinstance(scope, Scope):
            where = "directly" if scope is None else "inside a step"
            raise UsageError(
                f"task {self.name} was called {where}; nothing was written",
                hint=f'app.run({self.name}, "an-id", …) starts or resumes it; {self.name}.fn is the bare function',
            )
        call_child = scope.run.runtime.call_child
        assert call_child is not None
        return call_child(scope, self.code, args, kwargs, threaded=threaded)

    def __repr__(self) -> str:
        return f"<task {self.name}>"
