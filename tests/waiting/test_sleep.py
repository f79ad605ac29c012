"""`app.sleep`: the time to wake is recorded, whatever happens until then."""

from __future__ import annotations

from typing import Any

import pytest
from waiting_ground import Deploys, got, kinds, raised, rows, task_of

from doubtless import Doubtless, OutsideTask, TaskWaiting, UsageError
from doubtless.events import Kind
from doubtless.testing import FakeClock

START = 1_795_856_400_000_000
MINUTE = 60_000_000

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def sleeper(app: Doubtless, log: list[str], duration: Any = "PT10M", *, asynchronous: bool) -> Any:
    @app.step(effect="read")
    def before() -> int:
        log.append("before")
        return 1

    @app.step(effect="read")
    def after() -> int:
        log.append("after")
        return 2

    async def body() -> list[int]:
        first = before()
        await got(app.sleep(duration))
        return [first, after()]

    return task_of(app, body, asynchronous=asynchronous)


@both
def test_a_run_that_waits_sleeps_for_as_long_as_it_says(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    app, log = deploy(), []
    assert app.run(sleeper(app, log, asynchronous=asynchronous), "t") == [1, 2]
    assert clock.now().wall == START + 10 * MINUTE
    assert log == ["before", "after"]


@both
def test_a_run_that_does_not_wait_parks_until_the_recorded_time(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    app, log = deploy(), []
    task = sleeper(app, log, asynchronous=asynchronous)
    waiting = raised(app.run, task, "t", wait=False)
    assert isinstance(waiting, TaskWaiting)
    assert waiting.until.wall == START + 10 * MINUTE
    assert app.show("t").status == "waiting"
    clock.advance("PT9M")
    assert raised(app.run, task, "t", wait="PT30S").until.wall == START + 10 * MINUTE
    clock.advance("PT1M")
    assert app.run(task, "t", wait=False) == [1, 2]
    assert log == ["before", "after"]


@both
def test_the_time_to_wake_is_the_same_after_a_restart_and_a_deploy_with_another_duration(
    deploy: Deploys, clock: FakeClock, asynchronous: bool
) -> None:
    app, log = deploy(), []
    raised(app.run, sleeper(app, log, "PT10M", asynchronous=asynchronous), "t", wait=False)
    clock.advance("PT5M")
    later = deploy()
    task = sleeper(later, log, "PT3H", asynchronous=asynchronous)
    assert raised(later.run, task, "t", wait=False).until.wall == START + 10 * MINUTE
    clock.advance("PT5M")
    assert later.run(task, "t", wait=False) == [1, 2]


def test_looking_at_a_task_that_sleeps_adds_no_row(deploy: Deploys, clock: FakeClock) -> None:
    app, log = deploy(), []
    task = sleeper(app, log, asynchronous=False)
    raised(app.run, task, "t", wait=False)
    before = len(rows(app, "t"))
    clock.advance("PT1M")
    for _ in range(3):
        raised(app.run, task, "t", wait=False)
    assert len(rows(app, "t")) == before
    assert kinds(app, "t").count(Kind.TASK_PARKED) == 1


def test_a_worker_wakes_a_task_when_it_is_due_and_not_before(deploy: Deploys, clock: FakeClock) -> None:
    clock.auto_advance = False
    app, log = deploy(), []
    task = sleeper(app, log, asynchronous=False)
    app.start(task, "t")
    with app.worker() as worker:
        until(lambda: app.show("t").status == "waiting")
        clock.advance("PT9M59S")
        worker.wake()
        assert log == ["before"]
        clock.advance("PT1S")
        worker.wake()
        until(lambda: app.show("t").status == "done")
    assert log == ["before", "after"]
    assert worker.errors == []


def test_a_wall_clock_that_is_set_back_makes_no_sleep_longer(deploy: Deploys, clock: FakeClock) -> None:
    app, log = deploy(), []
    task = sleeper(app, log, asynchronous=False)
    raised(app.run, task, "t", wait=False)
    clock.advance("PT4M")
    clock._wall -= 60 * MINUTE
    waiting = raised(app.run, task, "t", wait=False)
    assert waiting.until.wall == START - 50 * MINUTE
    clock.advance("PT6M")
    assert app.run(task, "t", wait=False) == [1, 2]


@both
def test_the_first_of_two_sleepers_side_by_side_wakes_the_task(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    app = deploy()

    async def body() -> Any:
        pair = app.parallel(lambda: app.sleep("PT10M"), lambda: app.sleep("PT1M"))
        return len(await got(pair))

    task = task_of(app, body, asynchronous=asynchronous)
    assert raised(app.run, task, "t", wait=False).until.wall == START + MINUTE
    clock.advance("PT1M")
    assert raised(app.run, task, "t", wait=False).until.wall == START + 10 * MINUTE
    clock.advance("PT9M")
    assert app.run(task, "t", wait=False) == 2


def test_asyncio_gather_of_sleeps_wakes_at_the_earliest(deploy: Deploys, clock: FakeClock) -> None:
    import asyncio

    app = deploy()

    @app.task
    async def task() -> int:
        await asyncio.gather(app.sleep("PT10M"), app.sleep("PT1M"), app.sleep("PT5M"))
        return 3

    assert raised(app.run, task, "t", wait=False).until.wall == START + MINUTE
    clock.advance("PT10M")
    assert app.run(task, "t", wait=False) == 3


def test_zero_is_no_wait_and_what_is_no_duration_is_refused_before_anything_is_written(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def zero() -> str:
        app.sleep(0)
        return "at once"

    @app.task
    def bad() -> str:
        return str(raised(app.sleep, "tomorrow"))

    assert app.run(zero, "zero", wait=False) == "at once"
    assert "tomorrow" in app.run(bad, "bad")
    assert Kind.STEP_SETTLED not in kinds(app, "bad")
    assert isinstance(raised(app.sleep, "PT1M"), OutsideTask)
    assert isinstance(raised(app.sleep, "tomorrow"), UsageError)


def test_a_sleep_that_an_async_task_does_not_await_is_told(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    async def task() -> int:
        app.sleep("PT1M").close()
        return 1

    raised(app.run, task, "t", wait=False)
    assert "called but not awaited" in app.inbox().cases[0].why


def until(condition: Any) -> None:
    """Poll until the condition holds."""
    import time

    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
