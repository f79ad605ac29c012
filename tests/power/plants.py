"""Faults put into the product, one at a time: what keeps the log through a power loss, taken away."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import apsw

from doubtless.store import folder, mark, schema, spill, sqlite


class _NoSync:
    """The module `os`, whose fsync does nothing to plain files; directories are still synced."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)


def synchronous(level: str) -> AbstractContextManager[object]:
    """Connections sync less than each commit."""
    harden = schema.harden

    def less(db: apsw.Connection) -> None:
        harden(db)
        db.pragma("synchronous", level)

    return mock.patch.object(schema, "harden", less)


def _write_whole_unsynced(where: Any) -> AbstractContextManager[object]:
    real = folder.write_whole

    def unsynced(*args: Any) -> None:
        with mock.patch.object(folder, "os", _NoSync()):
            real(*args)

    return mock.patch.object(where, "write_whole", unsynced)


def _mark_before_the_commit() -> AbstractContextManager[object]:
    real = sqlite.bump

    def early(cursor: apsw.Cursor) -> int:
        number = real(cursor)
        file = mark.MarkFile(cursor.connection.filename + ".mark")
        said = file.read()
        assert isinstance(said, mark.Mark)
        file.raise_to(said.store_id, number)
        return number

    return mock.patch.object(sqlite, "bump", early)


def _spilled_is_dropped_first() -> AbstractContextManager[object]:
    real = sqlite.SqliteStore.spilled

    def dropping(store: sqlite.SqliteStore, task_id: str) -> Any:
        found = real(store, task_id)
        for name, _ in found:
            store._spill.drop(name)
        return found

    return mock.patch.object(sqlite.SqliteStore, "spilled", dropping)


PLANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "synchronous-normal": lambda: synchronous("normal"),
    "synchronous-off": lambda: synchronous("off"),
    "content-unsynced": lambda: _write_whole_unsynced(folder),
    "spill-unsynced": lambda: _write_whole_unsynced(spill),
    "names-unsynced": lambda: mock.patch.object(folder, "sync_directory", lambda path: None),
    "new-folders-unsynced": lambda: mock.patch.object(folder, "_make_directories", _without_parents(folder._make_directories)),
    "mark-unsynced": lambda: mock.patch.object(mark, "os", _NoSync()),
    "mark-name-unsynced": lambda: mock.patch.object(mark, "sync_directory", lambda path: None),
    "mark-before-the-commit": _mark_before_the_commit,
    "spilled-dropped-first": _spilled_is_dropped_first,
}


def _without_parents(make: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    def made(path: str) -> list[str]:
        make(path)
        return []

    return made
