"""A case takes one answer, bound to what was shown, from somebody who may give it; whoever is second is told who was first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Child, Clock, Desk, MakeApp, answer, contradict, land_and_lose_the_reply, late_error, vanish

from doubtless import Doubtless, NeedsHuman, StepFailed, TaskFailed
from doubtless.answers import Abandon, Answer, DidNotHappen, Happened, Noted, Retry
from doubtless.errors import AlreadySettled, AnswerRefused, CaseChanged, UnknownCase
from doubtless.inbox import Case
from doubtless.outcomes import Absent, Several, Unclear

MakeDesk = Callable[..., Desk]
StartChild = Callable[..., Child]


@pytest.fixture
def lost(make_desk: MakeDesk) -> Desk:
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    return desk


# ---------------------------------------------------------------- one shot


def test_the_second_answer_is_told_who_was_first_and_when(lost: Desk) -> None:
    case = lost.doubt()
    answer(lost.app, case, Happened({"id": "payment-1"}), by="ann")
    rows = len(lost.rows())
    with pytest.raises(AlreadySettled, match=r"already settled, by ann at 2026-11-28T09:00") as second:
        answer(lost.app, case, Abandon(), by="bob")
    assert second.value.context["by"] == "ann"
    assert len(lost.rows()) == rows


def test_an_answer_without_the_output_that_the_step_gives_is_refused_with_how_to_give_it(lost: Desk) -> None:
    case = lost.doubt()
    rows = len(lost.rows())
    with pytest.raises(AnswerRefused, match="your answer was not taken") as refused:
        answer(lost.app, case, Happened(None))
    assert "--output JSON" in (refused.value.hint or "")
    assert len(lost.rows()) == rows
    answer(lost.app, case, Happened({"id": "payment-1"}))


def test_a_case_stays_settled_when_its_task_has_ended_so_that_deny_then_approve_runs_nothing(lost: Desk) -> None:
    """C73: a finished run is not resumed by a second, other answer; what is recorded is the first one."""
    case = lost.doubt()
    answer(lost.app, case, Abandon(), by="ann")
    with pytest.raises(TaskFailed):
        lost.run()
    for said in (Happened({"id": "payment-1"}), DidNotHappen("retry"), DidNotHappen("retry", even_now=True)):
        with pytest.raises(AlreadySettled, match="by ann"):
            answer(lost.app, case, said, by="bob")
        with pytest.raises(TaskFailed):
            lost.run()
    assert (lost.calls, lost.step().status) == (1, "failed")


def test_of_many_threads_that_answer_at_once_one_is_taken(lost: Desk) -> None:
    case = lost.doubt()
    said: list[str] = []
    start = threading.Barrier(8)

    def settle(name: str) -> None:
        start.wait()
        try:
            answer(lost.app, case, Abandon(), by=name)
            said.append("taken")
        except AlreadySettled as error:
            said.append(str(error.context["by"]))

    threads = [threading.Thread(target=settle, args=(f"p{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = next(row.details["by"] for row in lost.rows() if row.kind == "CaseSettled")
    assert sorted(said) == sorted(["taken"] + [winner] * 7)
    assert lost.app.verify() == []


def test_of_two_processes_that_answer_at_once_one_is_taken_and_the_other_hears_whose(lost: Desk, child: StartChild) -> None:
    case = lost.doubt()
    both = [child("settle", case.id, case.hash, name) for name in ("ann", "bob")]
    for one in both:
        assert one.hear() == "ready"
    for one in both:
        one.say()
    heard = sorted(one.hear() for one in both)
    assert heard[1] == "taken"
    winner = next(row.details["by"] for row in lost.rows() if row.kind == "CaseSettled")
    assert heard[0].startswith("already_settled")
    assert f"by {winner} at " in heard[0]


def test_a_case_that_does_not_exist_is_named_with_where_to_look(lost: Desk) -> None:
    with pytest.raises(UnknownCase, match=r"order-1:99.*doubtless inbox"):
        lost.app.settle("order-1:99", Abandon(), by="ann", why="", shown="0" * 64)


# ---------------------------------------------------------------- bound to what was shown


def test_the_first_eight_characters_of_the_hash_do_and_capitals_too(lost: Desk) -> None:
    case = lost.doubt()
    answer(lost.app, case, Abandon(), shown=case.hash[:8].upper())
    assert lost.app.inbox().cases == []


def test_new_evidence_makes_the_person_look_again(make_desk: MakeDesk) -> None:
    replies: list[Any] = [Unclear("the search is down"), Several([{"id": 1}, {"id": 2}])]
    desk = make_desk(query=lambda: replies.pop(0) if len(replies) > 1 else replies[0], query_attempts=1)
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    assert desk.needs_human() == (case.id,)  # the next claim makes one fresh look first
    with pytest.raises(CaseChanged, match="new evidence") as changed:
        answer(desk.app, case, Abandon())
    now = desk.app.case(case.id)
    assert changed.value.context["hash"] == now.hash != case.hash
    assert [look["answer"] for look in now.evidence["looks"]] == ["unclear", "several"]
    answer(desk.app, now, Abandon())


def test_the_same_look_back_answer_again_is_no_new_evidence(make_desk: MakeDesk) -> None:
    desk = make_desk(query=lambda: Absent())
    desk.goes = [vanish]
    case = desk.doubt()
    for _ in range(3):
        assert desk.needs_human() == (case.id,)
    looks = sum(row.kind == "LookedBack" for row in desk.rows())
    now = desk.app.case(case.id)
    assert looks >= 4
    assert (now.hash, len(now.evidence["looks"])) == (case.hash, 1)
    answer(desk.app, case, Abandon())


def test_late_news_of_a_call_is_new_evidence(lost: Desk) -> None:
    case = lost.doubt()
    late_error(lost, "the connection was closed in the end")
    now = lost.app.case(case.id)
    assert now.hash != case.hash
    with pytest.raises(CaseChanged):
        answer(lost.app, case, DidNotHappen("retry"))
    assert lost.calls == 1


def test_evidence_that_comes_while_an_answer_is_being_judged_is_new_evidence_too(make_app: MakeApp) -> None:
    desk: Desk

    def authorize(by: str, case: Case, said: Any) -> bool:
        late_error(desk, "the connection was closed in the end")
        return True

    desk = Desk(make_app(authorize=authorize), land_and_lose_the_reply)
    case = desk.doubt()
    with pytest.raises(CaseChanged):
        answer(desk.app, case, DidNotHappen("retry", even_now=True))
    assert desk.needs_human() == (case.id,)
    assert desk.calls == 1


def test_time_alone_changes_no_hash(lost: Desk, clock: Clock, make_app: MakeApp) -> None:
    case = lost.doubt()
    clock.advance("P30D")
    assert make_app().case(case.id).hash == case.hash  # nor does another process, without the app's code
    answer(lost.app, case, Abandon())


def test_answers_given_in_the_other_order_reach_the_case_that_they_name(make_desk: MakeDesk) -> None:
    """C75: two open cases of the same step with the same params; the second is answered first, each reaches its own step."""
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply, land_and_lose_the_reply]
    first, second = desk.doubt("order-1"), desk.doubt("order-2")
    assert [case.id for case in desk.app.inbox().cases] == [first.id, second.id]
    with pytest.raises(CaseChanged):  # the hash of one is no key to the other
        answer(desk.app, second, Happened({"id": "second"}), shown=first.hash)
    answer(desk.app, second, Happened({"id": "second"}))
    assert desk.needs_human("order-1") == (first.id,)
    assert desk.run("order-2") == "second"
    answer(desk.app, first, Happened({"id": "first"}))
    assert desk.run("order-1") == "first"
    assert desk.calls == 2


def test_of_two_branches_of_one_task_that_are_both_in_doubt_the_second_may_be_answered_first(app: Doubtless) -> None:
    """C75: parallel questions of one task; each answer reaches the branch that it names, in whatever order they come."""
    calls: list[str] = []

    @app.step(effect="non_idem_write")
    async def ask(name: str) -> dict[str, Any]:
        calls.append(name)
        while len(calls) < 2:  # both are on their way before either is lost
            await asyncio.sleep(0)
        raise TimeoutError("lost")

    @app.task
    async def both() -> list[Any]:
        return [said["n"] for said in await asyncio.gather(ask(name="a"), ask(name="b"))]

    def run() -> Any:
        return asyncio.run(app.arun(both, "t1"))

    with pytest.raises(NeedsHuman) as stopped:
        run()
    cases = {case.evidence["params"]["name"]: case for case in map(app.case, stopped.value.cases)}
    first, second = cases["a"], cases["b"]
    answer(app, second, Happened({"n": "second"}))
    with pytest.raises(NeedsHuman) as stopped:
        run()
    assert stopped.value.cases == (first.id,)
    answer(app, first, Happened({"n": "first"}))
    assert run() == ["first", "second"]
    assert sorted(calls) == ["a", "b"]


def test_answers_to_different_questions_about_one_step_reach_the_one_that_they_name(make_desk: MakeDesk) -> None:
    """C75: a contradiction about one step and the doubt of a later one are open at once; the later one is answered first."""
    desk = make_desk()
    desk.goes = [vanish, land_and_lose_the_reply]

    @desk.app.task
    def twice(order: str) -> str:
        try:
            desk.pay(order=order, amount=1)
        except StepFailed:
            pass
        return desk.pay(order=order, amount=2)["id"]

    def run() -> Any:
        return desk.app.run(twice, "order-1", order="o1")

    with pytest.raises(NeedsHuman):
        run()
    answer(desk.app, desk.app.inbox().cases[0], DidNotHappen("fail", even_now=True))
    with pytest.raises(NeedsHuman):
        run()
    contradict(desk, {"id": "late"})
    cases = {case.kind: case for case in desk.app.inbox().cases}
    assert {kind: case.path for kind, case in cases.items()} == {"doubt": "2", "contradiction": "1"}
    answer(desk.app, cases["doubt"], Happened({"id": "second"}))
    answer(desk.app, cases["contradiction"], Noted())
    assert run() == "second"
    assert [step.status for step in desk.app.show("order-1").steps] == ["not_applied", "done"]


def test_an_answer_in_one_task_does_nothing_for_the_same_step_with_the_same_params_in_another(make_desk: MakeDesk) -> None:
    """C76: an answer lives in the log, at its case; nothing in the process remembers it for a look-alike."""
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply, land_and_lose_the_reply]
    first, second = desk.doubt("order-1"), desk.doubt("order-2")
    assert first.evidence["params"] == second.evidence["params"]
    assert first.hash != second.hash
    answer(desk.app, first, Happened({"id": "payment-1"}))
    assert desk.needs_human("order-2") == (second.id,)
    assert desk.run("order-1") == "payment-1"
    assert desk.calls == 2


def test_a_restored_app_object_knows_only_what_the_log_knows(make_app: MakeApp) -> None:
    """C76: two apps of one process on one store; what is answered through one is what the other goes on with."""
    one, two = Desk(make_app(), land_and_lose_the_reply), Desk(make_app())
    case = one.doubt()
    assert two.app.case(case.id) == case
    answer(two.app, case, Happened({"id": "by two"}))
    assert one.run() == "by two"
    assert (one.calls, two.calls) == (1, 0)


# ---------------------------------------------------------------- what the machine settles first


def test_what_the_machine_settled_first_is_told_as_settled_by_doubtless(make_desk: MakeDesk) -> None:
    found: list[Any] = [None]
    desk = make_desk(query=lambda: found[0])
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    found[0] = {"id": "payment-1"}
    assert desk.run() == "payment-1"
    assert desk.app.inbox().cases == []
    with pytest.raises(AlreadySettled, match="by doubtless"):
        answer(desk.app, case, DidNotHappen("retry"))
    assert (desk.calls, desk.payments) == (1, 1)
    assert desk.app.verify() == []


def test_a_late_reply_closes_the_case_of_its_doubt(lost: Desk) -> None:
    case = lost.doubt()
    contradict(lost, {"id": "payment-1"})
    assert lost.run() == "payment-1"
    with pytest.raises(AlreadySettled, match="by doubtless"):
        answer(lost.app, case, Abandon())


def test_a_task_whose_doubt_a_late_reply_answers_is_ready_for_any_worker_and_waits_for_nobody(lost: Desk) -> None:
    lost.doubt()
    assert (lost.app.show("order-1").status, lost.app.due()) == ("needs_human", [])
    contradict(lost, {"id": "payment-1"})
    assert (lost.app.show("order-1").status, lost.app.due()) == ("ready", ["order-1"])
    assert lost.app.advance("order-1").ended
    assert lost.app.inbox().cases == []
    assert lost.app.verify() == []


def test_a_late_reply_about_what_is_settled_wakes_nobody(lost: Desk) -> None:
    case = lost.doubt()
    answer(lost.app, case, Abandon())
    with pytest.raises(TaskFailed):
        lost.run()
    contradict(lost, {"id": "payment-1"})
    assert lost.app.due() == []


def test_a_person_and_a_run_that_looks_at_the_same_moment_settle_it_once(make_desk: MakeDesk) -> None:
    """The answer comes while the query is under way; the run finds the step settled and goes on with the answer."""
    desk: Desk

    def query() -> Any:
        open_cases = desk.app.inbox().cases
        if open_cases:
            answer(desk.app, open_cases[0], Happened({"id": "by ann"}))
        return {"id": "by query"} if open_cases else None

    desk = make_desk(query=query)
    desk.goes = [land_and_lose_the_reply]
    desk.doubt()
    assert desk.run() == "by ann"
    assert desk.step().output == {"id": "by ann"}
    assert sum(row.kind == "StepSettled" for row in desk.rows()) == 1
    assert desk.app.verify() == []


# ---------------------------------------------------------------- who may


def test_authorize_is_asked_with_the_principal_the_case_and_the_answer(make_app: MakeApp) -> None:
    asked: list[tuple[str, Case, Any]] = []

    def authorize(by: str, case: Case, said: Any) -> bool:
        asked.append((by, case, said))
        return by == "ann"

    desk = Desk(make_app(authorize=authorize), land_and_lose_the_reply)
    case = desk.doubt()
    rows = desk.rows()
    with pytest.raises(AnswerRefused, match=f"bob may not answer case {case.id} with abandon") as refusal:
        answer(desk.app, case, Abandon(), by="bob")
    assert refusal.value.context["by"] == "bob"
    assert desk.rows() == rows
    assert desk.app.case(case.id) == case
    answer(desk.app, case, Abandon(), by="ann")
    assert asked == [("bob", case, Abandon()), ("ann", case, Abandon())]
    assert desk.rows()[-2].details["by"] == "ann"


def test_an_authorize_that_fails_is_no_permission(make_app: MakeApp) -> None:
    def authorize(by: str, case: Case, said: Any) -> bool:
        raise LookupError("the directory is down")

    desk = Desk(make_app(authorize=authorize), land_and_lose_the_reply)
    case = desk.doubt()
    rows = desk.rows()
    with pytest.raises(LookupError):
        answer(desk.app, case, Abandon())
    assert desk.rows() == rows


def test_authorize_is_not_asked_about_what_would_be_refused_anyway(make_app: MakeApp) -> None:
    desk = Desk(make_app(authorize=lambda by, case, said: pytest.fail("it was asked")), land_and_lose_the_reply)
    case = desk.doubt()
    for said, options in ((Retry(), {}), (Answer(1), {}), (Abandon(), {"shown": "0" * 64}), (Abandon(), {"by": " "})):
        with pytest.raises((AnswerRefused, CaseChanged)):
            answer(desk.app, case, said, **options)


# ---------------------------------------------------------------- time


def test_a_case_about_a_doubt_never_expires(lost: Desk, clock: Clock) -> None:
    """C78: no time that passes is an answer; an unanswered case is neither denied nor settled."""
    case = lost.doubt()
    for _ in range(3):
        clock.advance("P400D")
        assert lost.needs_human() == (case.id,)
    assert lost.app.case(case.id).hash == case.hash
    assert (lost.step().status, lost.status(), lost.calls) == ("needs_human", "needs_human", 1)
    answer(lost.app, case, Happened({"id": "payment-1"}))
    assert lost.run() == "payment-1"
