"""Recover: go on with a store that does not fit its mark, knowingly; and read what a damaged file still tells.

After a backup was restored the log may know less than was done. `recover` with `accept` goes on in suspect mode:
every write of which the log knows nothing counts as sent with unknown outcome, until a person ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import apsw

from ..errors import DoubtlessError, StoreDamaged, StoreRefused, UsageError
from ..events import STORE_TASK, Event, Instant, row_hash, seal, upcast
from . import schema
from .applying import apply
from .folder import Hooks, sync_directory
from .link import constant_retry, first, no_text
from .mark import READY, Mark, MarkFile, Unfit
from .opening import Place, build, connect, misfit
from .owners import Randomness, describe, how_to_end, living
from .place import (
    file_system_of,
    missing_pages,
    read_header,
    refuse_bad_path,
    refuse_bad_place,
    refuse_foreign,
    refuse_old_sqlite,
)
from .projections import recovered
from .transaction import note_store_tail
from .verify import unsettled_intents
from .wal import lost_commits


class Salvage(NamedTuple):
    """What can still be read of a log. `intents`: unsettled ones among the readable rows; `damage`: why not all."""

    rows: int
    intents: list[Event]
    damage: str


class Recovery(NamedTuple):
    """What `recover` found, and whether it went on. `reason` is empty for a store that fits its mark."""

    path: str
    reason: str
    accepted: bool
    salvage: Salvage


def recover(
    path: str,
    *,
    clock: Callable[[], Instant],
    accept: bool,
    by: str = "",
    why: str = "",
    hooks: Hooks = None,
    file_system: Callable[[str], str] = file_system_of,
    randomness: Randomness = os.urandom,
) -> Recovery:
    """Say why a store is refused; with `accept`, go on in suspect mode, in the name of `by`, because of `why`.

    Meaning: the StoreRecovered row, the suspect flag and a new identity are one transaction; the mark is written after
    it, so that a crash between the two leaves a store that is still refused. Also for a store that fits its mark: a
    backup of both files together cannot be told from the real thing. A database that is gone is made anew, empty,
    under the namespace that its mark remembers, so that keys stay what they were.
    Raises: StoreDamaged, with what can be read in its `context`, when the file itself is damaged (restore a backup
    first); StoreRefused while a process still runs tasks of the store.
    """
    refuse_old_sqlite()
    refuse_bad_path(path)
    path = os.path.realpath(path)
    refuse_bad_place(path, file_system, read_only=not accept)
    place = Place(path, MarkFile(path + ".mark", hooks), clock, randomness, None, 30.0, hooks, file_system)
    mark = place.mark.read()
    try:
        found = _gone(place, mark) or _judge(place, mark)
    except UnicodeDecodeError as error:
        raise no_text(error, path) from error
    if not accept:
        return found
    if not by or not why:
        raise UsageError("recover --accept needs who says so, and why", hint="--by NAME --why TEXT")
    _refuse_while_in_use(path)
    with place.mark.creating(place.timeout):
        _go_on(place, mark, found, by=by, why=why)
    return found._replace(accepted=True)


def _gone(place: Place, mark: Mark | Unfit | None) -> Recovery | None:
    """The finding for a database that is not there any more; None when it is there."""
    header = read_header(place.path)
    if header is not None and header.size:
        return None
    if not isinstance(mark, Mark):
        raise StoreRefused(f"there is no store at {place.path}, and no mark of one", hint="check the path")
    return Recovery(place.path, "the database is gone", False, Salvage(0, [], "the database is gone"))


def _judge(place: Place, mark: Mark | Unfit | None) -> Recovery:
    """The finding for a database that is there. Raises: StoreDamaged, StoreRefused."""
    header = read_header(place.path)
    assert header is not None
    refuse_foreign(place.path, header, had_mark=mark is not None)
    found = salvage(place.path)
    damage = missing_pages(place.path) or found.damage
    if damage:
        raise StoreDamaged(
            f"{place.path} is damaged ({damage}); {found.rows} rows can be read, {len(found.intents)} of them unsettled intents",
            hint="restore a backup, then run this again with --accept",
            damage=damage,
            rows=found.rows,
            intents=[f"{e.task_id} {e.path} {e.step_name}" for e in found.intents],
            salvage=found,
        )
    db = connect(place, apsw.SQLITE_OPEN_READONLY)
    try:
        if not schema.is_store(db):
            raise StoreRefused(f"there is no store in {place.path}", hint="check the path")
        return Recovery(place.path, misfit(mark, schema.meta(db)) or lost_commits(place.path), False, found)
    finally:
        db.close(True)


def _refuse_while_in_use(path: str) -> None:
    owners = living(path + ".owners")
    if owners:
        who = describe(path + ".owners", owners[0])
        raise StoreRefused(f"process {who.pid} runs tasks of {path}", hint=how_to_end(who), pid=who.pid)


def _go_on(place: Place, mark: Mark | Unfit | None, found: Recovery, *, by: str, why: str) -> None:
    store_id = place.randomness(16)
    known = mark.generation if isinstance(mark, Mark) else 0
    if isinstance(mark, Mark) and (read_header(place.path) or (0,))[0] == 0:
        _make_anew(place, mark._replace(store_id=store_id))
    db = connect(place, apsw.SQLITE_OPEN_READWRITE)
    try:
        schema.prepare(db)
        meta = schema.meta(db)
        generation = max(known, meta.generation) + 1
        row = recovered(
            place.clock(), suspect=True, by=by, why=why, reason=found.reason or "the store fits its mark",
            marked=known, logged=meta.generation,
        )  # fmt: skip
        cursor = db.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        _append(cursor, row)
        cursor.execute(schema.queries()["renew"], (store_id, generation))
        place.point("recover:before")
        cursor.execute("COMMIT")
        place.point("recover:after")
    finally:
        db.close(True)
    place.mark.write(Mark(READY, store_id, generation, meta.namespace))


def _make_anew(place: Place, mark: Mark) -> None:
    """Make the database whole under another name, then give it its own: until then it is gone, and `recover` begins anew.

    What is left of the old one's WAL is removed first: SQLite would copy its pages into the new database.
    """
    new, folder = place._replace(path=place.path + ".recovering"), os.path.dirname(place.path)
    for path in (new.path, *(base + end for base in (new.path, place.path) for end in ("-journal", "-wal", "-shm"))):
        if os.path.exists(path):
            os.unlink(path)
    sync_directory(folder)
    build(new, mark, suspect=True)
    os.rename(new.path, place.path)
    sync_directory(folder)


def _append(cursor: apsw.Cursor, row: Event) -> None:
    last = first(cursor, schema.queries()["last"], (STORE_TASK,))
    seq, digest = (0, None) if last is None else (upcast(last).event_seq, row_hash(upcast(last)))
    (event,) = seal([row], seq, digest)
    cursor.execute(schema.queries()["insert"], event)
    note_store_tail(cursor, event)
    apply(cursor, event)


def salvage(path: str) -> Salvage:
    """Read the rows of a log that can be read, from both ends of the damage; the file is not changed.

    Rows whose columns make no event, or which do not fit the chain, are left out.
    """
    damage = ""
    found: dict[tuple[str, int], Event] = {}
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_handler(constant_retry(5.0))
    try:
        for order in ("", " DESC"):
            statement = f"SELECT {', '.join(Event._fields)} FROM events ORDER BY task_id{order}, event_seq{order}"
            try:
                for row in db.execute(statement):
                    event = upcast(row)
                    found[event.task_id, event.event_seq] = event
            except (apsw.Error, DoubtlessError, TypeError, UnicodeDecodeError) as error:
                damage = damage or str(error)
        damage = damage or _check(db)
    finally:
        db.close(True)
    rows = [found[place] for place in sorted(found)]
    return Salvage(len(rows), unsettled_intents(rows), damage)


def _check(db: apsw.Connection) -> str:
    try:
        said = [str(row[0]) for row in db.execute("PRAGMA integrity_check(1)")]
    except (apsw.Error, UnicodeDecodeError) as error:
        return str(error)
    return "" if said == ["ok"] else said[0]
