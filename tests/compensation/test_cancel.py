"""Cancel: nothing new begins, what runs is settled first, then the policy; the first end wins (DESIGN sections 4 and 6)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from undo_ground import Deploys, World, only_case, settle, statuses

from doubtless import (
    Abandon,
    CaseChanged,
    Compensate,
    DidNotHappen,
    Doubtless,
    Happened,
    LetStand,
    NeedsHuman,
    NotSent,
    Pending,
    TaskFailed,
    TaskWaiting,
    UsageError,
    attempts,
)
from doubtless.cli.render import timeline
from doubtless.cli.render_case import case_text, inbox_list
from doubtless.events import Kind
from doubtless.testing import FakeClock

PATIENCE = 20.0


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


class Gate:
    """A call that stands until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def stand(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)


def sheets(app: Doubtless, world: World, between: Any, *, on_failure: Any = "compensate", effect: Any = "non_idem_write") -> Any:
    """A task of three sheets; `between` is called inside the second one's call."""

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect=effect, compensate=withdraw, idempotent_by="its name" if effect == "idem_write" else None)
    def make(name: str) -> dict[str, Any]:
        made = world.make(name)
        if name == "s2":
            between()
        return made

    @app.task(on_failure=on_failure)
    def task() -> None:
        for name in ("s1", "s2", "s3"):
            make(name=name)

    return task


def running(app: Doubtless, task: Any, task_id: str = "t") -> tuple[threading.Thread, list[Any]]:
    """Run the task in a thread of its own; what it raises or returns."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(app.run(task, task_id))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


# ---------------------------------------------------------------- a task that runs


def test_a_write_that_runs_is_settled_before_the_task_is_cancelled_and_nothing_new_begins(app: Doubtless, world: World) -> None:
    """C91: what was running does not act on afterwards, and what it did is undone."""
    gate = Gate()
    task = sheets(app, world, gate.stand)
    thread, ended = running(app, task)
    assert gate.reached.wait(PATIENCE)
    assert app.cancel("t", by="anna", why="wrong month") == "running"  # its owner sees it
    gate.opened.set()
    thread.join(PATIENCE)
    (error,) = ended
    assert isinstance(error, TaskFailed)
    assert error.status == "compensated"
    assert error.context["failure"] == {"kind": "cancelled", "code": "", "detail": "wrong month", "by": "anna"}
    assert world.made == ["s1", "s2"]
    assert world.undone == ["s2", "s1"]
    assert "3" not in statuses(app)
    rows = app.store.rows("t")
    asked = next(row.event_seq for row in rows if row.kind == Kind.CANCEL_REQUESTED)
    settled = next(row.event_seq for row in rows if row.kind == Kind.STEP_SETTLED and row.path == "2")
    assert asked < settled < rows[-1].event_seq


def test_another_process_sees_it_at_its_next_append(deploy: Deploys, world: World) -> None:
    ours, theirs = deploy(), deploy()
    task = sheets(ours, world, lambda: theirs.store.add("t", [cancel_row(theirs)]))  # between its intent and its result
    with pytest.raises(TaskFailed) as caught:
        ours.run(task, "t")
    assert caught.value.status == "compensated"
    assert (world.made, world.undone) == (["s1", "s2"], ["s2", "s1"])


def cancel_row(app: Doubtless) -> Any:
    from doubtless.events import draft

    return draft("t", Kind.CANCEL_REQUESTED, app.store.now(), data={"by": "bo", "why": "stop"})


def test_an_intent_that_was_decided_before_the_wish_came_is_not_written(app: Doubtless, world: World) -> None:
    """The wish reaches this process's own view between the decision and the append."""
    task = sheets(app, world, lambda: None)
    real = app._runs
    wished: list[bool] = []

    @app.step(effect="read")
    def look() -> int:
        return 1

    @app.task
    def reading() -> None:
        look()
        app.steps["make"](name="s9")

    def prepared(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        if not wished and app.store.head("t") is not None and "1" in {row.path for row in app.store.rows("t")}:
            wished.append(True)
            app.store.add("t", [cancel_row(app)])
            real.tell(["t"])
        return value

    import doubtless.attempts as attempts

    original = attempts.call_params
    attempts.call_params = prepared
    try:
        with pytest.raises(TaskFailed) as caught:
            app.run(reading, "t")
    finally:
        attempts.call_params = original
    assert wished
    assert caught.value.status == "cancelled"
    assert world.made == []
    assert task is not None


def test_an_async_task_finishes_what_its_branches_have_in_flight(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    async def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    async def make(name: str) -> dict[str, Any]:
        made = world.make(name)
        if name == "a":
            app.cancel("t", by="anna", why="stop")
        await asyncio.sleep(0)
        return made

    @app.task
    async def task() -> None:
        await asyncio.gather(make(name="a"), make(name="b"))
        await make(name="c")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    assert sorted(world.undone) == sorted(world.made)
    assert "c" not in world.made


def test_a_write_in_doubt_is_settled_first(app: Doubtless, world: World) -> None:
    lost: list[bool] = []

    def lose() -> None:
        app.cancel("t", by="anna", why="stop")
        raise ConnectionResetError("the reply was lost")

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw, query=lambda name: {"sheet": name} if name in world.made else None)
    def make(name: str) -> dict[str, Any]:
        world.make(name)
        lost.append(True)
        lose()
        return {}

    @app.task
    def task() -> None:
        make(name="s1")
        make(name="s2")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    assert (world.made, world.undone) == (["s1"], ["s1"])


def test_a_write_that_was_not_sent_is_not_sent_again(app: Doubtless, world: World) -> None:
    calls: list[int] = []

    @app.step(effect="non_idem_write")
    def pay() -> int:
        calls.append(1)
        app.cancel("t", by="anna", why="stop")
        raise NotSent("down")

    @app.task
    def task() -> int:
        return pay()

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "cancelled"
    assert len(calls) == 1
    assert caught.value.context["stands"] == []


def test_code_that_catches_everything_begins_nothing_either(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        world.make(str(n))
        if n == 1:
            app.cancel("t", by="anna", why="stop")
        return n

    @app.task
    def task() -> int:
        for n in (1, 2, 3):
            try:
                pay(n)
            except BaseException:
                pass
        return 7

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "cancelled"
    assert world.made == ["1"]


# ---------------------------------------------------------------- a task that nobody runs


def test_a_task_that_nobody_owns_is_concluded_by_cancel_itself(app: Doubtless, world: World, clock: FakeClock) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.step(effect="read", attempts=3)
    def look() -> int:
        raise ConnectionError("down")

    @app.task
    def task() -> None:
        make(name="s1")
        look()

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    assert app.cancel("t", by="anna", why="stop") == "compensated"
    assert world.undone == ["s1"]
    assert app.cancel("t", by="bo", why="me too") == "compensated"  # the first end wins
    app.start(task, "new")
    assert app.cancel("new", by="anna", why="stop") == "cancelled"
    assert world.made == ["s1"]
    with pytest.raises(TaskFailed) as caught:
        app.run(task, "new")
    assert caught.value.status == "cancelled"


def test_a_doubt_that_only_a_person_can_settle_is_settled_before_the_end(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        world.make(name)
        raise ConnectionResetError("lost")

    @app.task
    def task() -> None:
        make(name="s1")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.cancel("t", by="anna", why="stop")
    assert [row.kind for row in app.store.rows("t")].count(Kind.CANCEL_REQUESTED) == 1
    settle(app, Happened({"sheet": "s1"}))
    assert app.cancel("t", by="anna", why="stop") == "compensated"
    assert world.undone == ["s1"]


def test_a_doubt_that_a_later_look_settles_is_waited_for(app: Doubtless, world: World, clock: FakeClock) -> None:
    looks: list[Any] = [Pending("PT1H"), {"sheet": "s1"}]

    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw, query=lambda name: looks.pop(0), settle_within="P1D")
    def make(name: str) -> dict[str, Any]:
        world.make(name)
        raise ConnectionResetError("lost")

    @app.task
    def task() -> None:
        make(name="s1")

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    with pytest.raises(TaskWaiting):
        app.cancel("t", by="anna", why="stop", wait=False)
    clock.advance("PT2H")
    with pytest.raises(TaskFailed) as caught:
        app.resume("t")
    assert caught.value.status == "compensated"


def test_a_code_error_that_waits_for_a_person_is_closed_by_cancel(app: Doubtless) -> None:
    @app.task
    def task() -> None:
        raise KeyError("rate")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert app.cancel("t", by="anna", why="not worth it") == "cancelled"
    assert app.inbox().cases == []


@pytest.mark.parametrize(("answer", "status"), [(Compensate(), "compensated"), (LetStand(), "cancelled")])
def test_with_hold_a_person_says_what_becomes_of_a_cancelled_tasks_effects(
    app: Doubtless, world: World, answer: Any, status: str
) -> None:
    gate = Gate()
    task = sheets(app, world, gate.stand, on_failure="hold")
    thread, ended = running(app, task)
    assert gate.reached.wait(PATIENCE)
    app.cancel("t", by="anna", why="stop")
    gate.opened.set()
    thread.join(PATIENCE)
    assert isinstance(ended[0], NeedsHuman)
    case = only_case(app)
    assert (case.kind, case.evidence["failure"]["kind"]) == ("hold", "cancelled")
    settle(app, answer)
    with pytest.raises(TaskFailed) as caught:
        app.resume("t")
    assert caught.value.status == status
    assert world.undone == (["s2", "s1"] if status == "compensated" else [])


def test_the_first_end_wins(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def pay() -> int:
        return 1

    @app.task
    def task() -> int:
        return pay()

    assert app.run(task, "t") == 1
    assert app.cancel("t", by="anna", why="too late") == "done"
    assert app.run(task, "t") == 1
    assert Kind.CANCEL_REQUESTED not in [row.kind for row in app.store.rows("t")]


def test_cancel_needs_a_name(app: Doubtless) -> None:
    @app.task
    def task() -> None: ...

    app.start(task, "t")
    with pytest.raises(UsageError, match="who says so"):
        app.cancel("t", by="", why="x")
    assert len(app.store.rows("t")) == 1


# ---------------------------------------------------------------- children


def family(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.step(effect="read", attempts=3)
    def look() -> int:
        raise ConnectionError("down")

    @app.task
    def grandchild() -> None:
        make(name="g")
        look()

    @app.task
    def child() -> None:
        make(name="c")
        grandchild()

    @app.task
    def parent() -> None:
        make(name="p")
        child()
        make(name="never")

    return parent


def test_children_are_cancelled_first_at_any_depth(app: Doubtless, world: World) -> None:
    parent = family(app, world)
    with pytest.raises(TaskWaiting):
        app.run(parent, "t", wait=False)
    assert world.made == ["p", "c", "g"]
    assert app.cancel("t", by="anna", why="stop") == "compensated"
    assert world.undone == ["g", "c", "p"]
    assert {task: app.show(task).status for task in ("t", "t/2", "t/2/2")} == dict.fromkeys(("t", "t/2", "t/2/2"), "compensated")
    ends = [
        next(row.finished_at for row in app.store.rows(task) if row.kind == Kind.TASK_ENDED) for task in ("t/2/2", "t/2", "t")
    ]  # fmt: skip
    assert ends == sorted(ends)  # type: ignore[type-var]


def test_a_child_that_is_cancelled_fails_where_its_parent_called_it(app: Doubtless, world: World) -> None:
    parent = family(app, world)
    with pytest.raises(TaskWaiting):
        app.run(parent, "t", wait=False)
    assert app.cancel("t/2", by="anna", why="stop") == "compensated"
    with pytest.raises(TaskFailed) as caught:
        app.run(parent, "t")
    assert caught.value.context["failure"]["kind"] == "child"
    assert world.undone == ["g", "c", "p"]
    assert "never" not in world.made


# ---------------------------------------------------------------- a person's word, and the wish to stop


def in_doubt(app: Doubtless, world: World) -> None:
    """Task ``t``, whose one sheet was made by a call that lost its reply: it waits for a person."""

    @app.step(effect="non_idem_write")
    def make(name: str) -> dict[str, Any]:
        world.make(name)
        raise ConnectionResetError("lost")

    @app.task
    def task() -> None:
        make(name="s1")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_what_a_person_lets_be_sent_again_is_not_sent_in_a_cancelled_task(
    app: Doubtless, world: World, cancelled_first: bool
) -> None:
    """The permission was to go on with a task that nobody wants any more: it did not happen, and that is all."""
    in_doubt(app, world)
    if cancelled_first:
        with pytest.raises(NeedsHuman):
            app.cancel("t", by="kim", why="withdrawn")
        settle(app, DidNotHappen("retry", even_now=True))
        with pytest.raises(TaskFailed) as caught:
            app.resume("t")
        assert caught.value.status == "cancelled"
    else:
        settle(app, DidNotHappen("retry", even_now=True))
        assert app.cancel("t", by="kim", why="withdrawn") == "cancelled"
    assert world.made == ["s1"]
    assert statuses(app) == {"1": "not_applied"}
    assert app.inbox().cases == []


def test_a_permission_that_was_decided_on_before_the_wish_came_is_not_used(
    deploy: Deploys, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = deploy(), deploy()
    in_doubt(app, world)
    settle(app, DidNotHappen("retry", even_now=True))
    original = attempts.next_attempt

    def wished_meanwhile(*args: Any) -> Any:
        if not any(row.kind == Kind.CANCEL_REQUESTED for row in other.store.rows("t")):
            other.store.add("t", [cancel_row(other)])
            app._runs.tell(["t"])  # as another branch may: this view holds the wish, so that its place is free
        return original(*args)

    monkeypatch.setattr(attempts, "next_attempt", wished_meanwhile)
    with pytest.raises(TaskFailed) as caught:
        app.resume("t")
    assert caught.value.status == "cancelled"
    assert world.made == ["s1"]


def test_a_wish_to_cancel_is_shown_while_the_task_has_not_ended(app: Doubtless, world: World) -> None:
    in_doubt(app, world)
    before = only_case(app)
    with pytest.raises(NeedsHuman):
        app.cancel("t", by="kim", why="withdrawn")
    case, wish = only_case(app), {"by": "kim", "why": "withdrawn"}
    assert case.evidence["cancelled"] == wish == app.show("t").cancelled
    assert "not sent again" in case.answers["did_not_happen"]
    with pytest.raises(CaseChanged):  # who has not seen the wish looks again
        app.settle(case.id, DidNotHappen("retry"), by="anna", why="looked", shown=before.hash)
    shown = timeline(app.show("t"), store=None)
    assert "wanted by kim: withdrawn; nothing new begins" in shown
    assert "wanted by kim: withdrawn" in case_text(case, None)
    assert "the task is cancelled" in inbox_list(app.inbox(), {}, suspect=False, store=None)
    settle(app, Abandon())
    with pytest.raises(TaskFailed):
        app.resume("t")
    assert app.show("t").cancelled is None
