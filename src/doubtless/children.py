"""Child tasks: a task called inside a task is one of its own, named after its place, started at most once.

The parent's log says that the child at a place was started, and what it came to; everything between is in the child's own
log. Whoever resumes the parent meets the child again by its id, at any depth; a child is run by its parent only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import ChildEnd, Input, RunChild, Wait
from .conclusion import TaskCode
from .drift import first_difference
from .drivers import wait
from .effects import Deadline
from .errors import Moved, StaleEpoch, StoreError, TaskBusy, UsageError
from .events import TERMINAL, Effect, Kind, StepStatus, TaskStatus, draft, dump
from .inputs import prepare
from .keeping import keep_trying
from .outputs import replayed
from .passes import Pass, Scope, current_aio_task
from .runs import Runs, ended_row, raised_on

if TYPE_CHECKING:
    from .store.base import Head
    from .tasks import TaskRun

BUSY_US = 500_000
"""How long a parent lets a child be whose thread of an earlier run still ends."""


BESIDE_US = 50_000
"""How long a child waits at a time while another branch settles a doubt."""


def child_id(parent: str, path: str) -> str:
    """The id of the child task at a place: ``recon-7/4`` for the place 4 of recon-7, ``recon-7/~4`` for what undoes it."""
    return f"{parent}/{path}"


def root_of(task_id: str) -> str:
    """The id of the task that was started by itself: a child is run by its parent, and that by its own."""
    return task_id.partition("/")[0]


class Children:
    """The child tasks of one app's runs."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def call(self, scope: Scope, code: TaskCode, args: tuple[Any, ...], kwargs: dict[str, Any], *, threaded: bool = False) -> Any:
        """What calling a task in task code does: take a place, answer from the log, or run the child to its end.

        Raises: StepFailed of kind ``child`` when it ended without an output.
        """
        this = scope.run
        if code.is_async and this.loop is None:
            raise UsageError(
                f"task {code.name} is async and task {this.task_id} is not; nothing was written",
                hint="declare the calling task with async def, or the child without",
            )
        given = prepare(this.runtime, code.definition, code.definition.binder.bind(args, kwargs))
        path = scope.place(code.name)
        if code.is_async or threaded:
            this.undriven[path] = code.name
            return self._acall(this, code, path, given)
        settled = this.enter(code.definition, path, given)
        if settled is not None:
            return replayed(this, code.definition, path, settled)
        with this.lock:
            this.check()
            this.driving.add(path)
        try:
            return self.settle(this, code, path, given, self.run(this, code, path, given))
        finally:
            this.driving.discard(path)

    async def _acall(self, this: Pass, code: TaskCode, path: str, given: Input) -> Any:
        this.check()
        this.undriven.pop(path, None)
        settled = this.enter(code.definition, path, given)
        if settled is not None:
            return replayed(this, code.definition, path, settled)
        from asyncio import CancelledError

        here = current_aio_task()
        branch = here if here is not this.root.aio_task else None
        if branch is not None:
            this.branches.add(branch)  # the task's code may end before it: it is brought to its end first
        this.driving.add(path)
        try:
            return self.settle(this, code, path, given, await self.arun(this, code, path, given))
        except CancelledError:
            head = this.runtime.store.head(child_id(this.task_id, path))
            this.break_off(f"child {code.name}", path, None if head is None else head.wake_at)
            raise
        finally:
            this.driving.discard(path)
            if branch is not None:
                this.branches.discard(branch)

    # ------------------------------------------------------------ running

    def run(self, this: Pass, code: TaskCode, path: str, given: Input) -> Head:
        """Bring the child at `path` to its end, in threads of its own; its head. Parks when it does not end now."""
        while (head := self.begin(this, code, path, given)) is None:
            wait(this, self._doubt(this))
        return self._to_end(this, head)

    def _to_end(self, this: Pass, head: Head) -> Head:
        while head.status not in TERMINAL:
            run = self._claim(this, head)
            if run is not None:
                try:
                    self.runs.carry(run)
                finally:
                    this.owner.children.discard(run)
            head = self._stands(this, head.task_id, run)
        return head

    async def arun(self, this: Pass, code: TaskCode, path: str, given: Input) -> Head:
        """The same on the event loop; a sync child's supervisor runs in a thread."""
        from .adrivers import await_time

        while (head := self.begin(this, code, path, given)) is None:
            await await_time(this, self._doubt(this))
        return await self._ato_end(this, head)

    async def _ato_end(self, this: Pass, head: Head) -> Head:
        while head.status not in TERMINAL:
            run = self._claim(this, head)
            if run is not None:
                try:
                    ending = await self.runs.acarry(run)
                finally:
                    this.owner.children.discard(run)
                if ending.error is not None and raised_on(ending.error):
                    raise ending.error
            head = self._stands(this, head.task_id, run)
        return head

    def run_to_end(self, this: Pass, request: RunChild) -> ChildEnd:
        """Run a child that compensates, or one that is undone or cancelled, to its end; parks when it does not end now."""
        return self._ended(this, self._to_end(this, self._requested(this, request)))

    async def arun_to_end(self, this: Pass, request: RunChild) -> ChildEnd:
        """The same on the event loop."""
        return self._ended(this, await self._ato_end(this, self._requested(this, request)))

    def _requested(self, this: Pass, request: RunChild) -> Head:
        store = this.runtime.store
        try:
            if request.given is not None:
                return self._accept(
                    this, request.task_id, request.name, request.path, request.given, request.undo_by, request.secret
                )
            head = store.head(request.task_id)
        except (StoreError, StaleEpoch) as error:
            raise this.broken(error) from error
        assert head is not None
        return head

    def _ended(self, this: Pass, head: Head) -> ChildEnd:
        return ChildEnd(head.status, head.why or "", ended_row(this.runtime, head.task_id).output_ref)

    def _doubt(self, this: Pass) -> Wait:
        return Wait(this.runtime.store.now().wall + BESIDE_US, "another step is in doubt: no child begins")

    def begin(self, this: Pass, code: TaskCode, path: str, given: Input) -> Head | None:
        """Write down that the child is started, then accept it; both only once, whatever dies between.

        None: another branch's step is in doubt, and that branch settles it; until then no child begins.
        """
        log = this.log
        try:
            while path not in log.open:
                this.check()
                if log.open and this.blocked_by_doubt(path):
                    return None
                self._write_started(this, code, path, given)
            head = self._accept(this, child_id(this.task_id, path), code.name, path, given)
            self._pass_on_cancel(this, head)
            return head
        except (StoreError, StaleEpoch) as error:
            raise this.broken(error) from error

    def _pass_on_cancel(self, this: Pass, head: Head) -> None:
        """Tell a child that its parent was cancelled: who cancels has not seen a child that is accepted only now."""
        this.log.refresh()
        cancel, store = this.log.cancel, this.runtime.store
        if cancel is None or head.status in TERMINAL:
            return
        if not any(row.kind == Kind.CANCEL_REQUESTED for row in store.rows(head.task_id)):
            store.add(head.task_id, [draft(head.task_id, Kind.CANCEL_REQUESTED, store.now(), data=cancel.details)])

    def _write_started(self, this: Pass, code: TaskCode, path: str, given: Input) -> None:
        now, task_id = this.runtime.store.now(), child_id(this.task_id, path)
        ref, blob = this.runtime.content.put(given.text)
        row = draft(
            this.task_id, Kind.ATTEMPT_STARTED, now, step_seq=this.log.next_step_seq(), path=path, step_name=code.name,
            status=StepStatus.STARTED, attempt=1, effect_class=Effect.READ, input_hash=given.digest, input_ref=ref,
            started_at=now.wall, epoch=this.log.epoch, data={"child": task_id},
        )  # fmt: skip
        try:
            this.log.append(row, blobs=() if blob is None else (blob,))
        except Moved:
            pass  # somebody added something: look again

    def _accept(
        self, this: Pass, task_id: str, name: str, path: str, given: Input, undo_by: Deadline | None = None,
        secret: frozenset[str] = frozenset(),
    ) -> Head:  # fmt: skip
        runtime = this.runtime
        ref, blob = runtime.content.put(given.text)
        data: dict[str, Any] = {"parent": this.task_id, "path": path}
        if undo_by is not None:
            data["undo_by"] = [*undo_by.since, undo_by.within_us]
        if secret:
            data["secret"] = sorted(secret)
        accepted = draft(
            task_id, Kind.TASK_ACCEPTED, runtime.store.now(), step_name=name, status=TaskStatus.READY,
            input_hash=given.digest, input_ref=ref, data=data,
        )  # fmt: skip
        head = runtime.store.head(task_id) or runtime.store.accept(accepted, () if blob is None else (blob,))
        if head is None:
            head = runtime.store.head(task_id)
            assert head is not None
        if head.task_name != name or head.input_hash != given.digest:
            first = runtime.store.first(task_id)
            field, logged, asked = first_difference(runtime.content.get(first.input_ref), given.text)
            this.diverge_child(path, field, logged, asked)
        return head

    def _claim(self, this: Pass, head: Head) -> TaskRun | None:
        """Become the child's owner; None: it has ended meanwhile. Parks while an earlier run's thread still has it."""
        this.check()
        try:
            run = self.runs.claim(head.task_id, limit=this.owner.wait_limit)
        except TaskBusy as busy:
            raise this.park(str(busy), until=this.runtime.store.now().wall + BUSY_US) from busy
        except (StoreError, StaleEpoch) as error:
            raise this.broken(error) from error
        if run is not None:
            this.owner.children.add(run)
            if this.parked is not None or this.abandoned:
                run.drain()
        return run

    def _stands(self, this: Pass, task_id: str, run: TaskRun | None) -> Head:
        """The child's head once it has ended; otherwise the parent parks for what the child waits for."""
        if run is not None and run.trouble is not None:
            raise this.broken(run.trouble)
        head = this.runtime.store.head(task_id)
        assert head is not None
        if head.status in TERMINAL:
            return head
        this.check()
        parked = run.last.parked if run is not None else None
        why = f"child {task_id}: {head.why or head.status}"
        frozen = parked.frozen if parked is not None else None
        raise this.park(why, until=head.wake_at, human=head.status == TaskStatus.NEEDS_HUMAN, frozen=frozen)

    # ------------------------------------------------------------ its end

    def settle(self, this: Pass, code: TaskCode, path: str, given: Input, head: Head) -> Any:
        """Write down in the parent's log what the child came to; its output, or StepFailed of kind ``child``."""
        ended = ended_row(this.runtime, head.task_id)
        done = ended.status == TaskStatus.DONE
        error = None
        if not done:
            error = dump({"kind": "child", "code": str(ended.status), "detail": head.why or ""})
        now = this.runtime.store.now()
        seq = this.log.open[path][0].step_seq
        row = draft(
            this.task_id, Kind.STEP_SETTLED, now, step_seq=seq, path=path, step_name=code.name, attempt=1,
            status=StepStatus.DONE if done else StepStatus.FAILED, effect_class=Effect.READ, output_ref=ended.output_ref,
            error=error, finished_at=now.wall, epoch=this.log.epoch, data={"child": head.task_id},
        )  # fmt: skip
        try:
            while path not in this.log.settled:
                try:
                    keep_trying(this, lambda: this.log.append(row))
                except Moved:
                    continue
        except (StoreError, StaleEpoch) as failed:
            raise this.broken(failed) from failed
        return replayed(this, code.definition, path, this.log.settled.pop(path))

