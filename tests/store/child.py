"""What the child processes of this suite do: ``child.py DATABASE DEED ARGUMENTS…``, a line per deed."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from store_ground import Writer, accepted, case_settled, intended

from doubtless.errors import DoubtlessError
from doubtless.events import Instant
from doubtless.store.base import Store
from doubtless.store.sqlite import SqliteStore

WALL, BEGUN = int(os.environ["CHILD_WALL"]), time.monotonic_ns()


def now() -> Instant:
    """The parent's clock as it stood, and on from there."""
    passed = (time.monotonic_ns() - BEGUN) // 1000
    return Instant(WALL + passed, time.monotonic_ns() // 1000)


def opened(place: str) -> Store:
    if not place.startswith("postgresql:"):
        return SqliteStore(place, clock=now)
    from doubtless.store.postgres import PostgresStore

    return PostgresStore(place, clock=now, state="/nowhere", own_clock=True)


def say(*words: object) -> None:
    print(*words, flush=True)


def claim(store: Store, task_id: str, rows: str = "0") -> None:
    """Claim a task (accepting it first), append so many intents, then stand there."""
    if store.head(task_id) is None:
        store.accept(accepted(task_id, now()))
    writer = Writer(store, task_id, store.claim(task_id))
    for step in range(1, int(rows) + 1):
        writer.append(intended(task_id, now(), writer.epoch, step))
    say("claimed", os.getpid(), writer.epoch)
    sys.stdin.readline()


def fork(store: Store, task_id: str) -> None:
    """Claim a task, then fork a child that lives on."""
    store.accept(accepted(task_id, now()))
    store.claim(task_id)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    say("forked", os.getpid(), pid)
    sys.stdin.readline()


def take(store: Store, task_id: str) -> None:
    """Claim a task at a common start; say what came of it."""
    store.head(task_id)
    say("ready")
    sys.stdin.readline()
    try:
        say("takeover" if store.claim(task_id).takeover else "free")
    except DoubtlessError as error:
        say(error.code)
    sys.stdin.readline()


def append(store: Store, task_id: str, rows: str) -> None:
    """Append so many rows, one commit each, from a common start on; say each place of a tenth."""
    store.accept(accepted(task_id, now()))
    writer = Writer(store, task_id, store.claim(task_id))
    say("ready")
    sys.stdin.readline()
    for step in range(1, int(rows) + 1):
        writer.append(intended(task_id, now(), writer.epoch, step))
    say("done")
    sys.stdin.readline()


def settle(store: Store, case: str, by: str) -> None:
    """Answer a case at a common start."""
    task_id = case.rpartition(":")[0]
    store.head(task_id)
    say("ready")
    sys.stdin.readline()
    try:
        store.add(task_id, [case_settled(task_id, now(), case, by)])
        say("settled")
    except DoubtlessError as error:
        say(error.code)


def open_and_say(store: Store) -> None:
    """Open the store at a common start; say its namespace."""
    say("ready")
    sys.stdin.readline()
    say(store.info().namespace.hex())
    store.close()


def lock(store: SqliteStore) -> None:
    """Say whether another process holds SQLite's shared lock on the database file."""
    with open(store.path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
            say("free")
        except OSError:
            say("held")


def die_at(store: SqliteStore, point: str, count: str, task_id: str) -> None:
    """Work until a write point is reached for the n-th time, and be killed there."""
    left = int(count)

    def hook(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    from store_ground import parked, settled

    store = SqliteStore(store.path, clock=now, hooks=hook)
    store.accept(accepted(task_id, now()))
    writer = Writer(store, task_id, store.claim(task_id))
    writer.append(intended(task_id, now(), writer.epoch))
    writer.append(settled(task_id, now(), writer.epoch))
    writer.append(parked(task_id, now(), writer.epoch))
    say("alive")


DEEDS: dict[str, Callable[..., None]] = {
    "claim": claim, "take": take, "fork": fork, "append": append, "settle": settle, "open": open_and_say, "lock": lock,
    "die": die_at,
}  # fmt: skip

if __name__ == "__main__":
    _, path, deed, *rest = sys.argv
    DEEDS[deed](opened(path), *rest)
