"""Commits of an event loop on PostgreSQL are made beside it: the loop goes on, and what comes meanwhile shares the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import doubtless.turns
from doubtless import Doubtless, injected
from doubtless.events import Kind
from doubtless.store.tickets import Ticket

MakeApp = Callable[..., Doubtless]
PATIENCE = 20.0


class Commits:
    """Stops the shared commits of an app where a test says so, and counts the rows of each."""

    def __init__(self, app: Doubtless) -> None:
        self.store: Any = app.store
        self.rows: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._write, self.store._sharing._write = self.store._sharing._write, self._stopped

    def _stopped(self, tickets: Any, *more: Any) -> Any:
        self.rows.append(len(tickets))
        self.threads.add(threading.current_thread())
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return self._write(tickets, *more)

    def stop(self) -> None:
        """Stop the next commit, until somebody asks for what came of a row."""
        self.begun.clear()
        self.go_on.clear()
        landed = self.store.landed

        def asked(ticket: Any) -> Any:
            if isinstance(ticket, Ticket):
                self.go_on.set()
            return landed(ticket)

        self.store.landed = asked


def paying(app: Doubtless, done: list[str], before: Callable[[str], Any] | None = None) -> Any:
    @app.step(effect="idem_write")
    async def pay(task: str, idempotency_key: str = injected()) -> str:
        done.append(task)
        return task

    @app.task
    async def task(name: str) -> str:
        if before is not None:
            await before(name)
        return await pay(task=name)

    return task


async def until(event: threading.Event) -> None:
    """Wait for something of another thread without standing in this loop's way."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


def kinds(app: Doubtless, task_id: str) -> list[str]:
    return [row.kind for row in app.store.rows(task_id)]


def test_an_event_loop_goes_on_while_its_rows_are_committed_and_what_comes_meanwhile_shares_the_next_commit(
    make_app: MakeApp,
) -> None:
    app, done = make_app(), []
    late = asyncio.Event()

    async def wait(name: str) -> None:
        if name != "first":
            await late.wait()

    task = paying(app, done, wait)
    commits = Commits(app)

    async def side_by_side() -> list[str]:
        names = ["first", *(f"t{n}" for n in range(5))]
        commits.stop()
        runs = asyncio.gather(*[app.arun(task, name, name=name) for name in names])
        await until(commits.begun)  # the loop is here while the first row is on its way
        late.set()
        while len(app.store._sharing.waiting) < 5:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert done == []  # no row is durable yet, so that nothing was called
        commits.go_on.set()
        return await runs

    assert len(asyncio.run(side_by_side())) == 6
    assert sorted(done) == ["first", "t0", "t1", "t2", "t3", "t4"]
    assert commits.rows[:2] == [1, 5]
    assert threading.main_thread() not in commits.threads
    assert app.verify() == []


def test_a_run_that_is_cancelled_while_its_row_is_on_its_way_knows_what_came_of_it(make_app: MakeApp) -> None:
    app, done = make_app(), []
    task = paying(app, done)
    commits = Commits(app)

    async def cancelled() -> None:
        commits.stop()
        run = asyncio.ensure_future(app.arun(task, "t", name="t", wait=False))
        await until(commits.begun)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())
    assert done == []
    assert kinds(app, "t")[-3:] == [Kind.STEP_INTENDED, Kind.ATTEMPT_ENDED, Kind.TASK_PARKED]
    assert app.run(task, "t", name="t") == "t"
    assert done == ["t"]
    assert app.verify() == []


def test_a_loop_that_is_closed_while_its_row_is_on_its_way_leaves_a_write_that_was_not_sent(make_app: MakeApp) -> None:
    app, done = make_app(), []
    task = paying(app, done)
    commits = Commits(app)
    commits.stop()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that tasks were destroyed; so they were
    running = app.arun(task, "t", name="t", wait=False)
    future = loop.create_task(running)
    while not commits.begun.is_set():
        loop.call_soon(loop.stop)
        loop.run_forever()
    running.close()
    for left in asyncio.all_tasks(loop):
        left.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    del future
    assert done == []
    assert [kind for kind in kinds(app, "t") if kind == Kind.STEP_INTENDED] == [Kind.STEP_INTENDED]
    assert app.verify() == []


def test_the_thread_that_commits_for_a_loop_ends_when_there_is_nothing_to_do(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubtless.turns, "IDLE", 0.01)
    app, done = make_app(), []
    task = paying(app, done)
    commits = Commits(app)
    for n in range(3):  # it is made again when there is something to do again
        assert app.run(task, f"t{n}", name=f"t{n}") == f"t{n}"
        for thread in commits.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert done == ["t0", "t1", "t2"]


def test_where_no_thread_can_be_had_the_loop_commits_itself(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    async def now(name: str) -> None:
        while any(thread.name == "doubtless-commits" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        commits.threads.clear()
        monkeypatch.setattr("doubtless.host.thread", NoThread)

    monkeypatch.setattr(doubtless.turns, "IDLE", 0.01)
    app, done = make_app(), []
    task = paying(app, done, now)
    commits = Commits(app)

    async def run() -> str:
        return await app.arun(task, "t", name="t")

    assert asyncio.run(run()) == "t"
    assert commits.threads == {threading.main_thread()}
