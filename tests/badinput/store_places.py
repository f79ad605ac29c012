"""A store of either kind for the cases of group B: its URL, a backup of it, and what takes a dead owner's task over."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import apsw
from bad_ground import Clock

from doubtless.store import recover_store


class SqlitePlace:
    """A file, in the working directory."""

    url = "sqlite:///bad.db"
    shown = r"sqlite:///.*bad\.db"

    def __init__(self, folder: Path, aside: Path, clock: Clock) -> None:
        self._file = folder / "bad.db"
        self._backup = aside / "backup.db"
        self._clock = clock

    def back_up(self) -> None:
        """Copy it; nobody has it open."""
        shutil.copy(self._file, self._backup)

    def put_back(self) -> None:
        """As a restore does: what came after the backup is gone."""
        for end in ("-wal", "-shm"):
            Path(f"{self._file}{end}").unlink(missing_ok=True)
        shutil.copy(self._backup, self._file)

    def tamper(self, *statements: str) -> None:
        """Do what nobody may, with the triggers gone."""
        raw = apsw.Connection(str(self._file))
        for (trigger,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            raw.execute(statement)
        raw.close()

    def accept(self) -> None:
        """A person goes on with what is there."""
        recover_store(self.url, clock=self._clock.now, state="", accept=True, by="ann", why="the disk was replaced")


class PostgresPlace:
    """A server of the test's own, of which a backup is a copy of its directory."""

    shown = "'?postgresql://"

    def __init__(self, server: Any, aside: Path, clock: Clock) -> None:
        from doubtless.store.pg.migrate import migrate

        self._server = server
        self._backup = str(aside / "backup")
        self._clock = clock
        self.url = server.url(mark=str(aside / "mark"), schema="doubtless")
        migrate(self.url, state=str(aside), namespace=b"books")

    def back_up(self) -> None:
        self._server.stop()
        subprocess.run(["cp", "-a", self._server.data, self._backup], check=True)
        self._server.start()

    def put_back(self) -> None:
        self._server.stop()
        shutil.rmtree(self._server.data)
        subprocess.run(["cp", "-a", self._backup, self._server.data], check=True)
        self._server.start()

    def tamper(self, *statements: str) -> None:
        with self._server.connect(options="-c search_path=doubtless") as connection:
            connection.execute("ALTER TABLE events DISABLE TRIGGER ALL")
            for statement in statements:
                connection.execute(statement)

    def accept(self) -> None:
        recover_store(self.url, clock=self._clock.now, state="", accept=True, by="ann", why="the disk was replaced")


Place = SqlitePlace | PostgresPlace


def forget_claims(store: Any) -> None:
    """As if every thread with a task were gone, and no release had come."""
    (store._leases.held if hasattr(store, "_leases") else store._owner.tasks).clear()
