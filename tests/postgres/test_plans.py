"""What workers ask every few seconds costs what is due, however many tasks wait: counted in rows that are touched, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.server import Server

from doubtless.events import IDLE, TERMINAL, TaskStatus, dump
from doubtless.store.pg.schema import queries

MANY = 20_000
NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000
NAMES = [f"task{number}" for number in range(5)]
COLUMNS = (
    "task_id, task_name, status, input_hash, owner, epoch, lease_until, wake_at, created_at, updated_at, why, claimed_at, awaits,"
    " queue, priority, tail_seq, tail_hash"
)


def head(task_id: str, number: int, status: str, **more: Any) -> tuple[Any, ...]:
    said = {
        "name": NAMES[number % 5], "owner": None, "epoch": None, "lease": None, "wake_at": None, "why": None, "awaits": None,
        "priority": 0, **more,
    }  # fmt: skip
    digest = b"h" * 32
    return (
        task_id, said["name"], status, digest, said["owner"], said["epoch"], said["lease"], said["wake_at"], NOW - number,
        NOW - number, said["why"], None, said["awaits"], "default", said["priority"], 1, digest,
    )  # fmt: skip


def heads() -> Iterator[tuple[Any, ...]]:
    """Many that wait, each in its own way; a few that are due."""
    for n in range(MANY):
        yield head(f"sleeps-{n}", n, "waiting", wake_at=NOW + HOUR + n, why="to look again")
        yield head(f"ended-{n}", n, "done")
    for n in range(MANY // 2):
        yield head(f"session-{n}", n, "waiting", name="$session", why=IDLE[n % 2])
        yield head(f"sleeps-{n}/1", n, "waiting", wake_at=NOW + HOUR + n, why="to look again")
    for n in range(MANY // 20):
        yield head(f"asks-{n}", n, "needs_human")
        yield head(f"awaits-{n}", n, "waiting", awaits=f"key-{n}", wake_at=NOW + HOUR)
    for n in range(20):
        yield head(f"runs-{n}", n, "running", owner=f"{n}@h", epoch=n + 1, lease=NOW + HOUR)
    yield head("lost", 0, "running", owner="dead@h", epoch=99, lease=NOW - 1)
    yield head("ready", 1, "ready", priority=1)
    yield head("woken", 2, "waiting", wake_at=NOW - 1)
    yield head("told", 3, "waiting", wake_at=NOW + HOUR, awaits="moved")
    yield head("sleeps-7/2", 4, "ready")


@pytest.fixture(scope="module")
def crowd(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A store with many tasks, loaded behind its back, and a connection that sees how it is read."""
    from doubtless.store.pg.migrate import migrate

    folder = str(tmp_path_factory.mktemp("plans"))
    name = postgres_server.fresh()
    migrate(postgres_server.url(mark=folder, schema=name), state=folder)
    with postgres_server.connect(options=f"-c search_path={name}", cursor_factory=psycopg.RawCursor) as connection:
        with connection.cursor().copy(f"COPY tasks ({COLUMNS}) FROM STDIN".encode()) as copy:
            for row in heads():
                copy.write_row(row)
        with connection.cursor().copy(b"COPY keys (once, turn, task_id, path, state) FROM STDIN") as copy:
            for n in range(MANY // 20):
                copy.write_row((f"key-{n}", 1, f"o-{n}", "1", "open"))
            copy.write_row(("moved", 1, "o", "1", "freed"))
        connection.execute(b"VACUUM ANALYZE tasks, keys")
        yield connection, name


LIVE = dump([status for status in TaskStatus if status not in TERMINAL])
ASKED: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "due": (
        ([*NAMES, "$session"], None, list(IDLE), 10, "me@h", list(range(1000, 1010)), HOUR, NOW),
        ["lost", "ready", "sleeps-7/2", "told", "woken"],
    ),
    "heads_due": ((-1, LIVE, NOW), sorted(["lost", "ready", "sleeps-7/2", "told", "woken", *(f"runs-{n}" for n in range(20))])),
    "next_due": ((NOW,), []),
    "strangers": (([*NAMES, "$session"], None, 100), []),
    "owner_alive": (("5@h", NOW), []),
    "taken": (("5@h", [6]), ["runs-5"]),
}
"""What a worker asks, and a sweep: its arguments, and the tasks that it is told."""


def touched(connection: psycopg.Connection[Any], name: str) -> tuple[int, int]:
    """How many heads this session has read so far: by reading the whole table, by an index."""
    sql = b"SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'tasks' AND schemaname = $1"
    row = connection.execute(sql, (name,)).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


@pytest.mark.parametrize("query", ASKED)
def test_what_workers_ask_reads_what_is_due_and_not_what_waits(crowd: tuple[psycopg.Connection[Any], str], query: str) -> None:
    connection, name = crowd
    args, told = ASKED[query]
    for _ in range(7):  # after five of them a server may take one plan for all arguments
        with connection.transaction(force_rollback=True):
            connection.execute(b"SET LOCAL max_parallel_workers_per_gather = 0")  # other processes are not counted here
            before = touched(connection, name)
            found = connection.execute(queries(name)[query].encode(), args).fetchall()
            whole, by_index = (after - was for after, was in zip(touched(connection, name), before, strict=True))
        assert whole == 0, "the whole table was read"
        assert by_index < 150, "what waits was read, too"
        if told:
            assert sorted(row[0] for row in found) == told


def test_a_backlog_is_taken_in_its_order_without_looking_at_all_of_it(crowd: tuple[psycopg.Connection[Any], str]) -> None:
    connection, name = crowd
    with connection.transaction(force_rollback=True):
        with connection.cursor().copy(f"COPY tasks ({COLUMNS}) FROM STDIN".encode()) as copy:
            for n in range(5_000):
                copy.write_row(head(f"backlog-{n}", n, "ready", priority=n % 7 - 9))
        before = touched(connection, name)
        found = connection.execute(queries(name)["due"].encode(), ASKED["due"][0]).fetchall()
        after = touched(connection, name)
    first = sorted((n % 7 - 9, NOW - n, f"backlog-{n}") for n in range(5_000))[:10]
    assert sorted(row[0] for row in found if row[0].startswith("backlog")) == sorted(one[2] for one in first)
    assert after[0] == before[0]
    assert after[1] - before[1] < 150
