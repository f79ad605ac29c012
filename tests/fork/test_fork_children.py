"""Forks of tasks with children: a child that was done is taken over whole; one beyond the point is held against its effects."""

from __future__ import annotations

from typing import Any

import pytest
from fork_ground import Ground, Steps, answer, needs_human, question, story

from doubtless import Abort, Denied, TaskFailed, UsageError


def with_child(ground: Ground, **options: Any) -> tuple[Any, Any]:
    """A release whose task reads, calls a child that pays, and tells."""
    have: list[Steps] = []

    def code(steps: Steps) -> list[Any]:
        have.append(steps)
        return [steps.read("a"), child(what="in the child"), steps.tell("after")["id"]]

    app, work = ground.release(code)

    @app.task
    def child(what: str) -> int:
        return have[-1].pay(what)["id"]

    return app, work


def test_a_child_that_was_done_before_the_point_is_its_recorded_output(ground: Ground) -> None:
    app, work = with_child(ground)
    assert app.run(work, "t") == [1, 1, 2]
    app.fork("t", at=3, non_idem_write="run")
    assert app.resume("t@3") == [1, 1, 3]
    assert ground.n("pay") == 1
    assert app.store.head("t@3/2") is None, "no child was started"
    assert story(app, "t@3")["2"] == ("child", "done", 0)


def test_a_child_beyond_the_point_is_a_new_child_whose_writes_are_held_against_what_the_old_one_did(ground: Ground) -> None:
    app, work = with_child(ground)
    app.run(work, "t")
    fork = app.fork("t", at=2)
    assert [(one.task, one.path, one.step) for one in fork.stands] == [("t/2", "1", "pay"), ("t", "3", "tell")]
    error = needs_human(lambda: app.resume("t@2"))
    case = question(app)
    assert case.task_id == "t@2/2"
    assert error.cases == (case.id,)
    assert [(one["task"], one["step"]) for one in case.evidence["stands"]] == [("t/2", "pay"), ("t", "tell")]
    assert len(ground.effects) == 2
    answer(app, "reuse")
    needs_human(lambda: app.resume("t@2"))
    assert [(one["task"], one["step"]) for one in question(app).evidence["stands"]] == [("t", "tell")]
    answer(app, "reuse")
    assert app.resume("t@2") == [1, 1, 2]
    assert len(ground.effects) == 2


def test_a_policy_holds_in_children_too(ground: Ground) -> None:
    app, work = with_child(ground)
    app.run(work, "t")
    app.fork("t", at=2, non_idem_write="reuse")
    assert app.resume("t@2") == [1, 1, 2]
    assert len(ground.effects) == 2


def test_a_fork_of_a_fork_still_knows_the_effects_of_a_child_that_was_taken_over(ground: Ground) -> None:
    app, work = with_child(ground)
    app.run(work, "t")
    app.fork("t", at=3, non_idem_write="reuse")
    app.resume("t@3")
    second = app.fork("t@3", at=1, task_id="second")
    assert {(one.task, one.path) for one in second.stands} == {("t/2", "1"), ("t", "3")}


def test_a_child_with_a_write_in_doubt_at_or_before_the_point_refuses_the_fork(ground: Ground) -> None:
    app, work = with_child(ground)
    ground.raises = ConnectionResetError()
    needs_human(lambda: app.run(work, "t"))
    with pytest.raises(UsageError, match="child at 2, is a child task with a write in doubt"):
        app.fork("t", at=2)
    assert [one.status for one in app.fork("t", at=1).stands] == ["needs_human"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("said", ["yes", "deny"])
def test_an_answer_that_was_given_to_a_child_never_answers_a_fork(ground: Ground, said: str, depth: int) -> None:
    """The output of such a child is a person's word; taken over, the fork would pay by an approval of another task."""
    have: list[Steps] = []

    def code(steps: Steps) -> Any:
        have.append(steps)
        return [steps.read("a"), (approved if depth == 1 else through)(), steps.pay("by that approval")["id"]]

    app, work = ground.release(code)

    @app.task
    def approved() -> str:
        try:
            return str(have[-1].app.wait_for("approval"))
        except Denied:
            return "no"

    @app.task
    def through() -> str:
        return approved()

    needs_human(lambda: app.run(work, "t"))
    answer(app, said)
    assert app.run(work, "t") == [1, "no" if said == "deny" else "yes", 1]
    name = "approved" if depth == 1 else "through"
    with pytest.raises(UsageError, match=f"2, {name} at 2, is a child task that a person or an event has answered") as refused:
        app.fork("t", at=3)
    assert refused.value.hint == "fork at it or before: doubtless fork MODULE:APP t --at 2"
    fork = app.fork("t", at=2, non_idem_write="reuse")
    error = needs_human(lambda: app.resume(fork.id))
    assert question(app).id == error.cases[0], "the approval is asked for anew"
    answer(app, "a yes of its own")
    assert app.resume(fork.id) == [1, "a yes of its own", 1]
    assert len(ground.effects) == 1


def test_a_compensation_that_is_a_task_asks_nothing_of_a_fork(ground: Ground) -> None:
    """What the original did beyond the point is no reason to leave an effect of the fork standing."""
    have: list[Steps] = []

    def code(steps: Steps) -> Any:
        have.append(steps)
        steps.app.steps["book"]()
        if len(have) > 1:
            raise Abort("no")
        steps.tell("booked")  # it stands, and the fork never comes to it

    app, work = ground.release(code)
    undone = []

    @app.step(effect="non_idem_write")
    def cancel_booking() -> dict[str, Any]:
        undone.append(1)
        return {"cancelled": True}

    @app.task
    def unbook(result: dict[str, Any]) -> dict[str, Any]:
        return cancel_booking()

    @app.step(effect="non_idem_write", compensate=unbook)
    def book() -> dict[str, Any]:
        return {"booked": True}

    app.run(work, "t")
    app.fork("t", at=1, task_id="f")
    needs_human(lambda: app.resume("f"))
    answer(app, "run")
    with pytest.raises(TaskFailed):
        app.resume("f")
    assert app.show("f").status == "compensated"
    assert undone == [1]
    assert app.inbox().cases == []
