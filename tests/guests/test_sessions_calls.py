"""Calls of a session: what an id means within one opening and after it, places, names, refusals, acknowledgements."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from guests_child import ORDER, payments
from guests_ground import PATIENCE, Ground, raised, together

from doubtless import (
    Diverged,
    Doubtless,
    NotCanonical,
    OutsideTask,
    Refused,
    Rejected,
    Session,
    StepFailed,
    TaskBusy,
    UnknownStep,
    UsageError,
)
from doubtless.events import Kind


@pytest.fixture
def app(ground: Ground) -> Doubtless:
    return ground.app()


def crashed(app: Doubtless, *calls: tuple[Any, dict[str, Any]]) -> None:
    """An opening whose host does not get to its acknowledgement."""
    with pytest.raises(ZeroDivisionError), app.session("thread-42") as session:
        for step, params in calls:
            session.call(step, **params)
        raise ZeroDivisionError


def at_one_moment(session: Session, method: str, count: int) -> None:
    """Let so many threads come back from the first such question at one moment: none has gone on before the last has asked."""
    guests: Any = session._guests
    asked, gate, seen = getattr(guests, method), threading.Barrier(count), threading.local()

    def ask(*args: Any) -> Any:
        answer = asked(*args)
        if not hasattr(seen, "before"):
            seen.before = True
            gate.wait(PATIENCE)
        return answer

    setattr(guests, method, ask)


def acknowledgements(app: Doubtless) -> list[dict[str, Any]]:
    return [row.details for row in app.store.rows("thread-42") if row.kind == Kind.CALLS_ACKNOWLEDGED]


# ---------------------------------------------------------------- within one opening


def test_an_id_met_again_in_its_opening_gives_its_result_and_has_no_second_effect(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        first = session.call(pay, **ORDER, call_id="toolu_1")
        assert session.call(pay, **ORDER, call_id="toolu_1") == first
        assert not session.replayed("toolu_1"), "this opening has sent it"
    assert len(ground.effects()) == 1


@pytest.mark.parametrize("changed", [{"amount": 501}, {"order": "o2"}])
def test_an_id_met_again_with_other_params_has_diverged_and_nothing_is_written(
    ground: Ground, app: Doubtless, changed: dict[str, Any]
) -> None:
    pay, notify = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        session.call(pay, **ORDER, call_id="toolu_1")
        written = len(app.store.rows("thread-42"))
        error = raised(session.call, pay, **ORDER | changed, call_id="toolu_1")
        assert isinstance(error, Diverged)
        assert error.field == f"params.{next(iter(changed))}"
        other = raised(session.call, notify, whom="anna", call_id="toolu_1")
        assert isinstance(other, Diverged)
        assert (other.field, other.logged, other.asked) == ("step", "pay", "notify")
        assert len(app.store.rows("thread-42")) == written
        session.call(notify, whom="anna", call_id="toolu_2")  # the opening goes on
    assert ground.effects() == ["pay o1 500", "notify anna"]


@pytest.mark.parametrize("ids", [("toolu_1", "toolu_2"), (None, None), (None, "toolu_1")])
def test_two_intended_equal_calls_in_one_opening_are_two_effects(
    ground: Ground, app: Doubtless, ids: tuple[str | None, str | None]
) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        receipts = [session.call(pay, **ORDER, call_id=call_id) for call_id in ids]
    assert receipts[0] != receipts[1], "each has its own key"
    assert ground.effects() == ["pay o1 500"] * 2


def test_a_failure_is_given_again_under_its_id_with_words_for_a_model(ground: Ground, app: Doubtless) -> None:
    asked: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> dict[str, int]:
        asked.append(amount)
        raise Rejected("limit", detail="over the limit")

    with app.session("thread-42") as session:
        errors = [raised(session.call, pay, amount=1, call_id="toolu_1") for _ in range(2)]
        assert all(isinstance(error, StepFailed) and error.kind == "rejected" for error in errors)
        assert str(errors[0]) == str(errors[1])
        assert "was refused by the other side" in errors[0].text_for_model  # type: ignore[union-attr]
    assert asked == [1]
    assert acknowledgements(app) == [{"ids": ["toolu_1"], "paths": ["1"]}], "the host has its answer"


def test_calls_of_eight_threads_have_a_place_and_an_effect_each(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        together(8, lambda n: session.call(pay, order=f"o{n}", amount=n, call_id=f"toolu_{n}"))
    assert sorted(ground.effects()) == [f"pay o{n} {n}" for n in range(8)]
    assert sorted(call.path for call in session.calls) == [str(n) for n in range(1, 9)]
    (acknowledged,) = acknowledgements(app)
    assert acknowledged["ids"] == [f"toolu_{n}" for n in range(8)]
    assert acknowledged["paths"] == [str(n) for n in range(1, 9)]
    with app.session("thread-42") as again:
        again.call(pay, order="o9", amount=9)
    assert again.calls[0].path == "9", "places are never used twice"


def test_one_id_asked_for_by_eight_threads_at_once_has_one_effect_and_one_answer(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        at_one_moment(session, "known", 8)
        receipts = together(8, lambda n: session.call(pay, **ORDER, call_id="toolu_1"))
        assert all(receipt == receipts[0] for receipt in receipts)
        assert isinstance(receipts[0], dict)
    assert len(ground.effects()) == 1
    assert len(session.calls) == 1


# ---------------------------------------------------------------- after an opening that was left normally


def test_an_acknowledged_id_met_again_in_a_later_turn_is_refused_and_not_swallowed(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        session.call(pay, **ORDER, call_id="toolu_1")
    for params in (ORDER, ORDER | {"amount": 1}):
        with app.session("thread-42") as session:
            error = raised(session.call, pay, **params, call_id="toolu_1")
            assert isinstance(error, Refused)
            assert "ask for it again" in error.text_for_model
            assert session.calls == ()
    assert len(ground.effects()) == 1
    with app.session("thread-42") as session:
        session.call(pay, **ORDER, call_id="toolu_2")
    assert len(ground.effects()) == 2, "a new id in a later turn is a payment of its own"


def test_a_turn_without_calls_writes_nothing(ground: Ground, app: Doubtless) -> None:
    with app.session("thread-42"):
        pass
    written = app.store.rows("thread-42")
    for _ in range(3):
        with app.session("thread-42"):
            pass
    assert app.store.rows("thread-42") == written
    assert app.show("thread-42").status == "waiting"


# ---------------------------------------------------------------- after an opening that was not


def test_equal_writes_that_were_not_acknowledged_are_met_again_one_by_one(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    crashed(app, (pay, {**ORDER, "call_id": "a"}), (pay, {**ORDER, "call_id": "b"}))
    with app.session("thread-42") as session:
        receipts = [session.call(pay, **ORDER, call_id=call_id) for call_id in ("c", "d")]
        assert receipts[0] != receipts[1]
        assert len(ground.effects()) == 2
        session.call(pay, **ORDER, call_id="e")
    assert [call.replayed for call in session.calls] == [True, True, False]
    assert len(ground.effects()) == 3, "the third is a new one"


def test_equal_writes_are_met_again_once_each_by_threads_that_ask_at_one_moment(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    crashed(app, (pay, ORDER), (pay, ORDER))
    with app.session("thread-42") as session:
        at_one_moment(session, "record", 8)
        receipts = together(8, lambda n: session.call(pay, **ORDER, call_id=f"c{n}"))
    assert len({receipt["key"] for receipt in receipts}) == 8
    assert sum(call.replayed for call in session.calls) == 2
    assert len(ground.effects()) == 8


def test_params_in_another_order_are_the_same_call(ground: Ground, app: Doubtless) -> None:
    @app.step(effect="non_idem_write")
    def post(body: dict[str, int]) -> int:
        ground_effects.append(body)
        return len(ground_effects)

    ground_effects: list[dict[str, int]] = []
    crashed(app, (post, {"body": {"a": 1, "b": 2}}))
    with app.session("thread-42") as session:
        assert session.call(post, body={"b": 2, "a": 1}, call_id="x") == 1
    assert len(ground_effects) == 1


def test_the_first_other_write_is_refused_and_names_all_that_stands_and_later_ones_go_through(ground: Ground, app: Doubtless) -> None:
    pay, notify = payments(app, str(ground.folder))
    crashed(app, (pay, {**ORDER}), (notify, {"whom": "anna"}))
    with app.session("thread-42") as session:
        error = raised(session.call, pay, order="o1", amount=499, call_id="x")
        assert isinstance(error, Refused)
        assert 'pay(amount=500, order="o1") was carried out; its result: {"key":' in error.text_for_model
        assert 'notify(whom="anna") was carried out' in error.text_for_model
        assert error.holder["stands"] == ["1", "2"]
        again = raised(session.call, pay, order="o1", amount=499, call_id="x")
        assert isinstance(again, Refused), "a host that repeats the very call has not asked its model"
        assert len(ground.effects()) == 2
        session.call(pay, order="o1", amount=499, call_id="y")
    assert ground.effects("pay") == ["pay o1 500", "pay o1 499"]


def test_a_read_is_never_refused_and_is_asked_again(ground: Ground, app: Doubtless) -> None:
    looked: list[str] = []

    @app.step(effect="read")
    def look(what: str) -> int:
        looked.append(what)
        return len(looked)

    pay, _ = payments(app, str(ground.folder))
    crashed(app, (pay, ORDER), (look, {"what": "a"}))
    with app.session("thread-42") as session:
        assert session.call(look, what="a") == 2
    assert looked == ["a", "a"]


def test_what_a_refusal_has_named_is_acknowledged_with_the_opening_and_what_it_has_not_is_kept(
    ground: Ground, app: Doubtless
) -> None:
    pay, notify = payments(app, str(ground.folder))
    crashed(app, (pay, ORDER))
    with app.session("thread-42"):
        pass  # a turn that asks for nothing: the model was told nothing
    assert app.show("thread-42").unacknowledged == ("1",)
    with app.session("thread-42") as session:
        assert isinstance(raised(session.call, notify, whom="anna"), Refused)
    assert app.show("thread-42").unacknowledged == ()
    with app.session("thread-42") as session:
        session.call(notify, whom="anna")
    assert ground.effects() == ["pay o1 500", "notify anna"]


def test_a_refused_write_is_not_acknowledged_by_a_crash_after_it(ground: Ground, app: Doubtless) -> None:
    pay, notify = payments(app, str(ground.folder))
    crashed(app, (pay, ORDER))
    with pytest.raises(Refused), app.session("thread-42") as session:
        session.call(notify, whom="anna")
    with app.session("thread-42") as session:
        assert isinstance(raised(session.call, notify, whom="anna"), Refused)
    assert ground.effects() == ["pay o1 500"]


# ---------------------------------------------------------------- names, places, ends


def test_steps_are_called_by_name_too_and_an_unknown_name_is_refused_before_anything_is_written(
    ground: Ground, app: Doubtless
) -> None:
    payments(app, str(ground.folder))
    stranger, _ = payments(ground.app(), str(ground.folder))

    @app.task
    def some_task() -> None: ...

    with app.session("thread-42") as session:
        written = app.store.rows("thread-42")
        unknown = raised(session.call, "pey", **ORDER)
        assert isinstance(unknown, UnknownStep) and "pay" in unknown.hint
        assert isinstance(raised(session.call, stranger, **ORDER), UsageError)
        assert isinstance(raised(session.call, some_task), UsageError)
        assert isinstance(raised(session.call, "pay", order="o1"), TypeError | UsageError)
        assert isinstance(raised(session.call, "pay", order="o1", amount=float("nan")), NotCanonical)
        for call_id in ("", 7, "x" * 501, "\ud800"):
            assert isinstance(raised(session.call, "pay", **ORDER, call_id=call_id), UsageError)
        assert app.store.rows("thread-42") == written
        session.call("pay", "o1", 500)
        assert session.calls[0].path == "1"
    assert ground.effects() == ["pay o1 500"]


def test_a_call_outside_the_block_is_refused(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    session = app.session("thread-42")
    assert isinstance(raised(session.call, pay, **ORDER), UsageError)
    with session:
        assert isinstance(raised(session.__enter__), UsageError), "it is open already"
    assert isinstance(raised(session.call, pay, **ORDER), UsageError)
    assert ground.effects() == []
    with session:
        session.call(pay, **ORDER)
    assert len(ground.effects()) == 1


def test_a_session_is_refused_inside_a_task_and_inside_a_step(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    errors: list[BaseException | None] = []

    @app.step(effect="read")
    def nested() -> int:
        errors.append(raised(session.call, pay, **ORDER))
        errors.append(raised(app.session("other").__enter__))
        return 1

    @app.task
    def some_task() -> int:
        errors.append(raised(session.call, pay, **ORDER))
        errors.append(raised(app.session("other").__enter__))
        return nested()

    with app.session("thread-42") as session:
        session.call(nested)
        app.run(some_task, "t1")
    assert len(errors) == 6
    assert all(isinstance(error, OutsideTask) for error in errors)
    assert ground.effects() == []
    assert app.store.head("other") is None


def test_of_two_openings_at_once_the_second_is_busy(ground: Ground, app: Doubtless) -> None:
    payments(app, str(ground.folder))
    with app.session("thread-42"):
        assert isinstance(raised(app.session("thread-42").__enter__), TaskBusy)
        assert isinstance(raised(ground.app().session("thread-42").__enter__), TaskBusy)
        assert "skipped" in app.resume_all()["thread-42"]
    with app.session("thread-42"):
        pass


def test_a_task_is_no_session(app: Doubtless) -> None:
    @app.task
    def some_task() -> int:
        return 1

    app.run(some_task, "thread-42")
    error = raised(app.session("thread-42").__enter__)
    assert isinstance(error, UsageError) and "some_task" in str(error)
    for wrong in ("", "a/b", "$store"):
        assert isinstance(raised(app.session, wrong), UsageError)


def test_finish_ends_the_session_with_its_output_and_acknowledges_its_calls(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        session.call(pay, **ORDER, call_id="toolu_1")
        assert isinstance(raised(session.finish, {1, 2}), NotCanonical)
        session.finish({"paid": 500})
        assert isinstance(raised(session.call, pay, **ORDER), UsageError)
    view = app.show("thread-42")
    assert (view.status, view.output, view.unacknowledged) == ("done", {"paid": 500}, ())
    assert acknowledgements(app) == [{"ids": ["toolu_1"], "paths": ["1"]}]
    error = raised(app.session("thread-42").__enter__)
    assert isinstance(error, UsageError) and "ended" in str(error)
    assert app.resume("thread-42") == {"paid": 500}
    assert len(ground.effects()) == 1


def test_a_name_that_begins_with_a_dollar_is_a_fault_of_a_task(app: Doubtless) -> None:
    @app.task(name="$session")
    def mine() -> None: ...

    assert any("'$'" in fault for fault in app.check())
