"""The append that a step waits for: prepared where the server itself answers, and the database's own word on each row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.postgres.server import Server
from tests.postgres.test_connections import accepted, handles, through  # noqa: F401 - a fixture
from tests.postgres.wire import Pooler

from doubtless.errors import StoreUnavailable
from doubtless.events import STORE_TASK, Event, Instant, Kind, draft, row_hash, seal
from doubtless.store.pg.appending import Appending, Direct, values_of
from doubtless.store.pg.clock import LATELY
from doubtless.store.pg.link import Session
from doubtless.store.pg.rows import params_of
from doubtless.store.pg.schema import queries
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]


def test_an_append_is_prepared_once_where_the_server_itself_answers(open_store: Open, clock: FakeClock) -> None:
    store = open_store()
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    for _ in range(3):
        store.append(handles(store, clock, claim.epoch))
    (session,) = store._link._idle
    assert session.direct
    found = session.execute("SELECT name, generic_plans + custom_plans FROM pg_prepared_statements").fetchall()
    assert found == [(next(iter(session.prepared)).decode(), 3)]


@pytest.mark.parametrize("direct", [True, False])
def test_a_pooler_that_looks_like_the_server_itself_takes_every_row_once(
    open_store: Open,
    server: Server,
    through: Callable[[int], PostgresStore],  # noqa: F811
    clock: FakeClock,
    direct: bool,
) -> None:
    """Each transaction runs in another server process than the one before; `direct`: the store takes them for one."""
    startup = b"\x00\x03\x00\x00" + b"user\0doubtless\0database\0postgres\0client_encoding\0utf8\0application_name\0doubtless\0\0"
    pooler = Pooler(server.port, startup)
    try:
        store = through(pooler.port)
        store.accept(accepted(clock))
        claim = store.claim("t-1")
        for session in store._link._idle:
            session.direct = direct
        for _ in range(4):
            store.append(handles(store, clock, claim.epoch))
        assert [row.event_seq for row in store.rows("t-1")] == [1, 2, 3, 4, 5]
        assert store._link.prepares is not direct
        store.close()
    finally:
        pooler.close()
    assert open_store().verify() == []


def test_a_row_is_not_written_in_a_session_whose_commits_are_not_durable(open_store: Open, clock: FakeClock) -> None:
    store = open_store()
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    row = handles(store, clock, claim.epoch)
    for setting, value in (("synchronous_commit", "off"), ("synchronous_commit", "on")):
        (session,) = store._link._idle
        session.execute(f"SET {setting} = {value}".encode())
        if value == "off":
            with pytest.raises(StoreUnavailable, match="would not be durable"):
                store.append(row)
            assert store.last("t-1").event_seq == 1  # type: ignore[union-attr]
        else:
            store.append(row)
    assert store.rows("t-1")[1:] == row


def whole(clock: FakeClock, **changes: Any) -> list[Event]:
    """A row that fills every column, after the first one."""
    row = draft(
        "t-1", Kind.STEP_INTENDED, clock.now(), step_seq=1, path="1", step_name="pay \u00fc\U0001f600", status="uncertain",
        attempt=1, effect_class="non_idem_write", idempotency_key=b"k" * 32, input_hash=b"h" * 32, input_ref="inline:{}",
        output_ref=b"o" * 32, error="inline:{}", data={"handle": 1},
    )  # fmt: skip
    first = accepted(clock)
    return [event._replace(**changes) for event in seal([row], 1, row_hash(seal([first], 0, None)[0]))]


@pytest.mark.parametrize("column", [None, "step_seq", "path", "step_name", "status", "attempt", "effect_class",
                                    "idempotency_key", "input_hash", "input_ref", "output_ref", "error", "data"])  # fmt: skip
def test_every_column_comes_back_as_it_was_written_and_so_does_one_that_is_empty(
    open_store: Open, clock: FakeClock, column: str | None
) -> None:
    store = open_store()
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    first = store.last("t-1")
    assert first is not None
    (row,) = whole(clock, epoch=claim.epoch, prev_hash=row_hash(first), **({column: None} if column else {}))
    store.append([row])
    assert store.rows("t-1")[1:] == [row]


@pytest.mark.parametrize(
    "changes",
    [
        {"event_seq": 0}, {"step_seq": 0}, {"attempt": 0}, {"format": 0}, {"kind": "StepForgotten"}, {"status": "unknown"},
        {"status": "running"}, {"kind": "TaskParked", "status": "uncertain"}, {"effect_class": "write"},
        {"idempotency_key": b"short"}, {"input_hash": b""}, {"prev_hash": b"x" * 31}, {"input_ref": "outline:"},
        {"output_ref": "sha256:12"}, {"data": "[]"}, {"started_at": None, "finished_at": None}, {"prev_hash": None},
    ],
    ids=str,
)  # fmt: skip
def test_the_database_refuses_a_row_that_no_log_holds(open_store: Open, clock: FakeClock, changes: dict[str, Any]) -> None:
    store = open_store()
    store.accept(accepted(clock))
    values = dict(zip(Event._fields, params_of(whole(clock)[0]), strict=True))
    marks = ", ".join(f"${place}" for place in range(1, len(values) + 1))
    (session,) = store._link._idle
    sql = f'INSERT INTO "{store.place.schema}".events ({", ".join(values)}) VALUES ({marks})'
    with pytest.raises(psycopg.errors.CheckViolation):
        session.execute(sql.encode(), [{**values, **changes}[name] for name in values])
    session.execute(sql.encode(), list(values.values()))


def test_the_place_of_a_row_is_not_read_as_a_number_that_is_too_large(open_store: Open, clock: FakeClock) -> None:
    """The largest numbers that a column holds go through; the boot clock of a machine may be anything."""
    store = open_store()
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    first = store.last("t-1")
    assert first is not None
    largest = (1 << 63) - 1
    (row,) = whole(
        clock, epoch=claim.epoch, prev_hash=row_hash(first), step_seq=largest, attempt=largest, boot_at=-largest,
        started_at=Instant(largest, 0).wall,
    )  # fmt: skip
    store.append([row])
    assert store.rows("t-1")[1:] == [row]


# ------------------------------------------------------------ with the function and without it


@pytest.fixture(params=["the function", "the statement by itself"])
def way(request: pytest.FixtureRequest, url: str) -> Appending:
    """How a row is written: by the function alone, or by the statement that comes before it."""
    made = Direct if request.param == "the statement by itself" else Appending
    return made(queries(url.partition("schema=")[2].partition("&")[0]))


@pytest.fixture
def session(open_store: Open, url: str, clock: FakeClock) -> Session:
    """A connection to a store in which this process owns the task t-1."""
    store = open_store()
    store.accept(accepted(clock))
    store.claim("t-1")
    (found,) = store._link._idle
    assert found.direct
    found.execute(f"SET search_path = {url.partition('schema=')[2].partition('&')[0]}".encode())
    return found


def owned(session: Session, clock: FakeClock) -> Event:
    """The owner's next row."""
    found = session.execute(b"SELECT epoch FROM tasks").fetchone()
    assert found is not None
    return whole(clock, epoch=found[0])[0]


def code_of(way: Appending, session: Session, row: Event, guard: str | None = None) -> str | None:
    """How the database refuses a row; None: it was written."""
    try:
        way.run(session, values_of(row, guard), prepared=True)
    except psycopg.Error as error:
        return error.sqlstate
    return None


TAKEN = psycopg.errors.UniqueViolation.sqlstate


@pytest.mark.parametrize("guard", [None, "pay"])
@pytest.mark.parametrize(
    ("changes", "before", "after", "code"),
    [
        ({"epoch": 1}, "", "", "DBLST"),
        ({"epoch": None}, "", "", "DBLST"),
        ({"task_id": "t-2"}, "", "", "DBLST"),
        ({}, "UPDATE tasks SET epoch = epoch + 1", "UPDATE tasks SET epoch = epoch - 1", "DBLST"),
        ({"event_seq": 3}, "", "", "DBLMV"),
        ({"event_seq": 1, "prev_hash": None}, "", "", TAKEN),
        ({}, "SET synchronous_commit = off", "SET synchronous_commit = on", "DBLSC"),
    ],
)  # fmt: skip
def test_whichever_way_a_row_is_written_the_database_refuses_the_same(
    session: Session, clock: FakeClock, way: Appending, guard: str | None, changes: dict[str, Any], before: str,
    after: str, code: str,
) -> None:  # fmt: skip
    row = owned(session, clock)
    session.execute(before.encode())
    assert code_of(way, session, row._replace(**changes), guard) == code
    session.execute(after.encode())
    assert code_of(way, session, row, guard) is None
    assert code_of(way, session, row, guard) == TAKEN


@pytest.mark.parametrize(
    "changes",
    [
        {"step_seq": 0}, {"attempt": 0}, {"format": 0}, {"kind": "StepForgotten"}, {"status": "unknown"}, {"status": "running"},
        {"kind": "TaskParked", "status": "uncertain"}, {"effect_class": "write"}, {"idempotency_key": b"short"},
        {"input_hash": b""}, {"prev_hash": b"x" * 31}, {"input_ref": "outline:"}, {"output_ref": "sha256:12"}, {"data": "[]"},
        {"started_at": None, "finished_at": None}, {"prev_hash": None},
    ],
    ids=str,
)  # fmt: skip
def test_whichever_way_a_row_is_written_it_has_the_form_of_a_log_s(
    session: Session, clock: FakeClock, way: Appending, changes: dict[str, Any]
) -> None:
    row = owned(session, clock)
    assert code_of(way, session, row._replace(**changes)) == psycopg.errors.CheckViolation.sqlstate
    assert code_of(way, session, row) is None


@pytest.mark.parametrize(("frozen", "guard", "code"), [("pay", "pay", "DBLFZ"), ("*", "pay", "DBLFZ"), ("chat", "pay", None),
                                                       ("pay", None, None)])  # fmt: skip
def test_whichever_way_an_attempt_is_written_a_freeze_refuses_it_until_it_is_thawed(
    session: Session, clock: FakeClock, way: Appending, frozen: str, guard: str | None, code: str | None
) -> None:
    row = owned(session, clock)
    session.execute(f"INSERT INTO freezes VALUES ('{frozen}', 'why')".encode())
    assert code_of(way, session, row, guard) == code
    session.execute(b"DELETE FROM freezes")
    assert code_of(way, session, row, guard) == (None if code else TAKEN)


def waiting(server: Server) -> int:
    """How many server processes wait for a lock."""
    with server.connect() as connection:
        found = connection.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted").fetchone()
    assert found is not None
    return int(str(found[0]))


def test_a_freeze_waits_for_the_attempts_that_have_begun_and_is_seen_by_those_that_begin_while_it_waits(
    open_store: Open, server: Server, session: Session, clock: FakeClock, way: Appending
) -> None:
    row = owned(session, clock)
    other = open_store()
    said: list[str | None] = []

    def freeze() -> None:
        other.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock.now(), step_name="pay", data={"by": "a", "why": "b"})])

    def attempt() -> None:
        with Session.connect(other.place.conninfo, autocommit=True) as late:
            said.append(code_of(way, late, row._replace(event_seq=3), "pay"))

    with server.connect() as reader:
        reader.execute(f"BEGIN; SELECT * FROM {other.place.schema}.freezes".encode())  # as a dump does, which keeps no freeze waiting
        session.execute(b"BEGIN")
        assert code_of(way, session, row, "pay") is None
        threads = [threading.Thread(target=freeze), threading.Thread(target=attempt)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            while waiting(server) < count:
                assert thread.is_alive()
        assert not said
        session.execute(b"COMMIT")
        for thread in threads:
            thread.join()
    assert said == ["DBLFZ"]
    assert set(other.frozen()) == {"pay"}


def test_a_row_is_written_by_the_statement_itself_and_now_and_then_by_the_function_which_tells_the_server_s_time(
    open_store: Open, clock: FakeClock
) -> None:
    store = open_store(own_clock=False)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    store.now()
    (session,) = store._link._idle
    for count, late in enumerate([0, 0, LATELY + 1, 0], 1):
        clock.advance(late / 1e6)
        store.append(handles(store, clock, claim.epoch))
        found = session.execute(f"SELECT checked_1 FROM {store.place.schema}.events ORDER BY event_seq".encode()).fetchall()
        assert len(found) == count + 1
        assert (found[-1][0] is None) == (late > 0), found
    assert store.verify() == []


def test_of_a_large_log_a_row_is_written_with_one_look_at_its_head_and_one_at_the_row_before(
    session: Session, url: str, clock: FakeClock
) -> None:
    session.execute(
        b"INSERT INTO events (task_id, event_seq, kind, finished_at, boot_at, format)"
        b" SELECT 'o-' || n, 1, 'TaskAccepted', 1, 1, 1 FROM generate_series(1, 3000) AS n;"
        b" INSERT INTO tasks (task_id, task_name, status, input_hash, created_at, updated_at, queue, priority, tail_seq, tail_hash)"
        b" SELECT 'o-' || n, 'm', 'ready', input_hash, 1, 1, '', 0, 1, tail_hash FROM tasks, generate_series(1, 3000) AS n;"
        b" ANALYZE events, tasks"
    )
    way = Direct(queries(url.partition("schema=")[2].partition("&")[0]))
    row = owned(session, clock)
    looked = b"SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
    counts = looked + b" WHERE relname IN ('events', 'tasks') AND schemaname = current_schema()"
    for number in range(7):  # after five of them a server may take one plan for all arguments
        session.execute(b"BEGIN")
        before = dict(session.execute(counts).fetchall())
        assert code_of(way, session, row._replace(event_seq=2 + number), "pay") is None
        after = dict(session.execute(counts).fetchall())
        assert {name: count - before.get(name, 0) for name, count in after.items()} == {"events": 1, "tasks": 1}
        session.execute(b"COMMIT")
