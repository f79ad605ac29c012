"""What the tasks of one event loop share: the commit of the rows that they put down in one turn, and threads for sync calls."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from math import inf
from queue import Empty, SimpleQueue

from . import host
from .store.base import Store

IDLE = 1.0
"""Seconds without a commit after which the thread that makes them for an event loop ends."""


class Aside:
    """A thread that does one thing after another beside an event loop. It is there while there is something to do."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = host.lock()
        self._alive = False

    def do(self, job: Callable[[], None]) -> None:
        """Do it next; here and now, where no thread can be had."""
        self._jobs.put(job)
        with self._lock:
            if not self._alive:
                try:
                    host.thread(target=self._work, name="doubtless-commits", daemon=True).start()
                except RuntimeError:
                    self._jobs.get()()
                else:
                    self._alive = True

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
                job()


class Turn:
    """Commits what was put down in one store in one turn of a loop; whoever waits goes on after it.

    Where a commit is a question to another process it is made aside: the loop goes on with what does not wait for it, and what
    is put down meanwhile shares the next one. A file is synced in place: that is shorter than two changes of threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._waiting: list[asyncio.Future[None]] = []
        self._aside = Aside() if store.far else None
        self._under_way = False

    def end(self) -> asyncio.Future[None]:
        """Done when what was put down until now has been committed, or refused."""
        future = self._loop.create_future()
        if not self._waiting and not self._under_way:
            self._loop.call_soon(self._commit)
        self._waiting.append(future)
        return future

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._aside is None:
            _wake(waiting, self._flush())
        else:
            self._under_way = True
            self._aside.do(partial(self._commit_aside, waiting))

    def _commit_aside(self, waiting: list[asyncio.Future[None]]) -> None:
        failed = self._flush()
        try:
            self._loop.call_soon_threadsafe(self._committed, waiting, failed)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def _committed(self, waiting: list[asyncio.Future[None]], failed: BaseException | None) -> None:
        self._under_way = False
        if self._waiting:
            self._commit()
        _wake(waiting, failed)

    def _flush(self) -> BaseException | None:
        try:
            self._store.flush()
        except BaseException as error:  # noqa: BLE001 - a signal's: it goes on in whoever waits
            return error
        return None


def _wake(waiting: list[asyncio.Future[None]], failed: BaseException | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if failed is None:
            future.set_result(None)
        else:
            future.set_exception(failed)


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Turn]] = weakref.WeakKeyDictionary()


def turn_of(store: Store) -> Turn:
    """The turns of the running loop, for this store."""
    loop = asyncio.get_running_loop()
    turns = _turns.setdefault(loop, {})
    turn = turns.get(id(store))
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


_times: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Times] = weakref.WeakKeyDictionary()


def times_of(loop: asyncio.AbstractEventLoop) -> Times:
    """The timeouts of this loop."""
    found = _times.get(loop)
    if found is None:
        found = _times[loop] = Times(loop)
    return found


SEATS = 32
"""How many sync calls of the async tasks of one event loop are in threads at the same time."""

_seats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def seats() -> asyncio.Semaphore:
    """The seats of the running loop: whoever calls a sync function in a thread has one, until it returns or is given up."""
    loop = asyncio.get_running_loop()
    found = _seats.get(loop)
    if found is None:
        found = _seats[loop] = asyncio.Semaphore(SEATS)
    return found
