"""A step runs in its task's own code, and nowhere else: anything else is refused before anything is written."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tasks_ground import Deploys, World, kinds, raised, rows

from doubtless import Abort, Doubtless, OutsideTask, TaskFailed, record_handle
from doubtless.events import Kind


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


@pytest.fixture
def pay(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def pay(n: int = 0) -> int:
        world.do("pay", n)
        return n

    return pay


@pytest.fixture
def apay(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    async def apay(n: int = 0) -> int:
        world.do("apay", n)
        return n

    return apay


def written(app: Doubtless) -> int:
    return sum(len(rows(app, head.task_id)) for head in app.tasks())


def test_a_step_called_outside_a_task_is_refused(app: Doubtless, pay: Any, world: World) -> None:
    assert isinstance(raised(pay, 1), OutsideTask)
    assert app.tasks() == []
    assert world.n() == 0


def test_an_async_step_called_outside_a_task_is_refused(app: Doubtless, apay: Any, world: World) -> None:
    async def main() -> None:
        await apay(1)

    assert isinstance(raised(asyncio.run, main()), OutsideTask)
    assert app.tasks() == []
    assert world.n() == 0


def in_thread(call: Callable[[], Any]) -> None:
    seen: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: seen.append(raised(call)))
    thread.start()
    thread.join()
    assert isinstance(seen[0], OutsideTask)


def in_thread_with_the_tasks_context(call: Callable[[], Any]) -> None:
    seen: list[BaseException | None] = []
    thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: seen.append(raised(call)),))
    thread.start()
    thread.join()
    assert isinstance(seen[0], OutsideTask)


def in_a_pool(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(raised, call).result(), OutsideTask)


@pytest.mark.parametrize("somewhere", [in_thread, in_thread_with_the_tasks_context, in_a_pool], ids=lambda fn: fn.__name__)
def test_a_step_called_from_a_stray_thread_is_refused(app: Doubtless, pay: Any, world: World, somewhere: Any) -> None:
    @app.task
    def task() -> int:
        before = written(app)
        somewhere(lambda: pay(1))
        assert written(app) == before
        return pay(2)  # its place was not used up

    assert app.run(task, "t") == 2
    assert [what for _, what, _ in world.done] == [2]
    assert {row.path for row in rows(app, "t") if row.path} == {"1"}


@pytest.mark.parametrize("acall", [False, True])
def test_a_step_called_from_inside_a_step_is_refused(app: Doubtless, pay: Any, world: World, acall: bool) -> None:
    inside: list[int] = []

    @app.step(effect="non_idem_write")
    def outer() -> str:
        before = written(app)
        error = raised(pay, 1)
        assert written(app) == before
        inside.append(before)
        return type(error).__name__

    @app.task
    async def task() -> str:
        return await outer.acall() if acall else outer()

    assert app.run(task, "t") == "OutsideTask"
    assert inside
    assert world.n() == 0


def test_an_async_step_called_from_inside_an_async_step_is_refused(app: Doubtless, apay: Any, world: World) -> None:
    @app.step(effect="non_idem_write")
    async def outer() -> str:
        try:
            await apay(1)
        except OutsideTask as error:
            return error.code
        return "called"

    @app.task
    async def task() -> str:
        return await outer()

    assert app.run(task, "t") == "outside_task"
    assert world.n() == 0


def test_a_step_called_from_inside_a_query_is_refused(app: Doubtless, pay: Any, world: World) -> None:
    def find() -> dict[str, str]:
        return {"said": type(raised(pay, 1)).__name__}

    @app.step(effect="non_idem_write", query=find)
    def send() -> dict[str, str]:
        raise TimeoutError

    @app.task
    def task() -> dict[str, str]:
        return send()

    assert app.run(task, "t") == {"said": "OutsideTask"}
    assert world.n() == 0


@pytest.mark.parametrize("threaded", [False, True])
def test_a_step_called_from_a_child_asyncio_task_is_refused(
    app: Doubtless, pay: Any, apay: Any, world: World, threaded: bool
) -> None:
    @app.task
    async def task() -> int:
        async def child() -> None:
            await (pay.acall(1) if threaded else apay(1))

        before = written(app)
        with pytest.raises(OutsideTask, match=r"asyncio\.Task"):
            await asyncio.create_task(child())
        results = await asyncio.gather(child(), child(), return_exceptions=True)
        assert [type(result) for result in results] == [OutsideTask, OutsideTask]
        assert written(app) == before
        return await apay(2)

    assert asyncio.run(app.arun(task, "t")) == 2
    assert [what for _, what, _ in world.done] == [2]


def test_a_child_asyncio_task_may_await_a_step_that_was_called_in_task_code(app: Doubtless, apay: Any) -> None:
    """The place is given by the call; who awaits it does not matter."""

    @app.task
    async def task() -> list[int]:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(apay(1))
            two = group.create_task(apay(2))
        return [one.result(), two.result()]

    assert asyncio.run(app.arun(task, "t")) == [1, 2]
    assert [step.params for step in app.show("t").steps] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("effect", ["read", "non_idem_write"])
def test_a_step_that_is_begun_after_its_task_has_ended_is_not_called(app: Doubtless, world: World, effect: Any) -> None:
    left: list[Any] = []

    @app.step(effect=effect)
    async def step() -> None:
        world.do("step")

    @app.task
    async def task() -> int:
        left.append(step())
        raise Abort("nothing to do")  # one that returns with a step not awaited does not end

    async def main() -> BaseException | None:
        with pytest.raises(TaskFailed):
            await app.arun(task, "t")
        try:
            await left[0]
        except BaseException as error:
            return error
        return None

    assert asyncio.run(main()) is not None
    assert world.n() == 0
    assert kinds(app, "t") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, Kind.TASK_ENDED]


def test_a_task_called_directly_is_refused_and_so_is_a_handle_outside_a_step(app: Doubtless) -> None:
    @app.task
    def task() -> None:
        record_handle("h")

    error = raised(app.run, task, "t")
    assert error is not None
    assert "record_handle" in app.inbox().cases[0].evidence["message"]
    assert isinstance(raised(record_handle, "h"), OutsideTask)
