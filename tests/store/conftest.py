"""The conformance suite's fixtures: stores of each back end on one place, and other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from store_ground import Begin, Child, MakeStore, TurnClock, Writer, accepted, forget_claims

from doubtless.store.base import Store
from doubtless.store.pg.migrate import migrate
from doubtless.store.postgres import PostgresStore
from doubtless.store.sqlite import SqliteStore

BACK_ENDS = ("sqlite", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that makes a store is run on each back end; those of files that begin with test_sqlite on SQLite."""
    if "make_store" in metafunc.fixturenames and not any(
        "make_store" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    ):
        only = metafunc.module.__name__.rpartition(".")[2].startswith("test_sqlite")
        metafunc.parametrize("make_store", BACK_ENDS[:1] if only else BACK_ENDS, indirect=True)


@pytest.fixture
def clock() -> TurnClock:
    return TurnClock()


@pytest.fixture
def place(request: pytest.FixtureRequest, make_store: MakeStore) -> str:
    """What another process is given to open the same store."""
    return make_store.place  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: TurnClock) -> Iterator[MakeStore]:
    """Makes stores on one place, each as another process of the same host would open it."""
    made: list[Any] = []
    if request.param == "sqlite":
        place = str(tmp_path / "recon.db")
    else:
        server = request.getfixturevalue("postgres_server")
        place = server.url(mark=str(tmp_path / "mark"), connections="4")
        migrate(place, state=str(tmp_path))

    def make(**options: Any) -> Store:
        store: Store
        if request.param == "sqlite":
            store = SqliteStore(place, clock=clock, **options)
        else:
            store = PostgresStore(place, clock=clock, state=str(tmp_path), own_clock=True, heartbeat=False, **options)
        made.append(store)
        return store

    make.place = place  # type: ignore[attr-defined]
    yield make
    for store in made:
        forget_claims(store)
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


@pytest.fixture
def expire(store: Store, clock: TurnClock) -> Callable[[], None]:
    """Lets the leases of owners that are gone run out; with locks nothing has to pass."""

    def pass_by() -> None:
        if isinstance(store, PostgresStore):
            clock.wall += 2 * store.place.lease_us

    return pass_by


@pytest.fixture
def tamper(store: Store) -> Callable[[str], None]:
    """Runs a statement behind the store's back, as one who may do everything."""

    def run(statement: str) -> None:
        if isinstance(store, SqliteStore):
            assert store._link._connection is not None
            store._link._connection.execute(statement)
            return
        assert isinstance(store, PostgresStore)
        with psycopg.connect(store.place.conninfo, options=f"-c search_path={store.place.schema}") as connection:
            connection.execute(statement.encode())

    return run


@pytest.fixture
def begin(store: Store, clock: TurnClock) -> Begin:
    """Accepts and claims a task, and gives its owner's hand."""

    def start(task_id: str = "recon-1") -> Writer:
        assert store.accept(accepted(task_id, clock())) is None
        return Writer(store, task_id, store.claim(task_id))

    return start


@pytest.fixture
def child(place: str, clock: TurnClock) -> Iterator[Callable[..., Child]]:
    """Starts child processes on the store of `make_store`; what still runs at the end is killed."""
    children: list[Child] = []

    def start(*args: str) -> Child:
        children.append(Child(clock.wall, place, *args))
        return children[-1]

    yield start
    for one in children:
        one.end()


REFUSED = (apsw.Error, psycopg.Error)
