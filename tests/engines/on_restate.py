"""Restate's own server, from npm. A crew has one service of its own name on one address; its workers share that."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from .ground import Crew, Process, free_port, until


def binary() -> str | None:
    """The server that `install.sh` has brought in, in the folder of the venv; None: it is not there."""
    found = sorted(Path(os.environ.get("RESTATE_HOME") or Path(sys.prefix) / "npm").glob("node_modules/@restatedev/*/bin/restate-server"))
    return str(found[0]) if found else None


def asked(url: str, body: Any = None) -> Any:
    """One request; its answer's JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


class RestateCrew(Crew):
    def __init__(self, folder: Path, program: dict[str, str], server: Restate) -> None:
        self.server, self.service, self.port = server, f"D{uuid.uuid4().hex[:8]}", free_port()
        super().__init__(folder, program)

    def connect(self) -> None:
        from doubtless.runners.restate import RestateRunner

        self.runner = RestateRunner(self.app, ingress=self.server.ingress, name=self.service)

    def command(self, number: int) -> tuple[list[str], str]:
        return [sys.executable, "-m", "engines.restate_worker", self.service, self.server.ingress, str(self.port)], "worker ready"

    def worker(self, **changes: Any) -> Process:
        worker = super().worker(**changes)
        if len(self.workers) == 1:
            asked(f"{self.server.admin}/deployments", {"uri": f"http://127.0.0.1:{self.port}"})
            self.runner.begin()
        return worker

    def doubled(self, task_id: str) -> None:
        self.runner.hand_over(task_id)


class Restate:
    """A server on free ports, its data in a folder."""

    name = "restate"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(3)]
        self.ingress, self.admin = (f"http://127.0.0.1:{port}" for port in self.ports[:2])
        self.start()

    def start(self) -> None:
        found = binary()
        assert found is not None
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self.ports[0]}", "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self.ports[1]}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{self.ports[2]}", "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{self.ports[2]}",
            "RESTATE_LISTEN_MODE": "tcp", "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "256MB", "DO_NOT_TRACK": "1",
            "RESTATE_DEFAULT_NUM_PARTITIONS": "2", "RESTATE_CLUSTER_NAME": "tests",
        }  # fmt: skip
        command = [found, "--no-logo", "--base-dir", str(self.folder / "data"), "--node-name", "n1"]
        self.server = Process(command, self.folder / "restate.log", settings)
        until(self.ready, "restate-server")

    def ready(self) -> bool:
        assert self.server.poll() is None, self.server.log.read_text()[-3000:]
        try:
            asked(f"{self.admin}/deployments")
            urllib.request.urlopen(f"{self.ingress}/restate/health", timeout=5).close()
        except OSError:
            return False
        return True

    def crew(self, folder: Path, program: dict[str, str]) -> RestateCrew:
        return RestateCrew(folder, program, self)

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.kill()
