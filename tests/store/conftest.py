"""The conformance suite's fixtures: stores of each back end on one place, and other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_ground import Begin, Child, MakeStore, TurnClock, Writer, accepted

from doubtless.store.sqlite import SqliteStore


@pytest.fixture
def clock() -> TurnClock:
    return TurnClock()


@pytest.fixture(params=["sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: TurnClock) -> Iterator[MakeStore]:
    """Makes stores on one place, each as another process of the same host would open it."""
    made: list[SqliteStore] = []

    def make(**options: object) -> SqliteStore:
        store = SqliteStore(str(tmp_path / "recon.db"), clock=clock, **options)  # type: ignore[arg-type]
        made.append(store)
        return store

    yield make
    for store in made:
        store._owner.tasks.clear()
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> SqliteStore:
    return make_store()


@pytest.fixture
def begin(store: SqliteStore, clock: TurnClock) -> Begin:
    """Accepts and claims a task, and gives its owner's hand."""

    def start(task_id: str = "recon-1") -> Writer:
        assert store.accept(accepted(task_id, clock())) is None
        return Writer(store, task_id, store.claim(task_id))

    return start


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts child processes on the store of `make_store`; what still runs at the end is killed."""
    children: list[Child] = []

    def start(*args: str) -> Child:
        children.append(Child(str(tmp_path / "recon.db"), *args))
        return children[-1]

    yield start
    for one in children:
        one.end()
