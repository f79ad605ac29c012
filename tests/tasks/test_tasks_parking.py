"""Parking unwinds task code: it cannot be swallowed, nothing is recorded as the task's end, nothing more is called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tasks_ground import Deploys, World, intents, kinds, only_case, raised, rows, settle, statuses, until

from doubtless import (
    Doubtless,
    Happened,
    NeedsHuman,
    NotSent,
    Pending,
    StepFailed,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UsageError,
)
from doubtless.errors import Parking
from doubtless.events import Kind
from doubtless.testing import FakeClock, Killed, harness


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


@pytest.fixture
def doubtful(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def doubtful(n: int = 0) -> int:
        world.do("doubtful", n)
        raise TimeoutError

    return doubtful


@pytest.fixture
def pay(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def pay(n: int = 0) -> int:
        world.do("pay", n)
        return n

    return pay


@pytest.fixture
def look(app: Doubtless, world: World) -> Any:
    @app.step(effect="read")
    def look() -> int:
        world.do("look")
        return 1

    return look


def test_except_exception_in_task_code_does_not_swallow_parking(app: Doubtless, doubtful: Any) -> None:
    @app.task
    def task() -> str:
        try:
            doubtful()
        except Exception:
            return "swallowed"
        return "done"

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert app.show("t").status == "needs_human"


def test_except_base_exception_and_a_return_value_do_not_end_a_parking_task(app: Doubtless, doubtful: Any) -> None:
    @app.task
    def task() -> str:
        try:
            doubtful()
        except BaseException:
            return "swallowed"
        return "done"

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert Kind.TASK_ENDED not in kinds(app, "t")
    settle(app, Happened(1))
    assert app.run(task, "t") == "done"


def test_an_exception_raised_while_parking_is_no_code_error_and_no_failure(app: Doubtless, doubtful: Any) -> None:
    @app.task
    def task() -> str:
        try:
            doubtful()
        except BaseException:
            raise StepFailed("rejected", "made up") from None
        return "done"

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).kind == "doubt"
    assert app.show("t").status == "needs_human"


def test_finally_blocks_run_and_steps_called_there_are_refused(
    app: Doubtless, doubtful: Any, pay: Any, look: Any, world: World
) -> None:
    refused: list[BaseException | None] = []

    @app.task
    def task() -> None:
        try:
            doubtful()
        finally:
            refused.append(raised(pay, 1))
            refused.append(raised(look))

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert [type(error) for error in refused] == [Parking, Parking]
    assert world.n() == 1
    assert intents(app, "t") == {"1": 1}


def test_parking_unwinds_an_async_task_in_the_same_way(app: Doubtless, world: World) -> None:
    refused: list[BaseException | None] = []

    @app.step(effect="non_idem_write")
    async def doubtful() -> None:
        world.do("doubtful")
        raise TimeoutError

    @app.task
    async def task() -> str:
        try:
            await doubtful()
        except Exception:
            return "swallowed"
        finally:
            try:
                await doubtful()
            except BaseException as error:
                refused.append(error)
        return "done"

    with pytest.raises(NeedsHuman):
        asyncio.run(app.arun(task, "t"))
    assert isinstance(refused[0], Parking)
    assert world.n() == 1


def test_a_write_in_doubt_stops_its_task_no_new_intent_is_written(app: Doubtless, world: World) -> None:
    """Rule 8, with parallel branches: those in flight are finished and recorded."""
    gate: list[str] = []

    @app.step(effect="non_idem_write")
    async def doubtful() -> None:
        while "in flight" not in gate:
            await asyncio.sleep(0)
        raise TimeoutError

    @app.step(effect="non_idem_write")
    async def slow(n: int) -> int:
        gate.append("in flight")
        for _ in range(50):
            await asyncio.sleep(0)
        world.do("slow", n)
        return n

    @app.task
    async def task() -> Any:
        async def after() -> None:
            await asyncio.sleep(0)

        try:
            return await asyncio.gather(doubtful(), slow(1), after())
        finally:
            with pytest.raises(Parking):
                await slow(2)

    with pytest.raises(NeedsHuman):
        asyncio.run(app.arun(task, "t"))
    assert statuses(app, "t") == {"1": "needs_human", "2": "done"}
    assert world.n("slow") == 1
    parked = kinds(app, "t").index(Kind.TASK_PARKED)
    assert all(row.kind != Kind.STEP_SETTLED for row in rows(app, "t")[parked:])


@pytest.mark.parametrize("first", ["fails first", "fails second"])
def test_every_doubt_of_a_task_that_parks_has_its_case_or_its_time_to_look_again(
    app: Doubtless, world: World, clock: FakeClock, first: str
) -> None:
    """I6: none is left without either because another one parked the task before."""
    order: list[str] = []

    @app.step(effect="non_idem_write", query=lambda n: Pending("PT30M") if n == 3 else None)
    async def doubtful(n: int) -> int:
        mine = str(n)
        while (order or ["1" if first == "fails first" else "2"])[-1] != mine and len(order) < 2:
            await asyncio.sleep(0)
        order.append("2" if mine == "1" else "1")
        raise TimeoutError

    @app.task
    async def task() -> Any:
        return await asyncio.gather(*(doubtful(n) for n in (1, 2, 3)))

    with pytest.raises(NeedsHuman) as caught:
        app.run(task, "t", wait=False)
    assert {case.path for case in app.inbox().cases} == {"1", "2"}
    assert set(caught.value.cases) == {case.id for case in app.inbox().cases}
    head = app.tasks()[0]
    assert head.status == "needs_human"
    assert head.wake_at is not None
    assert 0 < (head.wake_at - clock.now().wall) / 1e6 <= 30 * 60


def test_a_run_that_needs_a_person_for_one_doubt_does_not_wait_in_place_for_another(app: Doubtless, clock: FakeClock) -> None:
    @app.step(effect="non_idem_write")
    async def chat() -> int:
        raise TimeoutError

    @app.step(effect="non_idem_write", query=lambda: Pending("PT30M"), settle_within="P300D")
    async def pay() -> int:
        raise TimeoutError

    @app.task
    async def task() -> Any:
        return await asyncio.gather(chat(), pay())

    for _ in range(2):
        with pytest.raises(NeedsHuman) as caught:
            app.run(task, "t")
        assert caught.value.cases == (only_case(app).id,)
    assert clock.now().wall - rows(app, "t")[0].at.wall < 60 * 1_000_000
    assert app.tasks()[0].wake_at is not None


@pytest.mark.parametrize("independent", [True, False])
def test_no_new_intent_is_written_while_another_step_is_in_doubt_reads_may_go_on_if_declared(
    app: Doubtless, independent: bool
) -> None:
    """Rule 8, while the doubt is being settled in another branch of the same run."""
    asked: list[int] = []

    def find() -> Any:
        asked.append(1)
        return Pending("PT1M") if len(asked) < 20 else {"id": 1}

    @app.step(effect="non_idem_write", query=find)
    async def doubtful() -> Any:
        raise TimeoutError

    @app.step(effect="read", independent=independent)
    async def look() -> int:
        return 2

    @app.step(effect="non_idem_write")
    async def pay() -> int:
        return 3

    @app.task
    async def task() -> Any:
        first = asyncio.create_task(doubtful())
        while not asked:
            await asyncio.sleep(0)
        return [await look(), await pay(), await first]

    assert app.run(task, "t") == [2, 3, {"id": 1}]
    order = [(row.kind, row.path) for row in rows(app, "t")]
    settled = order.index((Kind.STEP_SETTLED, "1"))
    assert order.index((Kind.STEP_INTENDED, "3")) > settled
    assert (order.index((Kind.STEP_SETTLED, "2")) < settled) == independent


def test_every_doubt_that_a_dead_process_left_gets_its_look_or_its_case_on_resume(tmp_path: Path, world: World) -> None:
    app = Doubtless(namespace="tests")
    flying: list[int] = []

    @app.step(effect="non_idem_write")
    async def chat(n: int) -> int:
        flying.append(n)
        while len(flying) < 3:
            await asyncio.sleep(0)
        return int(world.do("chat", n)["id"])

    @app.step(effect="non_idem_write", query=lambda: {"id": 7})
    async def pay() -> Any:
        flying.append(0)
        while len(flying) < 3:
            await asyncio.sleep(0)
        return world.do("pay")

    @app.task
    async def task() -> Any:
        return await asyncio.gather(chat(1), pay(), chat(2))

    with harness(app, tmp_path) as h:
        h.kill(chat, before="record")
        with pytest.raises(Killed):
            h.run(task, "t")
        with pytest.raises(NeedsHuman) as caught:
            h.run(task, "t")
        assert {case.path for case in app.inbox().cases} == {"1", "3"}
        assert len(caught.value.cases) == 2
        assert statuses(app, "t")["2"] == "done"
        h.settle_all(Happened(5))
        assert h.run(task, "t") == [5, {"id": 7}, 5]
    assert world.n("chat") == 2


def test_parking_inside_a_task_group_is_parking(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    async def doubtful() -> int:
        world.do("doubtful")
        raise TimeoutError

    @app.task
    async def task() -> int:
        async with asyncio.TaskGroup() as group:
            paid = group.create_task(doubtful())
        return paid.result()

    for run in (lambda: app.run(task, "t"), lambda: asyncio.run(app.arun(task, "t"))):
        with pytest.raises(NeedsHuman):
            run()
    settle(app, Happened(3))
    assert app.run(task, "t") == 3
    assert world.n() == 1


def test_a_failing_branch_waits_for_what_the_others_have_in_flight(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    async def refused() -> None:
        from doubtless import Rejected

        raise Rejected("no")

    @app.step(effect="non_idem_write")
    async def slow(n: int) -> int:
        for _ in range(100):
            await asyncio.sleep(0)
        world.do("slow", n)
        return n

    @app.task
    async def task() -> Any:
        return await asyncio.gather(refused(), slow(1), slow(2))

    for run in (lambda: asyncio.run(app.arun(task, "by arun")), lambda: app.run(task, "by run")):
        with pytest.raises(TaskFailed) as caught:
            run()
        assert caught.value.context["failure"]["step"] == "refused"
    for task_id in ("by run", "by arun"):
        assert statuses(app, task_id) == {"1": "not_applied", "2": "done", "3": "done"}
        assert kinds(app, task_id)[-1] == Kind.TASK_ENDED
    assert world.n("slow") == 4


def test_a_failing_branch_waits_until_the_doubt_of_another_is_settled(app: Doubtless, clock: FakeClock) -> None:
    found_at = clock.now().wall + 30 * 60 * 1_000_000

    def find() -> Any:
        return {"id": 1} if clock.now().wall > found_at else Pending("PT1M")

    @app.step(effect="non_idem_write", query=find)
    async def doubtful() -> Any:
        raise TimeoutError

    @app.step(effect="non_idem_write")
    async def refused() -> None:
        from doubtless import Rejected

        raise Rejected("no")

    @app.task
    async def task() -> Any:
        return await asyncio.gather(doubtful(), refused())

    with pytest.raises(TaskFailed):
        app.run(task, "t")
    assert statuses(app, "t") == {"1": "done", "2": "not_applied"}


def test_a_branch_that_waits_does_not_hold_up_a_run_that_parks(deploy: Deploys) -> None:
    app = deploy()
    deploy.clock.auto_advance = False  # time stands still: only the other branch can end the wait

    @app.step(effect="read", backoff="PT1H")
    async def again() -> None:
        raise ConnectionError

    @app.step(effect="non_idem_write")
    async def doubtful() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        raise TimeoutError

    @app.task
    async def task() -> Any:
        return await asyncio.gather(again(), doubtful())

    assert isinstance(raised(lambda: asyncio.run(app.arun(task, "t"))), NeedsHuman)
    assert only_case(app).kind == "doubt"
    assert app.show("t").owner is None


@pytest.mark.parametrize("wait", [False, "PT10M"])
def test_a_run_that_may_not_wait_says_until_when_the_task_waits(
    app: Doubtless, clock: FakeClock, world: World, wait: Any
) -> None:
    @app.step(effect="read", backoff="PT1H")
    def ask() -> int:
        world.do("ask")
        if world.n() == 1:
            raise ConnectionError
        return world.n()

    @app.task
    def task() -> int:
        return ask()

    with pytest.raises(TaskWaiting) as caught:
        app.run(task, task_id="t", wait=wait)
    assert caught.value.until is not None
    begun = rows(app, "t")[0].at.wall
    assert 45 * 60 < (caught.value.until.wall - begun) / 1e6 < 75 * 60
    head = app.tasks()[0]
    assert (head.status, head.wake_at, head.owner) == ("waiting", caught.value.until.wall, None)

    before = len(rows(app, "t"))
    with pytest.raises(TaskWaiting):
        app.resume("t", wait=False)
    assert len(rows(app, "t")) == before  # claims that change nothing add no row
    clock.advance((caught.value.until.wall - clock.now().wall) / 1e6)
    assert app.resume("t", wait=False) == 2


def test_a_run_that_may_wait_long_enough_waits_in_place(app: Doubtless, clock: FakeClock, world: World) -> None:
    @app.step(effect="read", backoff="PT20M")
    def ask() -> int:
        world.do("ask")
        if world.n() == 1:
            raise ConnectionError
        return world.n()

    @app.task
    def task() -> int:
        return ask()

    assert app.run(task, task_id="t", wait="PT1H") == 2
    assert Kind.TASK_PARKED not in kinds(app, "t")


def test_a_retry_after_of_the_other_side_is_waited_for(app: Doubtless, clock: FakeClock, world: World) -> None:
    @app.step(effect="non_idem_write", settle_within="P1D")
    def send() -> int:
        world.do("send")
        if world.n() == 1:
            raise NotSent("429", retry_after="PT3H")
        return 1

    @app.task
    def task() -> int:
        return send()

    with pytest.raises(TaskWaiting) as caught:
        app.run(task, "t", wait=False)
    assert caught.value.until is not None
    assert (caught.value.until.wall - clock.now().wall) / 1e6 >= 3 * 3600
    assert app.run(task, "t") == 1


def test_needs_human_names_the_open_cases_of_the_task(app: Doubtless, doubtful: Any) -> None:
    @app.task
    def task() -> int:
        return doubtful()

    with pytest.raises(NeedsHuman) as caught:
        app.run(task, "t")
    assert caught.value.cases == (only_case(app).id,)
    assert only_case(app).id in str(caught.value)


def test_a_frozen_write_is_not_called_and_thaw_lets_it_go_on(app: Doubtless, pay: Any, look: Any, world: World) -> None:
    @app.task
    def task() -> int:
        look()
        return pay(3)

    app.freeze(pay, why="the bank is down", by="anna")
    for _ in range(2):
        with pytest.raises(TaskFrozen) as caught:
            app.run(task, "t")
    assert "the bank is down" in str(app.show("t").why)
    assert caught.value.context["step"] == "pay"
    assert (world.n("look"), world.n("pay")) == (1, 0)
    assert app.show("t").status == "waiting"
    app.thaw(pay)
    assert app.run(task, "t") == 3
    assert world.n("pay") == 1


def test_a_freeze_of_everything_stops_retries_too_but_not_look_backs(app: Doubtless, world: World) -> None:
    asked: list[int] = []

    def find() -> None:
        asked.append(1)

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", on_absent="retry")
    def send() -> int:
        world.do("send")
        if world.n() == 1:
            app.freeze(why="stop")
            raise TimeoutError
        return world.n()

    @app.task
    def task() -> int:
        return send()

    with pytest.raises(TaskFrozen):
        app.run(task, "t")
    assert world.n() == 1
    assert len(asked) >= 2  # the doubt was looked into, and proven absent
    app.thaw()
    assert app.run(task, "t") == 2


def test_a_task_that_waits_is_found_by_others_as_free(app: Doubtless, doubtful: Any) -> None:
    @app.task
    def task() -> int:
        return doubtful()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    view = until(lambda: app.show("t"))
    assert (view.owner, view.owner_alive) == (None, False)


def test_drain_parks_at_the_next_step_and_the_one_that_runs_is_recorded(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def first() -> int:
        app.drain()
        world.do("first")
        return 1

    @app.step(effect="non_idem_write")
    def second() -> int:
        world.do("second")
        return 2

    @app.task
    def task() -> int:
        return first() + second()

    with pytest.raises(TaskWaiting):
        app.run(task, "t")
    assert statuses(app, "t") == {"1": "done"}
    assert app.show("t").status == "ready"
    assert app.run(task, "t") == 3
    assert (world.n("first"), world.n("second")) == (1, 1)


def test_a_task_output_that_cannot_be_stored_is_a_code_error(app: Doubtless, pay: Any, world: World) -> None:
    @app.task
    def task() -> Any:
        pay(1)
        return {1, 2}

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).kind == "code_error"
    assert world.n() == 1


def test_a_wait_that_is_no_duration_is_refused_before_anything_is_claimed(app: Doubtless) -> None:
    @app.task
    def task() -> int:
        return 1

    with pytest.raises(UsageError):
        app.run(task, task_id="t", wait="soon")
    assert app.run(task, "t") == 1
