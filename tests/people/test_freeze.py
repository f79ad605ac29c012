"""A freeze stops new attempts of writes at once, everywhere; look-backs, reads and deadlines go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Child, Clock, Desk, MakeApp, answer, land_and_lose_the_reply, vanish

from doubtless import Doubtless, TaskFrozen, TaskWaiting, injected
from doubtless.answers import DidNotHappen, Happened
from doubtless.errors import UnknownStep, UsageError
from doubtless.outcomes import Pending

MakeDesk = Callable[..., Desk]
StartChild = Callable[..., Child]


def test_a_frozen_step_is_not_called_and_the_error_says_how_to_go_on(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.app.freeze(desk.pay, why="the bank asks us to stop", by="bob")
    with pytest.raises(TaskFrozen, match=r"pay.*frozen.*doubtless thaw pay") as frozen:
        desk.run()
    assert frozen.value.context["step"] == "pay"
    assert (desk.calls, desk.rows()[-1].kind) == (0, "TaskParked")
    assert not any(row.kind == "StepIntended" for row in desk.rows())
    assert desk.status() == "waiting"
    assert "the bank asks us to stop" in (desk.app.show("order-1").why or "")
    desk.app.thaw(desk.pay, why="they are back", by="bob")
    assert desk.run() == "payment-1"
    assert desk.calls == 1


@pytest.mark.parametrize("step", [None, "pay"])
def test_all_steps_or_one_can_be_frozen(make_desk: MakeDesk, step: str | None) -> None:
    desk = make_desk()

    @desk.app.step(effect="non_idem_write")
    def note(text: str) -> dict[str, Any]:
        return {"text": text}

    @desk.app.task
    def take_a_note() -> dict[str, Any]:
        return note(text="t")

    desk.app.freeze(step, why="stop")
    with pytest.raises(TaskFrozen):
        desk.run()
    if step is None:
        with pytest.raises(TaskFrozen):
            desk.app.run(take_a_note, "n1")
        desk.app.thaw(None)
    assert desk.app.run(take_a_note, "n1") == {"text": "t"}


def test_a_freeze_in_another_process_stops_the_second_attempt_of_a_write_whose_intent_stands(
    make_desk: MakeDesk, child: StartChild
) -> None:
    """The freeze comes while attempt 1 is under way; the attempt row of attempt 2 is where it is checked."""
    desk = make_desk(effect="idem_write", attempts=3)

    def freeze_then_lose(do: Callable[[], Any]) -> Any:
        assert child("freeze", "pay").hear() == "frozen"
        land_and_lose_the_reply(do)

    desk.goes = [freeze_then_lose]
    with pytest.raises(TaskFrozen, match="pay"):
        desk.run()
    assert desk.calls == 1
    assert [row.kind for row in desk.rows()][-2:] == ["AttemptEnded", "TaskParked"]
    with pytest.raises(TaskFrozen):
        desk.run()
    desk.app.thaw("pay")
    assert desk.run() in ("payment-1", "payment-2")
    assert desk.calls == 2
    assert len(desk.step().keys) == 1


def test_what_is_in_flight_when_the_freeze_comes_is_finished_and_recorded(make_desk: MakeDesk, child: StartChild) -> None:
    desk = make_desk()

    def freeze_then_land(do: Callable[[], Any]) -> Any:
        assert child("freeze", "pay").hear() == "frozen"
        return do()

    desk.goes = [freeze_then_land]
    assert desk.run() == "payment-1"


def test_a_freeze_stops_the_attempt_that_a_person_has_allowed_until_the_thaw(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [vanish]
    answer(desk.app, desk.doubt(), DidNotHappen("retry", even_now=True))
    desk.app.freeze("pay", why="stop")
    for _ in range(2):
        with pytest.raises(TaskFrozen):
            desk.run()
    assert desk.calls == 1
    desk.app.thaw("pay")
    assert desk.run() == "payment-1"
    assert desk.calls == 2


def test_look_backs_go_on_while_their_step_is_frozen(make_desk: MakeDesk) -> None:
    found: list[Any] = [Pending(look_again="PT1M"), Pending(look_again="PT1M"), {"id": "payment-1"}]
    desk = make_desk(query=lambda: found.pop(0))
    desk.goes = [land_and_lose_the_reply]
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    desk.app.freeze(None, why="stop")
    assert desk.run() == "payment-1"
    assert (desk.calls, found) == (1, [])


def test_reads_go_on_while_everything_is_frozen(app: Doubtless) -> None:
    @app.step(effect="read")
    def look(day: str) -> int:
        return 7

    @app.task
    def report() -> int:
        return look(day="d")

    app.freeze(None, why="stop")
    assert app.run(report, "r1") == 7


def test_answers_and_deadlines_go_on_while_everything_is_frozen(make_desk: MakeDesk, clock: Clock) -> None:
    desk = make_desk(query=lambda: Pending(look_again="P1D"), settle_within="PT30M")
    desk.goes = [land_and_lose_the_reply]
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    desk.app.freeze(None, why="stop")
    clock.advance("PT31M")
    with pytest.raises(TaskWaiting):
        desk.run(wait=False)
    (case,) = desk.app.inbox().cases
    answer(desk.app, case, Happened({"id": "payment-1"}))
    assert desk.run() == "payment-1"


def test_a_finished_task_is_not_touched_by_a_freeze(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.run()
    desk.app.freeze(None, why="stop")
    assert desk.run() == "payment-1"


def test_freeze_and_thaw_are_events_of_the_store_with_who_and_why(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.app.freeze("pay", why="the bank asks us to stop", by="bob")
    desk.app.thaw("pay", why="they are back", by="ann")
    frozen, thawed = desk.app.store.rows("$store")
    assert (frozen.kind, frozen.step_name) == ("StoreFrozen", "pay")
    assert (frozen.details["by"], frozen.details["why"]) == ("bob", "the bank asks us to stop")
    assert (thawed.kind, thawed.details["by"], thawed.details["why"]) == ("StoreThawed", "ann", "they are back")
    assert desk.app.verify() == []


def test_a_freeze_outlives_its_process(make_app: MakeApp, child: StartChild) -> None:
    Desk(make_app()).app.store.info()
    assert child("freeze", "pay").hear() == "frozen"
    with pytest.raises(TaskFrozen):
        Desk(make_app()).run()


def test_a_step_that_does_not_exist_is_not_frozen_silently(make_desk: MakeDesk) -> None:
    desk = make_desk()
    with pytest.raises(UnknownStep, match="there are: pay"):
        desk.app.freeze("pey", why="stop")
    assert desk.app.store.frozen() == {}


def test_a_thaw_of_what_is_not_frozen_is_refused_and_says_what_is(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.app.freeze("pay", why="stop")
    with pytest.raises(UsageError, match="frozen are: pay"):
        desk.app.thaw(None)
    desk.app.thaw("pay")
    with pytest.raises(UsageError, match="frozen are: none"):
        desk.app.thaw("pay")
    assert [row.kind for row in desk.app.store.rows("$store")] == ["StoreFrozen", "StoreThawed"]


def test_resume_all_says_which_tasks_stand_before_a_freeze(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.app.freeze("pay", why="stop")
    desk.app.start(desk.task, "order-1", order="o1")
    result = desk.app.resume_all()
    assert result["order-1"].startswith("task_frozen: ")
    desk.app.thaw("pay")
    assert desk.app.resume_all() == {"order-1": "done"}


def test_a_frozen_idem_write_keeps_the_key_of_its_first_attempt(make_app: MakeApp, clock: Clock) -> None:
    app = make_app()
    keys: list[str] = []

    @app.step(effect="idem_write", timeout="PT5S")
    def put(value: int, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) == 1:
            app.freeze("put", why="stop")
            raise TimeoutError("lost")
        return {"value": value}

    @app.task
    def store_it() -> dict[str, Any]:
        return put(value=1)

    with pytest.raises(TaskFrozen):
        app.run(store_it, "p1")
    clock.advance("P2D")
    app.thaw("put")
    assert app.run(store_it, "p1") == {"value": 1}
    assert len(set(keys)) == 1
