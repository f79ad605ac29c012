"""Compensation through the public API: real SQLite files, a clock that waits turn, and a world that counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from undo_ground import Deploys, World

from doubtless.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def deploy(tmp_path: Path, clock: FakeClock) -> Iterator[Deploys]:
    """Makes apps on one store, each as a new release of the program would; at the end the store has to be sound."""
    deploys = Deploys(tmp_path, clock)
    yield deploys
    deploys.end()


@pytest.fixture
def world() -> World:
    return World()
