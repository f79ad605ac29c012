"""Temporal's SDK, its real client and workers, against a stand-in for the server (see temporal_frontend)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .ground import Crew, free_port

if TYPE_CHECKING:
    from .temporal_frontend import Frontend


class TemporalCrew(Crew):
    """A server of its own for each test: it is a part of this process. A worker that is stopped is late with its heartbeat."""

    server: Frontend

    def connect(self) -> None:
        from temporalio.client import Client

        from doubtless.runners.temporal import TemporalRunner

        from .temporal_frontend import Frontend

        port = free_port()
        self.server, self.target = Frontend(port), f"127.0.0.1:{port}"
        self.runner = TemporalRunner(self.app, lambda: Client.connect(self.target), heartbeat="PT2S")

    def command(self, number: int) -> tuple[list[str], str]:
        return [sys.executable, "-m", "engines.temporal_worker", self.target], "worker ready"

    def doubled(self, task_id: str) -> None:
        self.runner.hand_over(task_id)

    def redelivered(self, task_id: str) -> None:
        os.kill(self.workers[0].pid, signal.SIGSTOP)
        super().redelivered(task_id)
        os.kill(self.workers[0].pid, signal.SIGCONT)

    def close(self) -> None:
        super().close()
        self.server.close()


class Temporal:
    name = "temporal"

    def crew(self, folder: Path, program: dict[str, str]) -> TemporalCrew:
        return TemporalCrew(folder, program)

    def close(self) -> None: ...
