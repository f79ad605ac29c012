"""Worker processes on SQLite and on PostgreSQL, and the world that counts what they really did."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from doubtless import Doubtless
from doubtless.store.pg.migrate import migrate
from doubtless.testing import CountingWorld
from doubtless.testing.server import serving

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE = 25.0


def until(what: Callable[[], Any], said: str) -> Any:
    """What `what` says, as soon as it says something; each look asks a store or a file that another process writes."""
    end = time.monotonic() + PATIENCE
    while not (seen := what()):
        assert time.monotonic() < end, said
        time.sleep(0.02)
    return seen


class Process:
    """A `doubtless worker` of its own."""

    def __init__(self, environ: dict[str, str], log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "doubtless.cli", "worker", f"{PROGRAM}:app", *options]
        with log.open("ab") as file:
            self.process = nursery.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=file)
        until(lambda: "at a time" in self.said() or self.process.poll() is not None, "the worker's first word")
        assert self.process.poll() is None, self.said()

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Team:
    """A store, the world, and the workers of one test."""

    def __init__(self, url: str, folder: Path, world: CountingWorld, address: str) -> None:
        self.url = url
        self.folder = folder
        self.world = world
        self.environ = {
            **os.environ, "DOUBTLESS_STORE": url, "FOLDER": str(folder), "WORLD": address, "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        self.processes: list[Process] = []
        self.module = self._load()
        self.app: Doubtless = self.module.app

    def _load(self) -> Any:
        """The program in this process: to start its tasks and to look at them."""
        before = {name: os.environ.get(name) for name in ("FOLDER", "WORLD")}
        os.environ.update(FOLDER=self.environ["FOLDER"], WORLD=self.environ["WORLD"])
        try:
            spec = importlib.util.spec_from_file_location(f"workers_program_{id(self)}", PROGRAM)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        module.app._url = self.url
        return module

    def worker(self, *options: str) -> Process:
        self.processes.append(Process(self.environ, self.folder / f"worker-{len(self.processes)}.log", *options))
        return self.processes[-1]

    def hold(self, n: int) -> Path:
        gate = self.folder / f"hold-{n}"
        gate.touch()
        return gate

    def inside(self, n: int) -> int:
        """The process that stands inside the booking of this number."""
        file = self.folder / f"inside-{n}"
        return int(until(lambda: file.exists() and file.read_text(), f"somebody inside booking {n}"))

    def booked(self) -> list[int]:
        return sorted(effect["n"] for effect in self.world.all())

    def ended(self, *task_ids: str) -> bool:
        return all((head := self.app.store.head(task_id)) is not None and head.status == "done" for task_id in task_ids)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'team.db'}"
    server = request.getfixturevalue("postgres_server")
    made: str = server.url(mark=str(tmp_path / "mark"), lease="PT1S")
    migrate(made, state=str(tmp_path))
    return made


only_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)


@pytest.fixture
def team(url: str, tmp_path: Path) -> Iterator[Team]:
    world = CountingWorld()
    with serving(world) as address:
        made = Team(url, tmp_path, world, address)
        yield made
        made.close()
