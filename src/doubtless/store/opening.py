"""Opening a SQLite store: refused, created, or opened, and never a fresh one where one used to be.

Creation, in an order in which a crash at any instant leaves a store that opens: the mark (``creating``, synced with
its name), the database with its schema in one transaction, the database's name synced, the mark (``ready``, synced).
Only then can the first row be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, NamedTuple

import apsw

from ..errors import StoreDamaged, StoreRefused, StoreSuspect
from ..events import Instant
from . import schema
from .folder import Hooks, sync_directory
from .link import constant_retry
from .mark import CREATING, NAMESPACE_BYTES, READY, Mark, MarkFile, Unfit
from .owners import Randomness
from .place import (
    Header,
    file_system_of,
    missing_pages,
    read_header,
    refuse_bad_place,
    refuse_foreign,
    refuse_old_sqlite,
    url_of,
)
from .wal import lost_commits


class Place(NamedTuple):
    """A store's files and what opening it needs. `path` is the database's real path."""

    path: str
    mark: MarkFile
    clock: Callable[[], Instant]
    randomness: Randomness = os.urandom
    namespace: bytes | None = None
    timeout: float = 30.0
    hooks: Hooks = None
    file_system: Callable[[str], str] = file_system_of

    def point(self, name: str) -> None:
        """Name a write point to the hooks."""
        if self.hooks is not None:
            self.hooks(name)


def open_database(place: Place, *, read_only: bool = False) -> apsw.Connection:
    """Open the store at a place, creating it where none ever was; a connection that is checked and prepared.

    `read_only`: look at what is there, suspect or not; nothing is created and nothing can be written.
    Raises: StoreRefused, StoreSuspect, StoreDamaged; nothing was changed then.
    """
    refuse_old_sqlite()
    refuse_bad_place(place.path, place.file_system, read_only=read_only)
    if read_only:
        return _open_to_look(place)
    if what_to_do(place) == "create":
        create(place)
    return _open_to_use(place)


def what_to_do(place: Place) -> Literal["create", "open"]:
    """Judge the files before SQLite sees them. Raises: StoreRefused, StoreSuspect, StoreDamaged."""
    mark, header = _look(place)
    if isinstance(mark, Mark) and mark.state == CREATING:
        return "create"  # what the file holds by now is judged under the lock, by SQLite
    if header is None:
        if mark is None or (isinstance(mark, Unfit) and mark.empty):
            _refuse_orphaned_wal(place)
            return "create"
        raise StoreSuspect(
            f"{place.path} is gone, but its mark is there: a fresh store would know nothing of what was sent",
            hint="bring the file back; or go on without it: "
            f"doubtless recover --accept --by NAME --why TEXT --store {url_of(place.path)}",
        )
    if header.size == 0:
        return _judge_empty(place, mark)
    refuse_foreign(place.path, header, had_mark=mark is not None)
    if header.application_id != schema.APPLICATION_ID:
        raise StoreRefused(f"{place.path} is another application's database", hint="give the store a file of its own")
    refuse_short(place.path)
    return "open"


def _look(place: Place) -> tuple[Mark | Unfit | None, Header | None]:
    """The mark and the file as they stood together: another process may be creating the store this very moment."""
    while True:
        before, header, after = place.mark.read(), read_header(place.path), place.mark.read()
        if _stage(before) == _stage(after):
            return after, header


def _stage(mark: Mark | Unfit | None) -> object:
    return mark.state if isinstance(mark, Mark) else mark


def refuse_short(path: str) -> None:
    """Refuse a database file that ends before its pages do."""
    short = missing_pages(path)
    if short:
        raise StoreDamaged(
            f"{path} is damaged: {short}",
            hint=f"restore a backup, then doubtless recover --accept --by NAME --why TEXT --store {url_of(path)}; "
            "doubtless recover without --accept lists the intents that can still be read",
        )


def _judge_empty(place: Place, mark: Mark | Unfit | None) -> Literal["create"]:
    if isinstance(mark, Unfit) and mark.empty:
        return "create"
    if mark is None:
        raise StoreRefused(
            f"{place.path} is empty and has no mark: it may have held a store", hint=f"if it never did: rm {place.path}"
        )
    raise StoreSuspect(
        f"{place.path} is empty, but its mark says that a store used to be here",
        hint=f"restore a backup, then doubtless recover --accept --by NAME --why TEXT --store {url_of(place.path)}",
    )


def _refuse_orphaned_wal(place: Place) -> None:
    wal = place.path + "-wal"
    if os.path.exists(wal) and os.path.getsize(wal):
        raise StoreSuspect(
            f"{place.path} is gone, but {wal} is there: a store used to be here, and SQLite would delete what it still holds",
            hint=f"bring the file back; if it held nothing of worth: rm {wal}",
        )


def create(place: Place) -> None:
    """Create the store, or finish a creation that was cut off; only one process does it at a time."""
    namespace = place.randomness(16) if place.namespace is None else place.namespace
    if not 0 < len(namespace) <= NAMESPACE_BYTES:
        raise StoreRefused(f"a namespace has 1 to {NAMESPACE_BYTES} bytes, not {len(namespace)}", hint="choose a shorter one")
    with place.mark.creating(place.timeout):
        if what_to_do(place) != "create":
            return  # another process has done it meanwhile
        mark = Mark(CREATING, place.randomness(16), 0, namespace)
        place.mark.write(mark)
        meta = build(place, mark)
        place.mark.write(Mark(READY, meta.store_id, meta.generation, meta.namespace))


def build(place: Place, mark: Mark, *, suspect: bool = False) -> schema.Meta:
    """Make the database under its mark, or take over what a creation that was cut off has left; its meta row."""
    db = connect(place, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        stands = schema.is_store(db)
        place.point("prepare:before")
        schema.prepare(db)
        place.point("prepare:after")
        if not stands:
            place.point("create:before")
            with db:
                schema.create(db, mark.store_id, mark.namespace, place.clock(), suspect=suspect)
            place.point("create:after")
        meta = schema.meta(db)
        if db.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None:
            raise StoreSuspect(
                f"{place.path} has rows, but its mark says that it was never finished",
                hint=f"doubtless recover --accept --by NAME --why TEXT --store {url_of(place.path)}",
            )
        place.point("build:before")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # from now on the file itself says whose it is
    finally:
        db.close(True)
    sync_directory(os.path.dirname(place.path))
    place.point("build:after")
    return meta


def connect(place: Place, flags: int) -> apsw.Connection:
    """A bare connection that waits for locks at a constant interval."""
    db = apsw.Connection(place.path, flags=flags, statementcachesize=512)
    db.set_busy_handler(constant_retry(place.timeout))
    return db


def _open_to_use(place: Place) -> apsw.Connection:
    mark = place.mark.read()  # before the meta row, which is never behind it
    db = connect(place, apsw.SQLITE_OPEN_READWRITE)
    try:
        if not schema.is_store(db):
            raise StoreRefused(f"{place.path} is another application's database", hint="give the store a file of its own")
        schema.prepare(db)
        meta = schema.meta(db)
        lost = lost_commits(place.path)
        if lost:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # what shows it stays
            raise StoreDamaged(
                f"{place.path} is damaged: {lost}",
                hint=f"restore a backup, then doubtless recover --accept --by NAME --why TEXT --store {url_of(place.path)}",
            )
        why = misfit(mark, meta)
        if why:
            raise StoreSuspect(
                f"{place.path} does not fit its mark: {why}; copied or restored, it may know less than was done",
                hint=f"doubtless recover --accept --by NAME --why TEXT --store {url_of(place.path)}",
                reason=why,
            )
        if place.namespace is not None and place.namespace != meta.namespace:
            raise StoreRefused(
                f"{place.path} has another namespace; it is part of every key and never changes",
                hint="leave the namespace out, or give the one that the store was made with",
            )
    except BaseException:
        db.close(True)
        raise
    return db


def _open_to_look(place: Place) -> apsw.Connection:
    mark, header = _look(place)
    if header is None:
        raise StoreRefused(f"there is no store at {place.path}", hint="check the path; nothing was created")
    if header.size == 0 and isinstance(mark, Mark) and mark.state == CREATING:
        raise StoreRefused(f"there is no store in {place.path} yet: its creation was cut off", hint="whoever writes finishes it")
    refuse_foreign(place.path, header, had_mark=mark is not None)
    db = connect(place, apsw.SQLITE_OPEN_READONLY)
    try:
        if not schema.is_store(db):
            raise StoreRefused(f"there is no store in {place.path}", hint="check the path; nothing was created")
        schema.harden(db)
    except BaseException:
        db.close(True)
        raise
    return db


def misfit(mark: Mark | Unfit | None, meta: schema.Meta) -> str:
    """Why a database does not fit its mark; empty when it does."""
    match mark:
        case None:
            return "the mark is missing"
        case Unfit():
            return f"the mark cannot be used ({mark.why})"
        case Mark() if mark.store_id != meta.store_id:
            return "the mark is another store's"
        case Mark() if mark.generation > meta.generation:
            return f"the mark has seen {mark.generation} claims, parks and ends, the log has {meta.generation}"
        case Mark() if mark.namespace != meta.namespace:
            return "the mark has another namespace"
        case Mark() if mark.state == CREATING:
            return "the mark says that the store was never finished"
        case _:
            return ""
