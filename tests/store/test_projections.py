"""Heads, cases and freezes: changed with their events, settled once, and always what the log folds to (I8, I9)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from store_ground import (
    Begin,
    Child,
    MakeStore,
    TurnClock,
    Writer,
    accepted,
    case_opened,
    case_settled,
    intended,
    parked,
    settled,
)

from doubtless.errors import AlreadySettled, Moved, UnknownCase
from doubtless.events import STORE_TASK, Kind, draft
from doubtless.store.base import Store


def test_a_parked_row_changes_the_head_and_releases_the_owner(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(parked("recon-1", clock(), w.epoch, wake_at=77))
    head = store.head("recon-1")
    assert head is not None
    assert (head.status, head.wake_at, head.why, head.owner, head.epoch) == ("waiting", 77, "to look again", None, None)
    store.claim("recon-1")


def test_the_rows_behind_a_parked_row_of_one_append_are_projected_too(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(parked("recon-1", clock(), w.epoch, "needs_human"), case_opened("recon-1", clock(), w.epoch))
    assert [case.case_id for case in store.cases()] == ["recon-1:3"]
    assert store.verify() == []


def test_a_parked_row_keeps_the_owner_when_a_thread_still_has_the_call(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    w = begin()
    w.append(parked("recon-1", clock(), w.epoch), keep_owner=True)
    head = store.head("recon-1")
    assert head is not None
    assert head.owner is not None
    assert head.epoch == w.epoch
    w.append(settled("recon-1", clock(), w.epoch))
    store.release("recon-1", w.epoch)
    store.claim("recon-1")


def test_a_release_by_an_old_epoch_changes_nothing(begin: Begin, store: Store) -> None:
    w = begin()
    store.release("recon-1", w.epoch + 1)
    head = store.head("recon-1")
    assert head is not None
    assert head.epoch == w.epoch


def test_an_answer_wakes_a_task_that_sleeps_and_no_other(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(case_opened("recon-1", clock(), w.epoch), parked("recon-1", clock(), w.epoch, "needs_human"))
    store.add("recon-1", [case_settled("recon-1", clock(), "recon-1:2")])
    head = store.head("recon-1")
    assert head is not None
    assert (head.status, head.why) == ("ready", None)
    w = Writer(store, "recon-1", store.claim("recon-1"))
    w.append(draft("recon-1", Kind.TASK_ENDED, clock(), status="done", epoch=w.epoch))
    store.add("recon-1", [draft("recon-1", Kind.CANCEL_REQUESTED, clock(), data={"by": "ann"})])
    head = store.head("recon-1")
    assert head is not None
    assert head.status == "done"
    assert store.verify() == []


def test_a_case_is_settled_once(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(case_opened("recon-1", clock(), w.epoch))
    (case,) = store.cases()
    assert (case.case_id, case.event_seq, case.kind, case.path) == ("recon-1:2", 2, "doubt", "1")
    store.add("recon-1", [case_settled("recon-1", clock(), case.case_id, "ann")])
    with pytest.raises(AlreadySettled) as caught:
        store.add("recon-1", [case_settled("recon-1", clock(), case.case_id, "bob")])
    assert "by ann at 2026-11-" in str(caught.value)
    assert len(store.rows("recon-1")) == 3
    assert store.cases() == []
    assert [c.settled_by for c in store.cases(settled=True)] == ["ann"]
    assert store.case(case.case_id) == store.cases(task_id="recon-1", settled=True)[0]
    with pytest.raises(UnknownCase):
        store.add("recon-1", [case_settled("recon-1", clock(), "recon-1:99")])


def test_an_owner_that_settles_a_case_too_late_writes_nothing(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    w.append(case_opened("recon-1", clock(), w.epoch))
    store.add("recon-1", [case_settled("recon-1", clock(), "recon-1:2")])
    with pytest.raises(Moved):
        w.append(settled("recon-1", clock(), w.epoch), case_settled("recon-1", clock(), "recon-1:2", "machine"))
    w = Writer(store, "recon-1", _claim_again(store, w))
    with pytest.raises(AlreadySettled):
        w.append(
            settled("recon-1", clock(), w.epoch), case_settled("recon-1", clock(), "recon-1:2", "machine")._replace(epoch=w.epoch)
        )
    assert len(store.rows("recon-1")) == 3


def _claim_again(store: Store, w: Writer):  # type: ignore[no-untyped-def]
    store.release(w.task_id, w.epoch)
    return store.claim(w.task_id)


def test_of_many_threads_that_settle_one_case_one_does(make_store: MakeStore, begin: Begin, clock: TurnClock) -> None:
    w = begin()
    w.append(case_opened("recon-1", clock(), w.epoch))
    stores = [make_store() for _ in range(4)]
    results: list[str] = []

    def settle(store: Store, by: str) -> None:
        try:
            store.add("recon-1", [case_settled("recon-1", clock(), "recon-1:2", by)])
            results.append("settled")
        except AlreadySettled as error:
            results.append(error.code)

    threads = [threading.Thread(target=settle, args=(stores[n % 4], f"p{n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["already_settled"] * 11 + ["settled"]


def test_of_two_processes_that_settle_one_case_one_does(
    begin: Begin, store: Store, clock: TurnClock, child: Callable[..., Child]
) -> None:
    w = begin()
    w.append(case_opened("recon-1", clock(), w.epoch))
    two = [child("settle", "recon-1:2", by) for by in ("ann", "bob")]
    assert [one.hear() for one in two] == ["ready", "ready"]
    for one in two:
        one.say()
    assert sorted(one.hear() for one in two) == ["already_settled", "settled"]
    assert len(store.rows("recon-1")) == 3


def test_heads_come_oldest_first_by_status_and_by_when_they_are_due(begin: Begin, store: Store, clock: TurnClock) -> None:
    for name, wake in (("a", 500), ("b", 900), ("c", None)):
        w = begin(name)
        w.append(parked(name, clock(), w.epoch, wake_at=wake))
    begin("d")
    assert [h.task_id for h in store.heads()] == ["a", "b", "c", "d"]
    assert [h.task_id for h in store.heads(status=["waiting"])] == ["a", "b", "c"]
    assert [h.task_id for h in store.heads(status=["waiting", "ready"], due=500)] == ["a", "c", "d"]
    assert [h.task_id for h in store.heads(due=499, limit=1)] == ["c"]


def test_open_cases_of_one_task_or_all_come_oldest_first(begin: Begin, store: Store, clock: TurnClock) -> None:
    for name in ("b", "a"):
        w = begin(name)
        w.append(case_opened(name, clock(), w.epoch))
    assert [c.case_id for c in store.cases()] == ["b:2", "a:2"]
    assert [c.case_id for c in store.cases(task_id="a")] == ["a:2"]
    assert store.case("c:2") is None
    store.notified("a:2")
    assert [c.notified_at is None for c in store.cases()] == [True, False]
    assert store.verify() == []


@pytest.mark.parametrize("seed", range(5))
def test_every_projection_is_what_the_log_folds_to_after_any_history(store: Store, clock: TurnClock, seed: int) -> None:
    dice = random.Random(seed)
    writers: dict[str, Writer] = {}
    for number in range(3):
        store.accept(accepted(f"t{number}", clock()))
    for _ in range(60):
        task = f"t{dice.randrange(3)}"
        w = writers.get(task)
        opened = [case.case_id for case in store.cases(task_id=task)]
        deed = dice.choice(["claim", "step", "case", "park", "end", "answer", "cancel", "freeze"])
        if deed == "claim" and w is None:
            writers[task] = Writer(store, task, store.claim(task))
            announced = draft(task, Kind.TASK_CLAIMED, clock(), status="running", epoch=writers[task].epoch, data={"owner": "x"})
            writers[task].append(announced)
        elif deed == "answer" and opened:
            store.add(task, [case_settled(task, clock(), dice.choice(opened))])
        elif deed == "cancel":
            store.add(task, [draft(task, Kind.CANCEL_REQUESTED, clock(), data={"by": "ann"})])
        elif deed == "freeze":
            kind = dice.choice([Kind.STORE_FROZEN, Kind.STORE_THAWED])
            step = dice.choice([None, "pay"])
            store.add(STORE_TASK, [draft(STORE_TASK, kind, clock(), step_name=step, data={"by": "ann", "why": "an incident"})])
        elif w is not None:
            w = Writer(store, task, _Epoch(w.epoch))  # others may have added rows
            if deed == "step":
                w.append(intended(task, clock(), w.epoch))
            elif deed == "case":
                w.append(case_opened(task, clock(), w.epoch))
            elif deed in ("park", "end"):
                w.append(parked(task, clock(), w.epoch, wake_at=dice.choice([None, 5])), keep_owner=False)
                del writers[task]
    assert sum(len(store.rows(f"t{n}")) for n in range(3)) > 10
    assert store.verify() == []


class _Epoch:
    """The one thing of a claim that a `Writer` needs."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
