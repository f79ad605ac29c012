"""Power loss in the middle of `recover --accept`: the store stays refused, or is suspect; and recover can be said again."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

from doubtless.errors import StoreError, StoreSuspect, TaskFailed
from doubtless.events import STORE_TASK, Kind
from doubtless.store.recover import recover
from doubtless.store.sqlite import SqliteStore

from .check import Finding, Known, laid_out, scratch
from .disk import State
from .programs import NAMESPACE, Clock, Tasks, World
from .recorder import Recorder
from .replay import same_as, small_wal

Lost = Literal["gone", "gone, but its WAL is there", "older"]
LOST: tuple[Lost, ...] = get_args(Lost)


def record_recovery(lost: Lost, plant: AbstractContextManager[object] | None = None) -> Recorder:
    """A store whose database is gone, or older than its mark; recorded is the recovery that a person orders."""
    folder = tempfile.mkdtemp(prefix="doubtless-power-", dir=scratch())
    path = f"{folder}/recon.db"
    try:
        tasks = Tasks(f"sqlite:///{path}", World())
        tasks.app.store.info()
        tasks.app.close()
        shutil.copy(path, path + ".backup")
        task, name = tasks.tasks[0]
        try:
            tasks.app.run(task, name, day="2026-11-28")
        except TaskFailed:  # it is aborted, as it has to be
            pass
        shutil.copy(path + "-wal", path + ".wal")
        tasks.app.close()
        if lost == "older":
            os.replace(path + ".backup", path)
        else:
            os.unlink(path)
            os.unlink(path + ".backup")
        if lost == "gone, but its WAL is there":
            os.replace(path + ".wal", path + "-wal")
        recorder = Recorder(folder)
        with plant or nullcontext(), small_wal(), recorder.recording():
            recover(path, clock=Clock().now, accept=True, by="ann", why="the disk was exchanged")
            recorder.mark(("opened", NAMESPACE))
        same_as(recorder, folder)
    finally:
        shutil.rmtree(folder)
    return recorder


def judge_recovery(state: State, known: Known, at: int) -> list[Finding]:
    """Never a store that knows nothing and says nothing of it; and a person who says `recover` again gets on."""
    with laid_out(state) as folder:
        path, clock = f"{folder}/recon.db", Clock()
        store = SqliteStore(path, clock=clock.now)
        try:
            suspect = store.info().suspect
            if not suspect:
                return [Finding(at, state.how, "the store opens as if nothing were amiss", False)]
        except StoreSuspect as error:
            if known.opened:
                return [Finding(at, state.how, f"the recovery was said to be done: {error.message}", True)]
        except StoreError as error:
            return [Finding(at, state.how, f"{type(error).__name__}: {error.message.replace(folder, '')}", True)]
        finally:
            store.close()
        try:
            recover(path, clock=clock.now, accept=True, by="ann", why="once more")
            again = SqliteStore(path, clock=clock.now)
            try:
                info, problems = again.info(), again.verify()
                rows = [row.kind for row in again.rows(STORE_TASK)]
            finally:
                again.close()
        except StoreError as error:
            return [
                Finding(at, state.how, f"recover once more: {type(error).__name__}: {error.message.replace(folder, '')}", True)
            ]
    if not info.suspect or info.namespace != NAMESPACE or problems or set(rows) != {Kind.STORE_RECOVERED}:
        return [Finding(at, state.how, f"after recover once more: {info}, {problems}, {rows}", bool(problems))]
    return []
