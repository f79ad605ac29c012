"""A deploy changes the agent while a task of it is under way: what was begun goes on by name, what was only chosen does not."""

from __future__ import annotations

from typing import Any

import pytest
from agents_ground import Releases, Script, World, answer, call, places, rows, statuses, turn

from doubtless import DidNotHappen, Diverged, Doubtless, Finish, Happened, NeedsHuman, NotSent, Retry, Secret, TaskWaiting
from doubtless.recorded import call_own, own_step

LINES = (turn(call("look", "a", day="monday")), turn(call("send", "b", to="anna")), Finish("done"))


def bare(release: Releases) -> Doubtless:
    """A release without the steps of the ones before."""
    app = Doubtless(release.url, clock=release.clock, namespace="tests")
    release.apps.append(app)
    return app


def stopped(release: Releases, world: World, lines: Any = LINES, steps: Any = ("look", "send"), **options: Any) -> None:
    """An agent that stands before a person's answer about what it sent to anna."""
    world.lose.add("anna")
    app = release()
    with pytest.raises(NeedsHuman):
        app.run(app.agent("clerk", choose=Script(*lines), steps=steps, **options), "t1", goal="")


def test_recorded_choices_are_replayed_by_name_although_the_agent_has_other_steps_now(release: Releases, world: World) -> None:
    stopped(release, world)
    app = release()
    answer(app, Happened({"id": 1}))
    script = Script(*LINES)
    assert app.run(app.agent("clerk", choose=script, steps=["pay"]), "t1", goal="") == "done"
    assert script.asked == [2]
    assert statuses(script.states[0].facts) == [("a", "done"), ("b", "done")]
    assert [tool["name"] for tool in script.states[0].tools] == ["pay"]


def test_settled_steps_are_replayed_although_they_are_gone_from_the_program(release: Releases, world: World) -> None:
    stopped(release, world)
    answer(release.apps[0], Happened({"id": 1}))
    app = bare(release)
    script = Script(*LINES)
    assert app.run(app.agent("clerk", choose=script, steps=[]), "t1", goal="") == "done"
    assert statuses(script.states[0].facts) == [("a", "done"), ("b", "done")]


def test_settled_steps_are_replayed_although_their_params_have_changed(release: Releases, world: World) -> None:
    stopped(release, world)
    answer(release.apps[0], Happened({"id": 1}))
    app = bare(release)

    @app.step(effect="read")
    def look(week: int) -> int:
        return 1

    @app.step(effect="non_idem_write")
    def send(to: str, subject: str) -> dict[str, Any]:
        return world.do("send", to)

    script = Script(*LINES)
    assert app.run(app.agent("clerk", choose=script, steps=[look, send]), "t1", goal="") == "done"
    assert world.n("send") == 1


def test_of_a_turn_that_is_half_done_the_settled_half_needs_its_step_no_more(release: Releases, world: World) -> None:
    lines = (turn(call("look", "a", day="monday"), call("send", "b", to="anna"), call("pay", "c", order="o1", amount=5)), Finish("done"))
    stopped(release, world, lines, ("look", "send", "pay"), concurrency=1)
    answer(release.apps[0], Happened({"id": 1}))
    app = bare(release)

    @app.step(effect="non_idem_write")
    def pay(order: str, amount: int) -> dict[str, Any]:
        return world.do("pay", order)

    script = Script(*lines)
    assert app.run(app.agent("clerk", choose=script, steps=[pay]), "t1", goal="") == "done"
    assert statuses(script.states[0].facts) == [("a", "done"), ("b", "done"), ("c", "done")]
    assert (world.n("look"), world.n("pay")) == (1, 1)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_that_holds_another_step_than_the_choice_names_has_diverged(release: Releases, world: World, is_open: bool) -> None:
    old = bare(release)
    choice = {"calls": [{"name": "pay", "params": {"order": "o1", "amount": 5}, "call_id": "a"}], "memo": None}
    choose = own_step("$choose", lambda turn: choice)

    @old.step(effect="read", backoff="PT1H")
    def look() -> int:
        if is_open:
            raise ValueError("later")
        return 1

    @old.task(name="clerk")
    def other(goal: str) -> None:
        call_own(choose, "choose", turn=1)
        old.parallel(lambda: look())
        raise ValueError("stand here")

    old._faults.clear()  # `goal` is an agent's; here a plain task stands in for another program
    with pytest.raises((NeedsHuman, TaskWaiting)):
        old.run(other, "t1", wait=False, goal="")
    before = [row.kind for row in rows(old, "t1") if row.path == "2.1.1"]
    app = release()
    with pytest.raises(NeedsHuman, match="the log holds another step than the choice names"):
        app.run(app.agent("clerk", choose=Script(), steps=["pay"]), "t1", goal="")
    assert world.n() == 0
    assert [row.kind for row in rows(app, "t1") if row.path == "2.1.1"] == before


def test_a_write_that_was_begun_goes_on_with_its_stored_params_although_the_agent_may_not_choose_it_any_more(
    release: Releases, world: World
) -> None:
    stopped(release, world)
    app = release()
    answer(app, DidNotHappen("retry", even_now=True))
    script = Script(*LINES)
    assert app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal="") == "done"
    assert world.n("send", "anna") == 2, "the first, and the one that a person has allowed"


def test_a_write_that_has_not_left_yet_is_sent_with_its_stored_params_by_a_release_whose_agent_may_not_choose_it(
    release: Releases, world: World
) -> None:
    """Its intent stands, its key is taken; only the agent's list and what is bound have changed."""
    down = [True]

    def with_order(app: Doubtless) -> Doubtless:
        @app.step(effect="non_idem_write", backoff="PT1H")
        def order(what: str, tenant: str) -> dict[str, Any]:
            if down:
                raise NotSent("no route to the other side")
            return world.do("order", f"{what} for {tenant}")

        return app

    lines = (turn(call("order", "a", what="tea")), Finish("done"))
    app = with_order(release())
    with pytest.raises(TaskWaiting):
        agent = app.agent("clerk", choose=Script(*lines), steps=["order"], bind={"order": {"tenant": "acme"}})
        app.run(agent, "t1", wait=False, goal="")
    down.clear()
    app = with_order(release())
    script = Script(*lines)
    assert app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal="") == "done"
    assert [what for _, what, _ in world.done] == ["tea for acme"]
    assert statuses(script.states[0].facts) == [("a", "done")]


def test_what_was_chosen_and_not_begun_is_not_sent_by_a_release_that_has_taken_the_step_away(release: Releases, world: World) -> None:
    lines = (turn(call("send", "b", to="anna"), call("pay", "c", order="o1", amount=5)), Finish("done"))
    stopped(release, world, lines, ("send", "pay"), concurrency=1)
    assert world.n("pay") == 0
    app = release()
    answer(app, Happened({"id": 1}))
    script = Script(*lines)
    with pytest.raises(NeedsHuman, match="cannot call"):
        app.run(app.agent("clerk", choose=script, steps=["send"]), "t1", goal="")
    assert world.n("pay") == 0
    assert [case.kind for case in app.inbox().cases] == ["diverged"]
    back = release()
    answer(back, Retry())
    assert back.run(back.agent("clerk", choose=script, steps=["send", "pay"]), "t1", goal="") == "done"
    assert world.n("pay") == 1


def test_what_the_developer_binds_may_change_for_what_is_not_begun(
    release: Releases, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (turn(call("send", "b", to="anna"), call("charge", "c", order="o1")), Finish("done"))

    def with_charge(app: Doubtless) -> Doubtless:
        @app.step(effect="non_idem_write", secret=("token",))
        def charge(order: str, tenant: str, token: str) -> dict[str, Any]:
            return world.do("charge", [order, tenant])

        return app

    monkeypatch.setenv("CHARGE_TOKEN", "t0ken")
    bind = {"charge": {"tenant": "acme", "token": Secret("env:CHARGE_TOKEN")}}
    world.lose.add("anna")
    app = with_charge(release())
    with pytest.raises(NeedsHuman):
        app.run(app.agent("clerk", choose=Script(*lines), steps=["send", "charge"], bind=bind, concurrency=1), "t1", goal="")
    answer(app, Happened({"id": 1}))
    app = with_charge(release())
    bind = {"charge": {"tenant": "other", "token": Secret("env:CHARGE_TOKEN")}}
    assert app.run(app.agent("clerk", choose=Script(*lines), steps=["send", "charge"], bind=bind), "t1", goal="") == "done"
    assert [what for name, what, _ in world.done if name == "charge"] == [["o1", "other"]]
    again = with_charge(release())
    assert again.run(again.agent("clerk", choose=Script(), steps=["send", "charge"], bind=bind), "t1", goal="") == "done"


def test_a_log_that_is_no_agents_is_not_taken_for_one(release: Releases) -> None:
    app = release()

    @app.task(name="clerk")
    def plain(goal_: str) -> int:
        return len(app.steps["look"](day="monday"))

    assert app.run(plain, "t1", goal_="x") == 2
    other = bare(release)

    @other.step(effect="read")
    def look(day: str) -> list[int]:
        raise ValueError("wait")

    @other.task(name="clerk")
    def waits(goal: str) -> int:
        return len(look(day="monday"))

    other._faults.clear()  # `goal` is an agent's; here a plain task stands in for an older program
    with pytest.raises(NeedsHuman):
        other.run(waits, "t2", "x")
    new = release()
    with pytest.raises((NeedsHuman, Diverged), match="look"):
        new.run(new.agent("clerk", choose=Script(Finish()), steps=["look"]), "t2", goal="x")
    assert [case.kind for case in new.inbox().cases if case.task_id == "t2"][-1] == "diverged"
    assert not rows(new, "t2", "$choose")
    assert places(new, "t2") == [("1", "look", "failed")]
