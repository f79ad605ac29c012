"""Several at the same instant: threads, branches and processes, and one effect for each key."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from keys_ground import Start

from doubtless import Doubtless, TaskWaiting
from doubtless.events import Kind
from doubtless.testing import Harness

CHILD = Path(__file__).with_name("keys_child.py")
PATIENCE = 60.0


def test_of_processes_at_the_same_instant_one_has_each_effect_and_all_have_its_output(tmp_path: Path) -> None:
    """The instant is the start signal; ten keys in a row make ten races, counted in a file outside."""
    url, effects = f"sqlite:///{tmp_path / 'keys.db'}", tmp_path / "effects"
    Doubtless(url, namespace="tests").store.info()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), url, str(effects), f"t{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )
        for number in range(3)
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said = [child.communicate(timeout=PATIENCE)[0].strip() for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    counted = Counter(line.split()[0] for line in effects.read_text().splitlines())
    assert counted == {f"o{number}": 1 for number in range(10)}
    assert said[0].startswith("got") and len(set(said)) == 1, said
    assert Doubtless(url, namespace="tests").verify() == []


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
