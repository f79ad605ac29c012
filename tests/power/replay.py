"""Recording a run, and replaying every state in which its disk may be left."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import apsw

from .check import Finding, Known, judge, scratch
from .disk import Disk, State
from .programs import Tasks, World
from .recorder import Recorder

Judge = Callable[[State, Known, int], list[Finding]]


class Covered(NamedTuple):
    """What was replayed: recorded operations, marks among them, distinct states, and what was wrong."""

    operations: int
    facts: int
    states: int
    findings: list[Finding]


@contextmanager
def small_wal(pages: int = 12) -> Iterator[None]:
    """Let the WAL be copied into the database after so few pages that it happens in the middle of a run."""
    hook = lambda connection: connection.wal_autocheckpoint(pages)  # noqa: E731
    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)


def record(plant: AbstractContextManager[object] | None = None) -> Recorder:
    """Record both tasks from the first creation of their store to their ends. `plant`: a fault put into the product."""
    folder = tempfile.mkdtemp(prefix="doubtless-power-", dir=scratch())
    try:
        recorder = Recorder(folder)
        with plant or nullcontext(), small_wal(), recorder.recording():
            tasks = Tasks(f"sqlite:///{folder}/recon.db", World(mark=recorder.mark), mark=recorder.mark)
            try:
                tasks.drive()
            finally:
                tasks.app.close()
        same_as(recorder, folder)
    finally:
        shutil.rmtree(folder)
    return recorder


def same_as(recorder: Recorder, folder: str) -> None:
    """Nothing escaped the recorder: all that it has recorded makes the folder that is there."""
    disk = Disk(recorder)
    for op in recorder.ops:
        if op.kind != "mark":
            disk.do(op)
    there = Recorder(folder)
    assert dict(disk.all().files) == there.base, f"{set(disk.all().files) ^ set(there.base) or 'contents'} escaped the recorder"


def replay(
    recorder: Recorder,
    *,
    seed: int = 1,
    draws: int = 0,
    singly: bool = True,
    start: int = 0,
    every: int = 1,
    telling: bool = False,
    judge: Judge = judge,
    enough: int | None = None,
) -> Covered:
    """Lose the power after every operation (from `start` on, or each `every`-th one), in every way; judge each distinct
    state once for what was known then. `singly`: also with each pending part missing, alone, or torn; `draws`: and at random.
    `enough`: stop at so many findings."""
    disk, known, chance = Disk(recorder), Known(), random.Random(seed)
    findings: list[Finding] = []
    seen: set[tuple[bytes, int]] = set()
    for at, op in enumerate(recorder.ops):
        if op.kind == "mark":
            known.take(op)
        else:
            disk.do(op)
        if at < start or (at - start) % every or (telling and not _tells(recorder, at)):
            continue
        for state in disk.states(chance, draws, singly=singly):
            key = (state.digest(), known.facts)
            if key not in seen:
                seen.add(key)
                findings += judge(state, known, at)
                if enough is not None and len(findings) >= enough:
                    return Covered(len(recorder.ops), known.facts, len(seen), findings)
    return Covered(len(recorder.ops), known.facts, len(seen), findings)


def _tells(recorder: Recorder, at: int) -> bool:
    following = recorder.ops[at + 1].kind if at + 1 < len(recorder.ops) else "sync"
    return recorder.ops[at].kind == "mark" or following in ("sync", "syncdir")
