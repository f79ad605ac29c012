"""A PostgreSQL server of the benchmarks' own: on the disk that SQLite is measured on, thrown away at the end."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Self

from sections import ROOT

sys.path.insert(0, str(ROOT))

from tests.postgres.server import Server, servers

from doubtless.store.pg.migrate import migrate

SETTINGS: dict[str, str | int] = {"shared_buffers": "256MB", "max_wal_size": "4GB"}


class Cluster:
    """A running server; stores and databases on it."""

    def __init__(self, folder: str, **settings: str | int) -> None:
        self.folder = folder
        self.server = Server(base=folder).start(**{**SETTINGS, **settings})

    @property
    def version(self) -> str:
        """As the server says it."""
        with self.server.connect() as connection:
            found = connection.execute("SHOW server_version").fetchone()
        assert found is not None
        return str(found[0]).split()[0]

    def store(self, schema: str = "") -> str:
        """The URL of a store in a schema of its own, migrated."""
        state = tempfile.mkdtemp(prefix="state-", dir=self.folder)
        url = self.server.url(mark=f"{state}/mark", schema=schema)
        migrate(url, state=state)
        return url

    def database(self, name: str) -> str:
        """The URL of an empty database."""
        with self.server.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return f"postgresql://doubtless@127.0.0.1:{self.server.port}/{name}"

    def run(self, name: str, script: str) -> None:
        """Run a script in one of its databases."""
        with self.server.connect(name) as connection:
            connection.execute(script.encode())

    @property
    def plain(self) -> str:
        """The URL of the database that the stores are in."""
        return f"postgresql://doubtless@127.0.0.1:{self.server.port}/postgres"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.remove()


@contextlib.contextmanager
def cluster(folder: str, **settings: str | int) -> Iterator[Cluster | None]:
    """A server, or None where no server's programs are found."""
    if not servers():
        yield None
        return
    with Cluster(folder, **settings) as made:
        yield made
