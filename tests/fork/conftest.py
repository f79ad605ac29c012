"""Forks through the public API: real SQLite files, a clock that waits turn, and a world that counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_ground import Ground

from doubtless.testing import FakeClock


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A program with writes of both classes on one store; at the end the store has to be sound."""
    ground = Ground(tmp_path, FakeClock())
    yield ground
    ground.end()
