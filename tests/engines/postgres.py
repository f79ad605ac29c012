"""A PostgreSQL of a test's own, as an unprivileged user where the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .ground import Process, free_port, until

HOMES = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


def binaries() -> Path | None:
    """Where initdb and postgres are; None: there is no server here."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next(iter(HOMES), None)


class Postgres:
    """One cluster in a folder; every commit is on the disk."""

    def __init__(self) -> None:
        home = binaries()
        assert home is not None
        self.port, self._home = free_port(), home
        self.folder = Path(tempfile.mkdtemp(prefix="doubtless-postgres-"))  # pytest's own folders are closed to other users
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
        initdb = [home / "initdb", "-D", self.folder / "data", "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self._as)
        self.start()

    def start(self) -> None:
        command = [
            str(self._home / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200",
        ]  # fmt: skip
        self.server = Process(command, self.folder / "postgres.log", cwd=self.folder, **self._as)
        until(self.ready, "postgres")

    def ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def database(self, name: str) -> str:
        """The URL of a new database."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def kill(self) -> None:
        """Dead by SIGKILL, with all its processes."""
        self.server.kill()

    def close(self) -> None:
        self.server.kill()
        shutil.rmtree(self.folder)
