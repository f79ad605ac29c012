"""Several calls of one turn: each a step of its own with its own place; one that stands holds up no other's result."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from agents_ground import Releases, Script, World, answer, asynchronous, call, places, statuses, turn

from doubtless import Answer, Finish, Happened, NeedsHuman


@pytest.mark.parametrize("is_async", [False, True])
def test_one_of_several_calls_waits_for_a_person_and_after_the_answer_each_has_happened_once(
    release: Releases, world: World, is_async: bool
) -> None:
    world.lose.add("b")
    lines = (
        turn(call("send", "1", to="a"), call("send", "2", to="b"), call("send", "3", to="c")),
        Finish("done"),
    )  # fmt: skip
    script = Script(*lines)
    app = release()
    agent = app.agent("clerk", choose=asynchronous(script) if is_async else script, steps=["send"])
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    again = release()
    later = Script(*lines)
    agent = again.agent("clerk", choose=asynchronous(later) if is_async else later, steps=["send"])
    answer(again, Happened({"id": 2}))
    assert again.run(agent, "t1", goal="") == "done"
    assert [world.n("send", to) for to in "abc"] == [1, 1, 1]
    assert (script.asked, later.asked) == ([0], [1])
    assert statuses(later.states[0].facts) == [("1", "done"), ("2", "done"), ("3", "done")]
    assert sorted(place for place, _, _ in places(again, "t1")) == ["1", "2.1.1", "2.2.1", "2.3.1", "3"]


def test_the_calls_of_a_turn_run_side_by_side(release: Releases) -> None:
    together = threading.Barrier(3)
    app = release()

    @app.step(effect="read")
    def meet(name: str) -> str:
        together.wait(20)
        return name

    script = Script(turn(*(call("meet", name=name) for name in "abc")), Finish())
    app.run(app.agent("clerk", choose=script, steps=[meet]), "t1", goal="")
    assert [fact["output"] for fact in script.states[1].facts] == ["a", "b", "c"]


def test_no_more_calls_run_at_once_than_the_agent_allows(release: Releases) -> None:
    threads: set[threading.Thread] = set()
    app = release()

    @app.step(effect="read")
    def count(number: int) -> int:
        threads.add(threading.current_thread())
        return number

    script = Script(turn(*(call("count", number=number) for number in range(12))), Finish())
    app.run(app.agent("clerk", choose=script, steps=[count], concurrency=2), "t1", goal="")
    assert len(threads) <= 2
    assert [fact["output"] for fact in script.states[1].facts] == list(range(12))


def test_one_call_that_fails_for_good_is_a_fact_and_keeps_no_other_from_its_result(release: Releases, world: World) -> None:
    app = release()

    @app.step(effect="read", attempts=1)
    def broken() -> Any:
        raise ValueError("no such page")

    script = Script(turn(call("broken", "a"), call("pay", "b", order="o1", amount=5)), Finish("done"))
    assert app.run(app.agent("clerk", choose=script, steps=[broken, "pay"]), "t1", goal="") == "done"
    failed, done = script.states[1].facts
    assert (failed["status"], done["status"]) == ("failed", "done")
    assert failed["text"] == "it gave no answer (exhausted: ValueError: no such page)"
    assert world.n("pay") == 1


def test_a_sync_step_does_not_block_the_event_loop_of_an_async_agent(release: Releases) -> None:
    """Two sync steps of one turn wait for each other: on the loop's own thread they would wait for ever."""
    together = threading.Barrier(2)
    app = release()

    @app.step(effect="read")
    def meet(name: str) -> str:
        together.wait(20)
        return name

    @app.step(effect="read")
    async def later(name: str) -> str:
        return name

    script = Script(turn(call("meet", name="a"), call("later", name="x"), call("meet", name="b")), Finish())
    app.run(app.agent("clerk", choose=asynchronous(script), steps=[meet, later]), "t1", goal="")
    assert [fact["output"] for fact in script.states[1].facts] == ["a", "x", "b"]


def test_an_agent_called_in_a_task_is_a_child_task(release: Releases, world: World) -> None:
    script = Script(turn(call("pay", order="o1", amount=5)), Finish("paid"))
    app = release()
    agent = app.agent("clerk", choose=script, steps=["pay"])

    @app.task
    def day() -> str:
        return str(agent(goal="pay o1"))

    assert app.run(day, "t1") == "paid"
    assert app.show("t1/1").name == "clerk"
    assert world.n("pay") == 1
    assert app.run(day, "t1") == "paid"
    assert script.asked == [0, 1]


def test_the_code_of_an_agent_in_a_branch_of_a_task_keeps_its_places_there(release: Releases, world: World) -> None:
    first, second = Script(turn(call("pay", "a", order="o1", amount=5)), Finish("1")), Script(turn(call("wire", "b")), Finish("2"))
    app = release()
    one, two = app.agent("one", choose=first, steps=["pay"]), app.agent("two", choose=second, steps=["pay"])

    @app.task
    def day() -> list[str]:
        return app.parallel(lambda: one.fn("x"), lambda: two.fn("y"))

    assert app.run(day, "t1") == ["1", "2"]
    assert sorted(place for place, _, _ in places(app, "t1")) == ["1.1.1", "1.1.2.1.1", "1.1.3", "1.2.1", "1.2.3"]
    assert sorted((fact.call_id or "", fact.status) for fact in app.facts("t1")) == [("a", "done"), ("b", "refused")]
    assert world.n("pay") == 1


def test_a_fork_of_an_agent_takes_over_its_choices_up_to_the_point_and_asks_before_it_repeats_an_effect(
    release: Releases, world: World
) -> None:
    lines = (turn(call("look", "a", day="monday")), turn(call("pay", "b", order="o1", amount=5)), Finish("done"))
    app = release()
    agent = app.agent("clerk", choose=Script(*lines), steps=["look", "pay"])
    app.run(agent, "t1", goal="")
    at = next(step.step_seq for step in app.show("t1").steps if step.path == "3")
    fork = app.fork("t1", at=at)
    again = release()
    script = Script(*lines)
    agent = again.agent("clerk", choose=script, steps=["look", "pay"])
    with pytest.raises(NeedsHuman):
        again.resume(fork.id)
    assert (script.asked, world.n("pay")) == ([1], 1)
    answer(again, Answer("reuse"))
    assert again.resume(fork.id) == "done"
    assert (script.asked, world.n("pay"), world.n("look")) == ([1, 2], 1, 1)
    assert statuses(script.states[1].facts) == [("a", "done"), ("b", "done")]
