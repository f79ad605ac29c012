"""Celery on Redis: `acks_late`, and a visibility timeout that is shorter than the steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.outside import World

from . import cells

pytest.importorskip("redis")

from .on_celery import Redis

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    redis = Redis(tmp_path_factory.mktemp("redis"))
    yield redis
    redis.close()


@pytest.mark.parametrize(("effect", "cell", "look"), list(cells.names()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    engine: Redis, world: World, tmp_path: Path, effect: str, cell: str, look: str
) -> None:
    cells.play(engine, world, tmp_path, effect, cell, look)
