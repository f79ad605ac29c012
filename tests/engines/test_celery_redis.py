"""Celery on Redis: `acks_late`, and a visibility timeout that is shorter than the steps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.clock import TurnedClock
from crash.outside import World
from crash.program import Scenario

from . import cells
from .brokers import killed_and_restarted
from .ground import program_of, until
from .on_celery import Redis
from .recon import reconcile

BUSY = "task t is running: it is being run by"

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here")
    redis = Redis(tmp_path_factory.mktemp("redis"))
    yield redis
    redis.close()


@pytest.mark.parametrize(("effect", "cell", "look"), list(cells.names()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    engine: Redis, world: World, tmp_path: Path, effect: str, cell: str, look: str, store: str
) -> None:
    cells.play(engine, world, tmp_path, effect, cell, look, store)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(
    engine: Redis, tmp_path: Path
) -> None:
    reconcile(engine, tmp_path)


def test_a_broker_that_is_killed_loses_no_task_and_doubles_no_write(engine: Redis, world: World, tmp_path: Path) -> None:
    killed_and_restarted(engine, world, tmp_path, new_worker=True)


def test_the_reconciliation_ends_so_on_postgresql_too(engine: Redis, tmp_path: Path, postgres_store: str) -> None:
    reconcile(engine, tmp_path, postgres_store)


def test_a_step_longer_than_many_visibility_timeouts_leaves_no_copies_behind(engine: Redis, world: World, tmp_path: Path) -> None:
    import redis

    clock = TurnedClock(tmp_path / "clock")
    office = world.office(clock.path)
    scenario = Scenario(str(tmp_path), world.port, office.name, "non_idem_write")
    with engine.crew(tmp_path, program_of(scenario), visibility=1.0) as crew:
        office.hold("t", "before")
        worker = crew.worker()
        crew.app.start(crew.task, "t", reference="t")
        office.wait_held(worker)  # type: ignore[arg-type]
        until(lambda: crew.said(BUSY), "a copy")
        sweeps = crew.said("Sending due task")
        until(lambda: crew.said("Sending due task") >= sweeps + 12, "six visibility timeouts")
        assert crew.said(BUSY) <= 2, "a copy is acknowledged at once, and begets no other"
        office.release()
        assert crew.rests("t").status == "done"
        assert (office.n("t"), len(office.requests("write", "t"))) == (1, 1)
        keys = crew.broker["options"]["global_keyprefix"]
        with redis.Redis(port=engine.port) as server:
            until(lambda: server.llen(keys + crew.broker["queue"]) == server.hlen(f"{keys}unacked") == 0, "an empty queue")
