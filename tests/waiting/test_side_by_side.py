"""Waits beside other branches: a pass parks only when every branch of it waits, and is due at the earliest time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_sleep import until
from waiting_ground import Deploys, answer, got, raised, task_of

from doubtless import Answer, Denied, Deny, Doubtless, Found, NeedsHuman, Pending, TaskWaiting
from doubtless.testing import FakeClock

START = 1_795_856_400_000_000
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
def test_a_question_in_one_branch_does_not_stop_the_others(deploy: Deploys, asynchronous: bool) -> None:
    app, done = deploy(), []

    @app.step(effect="idem_write", idempotent_by="its number")
    def work(number: int) -> int:
        done.append(number)
        return number

    async def ask() -> Any:
        return await got(app.wait_for("approve"))

    async def other() -> Any:
        return [work(number) for number in range(20)]

    async def body() -> Any:
        group = app.parallel(ask, other) if asynchronous else app.parallel(lambda: app.wait_for("approve"), lambda: run(other))
        return await got(group)

    task = task_of(app, body, asynchronous=asynchronous)
    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    assert done == list(range(20))
    answer(app, Answer("yes"))
    assert app.run(task, "t") == ["yes", list(range(20))]
    assert done == list(range(20))


def run(body: Any) -> Any:
    from waiting_ground import through

    return through(body())


@both
def test_a_question_without_a_deadline_beside_a_sleep_is_due_when_the_sleep_is_over(
    deploy: Deploys, clock: FakeClock, asynchronous: bool
) -> None:
    app, done = deploy(), []

    @app.step(effect="read")
    def after() -> int:
        done.append("after")
        return 1

    async def sleep() -> Any:
        await got(app.sleep("PT1M"))
        return after()

    async def body() -> Any:
        if asynchronous:
            return await got(app.parallel(lambda: app.wait_for("approve"), sleep))
        return app.parallel(lambda: app.wait_for("approve"), lambda: run(sleep))

    task = task_of(app, body, asynchronous=asynchronous)
    waiting = raised(app.run, task, "t", wait=False)
    assert isinstance(waiting, TaskWaiting)
    assert waiting.until.wall == START + 60_000_000
    assert app.show("t").status == "waiting"
    clock.advance("PT1M")
    assert isinstance(raised(app.run, task, "t", wait=False), NeedsHuman)
    assert done == ["after"]
    answer(app, Answer(1))
    assert app.run(task, "t") == [1, 1]


@both
def test_a_run_that_waits_lets_the_sleeping_branch_go_on_before_it_needs_a_person(
    deploy: Deploys, clock: FakeClock, asynchronous: bool
) -> None:
    app = deploy()

    async def body() -> Any:
        return await got(app.parallel(lambda: app.wait_for("approve"), lambda: app.sleep("PT1M")))

    task = task_of(app, body, asynchronous=asynchronous)
    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    assert clock.now().wall >= START + 60_000_000


def test_a_doubt_beside_a_sleep_needs_a_person_and_a_worker_still_wakes_the_sleep(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay() -> int:
        raise ConnectionResetError("the reply was lost")

    @app.task
    async def task() -> Any:
        return await app.parallel(lambda: app.sleep("PT1M"), pay)

    assert isinstance(raised(app.run, task, "t", wait=False), NeedsHuman)
    head = app.tasks()[0]
    assert (head.status, head.wake_at) == ("needs_human", START + 60_000_000)
    statuses = ("ready", "running", "waiting", "needs_human")
    assert app.store.heads(status=statuses, due=clock.now().wall) == []
    clock.advance("PT1M")
    assert [one.task_id for one in app.store.heads(status=statuses, due=clock.now().wall)] == ["t"]


def test_what_gather_waits_for_is_all_asked_before_the_run_parks(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    async def task() -> Any:
        return await asyncio.gather(*(app.wait_for(name) for name in "abc"))

    stands = raised(app.run, task, "t")
    assert isinstance(stands, NeedsHuman)
    assert len(stands.cases) == 3
    for name in "bca":
        answer(app, Answer(name.upper()), name)
        if name != "a":
            assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    assert app.run(task, "t") == ["A", "B", "C"]


def test_of_denied_branches_the_first_in_branch_order_is_raised(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def task() -> str:
        try:
            app.parallel(lambda: app.wait_for("a"), lambda: app.wait_for("b"))
        except Denied as error:
            return error.name
        return ""

    raised(app.run, task, "t")
    answer(app, Deny(), "b")
    raised(app.run, task, "t")
    answer(app, Deny(), "a")
    assert app.run(task, "t") == "a"


def test_two_branches_that_wait_for_one_name_never_take_the_same_event(deploy: Deploys) -> None:
    app = deploy()

    def declare(app: Doubtless) -> Any:
        @app.task
        def task() -> Any:
            return app.map(lambda _: app.wait_for("tick"), list(range(8)), concurrency=8)

        return task

    app.start(declare(app), "t")
    for number in range(8):
        app.send_event("t", "tick", number, event_id=str(number))
    first = app.run(app.declared_tasks["task"], "t")
    assert sorted(first) == list(range(8))
    later = deploy()
    assert later.run(declare(later), "t") == first


@both
def test_a_worker_wakes_a_parent_whose_child_waits_for_a_time_or_an_answer(
    deploy: Deploys, clock: FakeClock, asynchronous: bool
) -> None:
    clock.auto_advance = False
    app = deploy()

    async def of_child() -> Any:
        await got(app.sleep("PT1M"))
        return await got(app.wait_for("go"))

    child = task_of(app, of_child, asynchronous=asynchronous, name="child")

    async def body() -> Any:
        return await got(child())

    app.start(task_of(app, body, asynchronous=asynchronous), "t")
    with app.worker() as worker:
        until(lambda: app.show("t").status == "waiting")
        clock.advance("PT1M")
        worker.wake()
        until(lambda: app.show("t").status == "needs_human")
        app.send_event("t/1", "go", 5, event_id="e")
        until(lambda: app.show("t").status == "done")
    assert app.show("t").output == 5
    assert worker.errors == []


def test_a_worker_looks_again_at_one_doubt_while_another_one_needs_a_person(deploy: Deploys, clock: FakeClock) -> None:
    clock.auto_advance = False
    app, found = deploy(), []

    def find() -> Any:
        return Found({"id": 1}) if found else Pending(look_again="PT10S")

    async def lost() -> Any:
        await asyncio.sleep(0)
        raise ConnectionResetError("the reply was lost")

    @app.step(effect="non_idem_write")
    async def unknowable() -> Any:
        return await lost()

    @app.step(effect="non_idem_write", query=find)
    async def slow() -> Any:
        return await lost()

    @app.task
    async def task() -> Any:
        return await app.parallel(unknowable, slow)

    assert isinstance(raised(app.run, task, "t", wait=False), NeedsHuman)
    raised(app.run, task, "t", wait=False)
    assert app.show("t").status == "needs_human"
    found.append(1)
    with app.worker() as worker:
        clock.advance("PT10S")
        worker.wake()
        until(lambda: {step.name: step.status for step in app.show("t").steps}["slow"] == "done")
    assert [case.step for case in app.inbox().cases] == ["unknowable"]


def test_an_answer_to_a_child_that_comes_while_its_parent_is_still_parking_is_not_forgotten(
    deploy: Deploys, clock: FakeClock
) -> None:
    clock.auto_advance = False
    app = deploy()
    child = task_of(app, lambda: got(app.wait_for("go")), asynchronous=False, name="child")
    parent = task_of(app, lambda: got(child()), asynchronous=False)
    assert isinstance(raised(app.run, parent, "t"), NeedsHuman)
    worker = app.worker()
    worker._busy.add("t")  # as while the thread that has just parked it still ends
    app.send_event("t/1", "go", 5, event_id="e")
    worker._claim_due()
    worker._busy.discard("t")
    worker._claim_due()
    until(lambda: app.show("t").status == "done")
    assert worker.stop()
    assert app.show("t").output == 5
