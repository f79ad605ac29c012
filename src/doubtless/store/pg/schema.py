"""What a PostgreSQL store is: its tables and functions in numbered migrations, its queries, its meta row.

The CHECKs repeat the closed sets of `events`, from which they are generated: the database is the last reviewer.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import NamedTuple

from ...events import COLUMNS, CaseKind, Effect, Event, Kind, StepStatus, TaskStatus
from ...snapshots import Snapshot
from ..base import CaseRow, Head, KeyRow
from ..schema import TASK_KINDS
from ..sql import filled, load

SCHEMA = 1
"""The newest migration that this version knows: a store with a newer one is refused, never touched."""

_INTEGERS = ("event_seq", "step_seq", "attempt", "started_at", "finished_at", "boot_at", "epoch", "format")
_DIGESTS = ("idempotency_key", "input_hash", "prev_hash")


class Meta(NamedTuple):
    """The meta row."""

    store_id: bytes
    namespace: bytes
    suspect: bool
    created_at: int
    blobs: str | None


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(str(value)) for value in sorted(values))


def _type(column: str) -> str:
    return "bigint" if column in _INTEGERS else "bytea" if column in _DIGESTS else "text"


APPENDED = (*(_type(column) for column in COLUMNS), "text", "bytea[]", "bytea[]")
"""The types of what `append` takes: a row's columns, the guarded step, content as two arrays."""


def _from_json(place: int, column: str) -> str:
    if column in _DIGESTS:
        return f"decode(r->>{place}, 'hex')"
    return f"(r->>{place})::bigint" if column in _INTEGERS else f"r->>{place}"


def _fill(schema: str) -> dict[str, str]:
    return {
        "schema": f'"{schema}"',
        "schema_text": schema,
        "columns": ", ".join(COLUMNS),
        "values": ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1)),
        "params": ", ".join(f"p_{column} {_type(column)}" for column in COLUMNS),
        "typed_columns": ", ".join(f"{column} {_type(column)}" for column in COLUMNS),
        "p_columns": ", ".join(f"p_{column}" for column in COLUMNS),
        "json_columns": ", ".join(_from_json(place, column) for place, column in enumerate(COLUMNS)),
        "head": ", ".join(Head._fields),
        "case": ", ".join(CaseRow._fields),
        "key": ", ".join(KeyRow._fields),
        "snapshot": ", ".join(Snapshot._fields),
        "kinds": _listed(Kind),
        "task_kinds": _listed(TASK_KINDS),
        "task_statuses": _listed(TaskStatus),
        "step_statuses": _listed(StepStatus),
        "effects": _listed(Effect),
        "case_kinds": _listed(CaseKind),
    }


@functools.cache
def queries(schema: str) -> dict[str, str]:
    """The named queries of PostgreSQL for the tables of one database schema."""
    return load("postgres", _fill(schema))


def migration(schema: str, number: int) -> str:
    """The statements of one migration."""
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "sql", "postgres", f"{number:04}.sql")
    with open(path, encoding="utf-8") as file:
        return filled(file.read(), _fill(schema))


assert set(_INTEGERS) | set(_DIGESTS) <= set(Event._fields)
