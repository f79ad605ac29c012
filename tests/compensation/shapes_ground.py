"""Tasks of every shape that fail after effects, and a process that can be killed at each of its write points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from undo_ground import World

from doubtless import Abort, Doubtless, NeedsHuman, TaskFailed
from doubtless.events import Event
from doubtless.store import open_store
from doubtless.testing import FakeClock, Killed
from doubtless.testing.life import MortalStore

SHAPES = ("one step", "three steps", "parallel group", "child tasks", "undone by a task")


class CountedStore(MortalStore):
    """A store that also counts what is added without an epoch."""

    def __init__(self, store: Any, at: Callable[[str], None]) -> None:
        super().__init__(store, lambda when, events: at(f"{when} {events[-1].kind}"))
        self._at = at

    def add(self, task_id: str, drafts: Sequence[Event], **options: Any) -> list[Event]:
        self.check()
        self._at(f"before {drafts[-1].kind}")
        rows = self._store.add(task_id, drafts, **options)
        self._at(f"after {drafts[-1].kind}")
        return rows


class Program:
    """One app whose process dies at the `kill_at`-th of its points (commits and calls), and is started again.

    `undo`: options of the withdrawal; `create`: of what it undoes; `more`: declares what the task does after its effects.
    """

    def __init__(
        self, folder: Path, world: World, shape: str, *, kill_at: int | None = None, undo: dict[str, Any] | None = None,
        more: Callable[[Doubtless], Callable[[], Any]] | None = None, **create: Any,
    ) -> None:  # fmt: skip
        self.world, self.shape, self.kill_at = world, shape, kill_at
        self.undo, self.more = undo or {}, more
        self.points: list[str] = []
        self.clock = FakeClock()
        self.folder = folder
        self.store: CountedStore | None = None
        self.app, self.task = self.build(True, **create)

    def build(self, withdrawn: bool, **create: Any) -> tuple[Doubtless, Any]:
        """The program as a deploy has it; `withdrawn`: with the code that undoes."""
        app, world = Doubtless(f"sqlite:///{self.folder / 'p.db'}", clock=self.clock, namespace="tests"), self.world

        def opened(url: str, **options: Any) -> Any:
            self.store = CountedStore(open_store(url, **options), self.at)
            return self.store

        app._open = opened
        sure = {"absent_after": "PT1M", "on_absent": "retry", "attempts": 9}

        def found(name: str) -> dict[str, Any] | None:
            return {"sheet": name} if name in world.made else None

        def withdraw(name: str) -> Any:
            self.at(f"call withdraw {name}")
            said = world.withdraw(name)
            self.at(f"called withdraw {name}")
            return said

        by: Any = {"compensate": "other"}
        if withdrawn:
            step: Any = app.step(**{"effect": "non_idem_write", "query": lambda name: world.find(name), **sure, **self.undo})(withdraw)
            by = {"compensate": "withdraw"}
            if self.shape == "undone by a task":

                @app.task
                def withdraw_by_task(name: str) -> Any:
                    return step(name=name)

                by = {"compensate": "withdraw_by_task"}
        else:
            app.step(effect="non_idem_write", name="other")(lambda name: None)

        @app.step(effect="non_idem_write", query=found, **sure, **by, **create)
        def make(name: str) -> dict[str, Any]:
            self.at(f"call make {name}")
            made = world.make(name)
            self.at(f"called make {name}")
            return made

        @app.task
        def child(name: str) -> str:
            make(name=f"{name}1")
            make(name=f"{name}2")
            return name

        after = self.more(app) if self.more is not None else None

        @app.task
        def task() -> None:
            if self.shape == "parallel group":
                make(name="s0")
                app.map(lambda name: make(name=name), ["a", "b", "c"], concurrency=1)
            elif self.shape == "child tasks":
                make(name="s0")
                child(name="c")
                child(name="d")
            else:
                for number in range(1 if self.shape == "one step" else 3):
                    make(name=f"s{number}")
            if after is not None:
                after()
            raise Abort("no")

        return app, task

    def at(self, point: str) -> None:
        """A point is reached; the process may die there."""
        self.points.append(point)
        if self.kill_at is not None and len(self.points) == self.kill_at:
            self.die(point)

    def die(self, point: str) -> NoReturn:
        store, self.app._store, self.app._runtime = self.store, None, None
        assert store is not None
        store.die(f"killed {point}")
        raise Killed(point)

    def run(self) -> TaskFailed | NeedsHuman:
        """Run it, and again where it was killed, until it ends or needs a person."""
        for _ in range(3):
            try:
                self.app.run(self.task, "t")
            except Killed:
                continue
            except (TaskFailed, NeedsHuman) as error:
                return error
        raise AssertionError("it does not come to an end")

    def check(self) -> None:
        """What holds at any moment: each obligation is undone at most once, and none is said to be undone that is not."""
        undone = self.world.undone
        assert len(undone) == len(set(undone)), undone
        for head in self.app.tasks():
            steps = {step.path: step for step in self.app.show(head.task_id).steps}
            for path, step in steps.items():
                if step.status == "compensated" and step.child is None:
                    assert step.params["name"] in [*undone, *self.by_hand], (head.task_id, path)
                    assert steps[f"~{path}"].status == "done"
        assert self.app.verify() == []

    by_hand: tuple[str, ...] = ()


__all__ = ["SHAPES", "Program"]
