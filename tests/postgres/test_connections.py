"""Connections that are cut before, during and after a commit, servers that are ended, and poolers between."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgres.server import Server
from tests.postgres.wire import Cutter, Pooler, Relay

from doubtless.errors import StoreUnavailable
from doubtless.events import Event, Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.base import Blob, Claim, Wanted
from doubtless.store.pg.link import PAUSES
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]


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


def accepted(clock: FakeClock, task_id: str = "t-1") -> Event:
    return draft(
        task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
        input_ref="inline:{}",
    )  # fmt: skip


def handles(store: PostgresStore, clock: FakeClock, epoch: int, count: int = 1, task_id: str = "t-1") -> list[Event]:
    last = store.last(task_id)
    assert last is not None
    rows = [
        draft(task_id, Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=epoch, data={"handle": n})
        for n in range(count)
    ]
    return seal(rows, last.event_seq, row_hash(last))


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_append_whose_connection_is_cut_is_in_the_log_once(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock, when: str, count: int
) -> None:
    store = through(cutter.port)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    blob = Blob(b"d" * 32, b"content")
    for _ in range(3):
        rows = handles(store, clock, claim.epoch, count)
        cutter.answered.clear()
        cutter.order(when, "append_", times=1)
        store.append(rows, blobs=[blob])
    assert cutter.cuts == 3
    direct = open_store()
    assert [row.event_seq for row in direct.rows("t-1")] == list(range(1, 3 * count + 2))
    assert direct.rows("t-1") == store.rows("t-1")
    assert [p for p in direct.verify() if "sha256" not in p.what] == []


def test_a_connection_that_went_away_with_a_last_word_is_lost_though_its_driver_calls_it_whole(
    open_store: Open, server: Server, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    relay = Relay(server.port)
    store = through(relay.port)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    for _ in range(3):
        last = store.last("t-1")
        assert last is not None
        row = draft("t-1", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=claim.epoch, data={"handle": "h" * 200_000})
        relay.farewell()
        time.sleep(0.05)  # so that the other end's reset is there before the row is sent: a write fails, and not a read
        store.append(seal([row], last.event_seq, row_hash(last)))
    assert [row.event_seq for row in open_store().rows("t-1")] == [1, 2, 3, 4]
    relay.close()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_every_other_write_whose_connection_is_cut_stands_once(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock, when: str
) -> None:
    store = through(cutter.port)

    def cut(at: str) -> None:
        cutter.answered.clear()
        cutter.order(when, at)

    store.info()
    cut("accept_1")
    assert store.accept(accepted(clock)) is None
    cut("claim_1")
    claim = store.claim("t-1")
    head = store.head("t-1")
    assert head is not None and head.epoch == claim.epoch
    cut("append_rows_1")
    store.add("t-1", [draft("t-1", Kind.CANCEL_REQUESTED, clock.now(), data={"by": "ann"})])
    cut("SET owner = NULL")
    store.release("t-1", claim.epoch)
    cut("SELECT")
    assert [row.kind for row in store.rows("t-1")] == [Kind.TASK_ACCEPTED, Kind.CANCEL_REQUESTED]
    assert cutter.cuts == 5
    assert open_store().verify() == []


def test_an_append_that_reaches_the_server_after_it_was_sent_again_finds_its_place_taken(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    rows = handles(store, clock, claim.epoch)
    cutter.order("late", "append_1")
    store.append(rows)
    cutter.send()  # the first one comes through now
    assert store.rows("t-1")[1:] == rows
    assert open_store().verify() == []


@pytest.mark.parametrize("what", ["begin_1", "claim_1"])
def test_a_beginning_or_a_claim_that_comes_through_after_it_was_sent_again_is_this_process_own(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock, what: str
) -> None:
    """The first one is held up by a lock, its connection is lost, and both of them wait when the lock is given up."""
    store = through(cutter.port)
    store.info()
    if what == "claim_1":
        store.accept(accepted(clock))
    else:
        assert store.begin(accepted(clock)._replace(task_id="t-0")) is not None  # the statement is prepared
    claims: list[Claim | None] = []
    run = {"begin_1": lambda: claims.append(store.begin(accepted(clock))), "claim_1": lambda: claims.append(store.claim("t-1"))}
    thread = threading.Thread(target=run[what])
    lock = {"begin_1": "LOCK TABLE events IN EXCLUSIVE MODE", "claim_1": "SELECT 1 FROM tasks FOR UPDATE"}[what]
    search = f"-c search_path={store.place.schema}"
    with psycopg.connect(store.place.conninfo, options=search) as holder:
        holder.execute(lock.encode())
        cutter.order("during", what)
        thread.start()
        while holder.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (2,):
            assert thread.is_alive()
        holder.rollback()
        thread.join(30)
    assert cutter.cuts == 1
    (claim,) = claims
    head = store.head("t-1")
    assert claim is not None and head is not None and head.epoch == claim.epoch
    store.append(handles(store, clock, claim.epoch))
    store.release("t-1", claim.epoch)
    assert open_store().verify() == []


def test_what_a_worker_asks_for_twice_and_gets_twice_is_its_own(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    for task in ("t-1", "t-2", "t-3"):
        store.accept(accepted(clock, task))
    wanted = Wanted(("task",), None)
    cutter.order("late", "due_1")
    (first,) = store.due(wanted, limit=1, now=0).claims
    cutter.send()  # the one that was sent before comes through now, and takes another task
    due = store.due(wanted, limit=2, now=0)
    assert {claim.head.task_id for claim in (first, *due.claims)} == {"t-1", "t-2", "t-3"}
    assert store.due(wanted, limit=2, now=0) == ([], [])
    for claim in (first, *due.claims):
        assert store.leases.held[claim.head.task_id].epoch == claim.epoch
        store.append(handles(store, clock, claim.epoch, task_id=claim.head.task_id))
    assert open_store().verify() == []


def test_a_claim_that_came_through_late_is_handed_on_by_the_look_that_succeeds(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    """A look that fails holds nothing: it would be renewed as long as the process lives, and nobody would run it."""
    store = through(cutter.port)
    for task in ("t-1", "t-2"):
        store.accept(accepted(clock, task))
    wanted = Wanted(("task",), None)
    cutter.order("late", "due_1")
    (first,) = store.due(wanted, limit=1, now=0).claims
    cutter.send()
    cutter.order("before", "due_1", times=len(PAUSES))
    with pytest.raises(StoreUnavailable):
        store.due(wanted, limit=2, now=0)
    assert set(store.leases.held) == {first.head.task_id}
    (second,) = store.due(wanted, limit=2, now=0).claims
    assert {first.head.task_id, second.head.task_id} == {"t-1", "t-2"}


def test_of_two_workers_of_one_process_one_is_given_a_claim_that_comes_through_late(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    for task in ("t-1", "t-2"):
        store.accept(accepted(clock, task))
    wanted = Wanted(("task",), None)
    given: list[Claim] = []
    sends = 0

    def between(when: str) -> None:
        nonlocal sends
        sends += when == "claim:before"
        if sends == 2:  # the first statement comes through now; the other worker looks; and the second one is lost
            store._link.hooks = None
            cutter.send()
            given.extend(store.due(wanted, limit=1, now=0).claims)
            cutter.order("before", "due_1")

    store._link.hooks = between
    cutter.order("late", "due_1")
    given += store.due(wanted, limit=1, now=0).claims
    assert sorted(claim.head.task_id for claim in given) == ["t-1", "t-2"]


def test_a_claim_that_comes_through_late_goes_to_a_worker_of_its_queue(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    for task in ("t-1", "t-2"):
        store.accept(accepted(clock, task))
    own, other = Wanted(("task",), ("default",)), Wanted(("task",), ("other",))
    cutter.order("late", "due_1")
    (first,) = store.due(own, limit=1, now=0).claims
    cutter.send()
    assert store.due(other, limit=2, now=0) == ([], [])
    (second,) = store.due(own, limit=2, now=0).claims
    assert {first.head.task_id, second.head.task_id} == {"t-1", "t-2"}


def test_a_task_that_was_given_back_and_is_claimed_once_more_by_what_comes_through_late_is_handed_on(
    open_store: Open, cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    store.accept(accepted(clock, "t-2"))
    wanted = Wanted(("task",), None)
    cutter.order("late", "due_1")
    (first,) = store.due(wanted, limit=2, now=0).claims
    store.release("t-2", first.epoch)
    store.accept(accepted(clock, "t-1"))
    cutter.send()  # it takes both: the other one under the epoch that this one had
    due = store.due(wanted, limit=2, now=0)
    assert [(claim.head.task_id, claim.epoch == first.epoch) for claim in due.claims] == [("t-1", True), ("t-2", False)]
    assert store.due(wanted, limit=2, now=0) == ([], [])


def test_while_the_server_cannot_be_reached_an_append_says_that_nobody_knows_its_fate(
    cutter: Cutter, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    store = through(cutter.port)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    rows = handles(store, clock, claim.epoch)
    cutter.answered.clear()
    cutter.order("after", "append_1")
    threading.Thread(target=lambda: (cutter.answered.wait(30), cutter._socket.close())).start()
    real, cutter.serve = cutter.serve, lambda client: client.close()  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable) as caught:
        store.append(rows)
    assert caught.value.context["written"] is None
    cutter.serve = real  # type: ignore[method-assign]


def test_the_connections_of_a_store_that_nobody_has_any_more_are_closed(
    server: Server, url: str, tmp_path: Path, clock: FakeClock
) -> None:
    store = PostgresStore(url, clock=clock.now, own_clock=True, heartbeat=False, state=str(tmp_path))
    store.info()
    (session,) = store._link._idle
    closed = session.pgconn
    del session, store
    gc.collect()
    assert closed.status == psycopg.pq.ConnStatus.BAD


@pytest.mark.early
def test_a_server_process_that_is_ended_in_the_middle_doubles_and_loses_nothing(
    open_store: Open, server: Server, clock: FakeClock
) -> None:
    begun, stop = threading.Event(), threading.Event()
    store = open_store(hooks=lambda point: begun.set() if point == "append:before" else None)
    store.accept(accepted(clock))
    claim = store.claim("t-1")
    ended = 0

    def end_them() -> None:
        nonlocal ended
        with server.connect() as connection:
            while begun.wait(30) and not stop.is_set():
                begun.clear()
                found = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'doubtless' AND query LIKE %s AND pid <> pg_backend_pid()",
                    (f"%{store.place.schema}%",),
                ).fetchall()
                ended += len(found)

    killer = threading.Thread(target=end_them)
    killer.start()
    tried = refused = 0
    try:
        while tried < 12 or (ended < 3 and tried < 300):
            tried += 1
            try:
                store.append(handles(store, clock, claim.epoch))
            except StoreUnavailable:
                refused += 1
    finally:
        stop.set()
        begun.set()
        killer.join()
    rows = store.rows("t-1")
    assert ended >= 3
    assert [row.event_seq for row in rows] == list(range(1, len(rows) + 1))
    assert tried + 1 - refused <= len(rows) <= tried + 1
    assert store.verify() == []


def test_everything_but_listening_works_through_a_transaction_pooler(
    open_store: Open, server: Server, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    startup = b"\x00\x03\x00\x00" + b"user\0doubtless\0database\0postgres\0client_encoding\0utf8\0application_name\0doubtless\0\0"
    pooler = Pooler(server.port, startup)
    try:
        store = through(pooler.port)
        for n in range(3):
            store.accept(accepted(clock, f"t-{n}"))
            claim = store.claim(f"t-{n}")
            store.append(handles(store, clock, claim.epoch, task_id=f"t-{n}"))
            store.append(handles(store, clock, claim.epoch, 2, task_id=f"t-{n}"))
            store.leases.beat()
            parked = draft(f"t-{n}", Kind.TASK_PARKED, clock.now(), status="waiting", epoch=claim.epoch, data={"wake_at": None})
            last = store.last(f"t-{n}")
            assert last is not None
            store.append(seal([parked], last.event_seq, row_hash(last)))
        assert store.verify() == []
        assert len(set(pooler.transactions)) == 2
        assert all(a != b for a, b in zip(pooler.transactions, pooler.transactions[1:], strict=False))
        store.close()
    finally:
        pooler.close()
    assert open_store().verify() == []


def test_an_append_and_its_epoch_check_are_one_round_trip(
    server: Server, through: Callable[[int], PostgresStore], clock: FakeClock
) -> None:
    startup = b"\x00\x03\x00\x00" + b"user\0doubtless\0database\0postgres\0client_encoding\0utf8\0application_name\0doubtless\0\0"
    pooler = Pooler(server.port, startup, size=1)
    try:
        store = through(pooler.port)
        store.accept(accepted(clock))
        claim = store.claim("t-1")
        one, several = handles(store, clock, claim.epoch), handles(store, clock, claim.epoch, 4)[1:]
        before = len(pooler.transactions)
        store.append(one, guard="pay", blobs=[Blob(b"d" * 32, b"x")])
        assert len(pooler.transactions) == before + 1
        store.append(several, guard="pay")
        assert len(pooler.transactions) == before + 2
        last = several[-1]
        parked = draft("t-1", Kind.TASK_PARKED, clock.now(), status="waiting", epoch=claim.epoch, data={"wake_at": None})
        store.append(seal([parked], last.event_seq, row_hash(last)))
        assert len(pooler.transactions) == before + 3
        store.close()
    finally:
        pooler.close()


def test_no_more_connections_are_in_use_at_once_than_the_url_says_and_who_finds_none_waits(
    open_store: Open, url: str, clock: FakeClock
) -> None:
    link = open_store(f"{url}&connections=2")._link
    first, second = link.take(), link.take()
    taken: list[object] = []
    waits = threading.Thread(target=lambda: taken.append(link.take()))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive() and not taken
    link.give(second)
    waits.join(30)
    assert taken == [second]
    link.give(second)
    link.give(first)
    assert link.take() is first  # the one that was used last
    link.give(first)


def test_who_looks_at_the_store_anew_while_all_connections_are_in_use_opens_none_beyond_what_the_url_says(
    open_store: Open, url: str, clock: FakeClock
) -> None:
    link = open_store(f"{url}&connections=2")._link
    used = [link.take(), link.take()]
    asked, acquire = threading.Event(), link._free.acquire

    def wait_for_a_place() -> None:
        asked.set()
        acquire()

    link._free.acquire = wait_for_a_place  # type: ignore[assignment]
    looks = threading.Thread(target=link.renew)
    looks.start()
    assert asked.wait(30)
    for connection in used:  # before it has its place: none of them may stay beside the one that it opens
        link.give(connection)
    looks.join(30)
    open_ = [connection for connection in {*used, *link._idle} if not connection.closed]
    assert len(open_) == 1
    assert open_ == link._idle
