"""Migrate: make the tables, or bring them to this version; numbered, forward only, all in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable

import psycopg

from ...errors import StoreError, StoreRefused, StoreSuspect
from ..mark import NAMESPACE_BYTES
from . import schema
from .link import Connection, as_store_error, connect, shut
from .mark import MarkFile
from .opening import Gate, schema_of
from .place import Place, place_of


def migrate(
    url: str, *, state: str, namespace: bytes | None = None, randomness: Callable[[int], bytes] = os.urandom
) -> tuple[int, int]:
    """Bring a store's tables to this version; the schema before (0: none) and after.

    Meaning: one process does it at a time and the next finds it done; everything or nothing. A newer schema is refused and
    not touched, and so is an empty database where a store used to be. `namespace` is random unless given, set once.
    """
    from ..postgres import mark_of

    place = place_of(url)
    if namespace is not None and not 0 < len(namespace) <= NAMESPACE_BYTES:
        raise StoreRefused(f"a namespace has 1 to {NAMESPACE_BYTES} bytes, not {len(namespace)}", hint="choose a shorter one")
    connection = connect(place.conninfo, place.shown)
    try:
        Gate(place, MarkFile(""), namespace=None, read_only=False).look(connection)
        return _migrate(connection, place, mark_of(place, state), namespace or randomness(16), randomness)
    except psycopg.Error as error:
        raise _explained(error, place) from error
    finally:
        shut(connection)


def _migrate(
    connection: Connection, place: Place, mark: MarkFile, namespace: bytes,
    randomness: Callable[[int], bytes],
) -> tuple[int, int]:  # fmt: skip
    q = schema.queries(place.schema)
    with connection.transaction():
        connection.execute(q["lock_migrations"], (place.schema,))
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
        if (before or 0) > schema.SCHEMA:
            raise StoreRefused(
                f"{place.shown} has schema {before}; this version knows {schema.SCHEMA}",
                hint="upgrade doubtless; the store was not touched",
            )
        for number in range((before or 0) + 1, schema.SCHEMA + 1):
            connection.execute(schema.migration(place.schema, number).encode(), prepare=False)
            connection.execute(q["migrated"], (number,))
        connection.execute(q["create_meta"], (randomness(16), namespace, False))
    return before or 0, schema.SCHEMA


def _explained(error: psycopg.Error, place: Place) -> StoreError:
    if error.sqlstate == "42501":
        return StoreRefused(
            f"{place.shown}: the role may not make the tables ({str(error).strip()})",
            hint=f"as a role that may: CREATE SCHEMA {place.schema} AUTHORIZATION …; then migrate again",
        )
    return as_store_error(error, "migrate", place.shown, written=False)
