"""One world for all tests here, and each engine's servers once: started by the tests, on free ports, with their data in a
temporary folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres.server import Server

from crash.outside import World
from doubtless.store.pg.migrate import migrate

from . import cells


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world") / "world.db") as running:
        yield running


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the cells' log is: ``STORE=postgres make engines`` plays them on PostgreSQL; empty: on SQLite."""
    if os.environ.get("STORE", "sqlite") != "postgres":
        return ""
    url: str = request.getfixturevalue("postgres_server").url(mark=str(tmp_path / "mark"), lease=cells.LEASE)
    migrate(url, state=str(tmp_path), namespace=b"crash")
    return url


@pytest.fixture
def postgres_store(postgres_server: Server, tmp_path: Path) -> str:
    """The URL of a store on PostgreSQL, with leases that end soon after their owner."""
    url = postgres_server.url(mark=str(tmp_path / "mark"), lease="PT2S")
    migrate(url, state=str(tmp_path))
    return url
