"""What was damaged behind the store's back is told before anything is concluded from it, written after it or chained to it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, case_opened, case_settled, intended, parked, settled

from doubtless.errors import StoreDamaged, StoreSuspect
from doubtless.events import STORE_TASK, Kind, draft, row_hash
from doubtless.log import TaskLog
from doubtless.snapshots import Snapshot
from doubtless.store.base import Claim, Store
from doubtless.store.postgres import PostgresStore
from doubtless.store.sqlite import SqliteStore

Spoil = Callable[[str], None]
TOLD = (StoreDamaged, StoreSuspect)
"""On PostgreSQL the mark names a row, and may tell it first."""


@pytest.fixture
def spoil(store: Store) -> Spoil:
    """Runs a statement where no trigger is in its way."""

    def run(statement: str) -> None:
        if isinstance(store, SqliteStore):
            db = store._link._connection
            assert db is not None
            triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                db.execute(f"DROP TRIGGER {name}")
            db.execute(statement)
            for _, sql in triggers:
                db.execute(sql)
            return
        assert isinstance(store, PostgresStore)
        with psycopg.connect(store.place.conninfo, options=f"-c search_path={store.place.schema}") as connection:
            connection.execute("ALTER TABLE events DISABLE TRIGGER USER")
            connection.execute(statement.encode())
            for name in ("events_append_only", "events_gapless"):
                connection.execute(f"ALTER TABLE events ENABLE ALWAYS TRIGGER {name}".encode())

    return run


@pytest.fixture
def w(begin: Begin, clock: TurnClock) -> Writer:
    """A task with five rows: accepted, two intents with their outcomes."""
    w = begin()
    for step in (1, 2):
        w.append(intended("recon-1", clock(), w.epoch, step))
        w.append(settled("recon-1", clock(), w.epoch, step))
    return w


@pytest.mark.parametrize(
    "change", ["path = '7'", "step_name = 'pax'", "input_ref = 'inline:2'", "status = NULL", "started_at = 1", "attempt = 2"]
)
def test_a_changed_row_is_found_by_whoever_is_to_act_on_its_task(w: Writer, make_store: MakeStore, spoil: Spoil, change: str) -> None:
    make_store().check_chain("recon-1")
    spoil(f"UPDATE events SET {change} WHERE event_seq = 2")
    for read in (lambda other: other.check_chain("recon-1"), lambda other: other.rows("recon-1")):
        with pytest.raises(StoreDamaged, match="row 2 of its log is not what was written") as caught:
            read(make_store())
        assert caught.value.hint


def test_a_missing_row_is_found_by_whoever_is_to_act_on_its_task(w: Writer, make_store: MakeStore, spoil: Spoil) -> None:
    spoil("DELETE FROM events WHERE event_seq = 3")
    with pytest.raises(StoreDamaged, match="row 2 of its log"):
        make_store().check_chain("recon-1")


def test_the_rows_of_one_step_or_kind_are_believed_only_when_their_task_chains(
    w: Writer, make_store: MakeStore, spoil: Spoil
) -> None:
    spoil("UPDATE events SET path = '7' WHERE event_seq = 2")
    for read in (lambda other: other.rows("recon-1", path="1"), lambda other: other.rows_of("recon-1", [Kind.STEP_SETTLED])):
        with pytest.raises(StoreDamaged):
            read(make_store())


def test_the_first_row_is_checked_against_the_second(w: Writer, make_store: MakeStore, spoil: Spoil) -> None:
    spoil("UPDATE events SET input_ref = 'inline:{\"a\":1}' WHERE event_seq = 1")
    with pytest.raises(TOLD, match="row 1"):
        make_store().first("recon-1")


def test_a_row_that_a_process_knows_to_chain_is_not_read_again_and_new_ones_are(
    w: Writer, store: Store, make_store: MakeStore, spoil: Spoil, clock: TurnClock
) -> None:
    other = make_store()
    other.check_chain("recon-1")
    spoil("UPDATE events SET path = '7' WHERE event_seq = 2")
    other.check_chain("recon-1")
    for step in (3, 4):
        w.append(intended("recon-1", clock(), w.epoch, step))
    spoil("UPDATE events SET path = '8' WHERE event_seq = 6")
    with pytest.raises(StoreDamaged, match="row 6"):
        other.check_chain("recon-1")


def test_from_a_snapshot_on_only_what_is_used_of_the_rows_before_is_checked(
    w: Writer, store: Store, make_store: MakeStore, spoil: Spoil
) -> None:
    base = store.rows_at("recon-1", [4])[0]
    spoil("UPDATE events SET path = '7' WHERE event_seq = 2")
    make_store().check_chain("recon-1", after=4, digest=row_hash(base))
    make_store().check_chain("recon-1", after=4, digest=row_hash(base), used=[3])
    with pytest.raises(StoreDamaged, match="row 2"):
        make_store().check_chain("recon-1", after=4, digest=row_hash(base), used=[2])
    spoil("UPDATE events SET path = '7' WHERE event_seq = 4")
    with pytest.raises(StoreDamaged, match="row 4"):
        make_store().check_chain("recon-1", after=4, digest=row_hash(base._replace(path="7")))


@pytest.mark.parametrize("damage", ["UPDATE events SET finished_at = 1 WHERE event_seq = 7", "DELETE FROM events WHERE event_seq = 7"])
def test_the_last_row_of_a_task_at_rest_is_known_and_nothing_is_chained_to_another_one(
    w: Writer, store: Store, make_store: MakeStore, spoil: Spoil, clock: TurnClock, damage: str
) -> None:
    w.append(case_opened("recon-1", clock(), w.epoch), parked("recon-1", clock(), w.epoch, "needs_human"))
    spoil(damage)
    for read in (
        lambda other: other.last("recon-1"),
        lambda other: other.rows("recon-1"),
        lambda other: other.check_chain("recon-1"),
        lambda other: other.add("recon-1", [case_settled("recon-1", clock(), "recon-1:6")]),
    ):
        with pytest.raises(TOLD):
            read(make_store())
    assert any("row 7" in problem.what for problem in store.verify())


@pytest.mark.parametrize("damage", ["UPDATE events SET boot_at = 1 WHERE event_seq = 8", "DELETE FROM events WHERE event_seq = 8"])
def test_a_row_that_somebody_added_to_a_task_at_rest_is_known_as_its_last_one(
    w: Writer, store: Store, make_store: MakeStore, spoil: Spoil, clock: TurnClock, damage: str
) -> None:
    w.append(case_opened("recon-1", clock(), w.epoch), parked("recon-1", clock(), w.epoch, "needs_human"))
    store.add("recon-1", [draft("recon-1", Kind.EVIDENCE_STORED, clock(), path="1", data={"outcome": "done"})])
    assert store.verify() == []
    spoil(damage)
    with pytest.raises(StoreDamaged):
        make_store().last("recon-1")
    assert any("row 8" in problem.what for problem in store.verify())


def test_a_takeover_is_not_chained_to_a_row_that_is_not_what_was_noted(
    begin: Begin, make_store: MakeStore, spoil: Spoil, expire: Callable[[], None]
) -> None:
    begin()
    spoil("UPDATE events SET boot_at = 1 WHERE event_seq = 1")
    from store_ground import forget_claims

    other = make_store()
    expire()
    forget_claims(other)
    with pytest.raises(TOLD, match="row 1"):
        other.claim("recon-1")


@pytest.mark.parametrize("damage", ["UPDATE events SET boot_at = 1 WHERE event_seq = 2", "DELETE FROM events WHERE event_seq = 2"])
def test_the_last_row_of_the_stores_own_task_is_known(
    store: Store, make_store: MakeStore, spoil: Spoil, clock: TurnClock, damage: str
) -> None:
    for step in ("pay", "refund"):
        store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock(), step_name=step, data={"by": "ann", "why": "x"})])
    assert store.verify() == []
    spoil(damage)
    with pytest.raises(StoreDamaged):
        make_store().last(STORE_TASK)
    assert any(problem.where == STORE_TASK and problem.event_seq == 2 for problem in store.verify())


@pytest.mark.parametrize(
    "change", ["data = '{\"policy\":'", "data = '{}'", "data = '{\"policy\":7}'", "output_ref = 'inline:{'", "epoch = NULL"]
)
def test_verify_tells_a_damaged_row_and_does_not_break_on_it(w: Writer, store: Store, spoil: Spoil, change: str) -> None:
    spoil(f"UPDATE events SET {change} WHERE event_seq = 2")
    assert any("2" in problem.what for problem in store.verify())


def test_what_others_add_is_taken_in_only_as_it_was_written(
    w: Writer, store: Store, make_store: MakeStore, spoil: Spoil, clock: TurnClock
) -> None:
    head = store.head("recon-1")
    assert head is not None
    log = TaskLog(store, Claim(head, w.epoch, False), owner=None)
    for number in (1, 2):
        make_store().add("recon-1", [draft("recon-1", Kind.EVIDENCE_STORED, clock(), path="1", data={"outcome": f"{number}"})])
    spoil("UPDATE events SET boot_at = 1 WHERE event_seq = 6")
    with pytest.raises(StoreDamaged, match="row 6"):
        log.refresh()


def test_a_snapshot_whose_text_is_damaged_is_told_by_verify(w: Writer, store: Store, spoil: Spoil) -> None:
    store.put_snapshot(Snapshot("recon-1", 3, b"x" * 32, 1, "{", b"y" * 32))
    assert any("snapshot" in problem.what for problem in store.verify())
