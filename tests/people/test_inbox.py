"""No doubt is silent: each is being settled or in the inbox, with all of its evidence and what each answer would do (I6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Child, Clock, Desk, MakeApp, answer, contradict, land_and_lose_the_reply, vanish

from doubtless import Doubtless, NeedsHuman, Secret, TaskFailed, TaskFrozen, TaskWaiting, injected, record_handle
from doubtless.answers import Abandon, DidNotHappen, Happened
from doubtless.errors import DoubtlessError, UnknownCase
from doubtless.outcomes import Absent, Pending, Several, Unclear

MakeDesk = Callable[..., Desk]
StartChild = Callable[..., Child]


# ---------------------------------------------------------------- what is listed


def test_an_inbox_without_trouble_is_empty(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.run()
    assert desk.app.inbox() == ([], [])


def test_open_cases_come_oldest_first(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk()
    desk.goes = [vanish] * 3
    asked = []
    for task in ("order-3", "order-1", "order-2"):
        asked.append(desk.doubt(task).id)
        clock.advance("PT1M")
    assert [case.id for case in desk.app.inbox().cases] == asked


def test_the_doubt_of_a_dead_owner_is_listed_before_anybody_resumes_its_task(make_desk: MakeDesk, child: StartChild) -> None:
    desk = make_desk()
    assert child("die_in_the_call", "order-1").killed()
    inbox = desk.app.inbox()
    assert inbox.cases == []
    (doubt,) = inbox.doubts
    assert (doubt.task_id, doubt.path, doubt.step) == ("order-1", "1", "pay")
    assert "its owner died" in doubt.why
    assert doubt.since == desk.rows()[-1].at.wall
    case = desk.doubt()  # resumed: nobody can be asked, so it is a case now
    assert (desk.app.inbox().cases, desk.app.inbox().doubts) == ([case], [])


def test_a_doubt_that_is_being_settled_is_listed_once_settle_within_is_over_and_is_a_case_from_then_on(
    make_desk: MakeDesk, clock: Clock
) -> None:
    desk = make_desk(query=lambda: Pending(look_again="PT10M"), settle_within="PT30M")
    desk.goes = [land_and_lose_the_reply]
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    assert desk.app.inbox() == ([], [])  # somebody looks again at a known time
    clock.advance("PT31M")
    (doubt,) = desk.app.inbox().doubts
    assert "settle_within" in doubt.why
    with pytest.raises(TaskWaiting) as waits:
        desk.run(wait=False)
    (case,) = desk.app.inbox().cases
    assert waits.value.context["cases"] == [case.id]
    assert desk.app.inbox().doubts == []
    assert "settle_within" in case.why


def test_a_run_that_waits_opens_the_case_at_settle_within_and_looks_on(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(query=lambda: Pending(look_again="PT10M"), settle_within="PT30M")
    desk.goes = [land_and_lose_the_reply]
    began = clock.now().wall
    with pytest.raises(TaskWaiting):
        desk.run(wait="PT2H")
    (case,) = desk.app.inbox().cases
    assert 0 <= case.opened_at - (began + 30 * 60_000_000) < 2_000_000
    assert sum(row.kind == "LookedBack" for row in desk.rows()) >= 10


def test_a_case_is_found_by_its_id_also_when_it_is_settled(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    case = desk.doubt()
    answer(desk.app, case, Abandon())
    assert desk.app.case(case.id).kind == "doubt"
    with pytest.raises(UnknownCase):
        desk.app.case("order-1:999")


def test_the_inbox_needs_no_code_of_the_app(make_desk: MakeDesk, make_app: MakeApp) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    case = desk.doubt()
    assert make_app().inbox().cases == [case]


def test_a_table_with_faults_does_not_stand_between_a_person_and_the_inbox(make_desk: MakeDesk, make_app: MakeApp) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    case = desk.doubt()
    broken = make_app()
    broken.step(effect="wrong")(lambda: None)
    assert broken.inbox().cases == [case]
    answer(broken, case, Happened({"id": "payment-1"}))
    assert desk.run() == "payment-1"


# ---------------------------------------------------------------- what a case shows


def test_a_case_says_what_was_to_happen_and_all_that_is_known(make_desk: MakeDesk) -> None:
    says: list[Any] = [Unclear("the search is down"), Unclear("the search is down"), Several([{"id": 1}, {"id": 2}])]
    desk = make_desk(query=lambda: says.pop(0))

    def with_handle(do: Callable[[], Any]) -> Any:
        record_handle("ticket-7")
        land_and_lose_the_reply(do)

    desk.goes = [with_handle]
    case = desk.doubt()
    shown = case.evidence
    assert (case.task_id, case.path, case.step, case.kind) == ("order-1", "1", "pay", "doubt")
    assert (shown["step"], shown["effect"]) == ("pay", "non_idem_write")
    assert shown["params"] == {"order": "o1", "amount": 500}
    assert shown["keys"] == [desk.world.all("payment")[0]["key"]]
    assert shown["handles"] == ["ticket-7"]
    (attempt,) = shown["attempts"]
    assert (attempt["attempt"], attempt["outcome"], attempt["code"]) == (1, "unknown", "ConnectionResetError")
    assert attempt["detail"] == "ConnectionResetError: the reply was lost"
    assert [look["answer"] for look in shown["looks"]] == ["unclear", "several"]  # the same answer again is said once
    assert shown["looks"][1]["items"] == [{"id": 1}, {"id": 2}]
    assert set(case.answers) == {"happened", "did_not_happen", "abandon"}
    assert all(case.answers.values())
    json.dumps(shown)  # it can be handed to a chat, a mail, a pager


def test_late_news_is_part_of_the_evidence(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("fail", even_now=True))
    with pytest.raises(TaskFailed):
        desk.run()
    contradict(desk, {"id": "late"})
    (case,) = desk.app.inbox().cases
    assert case.evidence["late"] == [{"what": "late_result", "attempt": 1, "output": {"id": "late"}}]


def test_secrets_of_the_params_are_shown_as_their_resolvers(app: Doubtless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_TOKEN", "tok-very-secret")

    @app.step(effect="non_idem_write", secret="token")
    def pay(order: str, token: str) -> dict[str, Any]:
        raise ConnectionError(f"401 for {token}")

    @app.task
    def settle_order(order: str) -> None:
        pay(order=order, token=Secret("env:BANK_TOKEN"))

    with pytest.raises(NeedsHuman):
        app.run(settle_order, "s1", order="o1")
    (case,) = app.inbox().cases
    assert "tok-very-secret" not in json.dumps(case.evidence)
    assert "env:BANK_TOKEN" in json.dumps(case.evidence["params"])
    assert "***" in case.evidence["attempts"][0]["detail"]


def test_params_that_are_kept_outside_of_the_log_are_shown_whole(app: Doubtless) -> None:
    @app.step(effect="non_idem_write")
    def send(text: str) -> dict[str, Any]:
        raise TimeoutError("lost")

    @app.task
    def tell(text: str) -> None:
        send(text=text)

    with pytest.raises(NeedsHuman):
        app.run(tell, "s1", text="x" * 5000)
    assert app.inbox().cases[0].evidence["params"] == {"text": "x" * 5000}


def test_show_lists_the_open_cases_of_its_task_alone(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish, vanish]
    first, second = desk.doubt("order-1"), desk.doubt("order-2")
    assert desk.app.show("order-1").cases == (first,)
    assert desk.app.show("order-2").cases == (second,)
    told = [moment.what for moment in desk.step("order-1").story]
    assert any(first.id in line for line in told)


def test_the_story_of_a_step_tells_who_settled_it_and_why(make_desk: MakeDesk) -> None:
    desk = make_desk(query=lambda: Absent())
    desk.goes = [land_and_lose_the_reply]
    answer(desk.app, desk.doubt(), Happened({"id": "payment-1"}), why="seen in the portal")
    desk.run()
    told = "\n".join(moment.what for moment in desk.step().story)
    assert "answered happened by ann (seen in the portal)" in told
    assert "looked back: absent" in told
    assert desk.step().calls == 1


def test_a_doubt_whose_next_attempt_is_frozen_is_in_the_inbox_by_its_deadline(make_app: MakeApp, clock: Clock) -> None:
    app, calls = make_app(), []

    @app.step(effect="idem_write", settle_within="PT1H", attempts=5)
    def pay(idempotency_key: str = injected()) -> None:
        calls.append(idempotency_key)
        app.freeze("pay", why="an incident", by="ann")
        raise TimeoutError

    @app.task
    def order() -> None:
        pay()

    with pytest.raises(TaskFrozen):
        app.run(order, "order-1")
    assert app.inbox().cases == []
    clock.advance("PT2H")
    assert [(doubt.path, doubt.why) for doubt in app.inbox().doubts] == [("1", "it is not settled within settle_within")]
    with pytest.raises(DoubtlessError):
        app.resume("order-1")
    assert [case.kind for case in app.inbox().cases] == ["doubt"]
    assert len(calls) == 1
