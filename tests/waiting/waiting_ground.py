"""What the tests of time and events share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from doubtless import Doubtless
from doubtless.events import Event
from doubtless.testing import FakeClock


class Deploys:
    """Apps on one store. `deploy()` is a new release of the program: nothing of the one before is in its memory."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.url = f"sqlite:///{folder / 'tasks.db'}"
        self.clock = clock
        self.apps: list[Doubtless] = []

    def __call__(self, **options: Any) -> Doubtless:
        app = Doubtless(self.url, clock=self.clock, namespace="tests", **options)
        self.apps.append(app)
        return app

    def end(self) -> None:
        if self.apps and self.apps[0]._store is not None:
            assert self.apps[0].verify() == []
        for app in self.apps:
            app.close()


def rows(app: Doubtless, task_id: str, path: str | None = None) -> list[Event]:
    """The task's rows, of one step with `path`."""
    return [row for row in app.store.rows(task_id) if path is None or row.path == path]


def kinds(app: Doubtless, task_id: str, path: str | None = None) -> list[str]:
    """The kinds of the task's rows, in order."""
    return [row.kind for row in rows(app, task_id, path)]


def raised(call: Callable[..., Any], *args: Any, **kwargs: Any) -> BaseException | None:
    """What the call raises."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return error
    return None
