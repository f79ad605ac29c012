"""One compensation, in each way that it can go (DESIGN section 4): done only with evidence, never pretended, never twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from undo_ground import Deploys, Office, World, only_case, settle, statuses

from doubtless import (
    Abandon,
    Abort,
    AlreadySettled,
    AlreadyUndone,
    Compensate,
    DidNotHappen,
    Doubtless,
    Happened,
    NeedsHuman,
    NotSent,
    NotUndoable,
    Rejected,
    Secret,
    TaskFailed,
    TaskFrozen,
    injected,
    record_handle,
)
from doubtless.testing import FakeClock


@dataclass
class Sheet:
    number: int


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def lost(do: Any) -> Any:
    do()
    raise ConnectionResetError("the reply was lost")


def vanished(do: Any) -> Any:
    raise ConnectionResetError("the reply was lost")


def raising(error: BaseException) -> Any:
    def go(do: Any) -> Any:
        raise error

    return go


def test_a_failed_task_undoes_its_effects_the_latest_first_and_ends_compensated(app: Doubtless, world: World) -> None:
    error = Office(app, world).failed(3)
    assert error.status == "compensated"
    assert world.undone == ["s3", "s2", "s1"]
    assert world.calls == ["s3", "s2", "s1"]
    assert app.show("t").status == "compensated"
    assert error.context["failure"]["kind"] == "rejected"
    assert error.context["stands"] == []
    assert statuses(app) == {
        "1": "compensated", "2": "compensated", "3": "compensated", "4": "not_applied", "~3": "done", "~2": "done", "~1": "done",
    }  # fmt: skip


def test_a_compensation_gets_params_result_and_a_key_of_its_own(app: Doubtless, world: World) -> None:
    Office(app, world).failed(1)
    (params,) = world.params
    assert params["result"] == {"sheet": "s1", "number": 1}
    steps = {step.path: step for step in app.show("t").steps}
    assert steps["~1"].keys == (params["key"],)
    assert params["key"] not in steps["1"].keys
    assert steps["~1"].params == {"name": "s1", "result": {"sheet": "s1", "number": 1}}


@pytest.mark.parametrize("how", [lambda do: AlreadyUndone({"since": "May"}), raising(AlreadyUndone()), raising(AlreadyUndone("x"))])
def test_what_was_undone_already_counts_as_done(app: Doubtless, world: World, how: Any) -> None:
    world.goes = [how]
    assert Office(app, world).failed(1).status == "compensated"
    assert (world.calls, world.undone) == (["s1"], [])
    assert statuses(app)["1"] == "compensated"


@pytest.mark.parametrize("how", [lambda do: NotUndoable("processed"), raising(NotUndoable("processed"))])
@pytest.mark.parametrize("retry_rejected", [False, True])
def test_what_cannot_be_undone_is_never_pretended_away(app: Doubtless, world: World, how: Any, retry_rejected: bool) -> None:
    """C70: an approval that somebody has processed goes to a person, and the machine does not try again."""
    world.goes = [how]
    office = Office(app, world, query=True, retry_rejected=retry_rejected)
    for _ in range(3):
        with pytest.raises(NeedsHuman) as caught:
            office.run(2)
    case = only_case(app)
    assert caught.value.cases == (case.id,)
    assert (case.kind, case.path, case.step) == ("compensation", "~2", "withdraw")
    assert "processed" in case.why
    assert list(case.answers) == ["happened", "did_not_happen", "abandon"]
    assert world.calls == ["s2"]  # the next one waits for this one
    assert app.show("t").status == "needs_human"
    assert statuses(app)["2"] == "done"


@pytest.mark.parametrize("nothing", [None, True, False, {}, [], "", 0])
def test_a_compensation_that_shows_nothing_is_asked_about_and_without_a_query_a_person_is(
    app: Doubtless, world: World, nothing: Any
) -> None:
    """C68: "ok" without evidence is not done."""

    def silent(do: Any) -> Any:
        do()
        return nothing

    world.goes = [silent]
    office = Office(app, world)
    with pytest.raises(NeedsHuman):
        office.run(1)
    assert only_case(app).kind == "compensation"
    assert statuses(app) == {"1": "done", "2": "not_applied", "~1": "needs_human"}
    assert world.calls == ["s1"]


@pytest.mark.parametrize("effect", ["non_idem_write", "idem_write"])
def test_a_compensation_that_shows_nothing_is_done_when_its_query_finds_it_and_is_not_sent_again(
    app: Doubtless, world: World, effect: str
) -> None:
    def silent(do: Any) -> Any:
        do()

    world.goes = [silent]
    assert Office(app, world, query=True, effect=effect).failed(1).status == "compensated"
    assert (world.calls, world.undone) == (["s1"], ["s1"])


def test_an_unknown_outcome_is_looked_up_and_undone_once(app: Doubtless, world: World) -> None:
    world.goes = [lost]
    assert Office(app, world, query=True).failed(3).status == "compensated"
    assert world.calls == world.undone == ["s3", "s2", "s1"]


def test_an_unknown_outcome_that_nobody_can_look_up_goes_to_a_person(app: Doubtless, world: World) -> None:
    world.goes = [lost]
    office = Office(app, world)
    with pytest.raises(NeedsHuman):
        office.run(2)
    assert only_case(app).kind == "compensation"
    settle(app, Happened({"seen": "in the office's list"}))
    error = office.failed(2)
    assert error.status == "compensated"
    assert world.calls == world.undone == ["s2", "s1"]
    assert statuses(app)["2"] == "compensated"


def test_what_is_not_sent_is_sent_again_within_the_budget(app: Doubtless, world: World) -> None:
    world.goes = [raising(NotSent("down")), raising(NotSent("down"))]
    assert Office(app, world).failed(1).status == "compensated"
    assert world.calls == ["s1"] * 3
    assert world.undone == ["s1"]


def test_a_compensation_whose_budget_is_used_up_goes_to_a_person_and_their_retry_sends_it_once_more(
    app: Doubtless, world: World
) -> None:
    """C71: what fails for ever stops visibly; nothing after it is skipped, nothing is silent."""
    world.goes = [raising(NotSent("down"))] * 4
    office = Office(app, world)
    with pytest.raises(NeedsHuman):
        office.run(2)
    assert world.calls == ["s2"] * 3
    case = only_case(app)
    assert case.kind == "compensation"
    settle(app, DidNotHappen("retry"))
    with pytest.raises(NeedsHuman):
        office.run(2)
    assert world.calls == ["s2"] * 4
    settle(app, DidNotHappen("retry"))
    assert office.failed(2).status == "compensated"
    assert world.calls == ["s2"] * 5 + ["s1"]


@pytest.mark.parametrize(("answer", "may"), [(DidNotHappen("fail"), False), (Abandon(), True)])
def test_where_a_person_lets_an_effect_stand_the_end_is_failed_and_lists_it(
    app: Doubtless, world: World, answer: Any, may: bool
) -> None:
    world.goes = [raising(Rejected("409", "locked"))]
    office = Office(app, world)
    with pytest.raises(NeedsHuman):
        office.run(2)
    settle(app, answer)
    error = office.failed(2)
    assert error.status == "failed"
    assert world.undone == ["s1"]
    assert error.context["stands"] == [{"path": "2", "step": "make", "compensate": "withdraw"} | ({"may": True} if may else {})]
    assert statuses(app)["1"] == "compensated"
    assert app.inbox().cases == []


def test_a_rejected_compensation_goes_to_a_person(app: Doubtless, world: World) -> None:
    world.goes = [raising(Rejected("409", "locked"))]
    with pytest.raises(NeedsHuman):
        Office(app, world, query=True).run(1)
    assert only_case(app).kind == "compensation"
    assert "409" in only_case(app).why


def test_a_write_without_a_compensation_is_listed_as_standing(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def notify() -> int:
        return 1


    @app.task
    def task() -> None:
        notify()
        raise Abort("changed my mind")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "failed"  # nothing was undone
    assert caught.value.context["stands"] == [{"path": "1", "step": "notify", "compensate": None}]


# ---------------------------------------------------------------- a handler that is gone


def test_a_handler_that_a_deploy_removed_is_a_case_and_never_a_skip(deploy: Deploys, world: World) -> None:
    """C67."""
    world.goes = [raising(NotUndoable("not yet"))]
    with pytest.raises(NeedsHuman):
        Office(deploy(), world).run(3)
    settle(deploy.apps[0], Happened({"by": "hand"}))
    gone = Office(deploy(), world, withdrawn=False)
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            gone.run(3)
    case = only_case(gone.app)
    assert (case.kind, case.path, case.step) == ("compensation", "~2", "withdraw")
    assert "gone from the table" in case.why
    assert gone.app.show("t").status == "needs_human"
    assert world.calls == ["s3"]


def test_when_the_handler_is_back_the_machine_goes_on_and_the_case_is_closed(deploy: Deploys, world: World) -> None:
    first = deploy()
    office = Office(first, world, on_failure="hold")
    with pytest.raises(NeedsHuman):
        office.run(2)

    settle(first, Compensate())
    gone = Office(deploy(), world, withdrawn=False)
    with pytest.raises(NeedsHuman):
        gone.run(2)
    back = Office(deploy(), world)
    assert back.failed(2).status == "compensated"
    assert world.calls == world.undone == ["s2", "s1"]
    assert back.app.inbox().cases == []


@pytest.mark.parametrize("answer", [Happened({"by": "hand"}), DidNotHappen("fail"), Abandon()])
def test_a_person_settles_what_has_no_handler_any_more(deploy: Deploys, world: World, answer: Any) -> None:
    office = Office(deploy(), world, on_failure="hold")
    with pytest.raises(NeedsHuman):
        office.run(1)

    settle(office.app, Compensate())
    gone = Office(deploy(), world, withdrawn=False)
    with pytest.raises(NeedsHuman):
        gone.run(1)
    settle(gone.app, answer)
    error = gone.failed(1)
    assert error.status == ("compensated" if isinstance(answer, Happened) else "failed")
    assert [entry["path"] for entry in error.context["stands"]] == ([] if isinstance(answer, Happened) else ["1"])
    assert world.calls == []


# ---------------------------------------------------------------- the deadline


def test_after_the_deadline_nothing_is_sent_and_a_case_is_open_also_when_it_passed_while_the_process_was_down(
    deploy: Deploys, world: World, clock: FakeClock
) -> None:
    office = Office(deploy(), world, create={"compensate_deadline": "PT10M"}, on_failure="hold")
    with pytest.raises(NeedsHuman):
        office.run(2)

    settle(office.app, Compensate())
    clock.advance("PT11M")  # nobody is there
    later = Office(deploy(), world, create={"compensate_deadline": "PT10M"})
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            later.run(2)
    case = only_case(later.app)
    assert (case.kind, case.path) == ("compensation", "~2")
    assert "compensate_deadline" in case.why
    assert case.evidence["params"] == {"name": "s2", "result": {"sheet": "s2", "number": 2}}
    assert world.calls == []
    settle(later.app, DidNotHappen("retry"))  # a person may: the next one asks again
    with pytest.raises(NeedsHuman):
        later.run(2)
    assert world.calls == ["s2"]
    assert only_case(later.app).path == "~1"


def test_the_deadline_stops_retries_too_and_the_case_opens_in_time(deploy: Deploys, world: World, clock: FakeClock) -> None:
    world.goes = [raising(NotSent("down", retry_after="PT1H"))]
    begun = clock.now().wall
    office = Office(deploy(), world, create={"compensate_deadline": "PT10M"})
    with pytest.raises(NeedsHuman):
        office.run(1)
    assert world.calls == ["s1"]
    assert only_case(office.app).opened_at - begun == pytest.approx(600e6, abs=1e6)


def test_late_success_after_the_deadline_closes_the_case_and_settles_the_obligation(
    deploy: Deploys, world: World, clock: FakeClock
) -> None:
    """What is in flight at the deadline is settled, and its result kept."""

    def slow(do: Any) -> Any:
        clock.advance("PT11M")
        do()
        raise ConnectionResetError("the reply was lost")

    world.goes = [slow]
    office = Office(deploy(), world, create={"compensate_deadline": "PT10M"}, query=True)
    assert office.failed(1).status == "compensated"
    assert world.calls == world.undone == ["s1"]
    assert office.app.inbox().cases == []
    told = [row.kind for row in office.app.store.rows("t") if row.path == "~1"]
    assert told.count("CaseOpened") == told.count("CaseSettled") == 1


def test_the_deadline_runs_from_the_first_attempt_that_may_have_done_it(
    deploy: Deploys, world: World, clock: FakeClock
) -> None:
    app = deploy()
    tries: list[int] = []

    @app.step(effect="non_idem_write")
    def withdraw(result: dict[str, Any]) -> Any:
        return world.withdraw("s1")

    @app.step(effect="non_idem_write", compensate=withdraw, compensate_deadline="PT10M", attempts=5)
    def make() -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise NotSent("down", retry_after="PT9M")  # surely no effect: does not count
        clock.advance("PT5M")
        return world.make("s1")


    @app.task
    def task() -> None:
        make()
        raise Abort("no")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"


def test_a_step_in_doubt_is_settled_before_anything_is_undone(app: Doubtless, world: World) -> None:
    """C66: the step that failed is not undone; one that may have worked is looked up first, and undone if it did."""
    import asyncio

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw, query=lambda name: {"sheet": name} if name in world.made else None)
    async def make(name: str) -> dict[str, Any]:
        world.make(name)
        raise ConnectionResetError("the reply was lost")

    @app.step(effect="non_idem_write", compensate=withdraw)
    async def refused(name: str) -> dict[str, Any]:
        raise Rejected("422")

    @app.task
    async def task() -> None:
        await asyncio.gather(make(name="s1"), refused(name="s2"))

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    assert world.calls == ["s1"]


def test_a_compensation_that_a_person_has_given_up_is_not_answered_again_when_its_task_has_ended(
    app: Doubtless, world: World
) -> None:
    """C73: one answer for a case, also after the end; the second one sends nothing."""
    world.goes = [raising(NotUndoable("processed"))]
    office = Office(app, world)
    with pytest.raises(NeedsHuman):
        office.run(1)
    case = only_case(app)
    settle(app, DidNotHappen("fail"))
    assert office.failed(1).status == "failed"
    with pytest.raises(AlreadySettled):
        app.settle(case.id, DidNotHappen("retry"), by="bo", why="changed my mind", shown=case.hash)
    assert office.failed(1).status == "failed"
    assert world.calls == ["s1"]


@pytest.mark.parametrize("at", range(2, 12))
def test_a_compensation_is_not_called_when_its_deadline_passes_while_its_intent_is_written(
    deploy: Deploys, world: World, clock: FakeClock, at: int
) -> None:
    """The clock is looked at again right before the call: a commit can take long, a process can stand still."""
    commits: list[str] = []
    late: list[bool] = []

    def hook(name: str) -> None:
        if name == "append:after":
            commits.append(name)
            if len(commits) == at:
                clock.advance("PT11M")
                late.append(True)

    called_late: list[bool] = []
    world.goes = [lambda do: called_late.append(bool(late)) or do()]
    office = Office(deploy(hooks=hook), world, create={"compensate_deadline": "PT10M"})
    with pytest.raises((NeedsHuman, TaskFailed)):
        office.run(1)
    assert True not in called_late
    if not called_late:
        assert only_case(office.app).kind == "compensation"


def test_a_frozen_compensation_is_not_sent_and_goes_on_when_it_is_thawed(app: Doubtless, world: World) -> None:
    office = Office(app, world, on_failure="hold")
    with pytest.raises(NeedsHuman):
        office.run(2)
    settle(app, Compensate())
    app.freeze("withdraw", why="incident")
    for _ in range(2):
        with pytest.raises(TaskFrozen):
            office.run(2)
    assert world.calls == []
    assert app.show("t").status == "compensating"
    app.thaw("withdraw", why="over")
    assert office.failed(2).status == "compensated"


def test_secrets_of_the_original_are_resolved_for_its_compensation_and_stored_nowhere(deploy: Deploys, world: World) -> None:
    app = deploy(secrets={"test": lambda name: "s3cret-value"})
    seen: list[str] = []

    def withdraw(token: str, result: dict[str, Any]) -> Any:
        seen.append(token)
        return world.withdraw(result["sheet"])

    @app.step(effect="non_idem_write", compensate=withdraw, secret="token")
    def make(name: str, token: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1", token=Secret("test:key"))  # type: ignore[arg-type]
        raise Abort("no")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    assert seen == ["s3cret-value"]
    steps = {step.path: step for step in app.show("t").steps}
    assert steps["~1"].params["token"] == {"$secret": "test:key"}


def test_the_params_of_a_compensation_have_the_types_that_it_declares(app: Doubtless, world: World) -> None:
    seen: list[Any] = []

    def withdraw(result: Sheet, day: date, handle: str, first_sent_at: float, idempotency_key: str) -> Any:
        seen.append((result, day, handle, first_sent_at > 0, idempotency_key))
        return {"withdrawn": result.number}

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(day: date, idempotency_key: str = injected()) -> Sheet:
        record_handle("h-1")
        seen.append(idempotency_key)
        return Sheet(7)

    @app.task
    def task() -> None:
        make(day=date(2026, 11, 28))
        raise Abort("no")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    key, given = seen
    assert given == (Sheet(7), date(2026, 11, 28), "h-1", True, key)
