"""Child tasks: a task called inside a task is its own task, started at most once and met again at any depth."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tasks_ground import PATIENCE, Deploys, World, kinds, only_case, raised, rows, settle, statuses, until

from doubtless import (
    Abort,
    Doubtless,
    Happened,
    NeedsHuman,
    Pending,
    Rejected,
    StepFailed,
    TaskFailed,
    TaskWaiting,
    UsageError,
    injected,
)
from doubtless.cli.render import timeline
from doubtless.events import Kind
from doubtless.testing import FakeClock, Killed, harness


def family(app: Doubtless, world: World) -> Any:
    """A grandparent, two parents and children of theirs, each of which writes."""

    @app.step(effect="non_idem_write", query=lambda idempotency_key: world.find("pay", idempotency_key))
    def pay(what: Any, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("pay", what, idempotency_key)

    @app.task
    def leaf(n: int) -> int:
        pay(what=f"leaf {n}")
        return n

    @app.task
    def middle(n: int) -> int:
        pay(what=f"middle {n}")
        return leaf(n=n) + leaf(n=n + 1)

    @app.task
    def root(n: int) -> int:
        first = middle(n=n)
        pay(what="root")
        return first + sum(app.map(middle, [10, 20]))

    return root


def test_a_child_is_a_task_of_its_own_named_after_its_place(deploy: Deploys, world: World) -> None:
    app = deploy()
    root = family(app, world)
    assert app.run(root, "t", n=1) == 3 + 21 + 41
    assert app.run(root, "t", n=1) == 65
    assert world.n("pay") == 1 + 3 + 6
    assert {head.task_id for head in app.tasks()} == {
        "t", "t/1", "t/1/2", "t/1/3", "t/3.1.1", "t/3.1.1/2", "t/3.1.1/3", "t/3.2.1", "t/3.2.1/2", "t/3.2.1/3",
    }  # fmt: skip
    assert {head.status for head in app.tasks()} == {"done"}
    assert statuses(app, "t") == {"1": "done", "2": "done", "3.1.1": "done", "3.2.1": "done"}
    assert app.resume("t/1/2") == 1


@pytest.mark.parametrize("point", [("after", "intent"), ("after", "effect"), ("after", "record"), ("before", "record")])
@pytest.mark.parametrize("skip", range(10))
def test_killed_anywhere_a_child_is_met_again_at_any_depth_and_started_once(
    tmp_path: Any, world: World, point: tuple[str, str], skip: int
) -> None:
    app = Doubtless("sqlite:///unused.db")
    root = family(app, world)
    with harness(app, tmp_path) as one:
        one.kill("pay", skip=skip, **{point[0]: point[1]})  # type: ignore[arg-type]
        with pytest.raises(Killed):
            app.run(root, "t", n=1)
        error = raised(app.run, root, "t", n=1)
        if error is not None:  # nothing was sent, and no absent_after says so: a person knows
            assert isinstance(error, NeedsHuman)
            assert list(error.cases) == [case.id for case in app.inbox().cases]
            for case in app.inbox().cases:
                given = Happened(world.do("pay", case.evidence["params"]["what"], case.evidence["keys"][-1]))
                app.settle(case.id, given, by="anna", why="done by hand", shown=case.hash)
        assert app.run(root, "t", n=1) == 65
        assert world.n("pay") == 10
        assert len({head.task_id for head in app.tasks()}) == 10
        assert app.verify() == []


def test_a_child_that_needs_a_person_stops_its_parent_where_it_awaits_and_its_case_is_the_parents_too(
    deploy: Deploys, world: World
) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def lost() -> Any:
        world.do("lost")
        raise ConnectionResetError

    @app.step(effect="non_idem_write")
    def say() -> Any:
        return world.do("say")

    @app.task
    def inner() -> Any:
        return lost()

    @app.task
    def outer() -> Any:
        got = inner()
        say()
        return got

    error = raised(app.run, outer, "t")
    assert isinstance(error, NeedsHuman)
    case = only_case(app)
    assert case.task_id == "t/1"
    assert list(error.cases) == [case.id]
    assert world.n("say") == 0
    assert [head.status for head in app.tasks()] == ["needs_human", "needs_human"]
    view = app.show("t")
    assert (view.steps[0].child, [case.id for case in view.cases]) == ("t/1", [case.id])
    assert "child task" in timeline(view)
    assert f"doubtless inbox {case.id}" in timeline(view)
    settle(app, Happened({"id": 7}))
    with app.worker():
        until(lambda: app.show("t").status == "done", "the parent")
    assert app.run(outer, "t") == {"id": 7}
    assert (world.n("lost"), world.n("say")) == (1, 1)


def test_a_child_that_waits_lets_its_parent_wait_until_the_same_time(deploy: Deploys, world: World, clock: FakeClock) -> None:
    app = deploy()
    answers: list[Any] = [Pending("PT10M"), {"id": 1}]

    @app.step(effect="non_idem_write", query=lambda: answers.pop(0))
    def lost() -> Any:
        raise ConnectionResetError

    @app.task
    def inner() -> Any:
        return lost()

    @app.task
    def outer() -> Any:
        return inner()

    error = raised(app.run, outer, "t", wait=False)
    assert isinstance(error, TaskWaiting)
    assert error.until is not None
    child, parent = app.show("t/1"), app.show("t")
    assert child.wake_at == parent.wake_at == error.until.wall
    clock.advance("PT10M")
    assert app.run(outer, "t", wait=False) == {"id": 1}


def test_a_child_that_fails_is_a_step_failed_of_kind_child_and_the_same_on_replay(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write", single_request=True)
    def refuse() -> Any:
        raise Rejected("422")

    @app.task
    def inner() -> Any:
        refuse()

    seen: list[tuple[str, str]] = []

    @app.task
    def outer(caught: bool) -> Any:
        try:
            inner()
        except StepFailed as error:
            seen.append((error.kind, error.reason))
            if not caught:
                raise
        return "went on"

    assert app.run(outer, "t", caught=True) == "went on"
    assert isinstance(raised(app.run, outer, "u", caught=False), TaskFailed)
    assert seen == [("child", "failed")] * 2
    assert app.show("u").status == "failed"


def test_a_parents_doubt_starts_no_child(deploy: Deploys, world: World) -> None:
    app = deploy()
    doubt = threading.Event()

    @app.step(effect="non_idem_write")
    def lost() -> Any:
        doubt.set()
        raise ConnectionResetError

    @app.step(effect="read")
    def after_doubt() -> bool:
        assert doubt.wait(PATIENCE)
        until(lambda: any(r.kind == Kind.ATTEMPT_ENDED for r in rows(app, "t")), "the doubt")
        return True

    @app.task
    def inner() -> Any:
        return world.do("inner")

    def second() -> Any:
        after_doubt()
        return inner()

    @app.task
    def outer() -> Any:
        return app.parallel(lost, second)

    assert isinstance(raised(app.run, outer, "t"), NeedsHuman)
    assert [head.task_id for head in app.tasks()] == ["t"]
    settle(app, Happened({"id": 1}))
    assert isinstance(app.run(outer, "t"), list)
    assert world.n("inner") == 1


def test_a_child_where_the_log_holds_another_or_none_is_diverged(deploy: Deploys, world: World) -> None:
    def release(what: str) -> Any:
        app = deploy()

        @app.step(effect="non_idem_write")
        def say(n: int) -> Any:
            return world.do("say", n)

        @app.task
        def inner(n: int) -> int:
            if what == "child":
                raise KeyError("deploy the fix")
            return n

        @app.task
        def outer() -> Any:
            return {"child": lambda: inner(n=1), "other input": lambda: inner(n=2), "step": lambda: say(n=1)}.get(
                what, lambda: None
            )()

        return app, outer

    app, outer = release("child")
    assert isinstance(raised(app.run, outer, "t"), NeedsHuman)
    for what in ("other input", "step", "nothing"):
        app, outer = release(what)
        error = raised(app.run, outer, "t")
        assert isinstance(error, NeedsHuman)
        assert "the log holds" in str(error), what
    assert world.n() == 0


def test_async_children_run_on_the_event_loop_and_sync_ones_beside_it(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def apay(n: int) -> Any:
        await asyncio.sleep(0)
        return world.do("pay", n)

    @app.step(effect="non_idem_write")
    def pay(n: int) -> Any:
        return world.do("pay", n)

    @app.task
    async def ainner(n: int) -> int:
        await apay(n)
        return n

    @app.task
    def inner(n: int) -> int:
        pay(n)
        return n

    @app.task
    async def outer() -> Any:
        return [await ainner(n=1), await inner.acall(n=2), await app.parallel(lambda: ainner(n=3), lambda: inner.acall(n=4))]

    @app.task
    def wrong() -> Any:
        return ainner(n=1)

    assert app.run(outer, "t") == [1, 2, [3, 4]]
    assert asyncio.run(app.arun(outer, "u")) == [1, 2, [3, 4]]
    assert world.n("pay") == 8
    assert isinstance(raised(app.run, wrong, "w"), NeedsHuman)
    assert "is async" in only_case(app).why


def test_a_task_called_outside_a_task_or_inside_a_step_is_refused(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.task
    def inner() -> None: ...

    @app.step(effect="read")
    def calls() -> Any:
        return inner()

    @app.task
    def outer() -> Any:
        return calls()

    assert isinstance(raised(inner), UsageError)
    assert isinstance(raised(app.run, outer, "t"), NeedsHuman | TaskFailed)
    assert [head.task_id for head in app.tasks()] == ["t"]


def test_an_abort_in_a_child_fails_the_child_and_reaches_the_parent(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.task
    def inner() -> None:
        raise Abort("no")

    @app.task
    def outer() -> None:
        inner()

    error = raised(app.run, outer, "t")
    assert isinstance(error, TaskFailed)
    assert app.show("t/1").status == "failed"
    assert kinds(app, "t")[-1] == Kind.TASK_ENDED
