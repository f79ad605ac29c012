"""The machine that a simulated run lives on: threads that run one at a time, virtual time, processes that die.

Every thread of the product is a real thread, and runs only while it holds the baton. It hands it on where it would have
to wait (a lock, an event, a sleep, a call to the outside), and sometimes, when the schedule says so, where it could go
on. Time moves only when all wait. So one schedule is one run: nothing depends on the machine that it runs on.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any

from doubtless import branches, host, tasks, worker

SECOND = 1_000_000
PREEMPT = 0.12
"""How often a thread that could go on hands the baton on all the same, under a schedule that is not 0."""

LIMIT = 20_000
"""Hand-overs after which a run counts as one that never ends."""


class Killed(BaseException):
    """The process of this thread is dead: it unwinds, and nothing that it asks of anybody has an effect."""


class Stuck(AssertionError):
    """Everybody waits and no time will come; or nobody ever ends."""


class Process:
    """A simulated operating system process: its number, whether it lives, is stopped, and what is to be done at its end."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.pid = 100 + len(kernel.processes)
        self.dead = False
        self.stopped_until = 0
        self.threads: list[Thread] = []
        self.at_end: list[Callable[[], None]] = []
        self.over = Event(kernel)
        self.main_over = Event(kernel)
        self.outcome = "killed"
        self.release = 0  # of the code that it runs
        kernel.processes.append(self)

    def check(self) -> None:
        if self.dead:
            raise Killed(self.name)


class Baton:
    """A real thread that plays simulated ones, one after the other."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread: Thread | None = None
        self.real = threading.Thread(target=self._play, daemon=True)
        self.real.start()

    def _play(self) -> None:
        while True:
            self.turn.acquire()
            thread = self.thread
            assert thread is not None
            thread.play()
            kernel = thread.kernel
            _IDLE.append(self)
            kernel.leave(thread)
            del thread, kernel


_IDLE: list[Baton] = []


class Thread:
    """What the product gets for ``host.thread(…)``."""

    def __init__(
        self, kernel: Kernel, target: Callable[..., Any], args: Iterable[Any] = (), kwargs: Any = None, name: str = "", daemon: Any = True
    ) -> None:
        self.kernel = kernel
        self.target, self.args, self.name, self.daemon = target, tuple(args), name, daemon
        self.process = kernel.process
        self.ready = False
        self.done = False
        self.number = 0  # of its present wait
        self.ended: list[Thread] = []
        self.failure: BaseException | None = None
        self.baton: Baton | None = None
        self.label = ""

    def start(self) -> None:
        kernel = self.kernel
        self.process.check()
        self.process.threads.append(self)
        kernel.threads.append(self)
        self.baton = _IDLE.pop() if _IDLE else Baton()
        self.baton.thread = self
        self.ready = True
        kernel.point("start")

    def play(self) -> None:
        try:
            self.process.check()
            Context().run(self.target, *self.args)
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
            self.kernel.failures.append((self.name, error))
        self.target, self.args = _nothing, ()

    def is_alive(self) -> bool:
        return self.baton is not None and not self.done

    def join(self, timeout: float | None = None) -> None:
        if not self.done:
            self.kernel.wait_in(self.ended, timeout)


def _nothing() -> None:
    return None


class Kernel:
    """One run's machine. `schedule`: which of those who could go on does; 0: whoever was first, and nobody is interrupted."""

    def __init__(self, schedule: int = 0) -> None:
        self.random = random.Random(schedule) if schedule else None
        self.now = 0  # microseconds since the machine was started
        self.threads: list[Thread] = []
        self.current: Thread | None = None
        self.processes: list[Process] = []
        self.outside = Process(self, "outside")
        self.failures: list[tuple[str, BaseException]] = []
        self.commits: list[Thread] = []  # who waits for the log to move
        self.on_commit: list[Callable[[], None]] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.switches = 0
        self._finished = threading.Lock()
        self._finished.acquire()
        self.broken: BaseException | None = None
        self.seam = {
            "thread": self.thread, "current_thread": lambda: self.current, "event": lambda: Event(self), "lock": lambda: Lock(self),
            "rlock": lambda: Lock(self, again=True), "sleep": self.sleep, "monotonic": lambda: self.now / SECOND,
            "pid": lambda: self.process.pid, "randomness": random.Random(schedule).randbytes,
        }  # fmt: skip

    # ------------------------------------------------------------ the whole run

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` as the first thread outside all processes; returns when every thread has ended."""
        kept = {name: getattr(host, name) for name in self.seam}
        constants = [(tasks, "PULSE"), (tasks, "QUIET"), (branches, "LOOK"), (worker, "POLL")]
        was = [getattr(module, name) for module, name in constants]
        policy = asyncio.get_event_loop_policy()
        hook = sys.unraisablehook
        collects = gc.isenabled()
        gc.disable()  # a collection comes when it likes, and runs the last words of killed processes in whatever thread has the baton
        try:
            for name, made in self.seam.items():
                setattr(host, name, made)
            # a simulated interpreter loses no signal, so nobody has to look up twice a second of an hour
            for (module, name), value in zip(constants, (600.0, 0.25, 5.0, 30.0), strict=True):
                setattr(module, name, value)
            asyncio.set_event_loop_policy(Policy(self))
            sys.unraisablehook = _quiet
            first = Thread(self, main, name="main")
            first.process = self.outside
            self.current = first
            self.outside.threads.append(first)
            self.threads.append(first)
            first.baton = _IDLE.pop() if _IDLE else Baton()
            first.baton.thread = first
            first.ready = True
            first.baton.turn.release()
            self._finished.acquire()
        finally:
            for name, made in kept.items():
                setattr(host, name, made)
            for (module, name), value in zip(constants, was, strict=True):
                setattr(module, name, value)
            asyncio.set_event_loop_policy(policy)
            self.current = None
            gc.collect(0)
            sys.unraisablehook = hook
            if collects:
                gc.enable()
        if self.broken is not None:
            raise self.broken

    @property
    def process(self) -> Process:
        return self.outside if self.current is None else self.current.process

    def thread(self, **options: Any) -> Thread:
        return Thread(self, **options)

    def inside(self, process: Process, target: Callable[[], None], name: str) -> Thread:
        """A thread of that process, to be started by whoever is outside."""
        thread = Thread(self, target, name=name)
        thread.process = process
        return thread

    # ------------------------------------------------------------ handing on

    def point(self, label: str = "") -> None:
        """A place where the thread could be interrupted; raises Killed in a dead process."""
        me = self.current
        assert me is not None
        if me.process.dead:
            raise Killed(me.process.name)
        self.now += 1  # nothing takes no time at all: two rows of one task never bear the same microsecond
        if self.random is not None and len(self.threads) > 1 and self.random.random() < PREEMPT:
            me.label = label
            self._switch(me)

    def _switch(self, me: Thread) -> None:
        chosen = self._pick()
        if chosen is not me:
            self.current = chosen
            assert chosen.baton is not None and me.baton is not None
            chosen.baton.turn.release()
            me.baton.turn.acquire()
        if self.broken is not None or me.process.dead:
            raise Killed(me.process.name)

    def _pick(self) -> Thread:
        self.switches += 1
        if self.switches > LIMIT and self.broken is None:
            self.give_up(f"{LIMIT} hand-overs, and it goes on")
        while True:
            for thread in self.threads:
                if thread.ready and (thread.process.dead or self.broken is not None):
                    return thread
            ready = [t for t in self.threads if t.ready and t.process.stopped_until <= self.now]
            if ready:
                return ready[0] if self.random is None or len(ready) == 1 else self.random.choice(ready)
            if not self._timers:
                self.give_up("everybody waits, and no time will come")
                continue
            when, _, act = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            act()

    def give_up(self, why: str) -> None:
        """End the run: every thread unwinds."""
        where = "\n".join(f"  {t.process.name} {t.name}: waits at {t.label}" for t in self.threads)
        self.broken = Stuck(f"{why}\n{where}\n{self.stacks()}")
        for thread in self.threads:
            thread.process.dead = True
            thread.ready = True

    def stacks(self) -> str:
        """Where everybody stands, for who looks for the reason."""
        frames = sys._current_frames()
        told = []
        for thread in self.threads:
            frame = None if thread.baton is None else frames.get(thread.baton.real.ident or 0)
            if frame is not None:
                lines = [line for line in traceback.format_stack(frame) if "/doubtless/" in line or "/simulation/" in line]
                told.append(f"{thread.process.name} {thread.name}\n{''.join(lines[-6:])}")
        return "\n".join(told)

    def leave(self, thread: Thread) -> None:
        """A thread has ended: its real one is free for another, the baton goes on."""
        thread.done, thread.ready = True, False
        self.threads.remove(thread)
        process = thread.process
        process.threads.remove(thread)
        self._wake(thread.ended)
        if not process.threads and process is not self.outside:
            process.dead = True
            self._reap(process)
        if not self.threads:
            self.current = None
            self._finished.release()
            return
        chosen = self.current = self._pick()
        assert chosen.baton is not None
        chosen.baton.turn.release()

    def _reap(self, process: Process) -> None:
        for act in process.at_end:
            act()
        process.at_end.clear()
        process.over.set_unchecked()

    # ------------------------------------------------------------ waiting

    def at(self, when: int, act: Callable[[], None]) -> None:
        """Let something happen at a time; it must not wait."""
        self._count += 1
        heapq.heappush(self._timers, (max(when, self.now), self._count, act))

    def block(self, seconds: float | None, label: str = "") -> None:
        """Wait until somebody wakes this thread, or that long."""
        me = self.current
        assert me is not None
        if me.process.dead:
            raise Killed(me.process.name)
        me.ready = False
        me.number += 1
        me.label = label
        if seconds is not None:
            number = me.number

            def alarm() -> None:
                if me.number == number:
                    me.ready = True

            self.at(self.now + max(0, round(seconds * SECOND)), alarm)
        self._switch(me)
        me.number += 1

    def wait_in(self, queue: list[Thread], seconds: float | None) -> None:
        """Wait in a queue, until it is woken or that long."""
        me = self.current
        assert me is not None
        queue.append(me)
        try:
            self.block(seconds, sys._getframe(1).f_code.co_qualname if sys.version_info >= (3, 11) else "")
        finally:
            if me in queue:
                queue.remove(me)

    def _wake(self, queue: list[Thread]) -> None:
        for thread in queue:
            thread.ready = True
        queue.clear()

    wake = _wake

    def doze(self, seconds: float) -> None:
        self.block(seconds, "doze")

    def sleep(self, seconds: float) -> None:
        self.block(max(seconds, 0.5), "sleep")  # who polls for a lock does that a thousand times a second

    def committed(self) -> None:
        """The log may have moved: who waits for that looks."""
        self._wake(self.commits)
        for act in self.on_commit:
            act()

    # ------------------------------------------------------------ processes

    def kill(self, process: Process) -> None:
        """The process dies here: each of its threads ends where it stands."""
        if process.dead:
            return
        process.dead = True
        for thread in process.threads:
            thread.ready = True
        if not process.threads:
            self._reap(process)
        if self.current is not None and self.current.process is process:
            raise Killed(process.name)

    def outside_thread(self, act: Callable[[], None], process: Process) -> None:
        """A thread of that process that does one thing, as a signal's handler would."""
        self.inside(process, act, "signal").start()

    def stop(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT that much later."""
        process.stopped_until = self.now + round(seconds * SECOND)
        self.at(process.stopped_until, _nothing)


class Lock:
    """``host.lock()``, ``host.rlock()``."""

    def __init__(self, kernel: Kernel, *, again: bool = False) -> None:
        self.kernel = kernel
        self.again = again
        self.holder: Thread | None = None
        self.depth = 0
        self.queue: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self.kernel
        me = kernel.current
        if me is None:  # nobody else is there
            return True
        if self.holder is me and self.again:
            self.depth += 1
            return True
        kernel.point("lock")
        until = None if timeout < 0 else kernel.now + round(timeout * SECOND)
        while self.holder is not None:
            if not blocking or (until is not None and kernel.now >= until):
                return False
            kernel.wait_in(self.queue, None if until is None else (until - kernel.now) / SECOND)
        self.holder, self.depth = me, 1
        return True

    def release(self) -> None:
        if self.holder is None:
            return
        self.depth -= 1
        if self.depth == 0:
            self.holder = None
            self.kernel.wake(self.queue)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *args: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self.holder is not None


class Event:
    """``host.event()``."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.flag = False
        self.queue: list[Thread] = []

    def is_set(self) -> bool:
        return self.flag

    def set(self) -> None:
        self.set_unchecked()
        if self.kernel.current is not None:
            self.kernel.point("set")

    def set_unchecked(self) -> None:
        self.flag = True
        self.kernel.wake(self.queue)

    def clear(self) -> None:
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self.kernel
        if kernel.current is None:
            return self.flag
        kernel.point("wait")
        until = None if timeout is None else kernel.now + round(timeout * SECOND)
        while not self.flag and (until is None or kernel.now < until):
            kernel.wait_in(self.queue, None if until is None else (until - kernel.now) / SECOND)
        return self.flag


# ---------------------------------------------------------------- asyncio


class Loop(asyncio.BaseEventLoop):
    """An event loop whose time is the kernel's and that waits by handing the baton on."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sleepers: list[Thread] = []
        super().__init__()
        self._selector = Selector(self)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.kernel.now / SECOND

    def _process_events(self, event_list: object) -> None:
        return

    def _write_to_self(self) -> None:
        self.kernel.wake(self.sleepers)

    def call_exception_handler(self, context: Any) -> None:
        return  # of a dead process: its tasks are pending for ever

    def __del__(self, _warn: object = None) -> None:
        return


class Selector:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def select(self, timeout: float | None) -> list[object]:
        kernel = self.loop.kernel
        if timeout is not None and timeout <= 0:
            kernel.point("loop")
        else:
            kernel.wait_in(self.loop.sleepers, timeout)
        return []


class Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def new_event_loop(self) -> Loop:
        return Loop(self.kernel)


def _quiet(unraisable: object) -> None:
    """What a killed process leaves behind is collected without a word."""


