"""What wakes a worker on PostgreSQL: told by the database, not found by looking; and what many waiting tasks cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.workers.conftest import only_postgres, until

import doubtless.worker
from doubtless import Answer, Doubtless
from doubtless.store.postgres import PostgresStore
from doubtless.worker import Worker

HOUR = 3600.0
MakeApp = Callable[..., Doubtless]


@pytest.fixture
def make_app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeApp]:
    """Apps on one store that know nothing of each other, as in two processes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Doubtless] = []

    def make(named: str = "") -> Doubtless:
        app = Doubtless(f"{url}&application_name={named}" if named and url.startswith("postgresql") else url)
        made.append(app)

        @app.step(effect="non_idem_write")
        def pay() -> int:
            return 5

        @app.task
        def paying() -> int:
            return pay()

        @app.task
        def asking() -> Any:
            return app.wait_for("word")

        @app.task
        async def asleep() -> None:
            await app.sleep("P1D")

        return app

    yield make
    for app in made:
        app.close()


def task(app: Doubtless, name: str) -> Any:
    return app.declared_tasks[name]


def status(app: Doubtless, task_id: str) -> str:
    head = app.store.head(task_id)
    assert head is not None
    return str(head.status)


@only_postgres
def test_a_worker_is_woken_by_what_another_process_does_and_not_by_its_next_look(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubtless.worker, "POLL", HOUR)  # whoever only looked would find nothing before the test has failed
    here, there = make_app(), make_app()
    with here.worker() as worker:
        listening(worker)
        there.start(task(there, "paying"), "started")
        until(lambda: status(there, "started") == "done", "what was started")
        there.start(task(there, "asking"), "answered")
        there.start(task(there, "asking"), "told")
        there.start(task(there, "asking"), "cancelled")
        waiting = ("answered", "told", "cancelled")
        until(lambda: all(status(there, each) not in ("ready", "running") for each in waiting), "three that wait")
        (case,) = [case for case in there.inbox().cases if case.task_id == "answered"]
        there.settle(case.id, Answer("yes"), by="ann", why="asked", shown=case.hash)
        until(lambda: status(there, "answered") == "done", "what was answered")
        there.send_event("told", "word", "now")
        until(lambda: status(there, "told") == "done", "what was told")
        there.cancel("cancelled", by="ann", why="enough")
        until(lambda: status(there, "cancelled") == "cancelled", "what was cancelled")
        there.freeze("pay", why="stop", by="ann")
        there.start(task(there, "paying"), "thawed")
        until(lambda: (there.store.head("thawed").why or "").startswith("frozen"), "what stands before the freeze")  # type: ignore[union-attr]
        there.thaw("pay", by="ann")
        until(lambda: status(there, "thawed") == "done", "what was thawed")


@only_postgres
def test_a_listener_whose_connection_was_cut_listens_again_and_looks_for_what_it_missed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubtless.worker, "POLL", HOUR)
    here, there = make_app(), make_app()
    store = there.store
    assert isinstance(store, PostgresStore)
    with here.worker() as worker:
        listening(worker)
        with psycopg.connect(store.place.conninfo, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
        there.start(task(there, "paying"), "t")
        until(lambda: status(there, "t") == "done", "what was started while nobody listened")


def listening(worker: Worker) -> None:
    assert worker._deaf is not None
    assert worker._deaf.__self__.listening.wait(20)  # type: ignore[attr-defined]


@pytest.mark.parametrize("many", [60, pytest.param(1000, marks=pytest.mark.prove)])
def test_tasks_that_sleep_or_wait_cost_no_thread_and_no_connection(make_app: MakeApp, many: int) -> None:
    app = make_app(COUNTED)
    store = app.store
    with app.worker(concurrency=8):
        parked(app, 0, 20)
        few = cost(store)
        parked(app, 20, many)
        until(lambda: cost(store)[1] <= few[1], "the end of the threads that had run them")
        most = store.place.connections + 2 if isinstance(store, PostgresStore) else 0
        until(lambda: cost(store)[0] <= most, "the server's end of a connection that was closed")
    assert {status(app, f"t{number}") for number in range(many)} == {"waiting", "needs_human"}


def parked(app: Doubtless, first: int, last: int) -> None:
    for number in range(first, last):
        app.start(task(app, "asleep" if number % 2 else "asking"), f"t{number}")
    until(lambda: sum(head.status in ("waiting", "needs_human") and head.owner is None for head in app.tasks()) == last, "the wait")


COUNTED = "counted"
"""What its connections are called at the server, which those of other tests may not have left yet."""

ENDING = ("doubtless-worker:", "doubtless:", "doubtless-commits")
"""Threads of runs, and the one that commits for the event loop, which ends a second after the last commit."""


def cost(store: Any) -> tuple[int, int]:
    """How many connections and threads there are, once the runs are over."""
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith(ENDING)], "the end of the runs")
    connections = 0
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.place.conninfo, application_name="counting") as other:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            connections = other.execute(asked, (COUNTED,)).fetchone()[0]  # type: ignore[index]
        assert connections > 0
    return connections, threading.active_count()


def test_a_full_worker_holds_no_claims_of_tasks_that_it_does_not_run(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    due, asked = app.store.due, [0]

    def look(wanted: Any, *, limit: int, now: int) -> Any:
        asked.append(limit)
        return due(wanted, limit=limit, now=now)

    monkeypatch.setattr(app.store, "due", look)
    full, go_on = threading.Semaphore(0), threading.Event()

    @app.step(effect="read")
    def busy() -> int:
        full.release()
        assert go_on.wait(20)
        return 1

    @app.task
    def working() -> int:
        return busy()

    for number in range(6):
        app.start(working, f"t{number}")
    with app.worker(concurrency=2) as worker:
        assert full.acquire(timeout=20)
        assert full.acquire(timeout=20)
        assert worker._claim_due() == 0
        assert sum(head.owner is not None for head in app.tasks()) == 2
        assert max(asked) == 2  # nor takes more than it has places for, only to give them back
        go_on.set()
        until(lambda: {head.status for head in app.tasks()} == {"done"}, "the end of all")


@only_postgres
def test_the_end_of_a_step_that_holds_a_business_key_wakes_a_worker_whose_task_waits_for_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubtless.worker, "POLL", HOUR)
    inside, go_on = threading.Event(), threading.Event()

    def make() -> tuple[Doubtless, Any]:
        app = make_app()

        @app.step(effect="non_idem_write", once="refund:{order}", timeout="PT1H")
        def refund(order: str) -> str:
            inside.set()
            assert go_on.wait(20)
            return order

        @app.task
        def refunding(order: str) -> str:
            return refund(order)

        return app, refunding

    (here, waiting), (there, first) = make(), make()
    run = threading.Thread(target=there.run, args=(first, "first"), kwargs={"order": "A-17"}, daemon=True)
    run.start()
    assert inside.wait(20)
    with here.worker() as worker:
        listening(worker)
        here.start(waiting, "second", order="A-17")
        until(lambda: here.store.head("second").awaits is not None, "the wait for the key")  # type: ignore[union-attr]
        until(lambda: not worker._running(), "the end of its run")
        go_on.set()
        until(lambda: status(here, "second") == "done", "the end of the second")
    run.join(20)


@only_postgres
def test_behind_a_pooler_a_worker_listens_at_the_direct_url(make_app: MakeApp, url: str) -> None:
    from urllib.parse import quote

    from doubtless.store.pg.place import place_of

    conninfo = place_of(url).conninfo
    direct = f"{conninfo}{'&' if '?' in conninfo else '?'}application_name=straight"
    app = Doubtless(f"{url}&direct={quote(direct, safe='')}")
    with app.worker() as worker:
        listening(worker)
        with psycopg.connect(conninfo) as other:
            asked = "SELECT query FROM pg_stat_activity WHERE application_name = 'straight'"
            assert [query.split()[0] for (query,) in other.execute(asked).fetchall()] == ["LISTEN"]
    app.close()
