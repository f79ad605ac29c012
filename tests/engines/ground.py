"""What the tests of all engines stand on: servers and workers as real processes, and a crew that runs one app on one engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from crash.outside import environment
from crash.program import Scenario
from doubtless import Doubtless, Task
from doubtless.events import TERMINAL
from doubtless.timeline import TaskView

from . import built

PATIENCE = 60.0


def until(reached: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait for what another process is about to do, and give what it came to."""
    deadline = time.monotonic() + patience
    while not (found := reached()):
        assert time.monotonic() < deadline, f"never reached: {what}"
        time.sleep(0.02)  # nothing of the product waits here: another process is polled
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A process with a session of its own, so that it and all its children can be killed; its output goes to a file."""

    def __init__(self, command: list[str], log: Path, more: Mapping[str, str] | None = None, **options: Any) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env={**environment(), "PYTHONUNBUFFERED": "1", **(more or {})}, **options,
            )  # fmt: skip
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def says(self, words: str) -> int:
        """How often its output has these words."""
        return self.log.read_text(errors="replace").count(words)

    def heard(self, words: str) -> None:
        """Its output has these words by now."""
        until(lambda: self.says(words) or self.poll() is not None, f"{words!r} in {self.log}")
        assert self.says(words), f"it ended without: {words!r}\n{self.log.read_text(errors='replace')[-3000:]}"

    def kill(self) -> None:
        """It and all its children are dead by SIGKILL."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def ended(self) -> int:
        """It ends by itself; its exit code."""
        return self._process.wait(timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


def program_of(scenario: Scenario) -> dict[str, str]:
    """The environment for a worker of this scenario."""
    return {built.SCENARIO: scenario.dump()}


class Engine(Protocol):
    """An engine's servers, up while the tests run; `crew` makes what one test needs."""

    name: str

    def crew(self, folder: Path, program: dict[str, str]) -> Crew: ...
    def close(self) -> None: ...


class Crew:
    """One app on one engine: this process starts tasks and answers cases, worker processes run them.

    An engine says how a worker is started, and what this process's app is told to hand over to (`connect`).
    """

    SWEEP = "PT0.5S"

    def __init__(self, folder: Path, program: dict[str, str]) -> None:
        self.folder = folder
        self.program = program
        self.workers: list[Process] = []
        self.app: Doubtless
        self.task: Task[..., Any]
        self.app, self.task = built.build(program)
        self.connect()

    def connect(self) -> None:
        """This process's app wakes tasks on the engine."""
        raise NotImplementedError

    def command(self, number: int) -> tuple[list[str], str]:
        """How the next worker is started, and what it says when it is ready."""
        raise NotImplementedError

    def doubled(self, task_id: str) -> None:
        """The task is delivered a second time, now."""
        raise NotImplementedError

    def redelivered(self, task_id: str) -> None:
        """The engine has delivered the task again by itself while its owner runs it."""
        until(lambda: self.said(f"task {task_id} is running: it is being run by"), "a second delivery")

    def worker(self, **changes: Any) -> Process:
        """A worker, ready to run tasks. `changes`: of its scenario."""
        number = len(self.workers) + 1
        command, ready = self.command(number)
        environment = dict(self.environment())
        if changes:
            environment[built.SCENARIO] = Scenario(**json.loads(environment[built.SCENARIO])).but(**changes).dump()
        worker = Process(command, self.folder / f"worker-{number}.log", environment)
        self.workers.append(worker)
        worker.heard(ready)
        return worker

    def environment(self) -> dict[str, str]:
        return self.program

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if error is not None:
            for worker in self.workers:
                print(f"---- {worker.log}\n{worker.log.read_text(errors='replace')[-6000:]}", file=sys.stderr)

    # ------------------------------------------------------------ what is seen from here

    def view(self, task_id: str) -> TaskView:
        return self.app.show(task_id)

    def said(self, words: str) -> int:
        """How often all workers together said this."""
        return sum(worker.says(words) for worker in self.workers)

    def rests(self, task_id: str) -> TaskView:
        """The task when nobody runs it and it has ended or needs a person; the turned clock is turned as it waits."""
        scenario = self.program.get(built.SCENARIO)
        clock = None if scenario is None else Scenario(**json.loads(scenario)).clock

        def rested() -> TaskView | None:
            view = self.view(task_id)
            if view.owner_alive:
                return None
            if view.status in TERMINAL or (view.status == "needs_human" and view.wake_at is None):
                return view
            if clock is not None and view.wake_at is not None:
                clock.turn_to(view.wake_at)
            return None

        found: TaskView = until(rested, f"the end of {task_id}")
        return found
