"""A worker runs what `start` has recorded, what is due, what a person has settled; and it drains."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tasks_child import Program
from tasks_ground import PATIENCE, Child, Deploys, World, kinds, raised, rows, settle, statuses, until

from doubtless import Doubtless, Happened, NeedsHuman, TaskFrozen, TaskWaiting, UsageError
from doubtless.errors import StoreUnavailable
from doubtless.events import Kind
from doubtless.runs import Runs
from doubtless.testing import FakeClock
from doubtless.worker import Worker


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def ended(app: Doubtless, task_id: str) -> bool:
    return app.show(task_id).status in ("done", "failed")


def paying(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        return n

    @app.task
    def task(n: int) -> int:
        return pay(n)

    return task


def test_a_worker_runs_what_was_started_before_and_after_it(app: Doubtless, world: World) -> None:
    task = paying(app, world)
    app.start(task, "before", n=1)
    with app.worker() as worker:
        app.start(task, "after", n=2)
        until(lambda: ended(app, "before") and ended(app, "after"), "the end of both")
    assert app.run(task, "before", n=1) == 1
    assert app.run(task, "after", n=2) == 2
    assert world.n() == 2
    assert worker.errors == []


def test_a_worker_runs_no_more_tasks_at_once_than_its_concurrency(app: Doubtless) -> None:
    lock, go_on = threading.Lock(), threading.Event()
    now, most = 0, 0

    @app.step(effect="read")
    def busy() -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        assert go_on.wait(PATIENCE)
        with lock:
            now -= 1
        return 1

    @app.task
    def task() -> int:
        return busy()

    for number in range(7):
        app.start(task, f"t{number}")
    with app.worker(concurrency=3):
        until(lambda: now == 3, "three at once")
        go_on.set()
        until(lambda: all(ended(app, f"t{number}") for number in range(7)), "the end of all")
    assert most == 3


def test_a_worker_leaves_tasks_alone_whose_code_it_does_not_know(app: Doubtless, deploy: Deploys, world: World) -> None:
    other = deploy()

    @other.task
    def foreign() -> int:
        return 1

    other.start(foreign, "foreign")
    task = paying(app, world)
    app.start(task, "known", n=1)
    with app.worker() as worker:
        until(lambda: ended(app, "known"), "the end of the known one")
        until(lambda: worker.unknown, "the look at the other")
    assert worker.unknown == {"foreign"}
    assert kinds(app, "foreign") == [Kind.TASK_ACCEPTED]
    assert app.show("foreign").status == "ready"
    assert other.resume("foreign") == 1


def test_an_answer_wakes_the_worker(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def chat() -> str:
        world.do("chat")
        raise TimeoutError

    @app.task
    def task() -> str:
        return chat()

    app.start(task, "t")
    with app.worker():
        until(lambda: app.show("t").status == "needs_human", "the case")
        settle(app, Happened("seen"))
        until(lambda: ended(app, "t"), "the end")
    assert app.run(task, "t") == "seen"
    assert world.n() == 1


def test_a_worker_picks_up_what_is_due_and_not_before(app: Doubtless, clock: FakeClock, world: World) -> None:
    @app.step(effect="read", backoff="PT1H", attempts=2)
    def ask() -> int:
        world.do("ask")
        if world.n() == 1:
            raise ConnectionError
        return world.n()

    @app.task
    def task() -> int:
        return ask()

    other = reading(app)
    app.start(task, "t")
    with app.worker() as worker:
        until(lambda: app.show("t").status == "waiting", "the wait")
        clock.advance("PT30M")
        worker.wake()
        app.start(other, "other")
        until(lambda: ended(app, "other"), "the end of another")
        assert world.n("ask") == 1
        clock.advance("PT1H")
        worker.wake()
        until(lambda: ended(app, "t"), "the end")
    assert app.run(task, "t") == 2


def test_a_worker_takes_over_what_a_killed_process_left(child: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one: Child = child("run", "t", "effect")
    one.reach("effect")
    monkeypatch.chdir(tmp_path)
    here = Program(f"sqlite:///{tmp_path / 'tasks.db'}", clock=FakeClock(start="2100-01-01T00:00:00+00:00"))
    with here.app.worker() as worker:
        here.app.start(here.sync_task, "mine")
        until(lambda: ended(here.app, "mine"), "the end of its own")
        assert here.app.show("t").status == "running"  # its owner lives
        one.kill()
        worker.wake()
        until(lambda: ended(here.app, "t"), "the end")
    assert here.app.run(here.sync_task, "t") == 2
    assert one.effects() == 2
    assert here.app.verify() == []
    here.app.close()


def test_workers_of_two_processes_run_each_task_once(child: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Program(f"sqlite:///{tmp_path / 'tasks.db'}")
    other: Child = child("worker", "-")
    other.reach("working")
    with here.app.worker(concurrency=2):
        for number in range(12):
            here.app.start(here.sync_task, f"t{number}")
        until(lambda: all(ended(here.app, f"t{number}") for number in range(12)), "the end of all")
    other.go_on()
    assert "output" in other.result()
    assert other.effects() == 12
    assert [kinds(here.app, f"t{number}").count(Kind.TASK_ENDED) for number in range(12)] == [1] * 12
    here.app.close()


def test_stop_lets_the_running_write_be_recorded_and_claims_nothing_more(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        inside.set()
        assert go_on.wait(PATIENCE)
        return n

    @app.task
    def task() -> list[int]:
        return [pay(n) for n in range(3)]

    for number in range(3):
        app.start(task, f"t{number}")
    worker = app.worker(concurrency=1).start()
    assert inside.wait(PATIENCE)
    stopped: list[bool] = []
    thread = threading.Thread(target=lambda: stopped.append(worker.stop()))
    thread.start()
    until(lambda: all(run.last.parked for run in app._runs._active), "the drain")
    go_on.set()
    thread.join(PATIENCE)
    assert stopped == [True]
    assert world.n() == 1
    running = [head.task_id for head in app.tasks() if len(rows(app, head.task_id)) > 1]
    assert len(running) == 1
    view = app.show(running[0])
    assert (view.status, view.owner) == ("ready", None)
    assert statuses(app, running[0]) == {"1": "done"}
    go_on.set()
    assert app.run(task, running[0]) == [0, 1, 2]
    assert world.n() == 3


def test_stop_lets_runs_go_on_that_are_not_the_workers(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        inside.set()
        assert go_on.wait(PATIENCE)
        return n

    @app.task
    def task() -> list[int]:
        return [pay(n) for n in range(2)]

    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(app.run(task, "t")))
    thread.start()
    assert inside.wait(PATIENCE)  # before the worker looks: one that finds the task accepted and not yet claimed runs it itself
    with app.worker():
        pass
    go_on.set()
    thread.join(PATIENCE)
    assert got == [[0, 1]]


def test_stop_says_when_something_still_runs(app: Doubtless) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="read")
    def hang() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return 1

    @app.task
    def task() -> int:
        return hang()

    app.start(task, "t")
    worker = app.worker().start()
    assert inside.wait(PATIENCE)
    assert worker.stop(timeout=0.01) is False
    go_on.set()
    assert worker.stop() is True


@pytest.mark.parametrize("which", ["the one step", "one of two steps", "everything"])
def test_a_frozen_task_is_left_alone_until_what_it_stands_before_is_thawed(app: Doubtless, world: World, which: str) -> None:
    @app.step(effect="non_idem_write")
    def pay() -> int:
        world.do("pay")
        return 1

    @app.step(effect="non_idem_write")
    def tell() -> int:
        world.do("tell")
        return 2

    @app.task
    def task() -> int:
        world.do("pass")
        return pay()

    frozen = None if which == "everything" else pay
    app.freeze(frozen, why="stop")
    if which == "one of two steps":
        app.freeze(tell, why="stop too")
    with pytest.raises(TaskFrozen):
        app.run(task, "t")
    passes = world.n("pass")
    with app.worker() as worker:
        app.start(other := reading(app), "other")
        until(lambda: ended(app, "other"), "the end of another")
        assert world.n("pass") == passes
        app.thaw(frozen)
        until(lambda: ended(app, "t"), "the end")
        worker.wake()
    assert app.run(other, "other") == 5
    assert world.n("pay") == 1


def reading(app: Doubtless) -> Any:
    @app.step(effect="read")
    def five() -> int:
        return 5

    @app.task
    def read() -> int:
        return five()

    return read


def test_what_a_step_raises_to_end_its_program_does_not_end_the_worker(app: Doubtless, world: World) -> None:
    stop = [SystemExit]

    @app.step(effect="read", backoff=0)
    def look() -> int:
        if stop:
            raise stop.pop()
        return 1

    @app.task
    def task() -> int:
        return look()

    app.start(task, "t")
    with app.worker() as worker:
        until(lambda: worker.errors, "the error")
        assert isinstance(worker.errors[0], SystemExit)
        until(lambda: ended(app, "t"), "the end")  # recorded, parked, and picked up again
    assert app.run(task, "t") == 1


def test_a_worker_goes_on_after_a_task_needs_a_person_fails_or_breaks(app: Doubtless, world: World) -> None:
    from doubtless import Rejected

    @app.step(effect="non_idem_write")
    def act(how: str) -> str:
        world.do(how)
        if how == "rejected":
            raise Rejected
        if how == "lost":
            raise TimeoutError
        return how

    @app.task
    def task(how: str) -> str:
        if how == "broken":
            raise KeyError(how)
        return act(how)

    for how in ("rejected", "lost", "broken", "fine"):
        app.start(task, how, how=how)
    with app.worker(concurrency=2) as worker:
        until(lambda: all(app.show(how).status not in ("ready", "running") for how in ("rejected", "lost", "broken", "fine")))
    assert {head.task_id: head.status for head in app.tasks()} == {
        "rejected": "failed",
        "lost": "needs_human",
        "broken": "needs_human",
        "fine": "done",
    }
    assert worker.errors == []
    assert {case.kind for case in app.inbox().cases} == {"doubt", "code_error"}
    with pytest.raises(NeedsHuman):
        app.run(task, "lost", how="lost")


def test_each_time_a_store_goes_away_a_worker_says_so_and_that_it_is_there_again(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two outages with one message are two: whoever reads the log of the second one is told of it."""
    task, said = paying(app, world), list[str]()
    worker = Worker(app, say=said.append)
    look, away = worker._claim_due, threading.Event()

    def may_be_away() -> int:
        if away.is_set():
            raise StoreUnavailable("it is away")
        return look()

    monkeypatch.setattr(worker, "_claim_due", may_be_away)
    with worker:
        for n in (1, 2):
            away.set()
            worker.wake()
            until(lambda n=n: len(said) == 2 * n - 1, "the word that it is away")
            worker.wake()
            until(lambda n=n: len(worker.errors) > 2 * n, "more looks that fail")
            away.clear()
            worker.wake()
            until(lambda n=n: len(said) == 2 * n, "the word that it is there")
        app.start(task, "t-1", n=1)
        until(lambda: ended(app, "t-1"), "its end")
    assert said == ["StoreUnavailable: it is away; nothing is claimed until a look succeeds, it tries again", "looks succeed again"] * 2


def test_a_worker_without_concurrency_is_refused(app: Doubtless) -> None:
    assert isinstance(raised(app.worker, concurrency=0), UsageError)


def test_a_stopped_worker_leaves_the_app_usable(app: Doubtless, world: World) -> None:
    task = paying(app, world)
    with app.worker():
        pass
    assert app.run(task, "t", n=1) == 1
    app.start(task, "later", n=2)
    with app.worker():
        until(lambda: ended(app, "later"), "the end")


def test_a_waiting_task_costs_a_worker_no_rows(app: Doubtless, world: World) -> None:
    @app.step(effect="read", backoff="PT1H")
    def ask() -> int:
        raise ConnectionError

    @app.task
    def task() -> int:
        return ask()

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    before = len(rows(app, "t"))
    with app.worker():
        app.start(reading(app), "other")
        until(lambda: ended(app, "other"), "the end of another")
    assert len(rows(app, "t")) == before


def test_a_run_that_breaks_for_no_known_reason_is_said_and_keeps_no_other_from_its_turn(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, said, carry = paying(app, world), [], Runs.carry
    for n in range(3):
        app.start(task, f"t{n}", n=n)

    def broken(runs: Runs, run: Any) -> Any:
        if run.task_id == "t0":
            runs._give_back(run.task_id, run.give_back)
            raise RuntimeError("nobody expected this: \udc80")
        return carry(runs, run)

    monkeypatch.setattr(Runs, "carry", broken)
    worker = Worker(app, concurrency=1, say=said.append)
    with worker:
        until(lambda: ended(app, "t1") and ended(app, "t2"), "the others")
    assert len(said) == 1
    assert said[0].startswith("task t0 could not be run, and is tried again in 60 s: RuntimeError: nobody expected this")
    assert worker.ran == 3
