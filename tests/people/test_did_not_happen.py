"""`did_not_happen` is recorded at once and acts when nothing can land any more, after one fresh look (DESIGN, section 5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Clock, Desk, answer, land_and_lose_the_reply, vanish

from doubtless import TaskFailed, TaskWaiting
from doubtless.answers import Abandon, DidNotHappen, Happened
from doubtless.errors import AlreadySettled, TaskBusy
from doubtless.outcomes import Absent, Found, NoEffect, Pending, Several, Unclear

MakeDesk = Callable[..., Desk]
SECOND = 1_000_000


class Other:
    """The other side's search: says what the test says, and when it was asked."""

    def __init__(self, clock: Clock, *says: Any) -> None:
        self.clock = clock
        self.says = list(says)
        self.asked_at: list[int] = []

    def __call__(self, idempotency_key: str) -> Any:
        self.asked_at.append(self.clock.now().wall)
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]


def sent_again_after(desk: Desk) -> float:
    """Seconds between the end of attempt 1 and the beginning of attempt 2."""
    first, second = desk.step().attempts
    return (second.started_at - first.ended_at) / SECOND


# ---------------------------------------------------------------- when it acts


@pytest.mark.parametrize(
    "policy, seconds", [({"timeout": "PT5S"}, 5), ({"timeout": "PT90S"}, 90), ({"timeout": "PT5S", "absent_after": "PT2M"}, 120)]
)
def test_it_acts_only_when_the_last_possible_send_is_over(
    make_desk: MakeDesk, clock: Clock, policy: dict[str, str], seconds: int
) -> None:
    query = Other(clock, Unclear("the search is down")) if "absent_after" in policy else None
    desk = make_desk(query=query, query_attempts=1, **policy)
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    assert desk.calls == 1
    assert desk.run() == "payment-1"
    assert sent_again_after(desk) >= seconds


def test_until_it_acts_the_task_waits_for_a_time_and_nothing_is_sent(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(timeout="PT90S")
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    with pytest.raises(TaskWaiting) as waits:
        desk.run(wait=False)
    assert waits.value.until is not None
    assert waits.value.until.wall == desk.step().attempts[0].ended_at + 90 * SECOND
    clock.advance("PT89S")
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    assert desk.calls == 1
    clock.advance("PT1S")
    assert desk.run(wait=False) == "payment-1"


def test_the_wait_is_counted_from_the_end_of_the_call_and_not_from_the_answer(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(timeout="PT90S")
    desk.goes = [vanish]
    case = desk.doubt()
    clock.advance("PT2M")
    answer(desk.app, case, DidNotHappen("retry"))
    assert desk.run(wait=False) == "payment-1"


def test_it_acts_in_whoever_owns_the_task_next(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    assert desk.status() == "ready"
    assert desk.app.resume_all(wait=True) == {"order-1": "done"}
    allowed = [row for row in desk.rows() if row.kind == "RetryAllowed"]
    assert [row.details["by"] for row in allowed] == ["ann"]


def test_even_now_acts_at_once_without_a_look_and_is_recorded_as_that_persons_risk(make_desk: MakeDesk, clock: Clock) -> None:
    other = Other(clock, Absent())
    desk = make_desk(query=other)
    desk.goes = [vanish]
    case = desk.doubt()
    looks = len(other.asked_at)
    answer(desk.app, case, DidNotHappen("retry", even_now=True), by="ann", why="the bank confirmed by phone")
    assert desk.run(wait=False) == "payment-1"
    assert len(other.asked_at) == looks
    said = next(row.details for row in desk.rows() if row.kind == "CaseSettled")
    assert (said["even_now"], said["by"], said["why"]) == (True, "ann", "the bank confirmed by phone")


# ---------------------------------------------------------------- the fresh look


def test_the_fresh_look_starts_when_the_time_is_over(make_desk: MakeDesk, clock: Clock) -> None:
    other = Other(clock, Absent())
    desk = make_desk(query=other, timeout="PT90S")
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    assert desk.run() == "payment-1"
    assert other.asked_at[-1] >= desk.step().attempts[0].ended_at + 90 * SECOND
    last_look = max(row.event_seq for row in desk.rows() if row.kind == "LookedBack")
    allowed = next(row.event_seq for row in desk.rows() if row.kind == "RetryAllowed")
    assert last_look < allowed


def test_a_fresh_look_that_finds_it_makes_it_done_and_supersedes_the_answer(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(query=Other(clock, Absent(), Found({"id": "payment-1"})))
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    answer(desk.app, case, DidNotHappen("retry"))
    assert desk.run() == "payment-1"
    assert (desk.calls, desk.payments) == (1, 1)
    kept = next(row.details for row in desk.rows() if row.kind == "CaseSettled")
    assert (kept["answer"], kept["by"]) == ("did_not_happen", "ann")  # still to be read
    assert desk.step().settled_by == "the look-back found it"
    with pytest.raises(AlreadySettled, match="by ann"):
        answer(desk.app, case, Abandon())


@pytest.mark.parametrize("seen, kind", [(Pending(look_again=1), "pending"), (Several([{"id": 1}, {"id": 2}]), "several")])
@pytest.mark.parametrize("then", ["retry", "fail"])
def test_a_fresh_look_that_sees_something_makes_the_answer_void_and_opens_a_new_case_that_shows_it(
    make_desk: MakeDesk, clock: Clock, seen: Any, kind: str, then: str
) -> None:
    desk = make_desk(query=Other(clock, Absent(), seen), settle_within="PT30S")
    desk.goes = [land_and_lose_the_reply]
    first = desk.doubt()
    answer(desk.app, first, DidNotHappen(then))
    if kind == "several":
        (again,) = desk.needs_human()
    else:
        with pytest.raises(TaskWaiting):  # the other side still works on it: the case is open and the machine looks on
            desk.run(wait="PT10S")
        (again,) = (case.id for case in desk.app.inbox().cases)
    assert again != first.id
    case = desk.app.case(again)
    assert case.kind == "doubt"
    assert case.evidence["looks"][-1]["answer"] == kind
    assert "void" in case.why
    assert (desk.calls, desk.step().status) == (1, "needs_human")
    answer(desk.app, case, Happened({"id": "payment-1"}))
    assert desk.run() == "payment-1"
    assert desk.payments == 1


@pytest.mark.parametrize("seen", [Absent(), Unclear("the search is down"), [], NoEffect("it was refused")])
def test_a_fresh_look_that_sees_nothing_lets_the_answer_act(make_desk: MakeDesk, clock: Clock, seen: Any) -> None:
    desk = make_desk(query=Other(clock, Absent(), seen))
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    assert desk.run() == "payment-1"
    assert (desk.calls, desk.payments) == (2, 1)


def test_a_query_that_raises_in_the_fresh_look_lets_the_answer_act(make_desk: MakeDesk, clock: Clock) -> None:
    def query() -> Any:
        raise OSError("the search is down")

    desk = make_desk(query=query, query_attempts=1)
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("fail"))
    with pytest.raises(TaskFailed):
        desk.run()
    assert (desk.calls, desk.step().status) == (1, "not_applied")


def test_fail_waits_and_looks_like_retry_does(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(query=Other(clock, Absent(), Found({"id": "payment-1"})), timeout="PT90S")
    desk.goes = [land_and_lose_the_reply]
    answer(desk.app, desk.doubt(), DidNotHappen("fail"))
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    assert desk.run() == "payment-1"  # it had happened after all


def test_a_granted_attempt_that_is_lost_again_is_a_new_case_and_needs_a_new_answer(make_desk: MakeDesk) -> None:
    desk = make_desk(attempts=1)
    desk.goes = [vanish, vanish]
    first = desk.doubt()
    answer(desk.app, first, DidNotHappen("retry"))
    second = desk.doubt()
    assert second.id != first.id
    assert [attempt["outcome"] for attempt in second.evidence["attempts"]] == ["unknown", "unknown"]
    answer(desk.app, second, DidNotHappen("retry"))
    assert desk.run() == "payment-1"
    assert (desk.calls, desk.payments) == (3, 1)


def test_an_answer_that_has_not_acted_yet_survives_the_death_of_the_owner_that_waits_for_it(
    make_desk: MakeDesk, clock: Clock, child: Callable[..., Any]
) -> None:
    desk = make_desk()
    dead = child("die_in_the_call", "order-1")
    assert dead.killed()
    (doubt,) = desk.app.inbox().doubts
    assert (doubt.path, doubt.why) == ("1", "its owner died; whoever resumes the task settles it")
    case = desk.doubt()
    answer(desk.app, case, DidNotHappen("retry"))
    claimed = next(row for row in desk.rows() if row.kind == "TaskClaimed" and row.details.get("was"))
    assert desk.run() == "payment-1"
    # The last possible send of a dead owner is the takeover that found it dead.
    assert desk.step().attempts[1].started_at >= claimed.at.wall + 5 * SECOND


def test_while_the_call_of_the_last_attempt_still_runs_nothing_is_sent_whatever_was_answered(make_desk: MakeDesk) -> None:
    """I2: the call overran and is out of reach in its thread; the permission acts only once that thread has ended."""
    go_on, ended = threading.Event(), threading.Event()
    desk = make_desk(timeout="PT0.05S")

    def hang(do: Callable[[], Any]) -> Any:
        go_on.wait(30)
        try:
            return do()
        finally:
            ended.set()

    desk.goes = [hang]
    case = desk.doubt()
    answer(desk.app, case, DidNotHappen("retry"))
    with pytest.raises(TaskBusy, match="a thread of it has the task"):
        desk.run()
    assert desk.calls == 1
    go_on.set()
    assert ended.wait(30)
    while True:
        try:
            assert desk.run() == "payment-1"
            break
        except TaskBusy:  # the thread is writing its late news down
            continue
    assert (desk.calls, desk.payments) == (1, 1)
    assert desk.step().settled_by == "a late reply"
