"""DBOS with its system database on PostgreSQL. All workers say that they are one executor: each that starts runs again
what the others have on their way, so that starting a second one doubles every delivery."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from tests.postgres.server import Server

from .ground import Crew


class DBOSCrew(Crew):
    def __init__(self, folder: Path, program: dict[str, str], url: str) -> None:
        self.url = url
        super().__init__(folder, program)

    def connect(self) -> None:
        from dbos import DBOSClient

        from doubtless.runners.dbos import DBOSRunner

        self.client = DBOSClient(system_database_url=self.url, lazy=True, application_name="engines")
        self.runner = DBOSRunner(self.app, client=self.client)

    def command(self, number: int) -> tuple[list[str], str]:
        return [sys.executable, "-m", "engines.dbos_worker", self.url], "worker ready"

    def doubled(self, task_id: str) -> None:
        self.runner.hand_over(task_id)

    def close(self) -> None:
        super().close()
        self.client.destroy()


class OnPostgres:
    name = "dbos"

    def __init__(self) -> None:
        self.server = Server().start()

    def crew(self, folder: Path, program: dict[str, str]) -> DBOSCrew:
        database = f"dbos_{uuid.uuid4().hex[:8]}"
        with self.server.connect() as connection:
            connection.execute(f"CREATE DATABASE {database}".encode())
        return DBOSCrew(folder, program, f"postgresql://doubtless@127.0.0.1:{self.server.port}/{database}")

    def close(self) -> None:
        self.server.remove()
