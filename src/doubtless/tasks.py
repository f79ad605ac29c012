"""A task: the places of its steps, one pass over its code, and how a run of it ends.

A pass executes task code once, from the top; finished steps are answered from the log. A run holds the claim
and makes passes until the task ends or parks: a second pass follows when a call overran its timeout.
"""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import canonical
from .canonical import encode
from .effects import StepDefinition
from .errors import Abort, Diverged, DoubtlessError, Moved, NotCanonical, OutsideTask, Parking, StepFailed, UsageError
from .events import CaseKind, Effect, Event, Kind, StepStatus, TaskStatus, draft, dump
from .executor import (
    Frame,
    Input,
    Raised,
    Returned,
    Runtime,
    adrive,
    current,
    drive,
    keep_trying,
    prepare,
    replayed,
    run_step,
    spill_result,
    store_output,
    timed_out,
)
from .fold import fold_steps
from .log import Settled, TaskLog
from .outcomes import Outcome, classify_returned

if TYPE_CHECKING:
    import asyncio


class Park(NamedTuple):
    """Why a pass unwinds without an end."""

    why: str
    until: int | None = None
    human: bool = False
    frozen: str | None = None
    diverged: Diverged | None = None


class TaskCode(NamedTuple):
    """A task's function and what is known about it."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    definition: StepDefinition
    """The signature's half of a definition: binds params, gives them and the output their types."""


class Pass:
    """One pass over the task's code: its places, its thread or asyncio.Task, and whether it parks."""

    def __init__(self, run: TaskRun) -> None:
        self.owner = run
        self.task_id = run.task_id
        self.log = run.log
        self.runtime = run.runtime
        self.lock = threading.Lock()
        self.frame: Frame | None = None
        self.stop = threading.Event()
        self.parked: Park | None = None
        self.abandoned = False
        self.count = 0
        self.thread = 0
        self.aio_task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.branches: set[asyncio.Task[Any]] = set()
        self.interrupted: BaseException | None = None
        self.over = False
        self.driving: set[str] = set()
        self.suspect = run.suspect
        self.done = threading.Event()
        self.ending: Ending | None = None

    # ------------------------------------------------------------ what a step needs of it

    def park(self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None) -> Parking:
        if self.parked is None:
            self.parked = Park(why, until, human, frozen)
        return Parking(why)

    def broken(self, error: DoubtlessError) -> Parking:
        self.owner.trouble = error
        return self.park(str(error))

    def check(self) -> None:
        if self.abandoned or self.parked is not None:
            raise Parking(self.parked.why if self.parked else "this pass was given up")
        if self.over:
            raise Parking("the task's code has ended")

    def may_wait(self, until: int) -> bool:
        limit = self.owner.wait_limit
        return limit is None or until <= limit

    def blocked_by_doubt(self, path: str) -> bool:
        doubtful = [r.path for r in self.log.open_records() if r.path != path and r.in_doubt] if self.log.open else []
        if doubtful and not any(other in self.driving for other in doubtful):
            raise self.park(f"the step at {doubtful[0]} is in doubt: no new write begins")
        return bool(doubtful)

    def left_behind(self, frame: Frame) -> None:
        self.owner.leave_behind(frame)

    def late(self, frame: Frame, reply: Returned | Raised) -> None:
        if frame.what == "call":
            try:
                keep_trying(
                    self,
                    lambda: store_late_news(self.runtime, self.task_id, self.log.epoch, frame, reply),
                    lambda: spill_late_news(self, frame, reply),
                )
            finally:
                self.owner.zombie_ended(frame)

    # ------------------------------------------------------------ places

    def place(self, name: str) -> str:
        """The next place of this level, given at the call. Raises OutsideTask for a stray thread or asyncio.Task."""
        self.check()
        if threading.get_ident() != self.thread or (self.aio_task is not None and _current_aio_task() is not self.aio_task):
            kind = "asyncio.Task" if self.aio_task is not None and threading.get_ident() == self.thread else "thread"
            raise OutsideTask(
                f"step {name} was called from another {kind} than its task's; nothing was written",
                hint="call it in the task's own code: its place must not depend on timing",
                task=self.task_id,
                step=name,
            )
        self.count += 1
        return str(self.count)

    def enter(self, definition: StepDefinition, path: str, given: Input) -> Settled | None:
        """Check what the log holds at this place against what the code asks for; the settled step, if it is one."""
        settled = self.log.settled.pop(path, None)
        if settled is not None:
            if settled.input_hash != given.digest or settled.name != definition.name:
                self.log.settled[path] = settled
                self.diverge(definition, path, given, settled.name)
            return settled
        if path in self.log.open:
            record = self.log.record(path)
            if record is not None and (record.input_hash != given.digest or record.name != definition.name):
                self.diverge(definition, path, given, record.name)
        return None

    def diverge(self, definition: StepDefinition, path: str, given: Input, logged_name: str) -> NoReturn:
        """Refuse drift (rule 3): name the first field that differs."""
        if logged_name != definition.name:
            field, logged, asked = "step", logged_name, definition.name
        else:
            hidden = definition.volatile | definition.secret
            field, logged, asked = first_difference(stored_params(self.runtime, self.task_id, path), given.text, hidden)
        message = (
            f"task {self.task_id}: at place {path} the log holds {field} = {logged!r}, the code asks for {asked!r}; "
            "nothing was written"
        )
        raise self.diverged(Diverged(message, path=path, field=field, logged=logged, asked=asked))

    def diverged(self, error: Diverged) -> Diverged:
        """Mark the pass as diverged."""
        if self.parked is None:
            self.parked = Park(error.message, human=True, diverged=error)
        return error

    def leftover(self) -> Diverged | None:
        """Code that ends without having called every logged step is Diverged too."""
        paths = [*self.log.settled, *self.log.open]
        if not paths:
            return None
        path = min(paths, key=_place_order)
        name = self.log.settled[path].name if path in self.log.settled else (self.log.open[path][0].step_name or "")
        message = f"task {self.task_id}: the code ended without calling step {name}, which the log holds at place {path}"
        return self.diverged(Diverged(message, path=path, field="step", logged=name, asked=None))


def _place_order(path: str) -> tuple[int, ...]:
    return tuple(int(part) for part in path.split("."))


def _current_aio_task() -> asyncio.Task[Any] | None:
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def stored_params(runtime: Runtime, task_id: str, path: str) -> str:
    """The params that the log holds at this place."""
    for row in runtime.store.rows(task_id, path=path):
        if row.path == path and row.input_ref is not None:
            return runtime.content.get(row.input_ref)
    return "{}"


def first_difference(logged: str, asked: str, hidden: frozenset[str] = frozenset()) -> tuple[str, Any, Any]:
    """The first field in which two canonical params differ, as ``params.lines[3].amount``, with both values."""

    def walk(a: Any, b: Any, where: str) -> tuple[str, Any, Any] | None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}, key=str):
                if where == "params" and key in hidden:
                    continue
                found = walk(a.get(key, "(missing)"), b.get(key, "(missing)"), f"{where}.{key}")
                if found:
                    return found
            return None
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                found = walk(x, y, f"{where}[{i}]")
                if found:
                    return found
            return None
        return None if a == b and type(a) is type(b) else (where, _short(a), _short(b))

    found = walk(canonical.decode(logged), canonical.decode(asked), "params")
    return found or ("params", "(as logged)", "(differs only in its canonical form)")


def _short(value: Any) -> Any:
    try:
        text = encode(value)
    except NotCanonical:
        text = repr(value)
    return value if len(text) <= 200 and isinstance(value, str | int | float | bool | None) else text[:200]


# ---------------------------------------------------------------- calling a step


def call_step(definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], *, threaded: bool = False) -> Any:
    """What `step(…)` does in task code: bind, take a place, answer from the log or run the step."""
    this = current.get()
    if not isinstance(this, Pass):
        raise outside(definition.name, inside=this is not None)
    if definition.is_async and this.aio_task is None:
        raise UsageError(
            f"step {definition.name} is async and task {this.task_id} is not; nothing was written",
            hint="declare the task with async def, or the step without",
        )
    params = definition.binder.bind(args, kwargs)
    given = prepare(this.runtime, definition, params)
    path = this.place(definition.name)
    if definition.is_async or threaded:
        return acall_step(this, definition, path, given)
    settled = this.enter(definition, path, given)
    if settled is not None:
        return replayed(this, definition, path, settled)
    return drive(this, run_step(this, definition, path, given))


async def acall_step(this: Pass, definition: StepDefinition, path: str, given: Input) -> Any:
    """The async half of `call_step`: the place is taken already, in the task's own code."""
    this.check()
    settled = this.enter(definition, path, given)
    if settled is not None:
        return replayed(this, definition, path, settled)
    here = _current_aio_task()
    branch = here if here is not this.aio_task else None
    if branch is not None:
        this.branches.add(branch)
    this.driving.add(path)
    try:
        return await adrive(this, run_step(this, definition, path, given))
    except (KeyboardInterrupt, SystemExit) as error:
        if branch is None:
            raise
        this.interrupted = error  # an asyncio.Task would let it through its event loop, past the run
        raise this.park(f"interrupted: {type(error).__name__}") from error
    finally:
        this.driving.discard(path)
        if branch is not None:
            this.branches.discard(branch)


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


# ---------------------------------------------------------------- a run


PULSE = 0.5
"""Seconds after which a supervisor looks up: of two signals at once, an interpreter may let the first one's waiter sleep."""

GOODBYE = 2.0
"""Seconds for which a run that was interrupted lets its pass record what it has just done."""


class Ending(NamedTuple):
    """How a pass ended: with a value, or with what was raised."""

    value: Any = None
    error: BaseException | None = None


class TaskRun:
    """One claim of a task: makes passes over its code until it ends or parks, then writes that down."""

    def __init__(self, runtime: Runtime, log: TaskLog, code: TaskCode, params: Mapping[str, Any], *, wait_limit: int | None) -> None:
        self.runtime = runtime
        self.log = log
        self.task_id = log.task_id
        self.code = code
        self.params = params
        self.wait_limit = wait_limit
        self.zombies: set[Frame] = set()
        self.concluded = False
        self.trouble: DoubtlessError | None = None
        self.interrupted: BaseException | None = None
        self.suspect = runtime.store.info().suspect
        self.last = Pass(self)
        self.drained = False
        self._zombie_lock = threading.Lock()
        self._turn = threading.RLock()  # a signal's handler may drain while this very thread begins a pass

    # ------------------------------------------------------------ a pass

    def arguments(self) -> dict[str, Any]:
        """The task's params, decoded anew for each pass and typed by its annotations."""
        params: dict[str, Any] = canonical.decode(encode(self.params))
        self.code.definition.restore_params(params)
        return params

    def doubts(self, this: Pass) -> list[tuple[StepDefinition | None, str, str]]:
        """The steps to settle before task code runs, in the order of first arrival."""
        found = [r for r in self.log.open_records() if r.in_doubt or (r.evidence is not None and not r.settled)]
        return [(self.runtime.find(r.name), r.path, r.name) for r in found]

    def work(self, this: Pass) -> Ending:
        """One pass in this thread: settle what is in doubt, then run the task's code."""
        this.thread = threading.get_ident()
        token = current.set(this)
        try:
            for definition, path, name in self.doubts(this):
                drive(this, run_step(this, definition, path, None, name=name))
            if self.log.held:
                return Ending()
            return Ending(self.code.fn(**self.arguments()))
        except BaseException as error:
            return Ending(error=error)
        finally:
            current.reset(token)

    async def awork(self, this: Pass) -> Ending:
        """The same on the event loop, in the caller's asyncio.Task."""
        import asyncio

        this.thread = threading.get_ident()
        this.aio_task, this.loop = asyncio.current_task(), asyncio.get_running_loop()
        token = current.set(this)
        ending = Ending()
        try:
            for definition, path, name in self.doubts(this):
                await adrive(this, run_step(this, definition, path, None, name=name))
            if not self.log.held:
                ending = Ending(await self.code.fn(**self.arguments()))
        except BaseException as error:
            ending = Ending(error=error)
        try:
            current.reset(token)
        except ValueError:
            pass  # its event loop is gone, and with it its context
        return await self.branches_ended(this, ending)

    async def branches_ended(self, this: Pass, ending: Ending) -> Ending:
        """Let the steps that other branches have in flight be finished and recorded; when cancelled, cancel them too."""
        import asyncio

        while this.branches and not isinstance(ending.error, GeneratorExit):
            if isinstance(ending.error, asyncio.CancelledError):
                for branch in this.branches:
                    branch.cancel()
            try:
                await asyncio.wait(set(this.branches))
            except BaseException as error:
                ending = Ending(error=error)
        this.over = True
        return ending if this.interrupted is None else Ending(error=this.interrupted)

    # ------------------------------------------------------------ the supervisor

    def supervise(self) -> Ending:
        """Run passes in threads of their own until one ends; settle calls that overrun; let Ctrl-C through."""
        try:
            while True:
                with self._turn:
                    if self.interrupted is not None:
                        return Ending(error=self.interrupted)
                    this = self.last = Pass(self)
                    if self.drained:
                        this.park("drained: this process stops")
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run, args=(self._runner, this), name=f"doubtless:{self.task_id}", daemon=True
                )
                thread.start()
                while not this.done.wait(min(self.next_look(this), PULSE)):
                    if self.take_over(this):
                        break
                else:
                    return this.ending or Ending(error=self.interrupted or Parking("interrupted"))
                self.log.load()
        except BaseException as caught:  # Ctrl-C, a signal's exception: rule 7; or the store failed
            error = what_interrupted(caught)
            if isinstance(error, DoubtlessError):
                self.trouble = error
            self.interrupt(error)
            if not self.last.abandoned:
                self.last.done.wait(GOODBYE)
            return Ending(error=error)

    def _runner(self, this: Pass) -> None:
        try:
            if self.code.is_async:
                import asyncio

                asyncio.run(self._arunner(this))
            else:
                this.ending = self.work(this)
        except BaseException as error:
            this.ending = this.ending or Ending(error=error)
        finally:
            this.done.set()

    async def _arunner(self, this: Pass) -> None:
        this.ending = await self.awork(this)
        this.done.set()  # before the event loop is closed: a call that cannot be cancelled would hold that up

    def next_look(self, this: Pass) -> float:
        """Seconds until the supervisor has to look: a call that starts later cannot overrun before."""
        frame = this.frame
        if frame is None or self.code.is_async:
            return self.shortest_timeout
        return max(0.001, frame.deadline - self.runtime.monotonic())

    shortest_timeout = 1.0

    def take_over(self, this: Pass) -> bool:
        """If the current call has overrun its timeout, record that and give the pass up; True when done."""
        with this.lock:
            frame = this.frame
            if frame is None or self.code.is_async or frame.done or frame.overrun or self.runtime.monotonic() < frame.deadline:
                return False
            self._abandon(this, frame)
        self._record(frame, timed_out(frame.definition.timeout_us))
        return True

    def interrupt(self, error: BaseException) -> None:
        """A signal or a cancellation came while a pass runs in another thread: what it has in flight is in doubt."""
        with self._turn:
            self.interrupted = error
            this = self.last
        with this.lock:
            frame = this.frame
            this.park(f"interrupted: {type(error).__name__}")
            this.stop.set()
            if frame is not None and not frame.done and not frame.overrun:
                self._abandon(this, frame)
            else:
                frame = None
        if frame is not None:
            self._record(frame, Outcome("unknown", type(error).__name__, "interrupted while the call ran", None))
        elif this.loop is not None and this.aio_task is not None:
            try:
                this.loop.call_soon_threadsafe(this.aio_task.cancel)
            except RuntimeError:
                pass  # its event loop is closed: nothing is in flight there

    def _abandon(self, this: Pass, frame: Frame) -> None:
        """Take the running call away from its pass, whose lock is held: from here on its result is late news."""
        frame.overrun = this.abandoned = True
        this.stop.set()
        self.leave_behind(frame)

    def _record(self, frame: Frame, outcome: Outcome) -> None:
        try:
            frame.overran(outcome)
        except Moved:
            pass  # somebody recorded something newer; the next pass folds it

    def drain(self) -> None:
        """Park at the next step; the one that runs is finished and recorded first."""
        with self._turn:
            self.drained = True
            self.last.park("drained: this process stops")
            self.last.stop.set()

    def leave_behind(self, frame: Frame) -> None:
        """A call goes on although nobody waits for it; of a write: the task stays owned until it has ended."""
        if frame.what == "call" and frame.definition.effect != Effect.READ:
            with self._zombie_lock:
                self.zombies.add(frame)

    def zombie_ended(self, frame: Frame) -> None:
        """A call that was left behind has ended; the last one frees a task that is parked."""
        with self._zombie_lock:
            self.zombies.discard(frame)
            if self.concluded and not self.zombies:
                self.runtime.store.release(self.task_id, self.log.epoch)

    def give_back(self) -> None:
        """Stop being the owner without a row, now or when the last call that was left behind has ended."""
        with self._zombie_lock:
            self.concluded = True
            if not self.zombies:
                self.runtime.store.release(self.task_id, self.log.epoch)

    # ------------------------------------------------------------ the end

    def conclude(self, ending: Ending) -> None:
        """Write down how the run ended: a TaskEnded or TaskParked row, and the case of what a person must see."""
        error, this = ending.error, self.last
        if self.trouble is not None:
            raise self.trouble  # the store failed under this run: what it could not take now, it cannot take here
        if self.log.held:
            self.conclude_held(this)
        elif this.parked is not None and this.parked.diverged is not None:
            self.open_case(this, CaseKind.DIVERGED, this.parked.diverged.evidence(), this.parked.why)
        elif this.parked is not None:
            self.write_parked(this.parked)
        elif isinstance(error, StepFailed | Abort) and not (isinstance(error, StepFailed) and error.kind == "exhausted"):
            diverged = this.leftover()
            if diverged is not None:
                self.open_case(this, CaseKind.DIVERGED, diverged.evidence(), diverged.message)
            else:
                self.fail(failure_of(error), this)
        elif error is not None and not isinstance(error, Exception):
            self.write_parked(Park(f"interrupted: {type(error).__name__}"))
        elif error is not None:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), f"{type(error).__name__}: {error}")
        else:
            self.finish(ending.value, this)

    def finish(self, value: Any, this: Pass) -> None:
        """The code returned: the task is done, unless logged steps were not called."""
        diverged = this.leftover()
        if diverged is not None:
            self.open_case(this, CaseKind.DIVERGED, diverged.evidence(), diverged.message)
            return
        try:
            text = self.runtime.vault.mask(encode(value, where="the task's output"))
        except NotCanonical as error:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), str(error))
            return
        ref, blob = self.runtime.content.put(text)
        now = self.runtime.store.now()
        ended = draft(
            self.task_id, Kind.TASK_ENDED, now, step_name=self.code.name, status=TaskStatus.DONE, output_ref=ref, epoch=self.log.epoch
        )
        self.append(ended, blobs=() if blob is None else (blob,))

    def fail(self, failure: dict[str, Any], this: Pass) -> None:
        """The task fails for good. What it has to undo is listed and waits for a person; without any it is failed."""
        owed = obligations(self.runtime, self.log.store.rows(self.task_id))
        if owed:
            why = f"the task failed ({failure['kind']}) and {len(owed)} of its effects stand"
            self.open_case(this, CaseKind.HOLD, {"failure": failure, "obligations": owed}, why)
            return
        self.end_failed(failure, [])

    def end_failed(self, failure: dict[str, Any], stands: list[dict[str, Any]]) -> None:
        """Write the failed end, with what stands."""
        now = self.runtime.store.now()
        why = f"failed: {failure.get('step') or failure['kind']}: {failure.get('code') or failure.get('detail') or failure['kind']}"
        data: dict[str, Any] = {"why": why[:300]}
        if stands:
            data["stands"] = stands
        self.append(
            draft(
                self.task_id, Kind.TASK_ENDED, now, step_name=self.code.name, status=TaskStatus.FAILED, error=dump(failure),
                data=data, epoch=self.log.epoch,
            )  # fmt: skip
        )

    def conclude_held(self, this: Pass) -> None:
        """A person has failed the task, or it waits in a `hold` case: its code is not run."""
        if this.parked is not None:
            self.write_parked(this.parked)
        elif self.log.let_stand is not None:
            data = self.log.hold_row.details if self.log.hold_row is not None else {}
            self.end_failed(data.get("failure", {"kind": "failed"}), data.get("obligations", []))
        elif any(case.kind == CaseKind.HOLD for case in self.log.cases.values()):
            self.write_parked(Park("the task failed; what it did stands until a person decides", human=True))
        else:
            answer = self.log.fail_answer
            data = answer.details if answer is not None else {}
            self.fail({"kind": "failed", "code": "failed_by_person", "detail": data.get("why", ""), "by": data.get("by", "")}, this)

    def code_error(self, error: BaseException) -> dict[str, Any]:
        """What a person needs to see of an exception that is no outcome of a step."""
        text = "".join(traceback.format_exception(error))
        data: dict[str, Any] = {"error": type(error).__name__, "message": self.runtime.vault.mask(str(error))[:1000]}
        data["traceback"] = self.runtime.vault.mask(text)[-4000:]
        if isinstance(error, StepFailed):
            data |= {"step": error.step, "path": error.path, "failure": error.kind}
        return data

    def open_case(self, this: Pass, kind: CaseKind, data: Mapping[str, Any], why: str) -> None:
        """Open a task-level case and park, in one transaction; a case that says the same stays as it is."""
        same = [c for c in self.log.cases.values() if c.path is None and c.kind == kind and _same(c.row.details, data)]
        if same:
            self.write_parked(Park(why, human=True), keep=kind)
            return
        now = self.runtime.store.now()
        opened = draft(
            self.task_id, Kind.CASE_OPENED, now, data={**data, "kind": kind, "why": why[:1000]}, epoch=self.log.epoch
        )  # fmt: skip
        before = set(self.log.cases)
        self.write_parked(Park(why, human=True), opened)
        for case in self.log.cases.keys() - before:
            self.runtime.case_opened(case)

    def write_parked(self, park: Park, *first: Event, keep: CaseKind | None = None) -> None:
        """Park the task; with nothing new to say, only give the claim back."""
        status = TaskStatus.NEEDS_HUMAN if park.human else TaskStatus.WAITING if park.until or park.frozen else TaskStatus.READY
        head = self.log.store.head(self.task_id)
        same = head is not None and (head.status, head.wake_at, head.why) == (status, park.until, park.why[:300])
        if same and not first:
            self.give_back()
            return
        now = self.runtime.store.now()
        parked = draft(
            self.task_id, Kind.TASK_PARKED, now, step_name=self.code.name, status=status,
            data={"wake_at": park.until, "why": park.why[:300]}, epoch=self.log.epoch,
        )  # fmt: skip
        self.append(*first, parked, keep=keep)

    def append(self, *drafts: Event, blobs: Any = (), keep: CaseKind | None = None) -> None:
        """Append the run's last rows; what the machine got past closes its cases in the same transaction."""
        went_on = drafts[-1].status != TaskStatus.READY
        with self._zombie_lock:
            while True:
                now = self.runtime.store.now()
                closing = [
                    draft(
                        self.task_id, Kind.CASE_SETTLED, now, epoch=self.log.epoch,
                        data={"case_id": case, "answer": "settled", "by": "doubtless", "why": "the task went on"},
                    )  # fmt: skip
                    for case, opened in self.log.cases.items()
                    if went_on and opened.path is None and opened.kind in (CaseKind.CODE_ERROR, CaseKind.DIVERGED)
                    and opened.kind != keep
                ]
                try:
                    keep_trying(
                        self.last, lambda: self.log.append(*closing, *drafts, blobs=blobs, keep_owner=bool(self.zombies))
                    )
                    break
                except Moved:
                    continue
            self.concluded = True


def what_interrupted(error: BaseException) -> BaseException:
    """What broke into a wait: a second signal at that moment shows as an error of the wait's own lock."""
    seen: BaseException | None = error
    while isinstance(seen, Exception):
        seen = seen.__context__
    return error if seen is None else seen


def _same(logged: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    keys = ("error", "message", "path", "field", "logged", "asked", "failure", "obligations")
    return all(logged.get(k) == now.get(k) for k in keys)


def failure_of(error: StepFailed | Abort) -> dict[str, Any]:
    """The failure as the TaskEnded row keeps it."""
    if isinstance(error, Abort):
        return {"kind": "abort", "detail": error.reason}
    return {"kind": error.kind, "code": error.reason, "detail": error.detail, "step": error.step, "path": error.path}


def obligations(runtime: Runtime, rows: list[Event]) -> list[dict[str, Any]]:
    """The done steps with a registered compensation, the latest first: what a failed task has to undo."""
    done_at = {r.path: r.event_seq for r in rows if r.kind == Kind.STEP_SETTLED and r.status == StepStatus.DONE}
    owed: list[tuple[int, dict[str, Any]]] = []
    for path, record in fold_steps(rows).items():
        if record.status != StepStatus.DONE or record.effect == Effect.READ or record.policy_digest is None:
            continue
        policy = canonical.decode(runtime.content.get(record.policy_digest))
        if policy.get("compensate"):
            owed.append((done_at[path], {"path": path, "step": record.name, "compensate": policy["compensate"]}))
    return [entry for _, entry in sorted(owed, key=lambda pair: -pair[0])]


# ---------------------------------------------------------------- late news


def store_late_news(runtime: Runtime, task_id: str, epoch: int, frame: Frame, reply: Returned | Raised) -> None:
    """Keep what a call said after its attempt was given up: evidence, which settles what is unsettled (rule 12)."""
    now = runtime.store.now()
    step = frame.definition
    common: dict[str, Any] = {
        "step_seq": frame.step_seq, "path": frame.path, "step_name": frame.name, "attempt": frame.attempt, "epoch": epoch,
    }  # fmt: skip
    if isinstance(reply, Returned):
        outcome = classify_returned(
            reply.value, single_request=step.single_request, classify=step.classify, uncertain_before=True, handle_recorded=False
        )
    else:
        outcome = Outcome("unknown", type(reply.error).__name__, runtime.vault.mask(str(reply.error))[:500], None)
    if outcome is not None or not isinstance(reply, Returned):
        error = dump({"kind": "unknown", "code": outcome.code if outcome else "", "detail": outcome.detail if outcome else ""})
        runtime.store.add(task_id, [draft(task_id, Kind.EVIDENCE_STORED, now, error=error, data={"what": "late_error"}, **common)])
        return
    output = store_output(runtime, step, reply.value)
    data: dict[str, Any] = {"what": "late_result"}
    if output.fault is not None:
        data["fault"] = output.fault
    rows = [draft(task_id, Kind.EVIDENCE_STORED, now, output_ref=output.ref, data=data, **common)]
    contradiction = contradicts(runtime, task_id, frame)
    if contradiction:
        rows.append(draft(task_id, Kind.CASE_OPENED, now, data={"kind": CaseKind.CONTRADICTION, "why": contradiction}, **common))
    for event in runtime.store.add(task_id, rows, blobs=output.blobs):
        if event.kind == Kind.CASE_OPENED:
            runtime.case_opened(f"{task_id}:{event.event_seq}")


def spill_late_news(run: Pass, frame: Frame, reply: Returned | Raised) -> None:
    """Keep a late success that the store does not take: it may be the only proof of the effect (rule 6)."""
    runtime, step = run.runtime, frame.definition
    if isinstance(reply, Raised) or classify_returned(
        reply.value, single_request=step.single_request, classify=step.classify, uncertain_before=True, handle_recorded=False
    ):
        return
    try:
        text = runtime.vault.mask(encode(reply.value, where=f"the output of {step.name}"))
    except NotCanonical:
        return
    row = draft(
        run.task_id, Kind.EVIDENCE_STORED, runtime.store.now(), step_seq=frame.step_seq, path=frame.path, step_name=step.name,
        attempt=frame.attempt, epoch=run.log.epoch, data={"what": "late_result"},
    )  # fmt: skip
    spill_result(run, row, text)


def contradicts(runtime: Runtime, task_id: str, frame: Frame) -> str | None:
    """Why a late success of this attempt contradicts what is settled, or None."""
    if frame.definition.effect == Effect.READ:
        return None
    record = fold_steps(runtime.store.rows(task_id)).get(frame.path)
    if record is None or not record.settled:
        return None
    late = f"attempt {frame.attempt} of {frame.name} succeeded late"
    if record.status in (StepStatus.NOT_APPLIED, StepStatus.FAILED):
        return f"{late}, after the step was settled as {record.status}"
    if record.effect == Effect.NON_IDEM_WRITE and any(a.number > frame.attempt for a in record.attempts):
        return f"{late}, and another attempt, which no key protects, had begun"
    return None

