"""What a task's owner knows of its log: settled steps in outline, the rows of open ones, what people said.

Pure. `TaskFold.take` folds row by row; `log.TaskLog` loads the same fold from the store, from zero or from a snapshot.
A new field of the fold is named in `snapshots.FIELDS` too, and a kind that it needs in `WHOLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from json import loads
from typing import NamedTuple

from .changes import case_id
from .events import UNDO, CaseKind, Event, Kind, StepStatus, TaskStatus


class Settled(NamedTuple):
    """What replay needs of a settled step; nothing else of it is kept."""

    name: str
    input_hash: bytes | None
    status: str
    output_ref: str | bytes | None
    error: str | None

    @property
    def given_up(self) -> bool:
        """Whether a person gave it up: nobody knows whether its effect is there."""
        return self.status == StepStatus.FAILED and self.error is not None and loads(self.error).get("kind") == "abandoned"

    def given(self, output_ref: str | bytes | None, error: str | None) -> Settled:
        """With what a person gave for an output that is missing: a value, or that there is none."""
        return self._replace(error=error) if output_ref is None else self._replace(output_ref=output_ref, error=None)


class OpenCase(NamedTuple):
    """An open case of the task: its kind, the step it is about (or None), and its row."""

    kind: str
    path: str | None
    row: Event


WHOLE = frozenset({Kind.CASE_OPENED, Kind.CASE_SETTLED, Kind.CANCEL_REQUESTED, Kind.EVENT_RECEIVED})
"""The kinds whose rows `TaskFold.keep` needs whole, wherever they stand in the log; also rows of status compensating."""

_INTENDED = Kind.STEP_INTENDED.value
_FIRST = frozenset({Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED, Kind.ATTEMPT_ENDED, Kind.STEP_SETTLED})


def needs_keeping(row: Event) -> bool:
    """Whether a row says more about its task than what replay needs of its steps."""
    if row.kind in WHOLE or row.status == TaskStatus.COMPENSATING:
        return True
    return row.data is not None and row.kind == Kind.STEP_SETTLED


class TaskFold:
    """The fold of a task's rows up to `seq`.

    `floor`: a snapshot's state stands for the places up to this one; nothing of them is kept. `reached_back`: news about
    one of them has come that such a state does not know. `forgets`: settled steps are taken out as task code meets them.
    """

    __slots__ = (
        "answered", "cancel", "cases", "events", "fail_answer", "failing", "floor", "hash", "hold_row", "let_stand", "open",
        "reached_back", "rows_of", "seq", "settled", "steps_seen", "tries",
    )  # fmt: skip

    forgets = False

    def __init__(self, rows_of: Callable[[str, int], list[Event]]) -> None:
        self.rows_of = rows_of
        self.clear()

    def clear(self) -> None:
        """Know nothing."""
        self.steps_seen = 0
        self.seq = 0
        self.hash = b""
        self.floor = 0
        self.reached_back = False
        self.settled: dict[str, Settled] = {}
        self.open: dict[str, list[Event]] = {}
        self.tries: dict[str, int] = {}  # attempts that gave no output, by place: of a read each of them was a call
        self.cases: dict[str, OpenCase] = {}
        self.fail_answer: Event | None = None
        self.let_stand: Event | None = None
        self.hold_row: Event | None = None
        self.cancel: Event | None = None
        self.events: dict[int, Event] = {}  # received and not taken by a wait yet, by their place in the log
        self.failing: Event | None = None  # the task failed, was cancelled, or is to be undone: its effects are compensated
        self.answered: list[tuple[Event, Event]] = []  # settled questions of the task itself: opened, settled

    @property
    def held(self) -> bool:
        """Whether the task's code is not run any more: it has failed, it was cancelled, or a person said so."""
        asked = self.fail_answer is not None or self.hold_row is not None
        return asked or self.failing is not None or self.cancel is not None

    @property
    def ending(self) -> bool:
        """Whether the task comes to its end without its code: its children end, and what it did is undone or stands."""
        return self.failing is not None or self.cancel is not None or self.let_stand is not None

    def covered(self, path: str) -> bool:
        """Whether a snapshot's state stands for this place, or for what is undone there."""
        return self.floor > 0 and int(path.lstrip(UNDO).partition(".")[0]) <= self.floor

    # ------------------------------------------------------------ folding rows

    def take(self, rows: Iterable[Event], digest: bytes) -> None:
        """Fold the next rows; `digest` is the hash of the last one."""
        for row in rows:
            self.take_row(row)
            self.seq = row.event_seq
        self.hash = digest

    def take_row(self, row: Event) -> None:
        """Fold one row; its place is noted by the caller."""
        path = row.path
        if row.kind == _INTENDED and path is not None and path not in self.open and path not in self.settled and not self.floor:
            self.open[path] = [row]  # the rules below say the same of it, in four times the time
            if row.step_seq is not None and row.step_seq > self.steps_seen:
                self.steps_seen = row.step_seq
            return
        if needs_keeping(row):
            self.keep(row)
        if path is not None:
            self.take_step(row, path)
        elif row.kind == Kind.TASK_CLAIMED:
            self.take_claim(row)

    def take_claim(self, row: Event) -> None:
        """A takeover concerns every open step."""
        for rows in self.open.values():
            rows.append(row)

    def keep(self, row: Event) -> None:
        """Keep what people said, and which cases are open."""
        if row.kind == Kind.CANCEL_REQUESTED:
            self.cancel = self.cancel or row
        elif row.kind == Kind.TASK_PARKED:
            self.failing = row if "failure" in row.details else self.failing
        elif row.kind == Kind.EVENT_RECEIVED:
            self.events[row.event_seq] = row
        elif row.kind == Kind.STEP_SETTLED:
            self.events.pop(row.details.get("event", 0), None)  # a wait has taken it
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

    def take_step(self, row: Event, path: str) -> None:
        """Sort one row into the open or the settled steps."""
        if row.step_seq is not None and row.step_seq > self.steps_seen:
            self.steps_seen = row.step_seq
        if path in self.settled:
            if row.kind == Kind.CASE_SETTLED and (row.output_ref is not None or row.error is not None):
                self.settled[path] = self.settled[path].given(row.output_ref, row.error)
            elif row.kind == Kind.RETRY_ALLOWED:  # reopened: its rows are needed whole again
                del self.settled[path]
                self.open[path] = self.rows_of(path, row.event_seq)
            elif row.status == StepStatus.COMPENSATED:  # what it had done stays what it had done
                self.settled[path] = self.settled[path]._replace(status=row.status)
            elif row.kind == Kind.STEP_SETTLED:
                self.settled[path] = outline_of(row, self.settled[path].input_hash)
            return
        if path not in self.open and self.covered(path):
            self.reached_back = self.reached_back or path[0] == UNDO or changes_replay(row.kind, row.output_ref, row.error)
            if not began_again(row):
                return
        if path not in self.open and row.kind not in _FIRST and self.forgets and not begins_with_case(row):
            return  # late news of a step that is settled and forgotten
        self.open.setdefault(path, []).append(row)
        if row.kind == Kind.ATTEMPT_ENDED:
            self.tries[path] = self.tries.get(path, 0) + 1
        if row.kind == Kind.STEP_SETTLED:
            rows = self.open.pop(path)
            self.settled[path] = outline_of(row, first_digest(rows))


def rows_of_step(rows: Iterable[Event], path: str, until: int) -> Iterator[Event]:
    """One step's rows up to a place, from its first one on, with the takeovers since."""
    begun = False
    for row in rows:
        if row.event_seq <= until and (row.path == path or (begun and row.kind == Kind.TASK_CLAIMED)):
            begun = True
            yield row


def began_again(row: Event) -> bool:
    """Whether this row begins something behind a snapshot, such as a compensation: kept whole, or it would be sent again."""
    return row.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED) or begins_with_case(row)


def begins_with_case(row: Event) -> bool:
    """Whether this is a question, or the case of a compensation that cannot even begin: the first row of its step."""
    if row.kind != Kind.CASE_OPENED:
        return False
    return row.input_hash is not None or row.details["kind"] == CaseKind.COMPENSATION


def outline_of(row: Event, digest: bytes | None) -> Settled:
    """A settled step in outline, from the row that settles it and the input's hash, which an earlier row may hold."""
    return Settled(row.step_name or "", digest or row.input_hash, row.status or "", row.output_ref, row.error)


def first_digest(rows: Iterable[Event]) -> bytes | None:
    """The hash of a step's input: that of the first row that has one."""
    return next((row.input_hash for row in rows if row.input_hash is not None), None)


def changes_replay(kind: str, output_ref: str | bytes | None, error: str | None) -> bool:
    """Whether a row about a settled step changes what replay gives task code at its place; evidence and cases do not."""
    if kind == Kind.CASE_SETTLED:
        return output_ref is not None or error is not None
    return kind not in (Kind.EVIDENCE_STORED, Kind.CASE_OPENED)
