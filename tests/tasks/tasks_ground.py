"""What the tests of the task engine share: apps on one store, a world that counts, programs in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests import nursery

from doubtless import Doubtless, DoubtlessError
from doubtless.events import Event, Kind
from doubtless.testing import FakeClock

PATIENCE = 20.0
"""Real seconds that a test waits for another thread or process before it fails."""


class Deploys:
    """Apps on one store. `deploy()` is a new release of the program: nothing of the one before is in its memory."""

    def __init__(self, folder: Path, clock: FakeClock, url: str | None = None) -> None:
        self.url = url or f"sqlite:///{folder / 'tasks.db'}"
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


def migrated(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a PostgreSQL store of this test's own."""
    from doubtless.store.pg.migrate import migrate

    url: str = request.getfixturevalue("postgres_server").url(mark=str(folder / "mark"), connections="16")
    migrate(url, state=str(folder), namespace=b"tests")
    return url


class World:
    """The other side: what it really did, by name and by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: list[tuple[str, Any, str | None]] = []

    def do(self, name: str, what: Any = None, key: str | None = None) -> dict[str, Any]:
        """Have an effect; give a receipt."""
        with self._lock:
            self.done.append((name, what, key))
            return {"id": len(self.done), "name": name, "what": what}

    def n(self, name: str | None = None) -> int:
        with self._lock:
            return sum(name is None or one == name for one, _, _ in self.done)

    def keys(self, name: str) -> list[str | None]:
        with self._lock:
            return [key for one, _, key in self.done if one == name]

    def find(self, name: str, key: str) -> dict[str, Any] | None:
        """Look an effect up by the key that it was sent with."""
        with self._lock:
            for number, (one, what, sent) in enumerate(self.done, 1):
                if one == name and sent == key:
                    return {"id": number, "name": one, "what": what}
        return None


def rows(app: Doubtless, task_id: str, path: str | None = None) -> list[Event]:
    """The task's rows, of one step with `path`."""
    return [row for row in app.store.rows(task_id) if path is None or row.path == path]


def kinds(app: Doubtless, task_id: str, path: str | None = None) -> list[str]:
    """The kinds of the task's rows, in order."""
    return [row.kind for row in rows(app, task_id, path)]


def outcomes(app: Doubtless, task_id: str, path: str) -> list[tuple[str | None, str]]:
    """What came of each attempt of a step: its outcome and its code."""
    step = next(step for step in app.show(task_id).steps if step.path == path)
    return [(attempt.outcome, attempt.code) for attempt in step.attempts]


def statuses(app: Doubtless, task_id: str) -> dict[str, str]:
    """The steps' statuses by path."""
    return {step.path: step.status for step in app.show(task_id).steps}


def only_case(app: Doubtless) -> Any:
    """The one open case."""
    cases = app.inbox().cases
    assert len(cases) == 1, [case.why for case in cases]
    return cases[0]


def settle(app: Doubtless, answer: Any, *, kind: str | None = None) -> Any:
    """Answer the one open case (of this kind)."""
    cases = [case for case in app.inbox().cases if kind is None or case.kind == kind]
    assert len(cases) == 1, [case.kind for case in cases]
    return app.settle(cases[0].id, answer, by="anna", why="looked", shown=cases[0].hash)


def raised(call: Callable[..., Any], *args: Any, **kwargs: Any) -> BaseException | None:
    """What the call raises."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return error
    return None


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Poll until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come about"
        time.sleep(0.002)
    return value


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Call in so many threads at one moment; what each returned or raised."""
    gate = threading.Barrier(count)
    results: list[Any] = [None] * count

    def work(number: int) -> None:
        gate.wait()
        try:
            results[number] = call(number)
        except DoubtlessError as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


def intents(app: Doubtless, task_id: str) -> Counter[str | None]:
    """How many intents each place has."""
    return Counter(row.path for row in rows(app, task_id) if row.kind == Kind.STEP_INTENDED)


# ---------------------------------------------------------------- other processes


def program() -> str:
    """The program of the child processes: real clock, effects as lines of a file, told to stop at a place of a step."""
    return (Path(__file__).parent / "tasks_child.py").read_text(encoding="utf-8")


class Child:
    """One program in a process of its own; it prints a line for each place that it reaches."""

    folder: ClassVar[Path]
    started: ClassVar[list[Child]]

    def __init__(self, *args: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": "1"}
        self.process = nursery.Popen(
            [sys.executable, "program.py", *args],
            cwd=self.folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(self)
        self.last = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def reach(self, word: str) -> str:
        """Read its lines until one begins with this word; the rest of that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line.strip()
            if self.last.partition(" ")[0] == word:
                return self.last.partition(" ")[2]
        raise AssertionError(f"the child ended with {self.process.wait()} before it said {word}; its last line: {self.last}")

    def go_on(self) -> None:
        """Let it go on from the place where it stands."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> int:
        """Wait for its end (or kill it); its exit code."""
        if self.process.poll() is None and sys.exc_info()[0] is not None:
            self.process.kill()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        return code

    def result(self) -> dict[str, Any]:
        """What its run came to, as it said it in the end."""
        said: dict[str, Any] = json.loads(self.reach("result"))
        return said

    def effects(self) -> int:
        """How many effects all programs of this folder had."""
        file = self.folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0
