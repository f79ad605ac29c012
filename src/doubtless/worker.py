"""An in-process worker: claims what is ready or due, runs it, and drains when it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import host
from .children import root_of
from .errors import DoubtlessError
from .events import TERMINAL, Instant, TaskStatus, elapsed_most
from .standing import is_idle

if TYPE_CHECKING:
    from .app import Doubtless
    from .store.base import Head, Store

POLL = 0.2
"""Seconds between two looks for tasks that are ready or due, when nothing wakes the worker earlier."""

_LIVELY = (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.COMPENSATING, TaskStatus.NEEDS_HUMAN)
"""What may be due: of tasks that need a person those that have something to do by themselves as well."""


class Worker:
    """Runs the store's tasks in this process, `concurrency` at a time.

    Meaning: picks up what `app.start` has recorded, what is due to look again, and what a person has settled; a
    task that another owner runs is skipped, one whose code this app does not know is left alone (`unknown`).
    Use as a context manager, or `start()` and `stop()`; `stop` lets running tasks reach their next parking place.
    """

    def __init__(self, app: Doubtless, *, concurrency: int = 4) -> None:
        if concurrency < 1:
            from .errors import UsageError

            raise UsageError(f"concurrency must be at least 1, not {concurrency}")
        self.app = app
        self.concurrency = concurrency
        self.errors: list[BaseException] = []
        self.unknown: set[str] = set()
        self._busy: set[str] = set()
        self._lock = host.lock()
        self._stop = host.event()
        self._wake = host.event()
        self._loop: threading.Thread | None = None
        self._threads: set[threading.Thread] = set()
        self._setback = Setback()
        self._tried: dict[str, int] = {}

    def start(self) -> Self:
        """Begin to claim tasks, in background threads."""
        self.app.store.info()  # a store that is refused is refused here, not in a thread
        self.app.notify()
        self._loop = host.thread(target=self._poll, name="doubtless-worker", daemon=True)
        self._loop.start()
        return self

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Claim nothing more and wait for what runs; True when all of it has ended or parked.

        Meaning: only the runs of this worker are drained; whoever called `app.run` in another thread goes on.
        Units: `timeout` in seconds for all of them together; None: however long it takes.
        """
        self._stop.set()
        self._wake.set()
        if self._loop is not None:
            self._loop.join(timeout)
        self._drain()
        left = float("inf") if timeout is None else timeout
        for thread in list(self._threads):
            while thread.is_alive() and left > 0:
                self._drain()  # again and again: a run may have been claimed only now
                begun = self.app.clock.monotonic()
                thread.join(min(POLL, left))
                left -= self.app.clock.monotonic() - begun
        return not any(thread.is_alive() for thread in list(self._threads))

    def _drain(self) -> None:
        with self._lock:
            busy = set(self._busy)
        self.app._runs.drain(busy)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self._claim_due()
            except DoubtlessError as error:  # a store that is busy or away now may be there at the next look
                self._note(error)
            self._wake.wait(POLL)

    def _claim_due(self) -> None:
        store = self.app.store
        self.app.pay_back()
        now = store.now()
        self._setback.look(store, now)
        due = store.heads(status=_LIVELY, due=now.wall)
        for head, children in self._roots([*due, *self._setback.due(store, now)]):
            with self._lock:
                if len(self._busy) >= self.concurrency or self._stop.is_set():
                    return
                if head.task_id in self._busy or (head.owner is not None and store.owner_alive(head.owner)):
                    continue
                if is_idle(head):
                    continue  # a session: only its host has something to do
                if not self.app.knows(head.task_name):
                    self.unknown.add(head.task_id)
                    continue
                if head.why and still_frozen(head.why, store.frozen()):
                    continue
                self._busy.add(head.task_id)
                self._setback.taken(head)
                self._tried |= children
            self._spawn(head.task_id)

    def _roots(self, due: list[Head]) -> list[tuple[Head, dict[str, int]]]:
        """The tasks to resume for what is due: a child is run by its parent. With each the children that it is for.

        They count as tried when it is taken: one that is busy just now, parking before it saw the news, is tried again.
        """
        roots: dict[str, tuple[Head, dict[str, int]]] = {}
        for head in due:
            root = root_of(head.task_id)
            if root != head.task_id and self._tried.get(head.task_id) == head.updated_at:
                continue  # its parent was resumed for it already, and stands before something else
            if root not in roots:
                known = head if root == head.task_id else self.app.store.head(root)
                if known is None or known.status in TERMINAL:
                    continue
                roots[root] = known, {}
            if root != head.task_id:
                roots[root][1][head.task_id] = head.updated_at
        return list(roots.values())

    def _spawn(self, task_id: str) -> None:
        def run() -> None:
            try:
                self.app.resume(task_id, wait=False)
            except DoubtlessError:
                pass  # parked, failed or busy: the log says so
            except BaseException as error:  # also what a step raised to end its program: recorded, and not this thread's  # noqa: BLE001
                self._note(error)
            finally:
                with self._lock:
                    self._busy.discard(task_id)
                    self._threads.discard(host.current_thread())
                self._wake.set()

        thread = host.thread(target=run, name=f"doubtless-worker:{task_id}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _note(self, error: BaseException) -> None:
        self.errors = [*self.errors[-99:], error]


class Setback:
    """The waiting tasks whose time a wall clock that was set back has put off: they are due when it would have been.

    Their times are on the wall clock, the only one that outlives a boot; how far it was set back says the other one.
    """

    SLACK = 500_000
    """Microseconds that the wall clock may stand behind before it counts as set back."""

    def __init__(self) -> None:
        self._seen: Instant | None = None
        self._due: dict[tuple[str, int], int] = {}

    def look(self, store: Store, now: Instant) -> None:
        """Compare the clocks; where the wall clock was set back, note how long each waiting task has still to wait."""
        if self._seen is None:
            expected = now.wall
        else:
            expected = self._seen.wall + elapsed_most(self._seen, now)
            if expected - now.wall < self.SLACK:  # an adjustment is slow, and adds up until it counts
                self._seen = Instant(expected, now.boot)
                return
        self._seen = now
        for head in store.heads(status=(TaskStatus.WAITING, TaskStatus.COMPENSATING, TaskStatus.NEEDS_HUMAN)):
            before = max(expected, head.updated_at)  # what was written later than now was written before the clock was set
            if head.wake_at is not None and head.wake_at > now.wall and before - now.wall >= self.SLACK:
                self._due.setdefault((head.task_id, head.wake_at), now.boot + max(0, head.wake_at - before))

    def taken(self, head: Head) -> None:
        """It is looked at now; should it wait on to the same time, by a cautious reading of the clocks, it does."""
        if head.wake_at is not None:
            self._due.pop((head.task_id, head.wake_at), None)

    def due(self, store: Store, now: Instant) -> list[Head]:
        """The heads of those whose time has come; what has another time by now, or is due by the wall clock, is dropped."""
        heads: list[Head] = []
        for (task_id, wake_at), at in list(self._due.items()):
            head = store.head(task_id)
            if head is None or head.wake_at != wake_at or wake_at <= now.wall:
                del self._due[task_id, wake_at]
            elif at <= now.boot:
                heads.append(head)
        return heads


def still_frozen(why: str, frozen: Collection[str]) -> bool:
    """Whether what a task was parked for, ``frozen: step pay is frozen: …``, is frozen still; also what its child was."""
    if why.startswith("child "):
        why = "".join(why.partition("frozen: ")[1:])
    return why.startswith("frozen: ") and ("*" in frozen or any(why.startswith(f"frozen: step {name} is ") for name in frozen))
