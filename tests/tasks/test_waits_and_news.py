"""Clocks that are set back stretch no wait; texts that cannot be stored break nothing; a forked child adds no output."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks_ground import PATIENCE, Deploys, World, kinds, only_case, raised, rows, until
from tests import nursery

from doubtless import Abandon, Doubtless, NeedsHuman, Pending, Several, TaskWaiting, Unclear, UsageError
from doubtless.calls import Wait
from doubtless.drivers import wait
from doubtless.errors import AnswerRefused
from doubtless.events import Kind
from doubtless.testing import FakeClock

HOUR = 3600 * 1_000_000


class SetClock(FakeClock):
    """A clock whose wall half can be set, as a person or NTP does; the boot-time half does not notice."""

    def set_by(self, microseconds: int) -> None:
        with self._turned:
            self._wall += microseconds


@pytest.fixture
def clock() -> SetClock:
    return SetClock(auto_advance=False)


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


# ---------------------------------------------------------------- clocks


def flaky_read(app: Doubtless, calls: list[int], **options: Any) -> Any:
    """A task whose read fails once."""

    @app.step(effect="read", attempts=5, **options)
    def look() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError("first")
        return len(calls)

    @app.task
    def task() -> int:
        return look()

    @app.task
    async def atask() -> int:
        return await look.acall()

    return task, atask


@pytest.mark.parametrize("which", [0, 1])
def test_a_wall_clock_set_back_does_not_stretch_a_backoff_in_place(app: Doubtless, clock: SetClock, which: int) -> None:
    calls: list[int] = []
    task = flaky_read(app, calls, backoff=20)[which]
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(app.run(task, "t")))
    thread.start()
    clock.until_paused()
    clock.set_by(-HOUR)
    clock.advance(5)
    clock.until_paused()
    assert len(calls) == 1  # its jittered 20 s are not over
    clock.advance(25)
    thread.join(PATIENCE)
    assert ended == [2]


def test_a_pause_between_two_looks_is_not_stretched_either(app: Doubtless, clock: SetClock, world: World) -> None:
    answers: list[Any] = [Pending("PT20S"), {"id": 7}]

    def query() -> Any:
        return answers.pop(0)

    @app.step(effect="non_idem_write", query=query)
    def pay() -> dict[str, Any]:
        world.do("pay")
        raise TimeoutError("lost")

    @app.task
    def task() -> Any:
        return pay()["id"]

    assert isinstance(raised(app.run, task, "t", wait=False), TaskWaiting)
    clock.set_by(-HOUR)
    clock.advance(21)
    assert app.resume("t", wait=False) == 7
    assert world.n("pay") == 1


def test_a_worker_finds_a_waiting_task_due_although_the_wall_clock_was_set_back(app: Doubtless, clock: SetClock) -> None:
    calls: list[int] = []
    task, _ = flaky_read(app, calls, backoff=20)
    with app.worker() as worker:
        app.start(task, "t")
        until(lambda: app.show("t").status == "waiting", "the wait")
        until(lambda: worker._setback._seen is not None, "the first look")
        clock.set_by(-HOUR)
        until(lambda: worker._setback._due, "the look that sees it")
        clock.advance(5)
        assert len(calls) == 1
        clock.advance(25)
        until(lambda: app.show("t").status == "done", "the second attempt")
    assert worker.errors == []


def test_a_worker_that_begins_after_the_clock_was_set_back_finds_it_due_too(app: Doubtless, clock: SetClock) -> None:
    calls: list[int] = []
    task, _ = flaky_read(app, calls, backoff=20)
    assert isinstance(raised(app.run, task, "t", wait=False), TaskWaiting)
    clock.set_by(-HOUR)
    with app.worker() as worker:
        until(lambda: worker._setback._due, "the first look")
        clock.advance(30)
        until(lambda: app.show("t").status == "done", "the second attempt")


def test_a_worker_looks_once_at_what_a_cautious_reading_of_the_clocks_lets_wait_on(
    app: Doubtless, clock: SetClock, world: World
) -> None:
    looked: list[int] = []

    def query() -> None:
        looked.append(1)

    @app.step(effect="non_idem_write", query=query, absent_after="PT10M", on_absent="fail")
    def pay() -> None:
        world.do("pay")
        raise TimeoutError("lost")

    @app.task
    def task() -> None:
        pay()

    assert isinstance(raised(app.run, task, "t", wait=False), TaskWaiting)
    clock.set_by(-HOUR)
    with app.worker() as worker:
        until(lambda: worker._setback._due, "the first look")
        clock.advance(700)
        until(lambda: worker.ran, "the claim and its end")
        for _ in range(2):
            seen = worker._setback._seen
            clock.advance(1)
            until(lambda: worker._setback._seen != seen, "another look of the worker")  # noqa: B023
        assert worker.ran == 1
    assert len(looked) == 1  # an absence is proven later, never sooner
    assert world.n("pay") == 1


# ---------------------------------------------------------------- late news


def test_a_late_success_that_meets_a_persons_answer_is_a_contradiction_case(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, looked = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write", timeout="PT0.05S")
    def pay() -> int:
        assert go_on.wait(PATIENCE)
        world.do("pay")
        return 1

    @app.task
    def task() -> int:
        return pay()

    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    case, add = only_case(app), app.store.add

    def interrupted_add(task_id: str, drafts: Any, **options: Any) -> Any:
        if any(row.kind == Kind.EVIDENCE_STORED for row in drafts) and not looked.is_set():
            looked.set()  # the late result was judged by what was settled then; now a person is faster
            app.settle(case.id, Abandon(), by="kim", why="nobody knows", shown=case.hash)
        return add(task_id, drafts, **options)

    monkeypatch.setattr(app.store, "add", interrupted_add)
    go_on.set()
    until(lambda: [one.kind for one in app.inbox().cases] == ["contradiction"], "the case")
    until(lambda: app.show("t").owner is None, "the end of the call")
    assert kinds(app, "t").count(Kind.EVIDENCE_STORED) == 1
    assert world.n("pay") == 1


# ---------------------------------------------------------------- texts


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Foreign:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


def failing() -> Iterator[int]:
    yield 1
    raise RuntimeError("no more")


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("\ud800"), Unreadable(), Unclear("\ud800"), Unclear(Foreign()),  # type: ignore[arg-type]
        Foreign(), Several(["\ud800", Foreign()]), Several(None), Several(failing()),
    ],
    ids=["surrogate", "unreadable", "why", "foreign why", "foreign", "items", "no items", "failing items"],
)  # fmt: skip
def test_whatever_text_a_query_gives_the_doubt_reaches_a_person(app: Doubtless, world: World, answer: Any) -> None:
    def query() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    @app.step(effect="non_idem_write", query=query, query_attempts=1)
    def pay() -> int:
        world.do("pay")
        raise TimeoutError("lost")

    @app.task
    def task() -> int:
        return pay()

    assert isinstance(raised(app.run, task, "t", wait=False), NeedsHuman)
    assert only_case(app).kind == "doubt"
    assert Kind.LOOKED_BACK in kinds(app, "t", "1")
    assert world.n("pay") == 1


@pytest.mark.parametrize("error", [ValueError("\ud800"), Unreadable()], ids=["surrogate", "unreadable"])
def test_whatever_text_a_late_error_has_it_is_kept_and_the_task_is_given_back(app: Doubtless, error: Exception) -> None:
    go_on = threading.Event()

    @app.step(effect="non_idem_write", timeout="PT0.05S")
    def pay() -> int:
        assert go_on.wait(PATIENCE)
        raise error

    @app.task
    def task() -> int:
        return pay()

    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    go_on.set()
    until(lambda: app.show("t").owner is None, "the end of the call")
    (late,) = [row for row in rows(app, "t", "1") if row.kind == Kind.EVIDENCE_STORED]
    assert type(error).__name__ in (late.error or "")


@pytest.mark.parametrize("text", ["\ud800", "nul\0", None])
def test_an_answer_or_a_freeze_whose_text_cannot_be_written_is_refused_and_writes_nothing(app: Doubtless, text: Any) -> None:
    @app.step(effect="non_idem_write")
    def pay() -> int:
        raise TimeoutError("lost")

    @app.task
    def task() -> int:
        return pay()

    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    case, before = only_case(app), len(rows(app, "t"))
    with pytest.raises(AnswerRefused):
        app.settle(case.id, Abandon(), by="kim", why=text, shown=case.hash)
    with pytest.raises(AnswerRefused):
        app.settle(case.id, Abandon(), by=text, why="", shown=case.hash)
    assert len(rows(app, "t")) == before
    with pytest.raises(UsageError):
        app.freeze(pay, why=text)
    assert not app.store.frozen()


# ---------------------------------------------------------------- forks

FORKING = """
import os, sys
from doubtless import Doubtless

app = Doubtless("sqlite:///" + sys.argv[1], namespace="tests")
way = sys.argv[2]

def effect(line):
    with open("effects", "a") as file:
        file.write(line + "\\n")

def forked(n):
    effect("forker")
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {"n": n, "child": status}
    if way == "raises":
        raise ValueError("in the child")
    if way == "exits":
        sys.exit(3)
    return {"n": -1}

@app.step(effect="non_idem_write")
def forker(n: int) -> dict:
    return forked(n)

@app.step(effect="read")
async def aforker(n: int) -> dict:
    return forked(n)

@app.step(effect="non_idem_write")
def pay(n: int) -> int:
    effect("pay")
    return n

@app.task
def task(n: int) -> list:
    try:
        return [forker(n=n), pay(n=n)]
    finally:
        effect("code ended")

@app.task
async def atask(n: int) -> list:
    try:
        return [await aforker(n=n), pay(n=n)]
    finally:
        effect("code ended")

print(app.run(atask if way == "async" else task, "t", n=7))
assert app.verify() == []
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(("way", "code"), [("returns", 70), ("raises", 70), ("exits", 3), ("async", 70)])
def test_a_child_that_comes_back_out_of_a_step_ends_there_and_nothing_of_it_is_recorded(
    tmp_path: Path, way: str, code: int
) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = nursery.run(
        [sys.executable, "forking.py", str(tmp_path / "t.db"), way],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([{"child": code, "n": 7}, 7])
    assert (tmp_path / "effects").read_text().split("\n")[:-1] == ["forker", "pay", "code ended"]
    assert ("is recorded, and it ends here" in done.stderr) == (way != "exits")
    assert ("ValueError: in the child" in done.stderr) == (way == "raises")


def test_a_clock_that_is_set_back_between_a_decision_and_its_wait_does_not_stretch_the_wait() -> None:
    clock = SetClock()
    decided = clock.now()
    until = decided.wall + 2_000_000
    clock.set_by(-HOUR)
    run: Any = SimpleNamespace(
        loop=None, stop=threading.Event(), check=lambda: None, may_wait=lambda at: True,
        log=SimpleNamespace(seq=1, refresh=lambda: False),
        runtime=SimpleNamespace(store=SimpleNamespace(now=clock.now), pause=clock.pause),
    )  # fmt: skip
    wait(run, Wait(until, "a backoff", since=decided))
    assert clock.now().boot - decided.boot < 3_000_000
