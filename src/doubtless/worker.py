"""A worker: claims what is ready or due, runs it, and drains when it is told to stop.

It stays thin: which task runs next is one query (`Store.due`). Routing, autoscaling, cron and rate limits belong to an
engine (docs/engines.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from . import host
from .children import root_of
from .errors import DoubtlessError, StaleEpoch, StoreDamaged, StoreError
from .events import TERMINAL, Instant, TaskStatus, elapsed_most
from .outcomes import text_of
from .runs import raised_on
from .standing import BETWEEN, SESSION, UNREAD, is_idle
from .store.base import Claim, Due, Wanted
from .tasks import wait_limit

if TYPE_CHECKING:
    import asyncio

    from .app import Doubtless
    from .runs import Runs
    from .store.base import Head, Store
    from .tasks import TaskRun

POLL = 0.2
"""Seconds between two looks for tasks that are ready or due, when nothing wakes the worker earlier and there was something."""
UNTOLD = 1.0
"""Seconds between two looks of an idle worker that only a look can tell what another process has started (SQLite)."""
TOLD = 5.0
"""Seconds between two looks of an idle worker that is told what others start: the net under what was not heard."""
STRANGERS = 30.0
"""Seconds between two looks for tasks whose code this worker does not know."""

DAMAGED = 60.0
"""Seconds before a task that could not be read, because it is damaged, or run, for no expected reason, is tried again."""

MOST = 10_000
"""The most tasks that a worker runs at once."""

BLIND = "; nothing is claimed until a look succeeds, it tries again"


class Worker:
    """Runs the store's tasks in this process, `concurrency` at a time: async ones on one event loop, sync ones in threads.

    Meaning: picks up what `app.start` has recorded, what is due to look again, and what a person has settled; a task that
    another owner runs is skipped, one whose code this app does not know is left alone (`unknown`). It claims no more than it
    has free places for; a task that waits has none. Use as a context manager, or `start()` and `stop()`; `stop` lets running
    tasks reach their next parking place.
    """

    def __init__(
        self,
        app: Doubtless,
        *,
        concurrency: int = 4,
        queues: Iterable[str] | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        if not 1 <= concurrency <= MOST:
            from .errors import UsageError

            raise UsageError(f"concurrency must be from 1 to {MOST:,}, not {concurrency}")
        self.app = app
        self.concurrency = concurrency
        self.queues = None if queues is None else tuple(queues)
        self.errors: list[BaseException] = []
        self.unknown: set[str] = set()
        self.ran = 0
        self.say: Callable[[str], object] = say or (lambda line: None)
        self.longest: float | None = None
        self._busy: set[str] = set()
        self._lock = host.lock()
        self._stop = host.event()
        self._wake = host.event()
        self._ended = host.event()
        self._poller: threading.Thread | None = None
        self._loop = Loop()
        self._deaf: Callable[[], None] | None = None
        self._strangers_at: float | None = None
        self._setback = Setback()
        self._blind = False
        self._tried: dict[str, int] = {}
        self._damaged: dict[str, float] = {}  # tasks that could not be read or run, and when that was found

    def start(self) -> Self:
        """Begin to claim tasks, in background threads."""
        self.app.store.info()  # a store that is refused is refused here, not in a thread
        self.app.notify()
        self._deaf = self.app.store.listen(self.wake)
        self._poller = host.thread(target=self._poll, name="doubtless-worker", daemon=True)
        self._poller.start()
        return self

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Claim nothing more and wait for what runs; True when all of it has ended or parked.

        Meaning: no new step begins; a write that is being called is finished and recorded. Only the runs of this worker are
        drained; whoever called `app.run` in another thread goes on.
        Units: `timeout` in seconds for all of them together; None: however long it takes.
        """
        self._stop.set()
        self._wake.set()
        if self._deaf is not None:
            self._deaf()
        if self._poller is not None:
            self._poller.join(timeout)
        left = float("inf") if timeout is None else timeout
        while (busy := self._running()) and left > 0:
            self.app._runs.drain(busy)  # again and again: a run may have been claimed only now
            begun = self.app.clock.monotonic()
            self._ended.wait(min(POLL, left))
            self._ended.clear()
            left -= self.app.clock.monotonic() - begun
        if busy:
            return False
        self._loop.end()
        return True

    def _running(self) -> set[str]:
        with self._lock:
            return set(self._busy)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # ------------------------------------------------------------ looking

    def _poll(self) -> None:
        pause = POLL
        while not self._stop.is_set():
            self._wake.clear()
            begun: int | None = None
            until: int | None = None
            try:
                begun = self._claim_due()
                if not begun:
                    self._look_for_strangers()
                    until = self._next()
                self._looked()
            except Exception as error:  # noqa: BLE001  a store that is busy or away now may be there at the next look
                self._note(error, blind=True)
            longest = max(POLL, self.longest or (UNTOLD if self._deaf is None else TOLD))
            pause = POLL if begun else min(pause * 1.5, longest)
            jittered = self._jittered(pause)
            self._wake.wait(jittered if until is None else min(jittered, max(0.0, until / 1e6)))

    def _jittered(self, seconds: float) -> float:
        """Of many workers that look at one server not all do it at the same moment."""
        return seconds if self._deaf is None else seconds * (0.8 + 0.4 * host.randomness(1)[0] / 255)

    def _next(self) -> int | None:
        """Microseconds until the next task is due, as far as its head says so."""
        now = self.app.store.now().wall
        due = self.app.store.next_due(now)
        return None if due is None else due - now

    def _wanted(self) -> Wanted:
        return Wanted((*self.app.declared_tasks, SESSION), self.queues, (BETWEEN, UNREAD))

    def _claim_due(self) -> int:
        """Begin what is due, as far as there are places; how many."""
        store = self.app.store
        self.app.pay_back()
        room = self.concurrency - len(self._running())
        if room < 1:
            return 0
        now = store.now()
        self._setback.look(store, now)
        self._damaged = {task_id: found for task_id, found in self._damaged.items() if self._is_damaged(task_id)}
        due = store.due(self._wanted(), limit=room + len(self._damaged), now=now.wall)  # these keep no other from its turn
        left = {claim.head.task_id: claim for claim in due.claims}
        begun = 0
        frozen: Collection[str] | None = None
        try:
            for head, children in self._in_turn(due, now):
                if len(self._running()) >= self.concurrency:
                    break
                claim = left.pop(head.task_id, None)
                if claim is None:
                    if is_idle(head) or not self._takes(head) or (head.owner is not None and store.owner_alive(head.owner)):
                        continue
                    if head.why and still_frozen(head.why, frozen := store.frozen() if frozen is None else frozen):
                        continue
                begun += self._begin(head, children, claim)
        finally:  # for these there is no place any more, or the store has failed: nobody would run them here
            for claim in left.values():
                self.app._runs.give_back(claim)
        return begun

    def _in_turn(self, due: Due, now: Instant) -> list[tuple[Head, dict[str, int]]]:
        """What is due, by priority, then the older one: what a dead owner has left keeps its turn, however many are ready."""
        turns: list[tuple[Head, dict[str, int]]] = [(claim.head, {}) for claim in due.claims]
        turns += self._roots([*due.heads, *self._setback.due(self.app.store, now)])
        turns.sort(key=lambda turn: (turn[0].priority, turn[0].created_at, turn[0].task_id))
        return turns

    def _takes(self, head: Head) -> bool:
        return self.app.knows(head.task_name) and (self.queues is None or head.queue in self.queues)

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

    def _look_for_strangers(self) -> None:
        """Note, and say once of each name, which tasks are left alone because their code is not here."""
        now = self.app.clock.monotonic()
        if self._strangers_at is not None and now - self._strangers_at < STRANGERS:
            return
        self._strangers_at = now
        for head in self.app.store.strangers(self._wanted()):
            if head.task_id not in self.unknown:
                self.unknown.add(head.task_id)
                self.say(f"left alone: task {head.task_id} needs the code of {head.task_name}, which is not in this app")

    # ------------------------------------------------------------ running

    def _begin(self, head: Head, children: dict[str, int], claim: Claim | None) -> int:
        """Take a place for a task and run it there. 0: it has one, or the worker is stopping."""
        with self._lock:
            taken = head.task_id in self._busy or self._is_damaged(head.task_id) or self._stop.is_set()
            if not taken:
                self._busy.add(head.task_id)
        if taken:
            if claim is not None:
                self.app._runs.give_back(claim)
            return 0
        self._setback.taken(head)
        with self._lock:
            self._tried |= children
        task = self.app.declared_tasks.get(head.task_name)
        try:
            if task is not None and task.code.is_async:
                self._loop.begin(lambda: self._run_here(head.task_id, claim))
            else:
                name = f"doubtless-worker:{head.task_id}"
                host.thread(target=self._run, args=(head.task_id, claim), name=name, daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            self._note(error)
            if claim is not None:
                self._runs.give_back(claim)
            with self._lock:
                self._busy.discard(head.task_id)
            return 0
        return 1

    def _is_damaged(self, task_id: str) -> bool:
        """True of a task that could not be read or run; it is tried again now and then: its content may be brought back."""
        found = self._damaged.get(task_id)
        return found is not None and self.app.clock.monotonic() - found < DAMAGED

    def _run(self, task_id: str, claim: Claim | None) -> None:
        """Run a task in this thread."""
        try:
            run = self._claimed(task_id, claim)
            if run is not None:
                self._end(task_id, self._runs.carry(run).error, run.trouble)
        except BaseException as error:  # also what a step raised to end its program: recorded, and not this thread's  # noqa: BLE001
            self._end(task_id, error, escaped=True)
        finally:
            self._leave(task_id)

    async def _run_here(self, task_id: str, claim: Claim | None) -> None:
        """Run an async task on this event loop, beside the others."""
        try:
            run = self._claimed(task_id, claim)
            if run is not None:
                self._end(task_id, (await self._runs.acarry(run)).error, run.trouble)
        except BaseException as error:  # noqa: BLE001
            self._end(task_id, error, escaped=True)
        finally:
            self._leave(task_id)

    @property
    def _runs(self) -> Runs:
        return self.app._runs

    def _claimed(self, task_id: str, claim: Claim | None) -> TaskRun | None:
        try:
            return self._runs.claim(task_id, limit=wait_limit(self.app.store.now(), False), granted=claim)
        except BaseException as error:
            if claim is not None:  # it would be renewed for ever, and nobody would run it
                self._runs.give_back(claim)
            if isinstance(error, DoubtlessError) and not isinstance(error, StoreDamaged):
                self._forget_tried(task_id)
                return None  # somebody was faster, or the store is away: the next look finds it
            raise

    def _end(
        self, task_id: str, error: BaseException | None, trouble: BaseException | None = None, *, escaped: bool = False
    ) -> None:  # fmt: skip
        """Note how a run ended, unless the log says it: parked, failed or done. `trouble`: what cut it off.

        `escaped`: no task code raised it. What nobody expected there would come again at once, and keep others from their turn.
        """
        with self._lock:
            self.ran += 1
        if isinstance(trouble, StoreError | StaleEpoch):  # cut off: a child for which it was resumed may not have had its turn
            self._forget_tried(task_id)
        if isinstance(error, StoreDamaged):  # no log says it: it takes no row any more
            self._damaged[task_id] = self.app.clock.monotonic()
            self._note(error)
        elif escaped and isinstance(error, Exception) and not isinstance(error, DoubtlessError):
            self._damaged[task_id] = self.app.clock.monotonic()
            self._note(error, f"task {task_id} could not be run, and is tried again in {DAMAGED:g} s: ")
        elif error is not None and not isinstance(error, DoubtlessError) and raised_on(error):
            self._note(error)

    def _forget_tried(self, task_id: str) -> None:
        """The children for which this task was to be resumed have not had their turn."""
        with self._lock:
            self._tried = {child: at for child, at in self._tried.items() if root_of(child) != task_id}

    def _leave(self, task_id: str) -> None:
        with self._lock:
            self._busy.discard(task_id)
        self._ended.set()
        self._wake.set()

    def _note(self, error: BaseException, where: str = "", *, blind: bool = False) -> None:
        """Keep an error, and say it unless it was the last one. `blind`: for it no look came about; each such time is said."""
        if not self.errors or str(self.errors[-1]) != str(error) or (blind and not self._blind):
            self.say(f"{where}{text_of(error)}" + (BLIND if blind else ""))
        self.errors = [*self.errors[-99:], error]
        self._blind |= blind

    def _looked(self) -> None:
        """Say that a look succeeds again."""
        if self._blind:
            self._blind = False
            self.say("looks succeed again")


class Loop:
    """One event loop in one thread for all async tasks of a worker, so that they share commits; started when one is needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._going: set[asyncio.Task[None]] = set()

    def begin(self, run: Callable[[], Any]) -> None:
        """Run a coroutine function on the loop."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = host.thread(target=self._run, args=(self._loop,), name="doubtless-loop", daemon=True)
            self._thread.start()
        loop = self._loop

        def create() -> None:
            task = loop.create_task(run())
            self._going.add(task)  # a loop itself keeps only a weak hold of its tasks
            task.add_done_callback(self._going.discard)

        loop.call_soon_threadsafe(create)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def end(self) -> None:
        """Stop and close the loop, on which nothing runs any more."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None


_TIMED = (TaskStatus.READY, TaskStatus.WAITING, TaskStatus.COMPENSATING, TaskStatus.NEEDS_HUMAN)
"""What may have a time before which there is nothing to do."""


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
        for head in store.heads(status=_TIMED):
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
