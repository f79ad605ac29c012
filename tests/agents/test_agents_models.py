"""A model that is down, slow or answers nonsense: asked again within its attempts, then the task parks; nothing is undone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agents_ground import Releases, Script, World, answer, asynchronous, call, places, rows, turn

from doubtless import Fail, Finish, NeedsHuman, Rejected, Retry, StepCall, TaskFailed, Turn
from doubtless.events import Kind

MALFORMED: list[tuple[Any, str]] = [
    (None, "choose gave NoneType"),
    ({"calls": []}, "choose gave dict"),
    ("pay", "choose gave str"),
    (Turn("pay"), "Turn.calls is str"),
    (Turn([("pay", {}, "a")]), "call 1 is tuple"),
    (Turn([StepCall("", {})]), "call 1 names no step"),
    (Turn([StepCall("pay", "order=o1")]), "params is str"),  # type: ignore[arg-type]
    (Turn([StepCall("pay", {}, "")]), "call_id is str"),
    (Turn([StepCall("pay", {}, 7)]), "call_id is int"),  # type: ignore[arg-type]
    (Turn([StepCall("pay", {}, "a"), StepCall("look", {}, "a")]), "call_id 'a' stands twice in one turn"),
    (Turn([StepCall("pay", {"order": {1, 2}})]), "which is no JSON value"),
    (Turn([StepCall("pay", {"order": float("nan")})]), "NaN has no canonical form"),
    (Turn([StepCall("pay", {"order": "\ud800"})]), "surrogate"),
    (Turn([], memo=object()), "the choice.memo holds object"),
    (Turn([], memo={1: 2}), "has a key of type int"),
    (Finish(b"bytes"), "the choice.finish holds bytes"),
]


@pytest.mark.parametrize("wrong, why", MALFORMED, ids=[str(number) for number in range(len(MALFORMED))])
def test_a_malformed_answer_is_asked_for_again_and_in_the_end_parks_the_task_with_a_case(
    release: Releases, world: World, wrong: Any, why: str
) -> None:
    script = Script(turn(call("pay", order="o1", amount=5)), lambda state: wrong)
    app = release()
    agent = app.agent("clerk", choose=script, steps=["pay", "look"])
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    assert script.asked == [0, 1, 1, 1]
    case = app.inbox().cases[0]
    assert (case.kind, case.evidence["step"], case.evidence["failure"]) == ("code_error", "$choose", "exhausted")
    assert why in case.why
    assert places(app, "t1")[-1] == ("3", "$choose", "failed")
    assert world.n() == 1


def test_an_unknown_field_is_an_error_of_the_answer_and_handled_like_one(release: Releases) -> None:
    app = release()

    def choose(state: object) -> Any:
        return Turn(calls=[], stop=True)  # type: ignore[call-arg]

    with pytest.raises(NeedsHuman, match="TypeError"):
        app.run(app.agent("clerk", choose=choose, steps=[]), "t1", goal="")


@pytest.mark.parametrize("trouble", [ConnectionError("503"), Rejected("400", "bad request"), ValueError("no JSON")])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_that_fails_is_asked_again_and_the_task_goes_on(
    release: Releases, world: World, trouble: Exception, is_async: bool
) -> None:
    left = [trouble, trouble]

    def flaky(state: object) -> Any:
        if left:
            raise left.pop()
        return Finish("done")

    script = Script(turn(call("look", day="monday")), flaky)
    app = release()
    agent = app.agent("clerk", choose=asynchronous(script) if is_async else script, steps=["look"], cost=1)
    assert app.run(agent, "t1", goal="") == "done"
    assert script.asked == [0, 1, 1, 1]
    assert [row.attempt for row in rows(app, "t1", "$choose") if row.kind == Kind.ATTEMPT_ENDED] == [1, 2]


def test_a_model_that_is_down_parks_the_task_a_retry_asks_it_once_more_and_nothing_is_undone(release: Releases, world: World) -> None:
    app = release()
    undone: list[str] = []

    @app.step(effect="non_idem_write")
    def unbook(order: str) -> dict[str, Any]:
        undone.append(order)
        return {"undone": order}

    @app.step(effect="non_idem_write", compensate=unbook)
    def book(order: str) -> dict[str, Any]:
        return world.do("book", order)

    up = False

    def flaky(state: object) -> Any:
        if not up:
            raise ConnectionError("overloaded")
        return Finish("done")

    script = Script(turn(call("book", order="o1")), flaky)
    agent = app.agent("clerk", choose=script, steps=[book])
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    assert script.asked == [0, 1, 1, 1], "a resume grants no further attempt"
    answer(app, Retry(), kind="code_error")
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    assert script.asked == [0, 1, 1, 1, 1], "a retry grants one"
    up = True
    answer(app, Retry(), kind="code_error")
    assert app.run(agent, "t1", goal="") == "done"
    assert (world.n("book"), undone) == (1, [])
    assert app.inbox().cases == []


def test_a_person_may_fail_the_task_of_a_model_that_is_down(release: Releases) -> None:
    script = Script(ConnectionError("gone"))
    app = release()
    agent = app.agent("clerk", choose=script, steps=["look"], attempts=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Fail())
    with pytest.raises(TaskFailed):
        app.run(agent, "t1", goal="")


@pytest.mark.parametrize("on_failure", ["compensate", "hold"])
def test_an_agent_that_a_person_fails_undoes_what_it_did_or_waits_as_it_was_declared(
    release: Releases, world: World, on_failure: Any
) -> None:
    app = release()

    @app.step(effect="non_idem_write")
    def unbook(order: str) -> dict[str, Any]:
        return world.do("unbook", order)

    @app.step(effect="non_idem_write", compensate=unbook)
    def book(order: str) -> dict[str, Any]:
        return world.do("book", order)

    script = Script(turn(call("book", "a", order="o1"), call("book", "b", order="o2")), ConnectionError("gone"))
    agent = app.agent("clerk", choose=script, steps=[book], attempts=1, on_failure=on_failure, snapshot_every=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Fail())
    with pytest.raises(TaskFailed if on_failure == "compensate" else NeedsHuman):
        app.run(agent, "t1", goal="")
    assert world.n("unbook") == (2 if on_failure == "compensate" else 0)
    told = [(fact.step, fact.call_id, fact.status) for fact in app.facts("t1") if fact.step == "book"]
    status = "compensated" if on_failure == "compensate" else "done"
    assert sorted(told) == [("book", "a", status), ("book", "b", status)]
    assert script.asked == [0, 1]


def test_a_model_that_takes_too_long_is_asked_again(release: Releases) -> None:
    hang = threading.Event()
    asked: list[int] = []

    def choose(state: object) -> Any:
        asked.append(1)
        if len(asked) == 1:
            hang.wait(20)
        return Finish(len(asked))

    app = release()
    try:
        assert app.run(app.agent("clerk", choose=choose, steps=[], timeout=0.05, backoff=0), "t1", goal="") == 2
    finally:
        hang.set()


def test_an_async_model_that_takes_too_long_is_asked_again(release: Releases) -> None:
    asked: list[int] = []

    async def choose(state: object) -> Any:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return Finish(len(asked))

    app = release()
    assert app.run(app.agent("clerk", choose=choose, steps=[], timeout=0.05, backoff=0), "t1", goal="") == 2


def test_a_model_cannot_call_steps_itself_it_only_chooses(release: Releases, world: World) -> None:
    app = release()
    pay = app.steps["pay"]

    def choose(state: object) -> Any:
        pay(order="o1", amount=5)

    with pytest.raises(NeedsHuman, match="called inside another step"):
        app.run(app.agent("clerk", choose=choose, steps=["pay"], attempts=1), "t1", goal="")
    assert world.n() == 0


def test_a_sync_choose_that_gives_an_awaitable_is_malformed(release: Releases) -> None:
    async def later() -> Any:
        return Finish()

    app = release()
    with pytest.raises(NeedsHuman, match="choose gave coroutine"):
        app.run(app.agent("clerk", choose=lambda state: later(), steps=[], attempts=1), "t1", goal="")  # type: ignore[arg-type,return-value]
