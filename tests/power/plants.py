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

from .recorder import Recorder
from .replay import Covered, record, replay


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


def _without_parents(make: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    def made(path: str) -> list[str]:
        make(path)
        return []

    return made


def _mark_written_unsynced() -> AbstractContextManager[object]:
    return mock.patch.object(mark, "os", _NoSync())


def _no_names(where: Any) -> AbstractContextManager[object]:
    return mock.patch.object(where, "sync_directory", lambda path: None)


def _new_folders_unsynced() -> AbstractContextManager[object]:
    made = _without_parents(folder._make_directories)
    return mock.patch.multiple(folder, _make_directories=made, names_above=lambda *args: [])


PLANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str]] = {
    "synchronous-normal": (lambda: synchronous("normal"), "each commit is synced (`synchronous=NORMAL`)"),
    "synchronous-off": (lambda: synchronous("off"), "anything of the database is synced (`synchronous=OFF`)"),
    "content-unsynced": (lambda: _write_whole_unsynced(folder), "content is synced before it has its name"),
    "spill-unsynced": (lambda: _write_whole_unsynced(spill), "a spilled result is synced before it has its name"),
    "names-unsynced": (lambda: _no_names(folder), "a directory is synced after a rename in it"),
    "new-folders-unsynced": (_new_folders_unsynced, "the names of new folders are synced"),
    "mark-unsynced": (_mark_written_unsynced, "the mark is synced before the database is made"),
    "mark-name-unsynced": (lambda: _no_names(mark), "the mark's name is synced"),
    "mark-before-the-commit": (_mark_before_the_commit, "the mark is raised after the commit, not before"),
    "spilled-dropped-first": (_spilled_is_dropped_first, "a spilled result is dropped only when it stands in the log"),
}
"""What is put in place, and the guard that is gone with it."""

SAID = {
    "synchronous-normal": "is not there",
    "synchronous-off": "another application's database",
    "content-unsynced": "damaged",
    "spill-unsynced": "spilled result",
    "names-unsynced": "missing",
    "new-folders-unsynced": "missing",
    "mark-unsynced": "its beginning is damaged",
    "mark-name-unsynced": "has no mark",
    "mark-before-the-commit": "does not fit its mark",
    "spilled-dropped-first": "the spilled result of post_entry",
}
"""What the first finding says."""

WHERE = {  # from where on a plant can do harm, so that it is found soon
    "content-unsynced": ("mkdir", "blobs"),
    "names-unsynced": ("mkdir", "blobs"),
    "new-folders-unsynced": ("mkdir", "blobs"),
    "spill-unsynced": ("mkdir", "spill"),
    "spilled-dropped-first": ("mkdir", "spill"),
    "mark-before-the-commit": ("mkdir", "owners"),
}


def fact(recorder: Recorder, name: str) -> int:
    """The place of the first mark of this name."""
    return next(at for at, op in enumerate(recorder.ops) if op.kind == "mark" and op.fact[0] == name)


def search(plant: str) -> Covered:
    """Record with this plant, and replay until something is found."""
    recorder, start = record(PLANTS[plant][0]()), 0
    if plant in WHERE:
        kind, path = WHERE[plant]
        start = next(at for at, op in enumerate(recorder.ops) if op.kind == kind and path in op.path)
    elif plant.startswith("synchronous"):
        start = fact(recorder, "call")
    return replay(recorder, start=start, singly=plant == "mark-name-unsynced", telling=not plant.startswith("mark"), enough=1)
