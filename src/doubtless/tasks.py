"""A run of a task: it holds the claim, makes passes over the task's code until it ends or parks, and writes that down.

A pass executes task code once, from the top; finished steps are answered from the log. A second pass follows when a
call overran its timeout.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from . import canonical, host
from .attempts import timed_out
from .beyond import Fork
from .calls import Frame, Runtime, current
from .compensation import aundo_all, undo_all
from .conclusion import Concluding, TaskCode
from .drivers import drive
from .durations import parse_duration
from .effects import StepDefinition
from .endings import Ending, unwrapped
from .errors import Abort, DoubtlessError, Moved, Parking, StepFailed, StoreUnavailable
from .events import Effect, Instant
from .executor import run_step
from .keeping import keep_trying
from .log import TaskLog
from .lookback import record_overrun_look
from .outcomes import Outcome
from .passes import Park, Pass
from .recording import record_outcome
from .secrets import Secret

if TYPE_CHECKING:
    pass


PULSE = 0.5
"""Seconds after which a supervisor looks up: of two signals at once, an interpreter may let the first one's waiter sleep."""


QUIET = 0.005
"""Seconds after which a supervisor looks again whether the branches of a pass that was given up are through."""

GOODBYE = 2.0
"""Seconds for which a run that was interrupted lets its pass record what it has just done."""


class TaskRun(Concluding):
    """One claim of a task: makes passes over its code until it ends or parks, then writes that down.

    `params`: what the task was accepted with, as it is stored. `secret`: of a compensation, those of them that are secret.
    """

    concluded = False
    drained = False
    trouble: DoubtlessError | None = None
    interrupted: BaseException | None = None
    fork: Fork | None = None
    secret: frozenset[str] = frozenset()

    def __init__(
        self, runtime: Runtime, log: TaskLog, code: TaskCode, params: str, *, wait_limit: int | None
    ) -> None:
        self.runtime = runtime
        self.log = log
        self.task_id = log.task_id
        self.code = code
        self.params = params
        self.wait_limit = wait_limit
        self.zombies: set[Frame] = set()
        self.unsaid: list[Callable[[], None]] = []  # what late calls said and the store did not take, to be offered again
        self.children: set[TaskRun] = set()  # the runs of child tasks that this run makes
        self.suspect = runtime.store.info().suspect
        self.last = Pass(self)
        self.owes: Callable[[str, Callable[[], None]], None] = _at_once  # how it gives the task back after its end
        self.zombie_lock = host.lock()
        self._turn = host.rlock()  # a signal's handler may drain while this very thread begins a pass

    # ------------------------------------------------------------ a pass

    def next_pass(self) -> Pass:
        """Begin another pass over what the log holds now."""
        with self._turn:
            self.last = Pass(self)
            if self.drained:
                self.last.park("drained: this process stops")
            return self.last

    def part(self) -> None:
        """Part from its last pass, once both are over: they go with whoever has them last, and need no garbage collector.

        What goes on all the same, a call that was left behind, knows its pass and that its run.
        """
        this = self.last
        if this.over:
            this.scopes.clear()
            del this.root, self.last

    def arguments(self) -> dict[str, Any]:
        """The task's params, decoded anew for each pass and typed by its annotations; a secret as what its steps take."""
        params: dict[str, Any] = canonical.decode(self.params)
        secrets = {name: Secret(params.pop(name)["$secret"]) for name in self.secret if params.get(name) is not None}
        self.code.definition.restore_params(params)
        return params | secrets

    def doubts(self, this: Pass) -> list[tuple[StepDefinition | None, str, str]]:
        """The steps to settle before task code runs, in the order of first arrival.

        A late read that no table has (one of the library's own, or gone) is left to the code: it comes with its definition.
        """
        if not self.log.open:
            return []
        records = [r for r in self.log.open_records() if not r.undoes]  # compensations are settled in their own order
        found = [r for r in records if r.in_doubt or (r.evidence is not None and not r.settled)]
        named = [(self.runtime.find(r.name), r) for r in found]
        return [(step, r.path, r.name) for step, r in named if step is not None or r.effect != Effect.READ]

    def work(self, this: Pass) -> Ending:
        """One pass in this thread: settle what is in doubt, then run the task's code."""
        this.root.begin()
        token = current.set(this.root)
        try:
            self.settle_doubts(this)
            if self.log.held:
                if self.log.ending:
                    undo_all(this)
                return Ending()
            ending = Ending(self.code.fn(**self.arguments()))
        except BaseException as error:  # noqa: BLE001
            ending = Ending(error=unwrapped(error))
        finally:
            current.reset(token)
        aside: list[Park] = []
        if not self.left_in_doubt(this, ending, aside):
            return ending
        try:
            self.settle_doubts(this)
        except BaseException as error:  # noqa: BLE001
            return Ending(error=error)
        return self.stands_before(this, ending, aside[0])

    def settle_doubts(self, this: Pass) -> None:
        """Settle what is in doubt, each as far as it can be; park if that leaves something."""
        parks: list[Park] = []
        for definition, path, name in self.doubts(this):
            try:
                drive(this, run_step(this, definition, path, None, name=name))
            except Parking:
                if not this.set_aside(parks):
                    raise
        if parks:
            raise this.park_for(parks)

    def left_in_doubt(self, this: Pass, ending: Ending, aside: list[Park]) -> bool:
        """Whether branches have left doubts that the first to park, or to fail, kept from their cases."""
        doubts = len(self.doubts(this))
        failed = isinstance(ending.error, StepFailed | Abort) and doubts > 0
        if not failed and not (isinstance(ending.error, Parking | None) and doubts > 1):
            return False
        return this.set_aside(aside)

    def stands_before(self, this: Pass, ending: Ending, park: Park) -> Ending:
        """How the pass ends when those doubts are settled: another branch may stand before something else."""
        failed = isinstance(ending.error, StepFailed | Abort)
        if failed and (park.human or park.until is not None or park.frozen is not None):
            this.parked = park
        return ending

    async def awork(self, this: Pass) -> Ending:
        """The same on the event loop, in the caller's asyncio.Task."""
        loop_half().go_on_loop(this)
        this.root.begin()
        token = current.set(this.root)
        ending = Ending()
        try:
            if self.log.open:
                await self.asettle_doubts(this)
            if self.log.ending:
                await aundo_all(this)
            elif not self.log.held:
                ending = Ending(await self.code.fn(**self.arguments()))
        except BaseException as error:  # noqa: BLE001
            ending = Ending(error=unwrapped(error))
        try:
            current.reset(token)
        except ValueError:
            pass  # its event loop is gone, and with it its context
        for waiter in list(this.waiters):  # the code has ended without what these still wait for
            waiter.cancel()
        if this.branches or this.interrupted is not None:
            ending = await self.branches_ended(this, ending)
        aside: list[Park] = []
        if self.log.open and self.left_in_doubt(this, ending, aside):
            try:
                await self.asettle_doubts(this)
                ending = self.stands_before(this, ending, aside[0])
            except BaseException as error:  # noqa: BLE001
                ending = Ending(error=error)
        this.over = True
        return ending

    async def aend(self, ending: Ending) -> Ending:
        """Write that the task is done in a commit that the loop's tasks share; how the pass has ended.

        Only where nothing stands against it (`plainly_done`); what more there is to an end, and what goes wrong, is `conclude`'s.
        """
        if not self.plainly_done(ending):
            return ending
        log, turn, interrupted = self.log, self.last.turn, None
        assert turn is not None
        try:
            row, blobs = self.done_row(ending.value)
        except DoubtlessError:
            return ending
        try:
            flight = log.submit(row, blobs=blobs)
            if flight is not None:
                try:
                    await turn.end(flight.ticket)
                except BaseException as error:  # noqa: BLE001 - cancelled: the commit is made now
                    interrupted = error
                log.landed(flight)
        except StoreUnavailable:
            try:
                keep_trying(self.last, lambda: log.append(row, blobs=blobs))
            except Moved:
                return ending
            except DoubtlessError as error:
                self.trouble = error
                return ending
        except DoubtlessError:
            return ending if interrupted is None else Ending(error=interrupted)
        self.last_row, self.concluded = row, True
        return ending if interrupted is None else Ending(error=interrupted)

    async def asettle_doubts(self, this: Pass) -> None:
        """Settle what is in doubt, each as far as it can be; park if that leaves something."""
        doubts = self.doubts(this)
        if not doubts:
            return
        from .adrivers import adrive

        parks: list[Park] = []
        for definition, path, name in doubts:
            try:
                await adrive(this, run_step(this, definition, path, None, name=name))
            except Parking:
                if not this.set_aside(parks):
                    raise
        if parks:
            raise this.park_for(parks)

    async def branches_ended(self, this: Pass, ending: Ending) -> Ending:
        """Let the steps that other branches have in flight be finished and recorded; when cancelled, cancel them too."""
        import asyncio

        while this.branches and not isinstance(ending.error, GeneratorExit):
            if isinstance(ending.error, asyncio.CancelledError):
                for branch in this.branches:
                    branch.cancel()
            try:
                await asyncio.wait(set(this.branches))
            except BaseException as error:  # noqa: BLE001
                ending = Ending(error=error)
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
                thread = host.thread(
                    target=context.run, args=(self._runner, this), name=f"doubtless:{self.task_id}", daemon=True
                )
                thread.start()
                ending = self.see_through(this)
                if ending is not None:
                    return ending
                self.log.load()
        except BaseException as caught:  # Ctrl-C, a signal's exception: rule 7; or the store failed  # noqa: BLE001
            error = what_interrupted(caught)
            if isinstance(error, DoubtlessError):
                self.trouble = error
            self.interrupt(error)
            self.say_goodbye(self.last)
            return Ending(error=error)

    def see_through(self, this: Pass) -> Ending | None:
        """Wait until the pass has ended; None: it was given up, and nothing of it appends any more."""
        while not this.done.wait(min(self.next_look(this), PULSE)):
            if self.take_over(this):
                return None
        if not this.abandoned:
            return this.ending or Ending(error=self.interrupted or Parking("interrupted"))
        while not self.take_over(this):  # its code has ended, and a branch records what it had in flight
            host.event().wait(QUIET)
        return None

    def say_goodbye(self, this: Pass) -> None:
        """Let a pass that was interrupted record what it has just done, for a moment."""
        if not this.abandoned:
            this.done.wait(GOODBYE)
        until = self.runtime.monotonic() + GOODBYE
        while this.abandoned and not this.is_quiet() and self.runtime.monotonic() < until:
            host.event().wait(QUIET)

    def _runner(self, this: Pass) -> None:
        try:
            if self.code.is_async:
                import asyncio

                asyncio.run(self._arunner(this))
            else:
                this.ending = self.work(this)
        except BaseException as error:  # noqa: BLE001
            this.ending = this.ending or Ending(error=error)
        finally:
            this.done.set()

    async def _arunner(self, this: Pass) -> None:
        this.ending = await self.awork(this)
        this.done.set()  # before the event loop is closed: a call that cannot be cancelled would hold that up

    def next_look(self, this: Pass) -> float:
        """Seconds until the supervisor has to look: a call that starts later cannot overrun before."""
        deadlines = [] if self.code.is_async else [frame.deadline for frame in list(this.frames)]
        if not deadlines:
            return self.shortest_timeout
        return max(0.001, min(self.shortest_timeout, min(deadlines) - self.runtime.monotonic()))

    shortest_timeout = 1.0

    def take_over(self, this: Pass) -> bool:
        """Record what has overrun its timeout, and give the pass up; True when nothing of it is going on any more."""
        if not self.code.is_async:
            with this.lock:
                now = self.runtime.monotonic()
                overdue = [frame for frame in in_order(this.frames) if now >= frame.deadline]
                for frame in overdue:
                    self._abandon(this, frame)
            for child in list(self.children) if this.abandoned else []:
                child.drain()
            for frame in overdue:
                self._record(frame, timed_out(frame.definition.timeout_us))
        return this.abandoned and this.is_quiet()

    def interrupt(self, error: BaseException) -> None:
        """A signal or a cancellation came while a pass runs in another thread: what it has in flight is in doubt."""
        with self._turn:
            self.interrupted = error
            this = self.last
        with this.lock:
            this.park(f"interrupted: {type(error).__name__}")
            this.stop.set()
            frames = in_order(this.frames)
            for frame in frames:
                self._abandon(this, frame)
        for child in list(self.children):
            child.interrupt(error)
        for frame in frames:
            self._record(frame, Outcome("unknown", type(error).__name__, "interrupted while the call ran", None))
        if not frames and this.loop is not None and this.root.aio_task is not None:
            try:
                this.loop.call_soon_threadsafe(this.root.aio_task.cancel)
            except RuntimeError:
                pass  # its event loop is closed: nothing is in flight there

    def _abandon(self, this: Pass, frame: Frame) -> None:
        """Take a running call away from its pass, whose lock is held: from here on its result is late news."""
        frame.overrun = this.abandoned = True
        this.frames.discard(frame)
        this.given_up.add(frame.path)
        this.stop.set()
        self.leave_behind(frame)

    def _record(self, frame: Frame, outcome: Outcome) -> None:
        try:
            if frame.what == "call":
                record_outcome(frame, outcome, running=True)
            else:
                record_overrun_look(frame, outcome)
        except Moved:
            pass  # somebody recorded something newer; the next pass folds it

    def drain(self) -> None:
        """Park at the next step; the one that runs is finished and recorded first."""
        with self._turn:
            self.drained = True
            self.last.park("drained: this process stops")
            self.last.stop.set()
        for child in list(self.children):
            child.drain()

    def leave_behind(self, frame: Frame) -> None:
        """A call goes on although nobody waits for it; of a write: the task stays owned until it has ended."""
        if frame.what == "call" and frame.definition.effect != Effect.READ:
            with self.zombie_lock:
                self.zombies.add(frame)

    def zombie_ended(self, frame: Frame) -> None:
        """A call that was left behind has ended; the last one frees a task that is parked."""
        with self.zombie_lock:
            self.zombies.discard(frame)
            if self.concluded and not self.zombies:
                self.owes(self.task_id, lambda: self.runtime.store.release(self.task_id, self.log.epoch))


@cache
def loop_half() -> Any:
    """`adrivers`, loaded when the first async task runs, and not looked for again: that was a twentieth of a short task."""
    from . import adrivers

    return adrivers


def _at_once(task_id: str, give_back: Callable[[], None]) -> None:
    give_back()


def in_order(frames: Iterable[Frame]) -> list[Frame]:
    """Calls in the order in which their steps first came: what is recorded of several does not depend on chance."""
    return sorted(frames, key=lambda frame: (frame.step_seq, frame.attempt))


def what_interrupted(error: BaseException) -> BaseException:
    """What broke into a wait: a second signal at that moment shows as an error of the wait's own lock."""
    seen: BaseException | None = error
    while isinstance(seen, Exception):
        seen = seen.__context__
    return error if seen is None else seen


def wait_limit(now: Instant, wait: bool | str) -> int | None:
    """Until when a run waits in place: None for ever, otherwise a time of the store's clock."""
    return None if wait is True else now.wall + (0 if wait is False else parse_duration(wait))
