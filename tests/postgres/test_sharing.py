"""Rows of many tasks in one statement: cut off at any moment, refused in part, or broken in on, each stands once or is said."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.server import Server
from tests.postgres.wire import Cutter, Pooler

from doubtless.errors import DoubtlessError, Frozen, Moved, StaleEpoch, StoreUnavailable
from doubtless.events import STORE_TASK, Event, Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.base import Blob
from doubtless.store.pg import sharing
from doubtless.store.pg.appending import values_of
from doubtless.store.pg.arrays import elements
from doubtless.store.pg.batch import Rows
from doubtless.store.pg.clock import LATELY
from doubtless.store.pg.link import Session
from doubtless.store.pg.mark import Mark
from doubtless.store.postgres import PostgresStore
from doubtless.store.tickets import Ticket
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]
PATIENCE = 20.0
MANY = 12


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    made = Cutter(server.port)
    yield made
    made.close()


@pytest.fixture
def through(url: str, server: Server, open_store: Open) -> Callable[[int], PostgresStore]:
    """The store, reached through another port."""
    plain = "&sslmode=disable&gssencmode=disable"  # so that the first message is the start
    return lambda port: open_store(url.replace(f":{server.port}/", f":{port}/") + plain)


@pytest.fixture(params=[True, False], ids=["direct", "function"])
def either(request: pytest.FixtureRequest, open_store: Open) -> PostgresStore:
    """A store whose shared statement is the one that is prepared; and one where that is the function, as behind a pooler."""
    store = open_store()
    store.info()
    store._link.prepares = request.param
    return store


class Hand:
    """An owner's hand on one task."""

    def __init__(self, store: PostgresStore, clock: FakeClock, task_id: str) -> None:
        self.store, self.clock, self.task_id = store, clock, task_id
        store.accept(
            draft(
                task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
                input_ref="inline:{}",
            )
        )  # fmt: skip
        self.epoch = store.claim(task_id).epoch

    def row(self, n: int = 0) -> Event:
        """The next row, sealed."""
        last = self.store.last(self.task_id)
        assert last is not None
        made = draft(
            self.task_id, Kind.HANDLE_RECORDED, self.clock.now(), path="1", step_seq=1, epoch=self.epoch, data={"handle": n}
        )
        return seal([made], last.event_seq, row_hash(last))[0]


@pytest.fixture
def hands(clock: FakeClock) -> Callable[..., list[Hand]]:
    return lambda store, count=MANY: [Hand(store, clock, f"t-{n}") for n in range(count)]


def together(store: PostgresStore, rows: list[Event], **options: Any) -> list[DoubtlessError | None]:
    """Put rows down, commit them in one statement, and say what came of each."""
    tickets = [store.submit([row], **options) for row in rows]
    store.flush()
    return [landed(store, ticket) for ticket in tickets]


def direct(store: PostgresStore, session: Session, rows: list[Event]) -> Any:
    """Write attempts in one prepared statement in this session; which of them it wrote, None: all."""
    tickets = [Ticket(row, "pay", ()) for row in rows]
    for ticket in tickets:
        ticket.sent = elements(ticket.event, ticket.guard)
    return store._sharing.statement.run(session, Rows(tickets, True, False, None, None, None), prepared=True)[0][1]


def shared_statements(store: PostgresStore) -> set[bytes]:
    """The names of the statements that many rows share."""
    statement = store._sharing.statement
    return {statement._name, statement.direct.name, statement.guarded.name}


def landed(store: PostgresStore, ticket: Any) -> DoubtlessError | None:
    try:
        store.landed(ticket)
    except DoubtlessError as error:
        return error
    return None


@pytest.mark.parametrize("blobs", [[], [Blob(b"d" * 32, b"content")]], ids=["rows", "content"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_of_a_shared_statement_whose_connection_is_cut_each_row_is_in_the_log_once(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], hands: Callable[..., list[Hand]], when: str,
    blobs: list[Blob],
) -> None:  # fmt: skip
    store = through(cutter.port)
    made = hands(store)
    for n in range(3):
        rows = [hand.row(n) for hand in made]
        cutter.answered.clear()
        cutter.order(when, "append_shared_", times=1)
        assert together(store, rows, blobs=blobs) == [None] * MANY
        assert [store.last(hand.task_id) for hand in made] == rows
    assert cutter.cuts == 3
    direct = open_store()
    assert all([row.event_seq for row in direct.rows(hand.task_id)] == [1, 2, 3, 4] for hand in made)
    assert [p for p in direct.verify() if "sha256" not in p.what] == []


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_row_that_is_refused_is_refused_alone_although_the_connection_is_cut(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], hands: Callable[..., list[Hand]], when: str,
    clock: FakeClock,
) -> None:  # fmt: skip
    store = through(cutter.port)
    made = hands(store)
    rows = [hand.row() for hand in made]
    direct = open_store()
    direct.add("t-3", [draft("t-3", Kind.CANCEL_REQUESTED, clock.now(), data={"by": "anna", "why": "no longer wanted"})])
    cutter.order(when, "append_shared_")
    ended = together(store, rows)
    assert isinstance(ended[3], Moved)
    assert [n for n, error in enumerate(ended) if error is not None] == [3]
    assert [row.kind for row in direct.rows("t-3")] == [Kind.TASK_ACCEPTED, Kind.CANCEL_REQUESTED]
    assert [direct.last(hand.task_id) for hand in made if hand.task_id != "t-3"] == rows[:3] + rows[4:]
    assert direct.verify() == []


def test_a_shared_statement_is_one_round_trip_when_a_place_in_it_is_taken(
    either: PostgresStore, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    store = either
    made = hands(store)
    rows = [hand.row() for hand in made]
    store.add("t-3", [draft("t-3", Kind.CANCEL_REQUESTED, clock.now(), data={"by": "anna", "why": "no longer wanted"})])
    before = store._link.statements
    tickets = [store.submit([row]) for row in rows]
    store.flush()
    ended = [landed(store, ticket) for ticket in tickets if ticket is not tickets[3]]
    assert ended == [None] * (MANY - 1)
    assert store._link.statements == before + 1
    (session,) = store._link._idle
    assert len(session.prepared & shared_statements(store)) == store._link.prepares  # not the function after it


def test_a_place_that_is_taken_while_a_shared_statement_runs_refuses_its_row_alone(
    open_store: Open, server: Server, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    store, other = open_store(), open_store()
    made = hands(store)
    rows = [hand.row() for hand in made]
    tickets = [store.submit([row]) for row in rows]
    taken = f"""INSERT INTO "{store.place.schema}".events (task_id, event_seq, kind, finished_at, boot_at, format, prev_hash)
        SELECT 't-3', 2, 'CancelRequested', 1, 1, 1, decode('{rows[3].prev_hash.hex()}', 'hex')"""  # type: ignore[union-attr]
    with server.connect() as person:
        person.execute(b"BEGIN")
        person.execute(taken.encode())
        thread = threading.Thread(target=store.flush)
        thread.start()
        while not person.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
            assert thread.is_alive()
        person.execute(b"COMMIT")
        thread.join(PATIENCE)
    assert [n for n, ticket in enumerate(tickets) if ticket is not None and ticket.alone] == [3]
    ended = [landed(store, ticket) for ticket in tickets]
    assert isinstance(ended[3], Moved)
    assert [n for n, error in enumerate(ended) if error is not None] == [3]
    assert [other.last(hand.task_id) == row for hand, row in zip(made, rows, strict=True)] == [n != 3 for n in range(MANY)]


def test_a_freeze_waits_for_the_attempts_that_share_a_statement_and_is_seen_by_those_that_begin_while_it_waits(
    open_store: Open, server: Server, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    store, other = open_store(), open_store()
    made = hands(store, 4)
    rows = [hand.row() for hand in made]
    said: list[Any] = []

    def freeze() -> None:
        other.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock.now(), step_name="pay", data={"by": "a", "why": "b"})])

    def late() -> None:
        with Session.connect(store.place.conninfo, autocommit=True) as session:
            said.append(direct(store, session, rows[2:]))

    def waiting() -> int:
        return len(looks.execute("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted").fetchall())

    with Session.connect(store.place.conninfo, autocommit=True) as session, server.connect() as looks:
        session.execute(b"BEGIN")
        assert direct(store, session, rows[:2]) is None
        threads = [threading.Thread(target=freeze), threading.Thread(target=late)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            while waiting() < count:
                assert thread.is_alive()
        session.execute(b"COMMIT")
        for thread in threads:
            thread.join(PATIENCE)
    assert said == [[]]
    assert set(other.frozen()) == {"pay"}
    assert [other.last(hand.task_id) == row for hand, row in zip(made, rows, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("setting", ["off", "local"])
def test_shared_rows_are_not_written_in_a_session_whose_commits_are_not_durable(
    open_store: Open, hands: Callable[..., list[Hand]], setting: str
) -> None:
    store = open_store()
    rows = [hand.row() for hand in hands(store, 3)]
    with Session.connect(store.place.conninfo, autocommit=True) as session:
        session.execute(f"SET synchronous_commit = {setting}".encode())
        assert direct(store, session, rows) == ([] if setting == "off" else None)  # local: no standby is waited for here
    assert store.last("t-0") == rows[0] or setting == "off"


def test_now_and_then_a_shared_statement_tells_the_server_s_time(
    open_store: Open, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    store = open_store(own_clock=False)
    made = hands(store, 3)
    store.now()
    for n, late in enumerate([0, LATELY + 1, 0]):
        clock.advance(late / 1e6)
        asked = store._clock._asked
        assert together(store, [hand.row(n) for hand in made]) == [None] * 3
        assert (store._clock._asked > asked) == (late > 0)
    assert store.verify() == []


def test_rows_of_every_shape_stand_as_they_were_put_down(either: PostgresStore, hands: Callable[..., list[Hand]]) -> None:
    made = hands(either, 5)
    full = {
        "step_seq": 3, "path": "2.1", "step_name": "zahle \u00e4 \U0001f600", "kind": Kind.STEP_INTENDED, "status": "uncertain",
        "attempt": 2, "effect_class": "non_idem_write", "idempotency_key": b"k" * 32, "input_hash": b"i" * 32, "started_at": 5, "finished_at": 6,
    }  # fmt: skip
    shapes: list[dict[str, Any]] = [
        full | {"input_ref": b"r" * 32, "output_ref": b"o" * 32, "error": '"quoted" \\ {}', "data": b"p" * 32},
        full | {"input_ref": 'inline:{"a":"\\n\\u0000"}', "output_ref": "inline:" + "x" * 3000, "data": '{"a":1}'},
        {"step_seq": None, "path": None, "data": None},
        {"path": "", "error": "", "data": None},
        {},
    ]
    rows = [hand.row()._replace(**shape) for hand, shape in zip(made, shapes, strict=True)]
    assert together(either, rows, guard="pay") == [None] * 5
    assert [either.last(hand.task_id) for hand in made] == rows
    assert all(session.prepared for session in either._link._idle) == either._link.prepares


def test_of_a_large_log_each_shared_row_is_one_look_at_its_head_and_one_at_the_end_of_its_log(
    open_store: Open, hands: Callable[..., list[Hand]]
) -> None:
    store = open_store()
    made = hands(store)
    with Session.connect(store.place.conninfo, autocommit=True) as session:
        session.execute(f'SET search_path = "{store.place.schema}"'.encode())
        session.execute(
            b"INSERT INTO events (task_id, event_seq, kind, finished_at, boot_at, format)"
            b" SELECT 'o-' || n, 1, 'TaskAccepted', 1, 1, 1 FROM generate_series(1, 3000) AS n;"
            b" INSERT INTO tasks (task_id, task_name, status, input_hash, created_at, updated_at, queue, priority, tail_seq, tail_hash)"
            b" SELECT 'o-' || n, 'm', 'ready', input_hash, 1, 1, '', 0, 1, tail_hash FROM tasks, generate_series(1, 3000) AS n"
            b" WHERE task_id = 't-0';"
            b" ANALYZE events, tasks"
        )
        looked = b"SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
        counts = looked + b" WHERE relname IN ('events', 'tasks') AND schemaname = current_schema()"
        for n in range(7):  # after five of them a server may take one plan for all arguments
            rows = [hand.row(n) for hand in made]
            session.execute(b"BEGIN")
            before = dict(session.execute(counts).fetchall())
            assert direct(store, session, rows) is None
            after = dict(session.execute(counts).fetchall())
            assert {name: count - before.get(name, 0) for name, count in after.items()} == {"events": MANY, "tasks": MANY}
            session.execute(b"COMMIT")


def test_of_heads_that_change_together_what_is_refused_is_refused_alone_and_nothing_of_it_is_written(
    either: PostgresStore, open_store: Open, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    """An old owner's; one whose place is taken; one that leaves a gap; one of several rows; one that no row of a log may be."""
    other = open_store()
    made = hands(either, 6)
    ends = [
        seal(
            [
                draft(hand.task_id, Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=hand.epoch, data={"handle": 1}),
                draft(hand.task_id, Kind.TASK_ENDED, clock.now(), status="done", epoch=hand.epoch, output_ref="inline:1"),
            ][n != 4 :],
            1,
            row_hash(either.rows(hand.task_id)[0]),
        )
        for n, hand in enumerate(made)
    ]
    ends[3] = [ends[3][0]._replace(event_seq=7)]
    ends[5] = [ends[5][0]._replace(prev_hash=None)]
    tickets = [either.submit(rows) for rows in ends[:5]]
    other.release("t-1", made[1].epoch)
    other.claim("t-1")
    other.add("t-2", [draft("t-2", Kind.CANCEL_REQUESTED, clock.now(), data={"by": "anna", "why": "no longer wanted"})])
    either.flush()
    # The function writes none of them where a place is taken.
    alone = [n in (1, 2, 3) or not either._link.prepares for n in range(5)]
    assert [ticket is not None and ticket.alone for ticket in tickets] == alone
    ended = [landed(either, ticket) for ticket in tickets]
    assert [type(error) for error in ended] == [type(None), StaleEpoch, Moved, Moved, type(None)]
    tickets = [either.submit(ends[5])]
    either.flush()
    assert isinstance(landed(either, tickets[0]), DoubtlessError)
    heads = [other.head(hand.task_id) for hand in made]
    assert [head is not None and (head.status, head.owner is None) for head in heads] == [
        ("done", True), ("ready", False), ("ready", False), ("ready", False), ("done", True), ("ready", False),
    ]  # fmt: skip
    assert [len(other.rows(hand.task_id)) for hand in made] == [2, 1, 2, 1, 3, 1]
    of_these = "WHERE task_id IN ('t-0', 't-4') AND event_seq > 1"
    checked = either._link.all(f'SELECT checked_1 FROM "{either.place.schema}".events {of_these}')
    assert checked == [(True if either._link.prepares else None,)] * 3
    assert other.verify() == []


def test_tasks_that_begin_together_are_judged_by_their_statement_and_those_whose_ids_exist_by_the_function(
    either: PostgresStore, clock: FakeClock
) -> None:
    def accepted(task_id: str) -> Event:
        return draft(
            task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
            input_ref="inline:{}",
        )  # fmt: skip

    for names, begun in (["a", "b", "c"], [True] * 3), (["d", "b", "e"], [True, False, True]):
        tickets = [either.submit_begin(accepted(name)) for name in names]
        either.flush()
        claims = [either.landed(ticket) for ticket in tickets]
        assert [claim is not None for claim in claims] == begun
        for claim in filter(None, claims):
            assert either.head(claim.head.task_id) == claim.head
            assert [row.kind for row in either.rows(claim.head.task_id)] == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED]
    checked = either._link.all(f'SELECT DISTINCT checked_1 FROM "{either.place.schema}".events')
    assert checked == [(True if either._link.prepares else None,)]
    leases = either._link.all(f'SELECT DISTINCT lease_until - claimed_at FROM "{either.place.schema}".tasks')
    assert leases == [(either._leases.grant,)]
    assert either.verify() == []


@pytest.mark.parametrize("stand", [MANY, 5])
def test_rows_that_stand_after_a_cut_are_found_by_one_look_and_not_sent_again(
    open_store: Open, hands: Callable[..., list[Hand]], stand: int
) -> None:
    """The connection is lost after the server has committed these rows, some of them by another statement."""
    store, other = open_store(), open_store()
    made = hands(store)
    rows = [hand.row() for hand in made]
    execute, lose = store._link._execute, True

    def losing(connection: Any, sql: Any, args: Any) -> Any:
        nonlocal lose
        if lose and sql is store._sharing.statement:
            lose = False
            for row in rows[:stand]:
                other._write_rows([row], other._append, values_of(row, None), None)
            connection.close()
            raise psycopg.OperationalError("the connection was lost")
        sent.append(sql)
        return execute(connection, sql, args)

    sent: list[Any] = []
    store._link._execute = losing  # type: ignore[method-assign]
    tickets = [store.submit([row]) for row in rows]
    store.flush()
    asked = [store._queries["rows_standing"]]
    assert sent == (asked if stand == MANY else [*asked, store._sharing.statement])
    assert [landed(store, ticket) for ticket in tickets] == [None] * MANY
    assert len(sent) == (1 if stand == MANY else 2)
    assert [store.rows(hand.task_id)[1:] for hand in made] == [[row] for row in rows]


def test_a_shared_statement_that_comes_through_after_it_was_sent_again_writes_nothing(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], hands: Callable[..., list[Hand]]
) -> None:
    store = through(cutter.port)
    made = hands(store)
    rows = [hand.row() for hand in made]
    cutter.order("late", "append_shared_")
    assert together(store, rows) == [None] * MANY
    cutter.send()  # the first one comes through now
    assert [store.rows(hand.task_id)[1:] for hand in made] == [[row] for row in rows]
    assert open_store().verify() == []


def test_while_the_server_cannot_be_reached_each_row_of_a_shared_statement_says_that_nobody_knows_its_fate(
    cutter: Cutter, through: Callable[[int], PostgresStore], hands: Callable[..., list[Hand]]
) -> None:
    store = through(cutter.port)
    made = hands(store)
    rows = [hand.row() for hand in made]
    cutter.answered.clear()
    cutter.order("after", "append_shared_")
    threading.Thread(target=lambda: (cutter.answered.wait(30), cutter._socket.close())).start()
    real, cutter.serve = cutter.serve, lambda client: client.close()  # type: ignore[method-assign]
    ended = together(store, rows)
    assert all(isinstance(error, StoreUnavailable) and error.context["written"] is None for error in ended)
    assert len(set(map(id, ended))) == MANY  # each raises its own
    cutter.serve = real  # type: ignore[method-assign]


def test_a_row_that_the_schema_refuses_does_not_harm_those_beside_it(
    either: PostgresStore, hands: Callable[..., list[Hand]]
) -> None:
    store = either
    made = hands(store, 4)
    rows = [hand.row() for hand in made]
    rows[1] = rows[1]._replace(idempotency_key=b"short")
    rows[2] = rows[2]._replace(error="a lone \ud800 surrogate")
    tickets = [store.submit([row]) for row in rows]
    store.flush()
    assert landed(store, tickets[0]) is None
    assert landed(store, tickets[3]) is None
    assert isinstance(landed(store, tickets[1]), DoubtlessError)
    with pytest.raises(UnicodeEncodeError):
        store.landed(tickets[2])  # type: ignore[arg-type]
    assert [store.last(hand.task_id) == row for hand, row in zip(made, rows, strict=True)] == [True, False, False, True]


@pytest.mark.parametrize(
    "fault",
    [
        {"event_seq": 7},
        {"prev_hash": None},
        {"started_at": None, "finished_at": None},
        {"kind": Kind.TASK_ENDED, "status": "failed"},
        {"status": "ready"},
    ],
    ids=["gap", "chain", "time", "kind", "status"],
)
def test_what_no_row_of_a_log_may_be_is_not_written_with_others_either(
    either: PostgresStore, hands: Callable[..., list[Hand]], fault: dict[str, Any]
) -> None:
    store = either
    made = hands(store, 3)
    rows = [hand.row() for hand in made]
    rows[1] = rows[1]._replace(**fault)
    tickets = [store._sharing.put(row, None) for row in rows]
    store.flush()
    assert [ticket.alone for ticket in tickets] == [False, True, False]
    assert [len(store.rows(hand.task_id)) for hand in made] == [2, 1, 2]
    assert store.verify() == []


def test_rows_of_an_old_owner_and_of_a_frozen_step_are_refused_by_the_server_itself(
    either: PostgresStore, open_store: Open, hands: Callable[..., list[Hand]], clock: FakeClock
) -> None:
    store, other = either, open_store()
    made = hands(store, 3)
    rows = [hand.row() for hand in made]
    tickets = [store.submit([row], guard="pay" if n == 2 else None) for n, row in enumerate(rows)]
    other.release("t-0", made[0].epoch)
    other.claim("t-0")
    other.add(
        STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock.now(), data={"step": "pay", "by": "anna", "why": "prices"})]
    )
    store.flush()
    ended = [landed(store, ticket) for ticket in tickets]
    assert isinstance(ended[0], StaleEpoch)
    assert ended[1] is None
    assert isinstance(ended[2], Frozen)
    assert [other.last(hand.task_id) == row for hand, row in zip(made, rows, strict=True)] == [False, True, False]


def test_threads_that_append_while_another_one_is_on_its_way_share_the_next_statement(
    open_store: Open, hands: Callable[..., list[Hand]]
) -> None:
    store = open_store()
    made = hands(store)
    rows = [hand.row() for hand in made]
    threads = [threading.Thread(target=store.append, args=([row],)) for row in rows]
    before = store._link.statements
    with store._sharing.turn:  # somebody is on the way
        for thread in threads:
            thread.start()
        met = threading.Event()
        for _ in range(10_000):
            if len(store._sharing.waiting) == MANY:
                break
            met.wait(0.005)
    for thread in threads:
        thread.join(PATIENCE)
    assert store._link.statements == before + 1
    assert [store.last(hand.task_id) for hand in made] == rows


def test_whoever_finds_nobody_on_the_way_goes_at_once_and_by_itself(open_store: Open, hands: Callable[..., list[Hand]]) -> None:
    store = open_store()
    (hand,) = hands(store, 1)
    sent: list[object] = []
    execute = store._link._execute
    store._link._execute = lambda connection, sql, args: (sent.append(sql), execute(connection, sql, args))[1]  # type: ignore[method-assign]
    row = hand.row()
    sent.clear()
    store.append([row])
    assert sent == [store._direct]


def test_a_shared_statement_is_one_round_trip_through_a_transaction_pooler(
    open_store: Open, server: Server, through: Callable[[int], PostgresStore], hands: Callable[..., list[Hand]]
) -> None:
    startup = b"\x00\x03\x00\x00" + b"user\0doubtless\0database\0postgres\0client_encoding\0utf8\0application_name\0doubtless\0\0"
    pooler = Pooler(server.port, startup)
    try:
        store = through(pooler.port)
        made = hands(store)
        for n in range(3):
            rows = [hand.row(n) for hand in made]
            before = len(pooler.transactions)
            assert together(store, rows, guard="pay", blobs=[Blob(b"d" * 32, b"content")]) == [None] * MANY
            assert len(pooler.transactions) == before + 1
        store.close()
    finally:
        pooler.close()
    assert [p for p in open_store().verify() if "sha256" not in p.what] == []


def test_the_mark_names_an_end_whatever_else_its_commit_holds(open_store: Open, clock: FakeClock) -> None:
    store = open_store()
    a, b = Hand(store, clock, "a"), Hand(store, clock, "b")
    ended = draft("a", Kind.TASK_ENDED, clock.now(), status="done", epoch=a.epoch, output_ref="inline:1")
    claimed = draft("b", Kind.TASK_CLAIMED, clock.now(), status="running", epoch=b.epoch, data={"owner": "x"})
    handle = draft("b", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=b.epoch, data={"handle": 1})
    tickets = []
    for rows in ([ended], [claimed, handle]):
        last = store.last(rows[0].task_id)
        assert last is not None
        tickets.append(store.submit(seal(rows, last.event_seq, row_hash(last))))
    store.flush()
    for ticket in tickets:
        store.landed(ticket)
    mark = store._mark.read()
    assert isinstance(mark, Mark)
    assert (mark.task_id, mark.event_seq) == ("b", 2)  # of that commit: whoever has it has the end too


def test_content_beyond_a_statement_s_size_goes_in_the_next_one(
    open_store: Open, hands: Callable[..., list[Hand]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "MOST_CONTENT", 100)
    monkeypatch.setattr(sharing, "MOST", 8)
    store = open_store()
    made = hands(store)
    rows = [hand.row() for hand in made]
    before = store._link.statements
    tickets = [store.submit([row], blobs=[Blob(bytes([n]) * 32, b"x" * 40)]) for n, row in enumerate(rows)]
    store.flush()
    assert store._link.statements == before + 6  # of eight: 2 + 2 + 2 + 2; of four: 2 + 2
    assert [landed(store, ticket) for ticket in tickets] == [None] * MANY
    assert [store.last(hand.task_id) for hand in made] == rows


class Broken(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("point", ["append:before", "append:after"])
def test_a_signal_in_the_middle_of_a_shared_commit_loses_and_doubles_no_row_of_the_others(
    open_store: Open, hands: Callable[..., list[Hand]], point: str
) -> None:
    armed = threading.Event()

    def hook(name: str) -> None:
        if name == point and armed.is_set():
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise Broken

    store = open_store(hooks=hook)
    made = hands(store)
    rows = [hand.row() for hand in made]
    tickets = [store.submit([row]) for row in rows]
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        armed.set()
        with pytest.raises(Broken):
            store.flush()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [landed(store, ticket) for ticket in tickets] == [None] * MANY
    assert [store.rows(hand.task_id)[1:] for hand in made] == [[row] for row in rows]
    assert store.verify() == []


def test_server_processes_that_are_ended_under_shared_statements_double_and_lose_nothing(
    open_store: Open, server: Server, hands: Callable[..., list[Hand]]
) -> None:
    begun, stop = threading.Event(), threading.Event()
    store = open_store(hooks=lambda point: begun.set() if point == "append:before" else None)
    made = hands(store)
    ended = 0

    def end_them() -> None:
        nonlocal ended
        with server.connect() as connection:
            while begun.wait(30) and not stop.is_set():
                begun.clear()
                found = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'doubtless' AND query LIKE ANY(%s) AND pid <> pg_backend_pid()",
                    ([f"%{store.place.schema}%append_shared%", f"%{store.place.schema}%listed.task_id%"],),
                ).fetchall()
                ended += len(found)

    killer = threading.Thread(target=end_them)
    killer.start()
    expected = {hand.task_id: 1 for hand in made}
    tried = 0
    try:
        while tried < 12 or (ended < 3 and tried < 300):
            tried += 1
            rows = [hand.row(tried) for hand in made]
            for row, error in zip(rows, together(store, rows), strict=True):
                stands = store.last(row.task_id) == row
                assert stands or error is not None
                expected[row.task_id] += stands
    finally:
        stop.set()
        begun.set()
        killer.join()
    assert ended >= 3
    for task_id, count in expected.items():
        assert [row.event_seq for row in store.rows(task_id)] == list(range(1, count + 1))
    assert store.verify() == []
