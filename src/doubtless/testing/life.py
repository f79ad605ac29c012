"""A process that can die without the test dying with it.

What a dead process leaves behind is its files. So its store is cut off: whatever a thread of it still asks of the
store raises `Killed`, and its owner's lock is dropped as the operating system drops it, without a trace in the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..events import Event, Instant
from ..store.owners import owner_of_process

if TYPE_CHECKING:
    from ..store.sqlite import SqliteStore

AtAppend = Callable[[Literal["before", "after"], Sequence[Event]], None]


class Killed(BaseException):
    """The process died here (`Harness.kill`). Not an `Exception`: no handler of the code under test may swallow it.

    Meaning: nothing was recorded from that point on, and the task is free for whoever resumes it. Calling `run` again
    is the restart. `finally` blocks of the code under test did run, which those of a killed process would not.
    """


class Put(NamedTuple):
    """Rows, or a task that is begun (none), that were put down for a commit which they share."""

    ticket: Any
    events: Sequence[Event] = ()

    @property
    def done(self) -> bool:
        """Whether its commit is over."""
        return bool(self.ticket.done)


class MortalStore:
    """A process's store: the real one, until the process dies. Everything after that raises `Killed`."""

    def __init__(self, store: SqliteStore, at_append: AtAppend) -> None:
        self._store = store
        self._at_append = at_append
        self._lock = threading.RLock()  # whoever dies waits for calls that are under way: each is done or was never begun
        self._dead: str | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def alive(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.check()
                return value(*args, **kwargs)

        return alive

    def check(self) -> None:
        """Raises Killed once the process is dead."""
        if self._dead is not None:
            raise Killed(self._dead)

    def now(self) -> Instant:
        """The store's clock; a dead process has none."""
        self.check()
        return self._store.now()

    def append(self, events: Sequence[Event], **options: Any) -> None:
        """Append, unless the process dies at this point, before or after."""
        self.check()
        self._at_append("before", events)
        with self._lock:
            self.check()
            self._store.append(events, **options)
        self._at_append("after", events)

    def submit(self, events: Sequence[Event], **options: Any) -> Any:
        """Put a row down, unless the process dies at this point: then nobody commits it."""
        with self._lock:
            self.check()
            ticket = self._store.submit(events, **options)
        if ticket is None:
            return None
        self._at_append("before", events)
        return Put(ticket, events)

    def submit_begin(self, *args: Any, **options: Any) -> Put:
        """Put a task down that is to be begun, unless the process dies at this point."""
        with self._lock:
            self.check()
            ticket = self._store.submit_begin(*args, **options)
        self._at_begin("before")
        return Put(ticket)

    def _at_begin(self, when: Literal["before", "after"]) -> None:
        """The point before and after the commit of a task that is begun."""

    def flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> int:
        """Commit what was put down; a dead process commits nothing."""
        with self._lock:
            return self._store.flush(most, gone) if self._dead is None else 0

    def landed(self, put: Put) -> Any:
        """What came of it; the process may die when it is durable."""
        with self._lock:
            self.check()
            result = self._store.landed(put.ticket)
        if put.events:
            self._at_append("after", put.events)
        else:
            self._at_begin("after")
        return result

    def close(self) -> None:
        """Close the store; what is dead is closed already."""
        with self._lock:
            if self._dead is None:
                self._store.close()

    def die(self, why: str) -> None:
        """Cut the process off, and drop its owner's lock: the file stays, as a killed process leaves it."""
        with self._lock:
            if self._dead is None:
                self._dead = why
                owner_of_process(self._store.path + ".owners").forsake()
                self._store.close()
