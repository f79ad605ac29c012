"""Cancellation and whatever is no `Exception` inside a step: recorded as it is, then raised on unchanged (rule 7)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tasks_ground import PATIENCE, Deploys, World, intents, kinds, only_case, outcomes, raised, rows, settle, statuses, until
from tests.looptime import LIMIT, is_over_after

from doubtless import Doubtless, Happened, NeedsHuman, NotSent, TaskBusy, TaskWaiting, injected
from doubtless.errors import Parking
from doubtless.events import Kind

BASES = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit]


class OwnBase(BaseException):
    """Somebody's own way of unwinding."""


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def raising(app: Doubtless, world: World, error: type[BaseException], how: str, when: str) -> Any:
    """A task of one write that raises `error` before or after its effect; declared and called in one of four ways."""

    def call() -> int:
        if when == "after":
            world.do("pay")
        raise error("from inside")

    if how == "async":

        @app.step(effect="non_idem_write", query=lambda: world.done and {"id": 1} or None)
        async def pay() -> Any:
            await asyncio.sleep(0)
            return call()
    else:

        @app.step(effect="non_idem_write", query=lambda: world.done and {"id": 1} or None)
        def pay() -> Any:
            return call()

    if how == "sync":

        @app.task
        def task() -> Any:
            try:
                return pay()
            except Exception:
                return "swallowed"
    else:

        @app.task
        async def task() -> Any:
            try:
                if how == "inline":
                    return pay()
                return await (pay.acall() if how == "thread" else pay())
            except Exception:
                return "swallowed"

    return task


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["sync", "inline", "thread", "async"])
@pytest.mark.parametrize("error", [*BASES, OwnBase], ids=lambda error: error.__name__)
def test_a_base_exception_inside_a_write_leaves_it_unknown_and_is_raised_on_unchanged(
    app: Doubtless, world: World, error: type[BaseException], how: str, when: str
) -> None:
    """C93."""
    task = raising(app, world, error, how, when)
    caught = raised(app.run, task, "t")
    assert type(caught) is error
    assert caught.args == ("from inside",)
    assert outcomes(app, "t", "1") == [("unknown", error.__name__)]
    assert kinds(app, "t")[-1] == Kind.TASK_PARKED
    assert app.show("t").owner is None

    if when == "after":
        assert app.run(task, "t") == {"id": 1}
    else:
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    assert world.n() == (when == "after")


@pytest.mark.parametrize("error", [*BASES, OwnBase], ids=lambda error: error.__name__)
def test_arun_raises_a_base_exception_of_a_step_on_unchanged(app: Doubtless, world: World, error: type[BaseException]) -> None:
    task = raising(app, world, error, "async", "after")

    async def main() -> BaseException | None:
        try:
            await app.arun(task, "t")
        except BaseException as caught:
            return caught
        return None

    caught = asyncio.run(main())
    assert type(caught) is error
    assert outcomes(app, "t", "1") == [("unknown", error.__name__)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OwnBase], ids=lambda error: error.__name__)
def test_a_base_exception_in_one_branch_lets_the_others_be_recorded(
    app: Doubtless, world: World, error: type[BaseException]
) -> None:
    flying: list[int] = []

    @app.step(effect="non_idem_write")
    async def broken() -> None:
        while not flying:
            await asyncio.sleep(0)
        raise error("from inside")

    @app.step(effect="non_idem_write")
    async def slow() -> int:
        flying.append(1)
        for _ in range(50):
            await asyncio.sleep(0)
        world.do("slow")
        return 1

    @app.task
    async def task() -> Any:
        return await asyncio.gather(broken(), slow())

    for run in (lambda: app.run(task, "by run"), lambda: asyncio.run(app.arun(task, "by arun"))):
        flying.clear()
        caught = raised(run)
        assert type(caught) is error
        assert caught.args == ("from inside",)
    for task_id in ("by run", "by arun"):
        assert statuses(app, task_id) == {"1": "uncertain", "2": "done"}
        assert app.show(task_id).owner is None


def test_a_memory_error_is_an_exception_like_any_other_unknown(app: Doubtless, world: World) -> None:
    """C93: it says nothing about the whole function, so the write is looked for."""

    @app.step(effect="non_idem_write", query=lambda: {"id": 1})
    def pay() -> Any:
        world.do("pay")
        raise MemoryError

    @app.task
    def task() -> Any:
        return pay()

    assert app.run(task, "t") == {"id": 1}
    assert outcomes(app, "t", "1") == [("unknown", "MemoryError")]


def test_a_base_exception_inside_a_query_is_recorded_as_unclear_and_raised_on(app: Doubtless) -> None:
    answers: list[Any] = [KeyboardInterrupt("now"), {"id": 1}]

    def find() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @app.step(effect="non_idem_write", query=find)
    def pay() -> Any:
        raise TimeoutError

    @app.task
    def task() -> Any:
        return pay()

    with pytest.raises(KeyboardInterrupt, match="now"):
        app.run(task, "t")
    assert [row.details["answer"] for row in rows(app, "t") if row.kind == Kind.LOOKED_BACK] == ["unclear"]
    assert app.run(task, "t") == {"id": 1}


def test_a_base_exception_in_task_code_parks_the_task_and_is_raised_on(app: Doubtless, world: World) -> None:
    stop = [True]

    @app.step(effect="non_idem_write")
    def pay() -> int:
        world.do("pay")
        return 1

    @app.task
    def task() -> int:
        paid = pay()
        if stop:
            raise SystemExit(3)
        return paid

    caught = raised(app.run, task, "t")
    assert isinstance(caught, SystemExit)
    assert caught.code == 3
    assert app.show("t").status == "ready"
    assert app.inbox().cases == []
    stop.clear()
    assert app.run(task, "t") == 1
    assert world.n() == 1


def test_resume_all_never_raises_for_one_task(app: Doubtless, world: World) -> None:
    @app.step(effect="read", attempts=1)
    def look(what: str) -> str:
        if what == "breaks":
            raise KeyError(what)
        return what

    @app.task
    def task(what: str) -> str:
        return look(what)

    for what in ("breaks", "fine"):
        app.start(task, what, what=what)
    results = app.resume_all()
    assert set(results) == {"breaks", "fine"}
    assert results["fine"] == "done"
    assert results["breaks"].startswith("needs_human")


@pytest.mark.parametrize("error", [SystemExit, OwnBase], ids=lambda error: error.__name__)
def test_among_many_tasks_what_one_raises_to_end_the_program_is_how_that_one_stands(
    app: Doubtless, world: World, error: type[BaseException]
) -> None:
    """So `resume_all` goes on with the next one."""
    task = raising(app, world, error, "sync", "after")
    app.start(task, "t")
    assert isinstance(raised(app._runs.run, "t", False, one_of_many=True), TaskWaiting)
    assert outcomes(app, "t", "1") == [("unknown", error.__name__)]
    assert app.run(task, "t") == {"id": 1}


# ---------------------------------------------------------------- asyncio's own cancellation


def paying(app: Doubtless, world: World, *, query: bool = True) -> tuple[Any, asyncio.Event]:
    inside = asyncio.Event()

    @app.step(effect="non_idem_write", query=(lambda: {"id": 1} if world.n() else None) if query else None)
    async def pay() -> Any:
        world.do("pay")
        inside.set()
        await asyncio.Event().wait()

    return pay, inside


def cancel_the_task(app: Doubtless, task: Any, inside: asyncio.Event) -> Callable[[], Any]:
    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        await inside.wait()
        running.cancel()
        await running

    return lambda: asyncio.run(main())


def wait_for_around_arun(app: Doubtless, task: Any, inside: asyncio.Event) -> Callable[[], Any]:
    async def main() -> None:
        over = is_over_after(inside)
        await asyncio.wait_for(app.arun(task, "t"), LIMIT)
        await over

    return lambda: asyncio.run(main())


def timeout_around_arun(app: Doubtless, task: Any, inside: asyncio.Event) -> Callable[[], Any]:
    async def main() -> None:
        over = is_over_after(inside)
        async with asyncio.timeout(LIMIT):
            await app.arun(task, "t")
        await over

    return lambda: asyncio.run(main())


@pytest.mark.parametrize(
    "how, error",
    [
        (cancel_the_task, asyncio.CancelledError),
        (wait_for_around_arun, TimeoutError),
        (timeout_around_arun, TimeoutError),
    ],
    ids=["cancel", "wait_for", "timeout"],
)
def test_cancelling_arun_leaves_the_write_uncertain_the_task_parked_and_is_raised_on(
    app: Doubtless, world: World, how: Any, error: type[BaseException]
) -> None:
    """C91, as far as cancelling the run goes: what was in flight is settled before anything else happens."""
    pay, inside = paying(app, world)

    @app.task
    async def task() -> Any:
        return await pay()

    assert type(raised(how(app, task, inside))) is error
    assert outcomes(app, "t", "1") == [("unknown", "CancelledError")]
    view = app.show("t")
    assert (view.status, view.owner) == ("ready", None)
    assert kinds(app, "t")[-1] == Kind.TASK_PARKED
    assert app.run(task, "t") == {"id": 1}
    assert world.n() == 1


def test_wait_for_around_a_write_inside_the_task_parks_it(app: Doubtless, world: World) -> None:
    pay, inside = paying(app, world)
    went_on: list[BaseException | None] = []

    @app.step(effect="non_idem_write")
    async def other() -> None:
        world.do("other")

    @app.task
    async def task() -> Any:
        try:
            return await asyncio.wait_for(pay(), LIMIT)
        except TimeoutError:
            try:
                await other()
            except BaseException as error:
                went_on.append(error)
            return "gave up"

    async def main() -> None:
        over = is_over_after(inside)
        await app.arun(task, "t")
        await over

    with pytest.raises(TaskWaiting):
        asyncio.run(main())
    assert isinstance(went_on[0], Parking)
    assert world.n("other") == 0
    assert outcomes(app, "t", "1") == [("unknown", "CancelledError")]
    assert Kind.TASK_ENDED not in kinds(app, "t")
    assert app.run(task, "t") == {"id": 1}


def test_cancelling_arun_cancels_all_branches_and_records_each(app: Doubtless, world: World) -> None:
    flying: list[int] = []

    @app.step(effect="non_idem_write", query=lambda n: {"n": n})
    async def pay(n: int) -> Any:
        flying.append(n)
        await asyncio.sleep(3600)

    @app.task
    async def task() -> Any:
        loose = asyncio.ensure_future(pay(3))
        both = await asyncio.gather(pay(1), pay(2))
        return [*both, await loose]

    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while len(flying) < 3:
            await asyncio.sleep(0)
        running.cancel()
        await running

    assert isinstance(raised(lambda: asyncio.run(main())), asyncio.CancelledError)
    assert [outcomes(app, "t", path) for path in "123"] == [[("unknown", "CancelledError")]] * 3
    assert kinds(app, "t")[-1] == Kind.TASK_PARKED
    assert app.run(task, "t") == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_interrupted_between_the_intent_and_the_call_is_not_sent(app: Doubtless, world: World) -> None:
    """Rule 7: cancelled before the function was entered. The intent is durable, and nothing left this machine."""

    @app.step(effect="non_idem_write")
    def pay() -> int:
        world.do("pay")
        return 1

    @app.task
    def task() -> int:
        return pay()

    running: list[Any] = []

    def at_intent(point: str) -> None:
        if point == "append:after" and running:  # the first append of the run is the intent, in the run's own thread
            loop, cancel = running.pop()
            loop.call_soon_threadsafe(cancel)
            until(lambda: all(run.last.parked for run in app._runs._active), "the interruption")

    app._hooks = at_intent

    async def main() -> None:
        arun = asyncio.ensure_future(app.arun(task, "t"))
        running.append((asyncio.get_running_loop(), arun.cancel))
        await arun

    assert isinstance(raised(lambda: asyncio.run(main())), asyncio.CancelledError)
    assert world.n() == 0
    assert outcomes(app, "t", "1") == [("not_sent", "interrupted")]
    assert app.run(task, "t") == 1
    assert world.n() == 1
    assert intents(app, "t") == {"1": 1}


def test_cancelled_while_waiting_loses_nothing(app: Doubtless, deploy: Deploys, world: World) -> None:
    deploy.clock.auto_advance = False

    @app.step(effect="non_idem_write", backoff="PT1H", settle_within="P9D")
    async def pay() -> int:
        world.do("pay")
        if world.n() == 1:
            raise NotSent
        return world.n()

    @app.task
    async def task() -> int:
        return await pay()

    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while Kind.ATTEMPT_ENDED not in (kinds(app, "t") if app.tasks() else []):
            await asyncio.sleep(0.001)
        running.cancel()
        await running

    assert isinstance(raised(lambda: asyncio.run(main())), asyncio.CancelledError)
    assert app.show("t").owner is None
    deploy.clock.auto_advance = True
    assert app.run(task, "t") == 2


def test_cancelling_arun_of_a_sync_task_leaves_its_call_in_doubt_and_keeps_the_task_owned(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def pay() -> str:
        inside.set()
        assert go_on.wait(PATIENCE)
        world.do("pay")
        return "late"

    @app.task
    def task() -> str:
        return pay()

    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        await running

    assert isinstance(raised(lambda: asyncio.run(main())), asyncio.CancelledError)
    assert outcomes(app, "t", "1") == [("unknown", "CancelledError")]
    with pytest.raises(TaskBusy):
        app.run(task, "t")
    go_on.set()
    until(lambda: app.show("t").owner is None, "the release")
    assert app.run(task, "t") == "late"
    assert world.n() == 1


def test_cancelling_arun_in_a_threaded_call_keeps_the_task_owned_until_it_has_ended(app: Doubtless, world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="idem_write")
    def pay(idempotency_key: str = injected()) -> str:
        world.do("pay", None, idempotency_key)
        inside.set()
        assert go_on.wait(PATIENCE)
        return "late"

    @app.task
    async def task() -> str:
        return await pay.acall()

    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        await running

    assert isinstance(raised(lambda: asyncio.run(main())), asyncio.CancelledError)
    with pytest.raises(TaskBusy):
        app.run(task, "t")
    go_on.set()
    until(lambda: app.show("t").owner is None, "the release")
    assert app.run(task, "t") == "late"
    assert world.n() == 1


def test_a_coroutine_that_swallows_a_cancellation_and_succeeds_is_believed(app: Doubtless, world: World) -> None:
    inside = asyncio.Event()

    @app.step(effect="non_idem_write")
    async def pay() -> str:
        inside.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            world.do("pay")
        return "through"

    @app.task
    async def task() -> str:
        return await pay()

    assert isinstance(raised(cancel_the_task(app, task, inside)), asyncio.CancelledError)
    assert app.run(task, "t") == "through"
    assert world.n() == 1


def test_task_code_that_swallows_a_cancellation_does_not_end_its_task(app: Doubtless, world: World) -> None:
    pay, inside = paying(app, world, query=False)

    @app.task
    async def task() -> str:
        try:
            await pay()
        except BaseException:
            return "swallowed"
        return "done"

    with pytest.raises(TaskWaiting):
        cancel_the_task(app, task, inside)()
    assert Kind.TASK_ENDED not in kinds(app, "t")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).kind == "doubt"
    settle(app, Happened("seen"))
    assert app.run(task, "t") == "done"
    assert world.n() == 1


def test_cancelled_outside_a_step_parks_the_task_without_a_doubt(app: Doubtless, world: World) -> None:
    inside = asyncio.Event()

    @app.task
    async def task() -> int:
        inside.set()
        if world.n() == 0:
            world.do("first run")
            await asyncio.sleep(3600)
        return 1

    assert isinstance(raised(cancel_the_task(app, task, inside)), asyncio.CancelledError)
    assert app.show("t").status == "ready"
    assert app.run(task, "t") == 1


def test_an_event_loop_that_is_torn_down_under_a_run_leaves_the_write_in_doubt(app: Doubtless, world: World) -> None:
    pay, inside = paying(app, world)

    @app.task
    async def task() -> Any:
        return await pay()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that tasks were destroyed; so they were
    running = app.arun(task, "t")
    future = loop.create_task(running)
    while not inside.is_set():
        loop.call_soon(loop.stop)
        loop.run_forever()
    running.close()
    for left in asyncio.all_tasks(loop):
        left.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    del future
    assert outcomes(app, "t", "1") == [("unknown", "GeneratorExit")]
    assert app.show("t").owner is None
    assert app.run(task, "t") == {"id": 1}
    assert world.n() == 1
