"""Migrating, and what is refused at opening: undurable servers, standbys, other tables, and a log that lacks what was seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.server import Server

from doubtless.errors import StoreError, StoreRefused, StoreSuspect, StoreUnavailable
from doubtless.events import STORE_TASK, Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.pg import schema
from doubtless.store.pg.migrate import migrate
from doubtless.store.pg.recover import recover
from doubtless.store.postgres import PostgresStore
from doubtless.store.sql import load
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    """Servers of this test alone."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(**options))
        return made[-1]

    yield make
    for server in made:
        server.remove()


def work(store: PostgresStore, clock: FakeClock, task_id: str = "t-1") -> None:
    """A task that is accepted, claimed and parked."""
    row = draft(
        task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
        input_ref="inline:{}",
    )  # fmt: skip
    assert store.accept(row) is None
    park(store, clock, task_id)


def park(store: PostgresStore, clock: FakeClock, task_id: str = "t-1") -> None:
    claim, last = store.claim(task_id), store.last(task_id)
    assert last is not None
    parked = draft(task_id, Kind.TASK_PARKED, clock.now(), status="waiting", epoch=claim.epoch, data={"wake_at": None})
    store.append(seal([parked], last.event_seq, row_hash(last)))


# ------------------------------------------------------------ migrate


def test_several_processes_that_migrate_at_once_make_one_store(server: Server, tmp_path: Path) -> None:
    url = server.url(mark=str(tmp_path))
    results: list[tuple[int, int]] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        results.append(migrate(url, state=str(tmp_path)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(0, 1), (1, 1), (1, 1), (1, 1)]


def test_a_migration_that_fails_leaves_nothing_behind(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url(mark=str(tmp_path))
    real = schema.statements
    monkeypatch.setattr(schema, "statements", lambda migration, name: real(migration, name) + "; SELECT 1 / 0;")
    with pytest.raises(StoreError, match=r"migration 1 failed, and the store is as it was: nothing was made.*division by zero"):
        migrate(url, state=str(tmp_path))
    monkeypatch.undo()
    assert migrate(url, state=str(tmp_path)) == (0, 1)


def test_a_namespace_is_set_once(server: Server, tmp_path: Path, open_store: Open) -> None:
    url = server.url(mark=str(tmp_path))
    migrate(url, state=str(tmp_path), namespace=b"orders")
    migrate(url, state=str(tmp_path), namespace=b"other")
    assert open_store(url).info().namespace == b"orders"
    with pytest.raises(StoreRefused, match="another namespace"):
        open_store(url, namespace=b"other").info()


def test_a_store_that_is_not_migrated_or_newer_is_refused_with_what_to_type(
    server: Server, tmp_path: Path, open_store: Open, url: str, tamper: Callable[[str], None]
) -> None:
    with pytest.raises(StoreRefused, match="doubtless migrate --store"):
        open_store(server.url(mark=str(tmp_path))).info()
    tamper("INSERT INTO migrations VALUES (2, 2, 0)")
    for deed in (lambda: open_store().info(), lambda: migrate(url, state=str(tmp_path))):
        with pytest.raises(StoreRefused, match="upgrade doubtless"):
            deed()


def test_a_process_that_still_runs_old_code_is_refused_by_a_migration_that_renamed_a_function_and_its_result_waits(
    open_store: Open, clock: FakeClock, tamper: Callable[[str], None]
) -> None:
    store = open_store()
    work(store, clock)
    claim, last = store.claim("t-1"), store.last("t-1")
    assert last is not None
    tamper("ALTER FUNCTION append_1 RENAME TO append_2; ALTER TABLE events RENAME checked_1 TO checked_2")
    row = draft("t-1", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=claim.epoch, data={"handle": "h"})
    with pytest.raises(StoreUnavailable, match="upgrade doubtless") as caught:  # kept and offered again, as rule 6 says
        store.append(seal([row], last.event_seq, row_hash(last)))
    assert caught.value.context["written"] is False
    assert store.last("t-1") == last


@pytest.fixture
def tamper(server: Server, url: str) -> Callable[[str], None]:
    name = url.partition("schema=")[2].partition("&")[0]

    def run(statement: str) -> None:
        with server.connect(options=f"-c search_path={name}") as connection:
            connection.execute(statement.encode())

    return run


def test_the_queries_have_the_names_that_sqlite_s_have() -> None:
    from doubtless.store.schema import queries as of_sqlite

    inside = {  # what SQLite does with statements of one transaction is inside the functions of the schema here
        "append_guarded", "append_unfrozen", "bump", "change_head", "claimed_at", "close_case", "create_head", "begin_head",
        "begin_heads", "begin_rows", "due_free", "due_others", "end_heads", "freeze", "insert",
        "move_key", "open_case", "prune_snapshots", "renew", "schema", "set_suspect", "set_tail", "store_tail", "take_key", "thaw",
    }  # fmt: skip
    own = {
        "accept", "append_direct", "append_direct_unfrozen", "append_heads", "append_heads_direct", "append_rows", "append_several",
        "append_shared_direct", "append_shared_direct_places", "append_shared_direct_unfrozen", "begin", "begin_direct", "claimed",
        "clock",
        "create_schema", "due", "has_schema", "is_migrated", "living", "lock_migrations",
        "migrated", "migrations", "owner_alive", "patience", "renew_leases", "rows_standing", "schema_version", "server", "taken",
        "triggers",
    }  # fmt: skip
    spelled_by_sqlite = {"links"}
    assert set(schema.queries("x")) == set(of_sqlite()) - inside - spelled_by_sqlite | own
    assert load is not None


# ------------------------------------------------------------ what protects the log


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET status = 'done'",
        "DELETE FROM events",
        "TRUNCATE events",
        "INSERT INTO events SELECT * FROM events ON CONFLICT (task_id, event_seq) DO UPDATE SET status = 'done'",
        "INSERT INTO events SELECT task_id, event_seq + 7, step_seq, path, step_name, kind, status, attempt, effect_class, "
        "idempotency_key, input_hash, input_ref, output_ref, error, data, started_at, finished_at, boot_at, epoch, format, "
        "'\\x0000000000000000000000000000000000000000000000000000000000000000' FROM events",
        "SET session_replication_role = replica; DELETE FROM events",
        "UPDATE blobs SET content = ''",
        "DELETE FROM blobs",
        "TRUNCATE blobs",
    ],
)
def test_no_statement_of_a_superuser_changes_or_removes_what_is_recorded(
    open_store: Open, clock: FakeClock, tamper: Callable[[str], None], statement: str
) -> None:
    store = open_store()
    work(store, clock)
    store.folder.put(b"d" * 32, b"content")
    before = store.rows("t-1")
    with pytest.raises(psycopg.Error):
        tamper(statement)
    assert store.rows("t-1") == before
    assert store.blob(b"d" * 32) == b"content"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER TABLE events DISABLE TRIGGER events_append_only", "events_append_only is gone"),
        ("DROP TRIGGER events_gapless ON events", "events_gapless is gone"),
        ("UPDATE tasks SET status = 'done'", "the head's status is 'done'"),
        ("UPDATE meta SET suspect = true", "suspect is True"),
        ("INSERT INTO blobs VALUES (decode(repeat('00', 32), 'hex'), 'x')", "is damaged"),
        (
            "ALTER TABLE events DISABLE TRIGGER ALL; UPDATE events SET started_at = 5 WHERE event_seq = 1; "
            "ALTER TABLE events ENABLE ALWAYS TRIGGER events_append_only; ALTER TABLE events ENABLE ALWAYS TRIGGER events_gapless",
            "row 1 is not what it was",
        ),
        (
            "ALTER TABLE events DISABLE TRIGGER ALL; DELETE FROM events WHERE event_seq = 2; "
            "ALTER TABLE events ENABLE ALWAYS TRIGGER events_append_only; ALTER TABLE events ENABLE ALWAYS TRIGGER events_gapless",
            "row 2",
        ),
    ],
)
def test_verify_finds_what_somebody_with_all_rights_has_done(
    open_store: Open, clock: FakeClock, tamper: Callable[[str], None], statement: str, said: str
) -> None:
    store = open_store()
    work(store, clock)
    assert store.verify() == []
    tamper("GRANT UPDATE, DELETE ON events TO CURRENT_USER")
    tamper(statement)
    assert any(said in problem.what for problem in store.verify()), store.verify()


# ------------------------------------------------------------ servers on which no log can be kept


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fsync": "off"}, "fsync=off"),
        ({"synchronous_commit": "off"}, "synchronous_commit=off"),
        ({"synchronous_commit": "local", "synchronous_standby_names": "a"}, "synchronous_commit=local"),
        ({"default_transaction_isolation": "serializable"}, "default_transaction_isolation"),
    ],
)
def test_a_server_whose_commits_are_not_durable_is_refused_with_the_reason(
    server: Server, url: str, open_store: Open, clock: FakeClock, settings: dict[str, str], said: str
) -> None:
    options = " ".join(f"-c {name}={value}" for name, value in settings.items() if name == "default_transaction_isolation")
    try:
        with server.connect() as connection:
            for name, value in settings.items():
                if not options:
                    connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
        until_set(server, settings if not options else {})
        store = open_store(url + (f"&options={options.replace(' ', '%20')}" if options else ""))
        with pytest.raises(StoreRefused, match=said):
            store.info()
        assert open_store(url, read_only=True).heads() == []
    finally:
        with server.connect() as connection:
            connection.execute("ALTER SYSTEM RESET ALL")
            connection.execute("SELECT pg_reload_conf()")
        until_set(server, {"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""})


def until_set(server: Server, settings: dict[str, str]) -> None:
    """Return when new connections see the settings: a reload is a signal."""
    for _ in range(500):
        with server.connect() as connection:
            now = {name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in settings}
        if all(row is not None and row[0] == settings[name] for name, row in now.items()):
            return
        threading.Event().wait(0.01)
    raise AssertionError(now)


def test_a_server_that_is_made_undurable_while_it_is_used_takes_no_append_any_more(
    server: Server, url: str, open_store: Open, clock: FakeClock
) -> None:
    store = open_store()
    work(store, clock)
    assert store.place.schema
    with server.connect() as connection:
        connection.execute("ALTER ROLE doubtless SET synchronous_commit = off")
        try:
            store.close()  # the next one is a new session, as one of a pooler may be
            taken = store._link._admit
            store._link._admit = lambda connection: None
            with pytest.raises(StoreUnavailable, match="would not be durable"):
                work(store, clock, "t-2")
            store._link._admit = taken
        finally:
            connection.execute("ALTER ROLE doubtless RESET synchronous_commit")


def test_a_standby_is_refused_for_writes_and_can_be_looked_at_and_after_a_promotion_a_person_is_asked(
    own_server: Callable[..., Server], tmp_path: Path, clock: FakeClock
) -> None:
    primary = own_server().start(wal_level="replica", wal_keep_size="64MB")
    with (Path(primary.data) / "pg_hba.conf").open("a") as file:
        file.write("host replication all 127.0.0.1/32 trust\n")
    url = primary.url(mark=str(tmp_path / "mark"), schema="doubtless")
    migrate(url, state=str(tmp_path))
    options: dict[str, Any] = {"clock": clock.now, "own_clock": True, "heartbeat": False, "state": str(tmp_path)}
    store = PostgresStore(url, **options)
    work(store, clock)
    store.close()
    with primary.connect() as connection:
        connection.execute("CHECKPOINT")
    primary.stop()
    standby = own_server(data=primary.data)
    Path(standby.data, "standby.signal").touch()
    standby.start()
    there = url.replace(f":{primary.port}/", f":{standby.port}/")
    with pytest.raises(StoreRefused, match="is a standby"):
        PostgresStore(there, **options).info()
    look = PostgresStore(there, read_only=True, **options)
    assert [head.task_id for head in look.heads()] == ["t-1"]
    look.close()
    with standby.connect() as connection:
        connection.execute("SELECT pg_promote()")
    there = there.replace(str(tmp_path / "mark"), str(tmp_path / "mark"))
    _copy_mark(tmp_path, url, there)
    with pytest.raises(StoreSuspect, match="timeline"):
        PostgresStore(there, **options).info()
    calm = PostgresStore(there + "&failover=synchronous", **options)
    assert calm.info().suspect is False
    calm.close()


def _copy_mark(tmp_path: Path, one: str, other: str) -> None:
    """As if the server had kept its address."""
    from doubtless.store.pg.place import place_of
    from doubtless.store.postgres import mark_of

    old, new = (Path(mark_of(place_of(url), str(tmp_path)).path) for url in (one, other))
    new.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(old, new)


# ------------------------------------------------------------ the mark (C20)


def test_a_database_restored_from_an_old_backup_is_refused_with_the_command_to_type(
    own_server: Callable[..., Server], tmp_path: Path, clock: FakeClock
) -> None:
    first = own_server().start()
    url = first.url(mark=str(tmp_path / "mark"), schema="doubtless")
    migrate(url, state=str(tmp_path))
    options: dict[str, Any] = {"clock": clock.now, "own_clock": True, "heartbeat": False, "state": str(tmp_path)}
    store = PostgresStore(url, **options)
    work(store, clock, "t-1")
    store.close()
    first.stop()
    backup = str(tmp_path / "backup")
    subprocess.run(["cp", "-a", first.data, backup], check=True)
    first.start()
    work(store, clock, "t-2")
    store.close()
    first.stop()
    shutil.rmtree(first.data)
    subprocess.run(["cp", "-a", backup, first.data], check=True)
    first.start()
    again = PostgresStore(url, **options)
    with pytest.raises(StoreSuspect, match="row 2 of task t-2, which was committed, is not there") as caught:
        again.info()
    assert "doubtless recover --accept" in str(caught.value)
    assert any("does not fit its mark" in problem.what for problem in again.verify())
    found = recover(url, clock=clock.now, state=str(tmp_path), accept=True, by="kim", why="the backup of 03:00")
    assert found.accepted and "t-2" in found.reason
    assert again.info().suspect
    row = again.last(STORE_TASK)
    assert row is not None and row.kind == Kind.STORE_RECOVERED and row.details["by"] == "kim"
    # Another machine had seen the lost task too: it takes over what a person has accepted, and the mark follows.
    other = PostgresStore(url.replace(str(tmp_path / "mark"), str(tmp_path / "other")), **options)
    other.info()
    other.end_suspect(by="kim", why="counted")
    work(again, clock, "t-9")  # a process that goes on sees it as it claims
    assert not again.info().suspect
    assert again.verify() == []
    for one in (again, other):
        one.close()


def test_another_machine_takes_over_a_recovery_that_a_person_has_accepted(
    url: str, tmp_path: Path, open_store: Open, clock: FakeClock, tamper: Callable[[str], None]
) -> None:
    elsewhere = url.replace(str(tmp_path / "mark"), str(tmp_path / "other"))
    for where in (url, elsewhere):
        store = open_store(where)
        work(store, clock, f"t-{where[-6:]}".replace("/", "-"))
        store.close()
    recover(url, clock=clock.now, state=str(tmp_path), accept=True, by="kim", why="a restore")
    there = open_store(elsewhere)
    assert there.info().suspect
    work(there, clock, "t-3")
    there.close()
    assert open_store(elsewhere).head("t-3") is not None


def test_a_database_without_tables_where_a_store_was_is_neither_opened_nor_migrated(
    url: str, tmp_path: Path, open_store: Open, clock: FakeClock, tamper: Callable[[str], None]
) -> None:
    store = open_store()
    work(store, clock)
    store.close()
    tamper(f"DROP SCHEMA {store.place.schema} CASCADE")
    with pytest.raises(StoreSuspect, match="there was a store"):
        open_store().info()
    with pytest.raises(StoreSuspect, match="there was a store"):
        migrate(url, state=str(tmp_path))


def test_a_mark_that_cannot_be_kept_is_refused_and_a_damaged_one_is_no_mark(
    url: str, tmp_path: Path, open_store: Open, clock: FakeClock
) -> None:
    store = open_store()
    work(store, clock)
    store.close()
    path = Path(store._mark.path)
    whole = path.read_bytes()
    for change in (whole[:-1], b"x" + whole[1:], whole[:100] + b"0" + whole[101:]):
        path.write_bytes(change)
        if change != whole:
            with pytest.raises(StoreSuspect, match="the mark cannot be used"):
                open_store().info()
    path.write_bytes(whole)
    assert open_store().info().suspect is False
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreRefused, match="the mark cannot be kept"):
        open_store(url.replace(str(tmp_path / "mark"), str(blocked))).info()


def test_recover_is_refused_while_a_process_runs_tasks(url: str, tmp_path: Path) -> None:
    from doubtless.clocks import SystemClock

    store = PostgresStore(url, clock=SystemClock("boot").now, state=str(tmp_path), heartbeat=False)
    row = draft(
        "t-1", Kind.TASK_ACCEPTED, store.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
        input_ref="inline:{}",
    )  # fmt: skip
    store.accept(row)
    claim = store.claim("t-1")
    with pytest.raises(StoreRefused, match="runs tasks of"):
        recover(url, clock=store._local, state=str(tmp_path), accept=True, by="kim", why="x")
    store.release("t-1", claim.epoch)
    assert recover(url, clock=store._local, state=str(tmp_path), accept=False).reason == ""
    store.close()


def test_the_command_line_migrates_looks_and_recovers(server: Server, tmp_path: Path) -> None:
    url = server.url(mark=str(tmp_path / "mark"))

    def cli(*args: str, code: int = 0) -> Any:
        done = subprocess.run(
            [os.path.join(os.path.dirname(os.sys.executable), "doubtless"), *args, "--store", url, "--json"],  # type: ignore[attr-defined]
            capture_output=True, text=True, check=False, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    assert cli("migrate")["after"] == 1
    assert cli("migrate")["before"] == 1
    assert cli("tasks") == {"tasks": []}
    assert cli("verify") == {"problems": []}
    assert cli("recover")["reason"] is None
    assert cli("recover", "--accept", "--by", "kim", "--why", "x")["suspect"] is True
    assert cli("recover", "--end", "--by", "kim", "--why", "x")["suspect"] is False


def test_a_process_that_is_running_notices_that_the_database_behind_its_url_was_replaced_by_an_older_one(
    own_server: Callable[..., Server], tmp_path: Path, clock: FakeClock
) -> None:
    server = own_server().start()
    url = server.url(mark=str(tmp_path / "mark"), schema="doubtless")
    migrate(url, state=str(tmp_path))
    store = PostgresStore(url, clock=clock.now, own_clock=True, heartbeat=False, state=str(tmp_path))
    work(store, clock, "t-1")
    server.stop()
    backup = str(tmp_path / "backup")
    subprocess.run(["cp", "-a", server.data, backup], check=True)
    server.start()
    row = draft("t-1", Kind.EVENT_RECEIVED, clock.now(), data={"name": "n"})
    store.add("t-1", [row])  # wakes it: no claim, no park, so that the mark knows nothing of it
    claim, last = store.claim("t-1"), store.last("t-1")
    assert last is not None
    intent = draft("t-1", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=claim.epoch, data={"handle": "h"})
    store.append(seal([intent], last.event_seq, row_hash(last)))
    server.stop()
    shutil.rmtree(server.data)
    subprocess.run(["cp", "-a", backup, server.data], check=True)
    server.start()
    with pytest.raises(StoreSuspect, match="which this process has written, is not there"):
        store.rows("t-1")
    store._leases.held.clear()
    store.close()


def test_a_role_with_no_more_rights_than_the_docs_list_can_do_everything_a_worker_does(
    server: Server, url: str, open_store: Open, clock: FakeClock
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text(encoding="utf-8")
    grants = page.partition("```sql\n")[2].partition("```")[0]
    name = url.partition("schema=")[2].partition("&")[0]
    role = f"worker_{name}"
    with server.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(grants.replace("doubtless", name).replace("worker;", f"{role};").encode())
    store = open_store(url.replace("postgresql://doubtless@", f"postgresql://{role}@"))
    work(store, clock)
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock.now(), step_name="pay", data={"by": "a", "why": "b"})])
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_THAWED, clock.now(), step_name="pay", data={"by": "a"})])
    store.folder.put(b"d" * 32, b"content")
    store.place_blobs("file:///x#y")
    claim = store.claim("t-1")
    store.leases.beat()
    store.release("t-1", claim.epoch)
    store.drop_snapshots()
    assert [p for p in store.verify() if "sha256" not in p.what] == []
    for statement in ("UPDATE events SET status = 'done'", "DELETE FROM events", "TRUNCATE events", "DELETE FROM tasks"):
        with pytest.raises(StoreRefused, match="permission denied"):
            store._link.one(statement.replace("events", f"{name}.events").replace("tasks", f"{name}.tasks"))


def test_a_role_that_is_no_superuser_migrates_and_works_and_may_not_change_its_own_log(
    server: Server, tmp_path: Path, open_store: Open, clock: FakeClock
) -> None:
    name = server.fresh()
    role = f"owner_{name}"
    with server.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        url = server.url(mark=str(tmp_path / "mark"), schema=name).replace("postgresql://doubtless@", f"postgresql://{role}@")
        with pytest.raises(StoreRefused, match="may not make the tables"):
            migrate(url, state=str(tmp_path))
        connection.execute(f"CREATE SCHEMA {name} AUTHORIZATION {role}".encode())
    assert migrate(url, state=str(tmp_path)) == (0, 1)
    store = open_store(url)
    work(store, clock)
    for statement in ("UPDATE {0}.events SET status = 'done'", "DELETE FROM {0}.events", "TRUNCATE {0}.blobs"):
        with pytest.raises(StoreRefused, match="permission denied"):
            store._link.one(statement.format(name))
    assert store.verify() == []


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ("connections=99999999999999999999", "from 1 to 1,000 connections"),
        ("connections=0", "from 1 to 1,000 connections"),
        ("lease=P10000D", "a lease lasts from a second to a day"),
        ("schema=one&schema=two", "says schema twice"),
    ],
)
def test_a_url_that_asks_for_what_no_process_can_have_is_refused_at_once(says: str, said: str) -> None:
    from doubtless.store.pg.place import place_of

    with pytest.raises(StoreRefused, match=said):
        place_of(f"postgresql://ann:secret@host/db?{says}&sslpassword=hidden")
    with pytest.raises(StoreRefused) as caught:
        place_of(f"postgresql://ann:secret@host/db?{says}&sslpassword=hidden")
    assert "hidden" not in str(caught.value)
    assert "secret" not in str(caught.value)
