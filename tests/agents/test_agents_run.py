"""An agent runs: its model chooses, each choice is recorded once, each call is a step of its own."""

from __future__ import annotations

import asyncio

import pytest
from agents_ground import Releases, Script, World, asynchronous, call, places, statuses, turn

from doubtless import Finish

LINES = (
    turn(call("look", day="monday"), memo={"said": "let me look"}),
    turn(call("pay", "c1", order="o1", amount=5), call("send", "c2", to="anna")),
    Finish({"paid": 1}),
)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_chooses_the_steps_and_its_end_is_the_output_of_the_task(release: Releases, world: World, is_async: bool) -> None:
    script = Script(*LINES)
    app = release()
    agent = app.agent("clerk", choose=asynchronous(script) if is_async else script, steps=["look", "pay", "send"])
    assert app.run(agent, "t1", goal="pay what is due") == {"paid": 1}
    assert sorted(places(app, "t1")) == [
        ("1", "$choose", "done"), ("2.1.1", "look", "done"), ("3", "$choose", "done"), ("4.1.1", "pay", "done"),
        ("4.2.1", "send", "done"), ("5", "$choose", "done"),
    ]  # fmt: skip
    assert (world.n("look"), world.n("pay"), world.n("send")) == (1, 1, 1)
    assert app.run(agent, "t1", goal="pay what is due") == {"paid": 1}
    assert script.asked == [0, 1, 2]


def test_an_agent_with_an_async_model_runs_on_the_callers_event_loop(release: Releases, world: World) -> None:
    script = Script(*LINES)
    app = release()
    agent = app.agent("clerk", choose=asynchronous(script), steps=["look", "pay", "send"])
    assert asyncio.run(app.arun(agent, "t1", goal="pay")) == {"paid": 1}
    assert world.n() == 3


def test_the_model_is_shown_its_goal_its_turns_with_their_memos_and_what_became_of_its_calls(release: Releases) -> None:
    script = Script(*LINES)
    app = release()
    agent = app.agent("clerk", choose=script, steps=["look", "pay", "send"], cost=0.5)
    app.run(agent, "t1", goal={"pay": ["o1"]})
    first, _, last = script.states
    assert (first.goal, first.turns, first.facts, first.earlier, first.choices, first.cost) == ({"pay": ["o1"]}, [], [], None, 0, 0)
    assert last.turns == [
        {"turn": 1, "memo": {"said": "let me look"}, "calls": [{"call_id": "call-1", "step": "look", "params": {"day": "monday"}}]},
        {"turn": 2, "memo": None, "calls": [
            {"call_id": "c1", "step": "pay", "params": {"order": "o1", "amount": 5}},
            {"call_id": "c2", "step": "send", "params": {"to": "anna"}},
        ]},
    ]  # fmt: skip
    assert last.facts[0] == {
        "turn": 1, "call_id": "call-1", "step": "look", "params": {"day": "monday"}, "status": "done", "output": [1, 2]
    }  # fmt: skip
    assert statuses(last.facts) == [("call-1", "done"), ("c1", "done"), ("c2", "done")]
    assert (last.choices, last.cost) == (2, 2.0), "two choices at 0.5, one look at 1"
    assert [tool["name"] for tool in last.tools] == ["look", "pay", "send"]


def test_what_a_model_changes_in_its_state_changes_nothing(release: Releases) -> None:
    def spoil(state: object) -> object:
        state.turns[0]["memo"] = state.facts[0]["output"] = state.goal["x"] = "spoilt"  # type: ignore[attr-defined]
        state.tools[0]["name"] = "spoilt"  # type: ignore[attr-defined]
        return turn(call("look", day="tuesday"))

    script = Script(turn(call("look", day="monday"), memo="mine"), spoil, Finish())
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal={"x": 1})
    last = script.states[2]
    assert (last.turns[0]["memo"], last.facts[0]["output"], last.goal) == ("mine", [1, 2], {"x": 1})
    assert last.tools[0]["name"] == "look"


def test_a_turn_without_calls_is_a_choice_and_takes_no_place_for_calls(release: Releases) -> None:
    script = Script(turn(memo="thinking"), turn(call("look", day="monday")), Finish("done"))
    app = release()
    assert app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal="") == "done"
    assert [place for place, _, _ in places(app, "t1")] == ["1", "2", "3.1.1", "4"]
    assert script.states[1].turns == [{"turn": 1, "memo": "thinking", "calls": []}]


def test_a_memo_comes_back_as_it_was_given_whatever_its_keys_and_numbers(release: Releases) -> None:
    memo = {"$schema": {"$map": [1.5, 10**30, None, True, "\u2028 \U0001f600"]}, "blocks": [{"type": "thinking", "signature": "a=="}]}
    script = Script(turn(call("look", "a", day="monday"), memo=memo), Finish())
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal={"$ref": 1})
    assert script.states[1].turns[0]["memo"] == memo
    assert script.states[1].goal == {"$ref": 1}
