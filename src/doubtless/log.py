"""One task's log in its owner's hands: load, fold on demand, append in order, notice what others added."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from .errors import Moved
from .events import CaseKind, Event, Instant, Kind, TaskStatus, draft, row_hash, seal
from .fold import StepRecord, case_id, fold_step
from .store.base import Blob, Claim, Store


class Settled(NamedTuple):
    """What replay needs of a settled step; nothing else of it is kept."""

    name: str
    input_hash: bytes | None
    status: str
    output_ref: str | bytes | None
    error: str | None

    def given(self, output_ref: str | bytes | None, error: str | None) -> Settled:
        """With what a person gave for an output that is missing: a value, or that there is none."""
        return self._replace(error=error) if output_ref is None else self._replace(output_ref=output_ref, error=None)


class OpenCase(NamedTuple):
    """An open case of the task: its kind, the step it is about (or None), and its row."""

    kind: str
    path: str | None
    row: Event


class TaskLog:
    """The owner's view of one task: `settled` by path, the rows of open steps, and the place of the next row.

    Thread-safe. All appends carry the claim's epoch and are refused when it is stale (I4) or when the log holds
    something newer than this view (`Moved`, after which the view is fresh).
    """

    def __init__(self, store: Store, claim: Claim, *, owner: str | None) -> None:
        self.store = store
        self.task_id = claim.head.task_id
        self.epoch = claim.epoch
        self.owner = owner
        self.lock = threading.RLock()
        self.steps_seen = 0
        self.settled: dict[str, Settled] = {}
        self.open: dict[str, list[Event]] = {}
        self.groups: set[str] = set()  # the places where the log, as it was loaded, holds parallel groups
        self.cases: dict[str, OpenCase] = {}
        self.fail_answer: Event | None = None
        self.let_stand: Event | None = None
        self.hold_row: Event | None = None
        self.cancel: Event | None = None
        self.answered: list[tuple[Event, Event]] = []  # settled questions of the task itself: opened, settled
        self._announced = claim.takeover
        self.load()

    @property
    def held(self) -> bool:
        """Whether the task has failed already: by a person, or held until a person says what to do with its effects."""
        return self.fail_answer is not None or self.hold_row is not None

    # ------------------------------------------------------------ reading

    def load(self) -> None:
        """Fold the log anew: settled steps lean, the rows of open ones whole."""
        with self.lock:
            self.settled, self.open, self.cases, self.answered = {}, {}, {}, []
            first = self._outline()
            tail = self.store.rows(self.task_id, after=first - 1)
            for row in tail:
                self._keep_case(row)
                if row.kind == Kind.TASK_CLAIMED:
                    for rows in self.open.values():
                        rows.append(row)
                elif row.path is not None and row.path not in self.settled:
                    self.open.setdefault(row.path, []).append(row)
            last = tail[-1] if tail else self.store.last(self.task_id)
            if last is None:
                raise Moved(f"task {self.task_id} has no rows", task=self.task_id)
            self.seq, self.hash = last.event_seq, row_hash(last)
            self.groups = {g for p in (*self.settled, *self.open) if "." in p for g in groups_of(p)}

    def _outline(self) -> int:
        """Fill `settled`; say from which row on the rows are needed whole."""
        settled = self.settled
        open_from: dict[str, tuple[int, bytes | None]] = {}  # of steps that are not settled: their first row, input hash
        settle, intend, make = Kind.STEP_SETTLED.value, Kind.STEP_INTENDED.value, tuple.__new__
        whole, seen = 1 << 62, self.steps_seen
        for seq, kind, path, name, status, digest, output, error, step_seq in self.store.outline(self.task_id):
            if step_seq is not None and step_seq > seen:
                seen = step_seq
            if path is None:
                if kind in _WHOLE:
                    whole = min(whole, seq)
            elif kind == intend:
                open_from[path] = (seq, digest)
            elif kind == settle:
                known = open_from.pop(path, None)
                if known is None or known[1] is None:
                    settled[path] = make(Settled, (name, digest, status, output, error))
                else:
                    settled[path] = make(Settled, (name, known[1], status, output, error))
            elif kind in _WHOLE and path not in settled:
                whole = min(whole, seq)
                open_from.setdefault(path, (seq, digest))
            elif path in settled:
                whole = min(whole, seq) if kind in _WHOLE else whole
                if kind == Kind.CASE_SETTLED and (output is not None or error is not None):
                    settled[path] = settled[path].given(output, error)
                elif kind == Kind.RETRY_ALLOWED:  # rare: its rows may be anywhere
                    open_from[path] = (1, settled.pop(path).input_hash)
            else:
                open_from.setdefault(path, (seq, digest))
        self.steps_seen = seen
        return min([whole, *(first for first, _ in open_from.values())])

    def _keep_case(self, row: Event) -> None:
        if row.kind == Kind.CANCEL_REQUESTED:
            self.cancel = row
        elif row.kind == Kind.CASE_OPENED:
            kind = row.details["kind"]
            self.cases[case_id(row.task_id, row.event_seq)] = OpenCase(kind, row.path, row)
            if kind == CaseKind.HOLD:
                self.hold_row = row
        elif row.kind == Kind.CASE_SETTLED:
            data = row.details
            opened = self.cases.pop(data["case_id"], None)
            if opened is not None and opened.path is None and opened.kind == CaseKind.QUESTION:
                self.answered.append((opened.row, row))
            if data.get("answer") == "fail" and row.path is None:
                self.fail_answer = row
            elif data.get("answer") == "let_stand":
                self.let_stand = row

    def _keep_step(self, row: Event, path: str) -> None:
        """Sort one row that is new to this view into the open or the settled steps."""
        if row.step_seq is not None and row.step_seq > self.steps_seen:
            self.steps_seen = row.step_seq
        if path in self.settled:
            if row.kind == Kind.CASE_SETTLED and (row.output_ref is not None or row.error is not None):
                self.settled[path] = self.settled[path].given(row.output_ref, row.error)
            elif row.kind == Kind.RETRY_ALLOWED:  # reopened: its rows are needed whole again
                del self.settled[path]
                self.open[path] = self._rows_of(path, row.event_seq)
            return
        if path not in self.open and row.kind not in _FIRST:
            return  # late news of a step that is settled and forgotten
        self.open.setdefault(path, []).append(row)
        if row.kind == Kind.STEP_SETTLED:
            self._settle(path, row)

    def _settle(self, path: str, row: Event) -> None:
        rows = self.open.pop(path)
        digest = next((r.input_hash for r in rows if r.input_hash is not None), row.input_hash)
        self.settled[path] = Settled(row.step_name or "", digest, row.status or "", row.output_ref, row.error)

    def _rows_of(self, path: str, until: int) -> list[Event]:
        rows = self.store.rows(self.task_id)
        return [r for r in rows if r.event_seq <= until and (r.path == path or r.kind == Kind.TASK_CLAIMED)]

    def record(self, path: str) -> StepRecord | None:
        """The fold of the open step at `path`, seen by this claim; None when nothing is logged there."""
        with self.lock:
            rows = self.open.get(path)
            return None if rows is None else fold_step(rows, path, self.epoch)

    def open_records(self) -> list[StepRecord]:
        """The records of all open steps, in the order of first arrival."""
        with self.lock:
            records = [self.record(path) for path in self.open]
        return sorted((r for r in records if r is not None), key=lambda r: r.step_seq)

    # ------------------------------------------------------------ appending

    def append(
        self, *drafts: Event, guard: str | None = None, blobs: Sequence[Blob] = (), keep_owner: bool = False, forget: bool = False
    ) -> None:
        """Append drafts, durable at return. Raises `Moved` with a view that is fresh, or what the store raises.

        `forget`: the step that these rows settle will not be asked for again in this pass; keep nothing of it.
        """
        with self.lock:
            if guard is not None and self.open and drafts[0].kind == Kind.STEP_INTENDED and self._doubt_beside(drafts[0].path):
                raise Moved(f"task {self.task_id}: another step is in doubt", task=self.task_id)  # rule 8, between branches
            if not self._announced:
                drafts = (self._claimed(Instant(drafts[0].at.wall, drafts[0].boot_at)), *drafts)
            sealed = seal(drafts, self.seq, self.hash)
            digest = row_hash(sealed[-1])  # before the commit: after a sync nothing is in the processor's caches any more
            try:
                self.store.append(sealed, guard=guard, blobs=blobs, keep_owner=keep_owner)
            except Moved:
                self.refresh()
                raise
            self._announced = True
            self._advance(sealed, digest, forget)

    def _doubt_beside(self, path: str | None) -> bool:
        return any(record.in_doubt for record in self.open_records() if record.path != path)

    def _claimed(self, now: Instant) -> Event:
        return draft(
            self.task_id, Kind.TASK_CLAIMED, now, status=TaskStatus.RUNNING, epoch=self.epoch, data={"owner": self.owner}
        )  # fmt: skip

    def _advance(self, sealed: Sequence[Event], digest: bytes, forget: bool = False) -> None:
        self.seq, self.hash = sealed[-1].event_seq, digest
        for row in sealed:
            path, kind = row.path, row.kind
            if forget and path is not None and kind == Kind.STEP_SETTLED:
                self.open.pop(path, None)
                continue
            if kind in _WHOLE:
                self._keep_case(row)
            if path is not None:
                self._keep_step(row, path)
            elif row.kind == Kind.TASK_CLAIMED:
                for rows in self.open.values():
                    rows.append(row)

    def refresh(self) -> bool:
        """Take in what others have added since; True when there was something."""
        with self.lock:
            rows = self.store.rows(self.task_id, after=self.seq)
            if rows:
                self._advance(rows, row_hash(rows[-1]))
            return bool(rows)

    def next_step_seq(self) -> int:
        """The next step's number: increasing, never reused."""
        with self.lock:
            self.steps_seen += 1
            return self.steps_seen


def groups_of(path: str) -> list[str]:
    """The places of the groups that a place is in: of ``4.1.2.3.1`` these are ``4`` and ``4.1.2``."""
    parts = path.lstrip("~").split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts), 2)]


_WHOLE = frozenset({Kind.CASE_OPENED, Kind.CASE_SETTLED, Kind.CANCEL_REQUESTED})
_FIRST = frozenset({Kind.STEP_INTENDED, Kind.ATTEMPT_ENDED, Kind.STEP_SETTLED})
