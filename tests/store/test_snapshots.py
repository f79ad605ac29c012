"""Snapshots in a store: a cache in transactions of its own, of which only what fits the log is ever given back."""

from __future__ import annotations

import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, only_sqlite, settled

from doubtless.errors import StoreUnavailable
from doubtless.events import Event
from doubtless.snapshots import FORMAT, Snapshot, digest_of, fault_of
from doubtless.store.base import Store


def made(row: Event, digest: bytes, content: str = '{"fold":{}}', *, form: int = FORMAT) -> Snapshot:
    key = (row.task_id, row.event_seq, digest, form, content)
    return Snapshot(*key, digest_of(*key))


@pytest.fixture
def w(begin: Begin, clock: TurnClock) -> Writer:
    """An owner whose task has six rows."""
    writer = begin()
    for step in range(1, 6):
        writer.append(settled("recon-1", clock(), writer.epoch, step)._replace(effect_class="read", input_hash=b"i" * 32))
    return writer


def at(store: Store, seq: int, **more: int) -> Snapshot:
    """A sound snapshot at this row, as the row's hash in the row after it says."""
    from doubtless.events import row_hash

    (row,) = store.rows_at("recon-1", [seq])
    return made(row, row_hash(row), **more)  # type: ignore[arg-type]


def test_the_newest_snapshot_is_given_back_and_below_a_place_the_one_before(w: Writer, store: Store) -> None:
    assert store.usable_snapshot("recon-1") is None
    store.put_snapshot(at(store, 3))
    store.put_snapshot(at(store, 5), before=3)
    assert store.usable_snapshot("recon-1") == at(store, 5)
    assert store.usable_snapshot("recon-1", below=5) == at(store, 3)
    assert store.usable_snapshot("recon-1", below=3) is None
    assert store.usable_snapshot("other") is None


def test_of_the_older_ones_only_the_one_before_stays(w: Writer, store: Store) -> None:
    store.put_snapshot(at(store, 2))
    store.put_snapshot(at(store, 3), before=2)
    store.put_snapshot(at(store, 4), before=3)
    store.put_snapshot(at(store, 6), before=4)
    assert store.usable_snapshot("recon-1", below=6) == at(store, 4)
    assert store.usable_snapshot("recon-1", below=4) is None
    store.put_snapshot(at(store, 5))
    assert store.usable_snapshot("recon-1") == at(store, 5)
    assert store.usable_snapshot("recon-1", below=5) is None


def test_one_at_the_same_row_takes_its_place(w: Writer, store: Store) -> None:
    bad = at(store, 5)._replace(content='{"fold":1}')
    store.put_snapshot(bad)
    assert store.usable_snapshot("recon-1") is None
    store.put_snapshot(at(store, 5))
    assert store.usable_snapshot("recon-1") == at(store, 5)


def test_what_does_not_fit_the_log_is_passed_over_for_what_does(w: Writer, store: Store) -> None:
    good, five = at(store, 3), at(store, 5)
    store.put_snapshot(good)
    ghost = five._replace(event_seq=99)
    for bad in (
        five._replace(content="{}"),
        five._replace(row_hash=b"x" * 32),
        at(store, 5, form=FORMAT + 1),
        ghost._replace(digest=digest_of(*ghost[:5])),
        made(store.rows_at("recon-1", [5])[0], good.row_hash),
    ):
        store.put_snapshot(bad, before=3)
        assert store.usable_snapshot("recon-1") == good
        assert [p.where for p in store.verify() if "the log has everything" in p.what and f"row {bad.event_seq} " in p.what] == [
            "snapshots"
        ]


def test_dropping_them_says_how_many_and_touches_no_row(w: Writer, store: Store) -> None:
    rows = store.rows("recon-1")
    store.put_snapshot(at(store, 3))
    store.put_snapshot(at(store, 5), before=3)
    assert store.drop_snapshots("other") == 0
    assert store.drop_snapshots("recon-1") == 2
    store.put_snapshot(at(store, 3))
    assert store.drop_snapshots() == 1
    assert store.usable_snapshot("recon-1") is None
    assert store.rows("recon-1") == rows
    assert store.verify() == []


@only_sqlite
def test_a_snapshot_that_the_disk_does_not_take_leaves_the_one_before(make_store: MakeStore, w: Writer) -> None:
    import apsw

    full = False

    def hooks(point: str) -> None:
        if full and point == "snapshot:before":
            raise apsw.FullError("full")

    store = make_store(hooks=hooks)
    store.put_snapshot(at(store, 3))
    full = True
    with pytest.raises(StoreUnavailable):
        store.put_snapshot(at(store, 5), before=None)
    assert store.usable_snapshot("recon-1") == at(store, 3)


def test_rows_at_gives_these_rows_in_order_and_leaves_out_what_is_not_there(w: Writer, store: Store) -> None:
    rows = store.rows("recon-1")
    assert store.rows_at("recon-1", [5, 2, 77]) == [rows[1], rows[4]]
    assert store.rows_at("recon-1", []) == []


def test_the_outline_after_a_place_begins_behind_it(w: Writer, store: Store) -> None:
    assert [row[0] for row in store.outline("recon-1", after=4)] == [5, 6]
    assert len(list(store.outline("recon-1"))) == 6


@pytest.mark.parametrize("column", range(5))
def test_a_snapshot_whose_columns_hold_something_else_is_damaged_and_nothing_breaks_on_it(column: int) -> None:
    whole = ["recon-1", 3, b"x" * 32, 1, "{}"]
    for other in (None, 1.5, b"y", "z"):
        columns = [other if at == column and type(other) is not type(was) else was for at, was in enumerate(whole)]
        if columns != whole:
            assert fault_of(Snapshot(*columns, b"d" * 32), None) == "it is damaged"  # type: ignore[arg-type]
