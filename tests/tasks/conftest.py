"""The task engine through the public API: real SQLite files, a clock that waits turn, and a world that counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tasks_ground import Child, Deploys, World, migrated, program

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


@pytest.fixture(params=["sqlite", "postgres"])
def everywhere(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Deploys]:
    """As `deploy`, on a store of each kind."""
    deploys = Deploys(tmp_path, clock, None if request.param == "sqlite" else migrated(request, tmp_path))
    yield deploys
    deploys.end()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[type[Child]]:
    """Starts programs in processes of their own, in `tmp_path`; what still runs at the end is killed."""

    class Here(Child):
        folder = tmp_path
        started: list[Child] = []

    (tmp_path / "program.py").write_text(program())
    yield Here
    for one in Here.started:
        one.end()
