"""The log: append-only, gapless, one owner's at a time, all or none. Every store passes this suite."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, accepted, case_opened, intended, only_sqlite, parked, settled

from doubtless.blobs import Content
from doubtless.changes import project
from doubtless.errors import Frozen, Moved, StaleEpoch, StoreError, UnknownTask, UsageError
from doubtless.events import STORE_TASK, Event, Kind, draft, row_hash
from doubtless.store.base import DONE, INTENDED, Outline, Store
from doubtless.store.schema import PLAIN


def test_what_was_appended_is_read_back_whole_by_another_store(
    begin: Begin, make_store: MakeStore, store: Store, clock: TurnClock
) -> None:
    w = begin()
    wanted = [w.append(intended("recon-1", clock(), w.epoch))[0], w.append(settled("recon-1", clock(), w.epoch))[0]]
    store.close()
    rows = make_store().rows("recon-1")
    assert rows[1:] == wanted
    assert [row.event_seq for row in rows] == [1, 2, 3]
    assert [row.prev_hash for row in rows] == [None, row_hash(rows[0]), row_hash(rows[1])]


def test_rows_are_found_by_path_and_by_place(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    for step in (1, 2):
        w.append(intended("recon-1", clock(), w.epoch, step))
    w.append(settled("recon-1", clock(), w.epoch, 1))
    assert [r.event_seq for r in store.rows("recon-1", path="1")] == [2, 4]
    assert [r.event_seq for r in store.rows("recon-1", path="1", after=2)] == [4]
    assert [r.event_seq for r in store.rows("recon-1", after=2)] == [3, 4]
    assert store.last("recon-1") == store.rows("recon-1")[-1]
    assert store.first("recon-1") == store.rows("recon-1")[0]
    assert store.rows("other") == []
    assert store.last("other") is None
    with pytest.raises(UnknownTask):
        store.first("other")


def test_an_outline_has_the_columns_of_its_rows(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch))
    w.append(settled("recon-1", clock(), w.epoch))
    w.append(settled("recon-1", clock(), w.epoch)._replace(error='{"kind":"output"}'))
    rows = store.rows("recon-1")
    wanted = [Outline._make(getattr(row, name) for name in Outline._fields) for row in rows]
    assert [row.kind for row in rows[-3:]] == [Kind.STEP_INTENDED, Kind.STEP_SETTLED, Kind.STEP_SETTLED]
    wanted[-3:-1] = [wanted[-3]._replace(kind=INTENDED), wanted[-2]._replace(kind=DONE)]
    assert list(store.outline("recon-1")) == wanted


@only_sqlite
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET status = 'done'",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT * FROM events",
        "REPLACE INTO events SELECT * FROM events WHERE event_seq = 2",
        "INSERT OR IGNORE INTO events SELECT * FROM events",
        "UPDATE OR REPLACE events SET event_seq = 1 WHERE event_seq = 2",
        "UPDATE blobs SET content = x'00'",
        "DELETE FROM blobs",
        "INSERT OR REPLACE INTO blobs SELECT digest, x'00' FROM blobs",
    ],
)
def test_no_statement_of_a_foreign_connection_changes_or_removes_what_is_recorded(
    begin: Begin, store: Store, clock: TurnClock, statement: str
) -> None:
    w = begin()
    ref, blob = Content(store, store.folder).put("x" * 1000)
    assert blob is not None
    w.append(intended("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))
    before = store.rows("recon-1")
    store.close()  # another SQLite in this process would not see its locks
    foreign = sqlite3.connect(store.path)
    foreign.execute("PRAGMA recursive_triggers = OFF")
    with pytest.raises(sqlite3.IntegrityError):
        foreign.execute(statement)
    foreign.commit()
    foreign.close()
    assert store.rows("recon-1") == before
    assert store.blob(blob.digest) == blob.content


def test_a_row_that_leaves_a_gap_is_refused_as_moved(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    (row,) = w.seal(intended("recon-1", clock(), w.epoch))
    with pytest.raises(Moved) as caught:
        store.append([row._replace(event_seq=3)])
    assert caught.value.context["last"] == 1
    assert len(store.rows("recon-1")) == 1


def test_an_append_at_a_place_that_is_taken_is_refused_as_moved(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    rows = w.seal(intended("recon-1", clock(), w.epoch))
    store.add("recon-1", [draft("recon-1", Kind.CANCEL_REQUESTED, clock(), data={"by": "ann"})])
    with pytest.raises(Moved):
        store.append(rows)
    with pytest.raises(Moved):
        store.append(w.seal(intended("recon-1", clock(), w.epoch), settled("recon-1", clock(), w.epoch)))
    assert [row.kind for row in store.rows("recon-1")] == [Kind.TASK_ACCEPTED, Kind.CANCEL_REQUESTED]


def test_an_append_by_an_old_epoch_is_refused(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    store.release("recon-1", w.epoch)
    new = Writer(store, "recon-1", store.claim("recon-1"))
    assert new.epoch != w.epoch
    for rows in (w.seal(intended("recon-1", clock(), w.epoch)), w.seal(parked("recon-1", clock(), w.epoch))):
        with pytest.raises(StaleEpoch):
            store.append(rows)
    new.append(intended("recon-1", clock(), new.epoch))
    assert len(store.rows("recon-1")) == 2


def test_an_append_after_release_is_refused(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    store.release("recon-1", w.epoch)
    with pytest.raises(StaleEpoch):
        w.append(intended("recon-1", clock(), w.epoch))


def test_an_append_without_an_epoch_is_refused(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    store.release("recon-1", w.epoch)
    with pytest.raises(StaleEpoch):
        w.append(intended("recon-1", clock(), None))


def test_an_append_whose_fate_was_unknown_is_found_when_it_is_repeated(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    w = begin()
    one = w.seal(intended("recon-1", clock(), w.epoch))
    store.append(one)
    store.append(one)
    assert store.rows("recon-1")[1:] == one


def test_a_repeated_append_of_several_rows_is_found_and_projects_once(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    rows = w.seal(case_opened("recon-1", clock(), w.epoch), parked("recon-1", clock(), w.epoch, "needs_human"))
    store.append(rows)
    store.append(rows)  # the owner is released by now: found all the same
    assert store.rows("recon-1")[1:] == rows
    assert len(store.cases()) == 1
    assert store.verify() == []


def test_a_repeated_append_that_differs_in_one_column_is_not_taken_for_the_same(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    w = begin()
    (row,) = w.seal(intended("recon-1", clock(), w.epoch))
    store.append([row])
    for other in (row._replace(input_ref='inline:{"amount":2}'), row._replace(started_at=row.at.wall + 1)):
        with pytest.raises(Moved):
            store.append([other])
    assert store.rows("recon-1")[1:] == [row]


@pytest.mark.parametrize("bad", [{"event_seq": 4}, {"kind": "Nonsense"}, {"prev_hash": b"short"}])
def test_several_rows_are_written_all_or_none(begin: Begin, store: Store, clock: TurnClock, bad: dict[str, object]) -> None:
    w = begin()
    rows = w.seal(case_opened("recon-1", clock(), w.epoch), settled("recon-1", clock(), w.epoch))
    rows[1] = rows[1]._replace(**bad)  # type: ignore[arg-type]
    with pytest.raises((Moved, StoreError)):
        store.append(rows)
    assert len(store.rows("recon-1")) == 1
    assert store.cases() == []
    w.append(intended("recon-1", clock(), w.epoch))


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "Nonsense"}, {"status": "nonsense"}, {"status": "ready"}, {"effect_class": "nonsense"},
        {"idempotency_key": b"short"},
        {"input_hash": b"short"}, {"input_ref": "text"}, {"output_ref": b"short"}, {"data": b"short"}, {"prev_hash": b"short"},
        {"step_seq": 0}, {"attempt": 0}, {"format": 0}, {"started_at": None, "finished_at": None}, {"prev_hash": None},
    ],
    ids=lambda bad: "-".join(bad),
)  # fmt: skip
def test_the_database_refuses_a_row_outside_the_closed_sets(
    begin: Begin, store: Store, clock: TurnClock, bad: dict[str, object]
) -> None:
    w = begin()
    (row,) = w.seal(intended("recon-1", clock(), w.epoch))
    with pytest.raises(StoreError) as caught:
        store.append([row._replace(**bad)])  # type: ignore[arg-type]
    assert type(caught.value) is StoreError
    assert len(store.rows("recon-1")) == 1


def test_a_kind_that_one_statement_appends_changes_no_projection(clock: TurnClock) -> None:
    details = {"case_id": "t:1", "by": "ann", "kind": "doubt", "wake": True, "wake_at": 1, "why": "x"}
    changing = {kind for kind in Kind if project(draft("t", kind, clock(), data=details))}
    assert changing | {Kind.TASK_ACCEPTED, Kind.STORE_RECOVERED} == set(Kind) - PLAIN


def test_content_is_written_in_the_transaction_of_its_row(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    content = Content(store, store.folder)
    ref, blob = content.put("x" * 1000)
    assert blob is not None
    assert store.blob(blob.digest) is None
    bad = w.seal(intended("recon-1", clock(), w.epoch, ref=ref))[0]._replace(kind="Nonsense")
    with pytest.raises(StoreError):
        store.append([bad], blobs=[blob])
    assert store.blob(blob.digest) is None
    w.append(intended("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))
    assert content.get(ref) == "x" * 1000
    w.append(settled("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))  # again: it is there already
    assert store.verify() == []


# ------------------------------------------------------------ freeze


def _freeze(clock: TurnClock, step: str | None, why: str) -> Event:
    return draft(STORE_TASK, Kind.STORE_FROZEN, clock(), step_name=step, data={"by": "ann", "why": why})


@pytest.mark.parametrize("step", [None, "pay"])
@pytest.mark.parametrize("several", [False, True])
def test_a_frozen_step_takes_no_new_attempt_until_it_is_thawed(
    begin: Begin, store: Store, clock: TurnClock, step: str | None, several: bool
) -> None:
    w = begin()
    store.add(STORE_TASK, [_freeze(clock, step, "an incident")])
    assert store.frozen() == {step or "*": "an incident"}
    row = intended("recon-1", clock(), w.epoch)
    more = [case_opened("recon-1", clock(), w.epoch)] if several else []
    with pytest.raises(Frozen) as caught:
        w.append(row, *more, guard="pay")
    assert "an incident" in str(caught.value)
    w.append(settled("recon-1", clock(), w.epoch))  # results go on
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_THAWED, clock(), step_name=step, data={"by": "ann"})])
    w.append(row, *more, guard="pay")
    assert store.frozen() == {}
    assert store.verify() == []


def test_a_freeze_of_one_step_leaves_the_others(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    store.add(STORE_TASK, [_freeze(clock, "chat", "an incident")])
    w.append(intended("recon-1", clock(), w.epoch), guard="pay")
    assert len(store.rows("recon-1")) == 2


# ------------------------------------------------------------ what needs no epoch


def test_a_persons_row_is_sealed_behind_the_owners_last(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    rows = store.add("recon-1", [draft("recon-1", Kind.EVENT_RECEIVED, clock(), data={"name": "n"}) for _ in range(2)])
    assert [row.event_seq for row in rows] == [2, 3]
    assert store.rows("recon-1")[1:] == rows
    assert w.seq == 1
    assert store.verify() == []


def test_a_persons_row_is_refused_when_the_log_is_not_as_it_was_shown(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch))
    drafts = [draft("recon-1", Kind.EVENT_RECEIVED, clock(), data={"name": "n"})]
    with pytest.raises(Moved):
        store.add("recon-1", drafts, expect=1)
    assert store.add("recon-1", drafts, expect=2)[0].event_seq == 3


def test_a_row_for_a_task_that_does_not_exist_is_refused(store: Store, clock: TurnClock) -> None:
    with pytest.raises(UnknownTask):
        store.add("nobody", [draft("nobody", Kind.CANCEL_REQUESTED, clock(), data={"by": "ann"})])
    with pytest.raises(UnknownTask):
        store.claim("nobody")
    assert store.rows("nobody") == []


def test_accepting_a_task_twice_writes_once_and_gives_the_head(store: Store, clock: TurnClock) -> None:
    assert store.accept(accepted("recon-1", clock())) is None
    head = store.accept(accepted("recon-1", clock())._replace(input_hash=b"o" * 32))
    assert head is not None
    assert head == store.head("recon-1")
    assert (head.task_name, head.status, head.input_hash) == ("reconcile", "ready", b"h" * 32)
    assert len(store.rows("recon-1")) == 1


def test_the_reserved_task_cannot_be_accepted(store: Store, clock: TurnClock) -> None:
    with pytest.raises(UsageError):
        store.accept(accepted("$store", clock()))


def test_fifty_threads_that_accept_one_task_write_one_row(make_store: MakeStore, clock: TurnClock) -> None:
    stores = [make_store() for _ in range(5)]
    stores[0].info()
    results: list[object] = []

    def accept(store: Store) -> None:
        results.append(store.accept(accepted("recon-1", clock())))

    threads = [threading.Thread(target=accept, args=(stores[n % 5],)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(None) == 1
    assert len(results) == 50
    assert len(stores[0].rows("recon-1")) == 1
