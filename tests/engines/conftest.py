"""One world for all tests here, and each engine's servers once: started by the tests, on free ports, with their data in a
temporary folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crash.outside import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world") / "world.db") as running:
        yield running
