"""Celery with the brokers of Debian's packages, or with a folder as its broker."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from .celery_project import BROKER, connect
from .ground import Crew, Process, free_port, listens, until


class CeleryCrew(Crew):
    """Celery's prefork workers, each with a beat of its own that sweeps. `broker`: URL, options, queue."""

    def __init__(self, folder: Path, program: dict[str, str], broker: dict[str, Any]) -> None:
        self.broker = {"every": self.SWEEP, "queue": f"q{uuid.uuid4().hex[:8]}", **broker}
        super().__init__(folder, program)

    def connect(self) -> None:
        self.runner = connect(self.app, self.broker)

    def doubled(self, task_id: str) -> None:
        self.runner.hand_over(task_id)

    def environment(self) -> dict[str, str]:
        return {**self.program, BROKER: json.dumps(self.broker)}

    def command(self, number: int) -> tuple[list[str], str]:
        command = [
            sys.executable, "-m", "celery", "-A", "engines.celery_project:celery", "worker", "--concurrency", "2", "--loglevel", "INFO",
            "--hostname", f"w{number}@%h", "--without-gossip", "--without-mingle", "--without-heartbeat",
            "--beat", "--schedule", str(self.folder / f"beat-{number}"),
        ]  # fmt: skip
        return command, " ready."


class Redis:
    """Debian's redis-server on a port of its own; every acknowledged write is on the disk."""

    name = "celery-redis"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        command = [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always",
        ]  # fmt: skip
        self.server = Process(command, self.folder / "redis.log")
        until(lambda: listens(self.port), "redis-server")

    def crew(self, folder: Path, program: dict[str, str], visibility: float = 2.0) -> CeleryCrew:
        options = {
            "visibility_timeout": visibility, "unacked_restore_interval": 0.25, "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 1, "global_keyprefix": f"{uuid.uuid4().hex[:8]}-",
        }  # fmt: skip  # the mutex: a worker that is killed while it looks would keep the others from looking for five minutes
        return CeleryCrew(folder, program, {"url": f"redis://127.0.0.1:{self.port}/0", "options": options})

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.kill()


class Folder:
    """A folder as the broker: no server. It keeps no message that a worker has taken, so what a dead worker had is lost."""

    name = "celery-folder"

    def crew(self, folder: Path, program: dict[str, str]) -> CeleryCrew:
        queue, control = folder / "queue", folder / "control"
        queue.mkdir()
        control.mkdir()
        options = {"data_folder_in": str(queue), "data_folder_out": str(queue), "control_folder": str(control)}
        return CeleryCrew(folder, program, {"url": "filesystem://localhost", "options": options})

    def close(self) -> None: ...
