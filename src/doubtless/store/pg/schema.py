"""What a PostgreSQL store is: its tables and functions in numbered migrations, its queries, its meta row.

The CHECKs repeat the closed sets of `events`, from which they are generated: the database is the last reviewer.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from ...events import COLUMNS, IDLE, TERMINAL, CaseKind, Effect, Event, Kind, StepStatus, TaskStatus
from ...snapshots import Snapshot
from ..base import CaseRow, Head, KeyRow
from ..schema import TASK_KINDS
from ..sql import filled, load

SCHEMA = 1
"""The newest migration that this version knows. A store with a newer one is used only where that one says that it can be."""

_INTEGERS = ("event_seq", "step_seq", "attempt", "started_at", "finished_at", "boot_at", "epoch", "format")
_DIGESTS = ("idempotency_key", "input_hash", "prev_hash")


class Migration(NamedTuple):
    """One step of the schema. `needs`: what a program must know, at least, to work on a store where it has run.

    Meaning: one that only adds (a table, a column that may be null, an index) says ``-- needs: N`` with the number of an older
    one, whose programs then go on; without it all older programs are refused. Such a one also takes away the functions that
    they call (`0001.sql`), so that those that run already are refused, too.
    """

    number: int
    needs: int
    text: str


class Version(NamedTuple):
    """What has run on a store: its newest migration, and what a program must know to use it."""

    number: int
    needs: int


class Meta(NamedTuple):
    """The meta row."""

    store_id: bytes
    namespace: bytes
    suspect: bool
    created_at: int
    blobs: str | None


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(str(value)) for value in sorted(values))


_TOLD = "awaits IS NOT NULL AND EXISTS (SELECT 1 FROM {schema}.keys WHERE once = awaits AND state <> 'open')"
"""Of a task: the business key that it waits for is no longer on its way."""

_WANTED = """task_name = ANY(p_names)
      AND (p_queues IS NULL OR queue = ANY(p_queues))
      AND NOT (status = 'waiting' AND coalesce(why, '') = ANY(p_idle))
      AND NOT (
        (coalesce(why, '') LIKE 'frozen: %' OR coalesce(why, '') LIKE 'child %frozen: %')
        AND EXISTS (
          SELECT 1
          FROM {schema}.freezes
          WHERE step = '*'
            OR strpos(substr(tasks.why, strpos(tasks.why, 'frozen: ')), 'frozen: step ' || step || ' is ') = 1
        )
      )"""
"""Of a task in `due_1`: a worker with this code that looks at these queues may run it, and it does not stand before a freeze."""


_DURABLE = """current_setting('fsync') <> 'off'
  AND (
    current_setting('synchronous_commit') NOT IN ('off', 'local')
    OR (current_setting('synchronous_commit') = 'local' AND current_setting('synchronous_standby_names') = '')
  )"""
"""Of a commit. Asked in the transaction itself: through a pooler nobody knows which server process it runs in."""


def _literals(texts: Iterable[str]) -> str:
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


_IDLE = f"(status = 'waiting' AND coalesce(why, '') IN ({_literals(IDLE)}))"
_LIVE = _literals(status for status in TaskStatus if status not in TERMINAL)
_UNTIMED = _literals(status for status in TaskStatus if status not in (*TERMINAL, TaskStatus.NEEDS_HUMAN))
"""A task in one of these has something to do when no time says until when it waits."""


def type_of(column: str) -> str:
    """A column's type, as statements take it."""
    return "bigint" if column in _INTEGERS else "bytea" if column in _DIGESTS else "text"


APPENDED = (*(type_of(column) for column in COLUMNS), "text", "bytea[]", "bytea[]")
"""The types of what `append` takes: a row's columns, the guarded step, content as two arrays.

`append_direct` takes the row's columns, with `append_direct_unfrozen` also the guarded step.
"""


NUMBERS = tuple(column for column in COLUMNS if column in _INTEGERS)
WORDS = (*(column for column in COLUMNS if column not in _INTEGERS), "guard")
"""What `append_shared_direct` takes: the numbers of all rows in one array, row by row, and of each other column an array."""

NO_NUMBER = -(1 << 63)
"""What stands for null in the array of numbers: without nulls each element of it has its place, and needs no search."""


def _array(column: str) -> str:
    return f"${WORDS.index(column) + 2}::{type_of(column)}[]"


def _number(back: int, column: str) -> str:
    """A number of a row that is so many rows before the i-th one."""
    return f"($1::bigint[])[listed.i * {len(NUMBERS)} - {len(NUMBERS) * (back + 1) - 1 - NUMBERS.index(column)}]"


def _element(column: str) -> str:
    """A column of the i-th row; those that always hold something are never compared with `NO_NUMBER`."""
    if column == "task_id":
        return "listed.task_id"
    if column not in NUMBERS:
        return f"({_array(column)})[listed.i] AS {column}"
    number = _number(0, column)
    always = column in ("event_seq", "boot_at", "format")
    return f"{number if always else f'nullif({number}, {NO_NUMBER})'} AS {column}"


_FOLLOWS = f"""({_array("task_id")})[listed.i - 1] = listed.task_id
      AND {_number(1, "event_seq")} = {_number(0, "event_seq")} - 1 AS follows"""
"""Of a row that is sent with others: the one before it in the list is the one before it in its task's log."""

_FITS = """coalesce(given.started_at, given.finished_at) IS NOT NULL
    AND CASE WHEN given.kind IN ({tasks})
      THEN given.status IN ({task})
      ELSE given.status IN ({step})
    END IS NOT FALSE"""
"""Of a row by itself: what `check_row` asks."""


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
        **{f"its_{column}": f"${place}" for place, column in enumerate(COLUMNS, 1)},
        "durable": _DURABLE,
        "elements": ",\n    ".join(map(_element, (*COLUMNS, "guard"))),
        "given_columns": ", ".join(f"given.{column}" for column in COLUMNS),
        "follows": _FOLLOWS,
        "fits": _FITS.format(tasks=_listed(TASK_KINDS), task=_listed(TaskStatus), step=_listed(StepStatus)),
        "no_number": str(NO_NUMBER),
        "arrayed_task_id": _array("task_id"),
        "params": ", ".join(f"p_{column} {type_of(column)}" for column in COLUMNS),
        "typed_columns": ", ".join(f"{column} {type_of(column)}" for column in COLUMNS),
        "p_columns": ", ".join(f"p_{column}" for column in COLUMNS),
        "json_columns": ", ".join(_from_json(place, column) for place, column in enumerate(COLUMNS)),
        "head": ", ".join(Head._fields),
        "case": ", ".join(CaseRow._fields),
        "key": ", ".join(KeyRow._fields),
        "snapshot": ", ".join(Snapshot._fields),
        "alive": _LIVE,
        "live": f"owner IS NULL AND status IN ({_LIVE})",
        "free": f"owner IS NULL AND wake_at IS NULL AND status IN ({_UNTIMED})"
        f" AND NOT {_IDLE}",
        "idle": _IDLE,
        "told": _TOLD.format(schema=f'"{schema}"'),
        "wanted": _WANTED.format(schema=f'"{schema}"'),
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


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """All migrations of this version, in order: the numbered files, without a gap."""
    return read_migrations(os.path.join(os.path.dirname(os.path.dirname(__file__)), "sql", "postgres"))


def read_migrations(folder: str) -> tuple[Migration, ...]:
    """The migrations of a folder: ``0001.sql``, ``0002.sql``, …"""
    found = []
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"\d{4}\.sql", name):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            number, said = int(name[:4]), re.search(r"^-- needs: (\d+)$", text, re.MULTILINE)
            found.append(Migration(number, int(said[1]) if said else number, text))
    if [each.number for each in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {folder} are not numbered without a gap")
    return tuple(found)


def statements(migration: Migration, schema: str) -> str:
    """What a migration does to the tables of one database schema."""
    return filled(migration.text, _fill(schema))


assert set(_INTEGERS) | set(_DIGESTS) <= set(Event._fields)
