"""A host with an event loop: the same rules, nothing blocks the loop, and a cancellation leaves a write in doubt."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from guests_child import ORDER, append_line, lines, payments
from guests_ground import PATIENCE, Ground
from tests.looptime import LIMIT, is_over_after

from doubtless import Doubtless, NeedsHuman, Refused, UsageError, injected


@pytest.fixture
def app(ground: Ground) -> Doubtless:
    return ground.app()


class Bank:
    """An async step and a sync one, whose effects are lines of a file, and which can be asked by key."""

    def __init__(self, app: Doubtless, folder: Path) -> None:
        self.file = str(folder / "effects")
        self.hang: asyncio.Event | None = None
        self.hangs = asyncio.Event()

        def find(idempotency_key: str) -> dict[str, str] | None:
            return {"key": idempotency_key} if any(idempotency_key in line for line in lines(self.file)) else None

        @app.step(effect="non_idem_write", query=find)
        async def apay(amount: int, idempotency_key: str = injected()) -> dict[str, str]:
            append_line(self.file, f"apay {amount} {idempotency_key}")
            if self.hang is not None:
                self.hangs.set()
                await self.hang.wait()
            await asyncio.sleep(0)
            return {"key": idempotency_key}

        self.apay = apay

    def paid(self) -> list[str]:
        return sorted(line.split()[1] for line in lines(self.file))


def test_calls_of_many_asyncio_tasks_have_an_effect_each_and_one_id_has_one(ground: Ground, app: Doubtless) -> None:
    bank = Bank(app, ground.folder)

    async def host() -> list[Any]:
        async with app.session("thread-42") as session:
            calls = [session.acall(bank.apay, amount=n, call_id=f"c{n}") for n in range(8)]
            same = [session.acall(bank.apay, amount=99, call_id="same") for _ in range(4)]
            results = await asyncio.gather(*calls, *same)
            assert len(session.calls) == 9
            return results

    results = asyncio.run(host())
    assert bank.paid() == sorted([*map(str, range(8)), "99"])
    assert all(result == results[-1] for result in results[-4:])
    assert app.show("thread-42").unacknowledged == ()


def test_a_sync_step_of_an_async_host_does_not_block_its_loop(app: Doubtless) -> None:
    ticked = threading.Event()

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> bool:
        return ticked.wait(PATIENCE)

    async def host() -> bool:
        async with app.session("thread-42") as session:
            asyncio.get_running_loop().call_later(0.01, ticked.set)
            return await session.acall(pay, amount=5)

    assert asyncio.run(host()), "the loop went on while the step waited for it"


def test_an_async_step_is_not_called_without_await(ground: Ground, app: Doubtless) -> None:
    bank = Bank(app, ground.folder)
    with app.session("thread-42") as session:
        with pytest.raises(UsageError, match="acall"):
            session.call(bank.apay, amount=5)
        assert session.calls == ()
    assert bank.paid() == []


def test_a_cancelled_call_is_in_doubt_and_the_next_one_settles_it_first(ground: Ground, app: Doubtless) -> None:
    bank = Bank(app, ground.folder)

    async def host() -> None:
        bank.hang = asyncio.Event()
        async with app.session("thread-42") as session:
            over = is_over_after(bank.hangs)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.acall(bank.apay, amount=5, call_id="a"), LIMIT)
            await over
            assert [a.outcome for a in app.show("thread-42").steps[0].attempts] == ["unknown"]
            bank.hang = None
            await session.acall(bank.apay, amount=6, call_id="b")
            assert app.show("thread-42").steps[0].status == "done", "settled before the other began"
            assert await session.acall(bank.apay, amount=5, call_id="a")

    asyncio.run(host())
    assert bank.paid() == ["5", "6"]
    assert app.show("thread-42").unacknowledged == ()


def test_an_async_host_that_was_cancelled_has_acknowledged_nothing(ground: Ground, app: Doubtless) -> None:
    bank = Bank(app, ground.folder)

    paid = asyncio.Event()

    async def host() -> None:
        async with app.session("thread-42") as session:
            await session.acall(bank.apay, amount=5, call_id="a")
            paid.set()
            await asyncio.Event().wait()

    async def cancelled() -> None:
        over = is_over_after(paid)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(host(), LIMIT)
        await over

    asyncio.run(cancelled())
    assert app.show("thread-42").unacknowledged == ("1",)

    async def again() -> None:
        async with app.session("thread-42") as session:
            with pytest.raises(Refused) as refused:
                await session.acall(bank.apay, amount=6, call_id="b")
            assert "apay(amount=5) was carried out" in refused.value.text_for_model
            await session.acall(bank.apay, amount=5, call_id="c")
            assert session.replayed("c")

    asyncio.run(again())
    assert bank.paid() == ["5"]


def test_an_async_opening_settles_the_doubts_of_a_dead_host_first(ground: Ground) -> None:
    ground.kill_host("after effect")
    app = ground.app()
    pay, _ = payments(app, str(ground.folder))

    async def host() -> None:
        async with app.session("thread-42") as session:
            assert app.show("thread-42").steps[0].status == "done"
            await session.acall(pay, **ORDER, call_id="toolu_9")
            assert session.replayed("toolu_9")

    asyncio.run(host())
    assert ground.effects() == ["pay o1 500"]


def test_a_call_cancelled_while_it_waits_for_the_same_id_does_the_first_no_harm(ground: Ground, app: Doubtless) -> None:
    bank = Bank(app, ground.folder)

    async def host() -> None:
        bank.hang = asyncio.Event()
        async with app.session("thread-42") as session:
            first = asyncio.ensure_future(session.acall(bank.apay, amount=5, call_id="a"))
            second = asyncio.ensure_future(session.acall(bank.apay, amount=5, call_id="a"))
            while not bank.paid():
                await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            bank.hang.set()
            assert await first
            assert await session.acall(bank.apay, amount=5, call_id="a") == first.result()

    asyncio.run(host())
    assert bank.paid() == ["5"]


def test_a_doubt_that_needs_a_person_is_told_on_the_event_loop_too(app: Doubtless) -> None:
    @app.step(effect="non_idem_write")
    async def pay(amount: int) -> int:
        raise ConnectionResetError

    async def host() -> None:
        async with app.session("thread-42") as session:
            with pytest.raises(NeedsHuman) as told:
                await session.acall(pay, amount=5, call_id="a")
            assert told.value.text_for_model == "pay(amount=5) may have happened; it is being checked. Do not repeat it."

    asyncio.run(host())
    assert app.show("thread-42").status == "needs_human"
