"""What the compensation tests stand on: an office that makes sheets and takes them back, and counts both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doubtless import Doubtless, Rejected, TaskFailed, injected
from doubtless.testing import FakeClock

HOW = Callable[[Callable[[], dict[str, Any]]], Any]


class Deploys:
    """Makes apps on one store and one clock."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.url = f"sqlite:///{folder / 'undo.db'}"
        self.clock = clock
        self.apps: list[Doubtless] = []

    def __call__(self, **options: Any) -> Doubtless:
        app = Doubtless(self.url, clock=self.clock, namespace="tests", **options)
        self.apps.append(app)
        return app

    def end(self) -> None:
        if any(app._store is not None for app in self.apps):
            assert self.apps[-1].verify() == []
        for app in self.apps:
            app.close()


class World:
    """The other side: what was made, what was taken back, how often, in which order. Thread-safe.

    `goes` says how the next withdrawals go: each is given the withdrawal itself, to do or not; then they go well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: list[str] = []
        self.undone: list[str] = []
        self.calls: list[str] = []
        self.goes: list[HOW] = []
        self.params: list[dict[str, Any]] = []

    def make(self, name: str) -> dict[str, Any]:
        with self._lock:
            self.made.append(name)
            return {"sheet": name, "number": len(self.made)}

    def withdraw(self, name: str, **params: Any) -> Any:
        """One withdrawal, as the next `goes` says."""
        with self._lock:
            self.calls.append(name)
            self.params.append(params)
            how = self.goes.pop(0) if self.goes else None
        return self.undo(name) if how is None else how(lambda: self.undo(name))

    def undo(self, name: str) -> dict[str, Any]:
        with self._lock:
            self.undone.append(name)
            return {"withdrawn": name}

    def find(self, name: str) -> dict[str, Any] | None:
        """What a look-back finds of a withdrawal."""
        with self._lock:
            return {"withdrawn": name} if name in self.undone else None

    @property
    def standing(self) -> list[str]:
        """What was made and not taken back."""
        return [name for name in self.made if name not in self.undone]


class Office:
    """An app whose step `create` is undone by `withdraw`, with a task that makes so many sheets and then fails.

    `policy`: options of the withdrawal; `create`: options of the step that it undoes; `how`: the task's own.
    """

    def __init__(
        self, app: Doubtless, world: World, *, query: bool = False, create: dict[str, Any] | None = None, on_failure: str = "compensate",
        withdrawn: bool = True, **policy: Any,
    ) -> None:  # fmt: skip
        self.app, self.world = app, world
        policy = {"effect": "non_idem_write", "backoff": "PT1S", **policy}
        if query:
            policy["query"] = lambda name: world.find(name)

        if withdrawn:

            @app.step(**policy)
            def withdraw(name: str, result: dict[str, Any], idempotency_key: str = injected()) -> Any:
                return world.withdraw(name, result=result, key=idempotency_key)

        elif create is None:
            create = {"compensate": "other"}

            @app.step(effect="non_idem_write")
            def other(name: str) -> Any:
                raise AssertionError("the intent names another compensation")

        @app.step(**{"effect": "non_idem_write", "compensate": "withdraw", **(create or {})})
        def make(name: str) -> dict[str, Any]:
            return world.make(name)

        @app.step(effect="non_idem_write")
        def submit() -> dict[str, Any]:
            raise Rejected("422", "refused")

        @app.task(on_failure=on_failure)  # type: ignore[call-overload,untyped-decorator]
        def task(count: int = 1) -> None:
            for number in range(1, count + 1):
                make(name=f"s{number}")
            submit()

        self.task = task

    def run(self, count: int = 1, **options: Any) -> Any:
        return self.app.run(self.task, task_id="t", count=count, **options)

    def failed(self, count: int = 1) -> TaskFailed:
        """The end that the run comes to; the same when it is run again."""
        errors = []
        for _ in range(2):
            try:
                self.run(count)
            except TaskFailed as error:
                errors.append(error)
        assert len(errors) == 2
        assert (str(errors[0]), errors[0].context) == (str(errors[1]), errors[1].context)
        return errors[0]


def statuses(app: Doubtless, task_id: str = "t") -> dict[str, str]:
    """The steps' statuses by path."""
    return {step.path: step.status for step in app.show(task_id).steps}


def only_case(app: Doubtless) -> Any:
    """The one open case."""
    cases = app.inbox().cases
    assert len(cases) == 1, [(case.kind, case.why) for case in cases]
    return cases[0]


def settle(app: Doubtless, answer: Any) -> Any:
    """Answer the one open case."""
    case = only_case(app)
    return app.settle(case.id, answer, by="anna", why="looked", shown=case.hash)
