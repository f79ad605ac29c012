"""The ground of the people tests: a clock to turn, apps on real SQLite files, and a payment that can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from people_ground import Child, Clock, Desk, MakeApp

from doubtless import Doubtless


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/people.db"


@pytest.fixture
def make_app(url: str, clock: Clock) -> Iterator[MakeApp]:
    """Makes apps on one store; each as another program of this host would have it, on the same clock."""
    made: list[Doubtless] = []

    def make(**options: object) -> Doubtless:
        app = Doubtless(url, clock=clock, namespace="people", **options)  # type: ignore[arg-type]
        made.append(app)
        return app

    yield make
    for app in made:
        if app._store is not None:
            app.store._owner.tasks.clear()  # type: ignore[attr-defined]
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Doubtless:
    return make_app()


@pytest.fixture
def make_desk(make_app: MakeApp) -> Callable[..., Desk]:
    """Makes an app with one write, `pay`, and a task that calls it."""

    def make(app_options: dict[str, object] | None = None, **policy: object) -> Desk:
        return Desk(make_app(**(app_options or {})), **policy)

    return make


@pytest.fixture
def child(url: str) -> Iterator[Callable[..., Child]]:
    """Starts other processes on the same store; what still runs at the end is killed."""
    children: list[Child] = []

    def start(*args: str) -> Child:
        children.append(Child(url, *args))
        return children[-1]

    yield start
    for one in children:
        one.end()
