"""Connections to PostgreSQL: a few, opened at first use, each method on one of them for one statement.

No statement needs the state of a session, so that appends work through a transaction pooler: nothing is set, nothing is
prepared (but where no pooler is: `appending`), and each statement is a transaction of its own.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Protocol, TypeVar

import psycopg

from ... import host
from ...errors import StoreDamaged, StoreError, StoreRefused, StoreUnavailable
from ..folder import Hooks

T = TypeVar("T")
Row = tuple[Any, ...]


class Session(psycopg.Connection[Row]):
    """A connection. `direct`: the server process that answers is the one that it was opened to; `prepared`: what is there."""

    direct = False

    def __init__(self, pgconn: psycopg.pq.abc.PGconn, **more: Any) -> None:
        super().__init__(pgconn, **more)
        self.prepared: set[bytes] = set()


Connection = Session


class Statement(Protocol):
    """A statement that is sent in its own way."""

    def run(self, session: Session, args: Sequence[Any], *, prepared: bool) -> list[Row]: ...


PAUSES = (0.0, 0.05, 0.25, 1.0)
"""Seconds before a statement is tried again whose connection was lost."""

_AGAIN = frozenset({"40001", "40P01"})
_UNPREPARED = "26000"
_IDLE = psycopg.pq.TransactionStatus.IDLE
_LOST = frozenset({"57P01", "57P02", "57P03", "25P02"})
_NO_SPACE = frozenset({"53100", "53200", "53300", "53400", "58030"})
MISSING = frozenset({"42883", "42P01", "3F000", "42703"})
_READ_ONLY = "25006"


AWAY = "check that the server runs and can be reached, then resume"


class Refusal(Exception):
    """The database refused a statement, which has changed nothing. `code`: the reason (`postgres/0001.sql`)."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(code, said)
        self.code = code
        self.said = said


def as_store_error(error: psycopg.Error, doing: str, shown: str, *, written: bool | None = None, hint: str = AWAY) -> StoreError:
    """What the driver's error means for the store's user, and what to do next."""
    code = error.sqlstate or ""
    lines = takewhile(lambda line: not line.startswith("CONTEXT:"), str(error).strip().splitlines())  # which is SQL of ours
    said = "; ".join(line.strip() for line in lines)
    what = f"{doing}: {said} ({shown})"
    if code in MISSING:
        return StoreRefused(what, hint="the tables are not those of this version: doubtless migrate, or upgrade doubtless")
    if code == _READ_ONLY:
        return StoreRefused(
            f"{doing}: {shown} takes no writes: it is a standby, or a session that only reads",
            hint="give the URL of the primary, as with target_session_attrs=read-write",
        )
    if code == "DBLSC":
        return StoreRefused(
            f"{doing}: a commit would not be durable there ({str(error).strip().splitlines()[0]})",
            hint="set synchronous_commit = on and fsync = on for this server, database and role",
            written=False,
        )
    if code[:2] == "XX":
        return StoreDamaged(what, hint="doubtless verify shows what is damaged; restore a backup, then doubtless recover")
    if code in _NO_SPACE:
        return StoreUnavailable(what, hint="free space or connections on the server, then resume", written=written)
    if code in ("42501", "28000", "28P01"):
        return StoreRefused(what, hint="grant the role what docs/postgres.md lists")
    if not code or code[:2] in ("08", "57"):
        return StoreUnavailable(what, hint=hint, written=written)
    return StoreError(what, hint="the schema refuses this row: a fault of doubtless or of who wrote it", written=written)


class Link:
    """Up to `limit` connections for all threads of this process; the one that was used last is used next.

    `admit` looks at each new connection before it is used, and refuses a server on which no log can be kept.
    """

    def __init__(
        self, conninfo: str, shown: str, admit: Callable[[Connection], None], *, limit: int, hooks: Hooks = None, read_only: bool
    ) -> None:
        self.shown = shown
        self.hooks = hooks
        self.read_only = read_only
        self.statements = 0
        self.used = False
        self.prepares = True
        self._conninfo = conninfo
        self._admit = admit
        self._limit = limit
        self._idle: list[Connection] = []
        self._free = host.slots(limit)
        _LINKS.add(self)
        # What was in use when its store was closed, or is one's that nobody has closed, is closed with it.
        weakref.finalize(self, _shut_all, self._idle).atexit = False

    # ------------------------------------------------------------ connections

    def renew(self) -> None:
        """Open a new connection, so that `admit` looks at the store again."""
        self.give(self.take(new=True))

    def take(self, *, new: bool = False) -> Connection:
        """A connection for one method; it is given back by `give`. Raises: StoreUnavailable, StoreRefused."""
        self._free.acquire()
        try:
            if new:
                self.close()  # with a place in hand: one that is given back before there is one would be one too many
            else:
                return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._open()
        except BaseException:
            self._free.release()
            raise

    def give(self, connection: Connection) -> None:
        """Give a connection back; a broken one is closed."""
        if connection.pgconn.transaction_status != _IDLE:  # of one that is broken nobody knows
            shut(connection)
        else:
            self._idle.append(connection)
        self._free.release()

    def _open(self) -> Connection:
        connection = connect(self._conninfo, self.shown)
        try:
            self._admit(connection)
        except BaseException:
            shut(connection)
            raise
        return connection

    # ------------------------------------------------------------ reading

    def all(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """All rows of one read; asked again on a new connection when the old one was lost."""
        rows: list[Row] = self._read(sql, args)
        return rows

    def one(self, sql: str, args: Sequence[Any] = ()) -> Row | None:
        """The first row of one read, or None."""
        rows = self._read(sql, args)
        return rows[0] if rows else None

    def _read(self, sql: str, args: Sequence[Any]) -> list[Row]:
        for pause in PAUSES[:2]:
            if pause:
                host.sleep(pause)
            connection = self.take()
            try:
                return self._execute(connection, sql, args)
            except psycopg.Error as error:
                self._look_after(connection, error)
                if not lost(connection, error) or pause:
                    raise as_store_error(error, "the store cannot be read", self.shown, written=False) from error
            except BaseException:
                shut(connection)
                raise
            finally:
                self.give(connection)
        raise AssertionError

    def _execute(self, connection: Connection, sql: str | Statement, args: Sequence[Any]) -> list[Row]:
        self.statements += 1
        self.used = True
        if not isinstance(sql, str):
            return sql.run(connection, args, prepared=self.prepares and connection.direct)
        cursor = connection.execute(sql, args, binary=True)
        return cursor.fetchall() if cursor.description is not None else []

    # ------------------------------------------------------------ writing

    def write(
        self, what: str, sql: str | Statement, args: Sequence[Any], stands: Callable[[], T | None], made: Callable[[list[Row]], T]
    ) -> T:
        """Run one statement that writes, durable at return; what `made` makes of its rows.

        After a lost connection the fate is looked up by `stands`: what it returns is the result of a statement that did
        commit. None: it is sent again as it was. The first one may still be on its way: of the two one finds its place
        taken, so that nothing is written twice.
        Raises: Refusal; StoreUnavailable, in whose context `written` is False (surely not) or None (it cannot be told).
        """
        if self.read_only:
            raise StoreRefused(f"{self.shown} was opened only to look: no {what}", hint="open it without read_only")
        sent = False
        for pause in PAUSES:
            if pause:
                host.sleep(pause)
            try:
                if sent and (found := stands()) is not None:
                    return found
                connection = self.take()
            except StoreRefused as error:  # what was taken once is taken again, once whoever runs the server has mended it
                if not self.used:
                    raise
                raise unavailable(error, written=None if sent else False) from error
            except StoreUnavailable as error:
                if pause == PAUSES[-1] or not sent:
                    error.context["written"] = None if sent else False
                    raise
                continue
            try:
                if self.hooks is not None:
                    self.hooks(what + ":before")
                sent = True
                rows = self._execute(connection, sql, args)
            except psycopg.Error as error:
                self._look_after(connection, error)
                if error.sqlstate == _UNPREPARED and self.prepares:  # a pooler that looks like the server itself
                    self.prepares = False
                elif (error.sqlstate or "") not in _AGAIN and not lost(connection, error):
                    said = refused(error, what, self.shown)
                    raise (unavailable(said, written=False) if isinstance(said, StoreRefused) else said) from error
                failed = error
                continue
            except BaseException:
                shut(connection)
                raise
            finally:
                self.give(connection)
            if self.hooks is not None:
                self.hooks(what + ":after")
            return made(rows)
        raise as_store_error(failed, f"{what}: its fate cannot be told", self.shown, written=None) from failed

    def _look_after(self, connection: Connection, error: psycopg.Error) -> None:
        """After a lost connection: the others that nobody uses were opened to the same server, and are most likely gone too."""
        if lost(connection, error):
            shut(connection)  # libpq may still call it whole
            self.close()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Close the connections that nobody uses; the next use opens new ones."""
        _shut_all(self._idle)

    def forsake(self) -> None:
        """In the child of a fork: the connections are the parent's, and are not even closed."""
        _INHERITED.extend(self._idle)
        self._idle.clear()
        self._free = host.slots(self._limit)


def connect(conninfo: str, shown: str, *, autocommit: bool = True) -> Connection:
    """A bare connection. Raises: StoreUnavailable, StoreRefused."""
    try:
        return Session.connect(
            conninfo,
            autocommit=autocommit,
            prepare_threshold=None,
            cursor_factory=psycopg.RawCursor,
            client_encoding="utf8",
            **{name: value for name, value in _DEFAULTS.items() if f"{name}=" not in conninfo},
        )
    except psycopg.ProgrammingError as error:  # nobody was called: the URL itself says something that the driver does not know
        options = "its options are those of docs/postgres.md and the driver's, as in ?schema=doubtless&sslmode=require"
        raise StoreRefused(f"{shown} is no URL of a PostgreSQL store: {str(error).strip()}", hint=options) from error
    except psycopg.Error as error:
        raise as_store_error(error, "the store cannot be opened", shown, written=False, hint=UNREACHED) from error


UNREACHED = "check that the server runs and can be reached, and the URL's host, role, password and database; then resume"
"""What to do where no connection came about: neither the driver nor, often, the server says by a code which of them it was."""

_DEFAULTS: dict[str, Any] = {
    "application_name": "doubtless",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""What a connection is opened with unless the URL says otherwise: a peer that is gone is noticed within half a minute."""


def lost(connection: Connection, error: psycopg.Error) -> bool:
    """Whether the connection went away, so that nobody knows what came of the statement."""
    code = error.sqlstate or ""
    # A result that is an error without a code is libpq's own: a failed write leaves the connection's status as it was.
    return connection.closed or code[:2] == "08" or code in _LOST or (not code and error.pgresult is not None)


def refused(error: psycopg.Error, what: str, shown: str) -> Refusal | StoreError:
    """The refusal of a statement: the log's own reasons by their code, everything else as a store's error."""
    code = error.sqlstate or ""
    if code == "23505" and (error.diag.constraint_name or "").startswith("events_"):  # the key's, or a partition's of it
        return Refusal("DBLMV", "")
    if code[:3] == "DBL" and code not in ("DBLSC", "DBLAO"):
        return Refusal(code, error.diag.message_primary or "")
    return as_store_error(error, f"{what} is not written", shown, written=False)


def unavailable(error: StoreRefused, *, written: bool | None) -> StoreUnavailable:
    """A server that takes no writes any more: a result is offered to it again, and kept meanwhile (rule 6)."""
    return StoreUnavailable(error.message, hint=error.hint, **{**error.context, "written": written})


def shut(connection: Connection) -> None:
    """Close a connection, whatever state it is in."""
    status = psycopg.pq.TransactionStatus
    with contextlib.suppress(psycopg.Error, OSError):
        try:
            if connection.info.transaction_status in (status.INTRANS, status.INERROR):
                connection.rollback()  # so that a pooler can give the server's connection to the next client
        finally:
            connection.close()


def _shut_all(idle: list[Connection]) -> None:
    while True:
        try:
            connection = idle.pop()
        except IndexError:
            return
        shut(connection)


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()
_INHERITED: list[Connection] = []


def _after_fork_in_child() -> None:
    for link in _LINKS:
        link.forsake()


os.register_at_fork(after_in_child=_after_fork_in_child)
