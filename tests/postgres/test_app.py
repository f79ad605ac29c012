"""An app on PostgreSQL: the whole way, from a task's start to what a takeover makes of a write in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubtless import Abort, Doubtless, NeedsHuman, TaskBusy, TaskFailed, injected
from doubtless.testing import FakeClock

MakeApp = Callable[..., Doubtless]
PROGRAM = Path(__file__).with_name("pg_program.py")


def test_a_task_with_writes_is_run_once_and_reused_by_another_process_of_the_app(make_app: MakeApp) -> None:
    calls: list[int] = []

    def build() -> tuple[Doubtless, object]:
        app = make_app()

        @app.step(effect="non_idem_write")
        def pay(amount: int, idempotency_key: str = injected()) -> dict[str, int]:
            calls.append(amount)
            return {"paid": amount}

        @app.step(effect="read")
        def orders(day: str) -> list[int]:
            return [1, 2, 3]

        @app.task
        def settle(day: str) -> int:
            return sum(pay(amount=amount)["paid"] for amount in orders(day=day))

        return app, settle

    app, settle = build()
    assert app.run(settle, "t-1", day="monday") == 6  # type: ignore[arg-type]
    other, settle = build()
    assert other.run(settle, "t-1", day="monday") == 6  # type: ignore[arg-type]
    assert calls == [1, 2, 3]
    assert app.show("t-1").status == "done"
    assert app.verify() == []


def test_a_large_output_goes_through_the_database_and_comes_back_whole(make_app: MakeApp) -> None:
    app = make_app()

    @app.step(effect="read")
    def fetch() -> str:
        return "ü" * 1_500_000

    @app.task
    def task() -> int:
        return len(fetch())

    assert app.run(task, "t-1") == 1_500_000
    again = make_app()
    again.step(effect="read", name="fetch")(lambda: "")
    assert app.verify() == []


def test_an_app_on_a_store_that_is_not_migrated_says_what_to_type(server: object, tmp_path: Path, make_app: MakeApp) -> None:
    from doubtless.errors import StoreRefused

    app = make_app(server.url(mark=str(tmp_path)))  # type: ignore[attr-defined]
    with pytest.raises(StoreRefused, match="doubtless migrate --store"):
        app.tasks()


def test_a_second_run_of_a_task_that_another_process_has_is_busy_until_its_lease_ends(
    make_app: MakeApp, clock: FakeClock
) -> None:
    begun, go = threading.Event(), threading.Event()

    def build() -> tuple[Doubtless, Any]:
        app = make_app(clock=clock)

        @app.step(effect="non_idem_write")
        def pay() -> dict[str, int]:
            begun.set()
            assert go.wait(30)
            return {"paid": 1}

        @app.task
        def settle() -> dict[str, int]:
            return pay()

        return app, settle

    one, task = build()
    thread = threading.Thread(target=lambda: one.run(task, "t-1"))
    thread.start()
    assert begun.wait(30)
    two, task_of_two = build()
    with pytest.raises(TaskBusy) as caught:
        two.run(task_of_two, "t-1")
    assert caught.value.context["until"] > clock.now().wall
    go.set()
    thread.join(30)
    assert two.run(task_of_two, "t-1") == {"paid": 1}


@pytest.mark.parametrize("said", ["half an emoji: \ud83d", "a NUL: \x00"])
@pytest.mark.parametrize("raises", [ValueError, Abort])
def test_what_no_row_can_hold_in_the_words_of_task_code_keeps_no_task_from_its_end(
    make_app: MakeApp, raises: Any, said: str
) -> None:
    app = make_app()
    undone: list[str] = []

    @app.step(effect="non_idem_write")
    def withdraw() -> dict[str, bool]:
        undone.append("paid")
        return {"withdrawn": True}

    @app.step(effect="non_idem_write", compensate=withdraw)
    def pay() -> str:
        return "paid"

    @app.task
    def task() -> None:
        pay()
        raise raises(said)

    expected = NeedsHuman if raises is ValueError else TaskFailed
    asked = []
    for _ in range(2):
        with pytest.raises(expected):
            app.run(task, "t-1")
        asked.append([case.id for case in app.inbox().cases])
    assert asked[0] == asked[1]  # the same words again are no other case
    assert len(asked[0]) == (1 if raises is ValueError else 0)
    assert undone == ([] if raises is ValueError else ["paid"])
    assert app.verify() == []
    assert (app.show("t-1").why or "").isprintable()


def test_a_business_key_with_a_nul_is_refused_before_anything_is_written(make_app: MakeApp) -> None:
    app = make_app()

    @app.step(effect="non_idem_write", once="order:{order}")
    def pay(order: str) -> None:
        raise AssertionError("never called")

    @app.task
    def task(order: str) -> None:
        pay(order=order)

    with pytest.raises(NeedsHuman):
        app.run(task, "t-1", order="A\x00B")
    assert "takes order, which is a text with a NUL in it; nothing was written" in app.inbox().cases[0].why
    assert app.verify() == []
