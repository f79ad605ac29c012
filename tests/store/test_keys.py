"""Business keys in the store: taken with the row, by a unique constraint; a projection of the log (I9)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, accepted, intended, only_sqlite, parked, settled

from doubtless.errors import KeyHeld, Moved
from doubtless.events import Event, Kind, StepStatus, draft, dump
from doubtless.store.base import KeyRow, Store

POLICY = "00" * 32


def taking(task: str, clock: TurnClock, epoch: int | None, *, once: str = "k", turn: int = 1, step: int = 1, **more: Any) -> Event:
    return intended(task, clock(), epoch, step)._replace(data=dump({"policy": POLICY, "once": once, "turn": turn, **more}))


def letting(task: str, clock: TurnClock, epoch: int | None, status: str, *, once: str = "k", step: int = 1) -> Event:
    return settled(task, clock(), epoch, step)._replace(status=status, data=dump({"once": once}))


def sound(store: Store) -> bool:
    return [p for p in store.verify() if "policy" not in p.what] == []  # these intents name no policy that exists


def test_a_key_is_taken_with_its_row_and_has_one_holder(begin: Begin, store: Store, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    assert store.key("k") is None
    a.append(taking("a", clock, a.epoch, window_us=5))
    assert store.key("k") == KeyRow("k", 1, "a", "1", "open", 5, None, None)
    for turn in (1, 2, 3):
        with pytest.raises(KeyHeld, match="held by task a, step at 1") as caught:
            b.append(taking("b", clock, b.epoch, turn=turn))
        assert caught.value.context["task"] == "a"
    assert [row.kind for row in store.rows("b")] == [Kind.TASK_ACCEPTED]  # the row is not written either
    b.append(taking("b", clock, b.epoch, once="another"))
    assert sound(store)


@pytest.mark.parametrize(
    ("status", "state", "takes"),
    [
        (StepStatus.DONE, "done", True),
        (StepStatus.NOT_APPLIED, "freed", True),
        (StepStatus.FAILED, "failed", False),
        (StepStatus.COMPENSATED, "open", False),
    ],
)
def test_what_settles_the_holder_moves_the_key_and_the_next_turn_follows_only_then(
    begin: Begin, store: Store, clock: TurnClock, status: str, state: str, takes: bool
) -> None:
    a, b = begin("a"), begin("b")
    a.append(taking("a", clock, a.epoch))
    (row,) = a.append(letting("a", clock, a.epoch, status))
    key = store.key("k")
    assert key is not None and key.state == state
    assert (key.done_at, key.done_boot) == ((row.at.wall, row.boot_at) if state == "done" else (None, None))
    for turn in (1, 3):
        with pytest.raises(KeyHeld):
            b.append(taking("b", clock, b.epoch, turn=turn))
    if takes:
        b.append(taking("b", clock, b.epoch, turn=2))
        assert store.key("k") == KeyRow("k", 2, "b", "1", "open", None, None, None)
        late = letting("a", clock, a.epoch, StepStatus.DONE)
        a.append(late)  # of a turn that is over: the key is another one's
        assert store.key("k") == KeyRow("k", 2, "b", "1", "open", None, None, None)
    else:
        with pytest.raises(KeyHeld):
            b.append(taking("b", clock, b.epoch, turn=2))
    assert sound(store)


def test_a_key_moves_once_in_each_turn(begin: Begin, store: Store, clock: TurnClock) -> None:
    a = begin("a")
    a.append(taking("a", clock, a.epoch))
    a.append(letting("a", clock, a.epoch, StepStatus.DONE))
    done = store.key("k")
    for status in (StepStatus.NOT_APPLIED, StepStatus.FAILED, StepStatus.DONE):
        a.append(letting("a", clock, a.epoch, status))
        assert store.key("k") == done
    assert sound(store)


def test_what_a_person_adds_moves_the_key_and_takes_it_again(begin: Begin, store: Store, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    a.append(taking("a", clock, a.epoch))
    store.add("a", [letting("a", clock, None, StepStatus.NOT_APPLIED)])
    again = draft("a", Kind.RETRY_ALLOWED, clock(), path="1", step_seq=1, status="uncertain", data={"once": "k", "turn": 2})
    store.add("a", [again])
    assert store.key("k") == KeyRow("k", 2, "a", "1", "open", None, None, None)
    store.add("a", [letting("a", clock, None, StepStatus.NOT_APPLIED)])
    b.append(taking("b", clock, b.epoch, turn=3))
    before = store.rows("a")
    with pytest.raises(KeyHeld):
        store.add("a", [draft("a", Kind.RETRY_ALLOWED, clock(), path="1", step_seq=1, data={"once": "k", "turn": 4})])
    assert store.rows("a") == before
    assert sound(store)


def test_a_row_that_is_refused_takes_no_key(begin: Begin, store: Store, clock: TurnClock) -> None:
    a = begin("a")
    row = taking("a", clock, a.epoch)
    store.append(a.seal(draft("a", Kind.EVIDENCE_STORED, clock(), epoch=a.epoch, data={"what": "late_error"})))
    with pytest.raises(Moved):
        store.append(a.seal(row))
    assert store.key("k") is None


def test_an_append_whose_fate_was_unknown_and_that_stands_is_found_with_its_key(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    a = begin("a")
    rows = a.append(taking("a", clock, a.epoch))
    store.append(rows)  # again: they stand
    key = store.key("k")
    assert key is not None and (key.task_id, key.turn, key.state) == ("a", 1, "open")


def test_of_two_connections_at_one_instant_one_takes_the_key(make_store: MakeStore, clock: TurnClock) -> None:
    for race in range(20):
        gate, results = threading.Barrier(2), dict[str, str]()

        def take(store: Store, task: str, race: int = race, gate: Any = gate, results: Any = results) -> None:
            writer = Writer(store, task, store.claim(task))
            gate.wait(20)
            try:
                writer.append(taking(task, clock, writer.epoch, once=f"k{race}"))
                results[task] = "took"
            except KeyHeld as held:
                results[task] = held.context["task"]

        stores = [make_store() for _ in range(2)]
        names = [f"{race}-{number}" for number in range(2)]
        for name in names:
            stores[0].accept(accepted(name, clock()))
        threads = [threading.Thread(target=take, args=pair) for pair in zip(stores, names, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        (winner,) = [name for name in names if results[name] == "took"]
        assert sorted(results.values()) == sorted(["took", winner])


@pytest.mark.parametrize("seed", range(8))
def test_the_keys_are_what_the_log_folds_to_after_any_history(store: Store, clock: TurnClock, seed: int) -> None:
    """Turns tell who has a key, in whatever order the tasks are read."""
    dice = random.Random(seed)
    writers = []
    for name in dice.sample(["a", "b", "c", "d"], 4):
        store.accept(accepted(name, clock()))
        writers.append(Writer(store, name, store.claim(name)))
    steps: dict[str, int] = {}
    opened: list[tuple[Writer, str, int]] = []
    freed: list[tuple[Writer, str, int]] = []
    for _ in range(80):
        w, once = dice.choice(writers), dice.choice(["x", "y"])
        key = store.key(once)
        if opened and dice.random() < 0.5:
            w, once, step = opened.pop(dice.randrange(len(opened)))
            status = dice.choice([StepStatus.DONE, StepStatus.NOT_APPLIED])
            w.append(letting(w.task_id, clock, w.epoch, status, once=once, step=step))
            if status == StepStatus.NOT_APPLIED:
                freed.append((w, once, step))
        elif key is None or key.state in ("done", "freed"):
            turn = 1 if key is None else key.turn + 1
            again = [entry for entry in freed if entry[1] == once]
            if again and dice.random() < 0.4:
                w, once, step = dice.choice(again)
                freed.remove((w, once, step))
                data = {"once": once, "turn": turn}
                retry = draft(w.task_id, Kind.RETRY_ALLOWED, clock(), path=str(step), step_seq=step, epoch=w.epoch, data=data)
                w.append(retry)
            else:
                step = steps[w.task_id] = steps.get(w.task_id, 0) + 1
                w.append(taking(w.task_id, clock, w.epoch, once=once, turn=turn, step=step))
            opened.append((w, once, step))
    assert {store.key(once) is not None for once in ("x", "y")} == {True}
    assert sound(store)


@only_sqlite
def test_an_ordinary_step_is_appended_by_one_statement_and_only_a_key_costs_more(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    w = begin("a")
    w.append(intended("a", clock(), w.epoch, 1))  # the first: everything is opened by now
    said: list[str] = []

    def trace(cursor: Any, statement: str, bindings: Any) -> bool:
        said.append(statement)
        return True

    assert store._link._connection is not None
    store._link._connection.exec_trace = trace
    w.append(settled("a", clock(), w.epoch, 1))
    w.append(intended("a", clock(), w.epoch, 2))
    w.append(draft("a", Kind.HANDLE_RECORDED, clock(), path="2", step_seq=2, epoch=w.epoch, data={"handle": "h"}))
    assert [s.split()[0] for s in said] == ["INSERT", "INSERT", "INSERT"]
    said.clear()
    w.append(taking("a", clock, w.epoch, step=3))
    assert len(said) > 1
    store._link._connection.exec_trace = None


def test_a_task_that_awaits_a_key_is_due_when_its_holder_is_settled(begin: Begin, store: Store, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    a.append(taking("a", clock, a.epoch))
    waits = parked("b", clock(), b.epoch, wake_at=clock.wall + 10**12)
    b.append(waits._replace(data=dump({"wake_at": clock.wall + 10**12, "why": "waits", "awaits": "k"})))
    head = store.head("b")
    assert head is not None and head.awaits == "k"
    assert [h.task_id for h in store.heads(status=["waiting"], due=clock.wall)] == []
    a.append(letting("a", clock, a.epoch, StepStatus.NOT_APPLIED))
    assert [h.task_id for h in store.heads(status=["waiting"], due=clock.wall)] == ["b"]
    c = Writer(store, "b", store.claim("b"))
    c.append(parked("b", clock(), c.epoch, wake_at=clock.wall + 10**12))
    head = store.head("b")
    assert head is not None and head.awaits is None
    assert sound(store)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM keys", "business key 'k' is None"),
        ("UPDATE keys SET state = 'freed'", "the log says KeyRow(once='k', turn=1, task_id='a', path='1', state='open'"),
        ("UPDATE keys SET task_id = 'b'", "task_id='b'"),
        ("INSERT INTO keys VALUES ('z', 1, 'a', '1', 'open', NULL, NULL, NULL)", "business key 'z'"),
        ("UPDATE tasks SET awaits = 'k'", "the head's awaits is 'k'"),
    ],
)
def test_a_key_that_the_log_does_not_fold_to_is_found(
    begin: Begin, store: Store, clock: TurnClock, tamper: Callable[[str], None], statement: str, words: str
) -> None:
    a = begin("a")
    a.append(taking("a", clock, a.epoch))
    assert sound(store)
    tamper(statement)
    assert any(words in problem.what for problem in store.verify()), store.verify()


def test_the_policy_of_an_intent_with_a_key_is_a_ref_that_verify_checks(
    begin: Begin, store: Store, clock: TurnClock
) -> None:
    a = begin("a")
    a.append(taking("a", clock, a.epoch))
    assert any(f"the content of its policy is missing (sha256:{POLICY})" in problem.what for problem in store.verify())
