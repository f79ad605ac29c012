"""Params and calls that cannot be: a clear error that names the place and says what to type, and nothing is written or sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from bad_ground import MakeApp, Trap, everything, says_what_to_type

from doubtless import Doubtless, NeedsHuman, Secret, injected
from doubtless.errors import (
    DoesNotFit,
    DoubtlessError,
    InputDiffers,
    NotCanonical,
    OutsideTask,
    StepTableError,
    UnknownTask,
    UsageError,
)


class Odd:
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)

NO_VALUES = {
    "NaN": (float("nan"), "params.order"),
    "infinity": (float("inf"), "params.order"),
    "a Decimal that is no number": (Decimal("NaN"), "params.order"),
    "a set": ({1, 2}, "params.order"),
    "a frozenset deep inside": ({"lines": [{"tags": frozenset("a")}]}, "params.order.lines[0].tags"),
    "a lone surrogate": ("\ud800", "params.order"),
    "a lone surrogate as a key": ({"\ud800": 1}, "params.order"),
    "a key that is no text": ({1: "one"}, "params.order"),
    "an object": (Odd(), "params.order"),
    "a class": (Odd, "params.order"),
    "a function": (len, "params.order"),
    "a generator": ((n for n in "ab"), "params.order"),
    "itself": (LOOP, "params.order"),
    "an undeclared secret": (Secret("env:BANK_TOKEN"), "params.order"),
}


@pytest.mark.parametrize("what", NO_VALUES)
def test_a_param_of_a_step_that_has_no_stored_form_is_refused_by_its_place(trap: Trap, what: str) -> None:
    value, place = NO_VALUES[what]
    error = trap.refused_in_a_task(lambda: trap.pay(order=value), NotCanonical)
    assert place.removeprefix("params.") in error.message
    assert "pay" in error.message


@pytest.mark.parametrize("what", NO_VALUES)
def test_a_param_of_a_task_that_has_no_stored_form_is_refused_and_no_task_is_made(trap: Trap, what: str) -> None:
    value, place = NO_VALUES[what]
    trap.app.store.info()
    error = trap.refused(lambda: trap.app.run(trap.task, "t1", order=value), NotCanonical)
    assert place.removeprefix("params.") in error.message
    assert "settle_order" in error.message
    assert trap.app.tasks() == []


def test_a_param_of_ten_megabytes_works_and_lies_in_the_folder_beside_the_database(make_app: MakeApp, folder: Path) -> None:
    app = make_app()
    sent: list[int] = []

    @app.step(effect="non_idem_write")
    def upload(text: str) -> dict[str, int]:
        sent.append(len(text))
        return {"size": len(text)}

    @app.task
    def send(text: str) -> dict[str, int]:
        return upload(text=text)

    text = "x" * 10_000_000
    assert app.run(send, "big", text=text) == {"size": 10_000_000}
    assert app.run(send, "big", text=text) == {"size": 10_000_000}
    assert sent == [10_000_000]
    files = [path for path in (folder / "bad.db.blobs").rglob("*") if path.is_file()]
    assert len(files) == 1  # task and step name the same content
    assert files[0].stat().st_size > 10_000_000
    assert (folder / "bad.db").stat().st_size + (folder / "bad.db-wal").stat().st_size < 2_000_000
    assert app.verify() == []


# ---------------------------------------------------------------- how a step or a task is called


CALLS: dict[str, tuple[Callable[[Trap], Any], tuple[str, ...]]] = {
    "an unknown param": (lambda trap: trap.pay(order="o1", ammount=2), ("ammount", "order, amount, note")),  # type: ignore[call-arg]
    "a missing param": (lambda trap: trap.pay(), ("without 'order'", "order, amount, note")),  # type: ignore[call-arg]
    "too many by position": (lambda trap: trap.pay("o1", 2, 3), ("was given 3", "order, amount")),  # type: ignore[misc]
    "one twice": (lambda trap: trap.pay("o1", order="o2"), ("'order' twice",)),  # type: ignore[misc]
    "a reserved one": (lambda trap: trap.pay(order="o1", idempotency_key="k"), ("idempotency_key",)),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("what", CALLS)
def test_a_step_that_is_called_wrong_is_refused_with_what_it_takes(trap: Trap, what: str) -> None:
    call, words = CALLS[what]
    error = trap.refused_in_a_task(lambda: call(trap), UsageError, *words)
    assert "pay" in error.message


@pytest.mark.parametrize(
    "args, params, words",
    [
        ((), {"ordr": 1}, ("ordr", "it takes order")), (("o1", "o2"), {}, ("was given 2",)),
        (("o1",), {"order": "o2"}, ("twice",)), ((), {"goal": 1}, ("goal",)),
    ],
)  # fmt: skip
def test_a_task_that_is_called_wrong_is_refused_with_what_it_takes(
    trap: Trap, args: tuple[Any, ...], params: dict[str, Any], words: tuple[str, ...]
) -> None:
    trap.app.store.info()
    error = trap.refused(lambda: trap.app.run(trap.task, "t1", *args, **params), UsageError, *words)
    assert "settle_order" in error.message
    assert trap.app.tasks() == []


def test_a_caller_who_passes_the_injected_key_is_refused(app: Doubtless, trap: Trap) -> None:
    @app.step(effect="idem_write")
    def put(value: int, idempotency_key: str = injected()) -> dict[str, int]:
        raise AssertionError("it was called")

    trap.refused_in_a_task(lambda: put(value=1, idempotency_key="mine"), UsageError, "put", "idempotency_key", "leave it out")


def test_a_param_of_another_type_than_declared_is_refused_before_its_intent(app: Doubtless, trap: Trap) -> None:
    @app.step(effect="non_idem_write")
    def transfer(amount: int) -> dict[str, int]:
        raise AssertionError("it was called")

    error = trap.refused_in_a_task(lambda: transfer(amount="much"), DoesNotFit, "transfer.amount", "int")  # type: ignore[arg-type]
    assert "much" not in str(error)


# ---------------------------------------------------------------- where a step may be called


def test_a_step_outside_of_a_task_is_refused(trap: Trap) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.pay(order="o1"), OutsideTask, "pay", "@app.task", "step.fn")


def test_a_step_inside_a_step_is_refused(app: Doubtless, trap: Trap) -> None:
    caught: list[DoubtlessError] = []

    @app.step(effect="read")
    def outer() -> str:
        with pytest.raises(OutsideTask) as error:
            trap.pay(order="o1")
        caught.append(error.value)
        return "caught"

    trap.call = outer
    assert app.run(trap.task, "t1") == "caught"
    says_what_to_type(caught[0], "inside another step", "step.fn")
    assert [row.path for row in app.store.rows("t1") if row.path] == ["1"]


def test_a_step_in_a_stray_thread_is_refused(app: Doubtless, trap: Trap) -> None:
    import contextvars

    caught: list[DoubtlessError] = []

    def stray() -> None:
        with pytest.raises(OutsideTask) as error:
            trap.pay(order="o1")
        caught.append(error.value)

    def call() -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(stray,))
        thread.start()
        thread.join()
        raise caught[0]

    trap.refused_in_a_task(call, OutsideTask, "thread", "pay")


def test_a_step_in_a_stray_asyncio_task_is_refused(app: Doubtless) -> None:
    caught: list[DoubtlessError] = []

    @app.step(effect="non_idem_write")
    async def pay(order: str) -> dict[str, int]:
        raise AssertionError("it was called")

    @app.task
    async def stray() -> str:
        async def other() -> None:
            with pytest.raises(OutsideTask) as error:
                await pay(order="o1")
            caught.append(error.value)

        await asyncio.create_task(other())
        return "caught"

    assert asyncio.run(app.arun(stray, "t1")) == "caught"
    says_what_to_type(caught[0], "asyncio.Task", "pay")
    assert [row.path for row in app.store.rows("t1") if row.path] == []


def test_an_async_step_in_a_sync_task_is_refused(app: Doubtless, trap: Trap) -> None:
    @app.step(effect="non_idem_write")
    async def pay_later(order: str) -> dict[str, int]:
        raise AssertionError("it was called")

    trap.refused_in_a_task(lambda: pay_later(order="o1"), UsageError, "pay_later", "async def")


def test_a_task_called_like_a_function_is_refused(trap: Trap) -> None:
    trap.app.store.info()
    trap.refused(trap.task, UsageError, "app.run(settle_order")


# ---------------------------------------------------------------- task ids


BAD_IDS = {
    "": "an id", " \n": "printable", "a\nb": "printable", "a\tb": "printable", "\x1b[31m": "printable", "\ud800": "printable",
    "x" * 201: "at most 200", "x" * 300: "300", "parent/1": "'/'", "$store": "'$'", "$": "'$'",
}  # fmt: skip


@pytest.mark.parametrize("task_id", BAD_IDS)
@pytest.mark.parametrize("how", ["run", "start", "arun"])
def test_a_task_id_that_cannot_be_one_is_refused_with_what_it_may_be(trap: Trap, task_id: str, how: str) -> None:
    trap.app.store.info()

    def call() -> Any:
        done = getattr(trap.app, how)(trap.task, task_id)
        return asyncio.run(done) if how == "arun" else done

    trap.refused(call, UsageError, BAD_IDS[task_id])
    assert trap.app.tasks() == []


@pytest.mark.parametrize("task_id", [None, 7, b"t1", ["t1"]])
def test_a_task_id_that_is_no_text_is_refused(trap: Trap, task_id: Any) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.app.run(trap.task, task_id), UsageError, "id")
    trap.refused(lambda: trap.app.run(trap.task, task_id=task_id), UsageError, "id")


def test_no_task_id_at_all_is_refused(trap: Trap) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.app.run(trap.task), UsageError, "id")  # type: ignore[call-overload]


@pytest.mark.parametrize("task_id", ["x" * 200, "recon 2026-11-28", "客户-7", "a$b", "😀"])
def test_two_hundred_printable_characters_are_taken(trap: Trap, task_id: str) -> None:
    trap.call = lambda: "ok"
    assert trap.app.run(trap.task, task_id) == "ok"
    assert trap.app.show(task_id).status == "done"


# ---------------------------------------------------------------- what is not of this app


def test_a_task_of_another_app_is_refused(trap: Trap, make_app: MakeApp) -> None:
    other = make_app("sqlite:///other.db")

    @other.task
    def settle_order(order: Any = None) -> None: ...

    trap.app.store.info()
    trap.refused(lambda: trap.app.run(settle_order, "t1"), UsageError, "settle_order", "@app.task")


@pytest.mark.parametrize("task", [None, "settle_order", len])
def test_what_is_no_task_is_refused(trap: Trap, task: Any) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.app.run(task, "t1"), UsageError, "@app.task")


def test_a_step_is_no_task(trap: Trap) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.app.run(trap.pay, "t1"), UsageError, "pay")  # type: ignore[call-overload]


@pytest.mark.parametrize("look", ["resume", "show"])
def test_a_task_that_does_not_exist_is_named_with_where_to_look(trap: Trap, look: str) -> None:
    trap.app.store.info()
    trap.refused(lambda: getattr(trap.app, look)("nobody"), UnknownTask, "nobody", "doubtless tasks")


def test_a_task_whose_code_is_gone_is_left_as_it_is(trap: Trap, make_app: MakeApp) -> None:
    trap.app.start(trap.task, "t1")
    rows = trap.app.store.rows("t1")
    other = make_app()
    with pytest.raises(UnknownTask) as error:
        other.resume("t1")
    says_what_to_type(error.value, "settle_order", "t1")
    assert trap.app.store.rows("t1") == rows


# ---------------------------------------------------------------- one id is one task


DIFFERENT = [
    ({"order": "o1"}, {"order": "o2"}, ("params.order", "'o1'", "'o2'")),
    (
        {"order": {"lines": [{"n": 1}, {"n": 2}]}},
        {"order": {"lines": [{"n": 1}, {"n": 3}]}},
        ("params.order.lines[1].n", "2", "3"),
    ),
    ({"order": {"a": 1}}, {"order": {"a": 1, "b": None}}, ("params.order.b", "(missing)")),
    ({"order": True}, {"order": 1}, ("params.order",)),
    ({"order": "1"}, {"order": 1}, ("params.order",)),
    ({"order": "é"}, {"order": "e\u0301"}, ("params.order",)),
]


@pytest.mark.parametrize("first, second, words", DIFFERENT)
@pytest.mark.parametrize("how", ["run", "start"])
def test_the_same_id_with_other_input_is_refused_with_the_first_difference(
    trap: Trap, first: dict[str, Any], second: dict[str, Any], words: tuple[str, ...], how: str
) -> None:
    trap.call = lambda: "ok"
    trap.app.run(trap.task, "t1", **first)
    rows = trap.app.store.rows("t1")
    with pytest.raises(InputDiffers) as error:
        getattr(trap.app, how)(trap.task, "t1", **second)
    says_what_to_type(error.value, "t1", "nothing was written", "doubtless show t1", *words)
    assert trap.app.store.rows("t1") == rows
    assert trap.app.run(trap.task, "t1", **first) == "ok"


def test_a_large_input_that_differs_leaves_no_content_behind(trap: Trap) -> None:
    trap.call = lambda: "ok"
    trap.app.run(trap.task, "t1", order="small")
    trap.refused(lambda: trap.app.run(trap.task, "t1", order="x" * 2_000_000), InputDiffers, "params.order")


def test_a_task_param_of_another_type_than_declared_is_refused_and_no_task_is_made(app: Doubtless, trap: Trap) -> None:
    @app.task
    def daily(day: str, lines: list[dict[str, int]]) -> None:
        raise AssertionError("it was called")

    app.store.info()
    trap.refused(lambda: app.run(daily, "d1", day=7, lines=[]), DoesNotFit, "daily.day", "str", "int")
    error = trap.refused(lambda: app.start(daily, "d1", day="d", lines=[{"n": "much"}]), DoesNotFit, "daily.lines[0]")
    assert "much" not in str(error)
    assert app.tasks() == []


def test_the_same_id_for_another_task_is_refused(trap: Trap) -> None:
    trap.call = lambda: "ok"
    trap.app.run(trap.task, "t1")

    @trap.app.task
    def other(order: Any = None) -> None: ...

    trap.refused(lambda: trap.app.run(other, "t1"), InputDiffers, "settle_order", "other")


@pytest.mark.parametrize(
    "first, second", [({"order": 1}, {"order": 1.0}), ({"order": -0.0}, {"order": 0}), ({}, {"order": None})]
)
def test_what_is_the_same_value_is_the_same_input(trap: Trap, first: dict[str, Any], second: dict[str, Any]) -> None:
    trap.call = lambda: "ok"
    assert trap.app.run(trap.task, "t1", **first) == trap.app.run(trap.task, "t1", **second)


# ---------------------------------------------------------------- the table


def broken(app: Doubtless) -> None:
    """Declares eight faults in five places."""
    app.step(effect="wrote")(good)
    app.step(effect="read", name="b", query=good, attemps=3)(good)
    app.step(effect="non_idem_write", name="c", timeout="P1M", compensate="nobody", compensate_deadline="PT10M")(good)
    app.step(effect="idem_write", name="d")(good)
    app.add_steps({"e": {"effect": "read"}})
    app.task(generator)


def good(day: str) -> dict[str, int]:
    raise AssertionError("it was called")


def generator(day: str) -> Any:
    yield day


FAULTS = [
    "'good': unknown effect 'wrote'", "'b': query on a read", "'b': unknown option 'attemps'; did you mean 'attempts'?",
    "'c': timeout", "'c': compensate names 'nobody'", "'d': an idem_write that takes no key", "'e': says no call",
    "task 'generator': is a generator",
]  # fmt: skip


@pytest.mark.parametrize("use", ["run", "start", "resume", "resume_all", "worker"])
def test_every_fault_of_the_table_is_listed_at_once_at_first_use_and_nothing_is_made(
    make_app: MakeApp, folder: Path, use: str
) -> None:
    app = make_app()
    broken(app)

    @app.task
    def fine(day: str) -> str:
        raise AssertionError("it was called")

    assert everything(folder) == {}
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: app.run(fine, "t1", day="d"), "start": lambda: app.start(fine, "t1", day="d"),
        "resume": lambda: app.resume("t1"), "resume_all": app.resume_all, "worker": lambda: app.worker().start(),
    }  # fmt: skip
    with pytest.raises(StepTableError) as error:
        calls[use]()
    assert everything(folder) == {}
    for fault in FAULTS:
        assert any(fault in line for line in error.value.faults), fault
    assert len(error.value.faults) == len(FAULTS)
    assert list(error.value.faults) == app.check()
    assert all(line in str(error.value) for line in error.value.faults)


def test_the_table_is_judged_anew_when_a_step_is_declared_later(app: Doubtless, trap: Trap) -> None:
    trap.call = lambda: "ok"
    assert app.run(trap.task, "t1") == "ok"
    app.step(effect="wrote", name="late")(good)
    with pytest.raises(StepTableError, match="late"):
        app.run(trap.task, "t2")
    assert [head.task_id for head in app.tasks()] == ["t1"]


# ---------------------------------------------------------------- other small things


@pytest.mark.parametrize("wait", ["a while", "P1M", -1, "PT-5S", None, object()])
def test_a_wait_that_is_no_duration_is_refused_before_the_task_is_made(trap: Trap, wait: Any) -> None:
    trap.app.store.info()
    trap.refused(lambda: trap.app.run(trap.task, "t1", wait=wait), UsageError)
    assert trap.app.tasks() == []


def test_a_worker_without_hands_is_refused(trap: Trap) -> None:
    trap.app.store.info()
    with pytest.raises(UsageError, match="concurrency must be from 1 to 10,000, not 0"):
        trap.app.worker(concurrency=0)


def test_a_handle_outside_of_a_step_is_refused(trap: Trap) -> None:
    from doubtless import record_handle

    trap.app.store.info()
    trap.refused(lambda: record_handle("h1"), OutsideTask, "record_handle")


def test_a_handle_that_cannot_be_stored_fails_inside_the_step_whose_outcome_is_then_unknown(app: Doubtless) -> None:
    from doubtless import record_handle

    @app.step(effect="non_idem_write")
    def create() -> dict[str, int]:
        record_handle({1, 2})
        raise AssertionError("it went on")

    @app.task
    def run_it() -> None:
        create()

    with pytest.raises(NeedsHuman):
        app.run(run_it, "t1")
    (case,) = app.inbox().cases
    assert case.evidence["handles"] == []
    assert case.evidence["attempts"][0]["code"] == "NotCanonical"
