"""One owner at a time: whoever comes second is told who has the task; a dead owner's task is taken over at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tasks_child import Program
from tasks_ground import (
    PATIENCE,
    Child,
    Deploys,
    World,
    intents,
    kinds,
    migrated,
    only_case,
    outcomes,
    raised,
    rows,
    settle,
    statuses,
    together,
    until,
)

from doubtless import DidNotHappen, Doubtless, Happened, NeedsHuman, TaskBusy, UnknownTask
from doubtless.events import Kind
from doubtless.testing import FakeClock


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The children's program in this process."""
    monkeypatch.chdir(tmp_path)
    program = Program(f"sqlite:///{tmp_path / 'tasks.db'}", clock=FakeClock(start="2100-01-01T00:00:00+00:00"))
    yield program
    assert program.app.verify() == []
    program.app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def on_either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The children's program in this process, and in theirs, on a store of each kind."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'tasks.db'}" if request.param == "sqlite" else migrated(request, tmp_path)
    monkeypatch.setenv("TASKS_URL", url)
    program = Program(url)
    yield program
    assert program.app.verify() == []
    program.app.close()


def test_a_second_process_is_told_who_has_the_task(child: Any, here: Program) -> None:
    one: Child = child("run", "t", "effect")
    one.reach("effect")
    before = len(rows(here.app, "t"))
    with pytest.raises(TaskBusy) as caught:
        here.app.run(here.sync_task, "t")
    assert caught.value.context["pid"] == one.pid
    assert f"kill {one.pid}" in caught.value.hint
    with pytest.raises(TaskBusy):
        here.app.resume("t")
    assert here.app.resume_all(wait=True)["t"].startswith("skipped")
    assert len(rows(here.app, "t")) == before
    one.kill()


def test_a_stopped_process_keeps_its_task_and_the_second_is_told_how_to_end_it(child: Any, here: Program) -> None:
    one: Child = child("run", "t", "call")
    one.reach("call")
    one.send(signal.SIGSTOP)
    until(lambda: "T" in Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0], "the stop")
    with pytest.raises(TaskBusy, match=rf"kill -KILL {one.pid}"):
        here.app.run(here.sync_task, "t")
    one.kill()
    assert here.app.run(here.sync_task, "t") == 2
    assert one.effects() == 1


@pytest.mark.parametrize("place", ["call", "effect"])
def test_the_task_of_a_killed_process_is_taken_over_at_once_and_its_call_is_in_doubt(
    child: Any, here: Program, place: str
) -> None:
    """C49: what was running is never run again because its owner is gone; it is in doubt, and settled."""
    one: Child = child("run", "t", place)
    one.reach(place)
    assert statuses(here.app, "t")["2"] == "uncertain"
    one.kill()
    assert [doubt.path for doubt in here.app.inbox().doubts] == ["2"]
    assert here.app.run(here.sync_task, "t") == 2
    assert one.effects() == 1
    assert outcomes(here.app, "t", "2")[0] == ("unknown", "owner_died")
    taken = next(row for row in rows(here.app, "t") if row.kind == Kind.TASK_CLAIMED and "was" in row.details)
    assert taken.details["was"].startswith(f"{one.pid}-")


def test_start_is_durable_before_it_returns(child: Any, here: Program) -> None:
    """C12."""
    one: Child = child("start", "t")
    one.reach("started")
    one.kill()
    (head,) = here.app.tasks()
    assert (head.task_id, head.status, head.owner) == ("t", "ready", None)
    assert kinds(here.app, "t") == [Kind.TASK_ACCEPTED]
    assert here.app.resume("t") == 2
    assert one.effects() == 1


def test_two_processes_that_recover_at_once_make_one_effect(child: Any, on_either: Program) -> None:
    """C81, with the starter alive."""
    for number in range(6):
        on_either.app.start(on_either.sync_task, f"t{number}")
    others: list[Child] = [child("resume-all", "-"), child("resume-all", "-")]
    for other in others:
        other.reach("ready")
    for other in others:
        other.go_on()
    mine = on_either.app.resume_all(wait=True)
    results = [mine, *(other.result()["output"] for other in others)]
    for number in range(6):
        on_either.app.resume(f"t{number}")
        said = [result[f"t{number}"] for result in results if f"t{number}" in result]
        assert all(word == "done" or word.startswith(("skipped", "task_busy")) for word in said), said
    assert others[0].effects() == 6
    assert [kinds(on_either.app, f"t{number}").count(Kind.TASK_ENDED) for number in range(6)] == [1] * 6


# ---------------------------------------------------------------- threads of one process


def blocking(app: Doubtless, world: World) -> tuple[Any, threading.Event, threading.Event]:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def pay() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return int(world.do("pay")["id"])

    @app.task
    def task() -> int:
        return pay()

    return task, inside, go_on


def test_a_second_thread_is_told_that_this_process_has_the_task(deploy: Deploys, world: World) -> None:
    app, other = deploy(), deploy()
    task, inside, go_on = blocking(app, world)
    task_there, _, _ = blocking(other, world)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(app.run(task, "t")))
    thread.start()
    assert inside.wait(PATIENCE)
    for one, its in ((app, task), (other, task_there)):  # also through another app on the same file
        with pytest.raises(TaskBusy) as caught:
            one.run(its, "t")
        assert caught.value.context["pid"] == os.getpid()
        assert "this process" in str(caught.value)
    go_on.set()
    thread.join(PATIENCE)
    assert got == [1]
    assert other.run(task_there, "t") == 1


def test_fifty_threads_with_one_id_make_one_intent_and_one_effect(everywhere: Deploys, world: World) -> None:
    """C90."""
    app = everywhere()

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        return n

    @app.task
    def task() -> int:
        return pay(1) + pay(2)

    results = together(50, lambda number: app.run(task, "t"))
    assert {type(result) for result in results} <= {int, TaskBusy}
    assert 3 in results
    assert world.n() == 2
    assert intents(app, "t") == {"1": 1, "2": 1}
    assert kinds(app, "t").count(Kind.TASK_ENDED) == 1
    assert kinds(app, "t").count(Kind.TASK_ACCEPTED) == 1
    assert app.run(task, "t") == 3


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_come_while_a_task_is_ending_never_end_it_twice(deploy: Deploys, world: World, seed: int) -> None:
    """I3: a claim that is granted after the end does not run the code again."""
    app = deploy()
    runs: list[int] = []

    @app.task
    def task() -> int:
        runs.append(1)
        return len(runs)

    def hammer(number: int) -> Any:
        got: Any = None
        while not isinstance(got, int):
            got = raised(app.run, task, "t") or app.run(task, "t")
        return got

    assert set(together(8, hammer)) == {1}
    assert runs == [1]
    assert kinds(app, "t").count(Kind.TASK_ENDED) == 1


def test_start_and_resume_all_at_the_same_moment_run_the_task_once(everywhere: Deploys, world: World) -> None:
    """C81."""
    app = everywhere()

    @app.step(effect="non_idem_write")
    def pay() -> int:
        world.do("pay")
        return 1

    @app.task
    def task() -> int:
        return pay()

    def call(number: int) -> Any:
        return app.run(task, "t") if number % 2 else app.resume_all(wait=True)

    results = together(12, call)
    assert all(not isinstance(result, Exception) or isinstance(result, TaskBusy) for result in results)
    assert app.run(task, "t") == 1
    assert world.n() == 1


def test_resume_all_tells_what_became_of_each_task(deploy: Deploys, world: World) -> None:
    app, older = deploy(), deploy()

    @older.task
    def gone() -> None:
        return None

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        if n == 1:
            raise TimeoutError
        return n

    @app.step(effect="read", backoff="PT1H")
    def ask() -> int:
        raise ConnectionError

    @app.task
    def paying(n: int) -> int:
        return pay(n)

    @app.task
    def asking() -> int:
        return ask()

    older.start(gone, "gone")
    for number in (1, 2):
        app.start(paying, f"paying {number}", n=number)
    app.start(asking, "asking")
    said = {task_id: what.partition(":")[0].split(" ")[0] for task_id, what in app.resume_all().items()}
    assert said == {"gone": "unknown", "paying 1": "needs_human", "paying 2": "done", "asking": "task_waiting"}
    assert "paying 2" not in app.resume_all()


def test_resume_of_a_task_that_does_not_exist_is_refused(deploy: Deploys) -> None:
    app = deploy()
    with pytest.raises(UnknownTask):
        app.resume("nobody")


def test_a_task_whose_code_is_not_in_this_app_is_refused_and_stays_as_it_is(deploy: Deploys) -> None:
    app, other = deploy(), deploy()

    @app.task
    def task() -> int:
        return 1

    app.start(task, "t")
    with pytest.raises(UnknownTask, match="task"):
        other.resume("t")
    assert app.show("t").owner is None
    assert app.resume("t") == 1


class Torn(BaseException):
    """The row of a result could not be written, and nobody knows why."""


def torn(app: Doubtless, world: World, **options: Any) -> Any:
    """A task whose run was torn off right after its effect: the claim was given back, the attempt has no outcome."""

    @app.step(effect="non_idem_write", **options)
    def pay() -> int:
        return int(world.do("pay")["id"])

    @app.task
    def task() -> int:
        return pay()

    broken: list[str] = []

    def break_the_result(point: str) -> None:
        if point == "append:before" and world.n() and not broken:
            broken.append(point)
            raise Torn

    app._hooks = break_the_result
    assert isinstance(raised(app.run, task, "t"), Torn)
    assert outcomes(app, "t", "1") == [(None, "")]
    assert app.show("t").owner is None
    return task


def test_an_attempt_without_an_outcome_whose_claim_was_given_back_is_in_doubt(deploy: Deploys, world: World) -> None:
    """No takeover says so where the process lives on."""
    app = deploy()
    task = torn(app, world)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert outcomes(app, "t", "1") == [("unknown", "owner_died")]
    assert only_case(app).kind == "doubt"
    settle(app, Happened(7))
    assert app.run(task, "t") == 7
    assert world.n() == 1


def test_its_last_possible_send_was_before_the_next_claim(deploy: Deploys, world: World) -> None:
    """So an absence can be proven in that claim, without another takeover."""
    app = deploy()
    task = torn(app, world, query=lambda: None, absent_after="PT1M", on_absent="retry")
    before = deploy.clock.now().wall
    assert app.run(task, "t") == 2  # (this query was wrong: its absent_after is false)
    assert 60 <= (deploy.clock.now().wall - before) / 1e6 < 600


def test_an_answer_is_acted_on_by_the_next_owner_and_the_stored_params_are_sent(deploy: Deploys, world: World) -> None:
    app = deploy()
    amounts = iter((1, 2, 3))

    @app.step(effect="non_idem_write", volatile="at")
    def pay(order: str, at: int) -> int:
        world.do("pay", at)
        if world.n() == 1:
            raise TimeoutError
        return at

    @app.task
    def task() -> int:
        return pay("o1", at=next(amounts))

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, DidNotHappen("retry", even_now=True))
    assert app.run(task, "t") == 1
    assert [what for _, what, _ in world.done] == [1, 1]
