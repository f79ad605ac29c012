"""The yardstick: what a careful engineer would write by hand, without policies, chain, cases or refs.

The same two durable commits for a write (intent with key and params; result), one for a read, in a table of its
own with the same pragmas. Everything that the product does beyond that is its overhead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import apsw

_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode

SCHEMA = """
CREATE TABLE log (
  task TEXT NOT NULL,
  seq INTEGER NOT NULL,
  step TEXT NOT NULL,
  key BLOB,
  input TEXT,
  output TEXT,
  PRIMARY KEY (task, seq)
) WITHOUT ROWID
"""


class Floor:
    """A hand-written log in one SQLite file."""

    def __init__(self, path: str) -> None:
        self.connection = apsw.Connection(path)
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        self.connection.execute(SCHEMA)
        self.cursor = self.connection.cursor()

    def write(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Intent, commit, call, result, commit."""
        text = _dump(params)
        key = sha256(f"{task}:{seq}:{step}:{text}".encode()).digest()
        self.cursor.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, NULL)", (task, 2 * seq, step, key, text))
        output = _dump(fn(**json.loads(text), idempotency_key=key.hex()))
        self.cursor.execute("INSERT INTO log VALUES (?, ?, ?, NULL, NULL, ?)", (task, 2 * seq + 1, step, output))
        return json.loads(output)

    def read(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Call, result, commit."""
        text = _dump(params)
        output = _dump(fn(**json.loads(text)))
        self.cursor.execute("INSERT INTO log VALUES (?, ?, ?, NULL, ?, ?)", (task, 2 * seq, step, text, output))
        return json.loads(output)


def read_back(connection: apsw.Connection, task: str) -> int:
    """Read and decode the inputs and outputs of a task's finished steps, in one query over the product's own rows.

    What a hand-written resume needs at least: each step's input and output, decoded, to be found by its place.
    """
    given: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for path, input_ref, output_ref in connection.execute(
        "SELECT path, input_ref, output_ref FROM events WHERE task_id = ? AND path IS NOT NULL ORDER BY event_seq", (task,)
    ):
        if input_ref is not None:
            given[path] = json.loads(input_ref[7:])  # after "inline:"
        if output_ref is not None:
            made[path] = json.loads(output_ref[7:])
    return len(made)
