"""One pass over a task's code: the places of its steps, what parks it, and drift."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from . import host
from .beyond import Fork
from .calls import Frame, Input, Raised, Returned, Runtime
from .drift import explained, first_difference, place_order, stored_params
from .effects import StepDefinition
from .endings import Ending
from .errors import Diverged, DoubtlessError, OutsideTask, Parking, StoreError, StoreUnavailable
from .events import UNDO, Effect
from .heldwrites import before_write
from .keeping import keep_trying
from .latenews import spill_late_news, store_late_news
from .log import Settled, TaskLog
from .questions import is_question
from .snapshots import Restored

if TYPE_CHECKING:
    import asyncio

    from .tasks import TaskRun
    from .turns import Turn


GROUP = "a parallel group"


class Park(NamedTuple):
    """Why a pass unwinds without an end."""

    why: str
    until: int | None = None
    human: bool = False
    frozen: str | None = None
    diverged: Diverged | None = None
    awaits: str | None = None
    cancelled: bool = False
    broken_off: bool = False


class Owner(Protocol):
    """What a pass needs of the run that makes it (`tasks.TaskRun`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime
    suspect: bool
    wait_limit: int | None
    trouble: DoubtlessError | None
    fork: Fork | None
    children: set[TaskRun]
    unsaid: list[Callable[[], None]]

    def leave_behind(self, frame: Frame) -> None:
        """A call goes on although nobody waits for it; of a write: the task stays owned until it has ended."""

    def zombie_ended(self, frame: Frame) -> None:
        """A call that was left behind has ended."""


class Scope:
    """Where places are counted: the code of a pass, or one branch of a parallel group; each in one thread or asyncio.Task.

    `prefix`: what its places begin with (``""``, ``"4.1."``). `count`: the last place that was given. `aside`: it has stepped
    aside for another branch; nothing of it goes on in this pass.
    """

    __slots__ = ("aio_task", "aside", "count", "prefix", "run", "thread")

    def __init__(self, run: Pass, prefix: str) -> None:
        self.run = run
        self.prefix = prefix
        self.count = 0
        self.aside = False
        self.thread = 0
        self.aio_task: asyncio.Task[Any] | None = None
        run.scopes[prefix] = self

    def begin(self) -> None:
        """Belong to this thread, and to the asyncio.Task that runs in it."""
        self.thread = get_ident()
        self.aio_task = self.run.here() if self.run.loop is not None else None

    def place(self, name: str) -> str:
        """The next place, given at the call. Raises OutsideTask for a stray thread or asyncio.Task."""
        run = self.run
        if (
            run.abandoned or run.parked is not None or run.over or run.log.cancel is not None or get_ident() != self.thread
            or (self.aio_task is not None and run.here() is not self.aio_task) or self.aside
        ):  # fmt: skip
            self.check(f"step {name}")
        self.count += 1
        return f"{self.prefix}{self.count}"

    def next_place(self, said: str) -> str:
        """The place that the next call gets. Raises OutsideTask for a stray thread or asyncio.Task."""
        self.check(said)
        return f"{self.prefix}{self.count + 1}"

    def check(self, said: str) -> None:
        """Refuse a call while the run parks or is cancelled, and from a stray thread or asyncio.Task."""
        run = self.run
        run.check()
        if self.aside:
            raise Parking("this branch has stepped aside")
        if run.log.cancel is not None:
            raise run.park_cancelled()
        if get_ident() != self.thread or (self.aio_task is not None and current_aio_task() is not self.aio_task):
            kind = "asyncio.Task" if self.aio_task is not None and get_ident() == self.thread else "thread"
            raise OutsideTask(
                f"{said} was called from another {kind} than its task's; nothing was written",
                hint="call it in the task's own code, or in a branch of app.parallel or app.map: "
                "its place must not depend on timing",
                task=run.task_id,
            )


class Pass:
    """One pass over the task's code: its places, its thread or asyncio.Task, and whether it parks.

    `turn`: of its event loop, what the loop's tasks share. `here`: which asyncio.Task runs.
    """

    parked: Park | None = None
    abandoned = False
    interrupted: BaseException | None = None
    over = False
    hurried = False
    ending: Ending | None = None
    loop: asyncio.AbstractEventLoop | None = None
    turn: Turn | None = None
    adrive_step: Callable[[Pass, StepDefinition, str, Input, bool], Awaitable[Any]] | None = None

    def __init__(self, run: Owner) -> None:
        self.owner = run
        self.task_id = run.task_id
        self.log = run.log
        self.runtime = run.runtime
        self.lock = host.lock()
        self.frames: set[Frame] = set()
        self._events: dict[str, threading.Event] = {}
        self.scopes: dict[str, Scope] = {}  # by the beginning of their places
        self.root = Scope(self, "")
        self.root.count = self.log.floor  # a snapshot's state stands for the places before
        self.undriven: dict[str, str] = {}  # places whose step was called, and not awaited yet: path -> name
        self.here: Callable[[], asyncio.Task[Any] | None] = current_aio_task
        self.branches: set[asyncio.Task[Any]] = set()
        self.driving: set[str] = set()  # places in branches whose step is under way
        self.waits: dict[str, Park] = {}  # places that wait, and for what the pass would park
        self.waiters: set[asyncio.Task[Any]] = set()  # branches that only wait
        self.asides: list[Park] = []  # for what the pass would park of branches that have stepped aside
        self.groups: dict[str, list[int]] = {}  # parallel groups under way: how many at once, how many are left
        self.given_up: set[str] = set()  # places whose call was taken away from this pass
        self.suspect = run.suspect
        self.news = run.log.news  # what others had added when it began

    @property
    def stop(self) -> threading.Event:
        """Set when nothing of this pass is to wait any more."""
        return self._event("stop")

    @property
    def done(self) -> threading.Event:
        """Set when its code has ended, for whoever supervises it from another thread."""
        return self._event("done")

    def _event(self, name: str) -> threading.Event:
        """Made when it is first asked for: on an event loop nobody does. Of two threads that make one, one has made it."""
        return self._events.get(name) or self._events.setdefault(name, host.event())

    # ------------------------------------------------------------ a state beside the log (agents)

    @property
    def restored(self) -> Restored | None:
        """What this task's code left in a snapshot, and for how many places it stands; None: it begins from zero."""
        return self.log.restored

    def snapshot_state(self, state: str | Callable[[], str]) -> None:
        """Offer the state that stands for all places so far, as JSON text; it is asked for only when a snapshot is due."""
        self.check()
        self.log.keep_state(state, self.root.count)

    # ------------------------------------------------------------ what a step needs of it

    def park(
        self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None, awaits: str | None = None
    ) -> Parking:
        if self.parked is None:
            self.parked = Park(why, until, human, frozen, awaits=awaits)
            for aside in self.asides:
                if aside.until is not None:
                    self.wake_by(aside.until)
        elif until is not None:
            self.wake_by(until)
        return Parking(why)

    def step_aside(self, path: str, why: str, *, until: int) -> Parking:
        """Unwind this branch alone: it waits for another one of this pass, which may not even have begun.

        The pass parks when its outermost group has ended, or when all that are under way wait.
        """
        scope = self.scopes.get(path[: path.rfind(".") + 1])
        if scope is None or not scope.prefix:
            return self.park(why, until=until)
        scope.aside = True
        self.asides.append(Park(why, until))
        return Parking(why)

    def break_off(self, what: str, path: str, until: int | None) -> None:
        """Park because what waited for a step that has begun was cancelled (rule 7): the code must not go on without it."""
        if path in self.log.open and (self.parked is None or not self.parked.broken_off):
            self.park(f"{what} at {path} was interrupted: CancelledError", until=until)
            if self.parked is not None:
                self.parked = self.parked._replace(broken_off=True)

    def wake_by(self, until: int) -> None:
        """A pass that parks until later, or for a person, has something to do at this time, too."""
        with self.lock:
            parked = self.parked
            if parked is not None and parked.diverged is None and (parked.human or parked.until is not None):
                if parked.until is None or until < parked.until:
                    self.parked = parked._replace(until=until)

    def all_wait(self, path: str, park: Park) -> Park | None:
        """Note that the branch at this place waits; for what the pass parks, once all that are under way wait."""
        with self.lock:
            self.waits[path] = park
            going = 1 + sum(min(limit, left) - 1 for limit, left in self.groups.values() if left)
            if self.driving or len(self.waits) < going:
                return None
            parks = [*self.waits.values(), *self.asides]
        until = min((one.until for one in parks if one.until is not None), default=None)
        return park._replace(until=until, human=all(one.human for one in parks))

    @contextmanager
    def under_way(self, group: str, limit: int, branches: int) -> Iterator[None]:
        """Count the branches of a parallel group that are under way."""
        self.groups[group] = [limit, branches]
        try:
            yield
        finally:
            self.groups.pop(group, None)

    def branch_ended(self, group: str) -> None:
        """One branch less of this group is under way."""
        with self.lock:
            if group in self.groups:
                self.groups[group][1] -= 1

    def broken(self, error: DoubtlessError) -> Parking:
        self.owner.trouble = error
        return self.park(str(error))

    def check(self) -> None:
        if self.abandoned or self.parked is not None:
            raise Parking(self.parked.why if self.parked else "this pass was given up")
        if self.over:
            raise Parking("the task's code has ended")

    def cancelled(self, path: str) -> bool:
        return self.log.cancel is not None and path[0] != UNDO

    def park_cancelled(self) -> Parking:
        if self.parked is None:
            self.parked = Park("cancelled: nothing new begins", cancelled=True)
        return Parking(self.parked.why)

    def is_quiet(self) -> bool:
        """Whether nothing of this pass can append any more, once it was given up."""
        with self.lock:
            return not self.frames and self.driving <= self.given_up

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
        def store() -> None:
            store_late_news(self.runtime, self.task_id, self.log.epoch, frame, reply)

        def keep(_: StoreUnavailable) -> None:
            spill_late_news(self, frame, reply)
            self.owner.unsaid.append(store)

        if frame.what == "call":
            try:
                keep_trying(self, store, keep)
            finally:
                self.owner.zombie_ended(frame)

    def offer_late(self) -> None:
        unsaid = self.owner.unsaid
        while unsaid:
            store = unsaid.pop()
            try:
                store()
            except StoreUnavailable:
                unsaid.append(store)
                return

    # ------------------------------------------------------------ places

    def enter(self, definition: StepDefinition, path: str, given: Input) -> Settled | None:
        """Check what the log holds at this place against what the code asks for; the settled step, if it is one."""
        settled = self.log.settled.pop(path, None)
        if settled is not None and settled.input_hash == given.digest and settled.name == definition.name:
            return settled
        return self.meet(definition, path, given, settled)

    def meet(self, definition: StepDefinition, path: str, given: Input, drifted: Settled | None) -> Settled | None:
        """The same for what is not settled there, or is another step."""
        log = self.log
        try:
            if drifted is not None:
                log.settled[path] = drifted
                self.diverge(definition, path, given, drifted.name)
            if path in log.open:
                record = log.record(path)
                if record is not None and (record.input_hash != given.digest or record.name != definition.name):
                    self.diverge(definition, path, given, record.name)
            elif path in log.groups:
                self.diverge(definition, path, given, GROUP)
            elif self.owner.fork is not None and definition.effect != Effect.READ:
                return before_write(self, self.owner.fork, definition, path, given)
        except StoreError as error:  # content that cannot be read: task code must not take it for the step's failure
            raise self.broken(error) from error
        return None

    def enter_group(self, path: str) -> None:
        """Check that the log holds no step where the code begins a parallel group."""
        settled, rows = self.log.settled.get(path), self.log.open.get(path)
        logged = settled.name if settled is not None else rows[0].step_name if rows else None
        if logged is not None:
            message = f"task {self.task_id}: at place {path} the log holds step = {logged!r}, the code begins {GROUP}"
            raise self.diverged(Diverged(message, path=path, field="step", logged=logged, asked=GROUP))

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
        raise self.diverged(Diverged(message, path=path, field=field, logged=logged, asked=asked), definition, given)

    def diverge_child(self, path: str, field: str, logged: Any, asked: Any) -> NoReturn:
        """Refuse a child whose input is not the one that it was started with."""
        was = f"the log holds a child with {field} = {logged!r}"
        message = f"task {self.task_id}: at place {path} {was}, the code asks for {asked!r}"
        raise self.diverged(Diverged(message, path=path, field=field, logged=logged, asked=asked))

    def diverged(
        self, error: Diverged, definition: StepDefinition | None = None, given: Input | None = None
    ) -> Diverged:  # fmt: skip
        """Mark the pass as diverged."""
        error.more = explained(self.runtime, self.task_id, error, definition, given)
        if self.parked is None:
            self.parked = Park(error.message, human=True, diverged=error)
        return error

    def reached(self, path: str) -> bool:
        """Whether the code has called a step at this place in this pass."""
        prefix, _, last = path.rpartition(".")
        scope = self.scopes.get(prefix and prefix + ".")
        return scope is not None and int(last) <= scope.count

    def leftover(self, *, failing: bool = False) -> Diverged | None:
        """Code that ends without having called every logged step is Diverged too.

        `failing`: it fails for good, and what it has called and does not wait for any more ends with it.
        """
        # What was settled again behind a branch that had called it, and was cancelled, has been called.
        paths = [p for p in self.log.settled if p[0] != UNDO and (not self.reached(p) or p in self.undriven)]
        waived = [p for p, rows in self.log.open.items() if self.reached(p) and (failing or is_question(rows[0]))]
        paths += [p for p in self.log.open if p[0] != UNDO and p not in waived]
        if not paths:
            return None
        path = min(paths, key=place_order)
        name = self.log.settled[path].name if path in self.log.settled else (self.log.open[path][0].step_name or "")
        message = f"task {self.task_id}: the code ended without calling step {name}, which the log holds at place {path}"
        return self.diverged(Diverged(message, path=path, field="step", logged=name, asked=None))


def current_aio_task() -> asyncio.Task[Any] | None:
    """The asyncio.Task that runs in this thread, or None."""
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
