"""The append that a step waits for: prepared where the server itself answers, and the database's own word on each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.postgres.server import Server
from tests.postgres.test_connections import accepted, handles, through  # noqa: F401 - a fixture
from tests.postgres.wire import Pooler

from doubtless.errors import StoreUnavailable
from doubtless.events import Event, Instant, Kind, draft, row_hash, seal
from doubtless.store.pg.rows import params_of
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
