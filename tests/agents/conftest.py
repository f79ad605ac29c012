"""Agents through the public API: real SQLite files, a clock that waits turn, a world that counts, a model that is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents_ground import Releases, World

from doubtless.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def release(tmp_path: Path, clock: FakeClock, world: World) -> Iterator[Releases]:
    """Makes apps on one store, each as a new release of the program would; at the end the store has to be sound."""
    releases = Releases(tmp_path, clock, world)
    yield releases
    releases.end()
