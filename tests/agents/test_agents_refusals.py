"""What a model may not do is refused before anything is sent; the refusal is recorded and told, and replayed the same."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import pydantic
import pytest
from agents_ground import Releases, Script, World, answer, asynchronous, call, places, rows, statuses, turn

from doubtless import Abandon, Finish, Happened, NeedsHuman, Secret, StepCall, injected
from doubtless.events import Kind
from doubtless.log import TaskLog


def judge(value: int) -> int:
    raise KeyError(value)


Judged = Annotated[int, pydantic.AfterValidator(judge)]
Changed = Annotated[int, pydantic.AfterValidator(str)]
"""What comes out of its validator is no int: the step's function could not be given it as it is stored."""

WRONG: list[tuple[StepCall, str]] = [
    (call("wire", to="x"), "there is no step 'wire'; the steps are look, pay, send"),
    (call("$choose", turn=1), "there is no step '$choose'"),
    (call("pay", order="o1"), "amount: is missing"),
    (call("pay", order="o1", amount="5"), "amount: Input should be a valid integer"),
    (call("pay", order="o1", amount=True), "amount: Input should be a valid integer"),
    (call("pay", order=None, amount=5), "order: Input should be a valid string"),
    (call("pay", order="o1", amount=5, currency="EUR"), "pay has no param 'currency'; it takes order, amount"),
    (call("pay", order="o1", amount=5, idempotency_key="k"), "'idempotency_key' is not yours to set"),
    (call("pay", order="o1", amount=5, effect="read"), "'effect' is not yours to set"),
    (call("pay", order="o1", amount=5, retry=True), "'retry' is not yours to set"),
    (call("pay", order="o1", amount=5, attempts=9, query=None), "'query' is not yours to set"),
    (call("pay", order="o1", amount=5, call_id="c9"), "'call_id' is not yours to set"),
]


@pytest.mark.parametrize("wrong, why", WRONG, ids=[f"{one.name}-{'-'.join(one.params)}" for one, _ in WRONG])
def test_a_call_that_may_not_run_is_refused_recorded_and_told_to_the_model_and_nothing_is_sent(
    release: Releases, world: World, wrong: StepCall, why: str
) -> None:
    script = Script(turn(wrong._replace(call_id="c1")), Finish("done"))
    app = release()
    agent = app.agent("clerk", choose=script, steps=["look", "pay", "send"])
    assert app.run(agent, "t1", goal="") == "done"
    fact = script.states[1].facts[0]
    assert (fact["call_id"], fact["status"]) == ("c1", "refused")
    assert why in fact["text"]
    assert "output" not in fact
    assert world.n() == 0
    assert [row.kind for row in rows(app, "t1") if row.kind == Kind.STEP_INTENDED] == []
    assert [place for place, _, _ in places(app, "t1")] == ["1", "3"]


def test_a_value_that_the_check_itself_cannot_read_is_refused(release: Releases, world: World) -> None:
    app = release()

    @app.step(effect="non_idem_write")
    def order(count: int = 1, kind: Judged = 1, size: Changed = 1) -> dict[str, Any]:
        return world.do("order", count)

    script = Script(turn(call("order", "a", count=10**5000), call("order", "b", kind=3), call("order", "c", size=2)), Finish())
    app.run(app.agent("clerk", choose=script, steps=[order]), "t1", goal="")
    assert statuses(script.states[1].facts) == [("a", "refused"), ("b", "refused"), ("c", "refused")]
    assert script.states[1].facts[1]["text"] == "the params of order do not fit: kind: could not be read (KeyError)"
    assert world.n() == 0


def test_the_other_calls_of_a_turn_run_and_the_refused_one_keeps_its_number(release: Releases, world: World) -> None:
    script = Script(turn(call("pay", "a", order="o1", amount=1), call("wire", "b"), call("pay", "c", order="o2", amount=2)), Finish())
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["pay"]), "t1", goal="")
    assert statuses(script.states[1].facts) == [("a", "done"), ("b", "refused"), ("c", "done")]
    assert sorted(place for place, _, _ in places(app, "t1")) == ["1", "2.1.1", "2.3.1", "3"]
    assert (world.n("pay", "o1"), world.n("pay", "o2")) == (1, 1)


def test_a_refusal_is_the_same_after_a_deploy_that_would_have_taken_the_call(release: Releases, world: World) -> None:
    """It was told to the model, and the model went on from there."""
    script = Script(turn(call("send", "a", to="anna")), turn(call("pay", "b", order="o1", amount=5)), Finish("done"))
    app = release()
    first = app.agent("clerk", choose=script, steps=["look", "pay"])
    assert app.run(first, "t1", goal="") == "done"
    told = script.states[2].facts[0]

    later = Script(*script.lines)
    new = release()
    agent = new.agent("clerk", choose=later, steps=["look", "pay", "send"])
    assert new.run(agent, "t1", goal="") == "done"
    refused = next(fact for fact in new.facts("t1") if fact.status == "refused")
    assert (refused.text, refused.call_id, refused.turn) == (told["text"], "a", 1)
    assert world.n("send") == 0
    assert later.asked == []


def test_a_param_of_such_a_name_is_the_models_where_the_function_itself_declares_it(release: Releases, world: World) -> None:
    app = release()

    @app.step(effect="non_idem_write")
    def order(name: str, timeout: int, policy: str = "strict") -> dict[str, Any]:
        return world.do("order", [name, timeout, policy])

    script = Script(turn(call("order", name="tea", timeout=3)), Finish())
    app.run(app.agent("clerk", choose=script, steps=[order]), "t1", goal="")
    assert world.done[0][:2] == ("order", ["tea", 3, "strict"])


def test_secrets_are_the_developers_the_model_neither_sees_nor_sets_them(
    release: Releases, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFER_TOKEN", "t0ken-of-the-bank")
    app = release()

    @app.step(effect="non_idem_write", secret=("token",))
    def transfer(to: str, token: str, tenant: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("transfer", [to, token, tenant])

    script = Script(
        turn(call("transfer", "a", to="anna", token="mine"), call("transfer", "b", to="bert", tenant="mine")),
        turn(call("transfer", "c", to="carl")),
        turn(call("transfer", "d", to="t0ken-of-the-bank")),
        Finish(),
    )  # fmt: skip
    bind = {"transfer": {"token": Secret("env:TRANSFER_TOKEN"), "tenant": "acme"}}
    agent = app.agent("clerk", choose=script, steps=[transfer], bind=bind)
    app.run(agent, "t1", goal="")
    assert statuses(script.states[3].facts) == [("a", "refused"), ("b", "refused"), ("c", "done"), ("d", "refused")]
    assert list(script.states[0].tools[0]["parameters"]["properties"]) == ["to"]
    assert [what for _, what, _ in world.done] == [["carl", "t0ken-of-the-bank", "acme"]]
    assert "t0ken" not in repr([(state.turns, state.facts) for state in script.states[1:3]]) + repr(rows(app, "t1"))


def test_a_write_that_may_have_happened_is_not_sent_again_under_a_new_call_id(release: Releases, world: World) -> None:
    """A person gave it up: nobody will find out. The model is told so, and a repetition of it is refused."""
    world.lose.add("anna")
    script = Script(
        turn(call("send", "a", to="anna")),
        turn(call("send", "b", to="anna"), call("send", "c", to="anna", text="hello"), call("send", "d", to="bert")),
        Finish("done"),
    )
    app = release()
    agent = app.agent("clerk", choose=script, steps=["send"])
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Abandon())
    assert app.run(agent, "t1", goal="") == "done"
    assert statuses(script.states[2].facts) == [("a", "uncertain"), ("b", "refused"), ("c", "refused"), ("d", "done")]
    assert "do not repeat" in script.states[1].facts[0]["text"]
    assert "may have happened" in script.states[2].facts[1]["text"]
    assert (world.n("send", "anna"), world.n("send", "bert")) == (1, 1)


TWICE = (
    turn(call("send", "a", to="anna"), call("send", "b", to="anna", text="hello"), call("send", "c", to="bert")),
    Finish("done"),
)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_equal_call_of_the_same_turn_that_has_not_begun_is_not_sent_once_the_first_was_given_up(
    release: Releases, world: World, is_async: bool
) -> None:
    """Its refusal is recorded at its place, told, and the same on replay; the third call is another one, and is sent."""
    world.lose.add("anna")
    app = release()
    first = Script(*TWICE)
    agent = app.agent("clerk", choose=asynchronous(first) if is_async else first, steps=["send"], concurrency=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Abandon())
    script = Script(*TWICE)
    later = release()
    agent = later.agent("clerk", choose=asynchronous(script) if is_async else script, steps=["send"], concurrency=1)
    assert later.run(agent, "t1", goal="") == "done"
    assert (world.n("send", "anna"), world.n("send", "bert")) == (1, 1)
    facts = script.states[0].facts
    assert statuses(facts) == [("a", "uncertain"), ("b", "refused"), ("c", "done")]
    assert "may have happened" in facts[1]["text"]
    told = {fact.call_id: (fact.status, fact.text) for fact in later.facts("t1")}
    assert told["b"] == ("refused", facts[1]["text"])
    before = [row.event_seq for row in rows(later, "t1")]
    again = release()
    assert again.run(again.agent("clerk", choose=Script(), steps=["send"], concurrency=1), "t1", goal="") == "done"
    assert [row.event_seq for row in rows(again, "t1")] == before


def test_a_call_that_has_entered_its_branch_is_not_sent_when_an_equal_one_is_given_up_before_its_intent(
    release: Releases, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes between the look at the place and the intent: the append itself refuses the repetition."""
    world.lose.add("anna")
    script = Script(turn(call("send", "a", to="anna"), call("send", "b", to="anna")), Finish("done"))
    app = release()
    agent = app.agent("clerk", choose=asynchronous(script), steps=["send"], concurrency=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Abandon())
    looks: list[str] = []

    def blind(log: TaskLog, path: str, name: str, digest: bytes) -> str | None:
        if sys._getframe(1).f_code.co_name == "_beforehand":  # not the look of the append itself
            looks.append(path)
            if looks.count(path) == 1:
                return None
        return given_up(log, path, name, digest)

    given_up = TaskLog.given_up_beside
    monkeypatch.setattr(TaskLog, "given_up_beside", blind)
    assert app.run(agent, "t1", goal="") == "done"
    assert world.n("send") == 1
    assert looks.count("2.2.1") >= 2
    assert statuses(script.states[1].facts) == [("a", "uncertain"), ("b", "refused")]


def test_two_equal_calls_of_one_turn_that_are_both_meant_are_two_effects(release: Releases, world: World) -> None:
    script = Script(*TWICE)
    app = release()
    assert app.run(app.agent("clerk", choose=script, steps=["send"]), "t1", goal="") == "done"
    assert statuses(script.states[1].facts) == [("a", "done"), ("b", "done"), ("c", "done")]
    assert world.n("send", "anna") == 2


def test_two_equal_calls_stay_two_effects_when_the_first_is_found_to_have_happened(release: Releases, world: World) -> None:
    world.lose.add("anna")
    script = Script(*TWICE)
    app = release()
    agent = app.agent("clerk", choose=script, steps=["send"], concurrency=1)
    with pytest.raises(NeedsHuman):
        app.run(agent, "t1", goal="")
    answer(app, Happened({"id": 1}))
    assert app.run(agent, "t1", goal="") == "done"
    assert statuses(script.states[1].facts) == [("a", "done"), ("b", "done"), ("c", "done")]
    assert world.n("send", "anna") == 2
