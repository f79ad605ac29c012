"""Budgets on choices and on cost: counted from the log, durable, and in the end a person's matter."""

from __future__ import annotations

from typing import Any

import pytest
from agents_ground import Releases, Script, World, answer, call, turn

from doubtless import Fail, Finish, NeedsHuman, Retry, TaskFailed

LOOKS = tuple(turn(call("look", f"c{number}", day=str(number))) for number in range(9))


def test_after_its_last_choice_the_agent_parks_and_the_model_is_not_asked(release: Releases, world: World) -> None:
    script = Script(*LOOKS)
    app = release()
    agent = app.agent("clerk", choose=script, steps=["look"], max_choices=3)
    with pytest.raises(NeedsHuman, match="has made 3 choices, its max_choices"):
        app.run(agent, "t1", goal="")
    case = app.inbox().cases[0]
    assert (case.kind, case.evidence["error"]) == ("code_error", "BudgetUsedUp")
    assert (script.asked, world.n("look")) == ([0, 1, 2], 3)


def test_neither_a_resume_nor_a_new_process_nor_a_retry_makes_the_budget_larger(release: Releases) -> None:
    script = Script(*LOOKS)
    for number in range(3):
        app = release()
        agent = app.agent("clerk", choose=script, steps=["look"], max_choices=3)
        with pytest.raises(NeedsHuman):
            app.run(agent, "t1", goal="")
        if number:
            answer(app, Retry())
            with pytest.raises(NeedsHuman):
                app.run(agent, "t1", goal="")
    assert script.asked == [0, 1, 2]


def test_a_release_with_a_larger_budget_goes_on_where_the_agent_stood(release: Releases, world: World) -> None:
    script = Script(*LOOKS[:4], Finish("done"))
    app = release()
    with pytest.raises(NeedsHuman):
        app.run(app.agent("clerk", choose=script, steps=["look"], max_choices=3), "t1", goal="")
    app = release()
    answer(app, Retry())
    assert app.run(app.agent("clerk", choose=script, steps=["look"], max_choices=5), "t1", goal="") == "done"
    assert (script.asked, world.n("look")) == ([0, 1, 2, 3, 4], 4)


def test_a_person_may_end_an_agent_that_has_used_up_its_budget(release: Releases) -> None:
    app = release()
    agent = app.agent("clerk", choose=Script(*LOOKS), steps=["look"], max_choices=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Fail())
    with pytest.raises(TaskFailed):
        app.run(agent, "t1", goal="")


def test_cost_counts_each_call_of_a_read_and_of_the_model_also_those_that_failed(release: Releases) -> None:
    app = release()
    left = [ConnectionError("later"), ConnectionError("later")]

    @app.step(effect="read", cost=10, backoff=0)
    def ask(what: str) -> str:
        if left:
            raise left.pop()
        return what

    @app.step(effect="non_idem_write", cost=100)
    def order(what: str) -> dict[str, Any]:
        return {"ordered": what}

    flaky = [ValueError("nonsense")]

    def second(state: object) -> Any:
        if flaky:
            raise flaky.pop()
        return turn(call("order", what="tea"))

    script = Script(turn(call("ask", what="tea")), second, Finish())
    agent = app.agent("clerk", choose=script, steps=[ask, order], cost=0.5, backoff=0)
    app.run(agent, "t1", goal="")
    assert [state.cost for state in script.states] == [0, 30.5, 30.5, 131.5]
    costs = Script(*script.lines)
    again = release()
    again.step(effect="read", cost=10, name="ask")(lambda what: what)
    again.step(effect="non_idem_write", cost=100, name="order")(lambda what: {"ordered": what})
    again.run(again.agent("clerk", choose=costs, steps=["ask", "order"], cost=0.5), "t2", goal="")
    assert [state.cost for state in costs.states] == [0, 10.5, 111]


def test_when_its_cost_is_used_up_the_agent_parks_and_a_crash_resets_nothing(release: Releases, world: World) -> None:
    script = Script(*LOOKS)
    for _ in range(2):
        app = release()
        agent = app.agent("clerk", choose=script, steps=["look"], cost=1, max_cost=4)
        with pytest.raises(NeedsHuman, match="has spent 4, of its max_cost 4"):
            app.run(agent, "t1", goal="")
    assert (script.asked, world.n("look")) == ([0, 1], 2)


def test_the_attempts_of_a_model_that_is_down_count_too(release: Releases) -> None:
    script = Script(LOOKS[0], ConnectionError("down"))
    app = release()
    agent = app.agent("clerk", choose=script, steps=["look"], cost=1, max_cost=4, attempts=2, backoff=0)
    with pytest.raises(NeedsHuman, match="exhausted"):
        app.run(agent, "t1", goal="")
    answer(app, Retry())
    with pytest.raises(NeedsHuman, match="max_cost"):
        app.run(agent, "t1", goal="")
    assert script.asked == [0, 1, 1], "1 + 1 for the first turn, 2 for the failed attempts: nothing is left for a third"
