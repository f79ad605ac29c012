"""Tasks of every shape that fail after their effects and undo them, against the counting world: one step, three, a parallel
group, child tasks, and steps that a task undoes. What goes wrong is the world's affair, or the deploy's.

    python -m crash.undoing        runs and commands, each in a process of its own (see `Nursery`)
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from doubtless import Abort, AlreadyUndone, Case, Doubtless, NeedsHuman, NotUndoable, Pending, Several, Task, TaskFailed, injected
from doubtless.events import Kind

from .clock import TurnedClock
from .program import Client, Scenario
from .sweep import Points

CELL = "CRASH_UNDO_CELL"
TASK = "t"
DONE, NEEDS_HUMAN, ENDED = 0, 3, 4

FIRST_UNDONE = {
    "one step": "s0", "three steps": "s2", "parallel group": "c", "child tasks": "d2", "undone by a task": "s2",
}  # fmt: skip
"""The shapes, and what each of them has to undo first: what it made last."""
SHAPES = tuple(FIRST_UNDONE)
MADE = {
    "one step": ["s0"], "three steps": ["s0", "s1", "s2"], "parallel group": ["s0", "a", "b", "c"],
    "child tasks": ["s0", "c1", "c2", "d1", "d2"], "undone by a task": ["s0", "s1", "s2"],
}  # fmt: skip
DEADLINE_S = 600
PATIENCE_S = 60
"""A process that takes so many seconds hangs: it says where, and ends."""


class Cell(NamedTuple):
    """What a process needs to know to be this program. `gone`: a deploy has lost the code that undoes."""

    folder: str
    port: int
    office: str
    shape: str
    trouble: str
    gone: bool = False

    @property
    def target(self) -> str:
        """What the trouble is with."""
        return FIRST_UNDONE[self.shape]

    @property
    def clock(self) -> TurnedClock:
        return TurnedClock(Path(self.folder) / "clock")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def dump(self) -> str:
        return json.dumps(self._asdict())


class Office(Client):
    """How the program talks to its office: one request for each call, and the accidents that are on this side."""

    def __init__(self, cell: Cell, app: Doubtless) -> None:
        super().__init__(Scenario(cell.folder, cell.port, cell.office, "non_idem_write"))
        self.cell, self.app, self.late = cell, app, False

    def post(self, reference: str, key: str, *, may_be_late: bool = False) -> dict[str, Any]:
        """One effect. Where it is to be late, the world holds the request, and this process's timeout passes meanwhile."""
        late = may_be_late and self.expected(reference)
        if late:
            self.loss, self.late = "overrun", True
        made: dict[str, Any] = self.call("POST", "effects", {"reference": reference}, key, loses=late)
        return made

    def expected(self, reference: str) -> bool:
        """Whether the world is going to hold a request for this reference."""
        return bool(self.call("POST", "control/left", {"reference": reference})["left"])

    def land(self) -> None:
        """What the world holds lands now; where its caller still lives, its success is in the log when this returns."""
        landed = self.call("POST", "control/land", {})["landed"]
        if not (landed and self.late):
            return
        for _ in range(10_000):
            rows = [row for head in self.app.tasks() for row in self.app.store.rows(head.task_id)]
            if any(row.kind == Kind.EVIDENCE_STORED for row in rows):
                return
            time.sleep(0.001)
        raise AssertionError("a late success is no evidence")


def undone(reference: str) -> str:
    """Under which reference the world counts that something is undone."""
    return f"undo {reference}"


class Actions:
    """The steps' functions."""

    def __init__(self, cell: Cell, office: Office) -> None:
        self.cell, self.office = cell, office

    def make(self, reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return self.office.post(reference, idempotency_key)

    def make_late(self, reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return self.office.post(reference, idempotency_key, may_be_late=True)

    def withdraw(self, reference: str, idempotency_key: str = injected()) -> dict[str, Any] | None:
        cell = self.cell
        if cell.trouble == "late write, given up":
            self.office.land()
        try:
            made = self.office.post(undone(reference), idempotency_key, may_be_late=cell.trouble == "late undo")
        except OSError as error:
            if "already done" in str(error):
                raise AlreadyUndone("by a colleague") from error
            if "processed" in str(error):
                raise NotUndoable("processed") from error
            if cell.trouble == "shows nothing":
                return None  # a client that swallows what went wrong, and has shown nothing
            raise
        return made

    def find(self, idempotency_key: str) -> dict[str, Any] | Several | None:
        """What bears the key. What is late, and was not there yet, lands before this answers."""
        items = self.office.find(idempotency_key)
        if not items and self.cell.trouble == "late undo":
            self.office.land()
        return Several(items) if len(items) > 1 else items[0] if items else None


def nobody() -> None:
    """Nobody is there to be asked."""


class Program(NamedTuple):
    """The app, its task, and how they talk to the world."""

    app: Doubtless
    task: Task[..., Any]
    office: Office


def build(cell: Cell, points: Points | None = None, *, read_only: bool = False, ask: Callable[[], None] = nobody) -> Program:
    """The program as a deploy has it; with points, killed where they say. `ask`: a person is asked, and has answered."""
    app = Doubtless(cell.url, clock=cell.clock, namespace="undo", hooks=points, read_only=read_only)
    around: Callable[[Any], Any] = points.around if points is not None else lambda fn: fn
    office = Office(cell, app)
    do = Actions(cell, office)
    timeout = "PT0.2S" if cell.trouble.startswith("late") else "PT10S"
    sure: dict[str, Any] = {
        "effect": "non_idem_write", "query": around(do.find), "absent_after": "PT1M", "on_absent": "retry", "attempts": 9,
        "timeout": timeout,
    }  # fmt: skip
    limited = {"compensate_deadline": f"PT{DEADLINE_S}S"} if cell.trouble == "deadline passed while down" else {}
    given_up = cell.trouble == "late write, given up"
    watched = {"query": lambda: Pending("PT1S"), "settle_within": "PT10S"} if given_up else {}  # it is in sight until then
    undoing = declare_undoing(app, cell, around(do.withdraw), sure)
    make: Any = app.step(name="make", compensate=undoing, **sure, **limited)(around(do.make))
    late: Any = app.step(name="make_late", effect="non_idem_write", timeout=timeout, compensate=undoing, **watched)(
        around(do.make_late)
    )

    @app.on_case
    def tell(case: Case) -> None:
        """Of what is in sight: a person is told at once, and answers while the task is run."""
        if given_up and case.kind == "doubt":
            ask()

    @app.task
    def child(name: str) -> str:
        make(reference=f"{name}1")
        make(reference=f"{name}2")
        return name

    @app.task
    def task() -> None:
        match cell.shape:
            case "parallel group":
                make(reference="s0")
                app.map(lambda name: make(reference=name), ["a", "b", "c"], concurrency=1)
            case "child tasks":
                make(reference="s0")
                child(name="c")
                child(name="d")
            case _:
                for reference in MADE[cell.shape]:
                    make(reference=reference)
        if cell.trouble.startswith("late write"):
            late(reference="late")
        raise Abort("no")

    return Program(app, task, office)


def declare_undoing(app: Doubtless, cell: Cell, withdraw: Any, sure: dict[str, Any]) -> str:
    """The step, or the task, that undoes; its name. Where the deploy has lost it, the table knows another one."""
    if cell.gone:
        app.step(effect="non_idem_write", name="other")(lambda reference: None)
        return "other"
    step: Any = app.step(name="withdraw", **sure)(withdraw)
    if cell.shape != "undone by a task":
        return "withdraw"

    @app.task
    def withdraw_by_task(reference: str) -> Any:
        return step(reference=reference)

    return "withdraw_by_task"


# ---------------------------------------------------------------- in a process of its own


def run(cell: Cell, ask: Callable[[], None]) -> int:
    """Start or resume the task; the exit code. `ask`: returns when a person has answered a call that still runs here."""
    app, task, office = build(cell, Points.from_environment(), ask=ask)
    try:
        app.notify()  # what a process that died had not told anybody
        while True:
            try:
                app.run(task, TASK)
                return DONE
            except TaskFailed:
                return ENDED
            except NeedsHuman:
                if not app.show(TASK).owner_alive:
                    return NEEDS_HUMAN
                ask()  # what is late keeps the task in this process; only now it comes
                office.land()
                while app.show(TASK).owner_alive:
                    time.sleep(0.001)
    finally:
        app.close()


def command(*arguments: str) -> int:
    """The command line, as a person has it."""
    from doubtless.cli import main

    return main(arguments)


def serve() -> None:
    """Run what is asked for by a line of JSON, each in a forked process that may be killed; say how it ended."""
    import doubtless

    for module in pkgutil.iter_modules(doubtless.__path__, "doubtless."):
        importlib.import_module(module.name)
    importlib.import_module("doubtless.cli.group")
    importlib.import_module("doubtless.store.sqlite")
    say("ready")
    while line := hear():
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(in_child(asked))
        _, status = os.waitpid(child, 0)
        say(str(os.waitstatus_to_exitcode(status)))


def in_child(asked: dict[str, Any]) -> int:
    os.environ.update(asked["environment"])
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    try:
        if "command" in asked:
            quiet = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            return command(*asked["command"])
        return run(Cell(**json.loads(os.environ[CELL])), ask)
    except BaseException:  # noqa: BLE001  whatever it is, this process is not the one that goes on reading
        import traceback

        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def ask() -> None:
    """Whoever started this process finds a person, who answers in another one."""
    say("asks")
    hear()


def say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


def hear() -> str:
    """One line, and nothing of the next one: processes share this pipe, one after the other."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return ""
        line += byte
    return line.decode()


if __name__ == "__main__":
    serve()
