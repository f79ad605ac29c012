"""Celery with a folder as its broker: real worker processes, and every message that a dead worker had is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from crash.clock import TurnedClock
from crash.outside import World
from crash.program import Scenario
from doubtless import Doubtless
from doubtless.runners.celery import CeleryRunner
from doubtless.testing import FakeClock

from . import cells
from .ground import program_of
from .on_celery import Folder
from .recon import reconcile


@pytest.mark.engines
@pytest.mark.parametrize(("effect", "cell", "look"), cells.SHORT[:2] + cells.SHORT[3:])
def test_what_a_dead_worker_had_is_found_by_the_sweep_and_no_write_happens_twice(
    world: World, tmp_path: Path, effect: str, cell: str, look: str
) -> None:
    cells.play(Folder(), world, tmp_path, effect, cell, look)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(tmp_path: Path) -> None:
    reconcile(Folder(), tmp_path)


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[tuple[Doubtless, CeleryRunner, FakeClock]]:
    """An app whose one task sleeps as long as it is told, on a queue in memory."""
    clock = FakeClock()
    app = Doubtless(f"sqlite:///{tmp_path / 'store.db'}", clock=clock)

    @app.task
    def sleeper(how_long: str) -> str:
        app.sleep(how_long)
        return "rested"

    runner = CeleryRunner(app, Celery(f"light-{tmp_path.name}", broker="memory://"), queue=tmp_path.name)
    yield app, runner, clock
    app.close()


def queued(runner: CeleryRunner, queue: str) -> int:
    """How many messages are in the queue."""
    with runner.celery.connection_for_read() as connection:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def test_doubled_deliveries_end_instead_of_going_on_side_by_side(
    sleeping: tuple[Doubtless, CeleryRunner, FakeClock], tmp_path: Path
) -> None:
    app, runner, clock = sleeping
    app.start(app._tasks["sleeper"], "t", how_long="PT30S")
    assert queued(runner, tmp_path.name) == 1
    for _ in range(5):
        runner.advance.run("t")
    assert queued(runner, tmp_path.name) == 2, "one message for the time to come again, from the delivery that ran the task"
    clock.advance("PT30S")
    for _ in range(5):
        runner.advance.run("t")
    assert app.show("t").status == "done"
    assert queued(runner, tmp_path.name) == 2


def test_a_time_beyond_the_horizon_is_left_to_the_sweep(sleeping: tuple[Doubtless, CeleryRunner, FakeClock], tmp_path: Path) -> None:
    app, runner, clock = sleeping
    app.start(app._tasks["sleeper"], "t", how_long="PT1H")
    runner.advance.run("t")
    runner.sweep.run()
    assert queued(runner, tmp_path.name) == 1
    clock.advance("PT1H")
    runner.sweep.run()
    assert queued(runner, tmp_path.name) == 2


@pytest.mark.engines
@pytest.mark.parametrize(("pool", "closed"), [("threads", 0), ("prefork", 1)])
def test_told_to_stop_a_worker_finishes_the_step_or_the_task_and_another_does_the_rest(
    world: World, tmp_path: Path, pool: str, closed: int
) -> None:
    office = world.office(TurnedClock(tmp_path / "clock").path)
    scenario = Scenario(str(tmp_path), world.port, office.name, "non_idem_write")
    with Folder().crew(tmp_path, program_of(scenario)) as crew:
        crew.pool = pool
        office.hold("t", "before")
        worker = crew.worker()
        crew.app.start(crew.task, "t", reference="t")
        office.wait_held(worker)  # type: ignore[arg-type]
        os.kill(worker.pid, signal.SIGTERM)
        worker.heard("told to stop: the app is drained")
        office.release()
        assert worker.ended() == 0
        assert (office.n("t"), office.n("t/close")) == (1, closed)
        crew.worker()
        assert crew.rests("t").status == "done"
        assert (len(office.requests("write", "t")), office.n("t/close")) == (1, 1)
