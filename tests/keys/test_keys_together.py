"""Several at the same instant: threads, branches and processes, and one effect for each key."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keys_child import program
from keys_ground import Start, refuse
from tests import nursery

from doubtless import DidNotHappen, Doubtless, Happened, NeedsHuman, TaskWaiting
from doubtless.events import Kind
from doubtless.testing import Harness

CHILD = Path(__file__).with_name("keys_child.py")
PATIENCE = 60.0


class Child:
    """One program in a process of its own."""

    def __init__(self, place: Path, task: str, *, orders: int, stop: str = "") -> None:
        args = [f"sqlite:///{place / 'keys.db'}", str(place / "effects"), task, str(orders), *([stop] if stop else [])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = nursery.Popen(
            [sys.executable, str(CHILD), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts programs on one store; what still runs at the end is killed, and the store has to be sound."""
    started: list[Child] = []
    Doubtless(f"sqlite:///{tmp_path / 'keys.db'}", namespace="tests").store.info()

    def start(task: str, **options: Any) -> Child:
        started.append(Child(tmp_path, task, **options))
        assert started[-1].says() == "ready"
        return started[-1]

    yield start
    for one in started:
        one.end()
    assert Doubtless(f"sqlite:///{tmp_path / 'keys.db'}", namespace="tests").verify() == []


def effects(place: Path) -> Counter[str]:
    """What was really done: the lines of the file outside, by order."""
    try:
        return Counter(line.split()[0] for line in (place / "effects").read_text().splitlines())
    except FileNotFoundError:
        return Counter()


def test_of_processes_at_the_same_instant_one_has_each_effect_and_all_have_its_output(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    """The instant is the start signal; ten keys in a row make ten races, counted in a file outside."""
    children = [child(f"t{number}", orders=10) for number in range(3)]
    for one in children:
        one.go()
    said = [one.says() for one in children]
    assert effects(tmp_path) == {f"o{number}": 1 for number in range(10)}
    assert said[0].startswith("got") and len(set(said)) == 1, said


@pytest.mark.parametrize(("place", "done"), [("call", 0), ("effect", 1)])
def test_the_key_of_a_killed_process_is_held_until_its_doubt_is_settled(
    child: Callable[..., Child], tmp_path: Path, place: str, done: int
) -> None:
    one = child("t0", orders=1, stop=place)
    one.go()
    assert one.says() == place
    one.end()
    two = child("t1", orders=1)
    two.go()
    said = two.says()
    assert said.startswith("waits") and "refund at 1 of task t0 is not settled; resume that task" in said
    app, pay = program(f"sqlite:///{tmp_path / 'keys.db'}", str(tmp_path / "effects"))
    with pytest.raises(NeedsHuman):
        app.resume("t0")
    (case,) = app.inbox().cases
    answer = Happened({"pid": 7}) if done else DidNotHappen("fail", even_now=True)
    app.settle(case.id, answer, by="anna", why="looked", shown=case.hash)
    app.resume_all(wait=False)
    output = app.run(pay, "t1", orders=1)
    assert output == ([7] if done else [os.getpid()])
    assert effects(tmp_path) == {"o0": 1}
    app.close()


def test_fifty_threads_with_one_key_have_one_intent_and_one_effect(start: Start) -> None:
    """C90: the key is no check before an insert; it is taken with the intent, by a unique constraint."""
    refunds, h = start(auto_advance=False)
    refunds.inside = h.clock.until_paused  # the one that calls is in flight until another one waits for it
    results = together(h, 50, lambda number: h.run(refunds.one, f"t{number}"))
    assert refunds.world.count() == 1
    assert results == [refunds.world.all()[0]] * 50
    rows = [row for number in range(50) for row in refunds.app.store.rows(f"t{number}")]
    assert sum(row.kind == Kind.STEP_INTENDED for row in rows) == 1
    assert sum(row.kind == Kind.STEP_SETTLED for row in rows) == 50


def together(h: Harness, count: int, call: Any) -> list[Any]:
    """Call in so many threads at one moment, and turn the clock for those who wait; what each returned."""
    gate, results = threading.Barrier(count), [None] * count

    def work(number: int) -> None:
        gate.wait(PATIENCE)
        results[number] = call(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ended = time.monotonic() + PATIENCE
    for thread in threads:
        while thread.is_alive():
            assert time.monotonic() < ended
            h.advance("PT0.1S")
            thread.join(0.005)
    return results


def test_while_the_holder_is_in_flight_the_next_waits_in_place_and_gets_its_output(start: Start) -> None:
    refunds, h = start(auto_advance=False)
    called, go_on = threading.Event(), threading.Event()
    refunds.inside = lambda: (called.set(), go_on.wait(PATIENCE), None)[-1]
    results: dict[str, Any] = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: h.run(refunds.one, n)})) for n in ("a", "b")]
    threads[0].start()
    assert called.wait(PATIENCE)
    threads[1].start()
    h.clock.until_paused()
    with pytest.raises(TaskWaiting, match="refund at 1 of task a is in flight"):
        h.run(refunds.one, "c", wait=False)
    assert results == {}
    go_on.set()
    threads[0].join(PATIENCE)
    while threads[1].is_alive():
        h.advance("PT1S")
        threads[1].join(0.01)
    assert results["a"] == results["b"]
    assert refunds.world.count() == 1
    assert h.run(refunds.one, "c") == results["a"]


def test_branches_of_one_async_task_with_one_key_have_one_effect(start: Start) -> None:
    refunds, h = start()
    app, world = refunds.app, refunds.world

    @app.step(effect="non_idem_write", once="gift:{to}")
    async def gift(to: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return world.do("gift", to=to)

    @app.task
    async def party() -> list[Any]:
        return list(await asyncio.gather(gift(to="anna"), gift(to="anna"), gift(to="bob"), gift(to="anna")))

    found = h.run(party, "p")
    assert found[0] == found[1] == found[3] != found[2]
    assert world.count("gift") == 2


def test_a_worker_goes_on_with_the_waiting_task_as_soon_as_the_holder_is_settled(start: Start) -> None:
    refunds, h = start(auto_advance=False)
    called, go_on = threading.Event(), threading.Event()
    refunds.inside = lambda: (called.set(), go_on.wait(PATIENCE), None)[-1]
    holder = threading.Thread(target=lambda: h.run(refunds.one, "a"))
    holder.start()
    assert called.wait(PATIENCE)
    with pytest.raises(TaskWaiting):
        h.run(refunds.one, "b", wait=False)
    with refunds.app.worker() as worker:  # the clock stands, so that only the key can make the task due
        worker._claim_due()
        assert refunds.app.show("b").status == "waiting"
        go_on.set()
        holder.join(PATIENCE)
        ended = time.monotonic() + PATIENCE
        while refunds.app.show("b").status != "done":
            assert time.monotonic() < ended
            worker._wake.set()
            time.sleep(0.002)
    assert refunds.world.count() == 1


def test_an_idempotent_write_has_business_keys_too_and_sends_its_own_key_again(start: Start) -> None:
    refunds, h = start(effect="idem_write")
    h.lose_reply(refunds.refund)
    first = h.run(refunds.one, "a")
    assert h.run(refunds.one, "b") == first
    assert {effect["key"] for effect in refunds.world.all()} == {first["key"]}


def test_a_holder_that_ends_while_it_is_looked_at_parks_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    refunds, h = start()
    called, go_on = threading.Event(), threading.Event()
    refunds.inside = lambda: (called.set(), go_on.wait(PATIENCE), None)[-1]
    holder = threading.Thread(target=lambda: h.run(refunds.one, "a"))
    holder.start()
    assert called.wait(PATIENCE)
    store, looked = refunds.app.store, []
    read = store.rows

    def rows(task_id: str, **options: Any) -> Any:
        found = read(task_id, **options)
        if task_id == "a" and threading.current_thread() is not holder and not looked:
            looked.append(task_id)
            go_on.set()  # what was read is old by the time that it is looked at
            holder.join(PATIENCE)
        return found

    monkeypatch.setattr(store, "rows", rows, raising=False)
    assert h.run(refunds.one, "b")["id"] == "refund-1"
    assert (looked, refunds.world.count()) == (["a"], 1)


@pytest.mark.parametrize("how", ["threads", "asyncio", "sync steps on a loop", "sync steps on a loop, in place"])
def test_a_branch_that_waits_for_the_key_of_another_branch_lets_it_go_on(start: Start, how: str) -> None:
    """It parked the whole pass before the other had begun, again at each resume: for ever."""
    refunds, h = start(auto_advance=False, retry_rejected=True, attempts=3)
    app, world, refund, mail = refunds.app, refunds.world, refunds.refund, refunds.mail
    trouble = [refuse]
    refunds.inside = lambda: trouble.pop()() if trouble else None

    def first() -> Any:
        app.wait_for("go", deadline="PT10H")
        try:
            return refund(order="o1", line=1)
        finally:
            mail(to="anna")  # not before its refund: this branch has only stepped aside

    @app.task
    def in_threads() -> Any:
        return app.parallel(first, lambda: refund(order="o1", line=1))

    @app.task
    async def on_a_loop() -> Any:
        async def one() -> Any:
            await app.wait_for("go", deadline="PT10H")
            try:
                return await refund.acall(order="o1", line=1) if how == "asyncio" else refund(order="o1", line=1)
            finally:
                await mail.acall(to="anna")

        async def two() -> Any:
            return await refund.acall(order="o1", line=1) if how == "asyncio" else refund(order="o1", line=1)

        return await app.parallel(one, two)

    task = in_threads if how == "threads" else on_a_loop
    with pytest.raises(TaskWaiting):
        h.run(task, "t", wait=False)
    app.send_event("t", "go", 1)
    h.clock.advance(3600)
    for _ in range(3):
        try:
            found = h.run(task, "t", wait="PT1S" if how.endswith("in place") else False)
            break
        except TaskWaiting:
            assert world.count("refund") == 1 and world.count("mail") == 0
            h.clock.advance(3600)
    assert found[0] == found[1]
    assert world.count("refund") == world.count("mail") == 1
