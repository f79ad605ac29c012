"""How a task ends, or does not: failures, errors of its code, obligations, and what people say (sections 4 and 5)."""

from __future__ import annotations

from typing import Any

import pytest
from tasks_ground import Deploys, World, kinds, only_case, raised, rows, settle, statuses

from doubtless import (
    Abandon,
    Abort,
    DidNotHappen,
    Doubtless,
    Fail,
    Happened,
    LetStand,
    NeedsHuman,
    NotSent,
    Pending,
    Rejected,
    Retry,
    StepFailed,
    TaskFailed,
    TaskWaiting,
    record_handle,
)
from doubtless.events import Kind
from doubtless.testing import FakeClock


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def failing(app: Doubtless, task: Any, task_id: str = "t") -> TaskFailed:
    """The failure that the run raises; the same when it is run again."""
    errors = [raised(app.run, task, task_id) for _ in range(3)]
    for error in errors:
        assert isinstance(error, TaskFailed)
    assert len({(str(error), error.status) for error in errors if isinstance(error, TaskFailed)}) == 1
    assert isinstance(errors[0], TaskFailed)
    return errors[0]


# ---------------------------------------------------------------- code_error


def test_an_exception_in_task_code_parks_it_with_a_case_and_undoes_nothing(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write", compensate="withdraw")
    def pay() -> int:
        world.do("pay")
        return 1

    @app.step(effect="non_idem_write")
    def withdraw() -> None:
        world.do("withdraw")

    @app.task
    def task() -> int:
        pay()
        raise KeyError("amount")

    for _ in range(3):  # it stays one case, and one row of each
        with pytest.raises(NeedsHuman) as caught:
            app.run(task, "t")
    case = only_case(app)
    assert caught.value.cases == (case.id,)
    assert (case.kind, case.evidence["error"], case.evidence["message"]) == ("code_error", "KeyError", "'amount'")
    assert "raise KeyError" in case.evidence["traceback"]
    assert app.show("t").status == "needs_human"
    assert world.n("withdraw") == 0
    assert kinds(app, "t").count(Kind.CASE_OPENED) == 1
    assert kinds(app, "t").count(Kind.TASK_PARKED) == 1


@pytest.mark.parametrize("first", ["resume", "retry"])
def test_with_the_fix_deployed_the_task_goes_on_and_the_case_is_closed(deploy: Deploys, world: World, first: str) -> None:
    def release(fixed: bool) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect="non_idem_write")
        def pay() -> dict[str, int]:
            world.do("pay")
            return {"sum": 5}

        @app.task
        def task() -> int:
            return pay()["sum" if fixed else "amount"]

        return app, task

    app, task = release(fixed=False)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(fixed=True)
    if first == "retry":
        settle(app, Retry())
    assert app.run(task, "t") == 5
    assert app.inbox().cases == []
    assert world.n() == 1


def test_another_error_is_another_case_and_closes_the_one_before(deploy: Deploys) -> None:
    errors: list[type[Exception]] = [KeyError]
    app = deploy()

    @app.task
    def task() -> int:
        raise errors[0]

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    before = only_case(app).id
    errors[0] = ValueError
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    case = only_case(app)
    assert case.id != before
    assert case.evidence["error"] == "ValueError"


def test_a_person_can_fail_a_task_whose_code_is_broken(app: Doubtless) -> None:
    @app.task
    def task() -> int:
        raise KeyError("amount")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Fail())
    error = failing(app, task)
    assert error.status == "failed"
    assert error.context["failure"]["code"] == "failed_by_person"
    assert error.message == "task t ended failed by anna: looked"
    assert app.inbox().cases == []


# ---------------------------------------------------------------- exhausted


def exhausting(app: Doubtless, world: World, effect: Any = "read") -> Any:
    @app.step(effect=effect, attempts=2, backoff="PT0.1S", name="ask")
    def ask() -> int:
        world.do("ask")
        raise NotSent("down") if effect != "read" else ConnectionError("down")

    @app.task
    def task() -> int:
        return ask()

    return task


@pytest.mark.parametrize("effect", ["read", "non_idem_write"])
def test_an_exhausted_step_parks_its_task_and_resume_grants_no_attempt(app: Doubtless, world: World, effect: Any) -> None:
    task = exhausting(app, world, effect)
    for _ in range(3):
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    app.resume_all()
    case = only_case(app)
    assert (case.kind, case.evidence["failure"], case.evidence["path"]) == ("code_error", "exhausted", "1")
    assert world.n() == 2
    assert statuses(app, "t") == {"1": "failed" if effect == "read" else "not_applied"}


@pytest.mark.parametrize("effect", ["read", "non_idem_write"])
def test_a_persons_retry_of_an_exhausted_step_grants_exactly_one_attempt(app: Doubtless, world: World, effect: Any) -> None:
    task = exhausting(app, world, effect)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    for calls in (3, 4):
        settle(app, Retry(), kind="code_error")
        for _ in range(2):
            with pytest.raises(NeedsHuman):
                app.run(task, "t")
        assert world.n() == calls
    assert kinds(app, "t").count(Kind.RETRY_ALLOWED) == 2


def test_a_caught_exhausted_step_lets_the_task_go_on(app: Doubtless, world: World) -> None:
    @app.step(effect="read", attempts=2, backoff="PT0.1S")
    def ask() -> int:
        raise ConnectionError

    @app.task
    def task() -> str:
        try:
            ask()
        except StepFailed as failure:
            return failure.kind
        return "?"

    assert app.run(task, "t") == "exhausted"
    assert app.inbox().cases == []


# ---------------------------------------------------------------- failing for good


def stepping(app: Doubtless, world: World, how: str) -> Any:
    @app.step(effect="non_idem_write", compensate="withdraw")
    def create(n: int) -> int:
        world.do("create", n)
        return n

    @app.step(effect="non_idem_write")
    def withdraw(n: int) -> None:
        world.do("withdraw", n)

    @app.step(effect="non_idem_write")
    def submit() -> int:
        world.do("submit")
        if how == "rejected":
            raise Rejected("422", "no such order")
        raise TimeoutError

    @app.task(on_failure="hold")
    def task(creates: int = 0) -> int:
        for n in range(creates):
            create(n)
        if how == "abort":
            raise Abort("the customer changed their mind")
        return submit()

    return task


@pytest.mark.parametrize("how", ["rejected", "not_applied", "abandoned", "abort"])
def test_a_task_fails_for_good_by_a_step_that_failed_or_by_abort(app: Doubtless, world: World, how: str) -> None:
    task = stepping(app, world, how)
    if how in ("not_applied", "abandoned"):
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
        settle(app, Abandon() if how == "abandoned" else DidNotHappen("fail"))
    error = failing(app, task)
    assert error.status == "failed"
    assert error.context["failure"]["kind"] == how
    assert app.tasks()[0].status == "failed"
    assert app.inbox().cases == []


def test_a_failed_task_with_obligations_waits_in_a_hold_case_that_lists_them(app: Doubtless, world: World) -> None:
    task = stepping(app, world, "rejected")
    for _ in range(3):
        with pytest.raises(NeedsHuman):
            app.run(task, task_id="t", wait=True, creates=2)
    case = only_case(app)
    assert case.kind == "hold"
    assert [(entry["path"], entry["step"], entry["compensate"]) for entry in case.evidence["obligations"]] == [
        ("2", "create", "withdraw"),
        ("1", "create", "withdraw"),
    ]
    assert case.evidence["failure"]["kind"] == "rejected"
    assert list(case.answers) == ["compensate", "let_stand"]
    assert app.show("t").status == "needs_human"
    assert (world.n("submit"), world.n("withdraw")) == (1, 0)


def test_let_stand_ends_the_task_failed_and_lists_what_stands(app: Doubtless, world: World) -> None:
    task = stepping(app, world, "rejected")
    with pytest.raises(NeedsHuman):
        app.run(task, task_id="t", wait=True, creates=1)
    settle(app, LetStand())
    errors = [raised(app.run, task, task_id="t", wait=True, creates=1) for _ in range(2)]
    assert str(errors[0]) == str(errors[1])
    error = errors[0]
    assert isinstance(error, TaskFailed)
    assert error.status == "failed"
    assert [entry["step"] for entry in error.context["stands"]] == ["create"]
    assert error.context["failure"]["kind"] == "rejected"
    assert app.inbox().cases == []
    assert world.n("create") == 1


def test_a_task_failed_by_a_person_with_obligations_is_held_too(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write", compensate="withdraw")
    def create() -> int:
        world.do("create")
        return 1

    @app.step(effect="non_idem_write")
    def withdraw() -> None: ...

    @app.task(on_failure="hold")
    def task() -> int:
        world.do("pass")
        create()
        raise KeyError

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Fail(), kind="code_error")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).kind == "hold"
    settle(app, LetStand())
    assert failing(app, task).status == "failed"
    assert world.n("pass") == 1  # the code of a task that has failed is not run again


def test_what_was_not_applied_is_no_obligation(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write", compensate="withdraw")
    def create() -> int:
        raise Rejected("422")

    @app.step(effect="non_idem_write")
    def withdraw() -> None: ...

    @app.task
    def task() -> int:
        return create()

    assert failing(app, task).status == "failed"


def test_a_doubt_is_settled_before_a_task_that_a_person_has_failed_ends(app: Doubtless, world: World, clock: FakeClock) -> None:
    import asyncio

    @app.step(
        effect="non_idem_write", query=lambda: Pending("PT1H") if not world.n("landed") else {"id": 1}, compensate="withdraw"
    )
    async def create() -> Any:
        raise TimeoutError

    @app.step(effect="non_idem_write")
    def withdraw() -> None: ...

    @app.step(effect="read", attempts=1)
    async def ask() -> None:
        raise ConnectionError

    @app.task(on_failure="hold")
    async def task() -> Any:
        return await asyncio.gather(create(), ask())

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    world.do("landed")
    clock.advance("PT2H")
    with pytest.raises(NeedsHuman):
        app.resume("t", wait=False)
    assert only_case(app).kind == "code_error"
    settle(app, Fail())
    with pytest.raises(NeedsHuman):
        app.resume("t", wait=False)
    case = only_case(app)
    assert case.kind == "hold"  # the doubt turned out to be an effect
    assert [entry["step"] for entry in case.evidence["obligations"]] == ["create"]


# ---------------------------------------------------------------- polls


def test_a_poll_that_goes_on_and_on_is_a_doubt_and_no_failure(app: Doubtless, world: World, clock: FakeClock) -> None:
    """C61: pending does not use up the budget of queries; the task is parked with its handle, not failed."""
    asked: list[Any] = []

    def status(handle: str | None) -> Any:
        asked.append(handle)
        return Pending("PT1H")

    @app.step(effect="non_idem_write", query=status, query_attempts=2, settle_within="P10D")
    def submit() -> Any:
        world.do("submit")
        record_handle("job-7")
        raise TimeoutError

    @app.task
    def task() -> Any:
        return submit()

    with pytest.raises(TaskWaiting) as caught:
        app.run(task, task_id="t", wait="PT12H")
    assert len(asked) > 10
    assert set(asked) == {"job-7"}
    assert app.show("t").steps[0].handles == ("job-7",)
    assert statuses(app, "t") == {"1": "uncertain"}
    assert caught.value.until is not None
    assert app.inbox().cases == []
    assert world.n() == 1
    clock.advance("P10D")
    with pytest.raises(TaskWaiting):
        app.resume("t", wait=False)
    assert only_case(app).kind == "doubt"
    settle(app, Happened({"job": 7}))
    assert app.run(task, "t") == {"job": 7}


# ---------------------------------------------------------------- one row for each thing


def test_the_rows_of_a_task_that_failed_once_tell_its_whole_story_in_order(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write", query=lambda: {"id": 1})
    def pay() -> Any:
        raise TimeoutError

    @app.task
    def task() -> Any:
        return pay()

    app.run(task, "t")
    assert kinds(app, "t") == [
        Kind.TASK_ACCEPTED,
        Kind.TASK_CLAIMED,
        Kind.STEP_INTENDED,
        Kind.ATTEMPT_ENDED,
        Kind.LOOKED_BACK,
        Kind.STEP_SETTLED,
        Kind.TASK_ENDED,
    ]
    assert [row.event_seq for row in rows(app, "t")] == list(range(1, 8))
    assert app.verify() == []
