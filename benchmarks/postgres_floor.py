"""The yardstick on PostgreSQL: the log of floor.py, written by hand with psycopg.

The same fields, the same two durable commits for a write and one for a read; each is one INSERT, one round trip, on one
connection in autocommit. psycopg prepares what it has sent five times, as it does by default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import psycopg

from floor import WAYS, dump

SCHEMA = """
CREATE TABLE IF NOT EXISTS {table} (
  task_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  step_seq bigint NOT NULL,
  step_name text NOT NULL,
  status text NOT NULL,
  effect_class text,
  input_hash bytea,
  idempotency_key bytea,
  input text,
  output text,
  started_at bigint,
  finished_at bigint,
  PRIMARY KEY (task_id, seq)
)
"""
INTENT = "INSERT INTO {table} VALUES ($1, $2, $3, $4, 'uncertain', $5, $6, $7, $8, NULL, $9, NULL)"
RESULT = "INSERT INTO {table} VALUES ($1, $2, $3, $4, 'done', $5, $6, NULL, $7, $8, $9, $10)"


class PostgresFloor:
    """A hand-written log in one table of a PostgreSQL database."""

    def __init__(self, conninfo: str, table: str = "floor_log", *, prepare: bool = True) -> None:
        self.connection = psycopg.connect(
            conninfo, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=5 if prepare else None
        )
        self.connection.execute(SCHEMA.format(table=table))
        self.intent, self.result = INTENT.format(table=table), RESULT.format(table=table)

    def write(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Intent, commit, call, result, commit."""
        text = dump(params)
        digest = sha256(text.encode()).digest()
        key = sha256(f"{task}:{seq}:{step}:{text}".encode()).digest()
        now = time.time_ns() // 1000
        execute = self.connection.execute
        execute(self.intent, (task, 2 * seq, seq, step, "non_idem_write", digest, key, text, now))
        output = dump(fn(**json.loads(text), idempotency_key=key.hex()))
        now = time.time_ns() // 1000
        execute(self.result, (task, 2 * seq + 1, seq, step, None, None, None, output, None, now))
        return json.loads(output)

    def read(self, task: str, seq: int, step: str, fn: Callable[..., Any], **params: Any) -> Any:
        """Call, result, commit."""
        text = dump(params)
        digest = sha256(text.encode()).digest()
        began = time.time_ns() // 1000
        output = dump(fn(**json.loads(text)))
        now = time.time_ns() // 1000
        self.connection.execute(self.result, (task, 2 * seq, seq, step, "read", digest, text, output, began, now))
        return json.loads(output)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def read_back(connection: psycopg.Connection[Any], schema: str, task: str, way: str = "whole") -> int:
    """The same as `floor.read_back`, of rows in PostgreSQL."""
    columns, read = WAYS[way]
    sql = f'SELECT {columns} FROM "{schema}".events WHERE task_id = $1 AND path IS NOT NULL ORDER BY event_seq'
    return read(connection.execute(sql.encode(), (task,), binary=True))
