"""The processes of the storm: PostgreSQL, workers and the client, each of which can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from tests.postgres.server import Server

from .proxy import Weather

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
PATIENCE = 30.0


class Database:
    """PostgreSQL on a directory and a port of its own, killed and started again on both. `down`: it is meant to be away."""

    def __init__(self) -> None:
        self.server = Server()
        self.down = False

    def kill(self, *, all_of_it: bool) -> None:
        """kill -9 of the postmaster, and of everything that belongs to it, or of the postmaster alone: the others see it."""
        self.down = True
        assert self.server.process is not None
        children = _children(self.server.process.pid) if all_of_it else []
        self.server.stop(kill=True)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def kill_a_backend(self) -> bool:
        """kill -9 of a process that serves a connection: PostgreSQL throws everybody out and recovers."""
        with suppress(psycopg.Error), self.server.connect() as own:
            rows = own.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random()"
            ).fetchall()
            for (pid,) in rows[:1]:
                os.kill(int(str(pid)), signal.SIGKILL)
                return True
        return False

    def start(self) -> None:
        """Start it again on the same data. What a killed postmaster left behind may need a moment to be gone."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.server.start()
                self.down = False
                return
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                self.server.stop()
                time.sleep(0.1)


class Member:
    """One process of the storm: started, killed, stopped, started again; what it says goes into one file."""

    def __init__(self, name: str, command: list[str], environ: dict[str, str], folder: Path, port: int) -> None:
        self.name = name
        self.weather = Weather(port)
        self.log = folder / f"{name}.log"
        self.out = folder / f"{name}.out"
        self._command = command
        self._environ = {name: value.replace("{port}", str(self.weather.port)) for name, value in environ.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = 0.0
        self.longest_stop = 0.0
        self.awake_since = 0.0
        self.lives = 0
        self.codes: list[int] = []

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log, self.out.open("ab") as out:
            log.write(f"---- life {self.lives}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=out, stderr=log, cwd=ROOT, start_new_session=True
            )
        self.lives += 1
        self.awake_since = time.monotonic()

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.note_end()

    def note_end(self) -> None:
        """Take the exit code of a process that has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.codes.append(self.process.returncode)
            self.process = None

    def stop(self, seconds: float) -> None:
        """Stop it, and wake it after so many seconds, whatever else goes on."""
        self.signal(signal.SIGSTOP)
        self.stopped = time.monotonic()
        waker = threading.Timer(seconds, self.wake)
        waker.daemon = True
        waker.start()

    def wake(self) -> None:
        self.signal(signal.SIGCONT)
        self.awake_since = time.monotonic()
        if self.stopped:
            self.longest_stop = max(self.longest_stop, self.awake_since - self.stopped)
        self.stopped = 0.0

    def drain(self) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self.note_end()
        return code

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        self.kill()
        self.weather.close()


def worker(number: int, environ: dict[str, str], folder: Path, port: int, options: list[str]) -> Member:
    command = [sys.executable, "-m", "doubtless.cli", "worker", "tests.storm.program:app", *options]
    return Member(f"worker-{number}", command, environ, folder, port)


def client(environ: dict[str, str], folder: Path, port: int, tasks: Path) -> Member:
    return Member("client", [sys.executable, "-m", "tests.storm.client", str(tasks)], environ, folder, port)


class Orders:
    """What a person types at a terminal: ``doubtless cancel`` and ``compensate``, each a process that may run the task itself."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.log = folder / "orders.log"
        self._environ = environ
        self._given: list[subprocess.Popen[bytes]] = []

    def give(self, order: str, task_id: str) -> None:
        command = [sys.executable, "-m", "doubtless.cli", order, "tests.storm.program:app", task_id, "--by", "ann", "--why", "storm"]
        with self.log.open("ab") as log:
            self._given.append(
                subprocess.Popen([*command, "--wait", "PT3S"], env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)
            )

    def wait(self) -> None:
        """Until all of them have ended; one that hangs is a TimeoutExpired."""
        for process in self._given:
            process.wait(60)

    def close(self) -> None:
        for process in self._given:
            process.kill()
            process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry))
    return found
