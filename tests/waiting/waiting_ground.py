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


def question(app: Doubtless, name: str | None = None) -> Any:
    """The one open question (of this name)."""
    cases = [case for case in app.inbox().cases if case.kind == "question" and name in (None, case.evidence["name"])]
    assert len(cases) == 1, [case.why for case in app.inbox().cases]
    return cases[0]


def answer(app: Doubtless, given: Any, name: str | None = None, *, by: str = "anna", why: str = "looked") -> Any:
    """Answer the one open question (of this name)."""
    case = question(app, name)
    return app.settle(case.id, given, by=by, why=why, shown=case.hash)


def task_of(app: Doubtless, body: Callable[[], Any], *, asynchronous: bool, name: str = "task") -> Any:
    """A task of this body, whose waits are written for an async task; in a sync one they are waited for in place."""
    if asynchronous:

        @app.task(name=name)
        async def atask() -> Any:
            return await body()

        return atask

    @app.task(name=name)
    def task() -> Any:
        return through(body())

    return task


def through(coroutine: Any) -> Any:
    """Run a coroutine whose awaits are all of values that are there already (`got`)."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it awaits something that a sync task does not have")


async def got(waited: Any) -> Any:
    """What a wait gave, in a task of either kind: an awaitable in an async one, the value itself in a sync one."""
    return await waited if hasattr(waited, "__await__") else waited
