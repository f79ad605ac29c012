"""The ground of the bad-input tests: a clock to turn, a folder whose every byte is compared, and apps on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_ground import Clock, MakeApp, Trap
from store_places import Place, PostgresPlace, SqlitePlace, forget_claims

from doubtless import Doubtless


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store lies; nothing else does."""
    place = tmp_path / "place"
    place.mkdir()
    return place


@pytest.fixture(scope="session")
def initialized() -> Iterator[str]:
    """The directory of a PostgreSQL server that has never run; others begin as copies of it."""
    from tests.postgres.server import MISSING, Server, servers

    if not servers():
        pytest.skip(MISSING)
    server = Server()
    yield server.data
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, folder: Path, tmp_path: Path, clock: Clock) -> Iterator[Place]:
    """A store of either kind, which can be put back to an earlier state."""
    if request.param == "sqlite":
        yield SqlitePlace(folder, tmp_path, clock)
        return
    from tests.postgres.server import Server

    server = Server(data=request.getfixturevalue("initialized")).start()
    try:
        yield PostgresPlace(server, tmp_path, clock)
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("DOUBTLESS_STORE", raising=False)
    monkeypatch.chdir(folder)


@pytest.fixture
def make_app(clock: Clock) -> Iterator[MakeApp]:
    made: list[Doubtless] = []

    def make(url: str | None = "sqlite:///bad.db", **options: object) -> Doubtless:
        app = Doubtless(url, clock=clock, **options)  # type: ignore[arg-type]
        made.append(app)
        return app

    yield make
    for app in made:
        if app._store is not None:
            forget_claims(app.store)
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Doubtless:
    return make_app()


@pytest.fixture
def trap(app: Doubtless, folder: Path) -> Trap:
    return Trap(app, folder)
