"""The seam for somebody else's scheduler: told what wakes a task, `advance` does no harm, and `due` finds what was lost."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tasks_child import Program
from tasks_ground import Child, Deploys, World, raised, settle, together, until

from doubtless import (
    Abort,
    DidNotHappen,
    Doubtless,
    Happened,
    NeedsHuman,
    Retry,
    StepTableError,
    StoreUnavailable,
    TaskFailed,
    Unknown,
    UnknownTask,
)
from doubtless.advancing import BUSY, STRANGE, TROUBLE
from doubtless.runners import SWEEP_LIMIT, sweep
from doubtless.testing import FakeClock


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def asking(app: Doubtless, world: World) -> Any:
    """A task that pays, waits for a word from outside, and pays again."""

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.do("pay", n)
        return n

    @app.task
    def task() -> Any:
        pay(1)
        word = app.wait_for("go")
        pay(2)
        return word

    return task


def doubtful(app: Doubtless, world: World, **options: Any) -> Any:
    """A task whose one write lands, and nobody knows."""

    @app.step(effect="non_idem_write", **options)
    def wire() -> int:
        world.do("wire")
        raise Unknown("the reply was lost")

    @app.task
    def unsure() -> int:
        return wire()

    return unsure


def told(app: Doubtless) -> list[str]:
    heard: list[str] = []
    app.on_wake(heard.append)
    return heard


# ---------------------------------------------------------------- on_wake


def test_the_hook_is_told_of_a_start_an_event_and_an_answer_after_their_commit(app: Doubtless, deploy: Deploys, world: World) -> None:
    task, other = asking(app, world), deploy()
    seen: list[tuple[str, str]] = []
    app.on_wake(lambda task_id: seen.append((task_id, other.store.head(task_id).status)))  # type: ignore[union-attr]
    app.start(task, "t")
    assert seen == [("t", "ready")]
    assert app.advance("t").ran
    app.send_event("t", "go", "yes")
    assert seen[1:] == [("t", "ready")]
    assert app.advance("t").ended
    assert app.run(task, "t") == "yes"
    assert len(seen) == 2, "a run that goes on is nobody's news"
    unsure = doubtful(app, world)
    raised(app.run, unsure, "u")
    settle(app, Happened(1))
    assert seen[2:] == [("u", "ready")]


def test_the_hook_is_told_of_a_child_that_was_answered_and_advancing_it_runs_its_root(app: Doubtless, world: World) -> None:
    child = asking(app, world)

    @app.task
    def parent() -> Any:
        return child()

    heard = told(app)
    assert isinstance(raised(app.run, parent, "p"), NeedsHuman)
    app.send_event("p/1", "go", 7)
    assert heard == ["p/1"]
    assert not app.advance("p").ran, "the parent's own head says nothing of it"
    assert app.advance("p/1").ended


def test_a_cancel_that_somebody_else_has_to_carry_out_is_told_and_one_that_is_through_is_not(app: Doubtless, world: World) -> None:
    task = asking(app, world)
    heard = told(app)
    raised(app.run, task, "t")
    assert app.cancel("t", by="anna", why="no more") == "cancelled"
    assert heard == []
    unsure = doubtful(app, world)
    raised(app.run, unsure, "u")
    assert isinstance(raised(lambda: app.cancel("u", by="anna", why="no more")), NeedsHuman)
    assert heard == ["u"]


def test_a_thaw_is_told_to_what_stood_before_it_and_to_nothing_else(app: Doubtless, world: World) -> None:
    task = asking(app, world)

    @app.step(effect="non_idem_write")
    def ship() -> int:
        return 1

    @app.task
    def other() -> int:
        return ship()

    app.freeze("pay", why="wrong amounts")
    app.freeze("ship", why="strike")
    app.start(task, "t")
    app.start(other, "o")
    assert [app.advance(each).again for each in ("t", "o")] == [None, None]
    assert app.due() == []
    heard = told(app)
    app.thaw("pay")
    assert heard == ["t"]
    assert app.due() == ["t"]
    app.thaw("ship")
    assert heard == ["t", "o"]


def test_an_error_of_the_hook_changes_nothing_and_the_sweep_finds_what_it_lost(
    app: Doubtless, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    task, heard = asking(app, world), []

    @app.on_wake
    def broken(task_id: str) -> None:
        raise ConnectionError("the broker is away")

    app.on_wake(heard.append)
    assert app.start(task, "t") == "t"
    assert "on_wake hook failed for t: ConnectionError: the broker is away" in capsys.readouterr().err
    assert heard == ["t"], "the next hook is told all the same"
    assert app.due() == ["t"]


# ---------------------------------------------------------------- advance


def test_advance_runs_what_is_ready_and_says_that_it_has_ended(app: Doubtless, world: World) -> None:
    @app.task
    def task() -> int:
        return 5

    app.start(task, "t")
    stands = app.advance("t")
    assert (stands.task_id, stands.status, stands.ran, stands.ended, stands.again) == ("t", "done", True, True, None)
    again = app.advance("t")
    assert (again.ran, again.ended, again.again) == (False, True, None)


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_advance_raises_nothing_for_a_task_that_ends_badly(app: Doubtless, how: str) -> None:
    @app.task
    def task() -> int:
        raise Abort("no")

    app.start(task, "t")
    if how == "cancelled":
        app.store.add("t", [_cancel(app)])
    stands = app.advance("t")
    assert (stands.status, stands.ended) == (how, True)
    assert isinstance(raised(app.run, task, "t"), TaskFailed)


def _cancel(app: Doubtless) -> Any:
    from doubtless.events import Kind, draft

    return draft("t", Kind.CANCEL_REQUESTED, app.store.now(), data={"by": "anna", "why": "no more"})


def test_advance_leaves_a_task_alone_until_its_time_and_says_how_long(app: Doubtless, clock: FakeClock) -> None:
    ran: list[int] = []

    @app.task
    def task() -> int:
        ran.append(1)
        app.sleep("PT10M")
        return 5

    app.start(task, "t")
    assert app.advance("t").again == 600.0
    clock.advance("PT4M")
    early = app.advance("t")
    assert (early.ran, early.again) == (False, 360.0)
    assert len(ran) == 1
    assert app.due() == []
    clock.advance("PT6M")
    assert app.due() == ["t"]
    assert app.advance("t").ended
    assert len(ran) == 2


def test_advance_asks_a_person_once_and_runs_nothing_again_until_somebody_answers(app: Doubtless, world: World) -> None:
    task = doubtful(app, world)
    app.start(task, "t")
    stands = app.advance("t")
    assert (stands.status, stands.ran, stands.again) == ("needs_human", True, None)
    rows = len(app.store.rows("t"))
    for _ in range(5):
        assert not app.advance("t").ran
    assert app.due() == []
    assert len(app.store.rows("t")) == rows
    settle(app, DidNotHappen("fail"))
    assert app.due() == ["t"]


def test_advance_is_nobodys_permission_to_run_code_again_that_failed(app: Doubtless) -> None:
    ran: list[int] = []

    @app.task
    def task() -> int:
        ran.append(1)
        return {}["no such key"]  # type: ignore[return-value]

    app.start(task, "t")
    for _ in range(5):
        assert app.advance("t").again is None
    assert len(ran) == 1, "redelivered five times, a bug is run once"
    settle(app, Retry())
    assert app.advance("t").ran
    assert len(ran) == 2


def test_advance_leaves_a_task_to_the_process_that_runs_it_until_that_is_dead(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Program(f"sqlite:///{tmp_path / 'tasks.db'}", clock=FakeClock(start="2100-01-01T00:00:00+00:00"))
    one: Child = child("run", "t", "effect")
    one.reach("effect")
    stands = here.app.advance("t")
    assert (stands.ran, stands.again) == (False, BUSY)
    assert str(one.pid) in stands.why
    assert here.app.due() == []
    one.kill()
    assert here.app.due() == ["t"]
    assert here.app.advance("t").ended, "its look-back found the effect"
    assert len((tmp_path / "effects").read_text().split()) == 1
    assert here.app.verify() == []
    here.app.close()


def test_many_deliveries_at_the_same_moment_have_one_effect(app: Doubtless, world: World) -> None:
    task = asking(app, world)
    app.start(task, "t")
    together(8, lambda _: app.advance("t"))
    until(lambda: app.advance("t").status == "needs_human" or app.store.head("t").status == "waiting", "the wait")  # type: ignore[union-attr]
    assert world.n("pay") == 1
    app.send_event("t", "go", 1)
    together(8, lambda _: app.advance("t"))
    assert app.run(task, "t") == 1
    assert world.n("pay") == 2


def test_advance_leaves_a_task_alone_whose_code_is_not_here(app: Doubtless, deploy: Deploys, world: World) -> None:
    task, old = asking(app, world), deploy()
    app.start(task, "t")
    stands = old.advance("t")
    assert (stands.ran, stands.again, stands.status) == (False, STRANGE, "ready")
    assert "task" in stands.why and "not in this app" in stands.why
    assert (old.due(), app.due()) == ([], ["t"])


def test_a_child_that_is_due_is_left_to_who_has_the_code_of_its_root(app: Doubtless, deploy: Deploys, world: World) -> None:
    child, other = asking(app, world), deploy()
    asking(other, world)

    @app.task
    def parent() -> Any:
        return child()

    app.start(parent, "p")
    app.advance("p")
    app.send_event("p/1", "go", 7)
    assert (other.due(), app.due()) == ([], ["p/1"])
    stands = other.advance("p/1")
    assert (stands.ran, stands.again) == (False, STRANGE)
    assert app.advance("p/1").ended


def test_code_that_would_end_the_program_ends_no_worker(app: Doubtless) -> None:
    @app.task
    def task() -> int:
        raise SystemExit(3)

    app.start(task, "t")
    stands = app.advance("t")
    assert stands.ran and not stands.ended


def test_advance_refuses_an_id_that_is_in_no_log(app: Doubtless, world: World) -> None:
    asking(app, world)
    with pytest.raises(UnknownTask):
        app.advance("nobody")


def test_advance_refuses_a_table_with_faults(app: Doubtless) -> None:
    @app.step(effect="idem_write")
    def no_key() -> int:
        return 1

    with pytest.raises(StepTableError):
        app.advance("t")


def test_advance_says_that_the_store_is_away_and_when_to_come_again(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = asking(app, world)
    app.start(task, "t")

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(app.store, "claim", away)
        stands = app.advance("t")
    assert (stands.trouble, stands.again, stands.ended) == (True, TROUBLE, False)
    assert "the disk is full" in stands.why
    assert app.advance("t").ran


def test_advancing_a_child_runs_its_root(app: Doubtless, clock: FakeClock) -> None:
    @app.task
    def child() -> int:
        app.sleep("PT1M")
        return 3

    @app.task
    def parent() -> int:
        return child() + 1

    app.start(parent, "p")
    assert app.advance("p").again == 60.0
    assert not app.advance("p/1").ran
    clock.advance("PT1M")
    assert set(app.due()) == {"p", "p/1"}
    assert app.advance("p/1").ended
    assert app.run(parent, "p") == 4


def test_a_task_that_waits_for_a_business_key_is_due_as_soon_as_its_holder_is_settled(app: Doubtless, world: World) -> None:
    task = doubtful(app, world, once="the-payment")
    app.start(task, "first")
    app.start(task, "second")
    assert app.advance("first").status == "needs_human"
    waits = app.advance("second")
    assert waits.again is not None and waits.again > 60
    assert app.due() == []
    settle(app, Happened(1))
    assert app.advance("first").ended
    assert app.due() == ["second"]
    assert app.advance("second").ended
    assert world.n("wire") == 1


def test_a_session_between_two_openings_is_nothing_to_advance(app: Doubtless, world: World) -> None:
    with app.session("thread"):
        pass
    assert app.due() == []
    stands = app.advance("thread")
    assert (stands.ran, stands.again) == (False, None)


def test_a_run_that_was_drained_is_taken_up_again_soon(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="read")
    def look(n: int) -> int:
        inside.set()
        assert go_on.wait(20)
        return n

    @app.task
    def task() -> int:
        return look(1) + look(2)

    app.start(task, "t")
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(app.advance("t")))
    thread.start()
    assert inside.wait(20)
    app.drain()
    go_on.set()
    thread.join(20)
    assert (came[0].ran, came[0].ended, came[0].again) == (True, False, 1.0)
    assert app.due() == ["t"]
    assert app.advance("t").ended


# ---------------------------------------------------------------- the sweep


def test_a_sweep_hands_over_what_is_due_and_of_too_many_not_always_the_same(app: Doubtless) -> None:
    @app.task
    def task() -> int:
        return 1

    for number in range(6):
        app.start(task, f"t{number}")
    handed: list[str] = []
    assert sweep(app, handed.append) == 6
    assert handed == [f"t{number}" for number in range(6)]
    assert SWEEP_LIMIT > 6
    seen: set[str] = set()
    random.seed(7)
    for _ in range(60):
        assert sweep(app, seen.add, limit=2) == 2
    assert len(seen) == 6, "none is passed over for ever"
