"""One world for all crash tests of a process: its effects are counted by office, and each test has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .outside import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world") / "world.db") as running:
        yield running
