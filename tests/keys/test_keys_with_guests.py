"""Business keys where somebody else chooses the steps: sessions, agents, forks."""

from __future__ import annotations

from typing import Any

import pytest
from keys_ground import Start, lose

from doubtless import Finish, NeedsHuman, Refused, StepCall, TaskWaiting, Turn
from doubtless.agentview import State


def test_a_session_gets_the_output_of_the_task_that_did_it_and_a_refusal_for_other_params(start: Start) -> None:
    refunds, h = start()
    first = h.run(refunds.one, "a")
    with refunds.app.session("thread-1") as session:
        assert session.call(refunds.refund, order="o1", line=1, call_id="c1") == first
        with pytest.raises(Refused, match="held by refund at 1 of task a") as caught:
            session.call(refunds.refund, order="o1", line=1, amount=9, call_id="c2")
        assert "nothing was sent" in caught.value.text_for_model
        assert session.call(refunds.refund, order="o1", line=2, call_id="c3")["id"] == "refund-2"
    assert h.run(refunds.one, "b", line=2)["id"] == "refund-2"
    assert refunds.world.count() == 2


def test_a_session_that_asks_for_a_key_in_doubt_waits_and_is_told_why(start: Start) -> None:
    refunds, h = start()
    refunds.inside = lose
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    refunds.inside = lambda: None
    with pytest.raises(TaskWaiting, match="case a:"), refunds.app.session("thread-1") as session:
        session.call(refunds.refund, order="o1", line=1, call_id="c1")
    assert refunds.world.count() == 0


def test_a_fork_that_comes_to_an_effect_with_a_key_gets_what_the_original_did(start: Start) -> None:
    refunds, h = start()
    first = h.run(refunds.one, "a")
    refunds.app.fork("a", at=1, task_id="f", non_idem_write="run")
    assert h.app.resume("f") == first
    assert refunds.world.count() == 1


def test_agents_that_choose_the_same_effect_have_one_and_one_that_rewords_it_is_told_what_stands(start: Start) -> None:
    """A model that words its params differently: the key is of ids, and the second send is refused."""
    refunds, h = start()
    told: list[Any] = []

    def agent(name: str, amount: int) -> Any:
        def choose(state: State) -> Turn | Finish:
            if not state.turns:
                return Turn([StepCall("refund", {"order": "o1", "line": 1, "amount": amount}, "c1")])
            told.append(state.facts[-1])
            return Finish({"ok": True})

        return refunds.app.agent(name, choose=choose, steps=["refund"])

    agents = [agent("first", 5), agent("second", 5), agent("third", 7)]
    for number, one in enumerate(agents):
        h.run(one, f"agent-{number}", goal="refund line 1")
    assert [fact["status"] for fact in told] == ["done", "done", "refused"]
    assert told[0]["output"] == told[1]["output"]
    assert "held by refund at" in told[2]["text"] and "Do not repeat it" in told[2]["text"]
    assert refunds.world.count() == 1
