"""Sessions through the public API: real SQLite files, a host that is killed, and an other side that counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guests_ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """One store and one other side; at the end the store has to be sound."""
    ground = Ground(tmp_path)
    yield ground
    ground.end()
