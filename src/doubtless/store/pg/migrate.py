"""Migrate: make the tables, or bring them to this version; numbered, forward only, all in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import psycopg

from ...errors import StoreError, StoreRefused, StoreSuspect, StoreUnavailable
from ..mark import NAMESPACE_BYTES
from . import schema
from .link import Connection, as_store_error, connect, shut
from .mark import MarkFile
from .opening import Gate, refuse_newer, schema_of
from .place import Place, place_of
from .schema import Migration, Version

PATIENCE = "10s"
"""How long a migration waits for a table: whoever appends waits behind it."""


def migrate(
    url: str, *, state: str, namespace: bytes | None = None, randomness: Callable[[int], bytes] = os.urandom,
    migrations: Sequence[Migration] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Bring a store's tables to this version; the schema before (0: none) and after.

    Meaning: one process does it at a time and the next finds it done; everything or nothing. A newer schema is not touched,
    and refused where it takes a newer version; so is an empty database where a store used to be. Programs that work on the store
    meanwhile wait for the tables, then go on. `namespace` is random unless given, set once. `migrations`: instead of this
    version's own.
    """
    from ..postgres import mark_of

    place = place_of(url)
    if namespace is not None and not 0 < len(namespace) <= NAMESPACE_BYTES:
        raise StoreRefused(f"a namespace has 1 to {NAMESPACE_BYTES} bytes, not {len(namespace)}", hint="choose a shorter one")
    known = schema.migrations() if migrations is None else migrations
    connection = connect(place.conninfo, place.shown)
    try:
        Gate(place, MarkFile(""), namespace=None, read_only=False).look(connection)
        with connection.transaction():
            before = _begin(connection, place, mark_of(place, state), known[-1].number)
            for migration in known[before.number :]:
                _run(connection, place, migration, before)
            connection.execute(schema.queries(place.schema)["create_meta"], (randomness(16), namespace or randomness(16), False))
        return before.number, max(before.number, known[-1].number)
    except psycopg.Error as error:
        raise _explained(error, place, "migrate") from error
    finally:
        shut(connection)


def _begin(connection: Connection, place: Place, mark: MarkFile, newest: int) -> Version:
    """Have the store to ourselves; what has run on it."""
    q = schema.queries(place.schema)
    connection.execute(q["lock_migrations"], (place.schema,))
    connection.execute(q["patience"], (PATIENCE,))
    before = schema_of(connection, place)
    if before is None:
        if mark.read() is not None:
            raise StoreSuspect(
                f"{place.shown} has no tables, but there was a store (its mark is at {mark.path})",
                hint=f"restore a backup; if it held nothing of worth: rm {mark.path}, then migrate again",
            )
        if connection.execute(q["has_schema"], (place.schema,)).fetchone() is None:
            connection.execute(q["create_schema"])
        connection.execute(q["migrations"])
        return Version(0, 0)
    refuse_newer(before, newest, place)
    return before


def _run(connection: Connection, place: Place, migration: Migration, before: Version) -> None:
    """Run one migration; what was there before stays there, whole, when it fails."""
    try:
        connection.execute(schema.statements(migration, place.schema).encode(), prepare=False)
        connection.execute(schema.queries(place.schema)["migrated"], (migration.number, migration.needs))
    except psycopg.Error as error:
        stands = f"as it was, at schema {before.number}" if before.number else "as it was: nothing was made"
        said = _explained(error, place, f"migration {migration.number} failed, and the store is {stands}")
        raise said from error


def _explained(error: psycopg.Error, place: Place, doing: str) -> StoreError:
    if error.sqlstate == "42501":
        return StoreRefused(
            f"{doing}: the role may not make the tables ({str(error).strip()}) ({place.shown})",
            hint=f"as a role that may: CREATE SCHEMA {place.schema} AUTHORIZATION …; then migrate again",
        )
    if error.sqlstate == "55P03":
        return StoreUnavailable(
            f"{doing}: somebody has kept a table for more than {PATIENCE} ({place.shown})",
            hint="let what reads the whole log (verify, a dump) come to its end, then migrate again",
            written=False,
        )
    said = as_store_error(error, doing, place.shown)
    if type(said) is StoreError:
        said.hint = "what works on the store goes on as before; mend what is said here, then migrate again"
    return said
