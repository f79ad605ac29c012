"""Opening a PostgreSQL store: refused where no log can be kept, where the tables are not there, and where the mark does not fit.

Each new connection is looked at before it is used: behind one URL another server may answer after a failover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg

from ...errors import StoreRefused, StoreSuspect
from ...events import STORE_TASK, Event, Instant, Kind, row_hash
from .link import Connection, as_store_error
from .mark import Mark, MarkFile
from .place import Place
from .rows import event_of
from .schema import SCHEMA, Meta, Version, queries


class Server(NamedTuple):
    """What a server says of itself: the cluster and its timeline."""

    system: int
    timeline: int


class Gate:
    """What stands between a new connection and its use."""

    def __init__(self, place: Place, mark: MarkFile, *, namespace: bytes | None, read_only: bool) -> None:
        self.place = place
        self.mark = mark
        self.meta: Meta | None = None
        self.server: Server | None = None
        self.version = Version(0, 0)
        self.newest: Event | None = None  # of what this process has written
        self._namespace = namespace
        self._read_only = read_only
        self._queries = queries(place.schema)

    def admit(self, connection: Connection) -> None:
        """Let a connection pass, or raise why not: StoreRefused, StoreSuspect."""
        try:
            server = self.look(connection)
            meta = self._meta(connection)
            if not self._read_only:  # each time: a restored database may say the same of itself as the one before
                self._judge(connection, meta, server)
            self.meta, self.server = meta, server
        except psycopg.Error as error:
            raise as_store_error(error, "the store cannot be opened", self.place.shown, written=False) from error

    # ------------------------------------------------------------ the server

    def look(self, connection: Connection) -> Server:
        """Refuse a server on which a commit is not durable or no row can be written."""
        (standby, commit, fsync, standbys, isolation, encoding, system, timeline, _, process) = _one(
            connection, self._queries["server"]
        )
        connection.direct = process == connection.info.backend_pid
        shown = self.place.shown
        if encoding != "UTF8":
            raise StoreRefused(f"{shown} has encoding {encoding}: it holds not every text", hint="createdb -E UTF8 -T template0")
        if self._read_only:
            return Server(system, timeline)
        if standby:
            raise StoreRefused(
                f"{shown} is a standby, which takes no writes", hint="give the primary's URL; a standby can be opened read_only"
            )
        if fsync == "off":
            raise StoreRefused(f"{shown} runs with fsync=off: an intent would be lost with the power", hint="set fsync = on")
        if commit == "off":
            raise StoreRefused(
                f"{shown} commits with synchronous_commit=off: an acknowledged intent can be lost, and its write be sent again",
                hint="set synchronous_commit = on for the server, the database and the role",
            )
        if commit == "local" and standbys:
            raise StoreRefused(
                f"{shown} commits with synchronous_commit=local beside standbys ({standbys}): a failover loses intents",
                hint="set synchronous_commit = on for the server, the database and the role",
            )
        if isolation != "read committed":
            raise StoreRefused(
                f"{shown} has default_transaction_isolation={isolation}: a freeze would not be seen",
                hint="ALTER ROLE … SET default_transaction_isolation = 'read committed'",
            )
        return Server(system, timeline)

    # ------------------------------------------------------------ the tables

    def _meta(self, connection: Connection) -> Meta:
        self.version = refuse_wrong_schema(connection, self.place, self.mark)
        row = connection.execute(self._queries["meta"], binary=True).fetchone()
        if row is None:
            raise StoreRefused(
                f"{self.place.shown} has no meta row", hint="restore a backup, then: doubtless recover --accept"
            )
        meta = Meta._make(row)
        if self._namespace is not None and self._namespace != meta.namespace:
            raise StoreRefused(
                f"{self.place.shown} has another namespace; it is part of every key and never changes",
                hint="leave the namespace out, or give the one that the store was made with",
            )
        return meta

    def again(self, store_id: bytes, suspect: bool) -> bool:
        """True when the store is what it was when it was looked at last; otherwise it is forgotten, and looked at anew."""
        if self.meta is not None and (self.meta.store_id, self.meta.suspect) == (store_id, suspect):
            return True
        self.meta, self.newest = None, None
        return False

    # ------------------------------------------------------------ the mark

    def _judge(self, connection: Connection, meta: Meta, server: Server) -> None:
        found = self.mark.read()
        if found is None:
            self.mark.write(Mark(meta.store_id, server.system, server.timeline, "", 0, b""))
            return
        why = misfit(found, meta, server, self.place, Log(connection, self._queries))
        newest = self.newest if self.meta is not None and self.meta.store_id == meta.store_id else None
        if not why and newest is not None:
            if not Log(connection, self._queries).has(newest.task_id, newest.event_seq, row_hash(newest)):
                why = f"row {newest.event_seq} of task {newest.task_id}, which this process has written, is not there"
        if why:
            raise StoreSuspect(
                f"{self.place.shown} does not fit the mark at {self.mark.path}: {why}; it may know less than was done",
                hint=f"doubtless recover --accept --by NAME --why TEXT --store '{self.place.shown}'",
                reason=why,
            )
        assert isinstance(found, Mark)
        if (found.store_id, found.system, found.timeline) != (meta.store_id, *server):
            self.mark.write(found._replace(store_id=meta.store_id, system=server.system, timeline=server.timeline))


class Log:
    """What is asked of a log that is judged."""

    def __init__(self, connection: Connection, queries: dict[str, str]) -> None:
        self._connection = connection
        self._queries = queries

    def has(self, task_id: str, seq: int, digest: bytes) -> bool:
        """Whether this very row stands."""
        row = self._connection.execute(self._queries["rows_at"], (task_id, f"[{seq}]"), binary=True).fetchone()
        return row is not None and row_hash(event_of(row)) == digest

    def recoveries(self) -> list[Event]:
        """The rows in which a person went on with a store that did not fit."""
        rows = self._connection.execute(
            self._queries["rows_of_kinds"], (STORE_TASK, f'["{Kind.STORE_RECOVERED}"]'), binary=True
        ).fetchall()
        return [event_of(row) for row in rows]


def misfit(found: Mark | str, meta: Meta, server: Server, place: Place, log: Log) -> str:
    """Why a database does not fit a mark; empty when it does."""
    if isinstance(found, str):
        return f"the mark cannot be used ({found})"
    if found.store_id != meta.store_id:
        # Somebody has gone on with it knowingly since, on another machine: what was lost then is accepted.
        if any(row.details.get("was") == found.store_id.hex() for row in log.recoveries()):
            return ""
        return "the mark is another store's"
    if found.event_seq and not log.has(found.task_id, found.event_seq, found.row_hash):
        return f"row {found.event_seq} of task {found.task_id}, which was committed, is not there"
    if found.system != server.system:
        return "it is on another server than before: a copy, or a backup that was restored elsewhere"
    if found.timeline != server.timeline and place.failover != "synchronous":
        return (
            f"the server's timeline is {server.timeline}, it was {found.timeline}: a standby was promoted or a backup restored,"
            " and acknowledged commits may be gone (?failover=synchronous says that failovers here lose none)"
        )
    return ""


def refuse_wrong_schema(connection: Connection, place: Place, mark: MarkFile | None = None) -> Version:
    """Refuse a database whose tables are not there, or are not such that this version can use them; what they are."""
    version = schema_of(connection, place)
    if version is None:
        if mark is not None and mark.read() is not None:
            raise StoreSuspect(
                f"{place.shown} has no tables, but there was a store (its mark is at {mark.path})",
                hint=f"restore a backup, then: doubtless recover --accept --by NAME --why TEXT --store '{place.shown}'; "
                f"if it held nothing of worth: rm {mark.path}",
            )
        raise StoreRefused(
            f"{place.shown} has no tables of doubtless in schema {place.schema}: it is not migrated",
            hint=f"doubtless migrate --store '{place.shown}'",
        )
    refuse_newer(version, SCHEMA, place)
    if version.number < SCHEMA:
        raise StoreRefused(
            f"{place.shown} has schema {version.number}; this version needs {SCHEMA}",
            hint=f"doubtless migrate --store '{place.shown}'",
        )
    return version


def refuse_newer(version: Version, known: int, place: Place) -> None:
    """Refuse a store on which a migration has run that programs which know no more than `known` cannot work with."""
    if version.needs > known:
        raise StoreRefused(
            f"{place.shown} has schema {version.number}, which takes a version that knows {version.needs}; this knows {known}",
            hint="upgrade doubtless; the store was not touched",
        )


def schema_of(connection: Connection, place: Place) -> Version | None:
    """What has run; None: no migration has."""
    q = queries(place.schema)
    if not _one(connection, q["is_migrated"], (f'"{place.schema}".migrations',))[0]:
        return None
    number, needs = _one(connection, q["schema_version"])
    return None if number is None else Version(number, needs)


def _one(connection: Connection, sql: str, args: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    row = connection.execute(sql, args, binary=True).fetchone()
    assert row is not None
    return row


Clock = Callable[[], Instant]
