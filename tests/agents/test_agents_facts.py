"""What happened, from the log alone: for a model whose history was cut, in words that never say "try again"."""

from __future__ import annotations

from typing import Any

import pytest
from agents_ground import Releases, Script, World, answer, call, rows, turn

from doubtless import (
    Abandon,
    Answer,
    Deny,
    Fact,
    Finish,
    Happened,
    NeedsHuman,
    Rejected,
    TaskWaiting,
    UnknownTask,
    UsageError,
    injected,
)
from doubtless.events import Kind, StepStatus, draft
from doubtless.testing import Killed, harness


def told(app: Any, task_id: str) -> list[tuple[str, str]]:
    return [(fact.step, fact.status) for fact in app.facts(task_id)]


def test_the_facts_of_any_task_say_what_happened_and_how_it_was_settled(release: Releases, world: World) -> None:
    app = release()
    pay, send = app.steps["pay"], app.steps["send"]

    @app.step(effect="non_idem_write")
    def refuse(order: str) -> dict[str, Any]:
        raise Rejected("422", "no such order")

    @app.task
    def day() -> str:
        pay(order="o1", amount=5)
        try:
            refuse(order="o2")
        except Exception:
            pass
        send(to="anna")
        return "done"

    world.lose.add("anna")
    with pytest.raises(NeedsHuman):
        app.run(day, "t1")
    paid, refused, sent = app.facts("t1")
    assert paid == Fact(
        "1", "pay", {"order": "o1", "amount": 5}, "done", {"id": 1, "name": "pay", "what": "o1"}, None, None, None, None, paid.at,
        "its reply",
    )  # fmt: skip
    assert (refused.status, refused.text) == ("not_applied", "it had no effect (rejected: no such order)")
    assert (sent.status, sent.text, sent.output) == ("needs_human", "it may have happened; a person is asked; do not repeat it", None)
    answer(app, Happened({"id": 9}))
    assert app.run(day, "t1") == "done"
    sent = app.facts("t1")[2]
    assert (sent.status, sent.output, sent.settled_by) == ("done", {"id": 9}, "a person: anna")
    with pytest.raises(UnknownTask):
        app.facts("t2")


def test_a_doubt_is_told_in_neutral_words_while_it_is_being_checked_and_after_it_was_given_up(release: Releases, world: World) -> None:
    app = release()

    @app.step(effect="non_idem_write", query=lambda order: None, absent_after="PT1H")
    def slow(order: str) -> dict[str, Any]:
        raise ConnectionResetError("gone")

    @app.task
    def day() -> None:
        slow(order="o1")

    with pytest.raises(TaskWaiting):
        app.run(day, "t1", wait=False)
    (fact,) = app.facts("t1")
    assert (fact.status, fact.text, fact.output) == ("uncertain", "it may have happened; being checked; do not repeat it", None)

    world.lose.add("bert")
    send = app.steps["send"]

    @app.task
    def other() -> None:
        send(to="bert")

    with pytest.raises(NeedsHuman):
        app.run(other, "t2")
    answer(app, Abandon())
    (fact,) = app.facts("t2")
    assert (fact.status, fact.text) == ("uncertain", "it may have happened; nobody could find out; do not repeat it")
    assert not any("again" in (one.text or "") or "fail" in (one.text or "") for one in [*app.facts("t1"), fact])


def test_facts_do_not_list_what_the_library_itself_asked(release: Releases) -> None:
    app = release()

    @app.task
    def day() -> None:
        app.now()
        app.steps["look"](day="monday")

    app.run(day, "t1")
    assert told(app, "t1") == [("look", "done")]


@pytest.mark.parametrize("instant", ["intent", "effect", "record"])
def test_after_a_kill_the_model_is_shown_what_the_log_knows_and_never_a_failure(tmp_path: Any, instant: Any) -> None:
    """The reply was on its way, or not: the doubt is settled first, then the model is asked."""
    world = World()
    from doubtless import Doubtless

    app = Doubtless()

    def find(idempotency_key: str) -> Any:
        return world.find("pay", idempotency_key)

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", on_absent="retry")
    def pay(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("pay", order, idempotency_key)

    script = Script(turn(call("pay", "a", order="o1")), Finish("done"))
    agent = app.agent("clerk", choose=script, steps=[pay])
    with harness(app, tmp_path) as h:
        h.kill(pay, after=instant)
        with pytest.raises(Killed):
            h.run(agent, "t1", goal="")
        assert [(fact.step, fact.status) for fact in app.facts("t1")] in (
            [("pay", "uncertain")],
            [("pay", "done")],
        )
        assert not any("again" in (fact.text or "") for fact in app.facts("t1"))
        assert h.run(agent, "t1", goal="") == "done"
    assert script.asked == [0, 1]
    assert [(fact["status"], fact["output"]["what"]) for fact in script.states[1].facts] == [("done", "o1")]
    assert world.n("pay") == 1


def test_a_context_is_built_from_the_log_alone_when_the_conversation_is_gone_and_says_the_same(release: Releases) -> None:
    """Nothing is kept beside the log: what a new process tells is what the model was told, refusals included."""
    script = Script(
        turn(call("look", "a", day="monday"), memo="m1"), turn(call("pay", "b", order="o1", amount=5), call("wire", "c")), Finish()
    )
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["look", "pay"]), "t1", goal="")
    stranger = release()
    facts = stranger.facts("t1")
    shown = {(fact["call_id"], fact["turn"], fact["step"], fact["status"], str(fact.get("output"))) for fact in script.states[2].facts}
    assert {(fact.call_id, fact.turn, fact.step, fact.status, str(fact.output)) for fact in facts} == shown
    assert [fact.call_id for fact in facts if fact.status == "refused"] == ["c"]


def test_a_large_output_is_shortened_with_a_ref_and_the_ref_gives_the_whole(release: Releases) -> None:
    app = release()

    @app.step(effect="read")
    def fetch() -> dict[str, Any]:
        return {"page": "x" * 10_000}

    script = Script(turn(call("fetch", "a")), Finish())
    app.run(app.agent("clerk", choose=script, steps=[fetch], output_bytes=100), "t1", goal="")
    (fact,) = script.states[1].facts
    assert len(fact["output"]) == 100
    assert fact["shortened"]["bytes"] == len('{"page":""}') + 10_000
    assert app.content(fact["shortened"]["ref"]) == {"page": "x" * 10_000}
    (known,) = app.facts("t1")
    assert (len(known.output), known.ref) == (4096, fact["shortened"]["ref"])
    assert app.facts("t1", output_bytes=20_000)[0].output == {"page": "x" * 10_000}


def test_earlier_turns_are_shown_by_a_ref_that_gives_their_facts(release: Releases) -> None:
    count = 9
    script = Script(*(turn(call("look", f"c{number}", day=str(number))) for number in range(count)), Finish())
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["look"], last_turns=3), "t1", goal="")
    state = script.states[count]
    assert [one["turn"] for one in state.turns] == [7, 8, 9]
    assert [fact["call_id"] for fact in state.facts] == ["c6", "c7", "c8"]
    assert state.earlier == {"turns": 6, "facts": 6, "ref": "facts:t1:1-6"}
    assert [fact["call_id"] for fact in app.content("facts:t1:1-6")] == [f"c{number}" for number in range(6)]
    assert (state.choices, script.states[3].earlier) == (9, None)


def test_the_model_is_shown_no_more_bytes_than_it_is_allowed_but_always_the_last_turn(release: Releases) -> None:
    script = Script(*(turn(call("look", day=str(number)), memo="m" * 3000) for number in range(6)), Finish())
    app = release()
    app.run(app.agent("clerk", choose=script, steps=["look"], last_bytes=7000), "t1", goal="")
    assert [len(state.turns) for state in script.states] == [0, 1, 2, 2, 2, 2, 2]
    small = Script(*script.lines)
    app.run(app.agent("terse", choose=small, steps=["look"], last_bytes=10), "t2", goal="")
    assert [len(state.turns) for state in small.states] == [0, 1, 1, 1, 1, 1, 1]


def test_what_is_no_ref_is_refused(release: Releases) -> None:
    app = release()
    for wrong in ("facts:t1:x", "facts:t1", 7):
        with pytest.raises(UsageError):
            app.content(wrong)  # type: ignore[arg-type]
    for wrong in ("sha256:zz", "elsewhere", "sha256:" + "0" * 64):
        with pytest.raises(Exception, match=r"no ref|missing"):
            app.content(wrong)


def test_facts_are_there_while_the_task_runs(release: Releases) -> None:
    app = release()
    seen: list[Any] = []
    script = Script(turn(call("look", "a", day="monday")), lambda state: (seen.extend(app.facts("t1")), Finish())[1])
    app.run(app.agent("clerk", choose=script, steps=["look"]), "t1", goal="")
    assert [(fact.call_id, fact.status) for fact in seen] == [("a", "done")]
    assert len(rows(app, "t1", "$choose")) == 2


@pytest.mark.parametrize("given", [Answer({"id": 7}), Deny()])
def test_a_write_whose_output_cannot_be_stored_asks_a_person_for_it_and_the_model_is_told_what_came(
    release: Releases, world: World, given: Any
) -> None:
    def declared() -> Any:
        app = release()

        @app.step(effect="non_idem_write")
        def order(what: str) -> Any:
            world.do("order", what)
            return {1, 2}

        return app

    script = Script(turn(call("order", "a", what="tea")), Finish("done"))
    for _ in range(2):
        app = declared()
        agent = app.agent("clerk", choose=script, steps=["order"])
        with pytest.raises(NeedsHuman):
            app.run(agent, "t1", goal="")
    answer(app, given, kind="output")
    assert app.run(agent, "t1", goal="") == "done"
    (fact,) = script.states[0 if len(script.states) == 1 else 1].facts
    assert (fact["status"], fact.get("output"), fact.get("text")) == (
        ("done", {"id": 7}, None) if isinstance(given, Answer) else ("done", None, "it happened; its output is not available")
    )
    assert (script.asked, world.n("order")) == ([0, 1], 1)


def test_an_effect_that_another_task_has_is_refused_and_the_model_is_told_what_stands(release: Releases, world: World) -> None:
    app = release()

    @app.step(effect="non_idem_write", once="refund:{order}")
    def refund(order: str, amount: int) -> dict[str, Any]:
        return world.do("refund", order)

    first = Script(turn(call("refund", "a", order="o1", amount=5)), Finish())
    app.run(app.agent("one", choose=first, steps=[refund]), "t1", goal="")
    script = Script(turn(call("refund", "b", order="o1", amount=7), call("refund", "c", order="o1", amount=5)), Finish())
    app.run(app.agent("two", choose=script, steps=[refund]), "t2", goal="")
    refused, same = script.states[1].facts
    assert (refused["status"], same["status"], same["output"]["what"]) == ("refused", "done", "o1")
    assert "Do not repeat it" in refused["text"]
    assert "t1" in refused["text"]
    assert world.n("refund") == 1


def test_what_was_undone_since_is_told_with_what_it_was(release: Releases) -> None:
    app = release()
    pay = app.steps["pay"]

    @app.task
    def day() -> None:
        pay(order="o1", amount=5)

    app.run(day, "t1")
    undone = draft(
        "t1", Kind.STEP_SETTLED, app.store.now(), path="1", step_name="pay", step_seq=1, status=StepStatus.COMPENSATED, attempt=1
    )
    app.store.add("t1", [undone])
    (fact,) = app.facts("t1")
    assert (fact.status, fact.text, fact.output["what"]) == ("compensated", "it happened, and was undone since", "o1")
