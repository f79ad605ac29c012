"""A schema that goes on: numbered migrations beside the first one, several at once, old code on the new tables, and failures.

The migrations here are the tests' own; the machinery that runs them is `doubtless migrate`'s.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres.server import Server

from doubtless import Doubtless
from doubtless.errors import StoreError, StoreRefused, StoreUnavailable
from doubtless.events import Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.base import Wanted
from doubtless.store.pg import migrate as migrating
from doubtless.store.pg import opening, schema
from doubtless.store.pg.migrate import migrate
from doubtless.store.pg.schema import Migration, read_migrations
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]
GATE = 77001
"""The number of a lock that the tests hold while a migration is to stand still."""

ADDS = """-- Adds only: what older programs write and read stays as it is.
-- needs: 1
ALTER TABLE {{schema}}.events ADD COLUMN trace text;
ALTER TABLE {{schema}}.tasks ADD COLUMN region text;
CREATE INDEX tasks_by_region ON {{schema}}.tasks (region) WHERE region IS NOT NULL;
CREATE TABLE {{schema}}.names (task_name text PRIMARY KEY, tasks bigint NOT NULL);
INSERT INTO {{schema}}.names SELECT task_name, count(*) FROM {{schema}}.tasks GROUP BY task_name;
"""
BREAKS = """-- Gives an append another meaning: what does it gets a new name, and the old one goes.
ALTER FUNCTION {{schema}}.append_1 RENAME TO append_3;
ALTER TABLE {{schema}}.events RENAME checked_1 TO checked_3;
"""
STANDS_STILL = ADDS + f"SELECT pg_advisory_xact_lock({GATE});\n"
FAILS = BREAKS + "DROP TABLE {{schema}}.freezes;\nSELECT 1 / 0;\n"


@pytest.fixture
def later(tmp_path: Path) -> Callable[..., tuple[Migration, ...]]:
    """The package's migrations with others after them, as files in a folder."""

    def make(*texts: str) -> tuple[Migration, ...]:
        folder = tmp_path / f"sql-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for own in schema.migrations():
            (folder / f"{own.number:04}.sql").write_text(own.text)
        for number, text in enumerate(texts, len(schema.migrations()) + 1):
            (folder / f"{number:04}.sql").write_text(text)
        return read_migrations(str(folder))

    return make


@pytest.fixture
def gate(server: Server) -> Iterator[Callable[[], None]]:
    """Shut while the test begins; what it gives opens it."""
    with server.connect() as connection:
        connection.execute(f"SELECT pg_advisory_lock({GATE})".encode())
        yield lambda: connection.execute(f"SELECT pg_advisory_unlock({GATE})".encode())  # type: ignore[func-returns-value]


class Hand:
    """An owner's hand on one task, which appends a row whenever it is told to."""

    def __init__(self, store: PostgresStore, clock: FakeClock, task_id: str = "t-1") -> None:
        self.store, self.clock, self.task_id = store, clock, task_id
        row = draft(
            task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
            input_ref="inline:{}",
        )  # fmt: skip
        assert store.accept(row) is None
        self.epoch = store.claim(task_id).epoch

    def append(self) -> None:
        last = self.store.last(self.task_id)
        assert last is not None
        row = draft(
            self.task_id, Kind.HANDLE_RECORDED, self.clock.now(), path="1", step_seq=1, epoch=self.epoch, data={"handle": "h"}
        )
        self.store.append(seal([row], last.event_seq, row_hash(last)))

    def park(self) -> None:
        last = self.store.last(self.task_id)
        assert last is not None
        row = draft(self.task_id, Kind.TASK_PARKED, self.clock.now(), status="waiting", epoch=self.epoch, data={"wake_at": None})
        self.store.append(seal([row], last.event_seq, row_hash(last)))


def asked(server: Server, url: str, sql: str) -> list[tuple[Any, ...]]:
    """What a superuser is told."""
    name = url.partition("schema=")[2].partition("&")[0]
    with server.connect(options=f"-c search_path={name}") as connection:
        return connection.execute(sql.encode()).fetchall()


def until(server: Server, what: str, count: int = 1) -> None:
    """Return when so many server processes wait for a lock."""
    for _ in range(3000):
        with server.connect() as connection:
            found = connection.execute(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {what}".encode()).fetchone()
        if found is not None and found[0] >= count:  # type: ignore[operator]
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"nobody waits: {what}")


MIGRATES = """
import json, sys
from doubtless.store.pg.migrate import migrate
from doubtless.store.pg.schema import read_migrations
print(json.dumps(migrate(sys.argv[1], state=sys.argv[2], migrations=read_migrations(sys.argv[3]))), flush=True)
"""


def process(url: str, state: Path, migrations: tuple[Migration, ...]) -> subprocess.Popen[str]:
    """Another process that migrates."""
    folder = state / f"for-{len(list(state.iterdir()))}"
    folder.mkdir()
    for each in migrations:
        (folder / f"{each.number:04}.sql").write_text(each.text)
    command = [sys.executable, "-c", MIGRATES, url, str(state), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# ------------------------------------------------------------ several at once


def test_of_two_processes_that_migrate_at_once_one_does_it_and_the_other_finds_it_done(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any
) -> None:
    Hand(open_store(), clock).park()
    name = url.partition("schema=")[2].partition("&")[0]
    with server.connect() as holder:
        holder.execute("SELECT pg_advisory_lock(1684172402, hashtext(%s))", (name,))
        both = [process(url, tmp_path, later(ADDS)) for _ in range(2)]
        until(server, "locktype = 'advisory' AND classid = 1684172402", 2)
    said = [one.communicate(timeout=60) for one in both]
    assert sorted(json.loads(out) for out, _ in said) == [[1, 2], [2, 2]], said
    assert asked(server, url, "SELECT number, needs FROM migrations ORDER BY number") == [(1, 1), (2, 1)]
    assert asked(server, url, "SELECT task_name, tasks FROM names") == [("task", 1)]


# ------------------------------------------------------------ old code on the new tables


def test_old_code_goes_on_through_a_migration_that_only_adds_and_after_it(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any
) -> None:
    running = open_store()
    hand = Hand(running, clock)
    hand.append()
    wanted = Wanted(("task",))
    assert running.due(wanted, limit=1, now=0).claims == []
    before = running.rows("t-1")
    assert migrate(url, state=str(tmp_path), migrations=later(ADDS)) == (1, 2)
    hand.append()  # on connections and plans from before
    hand.park()
    assert running.rows("t-1")[: len(before)] == before
    (claim,) = running.due(wanted, limit=1, now=0).claims
    running.release("t-1", claim.epoch)
    again = open_store()  # a process of the old code that begins now
    assert again.info().schema == 2
    Hand(again, clock, "t-2").park()
    assert [head.task_id for head in again.heads()] == ["t-1", "t-2"]
    assert again.verify() == []
    assert migrate(url, state=str(tmp_path)) == (2, 2)  # an old program that migrates as it starts
    assert asked(server, url, "SELECT max(number) FROM migrations") == [(2,)]


def test_an_app_of_the_old_code_runs_its_tasks_on_the_new_tables(
    url: str, tmp_path: Path, make_app: Callable[..., Doubtless], later: Any
) -> None:
    migrate(url, state=str(tmp_path), migrations=later(ADDS))
    app = make_app()
    sent: list[int] = []
    both = threading.Event()

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> dict[str, int]:
        sent.append(amount)
        if len(sent) == 2:
            both.set()
        return {"paid": amount}

    @app.task
    def settle() -> int:
        return sum(pay(amount=amount)["paid"] for amount in (1, 2))

    app.start(settle, "s-1")
    with app.worker(concurrency=1) as worker:
        assert both.wait(30)
    assert worker.errors == []
    assert sent == [1, 2]
    assert app.verify() == []


def test_what_is_appended_while_a_migration_has_the_tables_waits_and_is_there_once(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any, gate: Callable[[], None]
) -> None:
    hand = Hand(open_store(), clock)
    results: list[tuple[int, int]] = []
    migrations = later(STANDS_STILL)
    migrator = threading.Thread(target=lambda: results.append(migrate(url, state=str(tmp_path), migrations=migrations)))
    migrator.start()
    until(server, f"locktype = 'advisory' AND objid = {GATE}")  # its tables are changed, and not committed
    appender = threading.Thread(target=hand.append)
    appender.start()
    until(server, "locktype = 'relation'")
    gate()
    migrator.join()
    appender.join()
    assert results == [(1, 2)]
    assert [row.kind for row in hand.store.rows("t-1")] == [Kind.TASK_ACCEPTED, Kind.HANDLE_RECORDED]
    hand.park()
    assert hand.store.verify() == []


def test_a_migration_that_breaks_with_old_code_is_refused_to_it_when_it_begins_and_while_it_runs_and_nothing_is_lost(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(open_store(), clock)
    hand.append()
    before = hand.store.rows("t-1")
    migrations = later(ADDS, BREAKS)
    assert migrate(url, state=str(tmp_path), migrations=migrations) == (1, 3)
    with pytest.raises(StoreUnavailable, match="upgrade doubtless") as caught:  # kept and offered again, as rule 6 says
        hand.append()
    assert caught.value.context["written"] is False
    for deed in (lambda: open_store().info(), lambda: migrate(url, state=str(tmp_path)), hand.store._link.renew):
        with pytest.raises(StoreRefused, match=r"has schema 3, which takes a version that knows 3; this knows 1.*upgrade doubtless"):
            deed()
    assert asked(server, url, "SELECT number, needs FROM migrations ORDER BY number") == [(1, 1), (2, 1), (3, 3)]
    monkeypatch.setattr(opening, "SCHEMA", 3)  # as the version does that came with it
    monkeypatch.setattr(schema, "migrations", lambda: migrations)
    newer = open_store()
    assert newer.info().schema == 3
    assert newer.rows("t-1") == before


def test_new_code_on_old_tables_is_refused_with_what_to_type(url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SCHEMA", 2)
    with pytest.raises(StoreRefused, match=r"has schema 1; this version needs 2.*doubtless migrate --store"):
        open_store().info()


# ------------------------------------------------------------ failures


def test_a_migration_that_fails_in_the_middle_leaves_the_schema_before_it_whole_and_says_so(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any
) -> None:
    hand = Hand(open_store(), clock)
    hand.append()
    with pytest.raises(StoreError, match="migration 3 failed, and the store is as it was, at schema 1: division by zero") as said:
        migrate(url, state=str(tmp_path), migrations=later(ADDS, FAILS))
    assert "migrate again" in str(said.value.hint)
    assert asked(server, url, "SELECT number FROM migrations") == [(1,)]
    assert asked(server, url, "SELECT to_regclass('names'), to_regclass('freezes') IS NOT NULL") == [(None, True)]
    hand.append()
    hand.park()
    assert open_store().info().schema == 1
    assert hand.store.verify() == []
    assert migrate(url, state=str(tmp_path), migrations=later(ADDS, "-- needs: 1\nSELECT 1;")) == (1, 3)
    assert len(open_store().rows("t-1")) == 4
    assert open_store().verify() == []


def test_a_process_that_is_killed_in_the_middle_of_a_migration_has_changed_nothing(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any, gate: Callable[[], None]
) -> None:
    hand = Hand(open_store(), clock)
    one = process(url, tmp_path, later(STANDS_STILL))
    until(server, f"locktype = 'advisory' AND objid = {GATE}")
    one.kill()
    one.communicate()
    gate()
    hand.append()  # once the server has noticed that nobody is there, its tables are free again
    hand.park()
    assert asked(server, url, "SELECT number FROM migrations") == [(1,)]
    assert asked(server, url, "SELECT to_regclass('names')") == [(None,)]
    assert hand.store.verify() == []
    assert migrate(url, state=str(tmp_path), migrations=later(ADDS)) == (1, 2)


def test_a_migration_does_not_keep_everybody_waiting_behind_somebody_who_reads_for_long(
    server: Server, url: str, tmp_path: Path, open_store: Open, clock: FakeClock, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(open_store(), clock)
    monkeypatch.setattr(migrating, "PATIENCE", "50ms")
    name = url.partition("schema=")[2].partition("&")[0]
    said: list[BaseException] = []
    migrations = later(ADDS)

    def run() -> None:
        try:
            migrate(url, state=str(tmp_path), migrations=migrations)
        except StoreUnavailable as error:
            said.append(error)

    migrator = threading.Thread(target=run)
    with server.connect() as reader, reader.transaction():
        reader.execute(f"SELECT count(*) FROM {name}.events".encode())
        migrator.start()
        migrator.join(20)
        assert said, "it still waits, and everybody behind it"
        hand.append()
    migrator.join()
    (why,) = said
    assert "migration 2 failed, and the store is as it was, at schema 1: somebody has kept a table for more than" in str(why)
    assert migrate(url, state=str(tmp_path), migrations=migrations) == (1, 2)
    hand.park()
    assert hand.store.verify() == []


# ------------------------------------------------------------ the files


def test_the_migrations_of_this_version_are_numbered_without_a_gap_and_the_newest_is_the_one_it_knows(
    tmp_path: Path,
) -> None:
    own = schema.migrations()
    assert [each.number for each in own] == list(range(1, schema.SCHEMA + 1))
    assert all(1 <= each.needs <= each.number for each in own)
    for number in (1, 3):
        (tmp_path / f"{number:04}.sql").write_text("SELECT 1;")
    with pytest.raises(ValueError, match="without a gap"):
        read_migrations(str(tmp_path))
