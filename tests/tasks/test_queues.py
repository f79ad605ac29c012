"""Where a task is taken, in which order, and from when on: queue, priority, not_before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tasks_ground import Deploys, World, raised, rows, until

from doubtless import Doubtless, UsageError
from doubtless.testing import FakeClock


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def paying(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        return n

    @app.task
    def task(n: int) -> int:
        return pay(n)

    return task


def done(app: Doubtless, *task_ids: str) -> bool:
    return all(app.show(task_id).status == "done" for task_id in task_ids)


def test_a_worker_takes_only_its_queues_and_the_smaller_priority_first(app: Doubtless, world: World) -> None:
    task = paying(app, world)
    app.start(task, "plain", n=1)
    app.start(task, "mail-late", queue="mail", priority=5, n=2)
    app.start(task, "mail-urgent", queue="mail", priority=-5, n=3)
    app.start(task, "mail", n=4, queue="mail")
    with app.worker(concurrency=1, queues=["mail"]):
        until(lambda: done(app, "mail", "mail-late", "mail-urgent"), "the end of its queue")
    assert [n for _, n, _ in world.done] == [3, 4, 2]
    assert len(rows(app, "plain")) == 1
    with app.worker():
        until(lambda: done(app, "plain"), "the end of the other queue")


def test_a_worker_takes_a_task_not_before_its_time_and_resume_all_and_engines_leave_it(
    app: Doubtless, world: World, clock: FakeClock
) -> None:
    task = paying(app, world)
    app.start(task, "later", not_before="PT1H", n=1)
    app.start(task, "now", n=2)
    assert app.resume_all()["later"].startswith("task_waiting: not before")
    assert app.due() == []
    standing = app.advance("later")
    assert (standing.ran, standing.again) == (False, 3600.0)
    with app.worker() as worker:
        until(lambda: done(app, "now"), "the end of the other")
        assert world.n() == 1
        clock.advance("PT1H")
        worker.wake()
        until(lambda: done(app, "later"), "the end")
    app.start(task, "at-once", not_before="P1D", n=3)
    assert app.run(task, "at-once", n=3) == 3


def test_a_task_that_exists_keeps_its_place(app: Doubtless, world: World) -> None:
    task = paying(app, world)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    app.start(task, "t", queue="mail", priority=3, not_before=at, n=1)
    app.start(task, "t", n=1)
    (head,) = app.tasks()
    assert (head.queue, head.priority, head.wake_at) == ("mail", 3, int(at.timestamp()) * 1_000_000)


@pytest.mark.parametrize(
    "place",
    [
        {"queue": ""}, {"queue": "a,b"}, {"queue": "a b"}, {"queue": 7}, {"queue": "x" * 101}, {"priority": 1001}, {"priority": 1.5},
        {"priority": True}, {"not_before": "tomorrow"}, {"not_before": datetime(2030, 1, 1)},
    ],
)  # fmt: skip
def test_a_place_that_is_none_is_refused_before_anything_is_written(app: Doubtless, world: World, place: dict[str, Any]) -> None:
    task = paying(app, world)
    assert isinstance(raised(app.start, task, "t", n=1, **place), UsageError)
    assert app.tasks() == []


def test_a_task_with_a_param_of_a_reserved_name_is_a_fault(app: Doubtless) -> None:
    @app.task
    def task(priority: int) -> int:
        return priority

    assert any("reserved name 'priority'" in fault for fault in app.check())


def test_queues_as_one_text_are_refused(app: Doubtless) -> None:
    assert isinstance(raised(app.worker, queues="mail"), UsageError)


def test_async_tasks_of_a_worker_run_beside_each_other_in_one_thread(app: Doubtless) -> None:
    import asyncio
    import threading

    together: list[int] = []
    all_in = asyncio.Event()

    @app.step(effect="read")
    async def meet(n: int) -> int:
        together.append(threading.get_ident())
        if len(together) == 3:
            all_in.set()
        await all_in.wait()
        return n

    @app.task
    async def task(n: int) -> int:
        return await meet(n)

    for n in range(3):
        app.start(task, f"t{n}", n=n)
    with app.worker(concurrency=3):
        until(lambda: done(app, "t0", "t1", "t2"), "the end of all")
    assert len(set(together)) == 1
    assert threading.get_ident() not in together
