"""One pass over a task's code: the places of its steps, drift, and what calling a step does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from . import canonical
from .calls import Frame, Input, Raised, Returned, Runtime, current
from .canonical import encode
from .drivers import adrive, drive_step
from .effects import StepDefinition
from .errors import Abort, Diverged, DoubtlessError, NotCanonical, OutsideTask, Parking, StepFailed, UsageError
from .executor import run_step
from .inputs import prepare
from .keeping import keep_trying
from .latenews import spill_late_news, store_late_news
from .log import Settled, TaskLog
from .outputs import replayed

if TYPE_CHECKING:
    import asyncio


class Park(NamedTuple):
    """Why a pass unwinds without an end."""

    why: str
    until: int | None = None
    human: bool = False
    frozen: str | None = None
    diverged: Diverged | None = None


class Owner(Protocol):
    """What a pass needs of the run that makes it (`tasks.TaskRun`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime
    suspect: bool
    wait_limit: int | None
    trouble: DoubtlessError | None

    def leave_behind(self, frame: Frame) -> None:
        """A call goes on although nobody waits for it; of a write: the task stays owned until it has ended."""

    def zombie_ended(self, frame: Frame) -> None:
        """A call that was left behind has ended."""


class Pass:
    """One pass over the task's code: its places, its thread or asyncio.Task, and whether it parks."""

    def __init__(self, run: Owner) -> None:
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
        self.undriven: dict[str, str] = {}  # places whose step was called, and not awaited yet: path -> name
        self.thread = 0
        self.aio_task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.branches: set[asyncio.Task[Any]] = set()
        self.interrupted: BaseException | None = None
        self.over = False
        self.hurried = False
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
        return not self.hurried and (limit is None or until <= limit)

    def set_aside(self, parks: list[Park]) -> bool:
        """Take back the parking of one doubt, so that the others are settled as far as they can be without waiting.

        None of them may be left without a case or a time to look again (I6).
        """
        with self.lock:
            parked = self.parked
            stopped = self.abandoned or self.stop.is_set() or self.owner.trouble is not None or self.interrupted is not None
            if parked is None or parked.diverged is not None or stopped:
                return False
            parks.append(parked)
            self.parked, self.hurried = None, True
            return True

    def park_for(self, parks: list[Park]) -> Parking:
        """Park for all that was set aside: for a person, if one is needed, and with the earliest time to look again."""
        first = next((park for park in parks if park.human), parks[0])
        until = min((park.until for park in parks if park.until is not None), default=None)
        with self.lock:
            if self.parked is None:
                self.parked = first._replace(until=until)
        return Parking(first.why)

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
        if self.abandoned or self.parked is not None or self.over:
            self.check()
        if get_ident() != self.thread or (self.aio_task is not None and _current_aio_task() is not self.aio_task):
            kind = "asyncio.Task" if self.aio_task is not None and get_ident() == self.thread else "thread"
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
        # What was settled again behind a branch that had called it, and was cancelled, has been called.
        paths = [p for p in self.log.settled if _place_order(p)[0] > self.count or p in self.undriven]
        paths += self.log.open
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
        this.undriven[path] = definition.name
        return acall_step(this, definition, path, given)
    settled = this.enter(definition, path, given)
    if settled is not None:
        return replayed(this, definition, path, settled)
    return drive_step(this, definition, path, given)


async def acall_step(this: Pass, definition: StepDefinition, path: str, given: Input) -> Any:
    """The async half of `call_step`: the place is taken already, in the task's own code."""
    this.check()
    this.undriven.pop(path, None)  # not before: what begins only after the task's code has ended is never driven
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


class Ending(NamedTuple):
    """How a pass ended: with a value, or with what was raised."""

    value: Any = None
    error: BaseException | None = None


def unwrapped(error: BaseException) -> BaseException:
    """What an `asyncio.TaskGroup` raised, as what it holds: of steps that failed, the first in branch order.

    A group that holds something else too (an exception of the code, Ctrl-C) stays as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    from asyncio import CancelledError

    leaves = list(_leaves(error))
    if not all(isinstance(leaf, StepFailed | Abort | Parking | CancelledError) for leaf in leaves):
        return error
    failed = [leaf for leaf in leaves if isinstance(leaf, StepFailed)]
    if failed:
        return min(failed, key=lambda one: _place_order(one.path))
    order = (Abort, Parking, CancelledError)
    return next(leaf for kind in order for leaf in leaves if isinstance(leaf, kind))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
