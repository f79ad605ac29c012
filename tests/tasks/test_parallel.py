"""Parallel groups: places do not depend on timing, a group is only a barrier, and a doubt in one branch stops the others."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tasks_ground import PATIENCE, Deploys, World, intents, kinds, only_case, raised, rows, settle, statuses, until

from doubtless import (
    Abort,
    Doubtless,
    Fail,
    Found,
    Happened,
    NeedsHuman,
    OutsideTask,
    Rejected,
    StepFailed,
    TaskFailed,
    attempts,
    drivers,
    executor,
    injected,
)
from doubtless.events import Kind
from doubtless.testing import Killed, harness

SHORT = "PT0.05S"


def declare(app: Doubtless, world: World, *, pause: Callable[[], None] = lambda: None) -> Any:
    """Steps that count what they do: a read, a write that can be asked, one that cannot."""

    class Steps:
        @staticmethod
        @app.step(effect="read", name="look")
        def look(what: Any) -> Any:
            pause()
            return what

        @staticmethod
        @app.step(
            effect="non_idem_write", name="pay", absent_after="PT10S", on_absent="retry", attempts=9,
            query=lambda idempotency_key: world.find("pay", idempotency_key),
        )  # fmt: skip
        def pay(what: Any, idempotency_key: str = injected()) -> dict[str, Any]:
            pause()
            done = world.do("pay", what, idempotency_key)
            pause()
            return done

        @staticmethod
        @app.step(effect="non_idem_write", name="say")
        def say(what: Any) -> dict[str, Any]:
            pause()
            return world.do("say", what)

    return Steps


# ---------------------------------------------------------------- places and results


def test_each_branch_has_places_of_its_own_and_results_come_in_branch_order(deploy: Deploys, world: World) -> None:
    app = deploy()
    steps = declare(app, world)

    @app.task
    def work() -> Any:
        steps.look("first")
        both = app.parallel(lambda: [steps.pay("a"), steps.pay("b")], lambda: steps.look("c"))
        many = app.map(steps.look, [10, 20, 30], concurrency=2)
        steps.look("last")
        return [len(both[0]), both[1], many]

    assert app.run(work, "t") == [2, "c", [10, 20, 30]]
    assert set(statuses(app, "t")) == {"1", "2.1.1", "2.1.2", "2.2.1", "3.1.1", "3.2.1", "3.3.1", "4"}
    assert app.run(work, "t") == [2, "c", [10, 20, 30]]
    assert world.n("pay") == 2


def test_groups_nest_and_an_empty_group_is_a_place_and_no_more(deploy: Deploys, world: World) -> None:
    app = deploy()
    steps = declare(app, world)

    def inner() -> Any:
        return app.parallel(lambda: steps.look(1), lambda: app.map(steps.pay, ["x", "y"]))

    @app.task
    def work() -> Any:
        app.parallel()
        app.map(steps.look, [])
        return app.parallel(inner, lambda: steps.look(2))[1]

    assert app.run(work, "t") == 2
    assert set(statuses(app, "t")) == {"3.1.1.1.1", "3.1.1.2.1.1.1", "3.1.1.2.1.2.1", "3.2.1"}


def test_branches_do_run_side_by_side_and_map_keeps_to_its_concurrency(deploy: Deploys, world: World) -> None:
    app = deploy()
    meet = threading.Barrier(2)
    lock, now, most = threading.Lock(), [0], [0]

    @app.step(effect="read")
    def both(n: int) -> int:
        meet.wait(PATIENCE)
        return n

    @app.step(effect="read")
    def counted(n: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001)
        with lock:
            now[0] -= 1
        return n

    @app.task
    def work() -> Any:
        return app.parallel(lambda: both(1), lambda: both(2)), app.map(counted, range(12), concurrency=3)

    assert app.run(work, "t") == [[1, 2], list(range(12))]
    assert 1 <= most[0] <= 3


def test_in_an_async_task_branches_are_asyncio_tasks_and_sync_steps_do_not_block_them(deploy: Deploys, world: World) -> None:
    app = deploy()
    meet = threading.Barrier(2)

    @app.step(effect="non_idem_write")
    async def apay(what: Any, idempotency_key: str = injected()) -> dict[str, Any]:
        await asyncio.sleep(0)
        return world.do("pay", what, idempotency_key)

    @app.step(effect="read")
    def slow(n: int) -> int:
        meet.wait(PATIENCE)
        return n

    async def branch() -> list[Any]:
        return [await apay("a"), await apay("b")]

    @app.task
    async def work() -> Any:
        one = await app.parallel(branch, branch(), lambda: apay("c"))
        two = await app.map(slow, [1, 2], concurrency=2)
        three = await app.map(apay, ["d", "e"])
        return [len(one), two, len(three)]

    assert app.run(work, "t") == [3, [1, 2], 2]
    assert asyncio.run(app.arun(work, "u")) == [3, [1, 2], 2]
    assert set(statuses(app, "t")) == {"1.1.1", "1.1.2", "1.2.1", "1.2.2", "1.3.1", "2.1.1", "2.2.1", "3.1.1", "3.2.1"}
    assert world.n("pay") == 14


def test_a_group_outside_a_task_or_with_what_is_no_function_is_refused_before_anything_is_written(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    steps = declare(app, world)
    assert isinstance(raised(app.parallel, lambda: 1), OutsideTask)

    @app.task
    def work(kind: str) -> Any:
        if kind == "value":
            return app.parallel(7)  # type: ignore[call-overload]
        return app.map(steps.look, [1], concurrency=0)

    for kind in ("value", "none"):
        assert isinstance(raised(app.run, work, kind, kind=kind), NeedsHuman)
        assert "UsageError" in only_case(app).evidence["error"]
        settle(app, Fail())
        assert isinstance(raised(app.run, work, kind, kind=kind), TaskFailed)
        assert [row for row in rows(app, kind) if row.path is not None] == []


def test_a_step_from_a_stray_thread_or_asyncio_task_inside_a_branch_is_refused(deploy: Deploys, world: World) -> None:
    app = deploy()
    steps = declare(app, world)
    seen: list[BaseException | None] = []

    @app.step(effect="non_idem_write")
    async def apay(what: Any) -> dict[str, Any]:
        return world.do("pay", what)

    def stray() -> None:
        import contextvars

        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: seen.append(context.run(raised, steps.pay, "x")))
        thread.start()
        thread.join(PATIENCE)

    @app.task
    def work() -> None:
        app.parallel(stray)

    @app.task
    async def awork() -> None:
        async def alone() -> None:
            async def inner() -> None:
                await apay("y")

            task = asyncio.create_task(inner())
            await asyncio.wait({task})
            seen.append(task.exception())

        await app.parallel(alone)

    app.run(work, "t")
    app.run(awork, "u")
    assert [type(error) for error in seen] == [OutsideTask, OutsideTask]
    assert world.n() == 0


# ---------------------------------------------------------------- failures


def test_all_branches_are_waited_for_and_then_the_first_failure_in_branch_order_is_raised(deploy: Deploys, world: World) -> None:
    app = deploy()
    steps = declare(app, world)
    second = threading.Event()

    @app.step(effect="non_idem_write", single_request=True)
    def refuse(code: str) -> None:
        if code == "slow":
            assert second.wait(PATIENCE)
        else:
            second.set()
        raise Rejected(code)

    seen: list[str] = []

    @app.task
    def work() -> Any:
        try:
            app.parallel(lambda: refuse("slow"), lambda: refuse("quick"), lambda: [steps.pay(1), steps.pay(2), steps.pay(3)])
        except StepFailed as error:
            seen.append(error.reason)
            return error.reason

    assert app.run(work, "t") == "slow"
    assert world.n("pay") == 3
    assert app.run(work, "t") == "slow"


def test_a_doubt_in_one_branch_lets_the_others_finish_what_is_in_flight_and_begins_no_new_write(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    doubt, go = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def lost(what: str) -> Any:
        world.do("lost", what)
        raise ConnectionResetError("the reply was lost")

    @app.step(effect="non_idem_write")
    def slow(what: str) -> dict[str, Any]:
        doubt.set()
        assert go.wait(PATIENCE)
        return world.do("slow", what)

    def other() -> list[Any]:
        return [slow("in flight"), slow("never begun")]

    def first() -> Any:
        assert doubt.wait(PATIENCE)
        try:
            return lost("x")
        finally:
            go.set()

    @app.task
    def work() -> Any:
        app.parallel(first, other)
        return "through"

    assert isinstance(raised(app.run, work, "t"), NeedsHuman)
    assert (world.n("lost"), world.n("slow")) == (1, 1)
    assert statuses(app, "t") == {"1.1.1": "needs_human", "1.2.1": "done"}
    settle(app, Happened({"ok": True}))
    assert app.run(work, "t") == "through"
    assert (world.n("lost"), world.n("slow")) == (1, 2)


def test_a_write_that_was_decided_before_its_neighbours_reply_was_lost_does_not_begin(
    deploy: Deploys, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doubt comes between the decision to call and the append of the intent (rule 8)."""
    app = deploy()
    begun, lose, refused_or_called = threading.Event(), threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def lost() -> Any:
        world.do("lost")
        begun.set()
        assert lose.wait(PATIENCE)
        raise ConnectionResetError("the reply was lost")

    @app.step(effect="non_idem_write")
    def tell() -> dict[str, Any]:
        refused_or_called.set()
        return world.do("tell")

    original, begin_call = attempts.call_params, attempts.begin_call

    def begun_or_not(run: Any, definition: Any, *args: Any, **options: Any) -> Any:
        request = begin_call(run, definition, *args, **options)
        if definition.name == "tell" and request is None:
            refused_or_called.set()
        return request

    def prepared(runtime: Any, definition: Any, text: str) -> Any:
        if definition.name == "tell" and not lose.is_set():
            assert begun.wait(PATIENCE)
            lose.set()
            until(lambda: Kind.ATTEMPT_ENDED in kinds(app, "t"), "the neighbour's lost reply")
        return original(runtime, definition, text)

    monkeypatch.setattr(attempts, "call_params", prepared)
    for module in (executor, drivers):
        monkeypatch.setattr(module, "begin_call", begun_or_not)
    app.on_case(lambda case: refused_or_called.wait(PATIENCE))  # until then the run does not park for the doubt

    @app.task
    def work() -> Any:
        app.parallel(lost, tell)
        return "through"

    assert isinstance(raised(app.run, work, "t"), NeedsHuman)
    assert (world.n("lost"), world.n("tell")) == (1, 0)
    settle(app, Happened({"ok": True}))
    assert app.run(work, "t") == "through"
    assert (world.n("lost"), world.n("tell")) == (1, 1)


def test_two_branches_in_doubt_each_get_their_case_in_one_run(deploy: Deploys, world: World) -> None:
    app = deploy()
    meet = threading.Barrier(2)

    @app.step(effect="non_idem_write")
    def lost(what: str) -> Any:
        meet.wait(PATIENCE)
        world.do("lost", what)
        raise ConnectionResetError("the reply was lost")

    @app.task
    def work() -> Any:
        return app.map(lost, ["a", "b"])

    assert isinstance(raised(app.run, work, "t"), NeedsHuman)
    cases = app.inbox().cases
    assert {case.path for case in cases} == {"1.1.1", "1.2.1"}
    for case in cases:
        app.settle(case.id, Happened({"id": case.path}), by="anna", why="seen", shown=case.hash)
    assert app.run(work, "t") == [{"id": "1.1.1"}, {"id": "1.2.1"}]
    assert world.n("lost") == 2


def test_a_call_that_overruns_in_one_branch_is_settled_and_the_others_go_on_by_replay(deploy: Deploys, world: World) -> None:
    app = deploy()
    hang, begun = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write", timeout=SHORT, query=lambda what: Found({"found": what}))
    def hangs(what: str) -> dict[str, Any]:
        world.do("hangs", what)
        begun.set()
        hang.wait(PATIENCE)
        return {"late": what}

    @app.step(effect="non_idem_write")
    def pay(what: int) -> dict[str, Any]:
        assert begun.wait(PATIENCE)
        time.sleep(0.002)
        return world.do("pay", what)

    @app.task
    def work() -> Any:
        return app.parallel(lambda: hangs("x"), lambda: [pay(n)["what"] for n in range(40)])

    assert app.run(work, "t") == [{"found": "x"}, list(range(40))]
    hang.set()
    assert (world.n("hangs"), world.n("pay")) == (1, 40)
    assert set(intents(app, "t").values()) == {1}
    until(lambda: any(row.kind == Kind.EVIDENCE_STORED for row in rows(app, "t")), "the late news")


def test_abort_in_a_branch_fails_the_task(deploy: Deploys, world: World) -> None:
    app = deploy()
    steps = declare(app, world)

    def stop() -> None:
        raise Abort("enough")

    @app.task
    def work() -> Any:
        app.parallel(stop, lambda: steps.look(1))

    assert isinstance(raised(app.run, work, "t"), TaskFailed)


# ---------------------------------------------------------------- drift


def test_a_group_where_the_log_holds_a_step_is_diverged_and_the_other_way_round(deploy: Deploys, world: World) -> None:
    def release(how: str) -> Doubtless:
        app = deploy()
        steps = declare(app, world)

        @app.task
        def work() -> Any:
            if how == "step":
                steps.pay(1)
            else:
                app.parallel(lambda: steps.pay(1), lambda: steps.pay(2))
            raise KeyError("stop here")

        return app

    for first, then in (("step", "group"), ("group", "step")):
        app = release(first)
        assert isinstance(raised(app.run, app.declared_tasks["work"], first), NeedsHuman)
        before = world.n()
        app = release(then)
        error = raised(app.run, app.declared_tasks["work"], first)
        assert isinstance(error, NeedsHuman)
        assert "a parallel group" in str(error)
        assert world.n() == before


def test_a_branch_that_is_gone_is_diverged(deploy: Deploys, world: World) -> None:
    def release(items: list[int]) -> Doubtless:
        app = deploy()
        steps = declare(app, world)

        @app.task
        def work() -> Any:
            app.map(steps.pay, items)
            if len(items) == 3:
                raise KeyError("stop here")

        return app

    app = release([1, 2, 3])
    assert isinstance(raised(app.run, app.declared_tasks["work"], "t"), NeedsHuman)
    app = release([1, 2])
    assert "without calling step pay, which the log holds at place 1.3.1" in str(raised(app.run, app.declared_tasks["work"], "t"))


# ---------------------------------------------------------------- a thousand seeds


def _program(app: Doubtless, world: World, dice: random.Random, *, is_async: bool) -> Any:
    lock = threading.Lock()

    def pause() -> None:
        with lock:
            length = dice.choice((0.0, 0.0, 0.0002, 0.001))
        if length:
            time.sleep(length)

    steps = declare(app, world, pause=pause)

    @app.step(
        effect="non_idem_write", name="apay", absent_after="PT10S", on_absent="retry", attempts=9,
        query=lambda idempotency_key: world.find("apay", idempotency_key),
    )  # fmt: skip
    async def apay(what: Any, idempotency_key: str = injected()) -> dict[str, Any]:
        with lock:
            turns = dice.randrange(4)
        for _ in range(turns):
            await asyncio.sleep(0)
        return world.do("apay", what, idempotency_key)

    def deep() -> Any:
        return [steps.look("d"), app.map(steps.pay, ["m", "n"]), steps.pay("o")]

    @app.task
    def work(n: int) -> int:
        steps.look(n)
        app.parallel(lambda: steps.pay("a"), lambda: [steps.look("b"), steps.pay("c")], deep)
        app.map(steps.pay, ["p", "q", "r", "s"], concurrency=3)
        steps.pay("z")
        return n

    @app.task(name="awork")
    async def awork(n: int) -> int:
        async def two() -> Any:
            return [await steps.look.acall("b"), await apay("c")]

        async def adeep() -> Any:
            return [await app.map(apay, ["m", "n"]), await apay("o")]

        await app.parallel(lambda: apay("a"), two, adeep)
        await app.map(steps.pay, ["p", "q", "r", "s"], concurrency=3)
        await apay("z")
        return n

    return awork if is_async else work


def _seed(folder: Path, number: int, *, is_async: bool) -> None:
    """One task with random delays, killed at random points, resumed until it is done."""
    world, dice, app = World(), random.Random(number), Doubtless("sqlite:///unused.db")
    work = _program(app, world, random.Random(number + 1), is_async=is_async)
    writes = ["apay", "pay"] if is_async else ["pay"]
    with harness(app, folder) as one:
        reference = None
        for task_id in ("calm", "stormy"):
            if task_id == "stormy":
                reference = {(s.path, s.name) for s in app.show("calm").steps}
                done = world.n()
                for _ in range(dice.randrange(1, 4)):
                    point: dict[str, Any] = {dice.choice(("before", "after")): dice.choice(("intent", "effect", "record"))}
                    one.kill(dice.choice(writes), skip=dice.randrange(3), **point)
            for _ in range(12):
                try:
                    assert app.run(work, task_id, n=number) == number
                    break
                except Killed:
                    continue
            else:
                raise AssertionError(f"seed {number} does not end")
        assert {(s.path, s.name) for s in app.show("stormy").steps} == reference
        assert world.n() == 2 * done
        assert len(set(world.keys("pay"))) == world.n("pay")
        assert app.inbox() == ([], [])
        assert app.verify() == []
        one._faults._ordered.clear()  # what was ordered for a point that this seed did not come to


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 1000), marks=pytest.mark.prove)], ids=["20", "1000"])
def test_with_random_delays_and_crashes_the_paths_and_the_effects_are_the_same(
    tmp_path: Path, seeds: range, is_async: bool
) -> None:
    for number in seeds:
        folder = tmp_path / str(number)
        folder.mkdir()
        _seed(folder, number, is_async=is_async)
