"""Every answer of every kind of case does what the case says that it does, and nothing else (DESIGN, section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Clock, Desk, answer, contradict, land, land_and_lose_the_reply, vanish

from doubtless import Doubtless, NeedsHuman, Rejected, StepFailed, TaskFailed
from doubtless.answers import DOES, SPELLED, TAKES, Abandon, Answer, Deny, DidNotHappen, Fail, Happened, LetStand, Noted, Retry
from doubtless.errors import AlreadySettled, AnswerRefused, CaseChanged

MakeDesk = Callable[..., Desk]
REJECTED = Rejected("422", "no such account")


# ---------------------------------------------------------------- doubt


@pytest.fixture
def blind(make_desk: MakeDesk) -> Desk:
    """A payment that landed, whose reply was lost, in a system that cannot be asked."""
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    return desk


def test_happened_makes_the_step_done_with_the_output_that_the_person_gave(blind: Desk) -> None:
    case = blind.doubt()
    answer(blind.app, case, Happened({"id": "payment-1", "seen": "in the bank's portal"}))
    assert blind.run() == "payment-1"
    assert (blind.calls, blind.payments) == (1, 1)
    step = blind.step()
    assert (step.status, step.output) == ("done", {"id": "payment-1", "seen": "in the bank's portal"})
    assert "ann" in step.settled_by


def test_an_output_that_the_step_could_not_return_is_refused_and_the_case_stays_open(blind: Desk) -> None:
    case = blind.doubt()
    for output in (None, "payment-1", float("nan"), {"a", "b"}):
        with pytest.raises(AnswerRefused):
            answer(blind.app, case, Happened(output))
    assert [open_case.id for open_case in blind.app.inbox().cases] == [case.id]


def test_did_not_happen_retry_sends_it_again_under_the_same_key_with_the_same_params(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry"))
    assert desk.run() == "payment-1"
    assert (desk.calls, desk.payments) == (2, 1)
    assert len(desk.step().keys) == 1


def test_did_not_happen_fail_settles_it_as_not_applied_and_the_task_sees_that(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("fail"))
    with pytest.raises(TaskFailed) as failed:
        desk.run()
    assert failed.value.context["failure"]["kind"] == "not_applied"
    assert (desk.step().status, desk.calls) == ("not_applied", 1)


@pytest.mark.parametrize("then", ["", "Retry", "wait"])
def test_did_not_happen_needs_to_say_what_then(blind: Desk, then: str) -> None:
    case = blind.doubt()
    with pytest.raises(AnswerRefused, match="then=retry or then=fail"):
        answer(blind.app, case, DidNotHappen(then))
    assert blind.app.case(case.id).hash == case.hash


def test_abandon_fails_the_step_which_may_stand_and_is_listed(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    seen: list[StepFailed] = []

    @desk.app.task
    def careful(order: str) -> str:
        try:
            desk.pay(order=order, amount=1)
        except StepFailed as error:
            seen.append(error)
            return "went on"
        return "paid"

    with pytest.raises(NeedsHuman):
        desk.app.run(careful, "c1", order="o1")
    answer(desk.app, desk.app.inbox().cases[0], Abandon())
    assert desk.app.run(careful, "c1", order="o1") == "went on"
    assert [(error.kind, error.step) for error in seen] == [("abandoned", "pay")]
    step = desk.step("c1")
    assert (step.status, step.error["kind"]) == ("failed", "abandoned")
    assert "ann" in step.settled_by
    assert desk.calls == 1


def test_a_task_that_does_not_catch_an_abandoned_step_fails_and_is_failed_each_time(blind: Desk) -> None:
    answer(blind.app, blind.doubt(), Abandon())
    for _ in range(2):
        with pytest.raises(TaskFailed) as failed:
            blind.run()
        assert failed.value.context["failure"]["kind"] == "abandoned"
    assert blind.calls == 1


# ---------------------------------------------------------------- code_error, diverged


@pytest.fixture
def buggy(app: Doubtless) -> dict[str, Any]:
    """A task whose code fails until it is fixed, behind a step that is done."""
    state: dict[str, Any] = {"broken": True, "reads": 0, "passes": 0}

    @app.step(effect="read")
    def look(day: str) -> int:
        state["reads"] += 1
        return 7

    @app.task
    def report(day: str) -> int:
        state["passes"] += 1
        found = look(day=day)
        if state["broken"]:
            raise KeyError("rate")
        return found

    def run() -> Any:
        return app.run(report, "r1", day="d")

    return state | {"app": app, "run": run, "state": state}


def test_a_code_error_parks_the_task_with_what_a_developer_needs(buggy: dict[str, Any]) -> None:
    with pytest.raises(NeedsHuman, match="KeyError"):
        buggy["run"]()
    (case,) = buggy["app"].inbox().cases
    assert (case.kind, case.path) == ("code_error", None)
    assert case.evidence["error"] == "KeyError"
    assert "in report" in case.evidence["traceback"]
    assert sorted(case.answers) == ["fail", "retry"]


def test_retry_runs_the_code_again_from_the_log(buggy: dict[str, Any]) -> None:
    with pytest.raises(NeedsHuman):
        buggy["run"]()
    (case,) = buggy["app"].inbox().cases
    buggy["state"]["broken"] = False
    answer(buggy["app"], case, Retry())
    assert buggy["run"]() == 7
    assert buggy["state"]["reads"] == 1


def test_resume_after_the_fix_closes_the_case_in_the_machines_name(buggy: dict[str, Any]) -> None:
    with pytest.raises(NeedsHuman):
        buggy["run"]()
    (case,) = buggy["app"].inbox().cases
    buggy["state"]["broken"] = False
    assert buggy["app"].resume("r1") == 7
    assert buggy["app"].inbox().cases == []
    with pytest.raises(AlreadySettled, match="by doubtless"):
        answer(buggy["app"], case, Fail())


def test_resuming_a_bug_again_and_again_is_one_case(buggy: dict[str, Any]) -> None:
    for _ in range(3):
        with pytest.raises(NeedsHuman):
            buggy["run"]()
    (case,) = buggy["app"].inbox().cases
    rows = len(buggy["app"].store.rows("r1"))
    with pytest.raises(NeedsHuman):
        buggy["run"]()
    assert len(buggy["app"].store.rows("r1")) == rows
    assert buggy["app"].inbox().cases[0].hash == case.hash


def test_fail_ends_the_task_without_running_its_code_again(buggy: dict[str, Any]) -> None:
    with pytest.raises(NeedsHuman):
        buggy["run"]()
    (case,) = buggy["app"].inbox().cases
    answer(buggy["app"], case, Fail())
    passes = buggy["state"]["passes"]
    with pytest.raises(TaskFailed) as failed:
        buggy["run"]()
    assert failed.value.context["failure"]["by"] == "ann"
    assert buggy["state"]["passes"] == passes


def test_retry_after_a_used_up_budget_grants_one_attempt_and_resume_grants_none(make_desk: MakeDesk) -> None:
    desk = make_desk(attempts=2, single_request=True)
    desk.goes = [refused, refused, refused, land]
    with pytest.raises(NeedsHuman):
        desk.run()
    assert desk.calls == 2
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            desk.run()
    assert desk.calls == 2
    (case,) = desk.app.inbox().cases
    assert (case.kind, case.evidence["failure"]) == ("code_error", "exhausted")
    answer(desk.app, case, Retry())
    with pytest.raises(NeedsHuman):
        desk.run()
    assert desk.calls == 3
    (again,) = desk.app.inbox().cases
    assert again.id != case.id
    answer(desk.app, again, Retry())
    assert desk.run() == "payment-1"
    assert (desk.calls, desk.payments) == (4, 1)


def refused(do: Callable[[], Any]) -> Any:
    raise ConnectionRefusedError("nobody listens")


def diverging(app: Doubtless, amounts: list[int]) -> Callable[[], Any]:
    """A task whose code asks for another amount each time it runs, and stops at a bug in the first run."""

    @app.step(effect="read")
    def look(amount: int) -> int:
        return amount

    @app.task
    def drifts() -> int:
        amount = amounts.pop(0)
        look(amount=amount)
        if amounts:
            raise RuntimeError("the first run ends here")
        return amount

    return lambda: app.run(drifts, "d1")


@pytest.mark.parametrize("said", [Retry(), None])
def test_diverged_goes_on_when_the_code_asks_for_what_the_log_holds_again(app: Doubtless, said: Any) -> None:
    run = diverging(app, [100, 120, 100])
    with pytest.raises(NeedsHuman):
        run()
    with pytest.raises(NeedsHuman, match=r"params\.amount = 100"):
        run()
    case = next(case for case in app.inbox().cases if case.kind == "diverged")
    assert (case.evidence["field"], case.evidence["logged"], case.evidence["asked"]) == ("params.amount", 100, 120)
    assert sorted(case.answers) == ["fail", "retry"]
    if said is not None:
        answer(app, case, said)
    assert run() == 100
    assert app.inbox().cases == []


def test_diverged_fail_ends_the_task(app: Doubtless) -> None:
    run = diverging(app, [100, 120, 100])
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            run()
    case = next(case for case in app.inbox().cases if case.kind == "diverged")
    answer(app, case, Fail())
    with pytest.raises(TaskFailed):
        run()


# ---------------------------------------------------------------- hold


@pytest.fixture
def held(app: Doubtless) -> Callable[[], Any]:
    """A task that fails after two effects that have to be undone."""

    def withdraw(order: str, result: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("nothing is withdrawn while a person has not said so")

    @app.step(effect="non_idem_write", compensate=withdraw)
    def book(order: str) -> dict[str, Any]:
        return {"id": order}

    @app.step(effect="non_idem_write", classify=lambda said: REJECTED if isinstance(said, ValueError) else None)
    def submit(order: str) -> dict[str, Any]:
        raise ValueError("refused")

    @app.task(on_failure="hold")
    def two(order: str) -> None:
        book(order=order + "a")
        book(order=order + "b")
        submit(order=order)

    return lambda: app.run(two, "h1", order="o")


def test_a_failed_task_that_has_effects_to_undo_waits_and_lists_them_the_latest_first(
    app: Doubtless, held: Callable[[], Any]
) -> None:
    with pytest.raises(NeedsHuman):
        held()
    (case,) = app.inbox().cases
    assert case.kind == "hold"
    assert [entry["path"] for entry in case.evidence["obligations"]] == ["2", "1"]
    assert case.evidence["failure"]["code"] == "422"
    with pytest.raises(NeedsHuman):
        held()  # resuming changes nothing
    assert [open_case.id for open_case in app.inbox().cases] == [case.id]


def test_let_stand_ends_the_task_failed_and_lists_what_stands(app: Doubtless, held: Callable[[], Any]) -> None:
    with pytest.raises(NeedsHuman):
        held()
    answer(app, app.inbox().cases[0], LetStand())
    for _ in range(2):
        with pytest.raises(TaskFailed) as failed:
            held()
        assert failed.value.status == "failed"
        assert [entry["path"] for entry in failed.value.context["stands"]] == ["2", "1"]
    assert app.inbox().cases == []
    assert app.verify() == []


# ---------------------------------------------------------------- contradiction


def test_noted_closes_a_contradiction_and_changes_nothing_else(make_desk: MakeDesk) -> None:
    desk = make_desk(query=lambda idempotency_key: None, attempts=3)
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("fail", even_now=True))
    with pytest.raises(TaskFailed):
        desk.run()
    contradict(desk, {"id": "payment-1"})
    (case,) = desk.app.inbox().cases
    assert (case.kind, list(case.answers)) == ("contradiction", ["noted"])
    assert case.evidence["late"][0]["output"] == {"id": "payment-1"}
    before = desk.app.show("order-1")
    answer(desk.app, case, Noted())
    after = desk.app.show("order-1")
    assert desk.app.inbox().cases == []
    assert (after.status, after.steps[0].status, after.steps[0].error) == (
        before.status, before.steps[0].status, before.steps[0].error,
    )  # fmt: skip
    assert desk.app.verify() == []


# ---------------------------------------------------------------- all kinds


def test_every_answer_says_what_it_does_and_is_spelled() -> None:
    given = {said for takes in TAKES.values() for said in takes}
    assert given == set(DOES) == set(SPELLED)
    assert all(words.strip() for words in DOES.values())


@pytest.mark.parametrize("said", [Retry(), Fail(), LetStand(), Noted(), Answer(1), Deny(), "happened", None])
def test_a_doubt_takes_no_answer_of_another_kind_of_case(blind: Desk, said: Any) -> None:
    case = blind.doubt()
    with pytest.raises(AnswerRefused, match="does not take") as refusal:
        answer(blind.app, case, said)
    assert refusal.value.hint == "it takes: happened, did_not_happen, abandon"
    assert blind.app.case(case.id) == case


@pytest.mark.parametrize("by", ["", "  "])
def test_an_answer_needs_a_name(blind: Desk, by: str) -> None:
    case = blind.doubt()
    with pytest.raises(AnswerRefused, match="who says so"):
        answer(blind.app, case, Abandon(), by=by)
    assert blind.app.case(case.id) == case


@pytest.mark.parametrize("shown", ["", "0000000", "deadbeefdeadbeef"])
def test_an_answer_needs_the_hash_of_what_was_shown(blind: Desk, shown: str) -> None:
    case = blind.doubt()
    with pytest.raises(CaseChanged, match="doubtless inbox order-1:"):
        answer(blind.app, case, Abandon(), shown=shown)
    assert blind.app.case(case.id) == case


def test_who_and_why_are_in_the_event(blind: Desk) -> None:
    case = blind.doubt()
    answer(blind.app, case, Abandon(), by="béatrice", why="the bank does not answer")
    row = next(row for row in blind.rows() if row.kind == "CaseSettled")
    said = row.details
    assert (said["by"], said["why"], said["answer"], said["shown"]) == (
        "béatrice", "the bank does not answer", "abandon", case.hash,
    )  # fmt: skip


def test_an_answer_is_durable_and_wakes_the_task(blind: Desk, clock: Clock) -> None:
    case = blind.doubt()
    assert blind.status() == "needs_human"
    answer(blind.app, case, Happened({"id": "payment-1"}))
    assert blind.status() == "ready"
    assert blind.app.resume_all() == {"order-1": "done"}


def test_every_answer_is_true_also_one_that_holds_nothing() -> None:
    for kinds in TAKES.values():
        for kind in kinds:
            assert kind(*["retry"] if kind is DidNotHappen else ["x"] if kind in (Answer, Happened) else [])
