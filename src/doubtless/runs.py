"""Running tasks: claim, make passes, conclude, and say to the caller how it stands."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from . import canonical, host
from .beyond import fork_of
from .effects import Deadline
from .endings import Ending
from .errors import (
    DoesNotFit,
    DoubtlessError,
    NeedsHuman,
    Parking,
    StoreDamaged,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UnknownTask,
)
from .events import TERMINAL, Event, Instant, Kind, TaskStatus, ended_words
from .latenews import take_in
from .log import TaskLog
from .standing import SESSION, is_idle
from .steps import Task
from .store.base import Claim, Head
from .store.beginning import hand_back
from .tasks import GOODBYE, TaskRun, wait_limit

if TYPE_CHECKING:
    from .app import Doubtless
    from .calls import Runtime
    from .worker import Worker


_INTERRUPTED = Ending(error=Parking("interrupted"))
"""How a run ended of which nothing better is known: it is parked, never taken for done."""


class Runs:
    """The runs of one app in this process."""

    def __init__(self, app: Doubtless) -> None:
        self.app = app
        self.workers: list[Worker] = []
        self._active: set[TaskRun] = set()
        self._owed: dict[str, Callable[[], None]] = {}
        self._lock = host.rlock()  # a signal's handler may drain while this very thread holds it

    def wake_workers(self) -> None:
        """Let this process's workers look for work now."""
        for worker in self.workers:
            worker.wake()

    def drain(self, only: Collection[str] | None = None) -> None:
        """Let every run, or the runs of these tasks, park at its next step."""
        with self._lock:
            for run in self._active:
                if only is None or run.task_id.partition("/")[0] in only:
                    run.drain()

    # ------------------------------------------------------------ one run

    def run(self, task_id: str, wait: bool | str, *, one_of_many: bool = False, begun: Claim | None = None) -> Any:
        """Claim the task, run it in threads of its own, and return its output or raise how it stands.

        `one_of_many`: what its code raises to end the program (`SystemExit`) is said as how it stands; only what
        interrupts this call itself is raised on. `begun`: the claim that has begun the task.
        """
        ended = None if begun is not None else self.ended(task_id)
        if ended is not None:
            return self.result(ended)
        run = self.claim(task_id, limit=wait_limit(self.app.store.now(), wait), granted=begun)
        if run is None:
            return self.run(task_id, wait, one_of_many=one_of_many)
        ending = self.carry(run)
        if one_of_many and run.interrupted is None:
            ending = Ending()
        return self.outcome(run, ending)

    async def arun(self, task_id: str, wait: bool | str, *, begun: Claim | None = None) -> Any:
        """The same on the event loop; a sync task's supervisor runs in a thread."""
        ended = None if begun is not None else self.ended(task_id)
        if ended is not None:
            return self.result(ended)
        run = self.claim(task_id, limit=wait_limit(self.app.store.now(), wait), granted=begun)
        if run is None:
            return await self.arun(task_id, wait)
        return self.outcome(run, await self.acarry(run))

    def carry(self, run: TaskRun) -> Ending:
        """Make passes and conclude, until that is all: a task that fails goes on to undo what it did."""
        while True:
            ending: Ending | None = None
            try:
                ending = run.supervise()
            finally:
                goes_on = self.leave(run, ending)
            if not goes_on:
                return ending

    def close(self, run: TaskRun, ending: Ending) -> None:
        """Conclude a run whose passes somebody else has made; what then follows, a cancelled session's end, is done here."""
        if self.leave(run, ending):
            self.carry(run)

    def tell(self, task_ids: Collection[str]) -> None:
        """Let the runs of these tasks in this process see what was added to their logs."""
        with self._lock:
            active = [run for run in self._active if run.task_id in task_ids]
        for run in active:
            run.log.refresh()

    def give_back(self, claim: Claim) -> None:
        """Stop being the owner of a task that was claimed and is not run after all."""
        self._give_back(claim.head.task_id, lambda: hand_back(self.app.store, claim))

    async def acarry(self, run: TaskRun) -> Ending:
        """The same on the event loop; a sync task's supervisor runs in a thread."""
        while True:
            ending: Ending | None = None
            try:
                if run.code.is_async:
                    ending = await run.awork(run.last)
                    ending = await run.aend(ending)
                else:
                    ending = await supervised(run)
            finally:
                goes_on = self.leave(run, ending)
            if not goes_on:
                return ending
            run.next_pass()

    def claim(self, task_id: str, *, limit: int | None, granted: Claim | None = None) -> TaskRun | None:
        """Become the task's owner, take in what was spilled, and make ready for a pass. Raises TaskBusy.

        `limit`: until when the run waits in place (`wait_limit`). `granted`: the claim, where this process has it already;
        what it does not lead to is given back.
        None: it has ended since it was looked at. Terminal events are final (I3): its code is not run again.
        """
        runtime = self.app.runtime
        store = runtime.store
        head = store.head(task_id) if granted is None else granted.head
        assert head is not None
        task = self.app.declared_tasks.get(head.task_name)
        if task is None and head.task_name != SESSION:
            raise UnknownTask(
                f"task {task_id} needs the code of {head.task_name}, which is not in this app",
                hint=f"declared here are: {', '.join(sorted(self.app.declared_tasks)) or 'none'}",
                task=task_id,
            )
        if granted is None:
            self._pay_back(task_id)
        claim = granted or store.claim(task_id)
        try:
            self.absorb(runtime, task_id)  # also of a task that begins: a first life of it may have been lost with its log
            if claim.head.status in TERMINAL:
                store.release(task_id, claim.epoch)
                return None
            run = self.opening(runtime, claim, limit) if task is None else self.task_run(runtime, claim, task, limit)
            run.owes = self._give_back
            if not run.code.is_async:  # whose calls its supervisor takes away
                timeouts = [d.timeout_us for d in self.app.definitions]
                run.shortest_timeout = max(0.01, min(timeouts, default=30_000_000) / 1e6)
        except BaseException:
            self._give_back(task_id, lambda: hand_back(store, claim))
            raise
        with self._lock:
            self._active.add(run)
        return run

    def task_run(self, runtime: Runtime, claim: Claim, task: Task[..., Any], limit: int | None) -> TaskRun:
        """A claim of a task whose code this app has."""
        log = TaskLog(runtime.store, claim, owner=claim.head.owner, plan=task.code.plan)
        accepted = runtime.store.first(log.task_id) if claim.begun is None else claim.begun.accepted
        details = accepted.details
        if (undo_by := details.get("undo_by")) is not None:
            log.undo_by = Deadline(Instant(*undo_by[:2]), undo_by[2])
        params = runtime.content.get(accepted.input_ref) if accepted.input_ref is not None else "{}"
        run = TaskRun(runtime, log, task.code, params, wait_limit=limit)
        run.secret = frozenset(details.get("secret", ()))
        run.fork = fork_of(runtime.store, log.task_id, accepted)
        return run

    def opening(self, runtime: Runtime, claim: Claim, limit: int | None) -> TaskRun:
        """A claim of a session: there is no code of it to run, its doubts are settled."""
        from .openings import Opening, session_code

        log = TaskLog(runtime.store, claim, owner=claim.head.owner)
        return Opening(runtime, log, session_code(), "{}", wait_limit=limit)

    def absorb(self, runtime: Runtime, task_id: str) -> None:
        """Results that could not be recorded when they came, spilled or kept in memory, become evidence now."""
        for name, event in runtime.store.spilled(task_id):
            take_in(runtime, event)
            runtime.store.drop_spilled(name)
        kept = runtime.kept.get(task_id, [])
        while kept:
            take_in(runtime, kept[0])  # first: what the store still refuses stays kept
            del kept[0]

    def leave(self, run: TaskRun, ending: Ending | None) -> bool:
        """Conclude the run: write how it ended (None: it was broken off), and stop being its owner, whatever happens.

        True: another pass follows, of the same owner.
        """
        run.goes_on = False
        try:
            if run.last_row is None:
                run.conclude(ending or _INTERRUPTED)
            if run.goes_on:
                return True
        except BaseException as error:
            run.goes_on = False
            self._give_back(run.task_id, run.give_back)
            if not isinstance(error, DoubtlessError):
                raise
            run.trouble = error
        finally:
            if not run.goes_on:
                with self._lock:
                    self._active.discard(run)
        return False

    def _give_back(self, task_id: str, give_back: Callable[[], None]) -> None:
        """Stop being the owner; what the store does not take now is offered again before the next claim."""
        try:
            give_back()
        except DoubtlessError:
            with self._lock:
                self._owed[task_id] = give_back

    def _pay_back(self, task_id: str) -> None:
        """Give a task back that could not be given back when its run ended. Raises StoreUnavailable: still not."""
        with self._lock:
            give_back = self._owed.get(task_id)
        if give_back is not None:
            give_back()
            with self._lock:
                self._owed.pop(task_id, None)

    def pay_back(self) -> None:
        """Give back every task that could not be given back when its run ended, so that others can have it."""
        for task_id in list(self._owed):
            self._pay_back(task_id)

    # ------------------------------------------------------------ how it stands

    def ended(self, task_id: str) -> Head | None:
        """The head row of a task that has ended, or None."""
        self.app.runtime  # noqa: B018  a table with faults is refused first
        head = self.app.store.head(task_id)
        return head if head is not None and head.status in TERMINAL else None

    def outcome(self, run: TaskRun, ending: Ending) -> Any:
        """What the caller of `run` gets or is told."""
        error = ending.error
        if error is not None and raised_on(error):
            raise error  # Ctrl-C, cancellation: recorded, then raised on unchanged
        if run.trouble is not None:
            raise run.trouble
        if run.last_row is not None and run.last_row.status == TaskStatus.DONE:
            run.part()
            return self.output(run.code.name, run.last_row)
        head = self.app.store.head(run.task_id)
        assert head is not None
        if head.status in TERMINAL:
            return self.result(head)
        raise self.standing(run, head)

    def result(self, head: Head) -> Any:
        """A task's output, typed; or TaskFailed, the same each time."""
        ended = ended_row(self.app.runtime, head.task_id)
        if ended.status != TaskStatus.DONE:
            failure = json.loads(ended.error or "{}")
            raise TaskFailed(
                f"task {head.task_id} ended {ended_words(ended.status or '', head.why or failure.get('kind', ''))}",
                status=str(ended.status),
                hint=f"doubtless show {head.task_id}",
                task=head.task_id,
                failure=failure,
                stands=ended.details.get("stands", []),
            )
        return self.output(head.task_name, ended)

    def output(self, task_name: str, ended: Event) -> Any:
        """The output that a task ended with.

        One that does not fit the task's annotation of today is given as it was stored: the task has ended, and
        there is nobody left to ask (a step's output is asked of a person, by `outputs.replayed`).
        """
        content = self.app.runtime.content
        tree = canonical.decode(content.get(ended.output_ref)) if ended.output_ref is not None else None
        task = self.app.declared_tasks.get(task_name)
        if task is None:
            return tree
        try:
            return task.code.definition.restore_output(tree)
        except DoesNotFit:
            return tree  # stored as it came

    def standing(self, run: TaskRun, head: Head) -> DoubtlessError:
        """The error that says why a parked task does not go on, and what to type next."""
        task_id, why = head.task_id, head.why or head.status
        cases = open_cases(run.runtime, task_id)
        parked = run.last.parked
        if parked is not None and parked.frozen is not None:
            return TaskFrozen(
                f"task {task_id} stands before {parked.frozen}, which is frozen; it was not called",
                hint=f"doubtless thaw {parked.frozen}, then: doubtless resume MODULE:APP {task_id}",
                task=task_id,
                step=parked.frozen,
            )
        if head.status == TaskStatus.NEEDS_HUMAN or (cases and head.status not in (TaskStatus.WAITING, TaskStatus.COMPENSATING)):
            return NeedsHuman(
                f"task {task_id} needs a person: {why}",
                cases=cases,
                hint=f"doubtless inbox {' '.join(cases[:1])}".strip(),
                task=task_id,
            )
        if is_idle(head):
            hint = "nothing is in doubt; it goes on when its host opens it"
            return TaskWaiting(f"session {task_id} waits: {why}", until=None, hint=hint, task=task_id)
        until = None if head.wake_at is None else Instant(head.wake_at, 0)
        return TaskWaiting(
            f"task {task_id} waits: {why}", until=until, hint=f"doubtless resume MODULE:APP {task_id}", task=task_id, cases=cases
        )


def open_cases(runtime: Runtime, task_id: str) -> list[str]:
    """The open cases that a task stands before, its children's too."""
    return [
        row.case_id
        for row in runtime.store.cases()
        if (row.task_id == task_id or row.task_id.startswith(f"{task_id}/")) and row.kind != "contradiction"
    ]


def ended_row(runtime: Runtime, task_id: str) -> Event:
    """The TaskEnded row of a task that has ended."""
    last = runtime.store.last(task_id)
    if last is not None and last.kind == Kind.TASK_ENDED:
        return last
    for row in reversed(runtime.store.rows(task_id)):  # late news came after it
        if row.kind == Kind.TASK_ENDED:
            return row
    raise StoreDamaged(f"task {task_id} has ended by its head, and its log has no end", hint="doubtless verify", task=task_id)


def raised_on(error: BaseException) -> bool:
    """Whether the caller gets this itself: a signal, a cancellation. What only unwound task code is said by the log."""
    if isinstance(error, BaseExceptionGroup):  # of an `asyncio.TaskGroup`
        return any(raised_on(one) for one in error.exceptions)
    return not isinstance(error, Exception | Parking)


async def supervised(run: TaskRun) -> Ending:
    """Supervise a sync task from the event loop, in a thread; a cancellation interrupts it."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ending] = loop.create_future()

    def work() -> None:
        try:
            ending = run.supervise()
        except BaseException as error:  # a thread's exception would reach nobody  # noqa: BLE001
            ending = Ending(error=error)
        try:
            loop.call_soon_threadsafe(_set, future, ending)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    host.thread(target=contextvars.copy_context().run, args=(work,), name=f"doubtless:{run.task_id}", daemon=True).start()
    try:
        return await asyncio.shield(future)
    except BaseException as error:  # rule 7  # noqa: BLE001
        run.interrupt(error)
        if not run.last.abandoned and not isinstance(error, GeneratorExit):
            try:
                await asyncio.wait({future}, timeout=GOODBYE)
            except asyncio.CancelledError:
                pass  # cancelled twice: do not wait
        run.last.done.set()
        return Ending(error=error)


def _set(future: Any, ending: Ending) -> None:
    if not future.done():
        future.set_result(ending)
