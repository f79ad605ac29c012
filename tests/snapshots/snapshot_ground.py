"""The snapshots' ground: a task of many steps on one store, a world that counts, and hands on the cache itself."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from doubtless import Doubtless
from doubtless.calls import current
from doubtless.passes import Scope
from doubtless.snapshots import Plan, Snapshot
from doubtless.testing import FakeClock

STATE = "tests:1"


class World:
    """What was really done, in a file: it outlives a process that is killed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "world.log"

    def do(self, what: str, number: int) -> dict[str, Any]:
        file = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, f"{what} {number}\n".encode())
        os.close(file)
        return {"id": f"{what}-{number}"}

    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines()) if self.path.exists() else Counter()


class Ground:
    """Apps on one store, each as a new process would open it; `clock` and `world` outlive them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "recon.db"
        self.clock = FakeClock()
        self.world = World(folder)
        self.apps: list[Doubtless] = []
        self.stop_at: int | None = None
        self.done_hook: Callable[[], None] = lambda: None

    def app(self, *, every: int | None = 3, steps: int = 12, hooks: Callable[[str], None] | None = None) -> Doubtless:
        """An app with the task `reconcile`: reads and writes in turn; at `stop_at` its process is stopped with Ctrl-C."""
        app = Doubtless(f"sqlite:///{self.file}", clock=self.clock, namespace="tests", hooks=hooks)
        self.apps.append(app)
        world = self.world

        @app.step(effect="read")
        def look(number: int) -> int:
            world.do("look", number)
            return number * 2

        @app.step(effect="non_idem_write")
        def pay(number: int) -> dict[str, Any]:
            receipt = world.do("pay", number)
            self.done_hook()
            return receipt

        @app.task(snapshot_every=every)
        def reconcile(upto: int = steps) -> list[Any]:
            out: list[Any] = []
            for number in range(upto):
                if number == self.stop_at:
                    raise KeyboardInterrupt
                out.append(pay(number) if number % 2 else look(number))
            return out

        return app

    def stateful(
        self, *, every: int = 4, version: str = STATE, turns: int = 20, hooks: Callable[[str], None] | None = None
    ) -> Doubtless:
        """An app whose task `converse` keeps a state of its own beside the log, as an agent does: a count and a sum."""
        app = self.app(every=None, hooks=hooks)
        look, pay = app.steps["look"], app.steps["pay"]

        @app.task
        def converse(upto: int = turns) -> dict[str, int]:
            scope = current.get()
            assert isinstance(scope, Scope)
            state = {"turns": 0, "sum": 0} if scope.run.restored is None else json.loads(scope.run.restored.state)
            self.began = int(state["turns"])
            for number in range(state["turns"], upto):
                if number == self.stop_at:
                    raise KeyboardInterrupt
                found = look(number=number)
                if number % 2:
                    pay(number=number)
                state = {"turns": number + 1, "sum": state["sum"] + found}
                now = dict(state)
                scope.run.snapshot_state(lambda: json.dumps(now))  # noqa: B023
            return state

        task = app.declared_tasks["converse"]
        task.code = task.code._replace(plan=Plan(every, version))
        return app

    began = -1

    def stopped(self, app: Doubtless, task: str = "reconcile", task_id: str = "t", *, at: int, **params: Any) -> None:
        """Run until the process is stopped before the step `at`."""
        self.stop_at = at
        try:
            app.run(app.declared_tasks[task], task_id=task_id, **params)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the task was not stopped")
        finally:
            self.stop_at = None
            app.close()

    def sql(self, sql: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """What somebody does with the file behind the library's back."""
        db = apsw.Connection(str(self.file))
        try:
            return db.execute(sql, args).fetchall()
        finally:
            db.close()

    def snapshots(self, task_id: str = "t") -> list[Snapshot]:
        return [
            Snapshot._make(row) for row in self.sql("SELECT * FROM snapshots WHERE task_id = ? ORDER BY event_seq", (task_id,))
        ]

    def end(self) -> None:
        for app in self.apps:
            app.close()


def expected(steps: int = 12) -> list[Any]:
    """What the task gives, and what the world has then."""
    return [{"id": f"pay-{n}"} if n % 2 else n * 2 for n in range(steps)]


def once_each(steps: int = 12) -> Counter[str]:
    return Counter(f"{'pay' if n % 2 else 'look'} {n}" for n in range(steps))
