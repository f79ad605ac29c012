"""Folding rows: any split gives the same record, each kind says what it says, and projections cover the closed sets."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.changes import CaseClosed, CaseOpened, Freeze, HeadChange, case_id, project
from doubtless.events import (
    SETTLED,
    CaseKind,
    Effect,
    Event,
    Instant,
    Kind,
    StepStatus,
    TaskStatus,
    boot_mark,
    draft,
    dump,
    row_hash,
    seal,
)
from doubtless.fold import GRAVITY, Attempt, Moves, StepRecord, fold_step, fold_steps

S = 1_000_000
T0 = 1_800_000_000 * S
TASK, PATH, NAME = "recon-1", "3", "pay"


class StepLog:
    """The rows of one step as its owner writes them, on a clock that only the test turns.

    `wall` and `boot` are turned together by `advance`, apart by `set_clock` and `reboot`.
    """

    def __init__(self, effect: str = "non_idem_write") -> None:
        self.effect = Effect(effect)
        self.rows: list[Event] = []
        self.wall, self.boot, self.boot_id = T0, 3600 * S, "first boot"
        self.epoch = 1

    # ------------------------------------------------------------ time

    @property
    def now(self) -> Instant:
        return Instant(self.wall, boot_mark(self.boot_id, self.boot))

    def advance(self, us: int) -> None:
        self.wall += us
        self.boot += us

    def set_clock(self, us: int) -> None:
        """Somebody sets the wall clock, forward or back; the boot-time clock does not notice."""
        self.wall += us

    def reboot(self, down_us: int = 60 * S, boot_id: str = "second boot") -> None:
        self.wall += down_us
        self.boot, self.boot_id = 10 * S, boot_id

    # ------------------------------------------------------------ rows

    def add(self, kind: Kind, *, path: str | None = PATH, **columns: Any) -> Event:
        common: dict[str, Any] = {"path": path, "step_seq": 3, "step_name": NAME} if path is not None else {}
        row = draft(TASK, kind, self.now, epoch=columns.pop("epoch", self.epoch), **common, **columns)
        last = self.rows[-1] if self.rows else None
        (sealed,) = seal([row], len(self.rows), None if last is None else row_hash(last))
        self.rows.append(sealed)
        return sealed

    @property
    def attempts(self) -> int:
        numbers = [
            row.attempt or 0 for row in self.rows if row.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED, Kind.ATTEMPT_ENDED)
        ]
        return max(numbers, default=0)

    def begin(self, *, next_key: bool = False, error: str | None = None) -> int:
        """The row before a call of a write; of the first one the intent. A read has none: only its number is taken."""
        number = self.attempts + 1
        if self.effect == Effect.READ:
            return number
        key = sha256(f"key {number}".encode()).digest()
        common: dict[str, Any] = {"attempt": number, "status": StepStatus.UNCERTAIN, "started_at": self.wall, "error": error}
        if number == 1:
            self.add(
                Kind.STEP_INTENDED, effect_class=self.effect, idempotency_key=key, input_hash=b"i" * 32, input_ref="inline:{}",
                data=b"p" * 32, **common,
            )  # fmt: skip
        else:
            self.add(Kind.ATTEMPT_STARTED, idempotency_key=key if next_key else None, **common)
        return number

    def end(
        self, outcome: str, number: int | None = None, *, code: str = "", detail: str = "", running: bool = False,
        retry_after_us: int | None = None, took: int = 0,
    ) -> None:  # fmt: skip
        """The row of an attempt's outcome; `took`: of a read, how long ago its call began."""
        error: dict[str, Any] = {"kind": outcome, "code": code, "detail": detail}
        if retry_after_us is not None:
            error["retry_after_us"] = retry_after_us
        read = self.effect == Effect.READ
        number = number or self.attempts + read
        first: dict[str, Any] = {}
        if read and number == 1:
            first = {"input_hash": b"i" * 32, "input_ref": "inline:{}", "effect_class": Effect.READ}
        self.add(
            Kind.ATTEMPT_ENDED, attempt=number, status=StepStatus.STARTED if read else StepStatus.UNCERTAIN, error=dump(error),
            data={"running": True} if running else None, started_at=self.wall - took if read else None, finished_at=self.wall,
            **first,
        )  # fmt: skip

    def attempt(self, outcome: str, *, took: int = S, next_key: bool = False, **more: Any) -> None:
        """One whole call without an output."""
        number = self.begin(next_key=next_key)
        self.advance(took)
        self.end(outcome, number, took=took, **more)

    def suspect(self) -> None:
        """What a restored backup makes of a write: it counts as sent with unknown outcome."""
        self.begin(error=dump({"kind": "unknown", "code": "suspect", "detail": "the log was restored"}))

    def look(self, answer: str, *, counts: bool = False, began: Instant | None = None, **data: Any) -> None:
        if counts:
            data["counts"] = True
        started = self.wall if began is None else began.wall
        self.add(
            Kind.LOOKED_BACK, attempt=self.attempts, started_at=started, finished_at=self.wall, data={"answer": answer, **data},
            status=StepStatus.UNCERTAIN,
        )  # fmt: skip

    def found(self) -> None:
        self.look("found")
        self.settle(StepStatus.DONE, output_ref='inline:{"id":1}')

    def handle(self, value: str = "sheet-1") -> None:
        self.add(Kind.HANDLE_RECORDED, attempt=self.attempts, data={"handle": value})

    def claim(self, *, lease_until: int | None = None) -> None:
        """Another owner takes the task over: the one before is dead; `lease_until`: as a lease said that had ended then."""
        self.epoch += 1
        data: dict[str, Any] = {"owner": f"owner {self.epoch}"}
        if lease_until is not None:
            data["lease_until"] = lease_until
        self.add(Kind.TASK_CLAIMED, path=None, status=TaskStatus.RUNNING, data=data)

    def open_case(self, kind: CaseKind = CaseKind.DOUBT) -> str:
        row = self.add(Kind.CASE_OPENED, status=StepStatus.NEEDS_HUMAN, data={"kind": kind, "why": "…"})
        return case_id(TASK, row.event_seq)

    def close_case(self, case: str, answer: str = "settled", *, by: str = "doubtless", **data: Any) -> None:
        columns = {name: data.pop(name) for name in ("output_ref", "error") if name in data}
        self.add(Kind.CASE_SETTLED, epoch=None, data={"case_id": case, "answer": answer, "by": by, **data}, **columns)

    def did_not_happen(self, case: str, then: str, *, even_now: bool = False) -> None:
        self.close_case(case, "did_not_happen", by="ada", then=then, even_now=even_now, wake=True)

    def allow(self) -> None:
        self.add(Kind.RETRY_ALLOWED, data={"why": "retry", "by": "ada"})

    def settle(self, status: StepStatus, *, kind: str | None = None, **columns: Any) -> None:
        error = None if kind is None else dump({"kind": kind, "code": "c", "detail": "d"})
        self.add(Kind.STEP_SETTLED, status=status, attempt=self.attempts or 1, error=error, **columns)

    def late_result(self, number: int, output_ref: str = 'inline:{"late":1}') -> None:
        self.add(Kind.EVIDENCE_STORED, attempt=number, output_ref=output_ref, data={"what": "late_result"}, epoch=1)

    def late_failure(self, number: int) -> None:
        """The thread of an attempt that was given up has ended without an output."""
        self.add(Kind.EVIDENCE_STORED, attempt=number, data={"what": "late_error"}, error=dump({"kind": "unknown"}), epoch=1)

    # ------------------------------------------------------------ the fold

    def record(self) -> StepRecord | None:
        return fold_step(self.rows, PATH, self.epoch)

    def folded(self) -> StepRecord:
        record = self.record()
        assert record is not None
        return record


def state(record: StepRecord | None) -> Any:
    """Everything that a record holds, comparable."""
    if record is None:
        return None
    held = {name: getattr(record, name) for name in StepRecord.__slots__}
    held["attempts"] = [{name: getattr(a, name) for name in Attempt.__slots__} for a in record.attempts]
    return held


# ---------------------------------------------------------------- properties

MOVES = ("begin", "next_key", "end", "running", "look", "absent_counts", "no_effect_counts", "handle", "claim", "open", "answer",
         "close", "allow", "late", "late_failure", "settle", "wait", "set_back", "set_forward", "other")  # fmt: skip


def play(moves: Iterable[tuple[str, str]]) -> list[Event]:
    """Rows as an owner could write them, whatever comes: the first is an intent."""
    log = StepLog()
    log.begin()
    open_cases: list[str] = []
    for move, outcome in moves:
        log.advance(S)
        match move:
            case "begin" | "next_key":
                log.begin(next_key=move == "next_key")
            case "end" | "running":
                log.end(outcome, running=move == "running")
            case "look":
                log.look({"unknown": "absent", "rejected": "unclear", "not_sent": "pending"}[outcome])
            case "absent_counts":
                log.look("absent", counts=True)
            case "no_effect_counts":
                log.look("no_effect", counts=True)
            case "handle":
                log.handle()
            case "claim":
                log.claim()
            case "open":
                open_cases.append(log.open_case())
            case "answer" | "close" if open_cases:
                case = open_cases.pop()
                log.did_not_happen(case, "retry") if move == "answer" else log.close_case(case)
            case "allow":
                log.allow()
            case "late":
                log.late_result(log.attempts)
            case "late_failure":
                log.late_failure(log.attempts)
            case "settle":
                log.settle(
                    {"unknown": StepStatus.DONE, "rejected": StepStatus.NOT_APPLIED, "not_sent": StepStatus.FAILED}[outcome]
                )
            case "set_back":
                log.set_clock(-3600 * S)
            case "set_forward":
                log.set_clock(3600 * S)
            case "other":  # a row of another step of the same task
                log.add(Kind.STEP_SETTLED, path="4", status=StepStatus.DONE, attempt=1)
            case _:
                pass
    return log.rows


histories = st.lists(st.tuples(st.sampled_from(MOVES), st.sampled_from(GRAVITY)), max_size=25).map(play)


@settings(deadline=None, max_examples=150)
@given(histories)
def test_folding_in_one_go_is_folding_row_by_row(rows: list[Event]) -> None:
    stepwise: StepRecord | None = None
    for number, row in enumerate(rows, 1):
        if stepwise is None and row.path == PATH:
            stepwise = StepRecord(PATH, row.step_name or "", row.step_seq or 0, 7)
        if stepwise is not None and (row.path == PATH or row.kind == Kind.TASK_CLAIMED):
            stepwise.apply(row)
        assert state(stepwise) == state(fold_step(rows[:number], PATH, 7))


@settings(deadline=None, max_examples=100)
@given(histories)
def test_the_fold_of_a_task_holds_what_the_fold_of_each_step_holds(rows: list[Event]) -> None:
    task = fold_steps(rows, 7)
    assert list(task) == list(dict.fromkeys(row.path for row in rows if row.path is not None))
    for path, record in task.items():
        assert state(record) == state(fold_step(rows, path, 7))


@settings(deadline=None, max_examples=100)
@given(histories)
def test_the_worst_outcome_that_counts_is_the_gravest(rows: list[Event]) -> None:
    record = fold_step(rows, PATH, max(row.epoch or 0 for row in rows))
    assert record is not None
    outcomes = {a.outcome for a in record.attempts if a.generation == record.generation and not a.cleared}
    worst = [outcome for outcome in ("unknown", "rejected", "not_sent") if outcome in outcomes]
    assert record.gravest == (worst[0] if worst else None)
    assert record.settled == (record.status in SETTLED)
    assert record.last_seq == max(row.event_seq for row in rows if row.path == PATH or row.kind == Kind.TASK_CLAIMED)


@settings(deadline=None, max_examples=100)
@given(histories)
def test_rows_of_other_steps_change_nothing_in_a_step(rows: list[Event]) -> None:
    own = [row for row in rows if row.path == PATH or row.kind == Kind.TASK_CLAIMED]
    assert state(fold_step(own, PATH, 1)) == state(fold_step(rows, PATH, 1))


def test_nothing_logged_is_no_record() -> None:
    log = StepLog()
    log.claim()
    assert log.record() is None
    log.add(Kind.STEP_SETTLED, path="4", status=StepStatus.DONE, attempt=1)
    assert log.record() is None


def test_a_record_carries_no_state_from_one_fold_to_the_next() -> None:
    log = StepLog()
    log.attempt("unknown")
    first = state(log.record())
    log.look("absent", counts=True)
    log.record()
    assert state(fold_step(log.rows[:2], PATH, 1)) == first


# ---------------------------------------------------------------- what each kind says


def test_an_intent_is_an_attempt_and_the_step_is_uncertain() -> None:
    log = StepLog("idem_write")
    log.begin()
    record = log.folded()
    assert record.status == StepStatus.UNCERTAIN
    assert record.effect == Effect.IDEM_WRITE
    assert [a.number for a in record.attempts] == [1]
    assert record.keys == [sha256(b"key 1").digest()]
    assert record.policy_digest == b"p" * 32
    assert (record.input_ref, record.input_hash) == ("inline:{}", b"i" * 32)
    assert record.settle_from == log.now
    assert record.in_flight is not None
    assert not record.in_doubt


def test_a_read_has_one_row_at_its_outcome_with_when_it_began() -> None:
    log = StepLog("read")
    began = log.now
    log.attempt("unknown", took=2 * S, code="timeout")
    (attempt,) = log.folded().attempts
    assert (attempt.started, attempt.ended, attempt.call_ended) == (began, log.now, log.now)
    assert (attempt.outcome, attempt.code) == ("unknown", "timeout")
    assert log.folded().status == StepStatus.STARTED
    assert log.folded().input_hash == b"i" * 32
    assert not log.folded().in_doubt


def test_an_attempt_whose_thread_still_runs_can_still_send() -> None:
    log = StepLog()
    log.attempt("unknown", running=True)
    (attempt,) = log.folded().attempts
    assert attempt.ended == log.now
    assert attempt.call_ended is None
    log.advance(5 * S)
    log.late_failure(1)
    assert log.folded().attempts[0].call_ended == log.now
    assert log.folded().evidence is None


def test_a_takeover_makes_what_a_dead_owner_had_in_flight_unknown_since_then() -> None:
    log = StepLog()
    log.begin()
    log.advance(100 * S)
    log.claim()
    (attempt,) = log.folded().attempts
    assert (attempt.outcome, attempt.code, attempt.call_ended) == ("unknown", "owner_died", log.now)
    assert log.folded().in_doubt


def test_a_takeover_ends_the_threads_of_a_dead_owner_and_changes_no_outcome() -> None:
    log = StepLog()
    log.attempt("unknown", running=True, code="timeout")
    log.advance(100 * S)
    log.claim()
    (attempt,) = log.folded().attempts
    assert (attempt.code, attempt.call_ended) == ("timeout", log.now)


def test_where_a_lease_said_that_the_owner_lived_its_last_send_was_before_the_lease_s_end_and_the_timeout() -> None:
    log = StepLog()
    log.attempt("unknown", running=True, code="timeout")
    ended = log.now
    log.advance(100 * S)
    log.claim(lease_until=ended.wall + 40 * S)
    (attempt,) = log.folded().attempts
    assert attempt.leased
    assert attempt.call_ended == Instant(ended.wall + 40 * S, ended.boot + 40 * S)
    assert log.folded().quiet_for(log.now, 30 * S) == 30 * S
    assert log.folded().quiet_for(log.now, 90 * S) == -30 * S


def test_a_claim_does_not_touch_what_its_own_owner_began() -> None:
    log = StepLog()
    log.claim()
    log.begin()
    log.add(Kind.TASK_CLAIMED, path=None, status=TaskStatus.RUNNING, data={"owner": "owner 2"})
    assert log.folded().attempts[0].outcome is None


def test_a_new_key_is_the_next_generation_and_only_its_attempts_count() -> None:
    log = StepLog("idem_write")
    log.attempt("rejected")
    log.begin(next_key=True)
    log.end("not_sent")
    record = log.folded()
    assert record.generation == 1
    assert record.keys == [sha256(b"key 1").digest(), sha256(b"key 2").digest()]
    assert [a.number for a in record.current] == [2]
    assert record.gravest == "not_sent"


def test_an_attempt_without_a_new_key_stays_in_its_generation() -> None:
    log = StepLog("idem_write")
    log.attempt("not_sent")
    log.attempt("unknown")
    assert [a.generation for a in log.folded().attempts] == [0, 0]
    assert len(log.folded().keys) == 1


def test_suspect_rows_count_as_unknown_from_the_start() -> None:
    log = StepLog("idem_write")
    log.suspect()
    record = log.folded()
    assert record.suspect
    assert record.in_doubt
    assert record.attempts[0].code == "suspect"
    assert record.attempts[0].call_ended == log.now


def test_a_handle_is_kept_in_order() -> None:
    log = StepLog()
    log.begin()
    log.handle("a")
    log.handle("b")
    assert log.folded().handles == ["a", "b"]


def test_a_look_back_holds_when_it_started_and_ended_and_what_it_said() -> None:
    log = StepLog()
    log.attempt("unknown")
    began = log.now
    log.advance(3 * S)
    log.look("pending", began=began, why="queued", look_again_us=9 * S)
    (look,) = log.folded().looks
    assert (look.started, look.finished) == (began, log.now)
    assert (look.answer, look.why, look.attempt, look.epoch, look.look_again_us) == ("pending", "queued", 1, 1, 9 * S)


def test_only_the_look_backs_of_the_newest_attempt_are_recent() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.look("absent")
    log.look("absent", counts=True)
    log.attempt("unknown")
    assert log.folded().recent_looks() == []
    log.look("unclear")
    assert [look.answer for look in log.folded().recent_looks()] == ["unclear"]


def test_a_counted_absence_clears_what_counted_and_nothing_later() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.look("absent", counts=True)
    assert [a.cleared for a in log.folded().attempts] == [True]
    assert log.folded().gravest is None
    assert not log.folded().in_doubt
    log.attempt("unknown")
    assert [a.cleared for a in log.folded().attempts] == [True, False]
    assert log.folded().in_doubt


def test_an_absence_that_does_not_count_clears_nothing() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.look("absent")
    assert log.folded().in_doubt


def test_a_final_no_effect_makes_the_unknown_rejected_and_leaves_what_was_not_sent() -> None:
    log = StepLog("idem_write")
    log.attempt("not_sent")
    log.attempt("unknown")
    log.look("no_effect", counts=True, why="declined")
    outcomes = [(a.outcome, a.code, a.detail) for a in log.folded().attempts]
    assert outcomes == [("not_sent", "", ""), ("rejected", "no_effect", "declined")]


def test_a_permission_clears_grants_one_attempt_and_reopens() -> None:
    log = StepLog()
    log.attempt("not_sent")
    log.settle(StepStatus.NOT_APPLIED, kind="exhausted")
    assert log.folded().settled
    log.advance(S)
    log.allow()
    record = log.folded()
    assert record.status == StepStatus.UNCERTAIN
    assert record.granted == 1
    assert record.error is None
    assert record.gravest is None
    assert record.settle_from == log.now


def test_a_permission_for_a_read_leaves_it_started() -> None:
    log = StepLog("read")
    log.attempt("unknown")
    log.settle(StepStatus.FAILED, kind="exhausted")
    log.allow()
    assert log.folded().status == StepStatus.STARTED


def test_settled_is_settled_with_its_output_or_its_failure() -> None:
    log = StepLog()
    log.begin()
    log.settle(StepStatus.DONE, output_ref='inline:{"id":1}')
    record = log.folded()
    assert (record.status, record.output_ref, record.settled) == (StepStatus.DONE, 'inline:{"id":1}', True)
    assert record.attempts[0].outcome == "done"
    assert record.in_flight is None
    other = StepLog()
    other.attempt("rejected")
    other.settle(StepStatus.NOT_APPLIED, kind="rejected")
    assert other.folded().error == dump({"kind": "rejected", "code": "c", "detail": "d"})


def test_the_first_late_success_is_the_evidence() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.attempt("unknown")
    log.late_result(2, "inline:2")
    log.late_result(1, "inline:1")
    assert log.folded().evidence == (2, "inline:2")


def test_a_case_about_a_doubt_needs_a_human_until_it_is_settled() -> None:
    log = StepLog()
    log.attempt("unknown")
    case = log.open_case()
    assert log.folded().status == StepStatus.NEEDS_HUMAN
    assert log.folded().doubt_case == case
    log.close_case(case)
    assert log.folded().status == StepStatus.UNCERTAIN
    assert log.folded().doubt_case is None


def test_a_step_needs_a_human_while_its_doubt_is_open_whatever_other_case_is_closed() -> None:
    log = StepLog()
    log.attempt("not_sent")
    log.settle(StepStatus.NOT_APPLIED, kind="exhausted")
    contradiction = log.open_case(CaseKind.CONTRADICTION)
    log.allow()
    log.attempt("unknown")
    log.open_case(CaseKind.DOUBT)
    log.close_case(contradiction, "noted", by="ada")
    assert log.folded().status == StepStatus.NEEDS_HUMAN


def test_a_case_of_another_kind_leaves_a_settled_step_as_it_is() -> None:
    log = StepLog()
    log.begin()
    log.settle(StepStatus.DONE, output_ref="inline:1")
    case = log.open_case(CaseKind.CONTRADICTION)
    assert log.folded().status == StepStatus.DONE
    assert log.folded().cases == {case: CaseKind.CONTRADICTION}
    assert log.folded().doubt_case is None


def test_did_not_happen_waits_in_the_record_and_a_new_case_makes_it_void() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.did_not_happen(log.open_case(), "retry", even_now=True)
    answer = log.folded().answer
    assert answer is not None
    assert (answer.then, answer.even_now, answer.by, answer.seq) == ("retry", True, "ada", log.rows[-1].event_seq)
    log.open_case()
    assert log.folded().answer is None


@pytest.mark.parametrize("what", ["allow", "settle"])
def test_an_answer_is_spent_when_it_has_acted(what: str) -> None:
    log = StepLog()
    log.attempt("unknown")
    log.did_not_happen(log.open_case(), "retry")
    log.allow() if what == "allow" else log.settle(StepStatus.NOT_APPLIED, kind="not_applied")
    assert log.folded().answer is None


def test_an_output_that_a_person_gives_is_the_output() -> None:
    log = StepLog()
    log.begin()
    log.settle(StepStatus.DONE, kind="output")
    log.close_case(log.open_case(CaseKind.OUTPUT), "answer", by="ada", output_ref="inline:7")
    assert (log.folded().output_ref, log.folded().error) == ("inline:7", None)


# ---------------------------------------------------------------- projections


def row(kind: Kind, **columns: Any) -> Event:
    return seal([draft(TASK, kind, Instant(T0, 0), **columns)], 4, b"h" * 32)[0]


WAKES = HeadChange(TaskStatus.READY, None, None, False, (TaskStatus.WAITING, TaskStatus.NEEDS_HUMAN))

PROJECTED: dict[Kind, tuple[Event, tuple[Any, ...]]] = {
    Kind.TASK_ACCEPTED: (row(Kind.TASK_ACCEPTED, status="ready", step_name="reconcile"), ()),
    Kind.TASK_CLAIMED: (row(Kind.TASK_CLAIMED, status="running"), (HeadChange("running", None, None, False),)),
    Kind.TASK_PARKED: (
        row(Kind.TASK_PARKED, status="waiting", data={"wake_at": 9, "why": "looks again"}),
        (HeadChange("waiting", 9, "looks again", True),),
    ),
    Kind.TASK_ENDED: (row(Kind.TASK_ENDED, status="failed", data={"why": "no"}), (HeadChange("failed", None, "no", True),)),
    Kind.STEP_INTENDED: (row(Kind.STEP_INTENDED, path=PATH, status="uncertain"), ()),
    Kind.ATTEMPT_STARTED: (row(Kind.ATTEMPT_STARTED, path=PATH, attempt=2), ()),
    Kind.ATTEMPT_ENDED: (row(Kind.ATTEMPT_ENDED, path=PATH, attempt=2), ()),
    Kind.HANDLE_RECORDED: (row(Kind.HANDLE_RECORDED, path=PATH, data={"handle": 1}), ()),
    Kind.LOOKED_BACK: (row(Kind.LOOKED_BACK, path=PATH, data={"answer": "absent"}), ()),
    Kind.RETRY_ALLOWED: (row(Kind.RETRY_ALLOWED, path=PATH), ()),
    Kind.STEP_SETTLED: (row(Kind.STEP_SETTLED, path=PATH, status="done"), ()),
    Kind.EVIDENCE_STORED: (row(Kind.EVIDENCE_STORED, path=PATH, data={"what": "late_result"}), ()),
    Kind.CASE_OPENED: (row(Kind.CASE_OPENED, path=PATH, data={"kind": "doubt"}), (CaseOpened(f"{TASK}:5", PATH, "doubt"),)),
    Kind.CASE_SETTLED: (
        row(Kind.CASE_SETTLED, path=PATH, data={"case_id": f"{TASK}:2", "by": "ada", "wake": True}),
        (CaseClosed(f"{TASK}:2", "ada"), WAKES),
    ),
    Kind.CANCEL_REQUESTED: (row(Kind.CANCEL_REQUESTED), (WAKES,)),
    Kind.EVENT_RECEIVED: (row(Kind.EVENT_RECEIVED, data={"name": "paid"}), (WAKES,)),
    Kind.CALLS_ACKNOWLEDGED: (row(Kind.CALLS_ACKNOWLEDGED), ()),
    Kind.STORE_FROZEN: (row(Kind.STORE_FROZEN, step_name="pay", data={"why": "month end"}), (Freeze("pay", "month end"),)),
    Kind.STORE_THAWED: (row(Kind.STORE_THAWED), (Freeze("*", None),)),
    Kind.STORE_RECOVERED: (row(Kind.STORE_RECOVERED, data={"suspect": True}), ()),
}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_says_what_it_changes_in_the_projections(kind: Kind) -> None:
    event, changes = PROJECTED[kind]
    assert project(event) == changes


def test_an_answer_that_only_notes_wakes_nobody() -> None:
    noted = row(Kind.CASE_SETTLED, path=PATH, data={"case_id": f"{TASK}:2", "by": "ada", "wake": False})
    assert project(noted) == (CaseClosed(f"{TASK}:2", "ada"),)


@pytest.mark.parametrize("status", TaskStatus)
def test_the_head_takes_each_status_that_a_row_says(status: TaskStatus) -> None:
    for kind in (Kind.TASK_PARKED, Kind.TASK_ENDED):
        (change,) = project(row(kind, status=status, data={"why": "because"}))
        assert isinstance(change, HeadChange)
        assert (change.status, change.release) == (status, True)


OF_THE_TASK = {
    Kind.TASK_ACCEPTED, Kind.TASK_PARKED, Kind.TASK_ENDED, Kind.CANCEL_REQUESTED, Kind.EVENT_RECEIVED, Kind.CALLS_ACKNOWLEDGED,
    Kind.STORE_FROZEN, Kind.STORE_THAWED, Kind.STORE_RECOVERED,
}  # fmt: skip
"""The kinds that say nothing of a step."""


@pytest.mark.parametrize("kind", sorted(set(Kind) - OF_THE_TASK))
def test_every_kind_that_a_step_can_have_folds_into_its_record(kind: Kind) -> None:
    log = StepLog()
    log.begin()
    before = state(log.record())
    match kind:
        case Kind.STEP_INTENDED:
            before = None
        case Kind.ATTEMPT_STARTED:
            log.begin()
        case Kind.ATTEMPT_ENDED:
            log.end("unknown")
        case Kind.HANDLE_RECORDED:
            log.handle()
        case Kind.LOOKED_BACK:
            log.look("absent")
        case Kind.RETRY_ALLOWED:
            log.allow()
        case Kind.STEP_SETTLED:
            log.settle(StepStatus.DONE)
        case Kind.EVIDENCE_STORED:
            log.late_result(1)
        case Kind.CASE_OPENED:
            log.open_case()
        case Kind.CASE_SETTLED:
            log.did_not_happen(log.open_case(), "fail")
        case _:
            log.claim()
    assert log.rows[-1].kind == kind
    assert log.folded().last_seq == log.rows[-1].event_seq
    assert state(log.record()) != before


def test_moves_that_no_step_may_make_are_found_and_a_second_intent_too() -> None:
    log = StepLog()
    log.attempt("unknown")
    moves = Moves()
    assert [moves.add(row) for row in log.rows] == [[] for _ in log.rows]
    again = next(row for row in log.rows if row.kind == Kind.STEP_INTENDED)
    assert moves.add(again) == [(again.path, StepStatus.UNCERTAIN, "a second intent")]
    done = again._replace(kind=Kind.STEP_SETTLED, status=StepStatus.DONE, attempt=1, data=None)
    assert moves.add(done) == []
    assert moves.add(done._replace(status=StepStatus.FAILED)) == [(again.path, StepStatus.DONE, StepStatus.FAILED)]
