"""What the tests of agents share: a program with steps, a world that counts, and a model that plays a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from doubtless import Doubtless, Finish, State, StepCall, Turn, injected
from doubtless.events import Event
from doubtless.testing import FakeClock

Line = Turn | Finish | Exception | Callable[[State], Any]


class World:
    """The other side: what it really did, by name. `lose` makes it do the next one and give no answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: list[tuple[str, Any, str | None]] = []
        self.lose: set[Any] = set()

    def do(self, name: str, what: Any = None, key: str | None = None) -> dict[str, Any]:
        with self._lock:
            self.done.append((name, what, key))
            receipt = {"id": len(self.done), "name": name, "what": what}
            lost = isinstance(what, str) and what in self.lose
            self.lose -= {what} if lost else set()
        if lost:
            raise ConnectionResetError("the reply was lost")
        return receipt

    def n(self, name: str | None = None, what: Any = None) -> int:
        with self._lock:
            return sum((name is None or one == name) and (what is None or it == what) for one, it, _ in self.done)

    def find(self, name: str, key: str) -> dict[str, Any] | None:
        with self._lock:
            for number, (one, what, sent) in enumerate(self.done, 1):
                if one == name and sent == key:
                    return {"id": number, "name": one, "what": what}
        return None


class Script:
    """A model that plays its lines in order, by the number of choices so far; it counts how often it was asked, and for what."""

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.asked: list[int] = []
        self.states: list[State] = []

    def __call__(self, state: State) -> Any:
        self.asked.append(state.choices)
        self.states.append(state)
        line = self.lines[state.choices]
        if isinstance(line, Exception):
            raise line
        return line(state) if callable(line) else line


def asynchronous(script: Script) -> Callable[[State], Any]:
    """The same model, asked on an event loop."""

    async def choose(state: State) -> Any:
        return script(state)

    return choose


def call(name: str, call_id: str | None = None, /, **params: Any) -> StepCall:
    return StepCall(name, params, call_id)


def turn(*calls: StepCall, memo: Any = None) -> Turn:
    return Turn(list(calls), memo)


class Releases:
    """Apps on one store with the same steps. Calling it is a new release: nothing of the one before is in its memory."""

    def __init__(self, folder: Path, clock: FakeClock, world: World) -> None:
        self.url = f"sqlite:///{folder / 'agents.db'}"
        self.clock = clock
        self.world = world
        self.apps: list[Doubtless] = []

    def __call__(self, **options: Any) -> Doubtless:
        app = Doubtless(self.url, clock=self.clock, namespace="tests", **options)
        declare(app, self.world)
        self.apps.append(app)
        return app

    def end(self) -> None:
        if self.apps and self.apps[0]._store is not None:
            assert self.apps[0].verify() == []
        for app in self.apps:
            app.close()


def declare(app: Doubtless, world: World) -> None:
    """A read; a write that can be asked; one that cannot; one that takes a credential."""

    @app.step(effect="read", cost=1, backoff=0)
    def look(day: str) -> list[int]:
        """Look at a day."""
        world.do("look", day)
        return [1, 2]

    def find(idempotency_key: str) -> dict[str, Any] | None:
        return world.find("pay", idempotency_key)

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", backoff=0)
    def pay(order: str, amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
        """Pay an order.

        Only when somebody has asked for it.
        """
        return world.do("pay", order, idempotency_key)

    @app.step(effect="non_idem_write")
    def send(to: str, text: str = "hello") -> dict[str, Any]:
        return world.do("send", to)


def rows(app: Doubtless, task_id: str, name: str | None = None) -> list[Event]:
    return [row for row in app.store.rows(task_id) if name is None or row.step_name == name]


def places(app: Doubtless, task_id: str) -> list[tuple[str, str, str]]:
    """The task's steps: place, name, status."""
    return [(step.path, step.name, step.status) for step in app.show(task_id).steps]


def answer(app: Doubtless, it: Any, *, kind: str | None = None) -> Any:
    """Answer the one open case (of this kind)."""
    cases = [case for case in app.inbox().cases if kind is None or case.kind == kind]
    assert len(cases) == 1, [(case.kind, case.why) for case in cases]
    return app.settle(cases[0].id, it, by="anna", why="looked", shown=cases[0].hash)


def statuses(facts: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(fact["call_id"], fact["status"]) for fact in facts]
