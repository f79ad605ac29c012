"""Who is alive, by leases: renewed in time, checked right before each write, and what a takeover makes of the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from doubtless.errors import StaleEpoch, StoreUnavailable, TaskBusy
from doubtless.events import Instant, Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]
SECOND = 1_000_000


def accept(store: PostgresStore, clock: FakeClock, task_id: str = "t-1") -> None:
    row = draft(
        task_id,
        Kind.TASK_ACCEPTED,
        clock.now(),
        step_name="task",
        status=TaskStatus.READY,
        input_hash=b"h" * 32,
        input_ref="inline:{}",
    )
    assert store.accept(row) is None


def until(store: PostgresStore, task_id: str = "t-1") -> int:
    row = store._link.one(f'SELECT lease_until FROM "{store.place.schema}".tasks WHERE task_id = $1', (task_id,))
    assert row is not None
    return int(row[0])


def test_a_claim_lasts_for_its_lease_and_nobody_gets_the_task_before_it_ends(open_store: Open, clock: FakeClock) -> None:
    one, two = open_store(), open_store()
    accept(one, clock)
    one.claim("t-1")
    assert until(one) == clock.now().wall + one.place.lease_us
    clock.advance(29.9)
    with pytest.raises(TaskBusy) as caught:
        two.claim("t-1")
    assert caught.value.context["until"] == until(one)
    assert "taken over when its lease ends" in str(two._busy(two.head("t-1"), "1-x@elsewhere:w.py", None, until(one)))  # type: ignore[arg-type]
    clock.advance(0.1)
    claim = two.claim("t-1")
    assert claim.takeover
    row = two.last("t-1")
    assert row is not None and row.details["lease_until"] == clock.now().wall


def test_a_heartbeat_renews_all_claims_in_one_round_trip(open_store: Open, clock: FakeClock) -> None:
    store, other = open_store(), open_store()
    for n in range(5):
        accept(store, clock, f"t-{n}")
        store.claim(f"t-{n}")
    clock.advance(20)
    before = store._beats.statements
    store.leases.beat()
    assert store._beats.statements == before + 1
    assert {until(store, f"t-{n}") for n in range(5)} == {clock.now().wall + store.place.lease_us}
    clock.advance(20)
    with pytest.raises(TaskBusy):
        other.claim("t-3")


def test_a_heartbeat_takes_its_tasks_in_the_order_of_every_other_statement(open_store: Open, clock: FakeClock) -> None:
    """What ends many tasks in one commit takes them in that order too: neither waits for the other, who waits for it."""
    store = open_store()
    names = ("c", "a", "b", "Z")
    for name in names:
        accept(store, clock, name)
        store.claim(name)
    beat = threading.Thread(target=store.leases.beat)
    options = f"-c search_path={store.place.schema}"
    first, second = (psycopg.connect(store.place.conninfo, options=options) for _ in range(2))
    with first, second:
        first.execute("SELECT 1 FROM tasks WHERE task_id = 'Z' FOR UPDATE")
        beat.start()
        while first.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (1,):
            assert beat.is_alive()
        second.execute("SELECT 1 FROM tasks WHERE task_id IN ('a', 'b', 'c') FOR UPDATE NOWAIT")
        second.rollback()
        first.rollback()
        beat.join(30)
    assert store.leases.fault == ""


def test_an_owner_that_slept_through_its_lease_is_refused_and_its_late_result_is_kept_as_evidence(
    open_store: Open, clock: FakeClock
) -> None:
    zombie, other = open_store(), open_store()
    accept(zombie, clock)
    old = zombie.claim("t-1")
    clock.advance(31)
    new = other.claim("t-1")
    assert new.takeover and new.epoch != old.epoch
    last = zombie.last("t-1")
    assert last is not None
    row = draft("t-1", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=old.epoch, data={"handle": "h"})
    with pytest.raises(StaleEpoch):
        zombie.append(seal([row], last.event_seq, row_hash(last)))
    zombie.leases.hold("t-1", old.epoch, clock.now(), SECOND)  # it does not know yet
    with pytest.raises(StaleEpoch):
        zombie.append(seal([row, row], last.event_seq, row_hash(last)))
    zombie.leases.hold("t-1", old.epoch, clock.now(), SECOND)
    evidence = draft("t-1", Kind.EVIDENCE_STORED, clock.now(), path="1", epoch=old.epoch, data={"what": "late_result"})
    assert zombie.add("t-1", [evidence])[0].event_seq == last.event_seq + 1
    with pytest.raises(StaleEpoch, match="nothing was sent"):
        zombie.leases.outlive("t-1", old.epoch, 2 * SECOND)
    zombie.release("t-1", old.epoch)  # changes nothing
    head = other.head("t-1")
    assert head is not None and head.epoch == new.epoch


def test_an_owner_that_slept_and_whose_task_nobody_took_goes_on(open_store: Open, clock: FakeClock) -> None:
    store = open_store()
    accept(store, clock)
    claim = store.claim("t-1")
    clock.advance(300)
    store.leases.outlive("t-1", claim.epoch, SECOND)
    assert until(store) > clock.now().wall + SECOND


def test_right_before_a_write_the_lease_is_renewed_only_when_it_is_shorter_than_the_call_may_be(
    open_store: Open, clock: FakeClock
) -> None:
    store = open_store()
    accept(store, clock)
    claim = store.claim("t-1")
    before = store._beats.statements
    store.leases.outlive("t-1", claim.epoch, 29 * SECOND)
    assert store._beats.statements == before  # a look at this machine's clock
    store.leases.outlive("t-1", claim.epoch, 30 * SECOND)
    assert store._beats.statements == before + 1
    assert until(store) == clock.now().wall + 60 * SECOND
    store.leases.outlive("t-1", claim.epoch, 600 * SECOND)
    assert until(store) == clock.now().wall + 630 * SECOND
    store.leases.beat()
    assert until(store) == clock.now().wall + 630 * SECOND  # never shorter
    accept(store, clock, "t-2")
    assert store.claim("t-2").epoch
    before = store._beats.statements
    store.leases.outlive("t-2", store.head("t-2").epoch or 0, 30 * SECOND)  # type: ignore[union-attr]
    assert store._beats.statements == before  # the next claims are made long enough for it


def test_a_lease_that_cannot_be_renewed_lets_no_write_be_sent(open_store: Open, clock: FakeClock) -> None:
    store = open_store()
    accept(store, clock)
    claim = store.claim("t-1")

    def away(claims: object) -> set[tuple[str, int]]:
        raise StoreUnavailable("the server is away")

    store.leases._renew = away
    store.leases.outlive("t-1", claim.epoch, SECOND)
    clock.advance(29.5)
    store.leases.beat()
    assert "the server is away" in store.leases.fault
    with pytest.raises(StoreUnavailable):
        store.leases.outlive("t-1", claim.epoch, SECOND)


def test_leases_are_counted_by_the_servers_clock_whatever_this_machines_clock_says(url: str, tmp_path: object) -> None:
    def wrong(offset: int) -> Callable[[], Instant]:
        clock = FakeClock(start="2001-01-01T00:00:00+00:00")
        clock._wall += offset
        return clock.now

    ahead, behind = (
        PostgresStore(url, clock=wrong(offset), state=str(tmp_path), heartbeat=False) for offset in (10**15, -(10**14))
    )
    try:
        assert abs(ahead.now().wall - behind.now().wall) < 5 * SECOND
        row = draft(
            "t-1", Kind.TASK_ACCEPTED, ahead.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
            input_ref="inline:{}",
        )  # fmt: skip
        ahead.accept(row)
        ahead.claim("t-1")
        with pytest.raises(TaskBusy):
            behind.claim("t-1")
    finally:
        for store in (ahead, behind):
            store.leases.held.clear()
            store.close()
