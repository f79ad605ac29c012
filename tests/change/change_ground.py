"""What the tests of changed code share: releases of a program, what they really did, and where they stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubtless import Doubtless, NeedsHuman
from doubtless.testing import FakeClock


class Stop(Exception):
    """This release ends here: the task parks, and the next release goes on."""


class Release:
    """One release: its app, its task, and steps by name: ``release.step("pay", effect=…)``."""

    def __init__(self, app: Doubtless, did: list[tuple[str, Any]]) -> None:
        self.app = app
        self.did = did
        self.task: Any = None
        self.raises: BaseException | None = None

    def step(self, name: str, *, effect: Any = "non_idem_write", **options: Any) -> Any:
        """Declare a step that takes `what` and gives it back."""

        def call(what: Any = None) -> Any:
            self.did.append((name, what))
            if self.raises is not None:
                raise self.raises
            return what

        return self.app.step(effect=effect, name=name, **options)(call)

    def code(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the task."""

        def body() -> Any:
            return fn()

        async def abody() -> Any:
            return await fn()

        from inspect import iscoroutinefunction

        self.task = self.app.task(name="work")(abody if iscoroutinefunction(fn) else body)
        return fn

    def run(self, task_id: str = "t") -> Any:
        return self.app.run(self.task, task_id)

    def stops(self, task_id: str = "t") -> NeedsHuman:
        with pytest.raises(NeedsHuman) as caught:
            self.run(task_id)
        return caught.value


class Releases:
    """A store, and one release after the other on it."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.url = f"sqlite:///{folder / 'change.db'}"
        self.clock = clock
        self.did: list[tuple[str, Any]] = []
        self.apps: list[Doubtless] = []

    def __call__(self) -> Release:
        app = Doubtless(self.url, clock=self.clock, namespace="changes")
        self.apps.append(app)
        return Release(app, self.did)

    def end(self) -> None:
        if self.apps and self.apps[0]._store is not None:
            assert self.apps[0].verify() == []
        for app in self.apps:
            app.close()
