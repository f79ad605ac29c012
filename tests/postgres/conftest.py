"""Stores, apps and other processes on a PostgreSQL server of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres.server import Server

from doubtless import Doubtless
from doubtless.store.pg.migrate import migrate
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock


@pytest.fixture
def server(postgres_server: Server) -> Server:
    return postgres_server


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    """A store of this test's own, migrated."""
    made = server.url(mark=str(tmp_path / "mark"))
    migrate(made, state=str(tmp_path))
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(auto_advance=False)


Open = Callable[..., PostgresStore]


@pytest.fixture
def open_store(url: str, clock: FakeClock, tmp_path: Path) -> Iterator[Open]:
    """Opens the store as a process would; on a clock that the test turns, its leases renewed by hand."""
    made: list[PostgresStore] = []

    def make(where: str | None = None, **options: Any) -> PostgresStore:
        said = {"clock": clock.now, "own_clock": True, "heartbeat": False, "state": str(tmp_path), **options}
        made.append(PostgresStore(where or url, **said))
        return made[-1]

    yield make
    for store in made:
        store._leases.held.clear()
        store.close()


@pytest.fixture
def make_app(url: str) -> Iterator[Callable[..., Doubtless]]:
    """Apps on the store."""
    made: list[Doubtless] = []

    def make(where: str | None = None, **options: Any) -> Doubtless:
        made.append(Doubtless(where or url, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()
