"""What the other side keeps: sheets, approvals, messages, closings, and (see `counting`) every effect that was real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .counting import Body, Counted, Refused, need, text_in
from .faults import Clock

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
"""


class Closing(NamedTuple):
    """The answer to a closing, and whether it is the remembered one of an earlier request."""

    body: Body
    replayed: bool


class Books(Counted):
    """The ERP, the approvals and the chat. `key_window_s`: for how long a closing's key is remembered; None: for ever."""

    def __init__(self, path: Path, clock: Clock, key_window_s: float | None = None) -> None:
        super().__init__(path, clock, _SCHEMA, key_window_s)

    # ------------------------------------------------------------ the ERP

    def create_sheet(self, body: Mapping[str, Any]) -> Body:
        """A new sheet, whatever there is already: this system compares nothing, on purpose."""
        difference, run, reference = need(body, "difference", dict), need(body, "run", str), text_in(body, "reference")
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
        """The sheet is withdrawn, unless an approval holds it; asking again changes nothing."""
        with self._changed:
            found = self._sheet(sheet)
            if found["status"] != "withdrawn":
                self._refuse_if_held(found["id"])
                with self._effect("sheet_withdrawal", found["reference"], found["subject"]):
                    self._database.execute("UPDATE sheets SET status = 'withdrawn' WHERE id = ?", (sheet,))
            return self._sheet(sheet)

    def _refuse_if_held(self, sheet: str) -> None:
        for row in self._rows("SELECT id, body, status FROM approvals WHERE status != 'withdrawn' ORDER BY id", ()):
            if sheet in json.loads(row["body"]):
                raise Refused(409, f"sheet {sheet} is in approval P-{row['id']}, which is {row['status']}")

    def _sheet(self, sheet: int) -> Body:
        row = self._one("SELECT id, reference, run, subject, status FROM sheets WHERE id = ?", sheet, "sheet")
        return dict(row) | {"id": f"A-{row['id']}"}

    # ------------------------------------------------------------ approvals

    def submit_approval(self, body: Mapping[str, Any]) -> Body:
        """A new approval for these sheets, whatever there is already."""
        run, sheets, reference = need(body, "run", str), need(body, "sheets", list), text_in(body, "reference")
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

    def reverse_approval(self, approval: int) -> Body:
        """A person's act: what was processed is taken back by hand, in the ledger, where no program can do it."""
        with self._changed:
            found = self._approval(approval)
            if found["status"] != "processed":
                raise Refused(409, f"it is {found['status']}")
            with self._effect("approval_reversal", found["reference"], found["run"]):
                self._database.execute("UPDATE approvals SET status = 'withdrawn' WHERE id = ?", (approval,))
            return self._approval(approval)

    def _approval(self, approval: int) -> Body:
        row = self._one("SELECT id, reference, run, body, status FROM approvals WHERE id = ?", approval, "approval")
        found = dict(row) | {"id": f"P-{row['id']}", "sheets": json.loads(row["body"])}
        del found["body"]
        return found

    # ------------------------------------------------------------ chat, and closing a run

    def post_message(self, body: Mapping[str, Any]) -> Body:
        run, text = need(body, "run", str), need(body, "text", str)
        with self._effect("message", "", run) as at:
            message = self._insert("INSERT INTO messages (run, text, created_at) VALUES (?, ?, ?)", (run, text, at))
        return {"id": f"M-{message}", "run": run}

    def close_run(self, run: str, key: str, body: Mapping[str, Any]) -> Closing:
        """One closing per key, as long as the key is remembered; the same key with other params is refused."""
        with self._changed:
            known = self._remembered(key, [run, body])
            if known is not None:
                return Closing(known, replayed=True)
            with self._effect("closing", key, run) as at:
                closing = self._insert(
                    "INSERT INTO closings (run, body, created_at) VALUES (?, ?, ?)", (run, json.dumps(body), at)
                )
                answer = {"id": f"C-{closing}", "run": run, "status": "closed"}
                self._remember(key, [run, body], answer, at)
        return Closing(answer, replayed=False)
