"""What the other side keeps: sheets, approvals, messages, closings, and a count of every effect that was real.

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
from typing import Any, NamedTuple

from .faults import Clock

Body = dict[str, Any]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sheets (
  id INTEGER PRIMARY KEY, reference TEXT NOT NULL, run TEXT NOT NULL, subject TEXT NOT NULL,
  body TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS approvals (
  id INTEGER PRIMARY KEY, reference TEXT NOT NULL, run TEXT NOT NULL,
  body TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, text TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS closings (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, body TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
  key TEXT PRIMARY KEY, params TEXT NOT NULL, answer TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS effects (
  n INTEGER PRIMARY KEY, kind TEXT NOT NULL, reference TEXT NOT NULL, subject TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
  n INTEGER PRIMARY KEY, route TEXT NOT NULL, reference TEXT NOT NULL, fault TEXT NOT NULL, at REAL NOT NULL);
"""


class Refused(Exception):
    """The request has no effect; `status` and `error` are the answer."""

    def __init__(self, status: int, error: str) -> None:
        self.status = status
        self.error = error
        super().__init__(f"{status} {error}")


class Closing(NamedTuple):
    """The answer to a closing, and whether it is the remembered one of an earlier request."""

    body: Body
    replayed: bool


class Books:
    """The ERP, the approvals and the chat. `key_window_s`: for how long a closing's key is remembered; None: for ever."""

    def __init__(self, path: Path, clock: Clock, key_window_s: float | None = None) -> None:
        self.key_window_s = key_window_s
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        with self._changed:
            self._database.close()

    # ------------------------------------------------------------ the ERP

    def create_sheet(self, body: Mapping[str, Any]) -> Body:
        """A new sheet, whatever there is already: this system compares nothing, on purpose."""
        difference, run, reference = _need(body, "difference", dict), _need(body, "run", str), _text(body, "reference")
        subject = str(difference.get("id", ""))
        with self._effect("sheet", reference, subject) as at:
            sheet = self._insert(
                "INSERT INTO sheets (reference, run, subject, body, status, created_at) VALUES (?, ?, ?, ?, 'open', ?)",
                (reference, run, subject, json.dumps(difference), at),
            )
        return self._sheet(sheet)

    def find_sheets(self, reference: str, lag_s: float) -> list[Body]:
        rows = self._rows(
            "SELECT id FROM sheets WHERE reference = ? AND created_at <= ? ORDER BY id", (reference, self._clock.now() - lag_s)
        )
        return [self._sheet(row["id"]) for row in rows]

    def withdraw_sheet(self, sheet: int) -> Body:
        """The sheet is withdrawn; asking again changes nothing."""
        found = self._sheet(sheet)
        if found["status"] != "withdrawn":
            with self._effect("sheet_withdrawal", found["reference"], found["subject"]):
                self._database.execute("UPDATE sheets SET status = 'withdrawn' WHERE id = ?", (sheet,))
        return self._sheet(sheet)

    def _sheet(self, sheet: int) -> Body:
        row = self._one("SELECT id, reference, run, subject, status FROM sheets WHERE id = ?", sheet, "sheet")
        return dict(row) | {"id": f"A-{row['id']}"}

    # ------------------------------------------------------------ approvals

    def submit_approval(self, body: Mapping[str, Any]) -> Body:
        """A new approval for these sheets, whatever there is already."""
        run, sheets, reference = _need(body, "run", str), _need(body, "sheets", list), _text(body, "reference")
        with self._changed:
            known = {f"A-{row['id']}" for row in self._rows("SELECT id FROM sheets WHERE status = 'open'", ())}
            lost = [str(sheet) for sheet in sheets if sheet not in known]
            if lost:
                raise Refused(422, f"no open sheet {', '.join(lost)}")
            with self._effect("approval", reference, run) as at:
                approval = self._insert(
                    "INSERT INTO approvals (reference, run, body, status, created_at) VALUES (?, ?, ?, 'submitted', ?)",
                    (reference, run, json.dumps(sheets), at),
                )
        return self._approval(approval)

    def find_approvals(self, reference: str, lag_s: float) -> list[Body]:
        rows = self._rows(
            "SELECT id FROM approvals WHERE reference = ? AND created_at <= ? ORDER BY id", (reference, self._clock.now() - lag_s)
        )
        return [self._approval(row["id"]) for row in rows]

    def withdraw_approval(self, approval: int) -> Body:
        """The approval is withdrawn, unless a person has processed it; asking again changes nothing."""
        with self._changed:
            found = self._approval(approval)
            if found["status"] == "processed":
                raise Refused(409, "already processed")
            if found["status"] != "withdrawn":
                with self._effect("approval_withdrawal", found["reference"], found["run"]):
                    self._database.execute("UPDATE approvals SET status = 'withdrawn' WHERE id = ?", (approval,))
            return self._approval(approval)

    def process_approval(self, approval: int) -> Body:
        """A person's act: the approval is used, and can no longer be withdrawn."""
        with self._changed:
            found = self._approval(approval)
            if found["status"] != "submitted":
                raise Refused(409, f"already {found['status']}")
            with self._effect("approval_processing", found["reference"], found["run"]):
                self._database.execute("UPDATE approvals SET status = 'processed' WHERE id = ?", (approval,))
            return self._approval(approval)

    def _approval(self, approval: int) -> Body:
        row = self._one("SELECT id, reference, run, body, status FROM approvals WHERE id = ?", approval, "approval")
        found = dict(row) | {"id": f"P-{row['id']}", "sheets": json.loads(row["body"])}
        del found["body"]
        return found

    # ------------------------------------------------------------ chat, and closing a run

    def post_message(self, body: Mapping[str, Any]) -> Body:
        run, text = _need(body, "run", str), _need(body, "text", str)
        with self._effect("message", "", run) as at:
            message = self._insert("INSERT INTO messages (run, text, created_at) VALUES (?, ?, ?)", (run, text, at))
        return {"id": f"M-{message}", "run": run}

    def close_run(self, run: str, key: str, body: Mapping[str, Any]) -> Closing:
        """One closing per key, as long as the key is remembered; the same key with other params is refused."""
        params = hashlib.sha256(json.dumps([run, body], sort_keys=True).encode()).hexdigest()
        with self._changed:
            if self.key_window_s is not None:
                self._database.execute("DELETE FROM keys WHERE created_at + ? <= ?", (self.key_window_s, self._clock.now()))
            known = self._rows("SELECT params, answer FROM keys WHERE key = ?", (key,))
            if known and known[0]["params"] != params:
                raise Refused(422, "this key was used with other params")
            if known:
                return Closing(json.loads(known[0]["answer"]), replayed=True)
            with self._effect("closing", key, run) as at:
                closing = self._insert(
                    "INSERT INTO closings (run, body, created_at) VALUES (?, ?, ?)", (run, json.dumps(body), at)
                )
                answer = {"id": f"C-{closing}", "run": run, "status": "closed"}
                self._database.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", (key, params, json.dumps(answer), at))
        return Closing(answer, replayed=False)

    # ------------------------------------------------------------ what was counted

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
        "requests": {"count": 9, "by_route": {"POST /adjustments": 2}}}``.
        """
        with self._changed:
            effects: Body = {}
            for row in self._rows("SELECT kind, reference, subject FROM effects ORDER BY n", ()):
                kind = effects.setdefault(row["kind"], {"count": 0, "by_reference": {}, "by_subject": {}})
                kind["count"] += 1
                for field in ("reference", "subject"):
                    counted = kind[f"by_{field}"]
                    counted[row[field]] = counted.get(row[field], 0) + 1
            routes = {
                row["route"]: row["n"]
                for row in self._rows("SELECT route, count(*) AS n FROM requests GROUP BY route ORDER BY route", ())
            }
            return {"effects": effects, "requests": {"count": sum(routes.values()), "by_route": routes}}

    def wait_for(self, kind: str, count: int, timeout_s: float) -> bool:
        """Whether `count` effects of `kind` are there, at the latest after `timeout_s` of real time."""

        def reached() -> bool:
            return bool(self._rows("SELECT count(*) AS n FROM effects WHERE kind = ?", (kind,))[0]["n"] >= count)

        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    # ------------------------------------------------------------ the database

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


def _need(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or not value:
        raise Refused(400, f"{name} is missing")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise Refused(400, f"{name} is not a text")
    return value
