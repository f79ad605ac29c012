"""Task code is ordinary Python: loops, branches, exceptions, await; sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tasks_ground import Deploys, World, kinds, only_case, rows

from doubtless import Doubtless, NeedsHuman, Rejected, StepFailed, UsageError, injected
from doubtless.events import Kind


def test_loops_branches_and_exceptions_of_a_sync_task_are_those_of_python(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="read")
    def orders(day: str) -> list[int]:
        return [3, 0, 5]

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        if amount == 0:
            raise Rejected("nothing_to_pay")
        world.do("pay", amount)
        return amount

    @app.task
    def settle(day: str) -> dict[str, Any]:
        paid, refused = [], []
        for amount in orders(day=day):
            try:
                paid.append(pay(amount))
            except StepFailed as failure:
                refused.append((amount, failure.kind, failure.reason))
            else:
                if amount > 4:
                    break
        return {"paid": paid, "refused": refused}

    expected = {"paid": [3, 5], "refused": [[0, "rejected", "nothing_to_pay"]]}
    assert app.run(settle, "t", day="d") == expected
    assert app.run(settle, "t", day="d") == expected
    assert world.n() == 2


def test_an_async_task_runs_with_arun_and_with_run(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def pay(amount: int) -> int:
        await asyncio.sleep(0)
        world.do("pay", amount)
        return amount + 1

    @app.task
    async def settle() -> int:
        total = 0
        for amount in (1, 2):
            total += await pay(amount)
        return total

    assert app.run(settle, "by run") == 5
    assert asyncio.run(app.arun(settle, "by arun")) == 5
    assert asyncio.run(app.arun(settle, "by run")) == 5
    assert world.n() == 4


def test_arun_of_a_sync_task_leaves_the_event_loop_free(deploy: Deploys) -> None:
    app = deploy()
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="read")
    def slow() -> int:
        inside.set()
        assert go_on.wait(10)
        return 7

    @app.task
    def task() -> int:
        return slow()

    async def main() -> int:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        go_on.set()  # only a free loop gets here
        return await running

    assert asyncio.run(main()) == 7


@pytest.mark.parametrize("is_async", [False, True])
def test_run_works_inside_a_running_event_loop(deploy: Deploys, is_async: bool) -> None:
    app = deploy()

    @app.step(effect="read")
    def one() -> int:
        return 1

    @app.task
    def sync_task() -> int:
        return one()

    @app.task
    async def async_task() -> int:
        return one()

    async def main() -> Any:
        return app.run(async_task, "t") if is_async else app.run(sync_task, "t")

    assert asyncio.run(main()) == 1


def test_gathered_steps_have_their_places_in_the_order_of_the_calls(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def pay(name: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        world.do("pay", name)
        return name

    @app.task
    async def task() -> list[str]:
        return await asyncio.gather(pay("a", turns=9), pay("b", turns=3), pay("c", turns=0))

    assert asyncio.run(app.arun(task, "t")) == ["a", "b", "c"]
    assert [what for _, what, _ in world.done] == ["c", "b", "a"]
    assert {step.path: step.params["name"] for step in app.show("t").steps} == {"1": "a", "2": "b", "3": "c"}


def test_gathered_calls_are_in_flight_at_one_time(deploy: Deploys) -> None:
    app = deploy()
    here = 0

    @app.step(effect="non_idem_write")
    async def meet() -> int:
        nonlocal here
        here += 1
        while here < 3:
            await asyncio.sleep(0)
        return here

    @app.task
    async def task() -> list[int]:
        return await asyncio.gather(meet(), meet(), meet())

    assert asyncio.run(app.arun(task, "t")) == [3, 3, 3]


def test_acall_of_a_sync_step_runs_in_a_thread_and_does_not_block_the_loop(deploy: Deploys) -> None:
    app = deploy()
    ticked = threading.Event()
    threads: list[int] = []

    @app.step(effect="non_idem_write")
    def wait_for_tick(n: int) -> int:
        threads.append(threading.get_ident())
        assert ticked.wait(10)
        return n

    async def tick() -> None:
        while len(threads) < 2:
            await asyncio.sleep(0.001)
        ticked.set()

    @app.task
    async def task() -> list[int]:
        both, _ = await asyncio.gather(asyncio.gather(wait_for_tick.acall(1), wait_for_tick.acall(n=2)), tick())
        return both

    assert asyncio.run(app.arun(task, "t")) == [1, 2]
    assert len({*threads, threading.get_ident()}) == 3


def test_a_sync_step_in_an_async_task_runs_inline(deploy: Deploys) -> None:
    app = deploy()
    threads: list[int] = []

    @app.step(effect="non_idem_write")
    def inline() -> int:
        threads.append(threading.get_ident())
        return 1

    @app.task
    async def task() -> int:
        threads.append(threading.get_ident())
        return inline()

    assert app.run(task, "t") == 1
    assert threads[0] == threads[1]


def test_an_async_step_in_a_sync_task_is_a_usage_error_before_anything_is_written(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def pay() -> int:
        raise AssertionError("called")

    seen: list[UsageError] = []

    @app.task
    def task() -> int:
        try:
            pay()
        except UsageError as error:
            seen.append(error)
            raise
        return 1

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert "async" in str(seen[0])
    assert Kind.STEP_INTENDED not in kinds(app, "t")
    assert only_case(app).kind == "code_error"


def test_acall_in_a_sync_task_is_a_usage_error(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="read")
    def look() -> int:
        return 1

    @app.task
    def task() -> str:
        with pytest.raises(UsageError, match="async tasks"):
            look.acall()
        return "refused"

    assert app.run(task, "t") == "refused"


def test_a_sync_step_that_raises_stop_iteration_in_a_thread_is_settled_at_once(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="read", attempts=1, timeout="PT20S")
    def first_of_none() -> int:
        return next(iter([]))

    @app.task
    async def task() -> str:
        try:
            await first_of_none.acall()
        except StepFailed as failure:
            return f"{failure.kind}: {failure.reason}"
        return "no failure"

    begun = time.monotonic()
    assert app.run(task, "t") == "exhausted: StopIteration"
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("threaded", [False, True])
def test_an_awaitable_from_a_sync_step_is_never_its_output(deploy: Deploys, threaded: bool) -> None:
    app = deploy()

    async def later() -> int:
        return 1

    @app.step(effect="read", attempts=1)
    def broken() -> Any:
        return later()

    @app.task
    async def task() -> str:
        try:
            await broken.acall() if threaded else broken()
        except StepFailed as failure:
            return f"{failure.kind}: {failure.reason}"
        return "no failure"

    assert app.run(task, "t") == "exhausted: UsageError"


def test_the_bare_function_of_a_step_and_of_a_task_can_be_called(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay(amount: int, idempotency_key: str = injected()) -> str:
        return f"{amount} {idempotency_key}"

    @app.task
    def task(n: int) -> int:
        return n + 1

    assert pay.fn(3, idempotency_key="k") == "3 k"
    assert task.fn(1) == 2
    with pytest.raises(UsageError, match="called directly"):
        task(1)


def test_each_pass_gets_its_own_params(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay(line: dict[str, int]) -> dict[str, int]:
        line["paid"] = 1  # the step's own copy
        return line

    @app.task
    def task(lines: list[dict[str, int]]) -> list[Any]:
        out = [pay(line) for line in lines]
        assert all("paid" not in line for line in lines)
        lines.append({"n": 9})
        return out

    lines = [{"n": 1}, {"n": 2}]
    assert app.run(task, "t", lines=lines) == [{"n": 1, "paid": 1}, {"n": 2, "paid": 1}]
    assert lines == [{"n": 1}, {"n": 2}]
    assert app.run(task, "t", lines=lines) == [{"n": 1, "paid": 1}, {"n": 2, "paid": 1}]


def test_a_place_is_not_used_up_by_a_call_that_is_refused(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        return amount

    @app.task
    def task() -> int:
        with pytest.raises(UsageError):
            pay(amount=float("nan"))  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            pay(sum=1)  # type: ignore[call-arg]
        return pay(1)

    assert app.run(task, "t") == 1
    assert [row.path for row in rows(app, "t") if row.path] == ["1", "1"]


def test_steps_declared_as_data_are_called_by_name(deploy: Deploys, world: World) -> None:
    app = deploy()
    app.add_steps({"pay": {"effect": "non_idem_write", "call": lambda amount: world.do("pay", amount)}})

    @app.task
    def task() -> int:
        receipt: dict[str, int] = app.steps["pay"](amount=4)
        return receipt["id"]

    assert app.run(task, "t") == 1


def test_what_ran_in_one_app_runs_on_in_another_of_the_same_code(deploy: Deploys, world: World) -> None:
    def release(fail: bool) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect="non_idem_write")
        def pay(n: int) -> int:
            world.do("pay", n)
            return n * 10

        @app.task
        def task() -> list[int]:
            first = pay(1)
            if fail:
                raise KeyError("not deployed yet")
            return [first, pay(2)]

        return app, task

    app, task = release(fail=True)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(fail=False)
    assert app.run(task, "t") == [10, 20]
    assert world.n("pay") == 2
