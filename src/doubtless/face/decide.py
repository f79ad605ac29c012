"""What people say: answers, events from outside, undoing, cancelling, freezing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnknownStep, UsageError
from ..events import STORE_TASK, TERMINAL, Kind, TaskStatus, draft
from ..steps import Step
from .base import Face
from .run import check_wait

if TYPE_CHECKING:
    from ..answers import AnyAnswer
    from ..inbox import Case
    from ..sending import Received


class Deciding(Face):
    """What is said to an app's tasks from outside."""

    def settle(self, case_id: str, answer: AnyAnswer, *, by: str, why: str, shown: str) -> Case:
        """Take a person's answer to a case, once; durable at return. Wakes the task; a worker or `resume` goes on.

        Shapes: `shown` is the case's `hash` (8 characters of it do): the answer is bound to what was shown.
        Raises: AlreadySettled (by whom, when), CaseChanged (look again), AnswerRefused, UnknownCase.
        """
        from ..answering import settle

        case = settle(self.reading, case_id, answer, by=by, why=why, shown=shown, authorize=self._authorize)
        self._woken((case.task_id,))
        return case

    def send_event(self, task_id: str, name: str, payload: Any = None, *, event_id: str | None = None) -> Received:
        """Tell a task something from outside: what its ``app.wait_for(name)`` waits for, now or later. Durable at return.

        Meaning: an event answers the first open wait of its name; where none is open it is kept, and the next wait of
        that name takes it: in the order of the log, each once. The same `event_id` again changes nothing and returns
        the same, also after the task has ended; without one each call is an event of its own.
        Raises: Late (the wait has expired), EventRefused (the task has ended; the id is another event's; the payload
        does not fit), UnknownTask; then nothing is written.
        """
        from ..sending import receive

        received = receive(self.reading, task_id, name, payload, self._randomness(16).hex() if event_id is None else event_id)
        self._woken((task_id,))
        return received

    def compensate(self, task_id: str, *, by: str, why: str, wait: bool | str = True) -> str:
        """Undo what a task that is done did, the latest first; its status then: ``compensated``.

        Meaning: done is final but for this wish: the task goes on to `compensating` and to `compensated`, or to `failed`
        where a person lets something stand. Its code is not run again. Called again it goes on where it stopped.
        Durable: the wish is recorded before anything is undone; a crash loses neither it nor what was undone.
        Raises: UsageError when the task is not done or has nothing to undo; TaskFailed when something stands; else as `run`.
        """
        from ..orders import order_undoing, see_through

        check_wait(wait)
        order_undoing(self.runtime, self._known(task_id), by, why)
        try:
            status = see_through(self._runs, self.store, task_id, wait)
        finally:
            self._pass_on(task_id)
        ended = self._runs.ended(task_id)
        if ended is not None and status != TaskStatus.COMPENSATED:
            self._runs.result(ended)
        return status

    def cancel(self, task_id: str, *, by: str, why: str, wait: bool | str = True) -> str:
        """Cancel a task: nothing new begins, what runs is settled first, then what it did is undone; its status then.

        Meaning: its children are cancelled first. Another owner sees it before its next step; a task that nobody owns comes
        to its end here: `cancelled`, or `compensated` where it had effects to undo. The first end wins: of a task that has
        ended the status is given, and nothing happens.
        Durable: the wish is recorded when this returns, or raises what the task stands before.
        Raises: UsageError, UnknownTask; else as `run`: NeedsHuman where a person has to settle something first.
        """
        from ..orders import order_cancelling, see_through

        check_wait(wait)
        head = self._known(task_id)
        if head.status in TERMINAL:
            return head.status
        self._runs.tell(order_cancelling(self.runtime, task_id, by, why))
        self._runs.wake_workers()
        try:
            return see_through(self._runs, self.store, task_id, wait)
        finally:
            self._pass_on(task_id)

    def freeze(self, step: str | Step[..., Any] | None = None, *, why: str, by: str = "") -> None:
        """Stop new attempts of a step's writes now (None: of all); look-backs, reads and deadlines go on. Durable."""
        self._store_event(Kind.STORE_FROZEN, step, {"why": why, "by": by})

    def thaw(self, step: str | Step[..., Any] | None = None, *, why: str = "", by: str = "") -> None:
        """Let frozen writes go on. Durable; tasks that stood before it go on when they are resumed."""
        from ..advancing import woken_by_thaw

        before = self.store.frozen()
        self._store_event(Kind.STORE_THAWED, step, {"why": why, "by": by})
        self._woken(woken_by_thaw(self.store, before) if self._wake_hooks else ())

    def _store_event(self, kind: Kind, step: str | Step[..., Any] | None, data: dict[str, Any]) -> None:
        from ..outcomes import unstorable

        for key, text in data.items():
            if (fault := unstorable(text)) is not None:
                raise UsageError(f"{key} {fault}; nothing was written")
        name = step.name if isinstance(step, Step) else step
        if name is not None and self._steps and name not in self._steps:
            raise UnknownStep(f"there is no step {name}", hint=f"there are: {', '.join(sorted(self._steps))}", step=name)
        store = self.store
        if kind == Kind.STORE_THAWED and (name or "*") not in store.frozen():
            raise UsageError(f"{name or 'every step'} is not frozen", hint=f"frozen are: {', '.join(store.frozen()) or 'none'}")
        store.add(STORE_TASK, [draft(STORE_TASK, kind, store.now(), step_name=name or "*", data=data)])
