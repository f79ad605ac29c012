"""I9: a fold that begins at a snapshot is the fold from zero, for every log, at every place."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from random_log import TASK, RandomLog

from doubtless.events import Event, row_hash, seal
from doubtless.log import TaskLog
from doubtless.snapshots import FIELDS, Plan, Restored, Snapshot, read, snapshot_of
from doubtless.store.base import Claim
from doubtless.store.sqlite import SqliteStore
from doubtless.taskfold import TaskFold

EXAMPLES = 200 if os.environ.get("FUZZ") == "prove" else 15

PLAIN, STATE = Plan(1), Plan(1, "tests:1")


@contextmanager
def a_store(log: RandomLog) -> Iterator[SqliteStore]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        store = SqliteStore(os.path.join(folder, "recon.db"), clock=log.now)
        try:
            assert store.accept(log.first()) is None
            yield store
        finally:
            store.close()


def loaded(store: SqliteStore, plan: Plan | None) -> TaskLog:
    head = store.head(TASK)
    assert head is not None
    return TaskLog(store, Claim(head, 7, False), owner="x", plan=plan)


def view(fold: TaskFold) -> dict[str, Any]:
    return {name: getattr(fold, name) for name in (*FIELDS, "seq", "hash")}


def rows_so_far(store: SqliteStore, path: str, until: int) -> list[Event]:
    return list(loaded(store, None).rows_of(path, until))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(8, 22))
def test_from_every_snapshot_the_fold_of_every_prefix_is_the_fold_from_zero(seed: int, count: int) -> None:
    log = RandomLog(random.Random(seed))
    with a_store(log) as store:
        whole = TaskFold(lambda path, until: rows_so_far(store, path, until))
        first = store.first(TASK)
        whole.take([first], row_hash(first))
        taken: list[Snapshot] = []
        for _ in range(count):
            rows = store.add(TASK, [log.row()])
            whole.take(rows, row_hash(rows[-1]))
            zero = loaded(store, None)
            assert view(whole) == view(zero)
            assert snapshot_of(TASK, zero) == snapshot_of(TASK, whole)
            taken.append(snapshot_of(TASK, whole))
            for snapshot in taken:
                store.put_snapshot(snapshot)
                begun = loaded(store, PLAIN)
                assert begun.snapshotting is not None
                assert view(begun) == view(zero)
                assert view(begun.snapshotting.fold) == view(zero)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(8, 22))
def test_from_a_state_s_snapshot_the_tail_is_that_of_the_fold_from_zero_or_the_snapshot_is_passed_over(
    seed: int, count: int
) -> None:
    log = RandomLog(random.Random(seed))
    with a_store(log) as store:
        taken: list[tuple[int, Snapshot]] = []
        for _ in range(count):
            store.add(TASK, [log.row()])
            zero = loaded(store, None)
            if not zero.open and not zero.held and log.place:
                taken.append((log.place, snapshot_of(TASK, zero, Restored('"state"', log.place), STATE.state)))
            for places, snapshot in taken:
                store.put_snapshot(snapshot)
                begun = loaded(store, STATE)
                if begun.restored is None:
                    assert view(begun) == view(zero)
                    continue
                assert begun.restored == ('"state"', places)
                assert begun.settled == {path: one for path, one in zero.settled.items() if not begun.covered(path)}
                tries = {path: count for path, count in zero.tries.items() if not begun.covered(path) and path[0] != "~"}
                assert {path: count for path, count in begun.tries.items() if path[0] != "~"} == tries
                assert {k: v for k, v in view(begun).items() if k not in ("settled", "tries")} == {
                    k: v for k, v in view(zero).items() if k not in ("settled", "tries")
                }
                assert not any(begun.covered(path) for path in zero.open)


def test_a_snapshot_holds_every_field_of_the_fold() -> None:
    """A field that is added to the fold is named in `snapshots.FIELDS`, or is one of these, which are no part of it."""
    here, derived = {"seq", "hash"}, {"floor", "reached_back", "rows_of"}
    assert set(TaskFold.__slots__) == FIELDS.keys() | here | derived
    assert not hasattr(TaskFold(lambda path, until: []), "__dict__")
    own = set(TaskLog.__slots__)
    known = {"store", "task_id", "epoch", "owner", "lock", "groups", "remember", "restored", "snapshotting", "_announced"}
    compensating = {"origins", "undo_by"}  # filled from the log when compensations begin
    checked = {"sure", "_since", "_used"}  # how far this claim has followed the chain
    under_way = {"news", "turns", "flight"}  # what this process has heard, and what runs in it, since it began
    assert own == known | compensating | checked | under_way


def test_what_is_sealed_is_read_back_and_another_plan_does_not_read_it() -> None:
    fold = TaskFold(lambda path, until: [])
    fold.seq, fold.hash = 4, b"r" * 32
    plain, state = snapshot_of(TASK, fold), snapshot_of(TASK, fold, Restored("[1]", 3), "tests:1")
    held = read(state, STATE)
    assert held is not None
    assert held.restored == ("[1]", 3)
    assert read(plain, PLAIN) is not None
    assert read(plain, STATE) is None
    assert read(state, PLAIN) is None
    assert read(state, Plan(1, "tests:2")) is None


def test_a_random_log_is_one_that_a_store_takes() -> None:
    log = RandomLog(random.Random(3))
    rows = seal([log.first(), *(log.row() for _ in range(400))], 0, None)
    assert {row.kind for row in rows} >= {
        "StepIntended", "StepSettled", "RetryAllowed", "CaseOpened", "CaseSettled", "EvidenceStored", "CancelRequested",
    }  # fmt: skip
