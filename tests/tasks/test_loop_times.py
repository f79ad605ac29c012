"""Timeouts of async calls: one timer of the loop for all of them, and each call is given up at its own time."""

from __future__ import annotations

import asyncio
from typing import Any

from tasks_ground import Deploys, World, rows

from doubtless import StepFailed
from doubtless.events import Kind
from doubtless.turns import times_of


def test_of_calls_side_by_side_each_is_given_up_at_its_own_time(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="read", timeout="PT5S")
    async def long() -> str:
        await others.wait()  # begun first, and still there when the others have been given up
        return "long"

    @app.step(effect="read", timeout=0.1, attempts=1)
    async def short() -> None:
        await asyncio.Event().wait()

    @app.step(effect="read", timeout=0.05, attempts=1)
    async def shorter() -> None:
        await asyncio.Event().wait()

    @app.task
    async def task() -> str:
        calls = [asyncio.ensure_future(call) for call in (long(), short(), shorter())]
        ended = await asyncio.gather(*calls[1:], return_exceptions=True)
        assert all(isinstance(one, StepFailed) for one in ended)
        others.set()
        return await calls[0]

    async def run() -> Any:
        nonlocal others
        others = asyncio.Event()
        return await app.arun(task, "t")

    others = asyncio.Event()
    assert asyncio.run(run()) == "long"
    given_up = [row.path for row in rows(app, "t") if row.kind == Kind.ATTEMPT_ENDED]
    assert given_up == ["3", "2"]


def test_calls_that_have_ended_leave_one_timer_and_nothing_to_look_at(deploy: Deploys) -> None:
    app = deploy()
    timers: list[float] = []

    @app.step(effect="read", timeout="PT5M")
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.task
    async def task() -> int:
        return sum([await look(n=n) for n in range(20)])

    async def run() -> int:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at
        loop.call_at = lambda when, *args, **more: (timers.append(when), call_at(when, *args, **more))[1]  # type: ignore[method-assign]
        total: int = await app.arun(task, "t")
        assert times_of(loop)._ends == {}
        return total

    assert asyncio.run(run()) == 190
    assert len(timers) == 1
