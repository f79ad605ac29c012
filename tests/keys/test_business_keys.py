"""Business keys: at most one send for one name of an effect, whoever asks for it (DESIGN section 3)."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from keys_ground import Start, lose, offline, refuse

from doubtless import (
    Abandon,
    Abort,
    AnswerRefused,
    Deny,
    DidNotHappen,
    Happened,
    NeedsHuman,
    Refused,
    Retry,
    TaskFailed,
    TaskWaiting,
    UsageError,
)
from doubtless.events import Kind, StepStatus, draft
from doubtless.store.base import KeyRow

DAY = "P1D"


# ---------------------------------------------------------------- what the holder is to those who come after it


def test_the_same_step_and_params_give_the_output_of_the_task_that_did_it(start: Start) -> None:
    refunds, h = start()
    first = h.run(refunds.one, "a")
    assert h.run(refunds.one, "b") == first
    assert refunds.world.count() == 1
    (step,) = refunds.app.show("b").steps
    assert (step.status, step.effect, step.attempts, step.keys) == ("done", "non_idem_write", (), ())
    assert "task a" in str(step.settled_by) and "task a" in step.story[-1].what
    assert refunds.app.store.rows("b", path="1")[-1].details == {"from": "a", "path": "1", "key": "refund:o1:1"}


def test_two_steps_of_one_task_with_one_key_have_one_effect(start: Start) -> None:
    refunds, h = start()
    first, second = h.run(refunds.both, "a")
    assert first == second
    assert refunds.world.count() == 1


def test_a_second_partial_refund_with_its_own_template_value_passes(start: Start) -> None:
    refunds, h = start()
    assert h.run(refunds.one, "a", line=1)["id"] == "refund-1"
    assert h.run(refunds.one, "b", line=2)["id"] == "refund-2"
    assert refunds.world.count() == 2


def test_other_params_under_a_held_key_are_refused_before_anything_is_sent(start: Start) -> None:
    refunds, h = start()
    h.run(refunds.one, "a")
    (kind, code, holder, text, path), _ = h.run(refunds.careful, "b")
    assert (kind, code, path) == ("rejected", "refused", "1")
    assert holder == {"once": "refund:o1:1", "task": "a", "path": "1", "step": "refund", "status": "done"}
    assert "refund at 1 of task a" in text and "nothing was sent" in text
    assert [(s.name, s.status, len(s.attempts)) for s in refunds.app.show("b").steps] == [
        ("refund", "not_applied", 0), ("mail", "done", 1),
    ]  # fmt: skip
    assert refunds.world.count("refund") == 1


def test_another_step_under_a_held_key_is_refused(start: Start) -> None:
    refunds, h = start()
    h.run(refunds.one, "a")
    with pytest.raises(TaskFailed) as caught:
        h.run(refunds.other, "b")
    assert caught.value.context["failure"]["code"] == "refused"
    assert "another step" in caught.value.context["failure"]["detail"]
    assert refunds.world.count() == 1


def test_a_refusal_is_the_same_on_replay_although_the_key_has_moved_on(start: Start) -> None:
    refunds, h = start(once_window="PT1H")
    h.run(refunds.one, "a")
    h.kill(refunds.mail, before="intent")
    with pytest.raises(BaseException, match="died"):
        h.run(refunds.careful, "b")
    h.advance(DAY)
    h.run(refunds.one, "c")  # the key has another holder by now
    assert h.run(refunds.careful, "b")[0] == refunds.seen[0] == refunds.seen[1]
    assert refunds.seen[0][2]["task"] == "a"
    assert refunds.world.count("refund") == 2


def test_the_output_of_another_task_is_the_same_on_replay(start: Start) -> None:
    refunds, h = start()
    first = h.run(refunds.one, "a", amount=7)
    h.kill(refunds.mail, after="effect")
    with pytest.raises(BaseException, match="died"):
        h.run(refunds.careful, "b")
    h.settle_all(Happened({"id": "m"}))
    with pytest.raises(NeedsHuman):
        h.run(refunds.careful, "b")
    h.settle_all(Happened({"id": "m"}))
    assert h.run(refunds.careful, "b")[0] == first
    assert refunds.world.count("refund") == 1


# ---------------------------------------------------------------- freed and kept


def test_a_key_is_freed_by_not_applied(start: Start) -> None:
    refunds, h = start()
    refunds.inside = refuse
    with pytest.raises(TaskFailed):
        h.run(refunds.one, "a")
    assert refunds.key == ("a", 1, "freed")
    refunds.inside = lambda: None
    assert h.run(refunds.one, "b")["id"] == "refund-1"
    assert refunds.key == ("b", 2, "done")


def test_a_key_of_an_abandoned_step_is_kept_and_the_next_is_refused(start: Start) -> None:
    refunds, h = start()
    refunds.inside = lose
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    h.settle_all(Abandon())
    refunds.inside = lambda: None
    said, _ = h.run(refunds.careful, "b", amount=5)
    assert said[2]["status"] == "failed" and "may stand" in said[3]
    assert (refunds.key, refunds.world.count("refund")) == (("a", 1, "failed"), 0)


def test_a_key_of_a_compensated_step_is_kept_and_its_output_given_to_nobody(start: Start) -> None:
    refunds, h = start()
    h.run(refunds.one, "a")
    now = refunds.app.store.now()
    undone = draft("a", Kind.STEP_SETTLED, now, step_seq=1, path="1", step_name="refund", status=StepStatus.COMPENSATED)
    refunds.app.store.add("a", [undone])
    said, _ = h.run(refunds.careful, "b", amount=5)
    assert said[2]["status"] == "compensated" and "undone" in said[3]
    assert refunds.key == ("a", 1, "done")


def test_the_window_runs_from_done_and_after_it_the_same_key_is_another_effect(start: Start) -> None:
    refunds, h = start(once_window="PT1H")
    refunds.inside = lose
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    refunds.inside = lambda: None
    h.advance(DAY)  # in doubt for a day: the window has not begun
    h.settle_all(Happened({"id": "by hand"}))
    h.advance("PT59M")
    assert h.run(refunds.one, "b") == {"id": "by hand"}
    h.advance("PT1M")
    assert h.run(refunds.one, "c")["id"] == "refund-1"
    assert refunds.key == ("c", 2, "done")
    assert h.run(refunds.one, "d")["id"] == "refund-1"


def test_a_wall_clock_that_was_set_forward_ends_no_window(start: Start) -> None:
    refunds, h = start(once_window="PT1H")
    h.run(refunds.one, "a")
    with h.clock._turned:
        h.clock._wall += 86_400_000_000  # the boot-time clock says that no time has passed
    h.run(refunds.one, "b")
    assert refunds.world.count() == 1


@pytest.mark.parametrize(("holder", "asker"), [("PT1H", "P2D"), ("P2D", "PT1H")])
def test_of_two_windows_the_longer_counts_whosever_it_is(start: Start, holder: str, asker: str) -> None:
    refunds, h = start(once_window=holder)

    @refunds.app.step(effect="non_idem_write", once="refund:{order}:1", once_window=asker)
    def again(order: str) -> dict[str, object]:
        return refunds.world.do("again")

    @refunds.app.task
    def later(order: str) -> dict[str, object]:
        return again(order=order)

    h.run(refunds.one, "a")
    h.advance("PT25H")
    with pytest.raises(TaskFailed):
        h.run(later, "b", order="o1")
    h.advance("PT25H")
    assert h.run(later, "c", order="o1")["id"] == "again-1"


def test_of_the_holders_and_the_askers_window_the_longer_counts(start: Start) -> None:
    refunds, h = start(once_window="PT1H")
    h.run(refunds.one, "a")
    h.advance(DAY)
    with pytest.raises(TaskFailed):
        h.run(refunds.other, "b")  # its step, of the same key, has no window: for ever
    assert refunds.world.count() == 1


# ---------------------------------------------------------------- a doubt


def test_a_key_of_an_open_doubt_is_never_freed(start: Start) -> None:
    refunds, h = start(once_window="PT1S")
    refunds.inside = lose
    with pytest.raises(NeedsHuman) as doubt:
        h.run(refunds.one, "a")
    refunds.inside = lambda: None
    for name in ("b", "c"):
        for _ in range(3):
            h.advance("P300D")
            with pytest.raises(TaskWaiting) as caught:
                h.run(refunds.one, name)
            assert doubt.value.cases[0] in str(caught.value)
            assert "refund at 1 of task a" in str(caught.value)
    assert (refunds.key, refunds.world.count()) == (("a", 1, "open"), 0)
    assert refunds.app.store.rows("b", path="1") == []  # nothing of it is written


@pytest.mark.parametrize(
    ("answer", "state", "sends"),
    [
        (Happened({"id": "by hand"}), ("a", 1, "done"), 0),
        (DidNotHappen("fail", even_now=True), ("b", 2, "done"), 1),
        (DidNotHappen("retry", even_now=True), ("a", 1, "done"), 1),
        (Abandon(), ("a", 1, "failed"), 0),
    ],
)
def test_settling_the_doubt_makes_the_waiting_task_due(
    start: Start, answer: object, state: tuple[str, int, str], sends: int
) -> None:
    refunds, h = start()
    app = refunds.app
    refunds.inside = lose
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    with pytest.raises(TaskWaiting):
        h.run(refunds.one, "b", wait=False)

    def due() -> list[str]:
        return [head.task_id for head in app.store.heads(status=["ready", "waiting"], due=app.store.now().wall)]

    assert due() == []
    refunds.inside = lambda: None
    h.settle_all(answer)  # type: ignore[arg-type]
    if isinstance(answer, DidNotHappen):
        assert due() == ["a"]  # it acts when somebody runs the holder
        with contextlib.suppress(TaskFailed):
            app.resume("a", wait=False)
    assert "b" in due()
    app.resume_all(wait=False)
    assert app.show("b").status == ("failed" if isinstance(answer, Abandon) else "done")
    assert (refunds.key, refunds.world.count()) == (state, sends)


def test_a_step_that_is_done_without_a_usable_output_makes_the_next_wait_for_it(start: Start) -> None:
    refunds, h = start()
    refunds.world.do = lambda *a, **k: {"id": object()}  # type: ignore[method-assign]
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    with pytest.raises(TaskWaiting, match="case a:"):
        h.run(refunds.one, "b")
    from doubtless import Answer

    h.settle_all(Answer({"id": "r"}))
    assert h.run(refunds.one, "b") == {"id": "r"}


def test_a_step_that_is_done_and_whose_output_a_person_denies_gives_none_to_the_next(start: Start) -> None:
    refunds, h = start()
    refunds.world.do = lambda *a, **k: {"id": object()}  # type: ignore[method-assign]
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    h.settle_all(Deny())
    with pytest.raises(TaskFailed) as caught:
        h.run(refunds.one, "b")
    assert "is done without a known output" in caught.value.context["failure"]["detail"]


def test_a_step_that_is_being_undone_makes_the_next_wait_for_how_that_ends(start: Start) -> None:
    refunds, h = start()
    store = refunds.app.store
    first = h.run(refunds.one, "a")
    undo: dict[str, Any] = {"path": "~1", "step_name": "withdraw", "step_seq": 2}
    digest = refunds.refund.definition.definition_hash
    store.add("a", [draft(
        "a", Kind.STEP_INTENDED, store.now(), status=StepStatus.UNCERTAIN, attempt=1, effect_class="non_idem_write",
        idempotency_key=b"k" * 32, input_hash=b"i" * 32, input_ref="inline:{}", data=digest, **undo,
    )])  # fmt: skip
    with pytest.raises(TaskWaiting, match="refund at 1 of task a"):
        h.run(refunds.one, "b")
    head = store.head("b")
    assert head is not None and head.awaits is None  # the key itself does not move by it: it is looked at again at a time
    assert store.heads(status=["waiting"], due=store.now().wall) == []
    store.add("a", [draft("a", Kind.STEP_SETTLED, store.now(), status=StepStatus.NOT_APPLIED, **undo)])
    assert h.run(refunds.one, "b") == first  # it could not be undone: it stands


def test_a_late_reply_that_settles_the_holder_moves_its_key(start: Start) -> None:
    refunds, h = start(timeout="PT0.05S")
    go_on = threading.Event()
    refunds.inside = lambda: (go_on.wait(20), None)[-1]
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    assert refunds.key == ("a", 1, "open")
    go_on.set()
    while (head := refunds.app.store.head("a")) is None or head.owner is not None:
        time.sleep(0.002)  # its thread ends, and stores what it knows
    first = h.run(refunds.one, "a")
    assert refunds.key == ("a", 1, "done")
    assert h.run(refunds.one, "b") == first
    assert refunds.world.count() == 1


# ---------------------------------------------------------------- retried after exhausted


def test_a_retry_after_exhausted_takes_the_key_again(start: Start) -> None:
    refunds, h = start(attempts=1)
    refunds.inside = offline
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    assert refunds.key == ("a", 1, "freed")
    h.settle_all(Retry())
    assert refunds.key == ("a", 2, "open")
    with pytest.raises(TaskWaiting):
        h.run(refunds.one, "b", wait=False)
    refunds.inside = lambda: None
    h.run(refunds.one, "a")
    assert h.run(refunds.one, "b")["id"] == "refund-1"
    assert (refunds.key, refunds.world.count()) == (("a", 2, "done"), 1)


def test_a_retry_after_exhausted_is_refused_when_another_step_has_the_key_by_then(start: Start) -> None:
    refunds, h = start(attempts=1)
    refunds.inside = offline
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    refunds.inside = lambda: None
    h.run(refunds.one, "b")
    with pytest.raises(AnswerRefused, match="step at 1 of task b"):
        h.settle_all(Retry())
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    assert (refunds.key, refunds.world.count()) == (("b", 2, "done"), 1)


def test_a_retry_that_meets_another_taker_at_the_same_instant_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    refunds, h = start(attempts=1)
    refunds.inside = offline
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    store = refunds.app.store
    stale = [store.key("refund:o1:1")]
    refunds.inside = lambda: None
    h.run(refunds.one, "b")
    read = store.key
    monkeypatch.setattr(store, "key", lambda once: stale.pop() if stale else read(once), raising=False)
    with pytest.raises(AnswerRefused, match="step at 1 of task b"):
        h.settle_all(Retry())
    assert (stale, refunds.key) == ([], ("b", 2, "done"))


# ---------------------------------------------------------------- crashes, restores, obligations


@pytest.mark.parametrize("point", [{"before": "intent"}, {"after": "intent"}, {"after": "effect"}, {"after": "record"}])
@pytest.mark.parametrize("resumed", ["first", "second"])
def test_killed_between_intent_and_done_the_key_is_held_and_the_doubt_settled_first(
    start: Start, point: dict[str, str], resumed: str
) -> None:
    refunds, h = start(query=lambda idempotency_key: refunds.world.find(idempotency_key), absent_after="PT1S", on_absent="retry")
    h.kill(refunds.refund, **point)  # type: ignore[arg-type]
    with pytest.raises(BaseException, match="died"):
        h.run(refunds.one, "a")
    begun = point != {"before": "intent"}
    if begun:
        assert refunds.key[:2] == ("a", 1)
    if resumed == "second" and begun and point != {"after": "record"}:
        with pytest.raises(TaskWaiting, match="task a"):
            h.run(refunds.one, "b")
    results = [h.run(refunds.one, name) for name in ("a", "b", "c")]
    assert results[0] == results[1] == results[2]
    assert refunds.world.count() == 1


def test_in_suspect_mode_a_write_takes_its_key_before_it_is_asked_about(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    refunds, h = start()
    info = refunds.app.store.info()
    monkeypatch.setattr(type(refunds.app.store), "info", lambda self: info._replace(suspect=True), raising=False)
    with pytest.raises(NeedsHuman):
        h.run(refunds.one, "a")
    with pytest.raises(TaskWaiting, match="case a:"):
        h.run(refunds.one, "b")
    h.settle_all(Happened({"id": "found in their books"}))
    assert h.run(refunds.one, "b") == {"id": "found in their books"}
    assert refunds.world.count() == 0


def test_a_step_whose_effect_another_task_made_carries_no_obligation(start: Start) -> None:
    def withdraw(result: dict[str, object]) -> None:
        raise AssertionError("it belongs to another task")

    refunds, h = start(compensate=withdraw)
    app, world = refunds.app, refunds.world

    @app.task
    def failing() -> None:
        refunds.refund(order="o1", line=1)
        raise Abort("enough")

    h.run(refunds.one, "a")
    with pytest.raises(TaskFailed) as caught:
        h.run(failing, "b")
    assert (caught.value.status, world.count()) == ("failed", 1)
    assert "stands" not in app.store.rows("b")[-1].details  # it stands in the list of the task that made it
    assert {row.path for row in app.store.rows("b")} == {None, "1"}


@pytest.mark.parametrize("line", [1, 2])
def test_a_compensation_whose_key_another_task_has_is_not_sent_and_a_person_is_asked(start: Start, line: int) -> None:
    refunds, h = start()
    app, world = refunds.app, refunds.world

    @app.step(effect="non_idem_write", compensate=refunds.refund)
    def charge(order: str, line: int) -> dict[str, Any]:
        return world.do("charge", order=order, line=line)

    @app.task
    def buy(order: str, line: int) -> None:
        charge(order=order, line=line)
        raise Abort("out of stock")

    h.run(refunds.one, "a")  # somebody has refunded line 1 already
    if line == 2:
        with pytest.raises(TaskFailed) as ended:
            h.run(buy, "b", order="o1", line=line)
        assert ended.value.status == "compensated"
        assert (app.store.key("refund:o1:2"), world.count("refund")) == (
            KeyRow("refund:o1:2", 1, "b", "~1", "done", None, *_done_at(refunds, "b")), 2,
        )  # fmt: skip
        return
    with pytest.raises(NeedsHuman):
        h.run(buy, "b", order="o1", line=line)
    (case,) = app.inbox().cases
    assert case.kind == "compensation" and "held by refund at 1 of task a" in case.why
    assert (refunds.key, world.count("refund")) == (("a", 1, "done"), 1)
    h.settle_all(Happened({"id": "that was it"}))
    with pytest.raises(TaskFailed) as ended:
        app.resume("b")
    assert (ended.value.status, world.count("refund")) == ("compensated", 1)


def _done_at(refunds: Any, task: str) -> tuple[int, int]:
    row = next(r for r in refunds.app.store.rows(task) if r.kind == Kind.STEP_SETTLED and r.path == "~1")
    return (row.at.wall, row.boot_at)


# ---------------------------------------------------------------- the key itself


def test_a_value_without_one_spelling_is_refused_before_anything_is_written(start: Start) -> None:
    refunds, h = start()

    @refunds.app.task
    def bad() -> None:
        refunds.refund(order=None, line=1)

    with pytest.raises(NeedsHuman, match="business key takes order"):
        h.run(bad, "a")
    assert [row.path for row in refunds.app.store.rows("a")] == [None] * len(refunds.app.store.rows("a"))
    assert issubclass(Refused, Exception) and not issubclass(Refused, UsageError)


def test_deliveries_are_one_by_their_id_whatever_white_space_their_text_has(start: Start) -> None:
    """C51: a duplicate webhook whose copy has a newline where the other had spaces."""
    refunds, h = start()
    app, world = refunds.app, refunds.world

    @app.step(effect="non_idem_write", once="webhook:{delivery}", volatile=("text",))
    def book(delivery: str, text: str) -> dict[str, object]:
        return world.do("booking", delivery=delivery, text=text)

    @app.task
    def take(delivery: str, text: str) -> dict[str, object]:
        return book(delivery=delivery, text=text)

    first = h.run(take, "w1", delivery="d-1", text="Order 7\nok caf\u00e9")
    assert h.run(take, "w2", delivery="d-1", text="Order 7  ok cafe\u0301") == first
    h.run(take, "w3", delivery="d-2", text="Order 7\nok caf\u00e9")
    assert world.count("booking") == 2
