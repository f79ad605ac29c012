"""Celery on RabbitMQ: `acks_late`, and deliveries that are repeated because its connections broke while
its children run on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.outside import World

from . import cells
from .brokers import killed_and_restarted
from .on_celery import RABBITMQ, RabbitMQ
from .recon import reconcile

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if not Path(RABBITMQ).exists() or shutil.which("epmd") is None:
        pytest.skip("there is no rabbitmq-server here")
    rabbit = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield rabbit
    rabbit.close()


@pytest.mark.parametrize(("effect", "cell", "look"), list(cells.names()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    engine: RabbitMQ, world: World, tmp_path: Path, effect: str, cell: str, look: str, store: str
) -> None:
    cells.play(engine, world, tmp_path, effect, cell, look, store)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(
    engine: RabbitMQ, tmp_path: Path
) -> None:
    reconcile(engine, tmp_path)


def test_a_broker_that_is_killed_loses_no_task_and_doubles_no_write(engine: RabbitMQ, world: World, tmp_path: Path) -> None:
    killed_and_restarted(engine, world, tmp_path, new_worker=False)


def test_the_reconciliation_ends_so_on_postgresql_too(engine: RabbitMQ, tmp_path: Path, postgres_store: str) -> None:
    reconcile(engine, tmp_path, postgres_store)
