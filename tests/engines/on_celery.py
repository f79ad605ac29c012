"""Celery with the brokers of Debian's packages, or with a folder as its broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .celery_project import BROKER, connect
from .ground import Crew, Process, free_port, listens, until

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class CeleryCrew(Crew):
    """Celery's prefork workers, each with a beat of its own that sweeps. `broker`: URL, options, queue."""

    pool = "prefork"

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
            sys.executable, "-m", "celery", "-A", "engines.celery_project:celery", "worker", "--pool", self.pool, "--concurrency", "2", "--loglevel", "INFO",
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


class RabbitMQ:
    """Debian's rabbitmq-server on ports of its own, with an Erlang port mapper of its own."""

    name = "celery-rabbitmq"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._mapped, self._dist = folder, free_port(), free_port(), free_port()
        self._mapper = Process(["epmd", "-port", str(self._mapped)], folder / "epmd.log")
        until(lambda: listens(self._mapped), "epmd")
        (folder / "rabbitmq.conf").write_text("loopback_users = none\nlog.console = true\n")
        (folder / "plugins").write_text("[].\n")
        self.start()

    def settings(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder), "ERL_EPMD_PORT": str(self._mapped), "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"), "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"), "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
        }  # fmt: skip

    def start(self) -> None:
        self.server = Process([RABBITMQ], self.folder / "rabbitmq.log", self.settings())
        until(lambda: listens(self.port) or self.server.poll() is not None, "rabbitmq-server")
        assert self.server.poll() is None, self.server.log.read_text()[-3000:]

    def crew(self, folder: Path, program: dict[str, str]) -> CeleryCrew:
        broker = {"url": f"amqp://guest:guest@127.0.0.1:{self.port}//", "options": {}}
        return RabbitCrew(folder, program, broker, self.disconnect)

    def disconnect(self) -> None:
        """Every connection is closed by the broker, and what was not acknowledged is in its queue again."""
        command = [str(Path(RABBITMQ).with_name("rabbitmqctl")), "close_all_connections", "a test"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **self.settings()})

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.kill()
        self._mapper.kill()


class RabbitCrew(CeleryCrew):
    """RabbitMQ redelivers when a connection breaks: the worker's children run on, and it connects again."""

    def __init__(self, folder: Path, program: dict[str, str], broker: dict[str, Any], disconnect: Callable[[], None]) -> None:
        self.disconnect = disconnect
        super().__init__(folder, program, broker)

    def redelivered(self, task_id: str) -> None:
        self.disconnect()
        super().redelivered(task_id)


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
