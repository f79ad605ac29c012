"""What the tasks of one event loop share: the commit of the rows that they put down in one turn, and threads for sync calls."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from . import host
from .store.base import Shared, Store

IDLE = 1.0
"""Seconds without a commit after which the thread that makes them for an event loop ends."""

FEW = 8
"""So many rows of a file are not worth two changes of threads: fewer are committed in place."""

HANDOVER = 0.005
"""Seconds that a loop stands still at most until a commit needs the interpreter no more: it takes a hundredth of that."""

LATE = 0.002
"""Seconds after which a loop that never rests lets a commit say that it is over."""


class Aside:
    """A thread that does one thing after another beside an event loop. It is there while there is something to do.

    A loop that is busy would keep the interpreter from it: whoever waits for it is woken when the loop lets go of it for an
    instant, and finds it taken again. So it is handed over. `do` returns when the job has called what it is given, from where
    on it needs no interpreter; and `give_way` lets it end.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[Callable[[], None]], None]] = SimpleQueue()
        self._lock = host.lock()
        self._alive = False
        self._gone, self._over = host.event(), host.event()

    def do(self, job: Callable[[Callable[[], None]], None]) -> None:
        """Do it next; here and now, where no thread can be had."""
        self._gone.clear()
        self._over.clear()
        self._jobs.put(job)
        with self._lock:
            if not self._alive:
                try:
                    host.thread(target=self._work, name="doubtless-commits", daemon=True).start()
                except RuntimeError:
                    self._jobs.get()(self._gone.set)
                    return
                self._alive = True
        self._gone.wait(HANDOVER)

    def give_way(self, seconds: float) -> bool:
        """Stand still for so long, or until the last job is over; whether it is."""
        return self._over.wait(seconds)

    def goes_on(self) -> None:
        """Say that what was to be done is over, and that its job does more of the same."""
        self._over.set()
        self._over.clear()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._alive = False
                        return
            else:
                job(self._gone.set)
                del job  # which knows the loop
                self._gone.set()
                self._over.set()


Over = Callable[[BaseException | None], None]
"""What is told that a commit is over; with a signal's exception, if one broke in on it."""


def _over(future: asyncio.Future[None], failed: BaseException | None) -> None:
    if future.done():
        return
    if failed is None:
        future.set_result(None)
    else:
        future.set_exception(failed)


class Turn:
    """Commits what was put down in one store in one turn of a loop; whoever waits goes on after it.

    Many rows are committed aside: the loop goes on with what does not wait for them, and what is put down meanwhile shares the
    next commit. Tasks that all do the same would all wait for the same one, and the loop would stand still: then it begins with
    half of them, and works for one half while the other is committed. A few rows of a file are committed in place, which is
    shorter than two changes of threads; not so where a commit is a question to another process.

    `times`: the timeouts of the loop; `here`: which asyncio.Task of it runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self.loop = loop
        self.times = times_of(loop)
        self.here = partial(asyncio.current_task, loop)
        self._store = store
        self._waiting: deque[tuple[Shared, Over]] = deque()
        self._aside = Aside()
        self._under_way: asyncio.TimerHandle | None = None
        self._in_step = True  # nobody came while the last commit was made
        self._begun = self._ended = loop.time()  # when it was

    def end(self, ticket: Shared) -> asyncio.Future[None]:
        """Done when this row, which was put down just now, has been committed, or refused."""
        future = self.loop.create_future()
        self.then(ticket, partial(_over, future))
        return future

    def then(self, ticket: Shared, over: Over) -> None:
        """Call this, which raises nothing, when that row has been committed, or refused."""
        if not self._waiting and self._under_way is None:
            self.loop.call_soon(self._commit)
        self._waiting.append((ticket, over))

    def _commit(self) -> None:
        count, now = len(self._waiting), self.loop.time()
        # Two commits take longer than one: it pays where the loop has enough to do between them.
        halved = self._in_step and count >= 2 * FEW and self._ended - self._begun < 2 * (now - self._ended)
        self._begun = now
        if self._store.far or halved or (count >= FEW and not self._in_step):
            self._under_way = self.loop.call_later(LATE, self._give_way, LATE)
            self._aside.do(partial(self._commit_aside, (count + 1) // 2 if halved else count))
        else:
            failed, _ = self._flush()
            self._committed(failed)

    def _commit_aside(self, most: int, gone: Callable[[], None]) -> None:
        failed, left = self._flush(most, gone)
        again = False
        try:
            while failed is None and left >= FEW and 2 * left >= most:
                self._aside.goes_on()
                self.loop.call_soon_threadsafe(self._committed, None, True, again)
                most, again = left, True
                failed, left = self._flush()
            self.loop.call_soon_threadsafe(self._committed, failed, False, again)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def _give_way(self, waited: float) -> None:
        if not self._aside.give_way(LATE / 8):
            self._under_way = self.loop.call_later(2 * waited, self._give_way, 2 * waited)

    def _committed(self, failed: BaseException | None, goes_on: bool = False, again: bool = False) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            self._under_way = self.loop.call_later(LATE, self._give_way, LATE) if goes_on else None
        self._ended = self.loop.time()
        told: list[Over] = []
        while self._waiting and (self._waiting[0][0].done or failed is not None):
            told.append(self._waiting.popleft()[1])
        if not told and not (goes_on or again):  # nothing was committed: each looks for itself
            told = [over for _, over in self._waiting]
            self._waiting.clear()
        self._in_step = not self._waiting
        if goes_on:
            self._begun = self._ended
        elif self._waiting:
            self._commit()
        for over in told:
            over(failed)

    def _flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> tuple[BaseException | None, int]:
        try:
            return None, self._store.flush(most, gone)
        except BaseException as error:  # noqa: BLE001 - a signal's: it goes on in whoever waits
            return error, 0


_kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""Of loops that take no attribute."""


def _kept_with(loop: asyncio.AbstractEventLoop) -> dict[Any, Any]:
    """What is kept with a loop and goes when it goes: what knows its loop would, in a mapping beside it, keep it for ever."""
    own: dict[str, Any] | None = getattr(loop, "__dict__", None)
    kept: dict[Any, Any] = _kept.setdefault(loop, {}) if own is None else own.setdefault("_doubtless", {})
    return kept


def turn_of(store: Store) -> Turn:
    """The turns of the running loop, for this store."""
    loop = asyncio.get_running_loop()  # which asks the system each time whether it is a fork of the one that runs it
    turns = _kept_with(loop)
    turn: Turn | None = turns.get(id(store))
    if turn is None or turn._store is not store:
        turn = turns[id(store)] = Turn(loop, store)
    return turn


class Times:
    """Calls whoever waits for a call of one loop when its time is up: one timer for all calls, and none for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[Callable[[], None], float] = {}
        self._at = inf  # when the timer goes off; it may find that there is nothing yet

    def watch(self, wake: Callable[[], None], seconds: float) -> None:
        """Call `wake` after so many seconds, unless it is forgotten before."""
        at = self._ends[wake] = self._loop.time() + seconds
        if at < self._at:
            self._at = at
            self._loop.call_at(at, self._look, at)

    def forget(self, wake: Callable[[], None]) -> None:
        """Do not call it."""
        self._ends.pop(wake, None)

    def _look(self, at: float) -> None:
        if at > self._at:  # a timer that was set before an earlier one
            return
        now = self._loop.time() + 1e-6  # a loop's timers go off that much too soon
        for wake in [wake for wake, end in self._ends.items() if end <= now]:
            del self._ends[wake]
            wake()
        self._at = min(self._ends.values(), default=inf)
        if self._at < inf:
            self._loop.call_at(self._at, self._look, self._at)


def times_of(loop: asyncio.AbstractEventLoop) -> Times:
    """The timeouts of this loop."""
    kept = _kept_with(loop)
    found: Times | None = kept.get("times")
    if found is None:
        found = kept["times"] = Times(loop)
    return found


SEATS = 32
"""How many sync calls of the async tasks of one event loop are in threads at the same time."""


def seats() -> asyncio.Semaphore:
    """The seats of the running loop: whoever calls a sync function in a thread has one, until it returns or is given up."""
    kept = _kept_with(asyncio.get_running_loop())
    found: asyncio.Semaphore | None = kept.get("seats")
    if found is None:
        found = kept["seats"] = asyncio.Semaphore(SEATS)
    return found
