"""The projections, folded again from the log by `verify` (I9); what a store says when one refuses a row."""

from __future__ import annotations

from typing import NamedTuple

from ..changes import CaseClosed, CaseOpened, Freeze, HeadChange, KeyMoved, KeyTaken, placing, project
from ..errors import AlreadySettled, KeyHeld, UnknownCase
from ..events import STORE_TASK, Event, Instant, Kind, TaskStatus, draft
from .base import CaseRow, KeyRow


def key_held(holder: KeyRow, task_id: str) -> KeyHeld:
    """What is said to a step whose business key another step holds."""
    return KeyHeld(
        f"business key {holder.once!r} is held by task {holder.task_id}, step at {holder.path}; "
        f"nothing of task {task_id} was written",
        hint=f"doubtless show {holder.task_id}",
        once=holder.once,
        task=holder.task_id,
        path=holder.path,
    )


def not_open(case_id: str, case: CaseRow | None) -> UnknownCase | AlreadySettled:
    """What is said to an answer whose case is not open: there is none, or it is settled, by whom and when (I8)."""
    if case is None:
        return UnknownCase(f"there is no case {case_id}", hint="doubtless inbox lists the open ones", case=case_id)
    return AlreadySettled(
        f"case {case.case_id} is already settled, by {case.settled_by} at {show_time(case.settled_at or 0)}",
        hint=f"doubtless show {case.task_id}",
        case=case.case_id,
        by=case.settled_by,
        at=case.settled_at,
    )


def show_time(wall: int) -> str:
    """A moment of the store's clock as a person reads it."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(wall // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FoldedHead(NamedTuple):
    """What the log says of a head row; owner, epoch and claim time are no part of it."""

    task_name: str
    status: str
    input_hash: bytes | None
    wake_at: int | None
    why: str | None
    awaits: str | None
    queue: str
    priority: int
    tail_seq: int
    tail_hash: bytes


class Folded:
    """All projections, folded from rows in the order of each task."""

    def __init__(self) -> None:
        self.heads: dict[str, FoldedHead] = {}
        self.cases: dict[str, CaseRow] = {}
        self.freezes: dict[str, str] = {}
        self.keys: dict[str, KeyRow] = {}
        self.suspect = False
        self.ends: dict[str, int] = {}  # each task's last row
        self.unlike: set[str] = set()  # tasks whose head has another hash of its last row than the log

    def add(self, event: Event, digest: bytes) -> None:
        """Fold one more row; `digest` is its hash."""
        if event.kind == Kind.TASK_ACCEPTED:
            status = str(event.status or TaskStatus.READY)
            name, asked = event.step_name or "", event.input_hash
            queue, priority, not_before = placing(event)
            self.heads[event.task_id] = FoldedHead(
                name, status, asked, not_before, None, None, queue, priority, event.event_seq, digest
            )
        if event.kind == Kind.STORE_RECOVERED:
            self.suspect = bool(event.details.get("suspect"))
        for change in project(event):
            match change:
                case HeadChange():
                    self._head(event, change, digest)
                case CaseOpened(case, path, kind):
                    self.cases[case] = CaseRow(case, event.task_id, event.event_seq, path, kind, event.at.wall, None, None, None)
                case CaseClosed(case, by) if case in self.cases and self.cases[case].settled_seq is None:
                    self.cases[case] = self.cases[case]._replace(
                        settled_seq=event.event_seq, settled_at=event.at.wall, settled_by=by
                    )
                case CaseClosed():
                    pass  # settled before (I8); the row stands, the case does not change
                case Freeze(step, None):
                    self.freezes.pop(step, None)
                case Freeze(step, why):
                    self.freezes[step] = why or ""
                case KeyTaken() | KeyMoved():
                    self._key(event, change)

    def _key(self, event: Event, change: KeyTaken | KeyMoved) -> None:
        """Tasks come one after the other here, and not in the order in which they had the key: their turns tell it."""
        known = self.keys.get(change.once)
        if isinstance(change, KeyTaken):
            if known is None or known.turn < change.turn:
                row = KeyRow(change.once, change.turn, event.task_id, change.path, "open", change.window_us, None, None)
                self.keys[change.once] = row
        elif known is not None and (known.task_id, known.path, known.state) == (event.task_id, change.path, "open"):
            when = event.at if change.state == "done" else None
            self.keys[change.once] = known._replace(state=change.state, done_at=when and when.wall, done_boot=when and when.boot)

    def _head(self, event: Event, change: HeadChange, digest: bytes) -> None:
        head = self.heads.get(event.task_id)
        if head is None or (change.only_from and head.status not in change.only_from):
            return
        self.heads[event.task_id] = head._replace(
            status=str(change.status), wake_at=change.wake_at, why=change.why, awaits=change.awaits, tail_seq=event.event_seq,
            tail_hash=digest,
        )  # fmt: skip


def recovered(now: Instant, *, suspect: bool, by: str, why: str, **more: object) -> Event:
    """The draft of a StoreRecovered row: suspect mode begins or ends, by whom and why."""
    return draft(STORE_TASK, Kind.STORE_RECOVERED, now, data={"suspect": suspect, "by": by, "why": why, **more})
