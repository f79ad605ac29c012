"""What a SQLite store's file is: its identity, its tables with their CHECKs, its queries, its meta row.

The CHECKs repeat the closed sets of `events`, from which they are generated: the database is the last reviewer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import NamedTuple

import apsw

from ..errors import StoreRefused
from ..events import COLUMNS, IDLE, CaseKind, Effect, Instant, Kind, StepStatus, TaskStatus
from ..snapshots import Snapshot
from .base import CaseRow, Head, KeyRow
from .sql import load

APPLICATION_ID = 0x44626C73
"""``Dbls`` in the file's header: what tells a store from another application's database."""

SCHEMA = 1
"""``PRAGMA user_version``: stores with a higher one are refused, never touched."""

TASK_KINDS = (Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, Kind.TASK_PARKED, Kind.TASK_ENDED)
"""The kinds whose `status` is a task's; of all others it is a step's."""

PLAIN = frozenset(
    {
        Kind.STEP_INTENDED,
        Kind.ATTEMPT_STARTED,
        Kind.ATTEMPT_ENDED,
        Kind.HANDLE_RECORDED,
        Kind.LOOKED_BACK,
        Kind.RETRY_ALLOWED,
        Kind.STEP_SETTLED,
        Kind.CALLS_ACKNOWLEDGED,
    }
)
"""The kinds that change no projection (a test compares this with `changes.project`): one statement appends them, unless
the row names a business key (`changes.names_key`)."""


ROW = f"({','.join('?' * (len(COLUMNS) + 1))})"
"""One row of several, and the step whose freeze would refuse it."""

NEW_ROW = f"({','.join('?' * len(COLUMNS))})"
"""One row of a task that is begun."""

NEW_HEAD = f"({','.join('?' * (len(Head._fields) + 2))})"
"""The head of a task that is begun: its columns, the hash of its second row, and when it was claimed."""

OLD_HEAD = f"({','.join('?' * 8)})"
"""What becomes of the head of a task that its owner lets go."""


class Meta(NamedTuple):
    """The meta row. `generation` counts claims, parks and ends; the mark follows it."""

    store_id: bytes
    namespace: bytes
    generation: int
    suspect: bool
    created_at: int


_FREQUENT = (Kind.STEP_INTENDED, Kind.STEP_SETTLED, StepStatus.DONE, StepStatus.UNCERTAIN, Effect.NON_IDEM_WRITE)


def _any_of(column: str, values: Iterable[str]) -> str:
    ordered = sorted(values, key=lambda value: value not in _FREQUENT)  # SQLite compares in this order, at each insert
    return "(" + " OR ".join(f"{column} = '{value}'" for value in ordered) + ")"


def _ref(column: str) -> str:
    """A ref is text that starts with ``inline:``, or a digest."""
    return (
        f"{column} IS NULL OR (typeof({column}) = 'text' AND substr({column}, 1, 7) = 'inline:')"
        f" OR (typeof({column}) = 'blob' AND length({column}) = 32)"
    )


def _spelled(column: str) -> str:
    """A column as `events.row_hash` spells it; otherwise where its value is of another type than it was written in."""
    if column in ("idempotency_key", "input_hash", "prev_hash"):
        return f"iif({column} IS NULL, 'None', iif(typeof({column}) = 'blob', lower(hex({column})), x'00'))"
    if column in ("input_ref", "output_ref", "data"):
        return f"iif(typeof({column}) = 'blob', lower(hex({column})), coalesce({column}, 'None'))"
    if column in ("task_id", "event_seq", "boot_at", "format"):
        return column
    if column in ("path", "step_name", "kind", "status", "effect_class", "error"):
        return f"iif(typeof({column}) = 'blob', x'00', coalesce({column}, 'None'))"
    return f"coalesce({column}, 'None')"


@functools.cache
def queries() -> dict[str, str]:
    """The named queries of SQLite, filled from the closed sets and the columns."""
    return load(
        "sqlite",
        {
            "columns": ", ".join(COLUMNS),
            "values": ", ".join(f"?{place}" for place in range(1, len(COLUMNS) + 1)),
            "values_after_seq": ", ".join(f"?{place}" for place in range(3, len(COLUMNS) + 1)),
            "columns_after_seq": ", ".join(f"column{place}" for place in range(3, len(COLUMNS) + 1)),
            "row": ROW,
            "new_row": NEW_ROW,
            "new_head": NEW_HEAD,
            "new_head_columns": ", ".join(f"column{place}" for place in range(1, len(Head._fields) + 3)),
            "old_head": OLD_HEAD,
            "head": ", ".join(Head._fields),
            "case": ", ".join(CaseRow._fields),
            "key": ", ".join(KeyRow._fields),
            "snapshot": ", ".join(Snapshot._fields),
            "kinds": _any_of("kind", Kind),
            "task_kinds": _any_of("kind", TASK_KINDS),
            "task_statuses": _any_of("status", TaskStatus),
            "step_statuses": _any_of("status", StepStatus),
            "effects": _any_of("effect_class", Effect),
            "case_kinds": _any_of("kind", CaseKind),
            "idle": ", ".join(f"'{why}'" for why in IDLE),
            "whole_row": ",\n  x'00', ".join(map(_spelled, COLUMNS)),
            "input_ref": _ref("input_ref"),
            "output_ref": _ref("output_ref"),
        },
    )


def is_store(db: apsw.Connection) -> bool:
    """True when the schema stands; False for a database without any table.

    Raises: StoreRefused for a newer schema or another application's database.
    """
    version, application = db.pragma("user_version"), db.pragma("application_id")
    if application == APPLICATION_ID:
        if version > SCHEMA:
            raise StoreRefused(
                f"{db.filename} has schema {version}; this version reads up to {SCHEMA}",
                hint="upgrade doubtless; the store was not touched",
            )
        return True
    if application or version or db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        raise StoreRefused(f"{db.filename} is another application's database", hint="give the store a file of its own")
    return False


def create(db: apsw.Connection, store_id: bytes, namespace: bytes, now: Instant, *, suspect: bool = False) -> None:
    """Create the schema and the meta row, in one transaction that the caller has begun and commits."""
    db.execute(queries()["schema"])
    db.execute(queries()["create_meta"], (store_id, namespace, 0, int(suspect), now.wall))
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", SCHEMA)


def meta(db: apsw.Connection) -> Meta:
    """Read the meta row."""
    row = db.execute(queries()["meta"]).fetchone()
    if row is None:
        raise StoreRefused(f"{db.filename} has no meta row", hint="restore a backup, then: doubtless recover --accept")
    return Meta(row[0], row[1], row[2], bool(row[3]), row[4])


def prepare(db: apsw.Connection) -> None:
    """Set what every connection needs: WAL read back, each commit synced, nothing on temporary files.

    Raises: StoreRefused when the file system cannot do WAL.
    """
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StoreRefused(f"{db.filename}: journal_mode reads back as {mode}, not wal", hint="put the store on a local disk")
    harden(db)


def harden(db: apsw.Connection) -> None:
    """Set what a connection that only looks needs too."""
    db.pragma("synchronous", "full")  # NORMAL in WAL mode can lose the last commits with the power
    if sys.platform == "darwin":
        db.pragma("fullfsync", 1)  # there a plain fsync leaves the data in the drive's cache
    db.pragma("temp_store", "memory")
    db.pragma("trusted_schema", 0)
    db.pragma("cell_size_check", 1)
