"""Folding rows: the events of a step -> its record, which is all that the protocol decides by.

Pure: no clock, no I/O. What a row changes beside the log says `changes`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from .changes import case_id
from .events import ASKING, SETTLED, STEP_MOVES, UNDO, Effect, Event, Instant, Kind, StepStatus, elapsed_least

OutcomeKind = Literal["done", "not_sent", "rejected", "unknown"]
GRAVITY: tuple[OutcomeKind, ...] = ("unknown", "rejected", "not_sent")
"""The gravest first: of the attempts that count, the worst outcome decides."""


NO_EVIDENCE = "no_evidence"
"""The code of an attempt of a compensation that returned, and showed nothing: None, a bool, something empty."""

NOT_UNDOABLE = "not_undoable"
"""The code of an attempt of a compensation that said `NotUndoable`."""


class Attempt:
    """One call of a step's function, as the log tells it.

    `outcome`: None while its owner still has the call. `call_ended` is the last possible send: the end of the
    call, its thread included; for a dead owner the takeover that found it dead; None while it still runs.
    """

    __slots__ = (
        "call_ended", "cleared", "code", "detail", "ended", "epoch", "generation", "leased", "number", "outcome",
        "retry_after_us", "started",
    )  # fmt: skip

    def __init__(self, number: int, generation: int, started: Instant, epoch: int | None) -> None:
        self.number = number
        self.generation = generation
        self.started = started
        self.epoch = epoch
        self.outcome: OutcomeKind | None = None
        self.code = ""
        self.detail: Any = ""
        self.retry_after_us: int | None = None
        self.ended: Instant | None = None
        self.call_ended: Instant | None = None
        self.cleared = False
        self.leased = False  # `call_ended` is where its dead owner's lease ended: the call may have gone on for its timeout

    def end(self, outcome: OutcomeKind, at: Instant, *, code: str = "", detail: Any = "", running: bool = False) -> None:
        """The attempt has its outcome. `running`: its thread still has the call, a send is still possible."""
        self.outcome, self.ended, self.code, self.detail = outcome, at, code, detail
        self.call_ended = None if running else at


class Look(NamedTuple):
    """One look-back: what the query answered, when it started and ended, and under which claim."""

    seq: int
    answer: str
    why: str
    started: Instant
    finished: Instant
    epoch: int | None
    attempt: int
    look_again_us: int | None


class Answer(NamedTuple):
    """A person's ``did_not_happen`` that has not acted yet (section 5): what then, and whether at once."""

    seq: int
    then: str
    even_now: bool
    by: str


class StepRecord:
    """The fold of all rows of one step."""

    __slots__ = (
        "absent", "answer", "attempts", "cases", "effect", "epoch", "error", "evidence", "generation", "granted",
        "granted_until", "handles", "input_hash", "input_ref", "keys", "last_seq", "looks", "name", "once", "once_window_us",
        "origin", "output_ref", "path", "policy_digest", "settle_from", "status", "step_seq", "suspect",
    )  # fmt: skip

    def __init__(self, path: str, name: str, step_seq: int, epoch: int | None) -> None:
        self.path = path
        self.name = name
        self.step_seq = step_seq
        self.epoch = epoch  # of the claim that decides now
        self.effect = Effect.READ
        self.status: str = StepStatus.STARTED
        self.policy_digest: bytes | None = None
        self.input_ref: str | bytes | None = None
        self.input_hash: bytes | None = None
        self.keys: list[bytes] = []
        self.generation = 0
        self.attempts: list[Attempt] = []
        self.granted = 0  # attempts that a person granted beyond the budget
        self.granted_until = 0  # so many attempts are allowed whatever the budget is now
        self.absent = False  # what cleared the attempts last was a counted absence
        self.handles: list[Any] = []
        self.looks: list[Look] = []
        self.cases: dict[str, str] = {}  # open ones: id -> kind
        self.answer: Answer | None = None
        self.evidence: tuple[int, str | bytes | None] | None = None  # a late success: attempt, output
        self.output_ref: str | bytes | None = None
        self.error: str | None = None
        self.settle_from: Instant | None = None  # the intent, or the last permission to retry
        self.suspect = False
        self.once: str | None = None  # the business key that its intent has taken
        self.once_window_us: int | None = None
        self.origin: tuple[str, str] | None = None  # the task and path whose effect its output is
        self.last_seq = 0

    @property
    def settled(self) -> bool:
        return self.status in SETTLED

    @property
    def undoes(self) -> bool:
        """Whether it is a compensation."""
        return self.path[0] == UNDO

    @property
    def shown_nothing(self) -> bool:
        """Of a compensation: whether its last call returned, and what it returned shows nothing."""
        return bool(self.attempts) and self.attempts[-1].code == NO_EVIDENCE

    @property
    def current(self) -> list[Attempt]:
        """The attempts that count: under the current key, not cleared."""
        return [a for a in self.attempts if a.generation == self.generation and not a.cleared]

    @property
    def gravest(self) -> OutcomeKind | None:
        """The worst outcome that counts (unknown > rejected > not_sent); None when all are cleared."""
        outcomes = {a.outcome or ("unknown" if self._left(a) else None) for a in self.current}
        return next((o for o in GRAVITY if o in outcomes), None)

    def _left(self, attempt: Attempt) -> bool:
        """Whether another claim than the one that decides now has begun this attempt."""
        return self.epoch is not None and attempt.epoch != self.epoch

    @property
    def in_flight(self) -> Attempt | None:
        """An attempt that its owner, this claim, still calls."""
        return next((a for a in self.attempts if a.outcome is None and not self._left(a)), None)

    @property
    def in_doubt(self) -> bool:
        """A write of which an attempt's outcome is unknown (its own owner's running call is in flight instead)."""
        return self.effect != Effect.READ and not self.settled and self.gravest == "unknown"

    def quiet_for(self, at: Instant, timeout_us: int) -> int | None:
        """Microseconds that have surely passed, at that time, since the last possible send of the current key.

        `timeout_us`: how long a call may have gone on beyond the lease of an owner that died. Negative: it may still send.

        None while a call may still run, also one that a person overrode. The least over all attempts: where a clock was
        set, the later send is not the one with the later time.
        """
        ends = [a.call_ended for a in self.attempts if a.generation == self.generation]
        more = [timeout_us if a.leased else 0 for a in self.attempts if a.generation == self.generation]
        pairs = zip(ends, more, strict=False)
        return None if None in ends or not ends else min(elapsed_least(e, at) - m for e, m in pairs if e is not None)

    @property
    def doubt_case(self) -> str | None:
        """The id of the open case about this step's doubt; of a compensation: about whether it undid anything."""
        return next((case for case, kind in self.cases.items() if kind in ASKING), None)

    def recent_looks(self) -> list[Look]:
        """The look-backs since the last attempt began: each new attempt starts the counts at zero."""
        number = self.attempts[-1].number if self.attempts else 0
        return [look for look in self.looks if look.attempt == number]

    def apply(self, row: Event) -> None:
        """Fold one more row of this step, or a TaskClaimed row of its task, into the record."""
        self.last_seq = row.event_seq
        _APPLY[row.kind](self, row)

    # One small method per kind; the table below is what `apply` uses.

    def _intended(self, row: Event) -> None:
        self.effect = Effect(row.effect_class or Effect.NON_IDEM_WRITE)
        self.status = StepStatus.UNCERTAIN
        self.input_ref, self.input_hash = row.input_ref, row.input_hash
        if isinstance(row.data, bytes):
            self.policy_digest = row.data
        elif row.data is not None:
            data = row.details
            self.policy_digest, self.once = bytes.fromhex(data["policy"]), data.get("once")
            self.once_window_us = data.get("window_us")
        self.settle_from = row.at
        self.answer = None  # of a compensation that could not begin when it was given
        self._started(row)

    def _started(self, row: Event) -> None:
        if row.idempotency_key is not None:
            if self.keys:
                self.generation += 1
            self.keys.append(row.idempotency_key)
        if row.effect_class == Effect.READ:  # a child task: what it is called with stands in its first row
            self.input_ref, self.input_hash = row.input_ref, row.input_hash
        attempt = Attempt(row.attempt or 1, self.generation, row.at, row.epoch)
        if row.error is not None:  # suspect mode: it counts as unknown from the start
            attempt.end("unknown", row.at, code=json.loads(row.error).get("code", ""))
            self.suspect = True
            self.answer = None  # it may have acted after the backup was made
        self.attempts.append(attempt)

    def _ended(self, row: Event) -> None:
        error = json.loads(row.error or "{}")
        number = row.attempt or 1
        attempt = next((a for a in self.attempts if a.number == number), None)
        if attempt is None:  # of a read: its one row is the outcome
            began = Instant(row.started_at or row.at.wall, row.boot_at - (row.at.wall - (row.started_at or row.at.wall)))
            attempt = Attempt(number, 0, began, row.epoch)
            self.attempts.append(attempt)
            self.input_ref, self.input_hash = row.input_ref or self.input_ref, row.input_hash or self.input_hash
        running = bool(row.details.get("running"))
        attempt.end(error["kind"], row.at, code=error.get("code", ""), detail=error.get("detail", ""), running=running)
        attempt.retry_after_us = error.get("retry_after_us")

    def _handle(self, row: Event) -> None:
        self.handles.append(row.details["handle"])

    def _looked(self, row: Event) -> None:
        data = row.details
        began = Instant(row.started_at or row.at.wall, row.boot_at - (row.at.wall - (row.started_at or row.at.wall)))
        look = Look(
            row.event_seq, data["answer"], data.get("why", ""), began, row.at, row.epoch, row.attempt or 0,
            data.get("look_again_us"),
        )  # fmt: skip
        self.looks.append(look)
        if data.get("counts"):
            for attempt in self.current:
                if look.answer == "no_effect" and attempt.outcome == "unknown":
                    attempt.outcome, attempt.code, attempt.detail = "rejected", "no_effect", look.why
                elif look.answer == "absent":
                    attempt.cleared = self.absent = True

    def _allowed(self, row: Event) -> None:
        self.granted += 1
        self.granted_until = len(self.attempts) + 1
        self.absent = False
        self.settle_from = row.at
        self.status = StepStatus.STARTED if self.effect == Effect.READ else StepStatus.UNCERTAIN
        self.error = None
        self.answer = None
        for attempt in self.current:
            attempt.cleared = True

    def _settled(self, row: Event) -> None:
        self.status = row.status or StepStatus.DONE
        if self.status == StepStatus.COMPENSATED:
            return  # what it had done stays what it had done
        self.output_ref, self.error = row.output_ref, row.error
        self.answer = None
        if row.input_hash is not None:
            self.input_ref, self.input_hash = row.input_ref, row.input_hash
        if row.effect_class is not None:
            self.effect = Effect(row.effect_class)
        if row.data is not None and "from" in (data := row.details):
            self.origin = (data["from"], data["path"])
        attempt = next((a for a in self.attempts if a.number == row.attempt), None)
        if attempt is not None and self.status == StepStatus.DONE and attempt.outcome is None:
            attempt.end("done", row.at)

    def _evidence(self, row: Event) -> None:
        attempt = next((a for a in self.attempts if a.number == row.attempt), None)
        if attempt is not None and attempt.call_ended is None:
            attempt.call_ended = row.at
        if row.details["what"] == "late_result" and self.evidence is None:
            self.evidence = (row.attempt or 1, row.output_ref)

    def _case_opened(self, row: Event) -> None:
        kind = row.details["kind"]
        self.cases[case_id(row.task_id, row.event_seq)] = kind
        if row.input_hash is not None:  # a question: the first row of its step
            self.input_ref, self.input_hash = row.input_ref, row.input_hash
        if kind in ASKING and not self.settled:
            self.effect = Effect(row.effect_class or self.effect)
            self.status = StepStatus.NEEDS_HUMAN
            self.answer = None  # what the new case shows makes the answer before it void

    def _case_settled(self, row: Event) -> None:
        data = row.details
        self.cases.pop(data["case_id"], None)
        if self.status == StepStatus.NEEDS_HUMAN and self.doubt_case is None:
            self.status = StepStatus.UNCERTAIN
        if data.get("answer") == "did_not_happen":
            self.answer = Answer(row.event_seq, data["then"], bool(data.get("even_now")), data["by"])
        if row.output_ref is not None and data.get("answer") == "answer":
            self.output_ref, self.error = row.output_ref, None
        elif row.error is not None and data.get("answer") == "deny":
            self.error = row.error

    def _claimed(self, row: Event) -> None:
        """A takeover: whatever an older owner had without outcome is unknown, and its last send was before now.

        Where a lease had said that the owner lives: before the lease's end and the step's timeout.
        """
        until = row.details.get("lease_until") if row.data is not None else None
        for attempt in self.attempts:
            if attempt.epoch != row.epoch and (attempt.outcome is None or attempt.call_ended is None):
                if attempt.outcome is None:
                    attempt.end("unknown", row.at, code="owner_died")
                attempt.call_ended = row.at
                if until is not None:
                    attempt.call_ended, attempt.leased = Instant(until, row.boot_at - (row.at.wall - until)), True


_APPLY: dict[str, Callable[[StepRecord, Event], None]] = {
    Kind.STEP_INTENDED: StepRecord._intended,
    Kind.ATTEMPT_STARTED: StepRecord._started,
    Kind.ATTEMPT_ENDED: StepRecord._ended,
    Kind.HANDLE_RECORDED: StepRecord._handle,
    Kind.LOOKED_BACK: StepRecord._looked,
    Kind.RETRY_ALLOWED: StepRecord._allowed,
    Kind.STEP_SETTLED: StepRecord._settled,
    Kind.EVIDENCE_STORED: StepRecord._evidence,
    Kind.CASE_OPENED: StepRecord._case_opened,
    Kind.CASE_SETTLED: StepRecord._case_settled,
    Kind.TASK_CLAIMED: StepRecord._claimed,
}


def fold_step(rows: Iterable[Event], path: str, epoch: int | None) -> StepRecord | None:
    """Fold the rows of the step at `path` (and its task's TaskClaimed rows); None when there is none of it."""
    record: StepRecord | None = None
    for row in rows:
        if row.path == path:
            if record is None:
                record = StepRecord(path, row.step_name or "", row.step_seq or 0, epoch)
            record.apply(row)
        elif row.kind == Kind.TASK_CLAIMED and record is not None:
            record.apply(row)
    return record


def fold_steps(rows: Iterable[Event], epoch: int | None = None) -> dict[str, StepRecord]:
    """Fold all steps of a task at once, by path, in the order of first arrival."""
    records: dict[str, StepRecord] = {}
    for row in rows:
        if row.kind == Kind.TASK_CLAIMED:
            for known in records.values():
                known.apply(row)
        elif row.path is not None:
            record = records.get(row.path)
            if record is None:
                record = records[row.path] = StepRecord(row.path, row.step_name or "", row.step_seq or 0, epoch)
            record.apply(row)
    return records


class Moves:
    """Watches a task's rows in order: did each step's status move as `STEP_MOVES` allows (I3)?"""

    def __init__(self) -> None:
        self._records: dict[str, StepRecord] = {}

    def add(self, row: Event) -> list[tuple[str, str | None, str]]:
        """The moves that this row makes and may not: path, from, to."""
        touched = list(self._records) if row.kind == Kind.TASK_CLAIMED else [row.path] if row.path is not None else []
        illegal: list[tuple[str, str | None, str]] = []
        intended = row.kind == Kind.STEP_INTENDED and row.path in self._records and self._records[row.path].keys
        if intended and row.path is not None:  # one place, one intent: its key never changes (I5)
            return [(row.path, self._records[row.path].status, "a second intent")]
        for path in touched:
            record, before = self._records.get(path), None
            if record is None:
                record = self._records[path] = StepRecord(path, row.step_name or "", row.step_seq or 0, None)
            else:
                before = StepStatus(record.status)
            record.apply(row)
            after = StepStatus(record.status)
            if after != before and after not in STEP_MOVES[before]:
                illegal.append((path, before, after))
        return illegal
