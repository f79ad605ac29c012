"""`decide`: every cell of the table and every rule of the protocol, on records folded from real rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import S, StepLog

from doubtless.effects import Deadline, Policy
from doubtless.events import CaseKind, Effect, Instant, StepStatus
from doubtless.fold import Look
from doubtless.protocol import Action, AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, backoff, counts, decide

HOUR = 3600 * S
WRITES = ("idem_write", "non_idem_write")
CLASSES = ("read", *WRITES)


def policy(effect: str = "non_idem_write", **options: Any) -> Policy:
    """A policy with the defaults of the step table."""
    defaults: dict[str, Any] = {
        "timeout_us": 30 * S, "attempts": 3, "backoff_us": S, "backoff_max_us": 60 * S, "retry_rejected": False,
        "key_window_us": None, "absent_after_us": None, "on_absent": "fail", "query_attempts": 5, "settle_within_us": HOUR,
        "has_query": False, "independent": False,
    }  # fmt: skip
    return Policy(effect=Effect(effect), **{**defaults, **options})


PROOF = policy(has_query=True, absent_after_us=120 * S)
RETRY = PROOF._replace(on_absent="retry")


def now(log: StepLog, step: Policy) -> Action:
    """What is decided at this moment."""
    return decide(step, log.record(), log.now)


def waits(action: Action, log: StepLog) -> int:
    """How long a WaitUntil waits from now on."""
    assert isinstance(action, WaitUntil), action
    assert action.at > log.wall
    return action.at - log.wall


def after_waiting(log: StepLog, step: Policy) -> Action:
    """What is decided when the wait that is decided now is over; right before it, it still waits."""
    left = waits(now(log, step), log)
    log.advance(left - 1)
    assert isinstance(now(log, step), WaitUntil)
    log.advance(1)
    return now(log, step)


def look(log: StepLog, step: Policy, answer: str, *, took: int = 0, **data: Any) -> bool:
    """Look back and record it as the executor does; whether it counted."""
    began = log.now
    log.advance(took)
    record = log.folded()
    seen = Look(0, answer, "", began, log.now, log.epoch, record.attempts[-1].number, data.get("look_again_us"))
    counted = counts(step, record, seen)
    log.look(answer, counts=counted, began=began, **data)
    return counted


def proven_absent(log: StepLog, step: Policy) -> None:
    """Prove an absence as decided: look, wait, look until it counts."""
    for _ in range(4):
        action = now(log, step)
        if isinstance(action, WaitUntil):
            action = after_waiting(log, step)
        assert isinstance(action, LookBack)
        if look(log, step, "absent"):
            return
    raise AssertionError("no absence counted")


def jitter(base: int) -> tuple[int, int]:
    return base * 75 // 100, base * 125 // 100


# ---------------------------------------------------------------- the table, cell by cell


@pytest.mark.parametrize("effect", CLASSES)
def test_nothing_logged_is_called(effect: str) -> None:
    assert decide(policy(effect), None, StepLog().now) == Call(1)


def test_a_compensation_begins_before_its_deadline_and_not_at_it() -> None:
    log = StepLog()
    step = policy()._replace(undo_by=Deadline(log.now, HOUR))
    log.advance(HOUR - 1)
    assert decide(step, None, log.now) == Call(1)
    log.advance(1)
    assert isinstance(decide(step, None, log.now), AskHuman)


@pytest.mark.parametrize("effect", CLASSES)
@pytest.mark.parametrize("status", [StepStatus.DONE, StepStatus.COMPENSATED])
def test_done_is_reused_with_its_stored_output(effect: str, status: StepStatus) -> None:
    log = StepLog(effect)
    log.begin()
    log.settle(StepStatus.DONE, output_ref='inline:{"id":1}')
    if status != StepStatus.DONE:
        log.settle(status)
    assert now(log, policy(effect)) == Reuse('inline:{"id":1}')


@pytest.mark.parametrize(
    ("status", "kind"),
    [(StepStatus.NOT_APPLIED, "rejected"), (StepStatus.NOT_APPLIED, "exhausted"), (StepStatus.FAILED, "abandoned")],
)
def test_what_failed_for_good_fails_the_same_way_again(status: StepStatus, kind: str) -> None:
    log = StepLog()
    log.attempt("rejected")
    log.settle(status, kind=kind)
    assert now(log, policy()) == Fail(kind, "c", "d", settled=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("effect", CLASSES)
def test_not_sent_is_called_again_after_the_backoff_with_the_same_key(effect: str) -> None:
    log = StepLog(effect)
    log.attempt("not_sent")
    assert after_waiting(log, policy(effect)) == Call(2)


@pytest.mark.parametrize("effect", CLASSES)
def test_not_sent_is_given_up_when_the_budget_is_used_up(effect: str) -> None:
    log = StepLog(effect)
    for _ in range(3):
        log.attempt("not_sent", code="DNS", detail="no such host")
    assert now(log, policy(effect, has_query=effect != "read")) == Fail("exhausted", "DNS", "no such host")


@pytest.mark.parametrize("effect", WRITES)
def test_what_is_proven_absent_is_called_again_at_once_with_the_same_key(effect: str) -> None:
    step = policy(effect, has_query=True, absent_after_us=120 * S, on_absent="retry", key_window_us=30 * S)
    log = StepLog(effect)
    log.attempt("unknown")
    proven_absent(log, step)
    assert now(log, step) == Call(2)


@pytest.mark.parametrize("effect", WRITES)
def test_what_is_proven_absent_is_not_applied_where_the_step_says_fail(effect: str) -> None:
    step = policy(effect, has_query=True, absent_after_us=120 * S, key_window_us=30 * S)
    log = StepLog(effect)
    log.attempt("unknown")
    proven_absent(log, step)
    action = now(log, step)
    assert isinstance(action, Fail)
    assert (action.kind, action.settled) == ("not_applied", False)


@pytest.mark.parametrize("effect", WRITES)
def test_what_is_proven_absent_is_a_case_when_the_budget_is_used_up(effect: str) -> None:
    step = policy(effect, has_query=True, absent_after_us=120 * S, on_absent="retry", attempts=1)
    log = StepLog(effect)
    log.attempt("unknown")
    proven_absent(log, step)
    assert isinstance(now(log, step), AskHuman)


@pytest.mark.parametrize("effect", CLASSES)
def test_rejected_fails(effect: str) -> None:
    log = StepLog(effect)
    log.attempt("rejected", code="422", detail="no such order")
    assert now(log, policy(effect)) == Fail("rejected", "422", "no such order")


@pytest.mark.parametrize("effect", CLASSES)
def test_rejected_is_called_again_where_the_step_says_so_a_write_under_the_next_generation_of_its_key(effect: str) -> None:
    log = StepLog(effect)
    log.attempt("rejected")
    assert after_waiting(log, policy(effect, retry_rejected=True)) == Call(2, next_generation=effect != "read")


@pytest.mark.parametrize("effect", CLASSES)
def test_rejected_is_given_up_as_exhausted_when_the_budget_is_used_up(effect: str) -> None:
    step = policy(effect, retry_rejected=True, attempts=2, has_query=effect != "read")
    log = StepLog(effect)
    log.attempt("rejected", code="409")
    log.attempt("rejected", code="410", next_key=True)
    action = now(log, step)
    assert isinstance(action, Fail)
    assert (action.kind, action.code) == ("exhausted", "410")


def test_a_read_with_unknown_outcome_is_called_again_after_the_backoff() -> None:
    log = StepLog("read")
    log.attempt("unknown")
    assert after_waiting(log, policy("read")) == Call(2)


def test_a_read_fails_as_exhausted_when_the_budget_is_used_up() -> None:
    log = StepLog("read")
    for _ in range(3):
        log.attempt("unknown", code="timeout")
    assert now(log, policy("read")) == Fail("exhausted", "timeout", "")


@pytest.mark.parametrize("has_query", [False, True])
def test_an_idem_write_in_doubt_is_sent_again_with_the_same_key(has_query: bool) -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    assert after_waiting(log, policy("idem_write", has_query=has_query)) == Call(2)


def test_a_non_idem_write_in_doubt_is_looked_back_at_at_once() -> None:
    log = StepLog()
    log.attempt("unknown")
    assert isinstance(now(log, policy(has_query=True)), LookBack)


def test_a_non_idem_write_in_doubt_without_a_query_is_a_case() -> None:
    log = StepLog()
    log.attempt("unknown")
    assert isinstance(now(log, policy()), AskHuman)


@pytest.mark.parametrize("has_query", [False, True])
def test_an_idem_write_in_doubt_with_its_budget_used_up_asks_and_is_not_sent(has_query: bool) -> None:
    log = StepLog("idem_write")
    for _ in range(3):
        log.attempt("unknown")
    assert isinstance(now(log, policy("idem_write", has_query=has_query)), LookBack if has_query else AskHuman)


@pytest.mark.parametrize("has_query", [False, True])
def test_a_non_idem_write_in_doubt_with_its_budget_used_up_asks_and_is_not_sent(has_query: bool) -> None:
    log = StepLog()
    log.attempt("not_sent")
    log.attempt("not_sent")
    log.attempt("unknown")
    assert isinstance(now(log, policy(has_query=has_query)), LookBack if has_query else AskHuman)


# ---------------------------------------------------------------- in flight, dead owners


@pytest.mark.parametrize("effect", WRITES)
def test_a_call_that_its_owner_still_has_is_waited_for(effect: str) -> None:
    log = StepLog(effect)
    log.begin()
    for _ in range(3):
        assert isinstance(now(log, policy(effect, has_query=True)), WaitUntil)
        log.advance(3600 * S)


def test_a_call_in_flight_is_waited_for_whatever_came_before_it() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.begin()
    assert isinstance(now(log, policy("idem_write", has_query=True)), WaitUntil)


def test_a_call_of_a_dead_owner_is_in_doubt() -> None:
    log = StepLog()
    log.begin()
    log.claim()
    assert isinstance(now(log, policy(has_query=True)), LookBack)
    assert isinstance(now(log, policy()), AskHuman)


def test_a_call_that_an_earlier_claim_left_without_an_outcome_is_in_doubt_though_no_row_says_that_it_died() -> None:
    log = StepLog()
    log.begin()
    log.epoch += 1  # the store refused the outcome, the claim was given back, and another one began: no takeover
    log.advance(24 * HOUR)
    assert not isinstance(now(log, policy(has_query=True, settle_within_us=48 * HOUR)), WaitUntil)


# ---------------------------------------------------------------- which attempt counts


@pytest.mark.parametrize(
    ("outcomes", "gravest"),
    [
        (["not_sent", "unknown"], "unknown"),
        (["unknown", "not_sent"], "unknown"),
        (["unknown", "rejected"], "unknown"),
        (["rejected", "unknown"], "unknown"),
        (["not_sent", "rejected"], "rejected"),
        (["not_sent", "not_sent"], "not_sent"),
    ],
)
def test_of_the_attempts_under_a_key_the_gravest_outcome_decides(outcomes: list[str], gravest: str) -> None:
    log = StepLog()
    for outcome in outcomes:
        log.attempt(outcome)
    action = now(log, policy(has_query=True))
    match gravest:
        case "unknown":
            assert isinstance(action, LookBack)
        case "rejected":
            assert isinstance(action, Fail)
        case _:
            assert isinstance(action, WaitUntil)


def test_an_older_doubt_is_not_forgotten_because_the_last_call_was_not_sent() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.attempt("not_sent")
    log.attempt("not_sent")
    assert isinstance(now(log, policy("idem_write")), AskHuman)


def test_a_counted_absence_takes_earlier_doubts_away_and_later_ones_count() -> None:
    log = StepLog()
    log.attempt("unknown")
    proven_absent(log, RETRY)
    log.attempt("not_sent")
    assert after_waiting(log, RETRY) == Call(3)
    log.attempt("unknown")
    assert isinstance(now(log, RETRY), LookBack)


def test_attempts_under_an_older_generation_do_not_count() -> None:
    step = policy(retry_rejected=True)
    log = StepLog()
    log.attempt("rejected")
    log.attempt("not_sent", next_key=True)
    assert after_waiting(log, step) == Call(3)


# ---------------------------------------------------------------- backoff


def test_the_backoff_doubles_up_to_its_limit_within_its_jitter() -> None:
    log = StepLog("idem_write")
    log.begin()
    step = policy("idem_write")
    for failures in range(1, 40):
        low, high = jitter(min(S * 2 ** (failures - 1), 60 * S))
        assert low <= backoff(step, log.folded(), failures) <= high


def test_the_wait_between_calls_is_the_backoff_of_as_many_failures() -> None:
    log = StepLog("read")
    step = policy("read", attempts=8)
    for failures in range(1, 8):
        log.attempt("unknown")
        low, high = jitter(min(S * 2 ** (failures - 1), 60 * S))
        left = waits(now(log, step), log)
        assert low <= left <= high
        log.advance(left)
        assert now(log, step) == Call(failures + 1)


def test_the_jitter_is_the_same_after_a_crash() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    step = policy("idem_write")
    first = now(log, step)
    assert now(log, step) == first
    log.rows = list(log.rows)
    log.advance(S // 4)
    assert now(log, step) == first  # counted from the log, not from when it was asked


def test_the_jitter_differs_from_step_to_step_and_from_failure_to_failure() -> None:
    log = StepLog("idem_write")
    log.begin()
    record = log.folded()
    step = policy("idem_write", backoff_max_us=S)
    seen = set()
    for key in range(20):
        record.keys = [bytes([key]) * 32]
        seen |= {backoff(step, record, failures) for failures in (1, 2, 3)}
    assert len(seen) > 15
    assert all(S * 75 // 100 <= wait <= S * 125 // 100 for wait in seen)


def test_without_a_backoff_the_next_call_is_at_once() -> None:
    log = StepLog("read")
    log.attempt("unknown")
    assert now(log, policy("read", backoff_us=0)) == Call(2)


@pytest.mark.parametrize("outcome", ["not_sent", "rejected", "unknown"])
def test_a_wait_that_the_other_side_asked_for_is_kept(outcome: str) -> None:
    log = StepLog("idem_write")
    log.attempt(outcome, retry_after_us=90 * S)
    step = policy("idem_write", retry_rejected=True)
    assert waits(now(log, step), log) == 90 * S
    assert isinstance(after_waiting(log, step), Call)


def test_a_wait_shorter_than_the_backoff_does_not_shorten_it() -> None:
    log = StepLog("read")
    log.attempt("not_sent", retry_after_us=1)
    assert waits(now(log, policy("read")), log) >= S * 75 // 100


def test_the_backoff_after_a_dead_owner_runs_from_the_takeover() -> None:
    log = StepLog("idem_write")
    log.begin()
    log.advance(HOUR // 2)
    log.claim()
    assert waits(now(log, policy("idem_write")), log) >= S * 75 // 100


# ---------------------------------------------------------------- one budget per intent (rule 5)


@pytest.mark.parametrize("effect", CLASSES)
@pytest.mark.parametrize("used", [1, 2, 3])
def test_the_budget_is_counted_from_the_log_and_a_smaller_one_than_was_used_is_used_up_too(effect: str, used: int) -> None:
    log = StepLog(effect)
    for _ in range(3):
        log.attempt("not_sent")
    action = now(log, policy(effect, attempts=used))
    assert isinstance(action, Fail)
    assert action.kind == "exhausted"


def test_the_budget_counts_over_all_generations_of_the_key() -> None:
    step = policy("idem_write", retry_rejected=True)
    log = StepLog("idem_write")
    log.attempt("rejected")
    log.attempt("not_sent", next_key=True)
    log.attempt("not_sent")
    action = now(log, step)
    assert isinstance(action, Fail)
    assert action.kind == "exhausted"


def test_a_takeover_gives_no_attempt_back() -> None:
    log = StepLog("idem_write")
    for _ in range(3):
        log.begin()
        log.claim()
    assert isinstance(now(log, policy("idem_write")), AskHuman)


def test_cleared_attempts_stay_in_the_budget() -> None:
    step = RETRY._replace(attempts=2)
    log = StepLog()
    log.attempt("unknown")
    proven_absent(log, step)
    log.attempt("unknown")
    proven_absent(log, step)
    assert isinstance(now(log, step), AskHuman)


# ---------------------------------------------------------------- the key window (rule 11)


@pytest.mark.parametrize(
    ("window", "timeout", "margin"),
    [
        (24 * HOUR, 30 * S, 24 * HOUR // 100),
        (HOUR, 30 * S, 36 * S),
        (120 * S, 30 * S, 5 * S),
        (500 * S, S, 5 * S),
        (501 * S, S, 5_010_000),
    ],
)
def test_a_resend_has_to_end_inside_the_key_window_with_its_margin(window: int, timeout: int, margin: int) -> None:
    step = policy("idem_write", key_window_us=window, timeout_us=timeout, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.attempt("unknown", took=S)
    log.advance(window - timeout - margin - S - 1)
    assert now(log, step) == Call(2)
    log.advance(1)
    assert isinstance(now(log, step), AskHuman)
    assert isinstance(now(log, step._replace(has_query=True)), LookBack)


def test_the_backoff_still_to_come_counts_into_the_key_window() -> None:
    step = policy("idem_write", key_window_us=120 * S)  # a call has to start less than 85 s after the first one
    for wait, expected in ((84 * S - 1, WaitUntil), (84 * S, AskHuman)):
        log = StepLog("idem_write")
        log.attempt("unknown", took=S, retry_after_us=wait)
        assert isinstance(now(log, step), expected)


def test_a_key_window_shorter_than_a_call_is_never_sent_again() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown", took=0)
    assert isinstance(now(log, policy("idem_write", key_window_us=20 * S, backoff_us=0)), AskHuman)


def test_no_key_window_is_for_ever() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.open_case()
    log.advance(100 * 365 * 24 * HOUR)
    assert now(log, policy("idem_write")) == Call(2)


def test_the_key_window_runs_from_the_first_send_of_that_key_not_from_the_last() -> None:
    step = policy("idem_write", key_window_us=HOUR, attempts=9)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.advance(HOUR // 2)
    log.attempt("unknown")
    log.advance(HOUR // 2 - 60 * S)
    assert isinstance(now(log, step), AskHuman)


def test_a_new_generation_has_a_window_of_its_own() -> None:
    step = policy("idem_write", key_window_us=HOUR, retry_rejected=True, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.attempt("rejected")
    log.advance(2 * HOUR)
    log.attempt("unknown", next_key=True)
    log.advance(10 * S)
    assert now(log, step) == Call(3)


def test_what_never_left_or_never_landed_needs_no_key_window() -> None:
    step = policy("idem_write", key_window_us=60 * S, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.attempt("not_sent")
    log.advance(HOUR)
    assert now(log, step) == Call(2)
    step = RETRY._replace(effect=Effect.IDEM_WRITE, key_window_us=60 * S, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.advance(HOUR)
    proven_absent(log, step)
    assert now(log, step) == Call(2)


def test_an_intent_whose_class_was_tightened_is_not_sent_again() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    assert isinstance(now(log, policy("non_idem_write", has_query=True)), LookBack)


# ---------------------------------------------------------------- look-back: absent


@pytest.mark.parametrize("on_absent", ["fail", "retry"])
def test_an_absence_proves_nothing_where_the_step_does_not_say_when(on_absent: str) -> None:
    step = policy(has_query=True, on_absent=on_absent)
    log = StepLog()
    log.attempt("unknown")
    log.advance(HOUR // 2)
    assert not look(log, step, "absent")
    assert isinstance(now(log, step), AskHuman)
    log.advance(HOUR // 4)
    assert not look(log, step, "absent")  # a look that a later claim makes: two of them prove nothing either
    assert isinstance(now(log, step), AskHuman)


def test_two_absents_after_the_time_and_apart_are_proof() -> None:
    log = StepLog()
    log.attempt("unknown")
    assert isinstance(now(log, PROOF), LookBack)  # the first look is at once: found may settle
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 120 * S
    assert isinstance(after_waiting(log, PROOF), LookBack)
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 30 * S
    assert isinstance(after_waiting(log, PROOF), LookBack)
    assert look(log, PROOF, "absent")
    assert isinstance(now(log, PROOF), Fail)


@pytest.mark.parametrize(("after", "apart"), [(0, S), (S, S), (4 * S, S), (8 * S, 2 * S), (120 * S, 30 * S)])
def test_two_absents_are_a_quarter_of_absent_after_and_at_least_a_second_apart(after: int, apart: int) -> None:
    step = PROOF._replace(absent_after_us=after)
    for distance, counted in ((apart - 1, False), (apart, True)):
        log = StepLog()
        log.attempt("unknown")
        log.advance(after)
        assert not look(log, step, "absent")
        log.advance(distance)
        assert look(log, step, "absent") is counted


def test_absents_that_come_too_close_count_when_the_run_of_them_is_long_enough() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.advance(120 * S)
    assert not look(log, PROOF, "absent")
    log.advance(15 * S)
    assert not look(log, PROOF, "absent")
    log.advance(15 * S)
    assert look(log, PROOF, "absent")


def test_one_absent_before_the_time_and_one_after_do_not_count() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.advance(119 * S)
    assert not look(log, PROOF, "absent")
    log.advance(60 * S)
    assert not look(log, PROOF, "absent")
    assert isinstance(now(log, PROOF), WaitUntil)


def test_a_look_that_started_before_the_time_and_ended_after_it_is_no_proof() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.advance(119 * S)
    assert not look(log, PROOF, "absent", took=20 * S)
    log.advance(60 * S)
    assert not look(log, PROOF, "absent")


@pytest.mark.parametrize("between", ["unclear", "pending", "several", "no_effect"])
def test_another_answer_between_two_absents_breaks_the_run(between: str) -> None:
    step = PROOF._replace(timeout_us=HOUR)  # so that no_effect is not final yet
    log = StepLog()
    log.attempt("unknown")
    log.advance(120 * S)
    assert not look(log, step, "absent")
    log.advance(30 * S)
    log.look(between)
    log.advance(30 * S)
    assert not look(log, step, "absent")
    log.advance(30 * S)
    assert look(log, step, "absent")


def test_an_absence_counts_from_the_takeover_of_a_dead_owner_never_from_the_attempts_start() -> None:
    log = StepLog()
    log.begin()
    log.advance(HOUR // 2)
    log.claim()
    assert not look(log, PROOF, "absent")
    log.advance(60 * S)
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 60 * S


def test_an_absence_counts_from_the_end_of_a_dead_owner_s_lease_and_the_step_s_timeout() -> None:
    step = PROOF._replace(settle_within_us=48 * HOUR)
    log = StepLog()
    log.begin()
    log.advance(HOUR)
    log.claim(lease_until=log.now.wall - 20 * S)  # taken over 20 s after its end: 10 s before the timeout is over
    assert not look(log, step, "absent")
    assert waits(now(log, step), log) == 10 * S + 120 * S
    log.advance(130 * S - 1)
    assert not look(log, step, "absent")
    log.advance(1)
    assert not look(log, step, "absent")
    log.advance(30 * S)
    assert look(log, step, "absent")


def test_an_answer_acts_when_a_dead_owner_s_lease_and_the_timeout_are_over() -> None:
    step = policy()
    log = StepLog()
    log.begin()
    log.claim(lease_until=log.now.wall)
    log.did_not_happen(log.open_case(), "fail")
    assert waits(now(log, step), log) == 30 * S + 30 * S  # the timeout of a send at the lease's end, and what it may take to land


def test_an_absence_counts_from_the_end_of_the_call() -> None:
    log = StepLog()
    log.attempt("unknown", took=20 * S)
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 120 * S


def test_no_absence_counts_while_the_thread_of_the_call_may_still_send() -> None:
    step = PROOF._replace(settle_within_us=48 * HOUR)
    log = StepLog()
    log.attempt("unknown", running=True)
    for _ in range(4):
        log.advance(HOUR)
        assert not look(log, step, "absent")
        assert isinstance(now(log, step), WaitUntil)
    log.late_failure(1)
    assert not look(log, step, "absent")
    assert waits(now(log, step), log) == 120 * S
    proven_absent(log, step)
    assert isinstance(now(log, step), Fail)


def test_absents_from_before_a_takeover_do_not_count_after_it() -> None:
    log = StepLog()
    log.attempt("unknown", running=True)
    log.advance(HOUR // 4)
    assert not look(log, PROOF, "absent")
    log.advance(60 * S)
    log.claim()
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 120 * S


def test_absents_do_not_use_up_the_query_attempts() -> None:
    step = PROOF._replace(query_attempts=2)
    log = StepLog()
    log.attempt("unknown")
    for _ in range(6):
        assert not look(log, step, "absent")
        assert isinstance(now(log, step), WaitUntil)
    look(log, step, "unclear")
    assert not isinstance(now(log, step), AskHuman)
    look(log, step, "unclear")
    assert isinstance(now(log, step), AskHuman)


def test_a_new_attempt_starts_the_count_of_absents_at_zero() -> None:
    step = RETRY._replace(effect=Effect.IDEM_WRITE, attempts=2)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.advance(120 * S)
    assert not look(log, step, "absent")
    log.attempt("unknown")
    log.advance(120 * S)
    assert isinstance(now(log, step), LookBack)
    assert not look(log, step, "absent")
    log.advance(30 * S)
    assert look(log, step, "absent")


def test_a_proof_takes_the_last_send_of_all_attempts_that_count() -> None:
    log = StepLog("idem_write")
    step = PROOF._replace(effect=Effect.IDEM_WRITE, attempts=2)
    log.attempt("unknown", running=True)
    log.attempt("unknown")
    assert not look(log, step, "absent")
    log.advance(300 * S)
    assert not look(log, step, "absent")
    log.late_failure(1)  # the first call ends only now
    assert not look(log, step, "absent")
    assert waits(now(log, step), log) == 120 * S


def test_a_call_that_a_person_overrode_can_still_land_and_no_absence_counts_before_it_has_ended() -> None:
    # I2: even_now is that person's risk for the attempt that it allowed, not for the one after it.
    step = RETRY._replace(attempts=9, settle_within_us=48 * HOUR)
    log = StepLog()
    log.attempt("unknown", running=True)
    log.did_not_happen(log.open_case(), "retry", even_now=True)
    log.allow()
    log.attempt("unknown")
    log.advance(120 * S)
    look(log, step, "absent")
    log.advance(30 * S)
    look(log, step, "absent")
    assert not isinstance(now(log, step), Call)


# ---------------------------------------------------------------- look-back: the other answers


def test_found_settles_the_step() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.found()
    assert now(log, PROOF) == Reuse('inline:{"id":1}')


def test_once_a_handle_is_recorded_an_absence_is_unclear() -> None:
    step = PROOF._replace(query_attempts=3)
    log = StepLog()
    log.begin()
    log.handle()
    log.end("unknown")
    for _ in range(2):
        log.advance(HOUR // 4)
        assert not look(log, step, "absent")
        assert isinstance(now(log, step), WaitUntil)
    log.advance(60 * S)
    assert not look(log, step, "absent")
    assert isinstance(now(log, step), AskHuman)


def test_without_absent_after_too_an_absence_with_a_handle_is_looked_at_again() -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.begin()
    log.handle()
    log.end("unknown")
    look(log, step, "absent")
    assert isinstance(after_waiting(log, step), LookBack)


def test_unclear_is_asked_again_with_backoff_until_the_query_attempts_are_used_up() -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.attempt("unknown")
    for failures in range(1, 5):
        look(log, step, "unclear")
        low, high = jitter(S * 2 ** (failures - 1))
        assert low <= waits(now(log, step), log) <= high
        assert isinstance(after_waiting(log, step), LookBack)
    look(log, step, "unclear")
    assert isinstance(now(log, step), AskHuman)


def test_a_new_attempt_starts_the_count_of_unclear_answers_at_zero() -> None:
    step = policy("idem_write", has_query=True, query_attempts=2, attempts=2)
    log = StepLog("idem_write")
    log.attempt("unknown")
    look(log, step, "unclear")
    look(log, step, "unclear")
    log.attempt("unknown")
    look(log, step, "unclear")
    assert isinstance(now(log, step), WaitUntil)


def test_query_attempts_are_counted_over_takeovers() -> None:
    step = policy(has_query=True, query_attempts=2)
    log = StepLog()
    log.attempt("unknown")
    look(log, step, "unclear")
    log.claim()
    look(log, step, "unclear")
    assert isinstance(now(log, step), AskHuman)


def test_several_is_a_case() -> None:
    log = StepLog()
    log.attempt("unknown")
    look(log, PROOF, "several")
    assert isinstance(now(log, PROOF), AskHuman)


def test_pending_is_looked_at_again_when_the_other_side_says() -> None:
    log = StepLog()
    log.attempt("unknown")
    look(log, PROOF, "pending", look_again_us=77 * S)
    assert waits(now(log, PROOF), log) == 77 * S
    assert isinstance(after_waiting(log, PROOF), LookBack)


def test_pending_without_a_time_is_looked_at_again_with_backoff_and_never_runs_out() -> None:
    step = policy(has_query=True, query_attempts=2, settle_within_us=48 * HOUR)
    log = StepLog()
    log.attempt("unknown")
    for failures in range(1, 30):
        look(log, step, "pending")
        low, high = jitter(min(S * 2 ** (failures - 1), 60 * S))
        assert low <= waits(now(log, step), log) <= high
        assert isinstance(after_waiting(log, step), LookBack)


@pytest.mark.parametrize("absent_after", [None, 120 * S])
def test_no_effect_is_as_rejected_once_no_call_can_land_any_more(absent_after: int | None) -> None:
    step = policy(has_query=True, absent_after_us=absent_after)
    quiet = 30 * S if absent_after is None else absent_after
    log = StepLog()
    log.attempt("unknown")
    assert not look(log, step, "no_effect", why="declined")
    assert waits(now(log, step), log) == quiet
    assert isinstance(after_waiting(log, step), LookBack)
    assert look(log, step, "no_effect", why="declined")
    assert now(log, step) == Fail("rejected", "no_effect", "declined")


def test_no_effect_that_started_before_the_quiet_time_does_not_count() -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.attempt("unknown")
    log.advance(29 * S)
    assert not look(log, step, "no_effect", took=10 * S)


def test_no_effect_does_not_count_while_the_call_may_still_send() -> None:
    step = policy(has_query=True, settle_within_us=48 * HOUR)
    log = StepLog()
    log.attempt("unknown", running=True)
    log.advance(HOUR)
    assert not look(log, step, "no_effect")
    assert isinstance(after_waiting(log, step), LookBack)
    log.late_failure(1)
    assert not look(log, step, "no_effect")
    assert waits(now(log, step), log) == 30 * S


def test_a_final_no_effect_moves_on_to_the_next_key_where_the_step_says_so() -> None:
    step = policy(has_query=True, retry_rejected=True)
    log = StepLog()
    log.attempt("unknown")
    log.advance(30 * S)
    assert look(log, step, "no_effect")
    assert now(log, step) == Call(2, next_generation=True)


# ---------------------------------------------------------------- settle_within


DOING: dict[str, Any] = {
    "pending": (policy(has_query=True), lambda log, step: look(log, step, "pending", look_again_us=10 * HOUR)),
    "absent": (PROOF._replace(absent_after_us=10 * HOUR), lambda log, step: look(log, step, "absent")),
    "no_effect": (PROOF._replace(absent_after_us=10 * HOUR), lambda log, step: look(log, step, "no_effect")),
    "unclear": (
        policy(has_query=True, backoff_us=10 * HOUR, backoff_max_us=10 * HOUR),
        lambda log, step: look(log, step, "unclear"),
    ),
    "resend": (policy("idem_write", backoff_us=10 * HOUR, backoff_max_us=10 * HOUR), lambda log, step: None),
}


@pytest.mark.parametrize("doing", DOING)
def test_settle_within_after_the_intent_a_case_is_opened_whatever_else_is_going_on(doing: str) -> None:
    step, before = DOING[doing]
    log = StepLog(step.effect)
    log.attempt("unknown", took=S)
    before(log, step)
    assert waits(now(log, step), log) == HOUR - S  # no wait goes beyond it
    assert isinstance(after_waiting(log, step), AskHuman)
    log.open_case()
    assert waits(now(log, step), log) > HOUR  # with the case open, the machine goes on as before


def test_settle_within_holds_for_what_was_not_sent_too() -> None:
    step = policy()
    log = StepLog()
    log.attempt("not_sent", retry_after_us=10 * HOUR)
    assert isinstance(after_waiting(log, step), AskHuman)


@pytest.mark.parametrize("answer", [None, "pending"])
def test_settle_within_comes_before_the_next_look_or_call(answer: str | None) -> None:
    for effect, step in (("non_idem_write", policy(has_query=True)), ("idem_write", policy("idem_write"))):
        log = StepLog(effect)
        log.attempt("unknown", took=S)
        if answer is not None:
            look(log, step, answer)
        log.advance(HOUR - S - 1)
        assert isinstance(now(log, step), LookBack if effect == "non_idem_write" else Call)
        log.advance(1)
        assert isinstance(now(log, step), AskHuman)
        log.open_case()
        assert isinstance(now(log, step), LookBack if effect == "non_idem_write" else Call)


def test_settle_within_gives_no_second_case_and_holds_no_failure_back() -> None:
    log = StepLog()
    log.attempt("rejected")
    log.advance(2 * HOUR)
    assert isinstance(now(log, policy()), Fail)
    log = StepLog()
    log.attempt("unknown")
    log.open_case()
    log.advance(2 * HOUR)
    assert isinstance(now(log, policy(has_query=True)), LookBack)


def test_settle_within_begins_anew_with_a_permission_to_retry() -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.attempt("unknown")
    log.did_not_happen(log.open_case(), "retry", even_now=True)
    log.advance(2 * HOUR)
    log.allow()
    log.attempt("unknown", took=S)
    assert isinstance(now(log, step), LookBack)
    log.advance(HOUR - S)
    assert isinstance(now(log, step), AskHuman)


def test_settle_within_does_not_concern_reads() -> None:
    log = StepLog("read")
    log.attempt("unknown")
    log.advance(10 * HOUR)
    assert now(log, policy("read")) == Call(2)


# ---------------------------------------------------------------- open cases and later claims


@pytest.mark.parametrize("answer", ["absent", "several"])
def test_each_later_claim_makes_one_fresh_look_before_it_asks_again(answer: str) -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.attempt("unknown")
    look(log, step, answer)
    log.open_case()
    assert isinstance(now(log, step), AskHuman)
    for _ in range(3):
        log.epoch += 1  # a later claim: no row, nothing has changed
        assert isinstance(now(log, step), LookBack)
        look(log, step, answer)
        assert isinstance(now(log, step), AskHuman)


def test_a_fresh_look_after_the_query_attempts_are_used_up_may_still_settle() -> None:
    step = policy(has_query=True, query_attempts=1)
    log = StepLog()
    log.attempt("unknown")
    look(log, step, "unclear")
    log.open_case()
    log.epoch += 1
    assert isinstance(now(log, step), LookBack)
    log.found()
    assert isinstance(now(log, step), Reuse)


def test_without_a_query_later_claims_ask_and_do_nothing_else() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.open_case()
    log.epoch += 1
    assert isinstance(now(log, policy()), AskHuman)


# ---------------------------------------------------------------- a person says: it did not happen


def answered(then: str, *, even_now: bool = False, running: bool = False, effect: str = "non_idem_write") -> StepLog:
    log = StepLog(effect)
    log.attempt("unknown", running=running)
    log.did_not_happen(log.open_case(), then, even_now=even_now)
    return log


@pytest.mark.parametrize("absent_after", [None, 120 * S])
@pytest.mark.parametrize("then", ["retry", "fail"])
def test_did_not_happen_acts_when_nothing_can_land_any_more(then: str, absent_after: int | None) -> None:
    log = answered(then)
    step = policy(absent_after_us=absent_after)
    assert waits(now(log, step), log) == (30 * S if absent_after is None else absent_after)
    action = after_waiting(log, step)
    if then == "retry":
        assert action == Call(2, allow=True)
    else:
        assert isinstance(action, Fail)
        assert (action.kind, action.code) == ("not_applied", "did_not_happen")


@pytest.mark.parametrize("said", ["absent", "unclear", "no_effect"])
def test_did_not_happen_acts_after_one_fresh_look(said: str) -> None:
    log = answered("retry")
    assert isinstance(after_waiting(log, PROOF), LookBack)
    log.look(said)
    assert now(log, PROOF) == Call(2, allow=True)


@pytest.mark.parametrize("said", ["pending", "several"])
def test_did_not_happen_is_void_when_the_fresh_look_says_otherwise(said: str) -> None:
    log = answered("retry")
    log.advance(120 * S)
    log.look(said)
    action = now(log, PROOF)
    assert isinstance(action, AskHuman)
    assert action.anew
    log.open_case()
    assert log.folded().answer is None
    assert not isinstance(now(log, PROOF), Call)


def test_did_not_happen_is_superseded_when_the_fresh_look_finds_it() -> None:
    log = answered("retry")
    log.advance(120 * S)
    log.found()
    assert now(log, PROOF) == Reuse('inline:{"id":1}')


def test_a_look_before_the_answer_or_before_the_quiet_time_is_not_fresh() -> None:
    log = StepLog()
    log.attempt("unknown")
    case = log.open_case()
    log.advance(120 * S)
    log.look("absent")
    log.did_not_happen(case, "fail")
    assert isinstance(now(log, PROOF), LookBack)
    log = answered("fail")
    log.advance(119 * S)
    log.look("absent")
    log.advance(S)
    assert isinstance(now(log, PROOF), LookBack)


def test_did_not_happen_waits_for_the_thread_of_the_call() -> None:
    log = answered("retry", running=True)
    step = policy()
    log.advance(HOUR)
    assert isinstance(now(log, step), WaitUntil)
    log.late_failure(1)
    assert waits(now(log, step), log) == 30 * S
    assert after_waiting(log, step) == Call(2, allow=True)


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("then", ["retry", "fail"])
def test_even_now_acts_at_once_and_without_a_look(then: str, running: bool) -> None:
    log = answered(then, even_now=True, running=running)
    assert isinstance(now(log, PROOF), Call if then == "retry" else Fail)


def test_did_not_happen_grants_its_attempt_beyond_a_used_up_budget() -> None:
    step = policy(attempts=1)
    log = answered("retry")
    log.advance(30 * S)
    assert now(log, step) == Call(2, allow=True)
    log.allow()
    log.attempt("not_sent")
    action = now(log, step)
    assert isinstance(action, Fail)
    assert action.kind == "exhausted"


def test_a_late_success_is_worth_more_than_an_answer() -> None:
    log = answered("fail", even_now=True)
    log.late_result(1)
    assert now(log, policy()) == Reuse('inline:{"late":1}', 1)


def test_an_attempt_that_a_person_allowed_is_in_doubt_like_any_other() -> None:
    log = answered("retry", even_now=True)
    log.allow()
    log.attempt("unknown")
    assert isinstance(now(log, policy()), AskHuman)
    assert isinstance(now(log, PROOF), LookBack)


def test_a_counted_absence_of_an_attempt_that_a_person_allowed_leads_where_the_step_says() -> None:
    for step, expected in ((PROOF, Fail), (RETRY, Call)):
        log = answered("retry", even_now=True)
        log.allow()
        log.attempt("unknown")
        proven_absent(log, step)
        action = now(log, step)
        assert isinstance(action, expected), (step.on_absent, action)


# ---------------------------------------------------------------- retry after exhausted


@pytest.mark.parametrize("effect", CLASSES)
def test_a_retry_after_exhausted_grants_one_attempt(effect: str) -> None:
    step = policy(effect)
    log = StepLog(effect)
    for _ in range(3):
        log.attempt("not_sent")
    log.settle(StepStatus.FAILED if effect == "read" else StepStatus.NOT_APPLIED, kind="exhausted")
    action = now(log, step)
    assert isinstance(action, Fail)
    assert action.settled
    log.allow()
    assert now(log, step) == Call(4)
    log.attempt("not_sent")
    action = now(log, step)
    assert isinstance(action, Fail)
    assert (action.kind, action.settled) == ("exhausted", False)


def test_a_retry_after_rejections_used_the_budget_up_takes_the_next_key() -> None:
    step = policy("idem_write", retry_rejected=True, attempts=2)
    log = StepLog("idem_write")
    log.attempt("rejected")
    log.attempt("rejected", next_key=True)
    log.settle(StepStatus.NOT_APPLIED, kind="exhausted")
    log.allow()
    assert now(log, step) == Call(3, next_generation=True)


@pytest.mark.parametrize("effect", WRITES)
def test_a_retry_grants_its_attempt_though_a_deploy_has_made_the_budget_smaller_than_what_was_used(effect: str) -> None:
    log = StepLog(effect)
    for _ in range(5):
        log.attempt("not_sent")
    log.settle(StepStatus.NOT_APPLIED, kind="exhausted")
    log.allow()
    assert now(log, policy(effect, attempts=2)) == Call(6)


def test_nothing_but_a_permission_reopens() -> None:
    log = StepLog()
    log.attempt("not_sent")
    log.settle(StepStatus.NOT_APPLIED, kind="exhausted")
    log.claim()
    log.late_result(1)
    log.advance(24 * HOUR)
    action = now(log, policy(attempts=9))
    assert isinstance(action, Fail)
    assert action.settled


# ---------------------------------------------------------------- late news (rule 12)


@pytest.mark.parametrize("effect", WRITES)
@pytest.mark.parametrize("number", [1, 2])
def test_a_success_of_any_attempt_settles_what_is_unsettled(effect: str, number: int) -> None:
    log = StepLog(effect)
    log.attempt("unknown", running=True)
    log.attempt("unknown", running=True)
    log.open_case()
    log.late_result(number)
    assert now(log, policy(effect, has_query=True)) == Reuse('inline:{"late":1}', number)


def test_a_late_success_settles_even_what_was_proven_absent_but_is_not_settled_yet() -> None:
    log = StepLog()
    log.attempt("unknown")
    proven_absent(log, RETRY)
    log.late_result(1)
    assert now(log, RETRY) == Reuse('inline:{"late":1}', 1)


def test_a_permission_to_retry_settles_nothing() -> None:
    log = answered("retry", even_now=True)
    log.allow()
    assert not log.folded().settled
    log.late_result(1)
    assert now(log, policy()) == Reuse('inline:{"late":1}', 1)


def test_a_late_failure_settles_nothing() -> None:
    log = StepLog()
    log.attempt("unknown", running=True)
    log.late_failure(1)
    assert isinstance(now(log, policy(has_query=True)), LookBack)


# ---------------------------------------------------------------- clocks


def test_a_clock_set_forward_proves_no_absence_earlier() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.set_clock(HOUR // 2)
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 120 * S
    log.advance(60 * S)
    assert not look(log, PROOF, "absent")


def test_a_clock_set_back_proves_absence_later_never_sooner() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.set_clock(-60 * S)
    log.advance(120 * S)
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 60 * S


def test_a_clock_that_jumped_between_two_calls_and_back_proves_no_absence_of_the_later_one_early() -> None:
    step = PROOF._replace(effect=Effect.IDEM_WRITE, attempts=2)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.advance(300 * S)
    log.set_clock(-600 * S)
    log.attempt("unknown")  # by the wall clock it ends before the first one did
    log.set_clock(600 * S)
    log.advance(10 * S)
    assert not look(log, step, "absent")
    log.advance(30 * S)
    assert not look(log, step, "absent")  # 40 s after the last possible send, where 120 s are asked


def test_a_clock_set_forward_ends_the_key_window_sooner() -> None:
    step = policy("idem_write", key_window_us=HOUR)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.set_clock(HOUR)
    assert isinstance(now(log, step), AskHuman)


def test_a_clock_set_back_does_not_reopen_a_key_window() -> None:
    step = policy("idem_write", key_window_us=HOUR, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.attempt("unknown")
    log.advance(HOUR)
    log.set_clock(-HOUR)
    assert isinstance(now(log, step), AskHuman)


@pytest.mark.parametrize("jump", [HOUR, -24 * HOUR])
def test_settle_within_ends_by_whichever_clock_is_ahead(jump: int) -> None:
    step = policy(has_query=True)
    log = StepLog()
    log.attempt("unknown")
    look(log, step, "pending", look_again_us=10 * HOUR)
    log.set_clock(jump)
    log.advance(HOUR if jump < 0 else 0)
    assert isinstance(now(log, step), AskHuman)


def test_boot_times_of_two_boots_are_never_compared() -> None:
    log = StepLog()
    log.attempt("unknown")
    log.reboot(down_us=60 * S)
    log.claim()
    assert not look(log, PROOF, "absent")
    assert waits(now(log, PROOF), log) == 60 * S
    step = policy("idem_write", key_window_us=HOUR, settle_within_us=48 * HOUR)
    log = StepLog("idem_write")
    log.boot = 10_000 * HOUR
    log.attempt("unknown")
    log.reboot(down_us=60 * S)
    log.claim()
    assert now(log, step) == Call(2)
    log.advance(HOUR)
    assert isinstance(now(log, step), AskHuman)


@pytest.mark.parametrize("what", ["key_window", "settle_within"])
def test_a_clock_set_back_over_a_reboot_ends_windows_and_deadlines_because_nobody_knows_how_long_it_was(what: str) -> None:
    step = (
        policy("idem_write", key_window_us=HOUR, settle_within_us=48 * HOUR) if what == "key_window" else policy(has_query=True)
    )
    log = StepLog(step.effect)
    log.attempt("unknown")
    if what == "settle_within":
        look(log, step, "pending", look_again_us=S)
    log.reboot(down_us=-365 * 24 * HOUR)  # the battery of the hardware clock was empty
    assert isinstance(now(log, step), AskHuman)


# ---------------------------------------------------------------- suspect mode


@pytest.mark.parametrize("effect", WRITES)
@pytest.mark.parametrize("has_query", [False, True])
def test_after_a_restored_backup_a_write_counts_as_sent_and_its_key_window_as_over(effect: str, has_query: bool) -> None:
    log = StepLog(effect)
    log.suspect()
    step = policy(effect, has_query=has_query)
    assert isinstance(now(log, step), LookBack if has_query else AskHuman)


def test_after_a_restored_backup_an_absence_counts_from_the_suspect_row() -> None:
    log = StepLog("idem_write")
    step = RETRY._replace(effect=Effect.IDEM_WRITE)
    log.suspect()
    assert not look(log, step, "absent")
    assert waits(now(log, step), log) == 120 * S
    proven_absent(log, step)
    assert now(log, step) == Call(2)


def test_a_suspect_row_makes_an_intent_that_was_restored_suspect_too() -> None:
    log = StepLog("idem_write")
    log.attempt("not_sent")
    log.suspect()
    assert isinstance(now(log, policy("idem_write")), AskHuman)


@pytest.mark.parametrize("even_now", [False, True])
def test_what_a_person_said_before_the_backup_does_not_act_after_it(even_now: bool) -> None:
    log = StepLog("non_idem_write")
    log.attempt("unknown")
    log.did_not_happen(log.open_case(), "retry", even_now=even_now)
    log.suspect()
    log.advance(3600 * S)
    assert isinstance(now(log, policy("non_idem_write")), AskHuman)


# ---------------------------------------------------------------- reads


def test_a_read_is_never_looked_back_at_and_never_a_case() -> None:
    log = StepLog("read")
    for _ in range(2):
        log.attempt("unknown")
        assert isinstance(after_waiting(log, policy("read")), Call)
    log.attempt("unknown")
    assert isinstance(now(log, policy("read")), Fail)


def test_a_case_about_something_else_does_not_hold_a_read_up() -> None:
    log = StepLog("read")
    log.open_case(CaseKind.CONTRADICTION)
    assert now(log, policy("read")) == Call(1)


# ---------------------------------------------------------------- whatever comes

ENDS = ("unknown", "not_sent", "rejected", "killed", "running")
ANSWERS = ("absent", "unclear", "pending", "several", "no_effect")
options = st.fixed_dictionaries(
    {
        "has_query": st.booleans(),
        "retry_rejected": st.booleans(),
        "on_absent": st.sampled_from(["fail", "retry"]),
        "absent_after_us": st.sampled_from([None, 0, 120 * S]),
        "key_window_us": st.sampled_from([None, 20 * S, HOUR]),
        "attempts": st.integers(1, 4),
    }
)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(WRITES),
    options,
    st.lists(st.tuples(st.sampled_from(ENDS), st.sampled_from(ANSWERS)), max_size=20),
)
def test_whatever_the_world_answers_a_second_call_needs_a_reason(
    effect: str, said: dict[str, Any], world: list[tuple[str, str]]
) -> None:
    """The promise: a write is sent again only if nothing landed for sure, or its key protects it. Then I6: no end in silence."""
    step = policy(effect, **said)
    log = StepLog(effect)
    for outcome, answer in world:
        action = now(log, step)
        match action:
            case Call(number, next_generation):
                record = log.record()
                if record is not None:
                    doubtful = any(a.outcome in ("unknown", None) and not a.cleared for a in record.attempts)
                    assert not doubtful or (effect == "idem_write" and not next_generation)
                    assert number == len(record.attempts) + 1 <= step.attempts
                log.begin(next_key=next_generation)
                log.advance(S)
                if outcome == "killed":
                    log.claim()
                else:
                    log.end("unknown" if outcome == "running" else outcome, running=outcome == "running")
            case LookBack():
                assert step.has_query
                look(log, step, answer)
            case WaitUntil(at):
                assert at > log.wall
                log.advance(at - log.wall)
            case AskHuman():
                if log.folded().doubt_case is not None:
                    return
                log.open_case()
            case Fail(kind):
                assert kind in ("rejected", "exhausted", "not_applied")
                assert not any(a.outcome in ("unknown", None) and not a.cleared for a in log.folded().current)
                return
            case _:
                raise AssertionError(action)


def test_decide_changes_nothing_in_the_record() -> None:
    log = StepLog("idem_write")
    log.attempt("unknown")
    record = log.folded()
    before = (len(record.attempts), record.status, list(record.looks), record.granted)
    for later in (0, HOUR, 48 * HOUR):
        decide(policy("idem_write", has_query=True), record, Instant(log.wall + later, log.boot))
    assert (len(record.attempts), record.status, list(record.looks), record.granted) == before
