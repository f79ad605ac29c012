"""Playing a scenario: processes of the real product, what goes wrong in them, and a person who knows the truth."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import apsw

from doubtless import (
    Doubtless,
    DoubtlessError,
    NeedsHuman,
    StoreUnavailable,
    TaskBusy,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UsageError,
)
from doubtless.answers import Abandon, Answer, AnyAnswer, Compensate, DidNotHappen, Fail, Happened, LetStand, Noted, Retry
from doubtless.calls import Frame, current
from doubtless.drivers import invoke
from doubtless.errors import AlreadySettled, AnswerRefused, CaseChanged, EventRefused, Late, StaleEpoch, UnknownTask
from doubtless.events import TERMINAL, CaseKind, Effect, Instant, Kind, boot_mark
from doubtless.inbox import Case
from doubtless.store import owners
from doubtless.store.schema import queries
from doubtless.store.sqlite import SqliteStore

from .kernel import SECOND, Event, Kernel, Killed, Process, Stuck
from .program import Program, every
from .scenario import Ask, Fault, Scenario
from .world import World

START = 1_764_320_400_000_000
BOOT = 3_600_000_000
ID = "task"
ROUNDS = 60
WAITS = 20.0
"""Seconds between one process and the next, and between two visits of the person."""


class SimClock:
    """The clocks of the simulated host. A jump turns the wall clock, and not the boot-time one."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.jumped = 0
        self._mark = boot_mark("simulation", 0)

    def now(self) -> Instant:
        now = self.kernel.now
        return Instant(START + now + self.jumped, self._mark | (BOOT + now))

    def monotonic(self) -> float:
        return self.kernel.now / SECOND

    def pause(self, seconds: float, stop: Event | None) -> None:
        kernel = self.kernel
        kernel.process.check()
        if stop is not None and stop.flag:
            return
        me = kernel.current
        assert me is not None
        queues = [kernel.commits] if stop is None else [kernel.commits, stop.queue]
        for queue in queues:
            queue.append(me)
        try:
            kernel.block(seconds, "pause")
        finally:
            for queue in queues:
                if me in queue:
                    queue.remove(me)

    async def apause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        moved = loop.create_future()

        def wake() -> None:
            if not moved.done():
                moved.set_result(None)

        def look() -> None:
            if not moved.done() and not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        self.kernel.on_commit.append(look)
        try:
            await asyncio.wait({moved}, timeout=min(seconds, 30.0))
        finally:
            self.kernel.on_commit.remove(look)


class Cursor:
    """A cursor whose driver has trouble when the run says so."""

    def __init__(self, play: Play, process: Process, real: apsw.Cursor) -> None:
        self._play, self._process, self._real = play, process, real
        self._single = (queries()["append"], queries()["append_unfrozen"])

    def execute(self, sql: str, args: Any = ()) -> Any:
        if sql != "COMMIT" and sql not in self._single:
            return self._real.execute(sql, args)
        trouble = self._play.trouble_of(self._process)
        if trouble is not None and trouble != "after":
            raise {"full": apsw.FullError, "busy": apsw.BusyError, "io": apsw.IOError}[trouble](f"simulated: {trouble}")
        done = self._real.execute(sql, args)
        if trouble == "after":
            raise apsw.IOError("simulated: after the commit")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Connection:
    """A connection whose cursors are such."""

    def __init__(self, play: Play, process: Process, real: apsw.Connection) -> None:
        self._play, self._process, self._real = play, process, real

    def cursor(self) -> Cursor:
        return Cursor(self._play, self._process, self._real.cursor())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class ProcessStore:
    """A process's store; a dead one gets nothing of it."""

    def __init__(self, store: SqliteStore, process: Process) -> None:
        self._store, self._process = store, process

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value
        process = self._process

        def alive(*args: Any, **kwargs: Any) -> Any:
            if process.dead:
                raise Killed(process.name)
            return value(*args, **kwargs)

        setattr(self, name, alive)
        return alive


class Play:
    """One run: from the first process to the task's end."""

    def __init__(self, scenario: Scenario, folder: str) -> None:
        self.scenario = scenario
        self.folder = folder
        self.kernel = Kernel(scenario.schedule)
        self.clock = SimClock(self.kernel)
        self.world = World(self.kernel, deploys=any(fault.what == "deploy" for fault in scenario.faults))
        self.program = Program(scenario, self.world, self.kernel)
        self.points = 0
        self.faults = defaultdict[int, list[Fault]](list)
        for fault in scenario.faults:
            self.faults[fault.at].append(fault)
        self.trouble: dict[int, list[Any]] = {}
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.risks: set[tuple[str, str]] = set()
        self.held: set[str] = set()  # cases of steps that cannot be retried: another step has their business key by now
        self.in_flight: dict[tuple[str, int], int] = {}  # since when a person sees a case's attempt without an end
        self.said: set[str] = set()
        self.answered = 0
        self.apps: dict[int, Doubtless] = {}
        self.story: list[str] = []
        self.asked_at: dict[str, int] = {}

    # ------------------------------------------------------------ the parts of a process

    def app(self, process: Process) -> Doubtless:
        hooks = None if process is self.kernel.outside else lambda name: self.reach(process, name)
        clock: Any = self.clock
        app = Doubtless(f"sqlite:///{self.folder}/s.db", namespace="sim", clock=clock, hooks=hooks)
        app._open = lambda url, **options: self._open(process, **options)
        app._invoke = self._invoke
        app._randomness = random.Random(f"{self.scenario.schedule} {process.pid}").randbytes
        self.apps[process.pid] = app
        return app

    def _open(self, process: Process, *, clock: Any, namespace: bytes | None, hooks: Any, read_only: bool, **rest: Any) -> ProcessStore:
        owners._OWNERS.pop(f"{self.folder}/s.db.owners", None)
        store = SqliteStore(
            f"{self.folder}/s.db", clock=clock, namespace=namespace, hooks=self._committed if hooks is None else hooks,
            read_only=read_only, file_system=lambda path: "ext4", randomness=random.Random(process.pid).randbytes,
        )  # fmt: skip
        opener = store._link._opener
        store._link._opener = lambda: Connection(self, process, opener())  # type: ignore[assignment,return-value]

        def dies() -> None:
            store._owner.forsake()
            store._link._shut()

        process.at_end.append(dies)
        return ProcessStore(store, process)

    def _committed(self, name: str) -> None:
        if name.endswith(":after"):
            self.seen["commits"] += 1
            self.kernel.committed()

    def _invoke(self, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Around each call of user code: the guarantees that are about the moment before it, and faults."""
        frame, process = current.get(), self.kernel.process
        assert isinstance(frame, Frame)
        process.check()
        if frame.what == "call" and frame.definition.effect != Effect.READ and not frame.name.startswith("$"):
            self._before_a_write(frame, kwargs)
        self.reach(process, f"{frame.what}:before")
        value = invoke(fn, kwargs)
        if hasattr(value, "__await__"):
            return self._awaited(process, frame, value)
        self.reach(process, f"{frame.what}:after")
        return value

    async def _awaited(self, process: Process, frame: Frame, value: Any) -> Any:
        value = await value
        self.reach(process, f"{frame.what}:after")
        return value

    def _before_a_write(self, frame: Frame, kwargs: dict[str, Any]) -> None:
        place = (frame.run.task_id, frame.path)
        rows = self.desk.store.rows(place[0], path=place[1])
        began = [r for r in rows if r.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED) and r.attempt == frame.attempt]
        if not began:
            self.wrong.append(f"I1: attempt {frame.attempt} of {frame.name} at {place} is called, and no row says that it began")
        keys = [r.idempotency_key for r in rows if r.idempotency_key is not None]
        given = kwargs.get("idempotency_key")
        if began and (not keys or given != keys[-1].hex()):
            self.wrong.append(f"I5: attempt {frame.attempt} of {frame.name} at {place} is called with another key than the log's")
        free = frame.definition.effect == Effect.IDEM_WRITE or place in self.risks
        if self.world.may_land(place) and not free:
            self.wrong.append(f"I2: attempt {frame.attempt} of {frame.name} at {place} is called while an earlier one may land")

    # ------------------------------------------------------------ faults

    def reach(self, process: Process, label: str) -> None:
        """Come by a point of the run: what is to happen there happens."""
        if process.dead:
            raise Killed(process.name)
        if process is not self.kernel.outside:  # a cancel from outside may run what undoes it there: nobody would go on after its death
            number, self.points = self.points, self.points + 1
            for fault in self.faults.pop(number, ()):
                self.happen(fault, process, label)
        if label in ("append:after", "add:after"):
            self.seen["commits"] += 1
        if label.endswith(":after"):
            self.kernel.committed()
        self.kernel.point(label)

    def happen(self, fault: Fault, process: Process, label: str) -> None:
        self.seen[f"fault {fault.what}"] += 1
        self.story.append(f"{self.kernel.now / SECOND:.2f} {fault.what} of {process.name} at {label}")
        kernel, desk = self.kernel, self.desk
        match fault.what:
            case "kill":
                self.seen[f"kill at {label}"] += 1
                kernel.kill(process)
            case "stop":
                kernel.stop(process, fault.seconds)
                kernel.point(label)
            case "jump":
                self.clock.jumped += round(fault.seconds * SECOND)
            case "second":
                self.launch("second")
            case "restart":
                app = self.apps[process.pid]
                kernel.outside_thread(app.drain, process)
            case "cancel":
                self.aside(lambda: desk.cancel(ID, by="person", why="not wanted", wait=False))
            case "freeze":

                def freeze() -> None:
                    desk.freeze(why="look first", by="person")
                    kernel.sleep(fault.seconds)
                    with contextlib.suppress(UsageError):  # two froze, and one has thawed for both
                        self.insist(lambda: desk.thaw(why="go on", by="person"))

                self.aside(freeze)
            case "unlock":
                self.unlock(process)
                self.launch("second")
            case "deploy":
                self.program.release += 1
            case _:
                self.trouble[process.pid] = [fault.what, fault.times]

    def unlock(self, process: Process) -> None:
        """Remove its owner's lock file: whoever looks takes the process for dead from now on."""
        store = self.apps[process.pid]._store
        owner = store._store._owner.id if isinstance(store, ProcessStore) else None
        if owner is not None:
            with contextlib.suppress(FileNotFoundError):  # it was taken away before
                os.unlink(f"{self.folder}/s.db.owners/{owner}")
            self.seen["an owner taken for dead"] += 1

    def trouble_of(self, process: Process) -> str | None:
        trouble = self.trouble.get(process.pid)
        if trouble is None or process.dead:
            return None
        trouble[1] -= 1
        if trouble[1] <= 0:
            del self.trouble[process.pid]
        return str(trouble[0])

    def aside(self, act: Callable[[], Any]) -> None:
        """Let somebody outside do something."""

        def work() -> None:
            try:
                act()
            except (NeedsHuman, TaskFailed, TaskWaiting, TaskBusy, TaskFrozen, StoreUnavailable, UnknownTask, EventRefused, Late):
                pass

        self.kernel.inside(self.kernel.outside, work, "aside").start()

    def insist(self, act: Callable[[], Any]) -> Any:
        """Do it, again and again while the store is busy."""
        while True:
            try:
                return act()
            except StoreUnavailable:
                self.kernel.sleep(60.0)

    # ------------------------------------------------------------ processes

    def launch(self, what: str) -> Process:
        process = Process(self.kernel, f"{what}{len(self.kernel.processes)}")
        process.main_over = Event(self.kernel)
        process.outcome = "killed"
        process.at_end.append(process.main_over.set_unchecked)
        process.release = self.program.release

        def live() -> None:
            app = self.app(process)
            task = self.program.declare(app, process.release)
            try:
                process.outcome = self.act(app, task, what, process)
            except Killed:
                raise
            except DoubtlessError as error:
                process.outcome = type(error).__name__
                taken = isinstance(error, StaleEpoch) and self.seen["an owner taken for dead"]
                if not taken and not isinstance(error, NeedsHuman | TaskFailed | TaskWaiting | TaskBusy | TaskFrozen | StoreUnavailable | UnknownTask):
                    self.wrong.append(f"{process.name} raises {type(error).__name__}: {error.message}")
            except BaseException as error:
                import traceback

                process.outcome = type(error).__name__
                where = "".join(traceback.format_exception(error)[-3:])
                self.wrong.append(f"{process.name} raises {type(error).__name__}: {error}\n{where}")
            self.seen[f"outcome {process.outcome}"] += 1
            self.story.append(f"{self.kernel.now / SECOND:.2f} {process.name}: {process.outcome}")
            process.main_over.set_unchecked()
            if len(process.threads) > 1 and self.kernel.random is not None and self.kernel.random.random() < 0.5:
                self.seen["a process lingers"] += 1
                return  # a service: its threads go on
            self.kernel.kill(process)

        self.kernel.inside(process, live, process.name).start()
        return process

    def act(self, app: Doubtless, task: Any, what: str, process: Process) -> str:
        if what == "second":
            app.resume(ID)
        elif self.scenario.host == "worker":
            app.start(task, ID)
            with app.worker(concurrency=2):
                while not self.over(app):
                    self.clock.pause(600.0, None)
        elif self.scenario.host == "arun":
            asyncio.run(app.arun(task, ID))
        else:
            app.run(task, ID)
        return "done"

    def over(self, app: Doubtless) -> bool:
        head = app.store.head(ID)
        return head is not None and head.status in TERMINAL

    def main(self) -> None:
        """What happens outside: somebody starts processes, and a person answers, until the task has ended."""
        self.desk = self.app(self.kernel.outside)
        self.program.declare(self.desk)
        self.send_events()
        rounds, waits, seen = 0, WAITS, -1
        while True:
            process = self.launch("p")
            while not process.main_over.flag:
                self.clock.pause(300.0, process.main_over)
                self.insist(self.visit)
            self.insist(self.visit)
            if self.insist(lambda: self.over(self.desk)):
                break
            rounds += 1
            if rounds > ROUNDS:
                self.wrong.append(f"I6: after {ROUNDS} processes the task has not ended")
                break
            moved = len(self.said)
            waits = WAITS if moved != seen else min(2 * waits, 3600.0)
            seen = moved
            self.kernel.sleep(waits)
            self.insist(self.visit)
        for process in self.kernel.processes:
            while process.threads and process is not self.kernel.outside:
                self.kernel.sleep(WAITS)

    def send_events(self) -> None:
        for node in every(self.scenario.nodes):
            if isinstance(node, Ask) and node.seconds:
                seconds = node.seconds

                def send(seconds: float = seconds) -> None:
                    self.kernel.sleep(seconds)
                    self.insist(lambda: self.desk.send_event(ID, "news", {"after": seconds}))

                self.aside(send)

    # ------------------------------------------------------------ the person

    def visit(self) -> None:
        """Look at the inbox, and answer what can be answered truly."""
        if self.desk._store is None and not self._exists():
            return
        for row in self.desk.store.cases():
            opened = self.asked_at.setdefault(row.case_id, self.kernel.now)
            plan = self.plan(row.case_id)
            if plan == "slowly" and self.kernel.now < opened + 7200 * SECOND:
                continue
            case = self.desk.case(row.case_id)
            answer = self.answer(case, plan)
            if answer is None:
                continue
            self.say(case, answer)
            if plan == "twice":
                self.seen["two answer at once"] += 1
                self.aside(lambda case=case, answer=answer: self.say(case, answer))  # type: ignore[misc]

    def _exists(self) -> bool:
        return os.path.exists(f"{self.folder}/s.db")

    def plan(self, case_id: str) -> str:
        number = list(self.asked_at).index(case_id)
        return self.scenario.answers[number] if number < len(self.scenario.answers) else "truth"

    def say(self, case: Case, answer: AnyAnswer) -> None:
        self.said.add(case.hash)
        try:
            self.desk.settle(case.id, answer, by="person", why="as it is", shown=case.hash)
            self.seen[f"answer {type(answer).__name__} to {case.kind}"] += 1
            self.story.append(f"{self.kernel.now / SECOND:.2f} {case.kind} {case.path}: {answer}")
        except (AlreadySettled, CaseChanged, Late) as late:
            self.seen[f"answer refused: {type(late).__name__}"] += 1
        except AnswerRefused as refused:
            if type(answer) is Retry and "path" in refused.context:
                key = self.desk.store.key("the one:x")
                holder = (refused.context["task"], refused.context["path"])
                if key is not None and (key.task_id, key.path) == holder and key.state != "freed":
                    self.seen["a retry refused: another step has its business key"] += 1
                    self.held.add(case.id)
                    return
            self.wrong.append(f"the answer {answer} to {case.kind} {case.id} is refused: {refused.message}")

    def answer(self, case: Case, plan: str) -> AnyAnswer | None:
        """What a person says who sees everything outside; None: not yet."""
        match case.kind:
            case CaseKind.CODE_ERROR | CaseKind.DIVERGED:
                self.program.fixed = True
                return Fail() if case.id in self.held else Retry()
            case CaseKind.HOLD:
                return LetStand() if plan == "fail" else Compensate()
            case CaseKind.CONTRADICTION:
                return Noted()
            case CaseKind.OUTPUT:
                return Answer({"number": 0, "of": "person"})
            case CaseKind.QUESTION:
                return Answer("yes")
        assert case.path is not None
        place = (case.task_id, case.path)
        if plan == "even_now":
            self.risks.add(place)
            return DidNotHappen("retry", even_now=True)
        if plan == "abandon":
            return Abandon()
        made = self.world.by_place[place]
        if made:
            return Happened(self.world.receipt(made[0]))
        if self.world.may_land(place):
            return None
        if self.seen["an owner taken for dead"] and self.kernel.now < self.asked_at[case.id] + 120 * SECOND:
            return None  # it may be just about to send: nobody outside can know
        attempts = case.evidence["attempts"]
        if attempts and attempts[-1]["outcome"] == "in flight":  # the same, and the case says so
            seen = self.in_flight.setdefault((case.id, len(attempts)), self.kernel.now)
            if self.kernel.now < seen + 120 * SECOND:
                return None
        return DidNotHappen("fail" if plan == "fail" else "retry")


def play(scenario: Scenario, folder: str) -> Play:
    """Play the scenario to its end, in that empty folder."""
    one = Play(scenario, folder)
    try:
        one.kernel.run(one.main)
    except Stuck as stuck:
        one.wrong.append(f"stuck: {stuck}")
    finally:
        owners._OWNERS.pop(f"{folder}/s.db.owners", None)  # its locks are this run's
    for name, error in one.kernel.failures:
        one.wrong.append(f"thread {name} ends with {type(error).__name__}: {error}")
    return one

