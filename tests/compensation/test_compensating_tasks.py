"""Where tasks are: one that undoes a step (void, else refund), child tasks that are undone, a done task that is undone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from undo_ground import Deploys, World, only_case, settle, statuses

from doubtless import (
    Abort,
    AlreadyUndone,
    Compensate,
    DidNotHappen,
    Doubtless,
    Happened,
    LetStand,
    NeedsHuman,
    NotSent,
    NotUndoable,
    Rejected,
    StepFailed,
    TaskFailed,
    TaskWaiting,
    UsageError,
)
from doubtless.testing import FakeClock


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def failed(app: Doubtless, task: Any, task_id: str = "t") -> TaskFailed:
    errors = []
    for _ in range(2):
        with pytest.raises(TaskFailed) as caught:
            app.run(task, task_id)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


# ---------------------------------------------------------------- several steps undo one


class Shop:
    """A payment that is undone by a task: void it, else refund it."""

    def __init__(self, app: Doubtless, world: World, *, void: Any = None, code: Any = None, **pay: Any) -> None:
        self.app, self.world = app, world

        @app.step(effect="non_idem_write")
        def void_payment(payment: str) -> dict[str, Any]:
            world.calls.append("void")
            if void is not None:
                raise void
            return world.undo(payment)

        @app.step(effect="non_idem_write")
        def refund_payment(payment: str) -> dict[str, Any]:
            world.calls.append("refund")
            return world.undo(payment)

        @app.task
        def void_else_refund(result: dict[str, Any]) -> Any:
            if code is not None:
                return code()
            try:
                return void_payment(payment=result["sheet"])
            except StepFailed:
                return refund_payment(payment=result["sheet"])

        @app.step(effect="non_idem_write", compensate=void_else_refund, **pay)
        def capture(order: str) -> dict[str, Any]:
            return world.make(order)

        @app.task
        def task() -> None:
            capture(order="o1")
            capture(order="o2")
            raise Abort("no stock")

        self.task = task


def test_a_compensation_of_several_steps_is_a_task_and_the_next_begins_when_it_has_ended(app: Doubtless, world: World) -> None:
    """C64, C70: a void fails after the capture and becomes a refund; one after the other, whatever each takes."""
    shop = Shop(app, world, void=Rejected("captured"))
    assert failed(app, shop.task).status == "compensated"
    assert world.calls == ["void", "refund", "void", "refund"]
    assert world.undone == ["o2", "o1"]
    assert statuses(app) == {"1": "compensated", "2": "compensated", "~2": "done", "~1": "done"}
    assert statuses(app, "t/~2") == {"1": "not_applied", "2": "done"}
    accepted = app.store.first("t/~2").details
    assert (accepted["parent"], accepted["path"]) == ("t", "~2")
    assert app.show("t/~2").params == {"result": {"sheet": "o2", "number": 2}}


def test_a_compensating_task_is_started_once_and_met_again_after_it_had_to_wait(
    app: Doubtless, world: World, clock: FakeClock
) -> None:
    shop = Shop(app, world, void=NotSent("down", retry_after="PT1H"))
    with pytest.raises(TaskWaiting):
        app.run(shop.task, "t", wait=False)
    assert app.show("t").status == "compensating"
    assert world.calls == ["void"]
    clock.advance("PT2H")
    with pytest.raises(TaskWaiting):
        app.resume("t", wait=False)
    assert world.calls == ["void", "void"]
    assert app.store.head("t/~1") is None


@pytest.mark.parametrize("nothing", [None, True, {}])
def test_a_compensating_task_that_returns_nothing_has_shown_nothing(app: Doubtless, world: World, nothing: Any) -> None:
    shop = Shop(app, world, code=lambda: nothing)
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    case = only_case(app)
    assert (case.kind, case.path) == ("compensation", "~2")
    assert statuses(app)["2"] == "done"


def raise_(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("said", [AlreadyUndone("in May"), AlreadyUndone()])
def test_a_compensating_task_may_say_that_it_is_undone_already(app: Doubtless, world: World, said: Any) -> None:
    shop = Shop(app, world, code=lambda: raise_(said))
    assert failed(app, shop.task).status == "compensated"


def test_a_compensating_task_that_cannot_undo_goes_to_a_person_whose_retry_is_a_task_of_its_own(
    app: Doubtless, world: World
) -> None:
    says: list[BaseException] = [NotUndoable("paid out"), Abort("not today")]
    shop = Shop(app, world, code=lambda: raise_(says.pop(0)) if says else world.undo("o"))
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    case = only_case(app)
    assert (case.kind, case.path) == ("compensation", "~2")
    assert "paid out" in case.why
    assert app.show("t/~2").status == "failed"
    settle(app, DidNotHappen("retry"))
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    assert app.show("t/~2~2").status == "failed"
    settle(app, DidNotHappen("retry"))
    assert failed(app, shop.task).status == "compensated"
    assert app.show("t/~2~3").status == "done"


def test_a_person_lets_stand_what_a_task_could_not_undo(app: Doubtless, world: World) -> None:
    says: list[BaseException] = [Abort("not today")]
    shop = Shop(app, world, code=lambda: raise_(says.pop(0)) if says else world.undo("o"))
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    settle(app, DidNotHappen("fail"))
    error = failed(app, shop.task)
    assert error.status == "failed"
    assert error.context["stands"] == [{"path": "2", "step": "capture", "compensate": "void_else_refund"}]


def test_a_doubt_inside_a_compensating_task_stops_its_parent_there(app: Doubtless, world: World) -> None:
    shop = Shop(app, world, void=ConnectionResetError("lost"))
    with pytest.raises(NeedsHuman) as caught:
        app.run(shop.task, "t")
    case = only_case(app)
    assert caught.value.cases == (case.id,)
    assert (case.kind, case.task_id) == ("doubt", "t/~2")
    assert world.calls == ["void"]
    settle(app, Happened({"voided": "o2"}))
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    assert statuses(app)["2"] == "compensated"


def test_after_the_deadline_a_compensating_task_sends_nothing_more(app: Doubtless, world: World, clock: FakeClock) -> None:
    shop = Shop(app, world, void=NotSent("down", retry_after="PT1H"), compensate_deadline="PT10M")
    with pytest.raises(NeedsHuman):
        app.run(shop.task, "t")
    assert world.calls == ["void"]  # the retry would have come after the deadline
    case = only_case(app)
    assert (case.task_id, case.path) == ("t/~2", "1")
    assert "compensate_deadline" in case.why


def test_a_compensating_task_does_not_begin_after_the_deadline(app: Doubtless, world: World, clock: FakeClock) -> None:
    shop = Shop(app, world, compensate_deadline="PT10M")
    app.start(shop.task, "t")
    real = world.undo

    def slow(name: str) -> dict[str, Any]:
        clock.advance("PT11M")
        return real(name)

    world.undo = slow  # type: ignore[method-assign]
    with pytest.raises(NeedsHuman):
        app.resume("t")
    assert world.undone == ["o2"]  # in flight at the deadline: its result counts
    case = only_case(app)
    assert (case.kind, case.path, case.task_id) == ("compensation", "~1", "t")
    assert app.store.head("t/~1") is None


# ---------------------------------------------------------------- sync and async


@pytest.mark.parametrize("task_async", [False, True])
@pytest.mark.parametrize("undo_async", [False, True])
def test_sync_and_async_compensations_run_in_sync_and_async_tasks(
    app: Doubtless, world: World, task_async: bool, undo_async: bool
) -> None:
    if undo_async:

        async def look(name: str) -> Any:
            await asyncio.sleep(0)
            return world.find(name)

        @app.step(effect="non_idem_write", query=look)
        async def withdraw(name: str) -> Any:
            await asyncio.sleep(0)
            world.withdraw(name)
            raise ConnectionResetError("lost")

    else:

        @app.step(effect="non_idem_write", query=lambda name: world.find(name))
        def withdraw(name: str) -> Any:
            world.withdraw(name)
            raise ConnectionResetError("lost")

    @app.step(effect="non_idem_write", compensate="withdraw")
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    if task_async:

        @app.task
        async def task() -> None:
            await make.acall(name="s1")
            await make.acall(name="s2")
            raise Abort("no")

    else:

        @app.task
        def task() -> None:
            make(name="s1")
            make(name="s2")
            raise Abort("no")

    assert failed(app, task).status == "compensated"
    assert world.undone == ["s2", "s1"]


def test_an_async_compensation_that_overruns_is_in_doubt_and_looked_up(app: Doubtless, world: World) -> None:
    async def look(name: str) -> Any:
        return world.find(name)

    @app.step(effect="non_idem_write", query=look, timeout=0.05)
    async def withdraw(name: str) -> Any:
        world.withdraw(name)
        await asyncio.Event().wait()

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1")
        raise Abort("no")

    assert failed(app, task).status == "compensated"
    assert world.calls == ["s1"]


def test_a_sync_compensation_that_overruns_is_taken_away_and_looked_up(app: Doubtless, world: World) -> None:
    import threading

    gate = threading.Event()

    @app.step(effect="non_idem_write", query=lambda name: world.find(name), timeout=0.05)
    def withdraw(name: str) -> Any:
        world.withdraw(name)
        gate.wait(5)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1")
        make(name="s2")
        raise Abort("no")

    try:
        assert failed(app, task).status == "compensated"
    finally:
        gate.set()
    assert world.calls == ["s2", "s1"]


# ---------------------------------------------------------------- parallel groups


def test_a_parallel_group_is_undone_one_after_the_other_in_reverse_order_of_its_done_events(
    app: Doubtless, world: World
) -> None:
    running: list[str] = []

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        running.append(name)
        assert len(running) == 1
        done = world.withdraw(name)
        running.remove(name)
        return done

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="first")
        app.map(lambda name: make(name=name), ["a", "b", "c"])
        raise Abort("no")

    assert failed(app, task).status == "compensated"
    done = [row.path for row in app.store.rows("t") if row.kind == "StepSettled" and row.status == "done" and row.path]
    made = [path for path in done if not path.startswith("~")]
    assert [path for path in done if path.startswith("~")] == [f"~{path}" for path in reversed(made)]
    assert sorted(world.undone) == ["a", "b", "c", "first"]
    assert world.undone[-1] == "first"


# ---------------------------------------------------------------- child tasks


class Family:
    """A parent whose child makes sheets; both have effects to undo."""

    def __init__(self, app: Doubtless, world: World, *, fail_in: str = "parent", hold: bool = False) -> None:
        self.app = app

        @app.step(effect="non_idem_write")
        def withdraw(name: str, result: dict[str, Any]) -> Any:
            return world.withdraw(name)

        @app.step(effect="non_idem_write", compensate=withdraw)
        def make(name: str) -> dict[str, Any]:
            return world.make(name)

        @app.task
        def grandchild() -> str:
            make(name="g")
            return "g"

        @app.task(on_failure="hold" if hold else "compensate")
        def child() -> str:
            make(name="c1")
            grandchild()
            make(name="c2")
            if fail_in == "child":
                raise Abort("the child says no")
            return "c"

        @app.task
        def parent() -> str:
            make(name="p1")
            child()
            make(name="p2")
            if fail_in == "parent":
                raise Abort("the parent says no")
            return "p"

        self.task = parent


def test_a_child_task_is_undone_at_its_own_done_place_itself_in_reverse(app: Doubtless, world: World) -> None:
    error = failed(app, Family(app, world).task)
    assert error.status == "compensated"
    assert world.undone == ["p2", "c2", "g", "c1", "p1"]
    assert [app.show(task).status for task in ("t", "t/2", "t/2/2")] == ["compensated"] * 3
    assert statuses(app)["2"] == "compensated"
    assert statuses(app)["~2"] == "done"
    assert world.calls == world.undone


def test_a_child_that_fails_undoes_its_own_first_and_then_its_parent_fails(app: Doubtless, world: World) -> None:
    error = failed(app, Family(app, world, fail_in="child").task)
    assert error.status == "compensated"
    assert error.context["failure"]["kind"] == "child"
    assert world.undone == ["c2", "g", "c1", "p1"]
    assert [app.show(task).status for task in ("t", "t/2", "t/2/2")] == ["compensated"] * 3


def test_where_a_person_lets_something_of_a_child_stand_the_parent_ends_failed_and_lists_it(
    app: Doubtless, world: World
) -> None:
    world.goes = [lambda do: do(), lambda do: NotUndoable("processed")]
    family = Family(app, world)
    with pytest.raises(NeedsHuman):
        app.run(family.task, "t")
    case = only_case(app)
    assert (case.task_id, case.path, case.kind) == ("t/2", "~3", "compensation")
    settle(app, DidNotHappen("fail"))
    error = failed(app, family.task)
    assert error.status == "failed"
    assert error.context["stands"] == [{"path": "3", "step": "make", "compensate": "withdraw", "task": "t/2"}]
    assert world.undone == ["p2", "g", "c1", "p1"]
    assert app.show("t/2").status == "failed"


# ---------------------------------------------------------------- a task that is done


def test_what_a_done_task_did_is_undone_when_a_person_says_so(app: Doubtless, world: World) -> None:
    family = Family(app, world, fail_in="nowhere")
    assert app.run(family.task, "t") == "p"
    assert app.compensate("t", by="anna", why="the customer changed their mind") == "compensated"
    assert world.undone == ["p2", "c2", "g", "c1", "p1"]
    error = failed(app, family.task)
    assert (error.status, error.context["failure"]["by"]) == ("compensated", "anna")
    assert app.compensate("t", by="anna", why="again") == "compensated"  # nothing happens twice
    assert world.calls == world.undone


def test_a_done_task_that_stops_at_a_case_while_it_is_undone_goes_on_and_its_code_is_not_run_again(
    app: Doubtless, world: World
) -> None:
    runs: list[int] = []

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> int:
        runs.append(1)
        make(name="s1")
        make(name="s2")
        return 7

    assert app.run(task, "t") == 7
    world.goes = [lambda do: NotUndoable("processed")]
    with pytest.raises(NeedsHuman):
        app.compensate("t", by="anna", why="wrong")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, DidNotHappen("fail"))
    with pytest.raises(TaskFailed) as caught:
        app.compensate("t", by="anna", why="wrong")
    assert caught.value.status == "failed"
    assert [entry["path"] for entry in caught.value.context["stands"]] == ["2"]
    assert (len(runs), world.undone) == (1, ["s1"])


def test_only_a_done_task_with_something_to_undo_is_undone(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def plain() -> int:
        return 1

    @app.task
    def task() -> int:
        return plain()

    app.start(task, "new")
    with pytest.raises(UsageError, match="only what a task did that is done"):
        app.compensate("new", by="anna", why="x")
    app.run(task, "t")
    with pytest.raises(UsageError, match="nothing that has a compensation"):
        app.compensate("t", by="anna", why="x")
    with pytest.raises(UsageError, match="needs a name"):
        app.compensate("t", by=" ", why="x")
    assert app.show("t").status == "done"


# ---------------------------------------------------------------- hold


@pytest.mark.parametrize("answer", [Compensate(), LetStand()])
def test_with_hold_a_person_says_whether_a_failed_task_is_undone(app: Doubtless, world: World, answer: Any) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task(on_failure="hold")
    def task() -> None:
        make(name="s1")
        make(name="s2")
        raise Abort("no")

    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    assert list(only_case(app).answers) == ["compensate", "let_stand"]
    assert world.undone == []
    settle(app, answer)
    error = failed(app, task)
    if isinstance(answer, Compensate):
        assert (error.status, world.undone, error.context["stands"]) == ("compensated", ["s2", "s1"], [])
    else:
        assert (error.status, world.undone) == ("failed", [])
        assert [entry["path"] for entry in error.context["stands"]] == ["2", "1"]


def test_on_failure_is_one_of_two_words(deploy: Deploys) -> None:
    app = deploy()

    @app.task(on_failure="ignore")  # type: ignore[call-overload,untyped-decorator]
    def task() -> None: ...

    assert "on_failure is 'ignore': say 'compensate' or 'hold'" in app.check()[0]


# ---------------------------------------------------------------- workers and sessions


def test_a_worker_goes_on_with_what_waits_to_be_undone_when_its_time_has_come(
    app: Doubtless, world: World, clock: FakeClock
) -> None:
    shop = Shop(app, world, void=NotSent("down", retry_after="PT1H"))
    with pytest.raises(TaskWaiting):
        app.run(shop.task, "t", wait=False)
    clock.advance("PT2H")
    with app.worker() as worker:
        deadline = clock.monotonic() + 20
        while len(world.calls) < 2:
            assert clock.monotonic() < deadline
            worker.wake()
    assert world.calls[:2] == ["void", "void"]


def test_a_session_that_is_cancelled_is_undone(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    with app.session("thread-1") as session:
        session.call(make, name="s1", call_id="1")
        session.call(make, name="s2", call_id="2")
    assert app.cancel("thread-1", by="anna", why="stop") == "compensated"
    assert world.undone == ["s2", "s1"]


@pytest.mark.parametrize("task_async", [False, True])
def test_on_somebodys_event_loop_a_failed_task_is_undone_as_well(app: Doubtless, world: World, task_async: bool) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    if task_async:

        @app.task
        async def task() -> None:
            await make.acall(name="s1")
            raise Abort("no")

    else:

        @app.task
        def task() -> None:
            make(name="s1")
            raise Abort("no")

    with pytest.raises(TaskFailed) as caught:
        asyncio.run(app.arun(task, "t"))  # type: ignore[arg-type]
    assert caught.value.status == "compensated"
    assert world.undone == ["s1"]


def test_ctrl_c_in_a_compensation_leaves_it_in_doubt_and_the_next_run_looks_it_up(app: Doubtless, world: World) -> None:
    def interrupted(do: Any) -> Any:
        do()
        raise KeyboardInterrupt

    @app.step(effect="non_idem_write", query=lambda name: world.find(name))
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1")
        make(name="s2")
        raise Abort("no")

    world.goes = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    assert app.show("t").status == "compensating"
    assert failed(app, task).status == "compensated"
    assert world.calls == ["s2", "s1"]
