"""Changes of code through the public API: releases of one program on one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from change_ground import Releases

from doubtless.testing import FakeClock


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[Releases]:
    """A store, and the releases that run on it; at the end the store has to be sound."""
    releases = Releases(tmp_path, FakeClock())
    yield releases
    releases.end()
