"""One connection to a SQLite file: opened at first use, one method at a time, closed before the process forks."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from .. import host
from ..errors import StoreDamaged, StoreError, StoreRefused, StoreUnavailable, UsageError
from .folder import Hooks

T = TypeVar("T")
Row = tuple[Any, ...]

RETRY_SECONDS = 0.0005
"""SQLite's own back-off starved one of two processes for as long as it was measured; a constant wait starves nobody."""

FORK_SECONDS = 60.0
"""How long a fork waits for a method that is under way."""

_CLOSED: apsw.Cursor | None = None


def constant_retry(timeout: float) -> Callable[[int], bool]:
    """A busy handler that tries again at a constant short interval, until the deadline."""
    deadline = 0.0

    def handler(prior: int) -> bool:
        nonlocal deadline
        now = host.monotonic()
        if prior == 0:
            deadline = now + timeout
        if now >= deadline:
            return False
        host.sleep(RETRY_SECONDS)
        return True

    return handler


def as_store_error(error: apsw.Error, doing: str, path: str, *, written: bool | None = None) -> StoreError:
    """What a driver's error means for the store's user, and what to do next."""
    what = f"{doing}: {error} ({path})"
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(what, hint="doubtless verify shows what is damaged; restore a backup, then doubtless recover")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(what, hint="another process holds the database's write lock; end it or wait", written=written)
    if isinstance(error, apsw.FullError):
        return StoreUnavailable(what, hint="the disk is full: free space, then resume", written=written)
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.IOError | apsw.NoMemError | apsw.ProtocolError):
        return StoreUnavailable(what, hint="check the disk and the file's permissions, then resume", written=written)
    return StoreError(what, hint="the schema refuses this row: a fault of doubtless or of who wrote it", written=written)


def no_text(error: UnicodeError, path: str) -> StoreDamaged | UsageError:
    """What a text that is no text means: in the file it is damage; of what was asked for, nothing can be found."""
    if isinstance(error, UnicodeDecodeError):
        return StoreDamaged(f"a text in {path} is damaged: {error}", hint="doubtless verify shows more; restore a backup")
    return UsageError("what was asked for holds a lone surrogate, which is no text", hint="write it as valid UTF-8")


class Link:
    """The connection, its one cursor and its lock. `opener` opens, checks and prepares a connection."""

    def __init__(self, path: str, opener: Callable[[], apsw.Connection], hooks: Hooks = None, *, read_only: bool = False) -> None:
        self.path = path
        self.lock = host.lock()
        self.cursor = _CLOSED
        self.hooks = hooks
        self.read_only = read_only
        self._opener = opener
        self._connection: apsw.Connection | None = None
        _LINKS.add(self)

    def ready(self) -> apsw.Cursor:
        """The cursor, opened if need be; the caller holds the lock. One cursor, so that statements stay compiled."""
        if self.cursor is None:
            try:
                self._connection = self._opener()
            except apsw.Error as error:
                raise as_store_error(error, "the store cannot be opened", self.path, written=False) from error
            except OSError as error:
                raise StoreUnavailable(
                    f"the store cannot be opened: {error.strerror} ({error.filename or self.path})",
                    hint="check the disk and the file's permissions",
                    written=False,
                ) from error
            self.cursor = self._connection.cursor()
        return self.cursor

    def limit_pages(self, pages: int | None) -> None:
        """Let the file have no more than so many pages: a full disk, for tests and for hosts with a quota."""
        with self.lock:
            self.ready()
            assert self._connection is not None
            self._connection.pragma("max_page_count", pages or 0xFFFFFFFE)

    def pages(self) -> int:
        """How many pages the file has."""
        with self.lock:
            self.ready()
            assert self._connection is not None
            count = self._connection.pragma("page_count")
            assert isinstance(count, int)
            return count

    def all(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """All rows of one read."""
        with self.lock:
            try:
                return self.ready().execute(sql, args).fetchall()
            except apsw.Error as error:
                raise as_store_error(error, "the store cannot be read", self.path, written=False) from error
            except UnicodeError as error:
                raise no_text(error, self.path) from error

    def one(self, sql: str, args: Sequence[Any] = ()) -> Row | None:
        """The first row of one read, or None."""
        with self.lock:
            try:
                return first(self.ready(), sql, args)
            except apsw.Error as error:
                raise as_store_error(error, "the store cannot be read", self.path, written=False) from error
            except UnicodeError as error:
                raise no_text(error, self.path) from error

    def write(self, what: str, body: Callable[[apsw.Cursor], T], stands: Callable[[apsw.Cursor], T | None]) -> T:
        """Run `body` in one transaction, durable at return; all of it or nothing.

        What `body` raises takes the transaction back. After an error of the driver the fate is looked up by `stands`:
        what it returns is the result of a transaction that did commit; None means that nothing of it is in the log.
        Raises: StoreUnavailable, in whose context `written` is False (surely not) or None (it cannot be told).
        """
        with self.lock:
            cursor = self.writable(what)
            try:
                cursor.execute("BEGIN IMMEDIATE")
                result = body(cursor)
                if self.hooks is not None:
                    self.hooks(what + ":before")
                cursor.execute("COMMIT")
            except apsw.Error as error:
                self.take_back()
                result = self.fate(what, error, stands)
            except BaseException:
                self.take_back()
                raise
            if self.hooks is not None:
                self.hooks(what + ":after")
            return result

    def writable(self, what: str) -> apsw.Cursor:
        """The cursor, for a write; the caller holds the lock. Raises: StoreRefused when opened only to look."""
        if self.read_only:
            raise StoreRefused(f"{self.path} was opened only to look: no {what}", hint="open it without read_only")
        return self.ready()

    def fate(self, what: str, error: apsw.Error, stands: Callable[[apsw.Cursor], T | None]) -> T:
        """Look up whether a failed commit stands. The caller holds the lock and has taken back what was open.

        After a failed sync the frames may lie whole in the WAL: the next commit overwrites them, and if the machine
        dies before that they may come back as they were, in their place. For an intent that is the safe side.
        """
        try:
            found = stands(self.ready())
        except (apsw.Error, StoreError):
            raise as_store_error(error, f"{what}: its fate cannot be told", self.path, written=None) from error
        if found is None:
            raise as_store_error(error, f"{what} is not written", self.path, written=False) from error
        return found

    def take_back(self) -> None:
        """Undo what is open; a connection that cannot do that is closed, which does it too."""
        connection = self._connection
        if connection is None or self.cursor is None:
            return
        try:
            if connection.in_transaction:
                self.cursor.execute("ROLLBACK")
        except apsw.Error:
            self._shut()

    def close(self) -> None:
        """Close the connection; the next use opens it again. The last one to close copies the WAL into the database."""
        with self.lock:
            writes = self._connection is not None and not self.read_only
            if self.hooks is not None and writes:
                self.hooks("close:write")
            self._shut()
            if self.hooks is not None and writes:
                self.hooks("close:written")

    def _shut(self) -> None:
        connection, self._connection, self.cursor = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):  # the copying of pages at the end failed: the WAL keeps them
                connection.close(True)

    def before_fork(self) -> bool:
        """Take the lock and close: SQLite keeps its locks per process, and a child that inherited an open file would
        believe in locks that it does not have. True when that was done."""
        if not self.lock.acquire(timeout=FORK_SECONDS):
            return False
        connection = self._connection
        if connection is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._shut()
        return True

    def forsake(self) -> None:
        """In the child of a fork that could not wait: never touch the parent's connection, not even to close it."""
        if self._connection is not None:
            _INHERITED.append(self._connection)
        self._connection, self.cursor, self.lock = None, None, host.lock()


def first(cursor: apsw.Cursor, sql: str, args: Sequence[Any] = ()) -> Row | None:
    """The first row of a query, or None; the cursor is at rest afterwards."""
    rows = cursor.execute(sql, args).fetchall()
    return rows[0] if rows else None


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()
_INHERITED: list[apsw.Connection] = []
_closed_for_fork: list[Link] = []


def _before_fork() -> None:
    _closed_for_fork[:] = [link for link in sorted(_LINKS, key=id) if link.before_fork()]


def _after_fork() -> None:
    closed = list(_closed_for_fork)
    _closed_for_fork.clear()
    for link in closed:
        link.lock.release()


def _after_fork_in_child() -> None:
    closed = set(map(id, _closed_for_fork))
    _after_fork()
    for link in _LINKS:
        if id(link) not in closed:
            link.forsake()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
