"""Verify of a PostgreSQL store: one view of the log, read in one transaction that only reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from ...errors import StoreError
from ..base import Problem
from ..folder import Folder
from ..spill import Spill
from ..verify import Beside, Holds, checks_of, damaged_spills, still_unnamed, unspilled
from .link import Connection, as_store_error, connect, shut
from .mark import MarkFile
from .opening import Gate, Log, misfit, refuse_wrong_schema
from .place import Place
from .rows import event_of
from .schema import SCHEMA, Meta, migrations, queries, statements

_EVENTS = frozenset({"all_rows", "rows", "rows_at"})
_WHOLE = frozenset({"all_rows", "blobs", "naming", "snapshots", "tails"})
"""What may be larger than memory: read through a cursor of the server."""


class PostgresSource:
    """A connection in a transaction that reads (`verify.Source`)."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._queries = queries(schema)
        self._cursors = 0

    def read(self, name: str, args: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        rows: Iterable[tuple[Any, ...]]
        if name in _WHOLE:
            rows = self._stream(name)
        else:
            rows = self._connection.execute(self._queries[name], args, binary=True).fetchall()
        return map(event_of, rows) if name in _EVENTS else rows

    def _stream(self, name: str) -> Iterator[tuple[Any, ...]]:
        self._cursors += 1
        with psycopg.RawServerCursor(self._connection, f"doubtless_{self._cursors}") as cursor:
            cursor.itersize = 500
            yield from cursor.execute(self._queries[name], binary=True)

    @property
    def meta(self) -> Meta:
        (row,) = self.read("meta")
        return Meta._make(row)

    @property
    def suspect(self) -> bool:
        return self.meta.suspect


def verify(place: Place, mark: MarkFile, folder: Folder, spill: Spill, holds: Holds | None = None) -> list[Problem]:
    """Check every chain, gap and ref, every projection, the spilled results and this machine's mark.

    Meaning: one consistent view of the log; what is written meanwhile is not seen. Works on a suspect store too.
    `holds`: whether content lies elsewhere than in the database and the folder.
    """
    problems: list[Problem] = []
    found = mark.read()
    try:
        connection = connect(place.conninfo, place.shown, autocommit=False)
        try:
            server = Gate(place, mark, namespace=None, read_only=True).look(connection)
            connection.rollback()
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            refuse_wrong_schema(connection, place)
            source = PostgresSource(connection, place.schema)
            for check in (lambda: _triggers(source, place), *checks_of(source, Beside(folder, holds))):
                try:
                    problems.extend(check())
                except StoreError as error:
                    problems.append(Problem(place.shown, None, error.message))
                except (psycopg.Error, ValueError, TypeError, KeyError, AttributeError) as error:
                    problems.append(Problem(place.shown, None, f"it cannot be read whole: {error}"))
                    connection.rollback()
            if found is not None:
                why = misfit(found, source.meta, server, place, Log(connection, queries(place.schema)))
                if why:
                    problems.append(Problem(mark.path, None, f"the database does not fit its mark: {why}"))
        finally:
            shut(connection)
    except StoreError as error:
        problems.append(Problem(place.shown, None, error.message))
    if mark.fault:
        problems.append(Problem(mark.path, None, f"the last write of the mark failed: {mark.fault}"))
    problems.extend(damaged_spills(spill))
    return problems


def unnamed(digests: set[bytes], place: Place, spill: Spill) -> set[bytes]:
    """Those of these digests that no event, snapshot or spilled result of this log names."""
    connection = connect(place.conninfo, place.shown, autocommit=False)
    try:
        left = still_unnamed(digests, PostgresSource(connection, place.schema).read("naming"))
    except psycopg.Error as error:
        raise as_store_error(error, "the store cannot be read", place.shown, written=False) from error
    finally:
        shut(connection)
    return unspilled(left, spill)


def _triggers(source: PostgresSource, place: Place) -> Iterator[Problem]:
    stand = {name for (name,) in source.read("triggers")}
    for migration in migrations()[:SCHEMA]:
        for name in re.findall(r"CREATE TRIGGER (\w+)", statements(migration, place.schema)):
            if name not in stand:
                yield Problem(place.shown, None, f"the trigger {name} is gone: the log was not protected")
