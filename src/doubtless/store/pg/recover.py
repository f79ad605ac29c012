"""Recover a PostgreSQL store: say why it is refused, or go on with it knowingly, in suspect mode."""

from __future__ import annotations

import os
from collections.abc import Callable

import psycopg

from ...errors import StoreRefused, UsageError
from ...events import STORE_TASK, Event, Instant, Kind, row_hash, seal
from ..projections import recovered
from ..recover import Recovery, Salvage
from .link import Connection, as_store_error, connect, shut
from .mark import Mark
from .opening import Gate, Log, misfit, refuse_wrong_schema
from .place import Place, place_of
from .rows import event_of, rows_json, suspect_json
from .schema import Meta, queries


def recover(
    url: str, *, clock: Callable[[], Instant], state: str, accept: bool, by: str = "", why: str = "",
    randomness: Callable[[int], bytes] = os.urandom,
) -> Recovery:  # fmt: skip
    """Say why a store is refused; with `accept`, go on in suspect mode, in the name of `by`, because of `why`.

    Meaning: the StoreRecovered row, the suspect flag and a new identity are one transaction; this machine's mark is written
    after it. Other machines see in that row that a person has gone on with what they knew, and take the new identity over.
    Also for a store that fits: a backup that is as new as this machine's mark cannot be told from the real thing.
    Raises: StoreRefused while a process still runs tasks of the store.
    """
    from ..postgres import mark_of

    place = place_of(url)
    file = mark_of(place, state)
    connection = connect(place.conninfo, place.shown)
    try:
        server = Gate(place, file, namespace=None, read_only=not accept).look(connection)
        refuse_wrong_schema(connection, place)
        row = connection.execute(queries(place.schema)["meta"], binary=True).fetchone()
        if row is None:
            raise StoreRefused(f"{place.shown} has no meta row", hint="restore a backup that has one")
        meta, found = Meta._make(row), file.read()
        reason = "" if found is None else misfit(found, meta, server, place, Log(connection, queries(place.schema)))
        result = Recovery(place.shown, reason, False, _salvage(connection, place))
        if not accept:
            return result
        if not by or not why:
            raise UsageError("recover --accept needs who says so, and why", hint="--by NAME --why TEXT")
        _refuse_while_in_use(connection, place)
        store_id = _go_on(connection, place, meta, reason, randomness(16), clock, by, why)
        file.write(Mark(store_id, server.system, server.timeline, "", 0, b""))
        return result._replace(accepted=True)
    except psycopg.Error as error:
        raise as_store_error(error, "recover", place.shown, written=False) from error
    finally:
        shut(connection)


def _refuse_while_in_use(connection: Connection, place: Place) -> None:
    row = connection.execute(queries(place.schema)["living"], binary=True).fetchone()
    if row is not None:
        raise StoreRefused(
            f"{row[0]} runs tasks of {place.shown}",
            hint="end it; a dead one counts as living until its lease ends",
            owner=row[0],
        )


def _go_on(
    connection: Connection, place: Place, meta: Meta, reason: str, store_id: bytes, clock: Callable[[], Instant], by: str,
    why: str,
) -> bytes:  # fmt: skip
    q = queries(place.schema)
    with connection.transaction():
        (wall,) = connection.execute(q["clock"], binary=True).fetchone() or (0,)
        row = recovered(
            Instant(wall, clock().boot), suspect=True, by=by, why=why, reason=reason or "the store fits its mark",
            was=meta.store_id.hex(),
        )  # fmt: skip
        last = connection.execute(q["last"], (STORE_TASK,), binary=True).fetchone()
        before = None if last is None else event_of(last)
        sealed = seal([row], *((0, None) if before is None else (before.event_seq, row_hash(before))))
        changes = suspect_json(sealed[0], suspect=True, store_id=store_id)
        connection.execute(
            q["append_rows"], (STORE_TASK, False, None, rows_json(sealed), changes, None, None, None, False), binary=True
        )
    return store_id


def _salvage(connection: Connection, place: Place) -> Salvage:
    """How many rows there are, and the intents among them that are not settled."""
    open_ones: dict[tuple[str, str | None], Event] = {}
    count = 0
    with connection.transaction(), psycopg.RawServerCursor(connection, "doubtless_rows") as cursor:
        cursor.itersize = 500
        for row in cursor.execute(queries(place.schema)["all_rows"], binary=True):
            event = event_of(row)
            count += 1
            if event.kind == Kind.STEP_INTENDED:
                open_ones[event.task_id, event.path] = event
            elif event.kind == Kind.STEP_SETTLED:
                open_ones.pop((event.task_id, event.path), None)
    return Salvage(count, list(open_ones.values()), "")
