"""The conformance suite's ground: a clock to turn, rows to write, an owner's hand, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubtless.events import Event, Instant, Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.base import Blob, Claim, Store
from doubtless.store.sqlite import SqliteStore

only_sqlite = pytest.mark.parametrize("make_store", ["sqlite"], indirect=True)
"""For what SQLite does in its own way: files, locks."""

CHILD = Path(__file__).with_name("child.py")


class TurnClock:
    """The store's clock of a test: each look is a microsecond later."""

    def __init__(self) -> None:
        self.wall = 1_796_000_000_000_000

    def __call__(self) -> Instant:
        self.wall += 1
        return Instant(self.wall, self.wall - 1_795_000_000_000_000)


class Writer:
    """An owner's hand on one task: seals drafts after the last row and appends them."""

    def __init__(self, store: Store, task_id: str, claim: Claim) -> None:
        self.store = store
        self.task_id = task_id
        self.epoch = claim.epoch
        last = store.last(task_id)
        assert last is not None
        self.seq, self.hash = last.event_seq, row_hash(last)

    def seal(self, *drafts: Event) -> list[Event]:
        return seal(drafts, self.seq, self.hash)

    def append(
        self, *drafts: Event, guard: str | None = None, blobs: tuple[Blob, ...] = (), keep_owner: bool = False
    ) -> list[Event]:
        rows = self.seal(*drafts)
        self.store.append(rows, guard=guard, blobs=blobs, keep_owner=keep_owner)
        self.seq, self.hash = rows[-1].event_seq, row_hash(rows[-1])
        return rows


def accepted(task_id: str, now: Instant) -> Event:
    return draft(
        task_id,
        Kind.TASK_ACCEPTED,
        now,
        step_name="reconcile",
        status=TaskStatus.READY,
        input_hash=b"h" * 32,
        input_ref="inline:{}",
    )


def intended(task_id: str, now: Instant, epoch: int | None, step: int = 1, ref: str | bytes = 'inline:{"amount":1}') -> Event:
    return draft(
        task_id, Kind.STEP_INTENDED, now, step_seq=step, path=str(step), step_name="pay", status="uncertain", attempt=1,
        effect_class="non_idem_write", idempotency_key=b"k" * 32, input_hash=b"i" * 32, input_ref=ref, started_at=now.wall,
        epoch=epoch,
    )  # fmt: skip


def settled(task_id: str, now: Instant, epoch: int | None, step: int = 1, ref: str | bytes = "inline:true") -> Event:
    return draft(
        task_id, Kind.STEP_SETTLED, now, step_seq=step, path=str(step), step_name="pay", status="done", attempt=1, output_ref=ref,
        epoch=epoch,
    )  # fmt: skip


def parked(task_id: str, now: Instant, epoch: int | None, status: str = "waiting", wake_at: int | None = None) -> Event:
    return draft(task_id, Kind.TASK_PARKED, now, status=status, epoch=epoch, data={"wake_at": wake_at, "why": "to look again"})


def case_opened(task_id: str, now: Instant, epoch: int | None) -> Event:
    return draft(
        task_id, Kind.CASE_OPENED, now, path="1", step_name="pay", status="needs_human", epoch=epoch, data={"kind": "doubt"}
    )


def case_settled(task_id: str, now: Instant, case: str, by: str = "ann") -> Event:
    return draft(
        task_id,
        Kind.CASE_SETTLED,
        now,
        path="1",
        data={"case_id": case, "by": by, "why": "I looked", "answer": "abandon", "wake": True},
    )


MakeStore = Callable[..., Store]
Begin = Callable[..., Writer]


class Child:
    """Another process that works on the same store: it says a line per deed, and reads a line to go on."""

    def __init__(self, wall: int, *args: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CHILD_WALL": str(wall)}
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child ended without a word"
        return line.strip()

    def say(self, line: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return code


def forget_claims(store: Any) -> None:
    """As if every thread with a task were gone, and no release had come."""
    (store._owner.tasks if isinstance(store, SqliteStore) else store._leases.held).clear()
