"""Beside a task's straight road: branches side by side, sessions for somebody else's loop, changed code, forks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from ..branches import run_group
from ..canonical import encode, input_hash
from ..errors import UsageError
from ..events import Effect, Kind, TaskStatus, draft
from ..standing import SESSION
from ..steps import Step, branch_of
from .base import Face
from .run import check_task_id, check_wait

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..beyond import WritePolicy
    from ..effects import StepDefinition
    from ..forking import Forked
    from ..openings import Opening
    from ..sessions import Session

T = TypeVar("T")


class Aside(Face):
    """What is not one call after the other."""

    @overload
    def parallel(  # type: ignore[overload-overlap]  # a coroutine is what the branch's function gives back
        self, *branches: Callable[[], Coroutine[Any, Any, T]] | Awaitable[T]
    ) -> Awaitable[list[T]]: ...
    @overload
    def parallel(self, *branches: Callable[[], T]) -> list[T]: ...
    def parallel(self, *branches: Any) -> Any:
        """Run branches of a task side by side and give their results in their order.

        Meaning: each branch has places of its own, so that steps keep them however the branches get on; called in task
        code only. All branches are waited for, then the first failure in branch order is raised.
        Shapes: functions without arguments; in an async task also coroutines, and the result is awaited.
        Raises: OutsideTask; what a branch raised.
        """
        return run_group("app.parallel", branches, max(1, len(branches)))

    @overload
    def map(  # type: ignore[overload-overlap]
        self, fn: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any], *, concurrency: int = 8
    ) -> Awaitable[list[T]]: ...
    @overload
    def map(self, fn: Callable[[Any], T], items: Iterable[Any], *, concurrency: int = 8) -> list[T]: ...
    def map(self, fn: Callable[..., Any], items: Iterable[Any], *, concurrency: int = 8) -> Any:
        """Call a step, or a function that calls steps, with each item, so many at once; results in the items' order.

        Meaning: as `parallel`, a branch for each item. In an async task a sync step runs in a thread of its own, and the
        result is awaited.
        """
        return run_group("app.map", [branch_of(fn, item) for item in items], concurrency)

    def session(self, session_id: str, /, *, wait: bool | str = True) -> Session:
        """The session of this id, to be opened with ``with`` or ``async with``: for calls whose loop somebody else owns.

        Meaning: one opening at a time; it is recorded as a task when it is opened first. `wait`: whether a call, and the
        opening, waits through times to look or call again (True, False, or how long each may); else it raises TaskWaiting.
        Raises: when it is opened: TaskBusy (it is open elsewhere), UsageError (it has ended), StepTableError, StoreError.
        """
        from ..sessions import Session

        check_wait(wait)
        check_task_id(session_id)
        return Session(cast("Doubtless", self), session_id, wait=wait)

    def _open_session(self, session_id: str) -> Opening:
        """Claim a session for its host; a new one is recorded first."""
        from ..openings import Opening

        runtime = self.runtime
        head = runtime.store.head(session_id)
        if head is None:
            accepted = draft(
                session_id, Kind.TASK_ACCEPTED, runtime.store.now(), step_name=SESSION, status=TaskStatus.READY,
                input_hash=input_hash(runtime.namespace, encode({})), data={"session": True},
            )  # fmt: skip
            head = runtime.store.accept(accepted) or self._known(session_id)
        if head.task_name != SESSION:
            raise UsageError(
                f"task {session_id} exists and is no session but a task {head.task_name}; nothing was written",
                hint="one id is one task: give the session another id",
            )
        opening = self._runs.claim(session_id, limit=None)
        if opening is None:
            raise UsageError(f"session {session_id} has ended; nothing was written", hint=f"doubtless show {session_id}")
        assert isinstance(opening, Opening)
        opening.by_host = True
        return opening

    def _step_named(self, step: Any) -> StepDefinition:
        """The definition of a step of this app, given by itself or by its name. Raises UnknownStep, UsageError."""
        if isinstance(step, str):
            return self._table[step]
        if not isinstance(step, Step) or self._steps.get(step.name) is not step:
            raise UsageError(f"{step!r} is no step of this app; nothing was written", hint="declare it with @app.step")
        return step.definition

    def changed(self, name: str) -> bool:
        """Say whether task code goes a new way here: True for a task that comes here first, False for one that went past.

        Meaning: a mark in changed code, in task code alone: ``if app.changed("two-approvals"): …`` else the old way. Where
        the log holds nothing at this place or behind it, the mark is recorded and is True, now and on each replay; where it
        holds something else, the task has gone past without the mark: False, and no place is taken. In a loop each turn is
        asked for itself. docs/change.md says how to take a mark out again.
        Durable: a recorded mark, at return.
        Raises: OutsideTask, UsageError, before anything is written.
        """
        from ..marks import changed

        return changed(name)

    def fork(
        self,
        original: str,
        /,
        *,
        at: int,
        task_id: str | None = None,
        idem_write: WritePolicy = "ask",
        non_idem_write: WritePolicy = "ask",
    ) -> Forked:
        """Make a new task that goes another way from a step of this one; the original and its log stay as they are.

        Meaning: the code runs from the top; steps with `step_seq` below `at` are answered from the original's log, without
        any obligation to undo them. What a person or an event answered is not taken over: it is asked anew. Keys are the
        new task's. `idem_write`, `non_idem_write`: what a write does while effects of the original stand beyond `at`: ``ask``
        opens a question before it; ``reuse`` takes over what stands for the same step and params at the same place, and
        asks where nothing fits; ``run`` sends it again, a second effect, on purpose.
        Shapes: the new task's `task_id` is ``"<original>@<at>"`` unless given; the same call again is the same fork.
        `stands` lists what stands beyond `at`. `resume` runs it.
        Durable: the fork and all that it takes over, in one transaction, at return.
        Raises: UsageError when a step at or before `at` is in doubt or undone, or no such step is there; TaskBusy while the
        original is being run; UnknownTask; InputDiffers when `task_id` is another task's.
        """
        from ..forking import default_id, make_fork

        self._validate()
        head = self._known(original)
        chosen = default_id(original, at) if task_id is None else task_id
        check_task_id(chosen)
        return make_fork(self.runtime, head, at, chosen, {Effect.IDEM_WRITE: idem_write, Effect.NON_IDEM_WRITE: non_idem_write})
