"""Sync calls of async tasks: so many threads at once, and a call that hangs gives its place back when it is given up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tasks_ground import PATIENCE, Deploys, World

import doubtless.turns
from doubtless import Doubtless, StepFailed


@pytest.fixture
def app(deploy: Deploys, monkeypatch: pytest.MonkeyPatch) -> Doubtless:
    monkeypatch.setattr(doubtless.turns, "SEATS", 2)
    return deploy()


def test_no_more_sync_calls_run_at_once_than_there_are_seats(app: Doubtless, world: World) -> None:
    lock, two, go_on = threading.Lock(), threading.Event(), threading.Event()
    now, most = 0, 0

    @app.step(effect="non_idem_write", query=lambda: None)
    def pay(n: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == 2:
                two.set()
        assert go_on.wait(PATIENCE)
        with lock:
            now -= 1
        world.do("pay", n)
        return n

    @app.task
    async def task() -> list[int]:
        async def opens() -> None:
            await asyncio.to_thread(two.wait, PATIENCE)
            go_on.set()

        opening = asyncio.ensure_future(opens())
        paid = await asyncio.gather(*(pay.acall(n) for n in range(7)))
        await opening
        return list(paid)

    assert app.run(task, "t") == list(range(7))
    assert most == 2
    assert world.n() == 7


def test_calls_that_hang_and_are_given_up_give_their_seats_back(app: Doubtless) -> None:
    go_on = threading.Event()

    @app.step(effect="read", timeout=0.05, attempts=1)
    def hang(n: int) -> int:
        go_on.wait(PATIENCE)
        return n

    @app.step(effect="read")
    def look() -> int:
        return 5

    @app.task
    async def task() -> int:
        for hung in await asyncio.gather(*(hang.acall(n) for n in range(4)), return_exceptions=True):
            assert isinstance(hung, StepFailed)
        return await look.acall()

    got: list[int] = []
    run = threading.Thread(target=lambda: got.append(app.run(task, "t")), daemon=True)
    run.start()
    run.join(PATIENCE)
    go_on.set()
    assert got == [5]


def test_a_call_that_is_cancelled_while_it_waits_for_a_seat_is_not_made(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="read")
    def hold(n: int) -> int:
        if n == 1:
            inside.set()
        assert go_on.wait(PATIENCE)
        return n

    @app.step(effect="read")
    def late() -> int:
        world.do("late")
        return 1

    @app.task
    async def task() -> int:
        holding = [asyncio.ensure_future(hold.acall(n)) for n in range(2)]
        await asyncio.to_thread(inside.wait, PATIENCE)
        waiting = asyncio.ensure_future(late.acall())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        go_on.set()
        return sum([await one for one in holding])

    assert app.run(task, "t") == 1
    assert world.n() == 0
