"""Applying what rows change in the projections, in SQLite, in their own transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import apsw

from ..changes import CaseClosed, CaseOpened, Freeze, HeadChange, KeyMoved, KeyTaken, project
from ..errors import StoreError
from ..events import Event, row_hash
from .base import CaseRow, KeyRow
from .link import as_store_error, first
from .projections import key_held, not_open
from .schema import queries

if TYPE_CHECKING:
    from apsw import SQLiteValue


def apply(cursor: apsw.Cursor, event: Event) -> bool:
    """Apply what a sealed row changes, in its transaction. True: the head's owner is to be released.

    Raises: AlreadySettled, UnknownCase, KeyHeld; then the whole transaction is taken back (I8).
    """
    q = queries()
    at = event.at.wall
    release = False
    for change in project(event):
        match change:
            case HeadChange():
                only = json.dumps(change.only_from) if change.only_from else None
                head = (event.task_id, change.status, change.wake_at, change.why, at, event.event_seq, row_hash(event), only)
                cursor.execute(q["change_head"], (*head, change.awaits))
                release = release or change.release
            case CaseOpened():
                opened = (change.case_id, event.task_id, event.event_seq, change.path, change.kind, at)
                cursor.execute(q["open_case"], opened)
            case CaseClosed():
                _close(cursor, change, event)
            case Freeze(step, None):
                cursor.execute(q["thaw"], (step,))
            case Freeze(step, why):
                cursor.execute(q["freeze"], (step, why))
            case KeyTaken():
                _take(cursor, change, event)
            case KeyMoved(once, path, state):
                when = (at, event.boot_at) if state == "done" else (None, None)
                cursor.execute(q["move_key"], (once, event.task_id, path, state, *when))
    return release


def lets_go(event: Event, digest: bytes) -> tuple[SQLiteValue, ...] | None:
    """What becomes of the head that this row, of this hash, lets go (`end_heads`), where it changes nothing else; else None."""
    changes = project(event)
    change = changes[0] if len(changes) == 1 else None
    if not isinstance(change, HeadChange) or not change.release or change.only_from:
        return None
    return (event.task_id, change.status, change.wake_at, change.why, event.wall, event.event_seq, digest, change.awaits)


def _take(cursor: apsw.Cursor, change: KeyTaken, event: Event) -> None:
    """Take a business key, which is unique, in the transaction of the intent (or of the permission to retry)."""
    cursor.execute(queries()["take_key"], (change.once, change.turn, event.task_id, change.path, change.window_us))
    if cursor.connection.changes() == 1:
        return
    found = first(cursor, queries()["key"], (change.once,))
    assert found is not None
    raise key_held(KeyRow._make(found), event.task_id)


def _close(cursor: apsw.Cursor, change: CaseClosed, event: Event) -> None:
    q = queries()
    cursor.execute(q["close_case"], (change.case_id, event.event_seq, event.at.wall, change.by))
    if cursor.connection.changes() == 1:
        return
    found = first(cursor, q["case"], (change.case_id,))
    raise not_open(change.case_id, None if found is None else CaseRow._make(found))


def check_refusal(error: apsw.ConstraintError, path: str) -> None:
    """Raise for a row that the schema itself refuses; return for one whose place is taken (moved)."""
    if getattr(error, "extendedresult", 0) not in (apsw.SQLITE_CONSTRAINT_TRIGGER, apsw.SQLITE_CONSTRAINT_PRIMARYKEY):
        refused: StoreError = as_store_error(error, "a row is refused", path, written=False)
        raise refused from error
