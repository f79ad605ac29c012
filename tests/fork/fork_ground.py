"""What the tests of forks share: a program whose releases run on one store, and a world that counts its effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubtless import Answer, Deny, Doubtless, NeedsHuman, injected
from doubtless.events import Event
from doubtless.testing import FakeClock


class Steps:
    """The steps of one release, for its task's code."""

    app: Doubtless
    read: Any
    pay: Any
    put: Any
    tell: Any


class Ground:
    """A store, the effects that were really had on the other side, and releases of a program that uses both."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.url = f"sqlite:///{folder / 'fork.db'}"
        self.clock = clock
        self.apps: list[Doubtless] = []
        self.effects: list[tuple[str, Any, str]] = []
        self.reads: Counter[str] = Counter()
        self.undone: list[Any] = []
        self.raises: BaseException | None = None

    def release(self, code: Callable[[Steps], Any], **options: Any) -> tuple[Doubtless, Any]:
        """A release whose task runs this code."""
        app = Doubtless(self.url, clock=self.clock, namespace="forks", **options)
        self.apps.append(app)
        have = Steps()
        have.app = app

        def do(name: str, what: Any, key: str) -> dict[str, Any]:
            self.effects.append((name, what, key))
            if self.raises is not None and name == "pay":
                raise self.raises
            return {"id": len(self.effects), "what": what}

        @app.step(effect="read")
        def read(what: str) -> int:
            self.reads[what] += 1
            return self.reads[what]

        def refund(result: dict[str, Any]) -> dict[str, Any]:
            self.undone.append(result)
            return {"refunded": result["id"]}

        @app.step(effect="non_idem_write", compensate=refund)
        def pay(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return do("pay", what, idempotency_key)

        @app.step(effect="idem_write")
        def put(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return do("put", what, idempotency_key)

        @app.step(effect="non_idem_write")
        def tell(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return do("tell", what, idempotency_key)

        have.read, have.pay, have.put, have.tell = read, pay, put, tell

        @app.task
        def work() -> Any:
            return code(have)

        return app, work

    def n(self, name: str, what: Any = None) -> int:
        """How many effects of a name (and a param) there are."""
        return sum(one == name and what in (None, about) for one, about, _ in self.effects)

    def end(self) -> None:
        if self.apps and self.apps[0]._store is not None:
            assert self.apps[0].verify() == []
        for app in self.apps:
            app.close()


def seven(have: Steps) -> list[Any]:
    """The straight way: places 1 to 5."""
    return [have.read("a"), have.pay("first"), have.read("b"), have.put("second"), have.tell("third")]


def needs_human(call: Callable[[], Any]) -> NeedsHuman:
    with pytest.raises(NeedsHuman) as caught:
        call()
    return caught.value


def question(app: Doubtless) -> Any:
    """The one open question."""
    cases = app.inbox().cases
    assert [case.kind for case in cases] == ["question"], [(case.kind, case.why) for case in cases]
    return cases[0]


def answer(app: Doubtless, value: str) -> None:
    """Answer the one open question, or deny it."""
    case = question(app)
    app.settle(case.id, Deny() if value == "deny" else Answer(value), by="anna", why="looked", shown=case.hash)


def log_of(app: Doubtless, task_id: str) -> list[Event]:
    return app.store.rows(task_id)


def story(app: Doubtless, task_id: str) -> dict[str, tuple[str, str, int]]:
    """Of each step: its name, its status, and how often its function was called."""
    return {step.path: (step.name, step.status, step.calls) for step in app.show(task_id).steps}
