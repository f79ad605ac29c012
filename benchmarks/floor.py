"""The yardstick: the same log written by hand, without policies, chain, refs, cases, freezes or owners.

It keeps the fields that such a log needs to be of use after a crash (task, step number, step name, status, effect
class, input hash, idempotency key, params, output, both times) and makes the same two durable commits for a write
(intent with its key and params; result) and one for a read, with the same pragmas. What the product does beyond
that is its overhead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import apsw

dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
  task_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  step_seq INTEGER NOT NULL,
  step_name TEXT NOT NULL,
  status TEXT NOT NULL,
  effect_class TEXT,
  input_hash BLOB,
  idempotency_key BLOB,
  input TEXT,
  output TEXT,
  started_at INTEGER,
  finished_at INTEGER,
  PRIMARY KEY (task_id, seq)
) WITHOUT ROWID
"""
INTENT = "INSERT INTO log VALUES (?, ?, ?, ?, 'uncertain', ?, ?, ?, ?, NULL, ?, NULL)"
RESULT = "INSERT INTO log VALUES (?, ?, ?, ?, 'done', ?, ?, NULL, ?, ?, ?, ?)"


class Floor:
    """A hand-written log in one SQLite file."""

    def __init__(self, path: str) -> None:
        self.connection = apsw.Connection(path)
        self.connection.set_busy_timeout(60_000)  # for several processes
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        self.connection.execute(SCHEMA)
        self.cursor = self.connection.cursor()

    def write(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Intent, commit, call, result, commit."""
        text = dump(params)
        digest = sha256(text.encode()).digest()
        key = sha256(f"{task}:{seq}:{step}:{text}".encode()).digest()
        now = time.time_ns() // 1000
        self.cursor.execute(INTENT, (task, 2 * seq, seq, step, "non_idem_write", digest, key, text, now))
        output = dump(fn(**json.loads(text), idempotency_key=key.hex()))
        now = time.time_ns() // 1000
        self.cursor.execute(RESULT, (task, 2 * seq + 1, seq, step, None, None, None, output, None, now))
        return json.loads(output)

    def write_thin(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """The same two commits with key, params and output only: no status, class, input hash or times are filled in."""
        text = dump(params)
        key = sha256(f"{task}:{seq}:{step}:{text}".encode()).digest()
        self.cursor.execute(INTENT, (task, 2 * seq, seq, step, None, None, key, text, None))
        output = dump(fn(**json.loads(text), idempotency_key=key.hex()))
        self.cursor.execute(RESULT, (task, 2 * seq + 1, seq, step, None, None, None, output, None, None))
        return json.loads(output)

    def read(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Call, result, commit."""
        text = dump(params)
        digest = sha256(text.encode()).digest()
        began = time.time_ns() // 1000
        output = dump(fn(**json.loads(text)))
        now = time.time_ns() // 1000
        self.cursor.execute(RESULT, (task, 2 * seq, seq, step, "read", digest, text, output, began, now))
        return json.loads(output)


Finished = dict[str, tuple[str, bytes | None, str, Any, str | None]]
"""Of each finished step, by its place: name, input hash, status, output, error."""


def finished_steps(rows: Iterable[tuple[Any, ...]]) -> int:
    """What a resume by hand does first: read the rows, decode their contents, know which steps are finished, and with what.

    It hashes and compares nothing and runs no task code. How many are finished.
    """
    begun: dict[str, tuple[bytes | None, Any]] = {}
    finished: Finished = {}
    for kind, path, name, status, digest, given, made, error in rows:
        if kind == "StepIntended":
            begun[path] = digest, json.loads(given[7:])  # after "inline:"
        elif kind == "StepSettled":
            digest, _ = begun.pop(path, (digest, None))
            finished[path] = name, digest, status, None if made is None else json.loads(made[7:]), error
    return len(finished)


def without_inputs(rows: Iterable[tuple[Any, ...]]) -> int:
    """The same, but inputs are not read: their hashes are."""
    begun: dict[str, bytes | None] = {}
    finished: Finished = {}
    for kind, path, name, status, digest, made, error in rows:
        if kind == "StepIntended":
            begun[path] = digest
        elif kind == "StepSettled":
            digest = begun.pop(path, digest)
            finished[path] = name, digest, status, None if made is None else json.loads(made[7:]), error
    return len(finished)


def contents_only(rows: Iterable[tuple[Any, ...]]) -> int:
    """Inputs and outputs are decoded and thrown away: of which step they are, and whether it is finished, nobody knows then."""
    count = 0
    for given, made in rows:
        if given is not None:
            json.loads(given[7:])
        if made is not None:
            json.loads(made[7:])
            count += 1
    return count


WAYS: dict[str, tuple[str, Callable[[Any], int]]] = {
    "whole": ("kind, path, step_name, status, input_hash, input_ref, output_ref, error", finished_steps),
    "without inputs": ("kind, path, step_name, status, input_hash, output_ref, error", without_inputs),
    "contents only": ("input_ref, output_ref", contents_only),
}
"""How much of a task's rows is read by hand, and by what: the first is the floor of a resume, the others do less."""


def read_back(connection: apsw.Connection, task: str, way: str = "whole") -> int:
    """Read a task's finished steps out of the product's own rows, in one query; how many there are."""
    columns, read = WAYS[way]
    sql = f"SELECT {columns} FROM events WHERE task_id = ? AND path IS NOT NULL ORDER BY event_seq"
    return read(connection.execute(sql, (task,)))
