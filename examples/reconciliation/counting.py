"""A database that counts every effect that was real: what the servers of the examples keep their books in.

One SQLite file, one connection, one lock. Every effect is committed before anybody is told of it, so the
counts are what happened, also after the server was killed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .faults import Clock

Body = dict[str, Any]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
  n INTEGER PRIMARY KEY, kind TEXT NOT NULL, reference TEXT NOT NULL, subject TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
  n INTEGER PRIMARY KEY, route TEXT NOT NULL, reference TEXT NOT NULL, fault TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
  key TEXT PRIMARY KEY, params TEXT NOT NULL, answer TEXT NOT NULL, created_at REAL NOT NULL);
"""


class Refused(Exception):
    """The request has no effect; `status` and `error` are the answer."""

    def __init__(self, status: int, error: str) -> None:
        self.status = status
        self.error = error
        super().__init__(f"{status} {error}")


class Counted:
    """The books of one server. A subclass adds its tables with `schema`, and its acts, each inside an `_effect`.

    `key_window_s`: for how long an idempotency key is remembered; None: for ever.
    """

    def __init__(self, path: Path, clock: Clock, schema: str, key_window_s: float | None = None) -> None:
        self.key_window_s = key_window_s
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_SCHEMA + schema)

    def close(self) -> None:
        with self._changed:
            self._database.close()

    def count_request(self, route: str, reference: str, fault: str) -> None:
        with self._changed:
            self._insert(
                "INSERT INTO requests (route, reference, fault, at) VALUES (?, ?, ?, ?)",
                (route, reference, fault, self._clock.now()),
            )
            self._changed.notify_all()

    def counts(self) -> Body:
        """Return what was really done, and how many requests came for it.

        Shapes: ``{"effects": {"sheet": {"count": 2, "by_reference": {"k": 2}, "by_subject": {"D": 2}}},
        "order": [["sheet", "D"], …], "requests": {"count": 9, "by_route": {"POST /adjustments": 2}}}``.
        """
        with self._changed:
            effects: Body = {}
            made = self._rows("SELECT kind, reference, subject FROM effects ORDER BY n", ())
            for row in made:
                kind = effects.setdefault(row["kind"], {"count": 0, "by_reference": {}, "by_subject": {}})
                kind["count"] += 1
                for field in ("reference", "subject"):
                    counted = kind[f"by_{field}"]
                    counted[row[field]] = counted.get(row[field], 0) + 1
            routes = {
                row["route"]: row["n"]
                for row in self._rows("SELECT route, count(*) AS n FROM requests GROUP BY route ORDER BY route", ())
            }
            order = [[row["kind"], row["subject"]] for row in made]
            return {"effects": effects, "order": order, "requests": {"count": sum(routes.values()), "by_route": routes}}

    def wait_for(self, kind: str, count: int, timeout_s: float) -> bool:
        """Whether `count` effects of `kind` are there, at the latest after `timeout_s` of real time."""

        def reached() -> bool:
            return bool(self._rows("SELECT count(*) AS n FROM effects WHERE kind = ?", (kind,))[0]["n"] >= count)

        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def _remembered(self, key: str, request: object) -> Body | None:
        """What was answered under this key, while it is remembered. The same key with another request is refused."""
        if self.key_window_s is not None:
            self._database.execute("DELETE FROM keys WHERE created_at + ? <= ?", (self.key_window_s, self._clock.now()))
        known = self._rows("SELECT params, answer FROM keys WHERE key = ?", (key,))
        if known and known[0]["params"] != _digest(request):
            raise Refused(422, "this key was used with other params")
        return dict(json.loads(known[0]["answer"])) if known else None

    def _remember(self, key: str, request: object, answer: Body, at: float) -> None:
        """In the transaction of the effect: from now on this key is answered with `answer`."""
        self._insert("INSERT INTO keys VALUES (?, ?, ?, ?)", (key, _digest(request), json.dumps(answer), at))

    def _effect(self, kind: str, reference: str, subject: str) -> _Effect:
        return _Effect(self._database, self._changed, (kind, reference, subject, self._clock.now()))

    def _insert(self, statement: str, values: tuple[Any, ...]) -> int:
        return int(self._database.execute(statement, values).lastrowid or 0)

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with self._changed:
            return self._database.execute(statement, values).fetchall()

    def _one(self, statement: str, number: int, noun: str) -> sqlite3.Row:
        rows = self._rows(statement, (number,))
        if not rows:
            raise Refused(404, f"no such {noun}")
        return rows[0]


class _Effect:
    """One transaction: an effect and its count, both or neither. Whoever waits for a count is told after the commit."""

    def __init__(self, database: sqlite3.Connection, changed: threading.Condition, counted: tuple[str, str, str, float]) -> None:
        self._database = database
        self._changed = changed
        self._counted = counted

    def __enter__(self) -> float:
        self._changed.acquire()
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._changed.release()
            raise
        return self._counted[3]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._database.execute("INSERT INTO effects (kind, reference, subject, at) VALUES (?, ?, ?, ?)", self._counted)
                self._database.execute("COMMIT")
                self._changed.notify_all()
            else:
                self._database.execute("ROLLBACK")
        finally:
            self._changed.release()


def _digest(request: object) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def need(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or not value:
        raise Refused(400, f"{name} is missing")
    return value


def text_in(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise Refused(400, f"{name} is not a text")
    return value
