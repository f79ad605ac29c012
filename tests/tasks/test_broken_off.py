"""What has begun and is not waited for any more: a group never awaited, steps and children whose waiter was cancelled, writes
that would have been tried again when their task ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tasks_ground import Deploys, World, only_case, raised, statuses

from doubtless import Doubtless, NeedsHuman, NotSent, Rejected, TaskFailed, TaskWaiting
from doubtless.testing import Harness, harness


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("what", ["parallel", "map"])
def test_a_group_that_is_called_and_never_awaited_is_not_lost_without_a_word(deploy: Deploys, world: World, what: str) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def send(n: int) -> dict[str, Any]:
        return world.do("send", n)

    @app.task
    async def forgetful() -> int:
        app.parallel(lambda: send(n=1)) if what == "parallel" else app.map(send, [1])
        return 1

    assert isinstance(raised(app.run, forgetful, "t"), NeedsHuman)
    case = only_case(app)
    assert case.kind == "code_error" and "at place 1 was called but not awaited; nothing was sent" in case.why
    assert world.n() == 0


@pytest.mark.parametrize("how", ["run", "arun"])
def test_a_group_whose_asyncio_task_has_not_begun_when_the_code_ends_is_not_lost_either(
    deploy: Deploys, world: World, how: str
) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def send(n: int) -> dict[str, Any]:
        return world.do("send", n)

    @app.task
    async def hasty() -> int:
        asyncio.create_task(app.map(send, [1, 2]))  # noqa: RUF006
        return 1

    for n in range(12):  # the event loop of `run` begins the group or does not, beside the thread that concludes
        error = raised(app.run, hasty, f"t{n}") if how == "run" else raised(asyncio.run, app.arun(hasty, f"t{n}"))
        assert isinstance(error, NeedsHuman)
    assert all("was called but not awaited" in case.why for case in app.inbox().cases)
    assert world.n() == 0


@pytest.mark.parametrize("how", ["run", "arun"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_child_that_is_under_way_when_the_code_ends_is_brought_to_its_end_first(
    deploy: Deploys, world: World, how: str, fails: bool
) -> None:
    app = deploy()
    begun: list[asyncio.Event] = []

    @app.step(effect="non_idem_write")
    async def send(n: int) -> dict[str, Any]:
        begun[0].set()
        await asyncio.sleep(0.02)
        return world.do("send", n)

    @app.task
    async def child() -> Any:
        return [await send(n=1), await send(n=2)]

    @app.task
    async def parent() -> int:
        begun[:] = [asyncio.Event()]
        asyncio.create_task(child())  # noqa: RUF006
        await begun[0].wait()
        if fails:
            raise ValueError("a bug")
        return 1

    async def run() -> Any:
        return await app.arun(parent, "t")

    ended = raised_or(lambda: app.run(parent, "t") if how == "run" else asyncio.run(run()))
    assert ended == 1 if not fails else isinstance(ended, NeedsHuman)
    assert (app.show("t/1").status, world.n()) == ("done", 2)
    assert statuses(app, "t") == {"1": "done"}


def raised_or(work: Any) -> Any:
    """What it returns, or raises."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001
        return error


# ---------------------------------------------------------------- whose waiter was cancelled


@pytest.fixture
def app(tmp_path: Any) -> Any:
    app = Doubtless(f"sqlite:///{tmp_path}/t.db")  # on the clock of this machine: nothing turns it through a backoff
    yield app
    app.close()


def beside(app: Doubtless) -> dict[str, Any]:
    """Steps and a child that stand beside a step that fails for good, once one of them has begun."""
    begun: list[str] = []

    async def under_way() -> None:
        while not begun:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)

    @app.step(effect="non_idem_write")
    async def refuse(n: int) -> dict[str, int]:
        await under_way()
        raise Rejected("422")

    @app.step(effect="read")
    async def read(n: int) -> int:
        begun.append("read")
        await asyncio.sleep(60)
        return n

    @app.step(effect="read")
    async def read_again(n: int) -> int:
        begun.append("read_again")
        raise NotSent("down", retry_after="PT1H")

    @app.step(effect="non_idem_write", once="again:{n}")
    async def write_again(n: int) -> dict[str, int]:
        begun.append("write_again")
        raise NotSent("down", retry_after="PT1H")

    @app.task
    async def child(n: int) -> int:
        begun.append("child")
        await app.sleep("PT1H")
        return n

    return {
        "refuse": refuse, "read": read, "read_again": read_again, "write_again": write_again, "child": child, "under_way": under_way,
    }  # fmt: skip


@pytest.mark.parametrize("what", ["read", "read_again", "write_again", "child"])
def test_what_a_refusal_in_a_task_group_cancelled_ends_with_its_task(app: Doubtless, what: str) -> None:
    steps = beside(app)

    @app.task
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(steps["refuse"](n=1))
            group.create_task(steps[what](n=1))

    failed = raised(app.run, both, "t")
    assert isinstance(failed, TaskFailed) and failed.context["failure"]["code"] == "422", failed
    assert app.inbox().cases == []
    assert {head.status for head in app.tasks()} <= {"failed", "cancelled"}
    if what == "write_again":
        assert statuses(app, "t")["2"] == "not_applied"


@pytest.mark.parametrize("what", ["read_again", "write_again", "child"])
def test_a_limit_of_the_code_around_what_has_begun_parks_the_task_and_never_goes_on_without_it(
    app: Doubtless, what: str
) -> None:
    steps = beside(app)

    @app.task
    async def limited() -> str:
        try:
            await asyncio.wait_for(steps[what](n=1), 0.1)
        except TimeoutError:
            return "went on without it"
        return "waited"

    for _ in range(2):
        error = raised(app.run, limited, "t")
        assert isinstance(error, TaskWaiting) and "was interrupted: CancelledError" in str(error), error
        assert (error.context.get("cases") or []) == [] and app.inbox().cases == []
    if what != "child":  # its backoff: nobody has to look before
        assert error.until is not None


# ---------------------------------------------------------------- unsent when its task ends


@pytest.fixture
def h(tmp_path: Any) -> Any:
    app = Doubtless()
    with harness(app, tmp_path, auto_advance=False) as found:
        yield found


def unsent(h: Harness, on_failure: Any = "compensate") -> Any:
    """A task whose write with a business key has not left yet, and will be tried again."""
    @h.app.step(effect="non_idem_write", once="pay:{n}")
    def pay(n: int) -> dict[str, int]:
        return {"paid": n}

    def give_back(result: Any) -> dict[str, int]:
        return {"undone": result["n"]}

    @h.app.step(effect="non_idem_write", compensate=give_back)
    def reserve(n: int) -> dict[str, int]:
        return {"n": n}

    @h.app.task(on_failure=on_failure)
    def order(n: int, reserved: bool = False) -> Any:
        if reserved:
            reserve(n=n)
        pay(n=n)

    return order


@pytest.mark.parametrize("on_failure", ["compensate", "hold"])
@pytest.mark.parametrize("reserved", [False, True])
def test_a_write_that_was_not_sent_when_its_task_is_cancelled_is_settled_and_frees_its_business_key(
    h: Harness, reserved: bool, on_failure: str
) -> None:
    order = unsent(h, on_failure)
    h.fail("pay", NotSent("down", retry_after="PT1H"))
    assert isinstance(raised(h.run, order, "a", n=1, reserved=reserved, wait=False), TaskWaiting)
    try:
        h.app.cancel("a", by="anna", why="not wanted")
    except NeedsHuman:
        assert on_failure == "hold" and reserved
    place = "2" if reserved else "1"
    assert statuses(h.app, "a")[place] == "not_applied"
    assert h.run(order, "b", n=1) is None
    assert h.effects("pay") == 1 and h.app.verify() == []


def test_a_write_whose_waiter_was_cancelled_is_settled_when_its_task_is_cancelled(app: Doubtless) -> None:
    steps = beside(app)

    @app.task
    async def buggy() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(steps["write_again"](n=1))
            await steps["under_way"]()
            raise ValueError("a bug")

    assert isinstance(raised(app.run, buggy, "t"), TaskWaiting)  # its write is under way: the bug shows when that is through
    app.cancel("t", by="anna", why="not wanted")
    assert statuses(app, "t") == {"1": "not_applied"}
