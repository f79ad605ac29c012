"""Commits of many tasks of one event loop are made beside it: for one half of them, while the loop works for the other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from tasks_ground import PATIENCE, Deploys, World, kinds
from tests.looptime import has_worked_for

import doubtless.turns
from doubtless import Doubtless, injected
from doubtless.events import Kind
from doubtless.store.base import Store
from doubtless.store.tickets import Waits
from doubtless.turns import FEW, Aside, Turn

MANY = 2 * FEW


class Commits:
    """The shared commits of an app: how many rows each had, and in which thread it was made; `before` is called in each."""

    def __init__(self, app: Doubtless, before: Callable[[], None] = lambda: None) -> None:
        app.store.info()
        self.rows: list[int] = []
        self.threads: list[threading.Thread] = []
        self.before = before
        sharing: Any = app.store._sharing  # type: ignore[attr-defined]
        self._write, sharing._write = sharing._write, self._noted

    def _noted(self, works: Any, tickets: Any, *more: Any) -> None:
        if not works:
            self.rows.append(len(tickets))
            self.threads.append(threading.current_thread())
            self.before()
        self._write(works, tickets, *more)


def in_step(app: Doubtless, world: World, count: int, *, writes: int = 1) -> Any:
    """So many tasks, each of one write or more, that put their rows down in the same turn of the loop."""
    ready = asyncio.Event()
    here = 0

    @app.step(effect="idem_write")
    async def pay(name: str, n: int, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do(name, n, idempotency_key)

    @app.task
    async def task(name: str) -> None:
        nonlocal here
        here += 1
        if here == count:
            has_worked_for(1.0)  # longer than the last commit took: it pays to commit one half beside the other
            ready.set()
        await ready.wait()
        for n in range(writes):
            await pay(name=name, n=n)

    async def together() -> list[BaseException | None]:
        return await asyncio.gather(*[app.arun(task, f"t{n}", name=f"t{n}") for n in range(count)], return_exceptions=True)

    return together


def test_of_rows_put_down_together_half_are_committed_beside_the_loop_which_goes_on(app: Doubtless, world: World) -> None:
    begun, seen = threading.Event(), threading.Event()

    def before() -> None:
        if not begun.is_set() and threading.current_thread() is not threading.main_thread():
            begun.set()
            assert seen.wait(PATIENCE)  # the loop says so: it does not stand still for this commit

    commits = Commits(app, before)
    together = in_step(app, world, MANY)

    async def watched() -> None:
        running = asyncio.ensure_future(together())
        while not begun.is_set() and not running.done():
            await asyncio.sleep(0)
        assert world.n() == 0  # no row is durable yet, so that nothing was called
        seen.set()
        assert await running == [None] * MANY

    asyncio.run(watched())
    assert commits.rows[0] == MANY // 2
    assert commits.rows[1] >= MANY // 2  # the other half, and what the first one has put down meanwhile
    assert threading.main_thread() not in commits.threads[:2]
    assert world.n() == MANY
    for n in range(MANY):
        assert kinds(app, f"t{n}")[-3:] == [Kind.STEP_INTENDED, Kind.STEP_SETTLED, Kind.TASK_ENDED]
    assert app.verify() == []


def test_the_thread_that_commits_goes_on_with_what_was_put_down_meanwhile_without_asking_the_loop(
    app: Doubtless, world: World
) -> None:
    first, second = threading.Event(), threading.Event()

    def before() -> None:
        if threading.current_thread() is not threading.main_thread():
            (second if first.is_set() else first).set()

    commits = Commits(app, before)
    together = in_step(app, world, MANY)

    async def blocked() -> None:
        running = asyncio.ensure_future(together())
        while not first.is_set() and not running.done():
            await asyncio.sleep(0)
        assert second.wait(PATIENCE)  # the loop stands still meanwhile
        assert world.n() == 0
        assert await running == [None] * MANY

    asyncio.run(blocked())
    assert commits.rows[:2] == [MANY // 2, MANY // 2]
    assert world.n() == MANY
    assert app.verify() == []


class Shelf:
    """A store that is asked to commit, and commits nothing."""

    far = True

    def __init__(self) -> None:
        self.flushed = threading.Semaphore(0)

    def flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> int:
        self.flushed.release()
        return 0


@pytest.mark.parametrize("again", [True, False])
def test_what_is_told_late_of_a_commit_leaves_what_was_put_down_since_for_the_next_one(again: bool) -> None:
    told: list[BaseException | None] = []

    async def late() -> None:
        shelf, ticket = Shelf(), Waits()
        turn = Turn(asyncio.get_running_loop(), cast(Store, shelf))
        turn.then(ticket, told.append)
        turn._committed(None, False, again)  # of the thread's own: those that it committed were told before
        assert told == ([] if again else [None])  # nothing was committed at all: each looks for itself
        assert not again or shelf.flushed.acquire(timeout=PATIENCE)
        ticket.done = True

    asyncio.run(late())


def test_a_few_rows_of_a_file_are_committed_in_place(app: Doubtless, world: World) -> None:
    commits = Commits(app)
    asyncio.run(in_step(app, world, FEW - 1)())
    assert commits.rows[0] == FEW - 1
    assert set(commits.threads) == {threading.main_thread()}


def test_a_loop_that_never_rests_lets_a_commit_say_that_it_is_over(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    enough = threading.Condition()

    class Watched(Aside):
        def give_way(self, seconds: float) -> bool:
            with enough:
                asked.append(seconds)
                enough.notify_all()
            return super().give_way(PATIENCE)

    monkeypatch.setattr(doubtless.turns, "Aside", Watched)
    monkeypatch.setattr(doubtless.turns, "LATE", 0.0)
    aside: list[bool] = []
    before_them = 0

    def before() -> None:
        nonlocal before_them
        if threading.current_thread() is threading.main_thread() or len(aside) == 2:
            return
        with enough:
            before_them = before_them if aside else len(asked)
            aside.append(enough.wait_for(lambda: len(asked) > before_them + len(aside), PATIENCE))

    Commits(app, before)
    together = in_step(app, world, MANY)

    async def restless() -> None:
        running = asyncio.ensure_future(together())
        while not running.done():
            await asyncio.sleep(0)
        assert await running == [None] * MANY

    asyncio.run(restless())
    assert aside == [True, True]  # the commit that it handed over, and the one that the thread went on with
    assert world.n() == MANY


def test_who_hands_over_to_a_thread_goes_on_when_that_needs_the_interpreter_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtless.turns, "HANDOVER", PATIENCE)
    aside, go_on, said = Aside(), threading.Event(), []

    def job(gone: Callable[[], None]) -> None:
        said.append("began")
        gone()
        assert go_on.wait(PATIENCE)
        said.append("over")

    aside.do(job)
    assert said == ["began"]
    assert not aside.give_way(0)
    go_on.set()
    assert aside.give_way(PATIENCE)
    assert said == ["began", "over"]


def test_a_job_that_fails_before_it_has_gone_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtless.turns, "HANDOVER", PATIENCE)
    aside, done = Aside(), []
    begun = time.monotonic()
    aside.do(lambda gone: done.append(1))  # it never says that it has gone
    assert time.monotonic() - begun < PATIENCE / 2
    assert aside.give_way(PATIENCE)
    assert done == [1]


def test_one_row_that_is_refused_takes_none_of_a_large_commit_with_it(app: Doubtless, world: World) -> None:
    together = in_step(app, world, MANY, writes=2)
    cancelled: list[str] = []
    sharing: Any = app.store._sharing  # type: ignore[attr-defined]
    write, lock = sharing._write, app.store._link.lock  # type: ignore[attr-defined]

    def meddled(works: Any, tickets: Any, *more: Any) -> None:  # right before this commit somebody else writes in one of these logs
        if not cancelled and not works and all(ticket.event.kind == Kind.STEP_INTENDED and not ticket.blobs for ticket in tickets):
            cancelled.append(tickets[0].event.task_id)
            by = threading.Thread(target=app.cancel, args=cancelled, kwargs={"by": "anna", "why": "no longer wanted"})
            lock.release()  # whoever commits holds it
            by.start()
            by.join(PATIENCE)
            assert lock.acquire(timeout=PATIENCE)
        write(works, tickets, *more)

    sharing._write = meddled
    ended = asyncio.run(together())
    assert [f"t{n}" for n, error in enumerate(ended) if error is not None] == cancelled
    assert world.n() == 2 * MANY - 1
    assert app.show(cancelled[0]).status == "cancelled"
    assert app.verify() == []


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()
