"""No end before every write is settled, whichever way a task gets there; nothing called is lost; no output of a wrong type."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tasks_ground import Deploys, World, kinds, only_case, raised, settle, statuses

from doubtless import (
    Abandon,
    Abort,
    Answer,
    Deny,
    DidNotHappen,
    Doubtless,
    Fail,
    Happened,
    NeedsHuman,
    Rejected,
    Secret,
    StepFailed,
    TaskFailed,
    injected,
)
from doubtless.events import Kind

# ---------------------------------------------------------------- doubts come before the end


def charging(app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A write whose reply is lost, and whose secret has no value any more when it would be sent again."""

    @app.step(effect="idem_write", secret="token", backoff=0.05)
    def charge(n: int, token: str, idempotency_key: str = injected()) -> dict[str, Any]:
        world.do("charge", n)
        monkeypatch.delenv("FINDINGS_TOKEN")
        raise TimeoutError

    return charge


def test_a_task_failed_by_a_person_does_not_end_while_a_write_cannot_be_settled(
    deploy: Deploys, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = deploy()
    charge = charging(app, world, monkeypatch)
    monkeypatch.setenv("FINDINGS_TOKEN", "abcdef123")

    @app.task
    def pay() -> Any:
        return charge(n=1, token=Secret("env:FINDINGS_TOKEN"))

    assert isinstance(raised(app.run, pay, "t"), NeedsHuman)
    settle(app, Fail(), kind="code_error")
    for _ in range(2):  # the second resume keeps the case of the first
        assert isinstance(raised(app.resume, "t"), NeedsHuman)
        case = only_case(app)
        assert (case.kind, case.path) == ("doubt", "1")
        assert "FINDINGS_TOKEN" in case.why
    assert app.show("t").status == "needs_human"
    settle(app, Happened({"id": 1}))
    failed = raised(app.resume, "t")
    assert isinstance(failed, TaskFailed) and statuses(app, "t") == {"1": "done"}
    assert app.inbox().cases == [] and world.n() == 1


@pytest.mark.parametrize("answer", [DidNotHappen("retry", even_now=True), Abandon()])
def test_a_write_that_cannot_be_called_any_more_lets_the_task_end_that_a_person_has_failed(
    deploy: Deploys, world: World, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """Also where it may be sent again: for whom, in a task whose code runs no more?"""
    app = deploy()
    charge = charging(app, world, monkeypatch)
    monkeypatch.setenv("FINDINGS_TOKEN", "abcdef123")

    @app.task
    def pay() -> Any:
        return charge(n=1, token=Secret("env:FINDINGS_TOKEN"))

    assert isinstance(raised(app.run, pay, "t"), NeedsHuman)
    settle(app, Fail(), kind="code_error")
    assert isinstance(raised(app.resume, "t"), NeedsHuman)
    assert only_case(app).kind == "doubt"
    settle(app, answer)
    assert isinstance(raised(app.resume, "t"), TaskFailed)
    assert world.n() == 1


@pytest.mark.parametrize("ends", ["aborts", "returns"])
def test_code_that_catches_what_settling_raised_does_not_end_its_task_past_the_doubt(
    deploy: Deploys, world: World, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    app = deploy()
    charge = charging(app, world, monkeypatch)
    monkeypatch.setenv("FINDINGS_TOKEN", "abcdef123")

    @app.task
    def pay() -> str:
        try:
            charge(n=1, token=Secret("env:FINDINGS_TOKEN"))
        except Exception as error:
            if ends == "aborts":
                raise Abort("no way to charge") from error
        return "done"

    assert isinstance(raised(app.run, pay, "t"), NeedsHuman)
    assert only_case(app).kind == "doubt" and app.show("t").status == "needs_human"
    settle(app, Happened({"id": 1}))
    assert app.resume("t") == "done"
    assert app.inbox().cases == [] and world.n() == 1


# ---------------------------------------------------------------- asyncio.TaskGroup


def grouped(app: Doubtless, world: World) -> tuple[Any, Any]:
    @app.step(effect="non_idem_write")
    async def send(n: int, lose: bool = False) -> dict[str, int]:
        world.do("send", n)
        if lose:
            raise TimeoutError
        await asyncio.sleep(60)
        return {"n": n}

    @app.step(effect="non_idem_write")
    async def refuse(n: int) -> dict[str, int]:
        await asyncio.sleep(0.02 / n)
        raise Rejected(f"refused_{n}")

    return send, refuse


@pytest.mark.parametrize("how", ["run", "arun"])
def test_a_doubt_in_a_task_group_is_said_as_any_other(deploy: Deploys, world: World, how: str) -> None:
    app = deploy()
    send, _ = grouped(app, world)

    @app.task
    async def both() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(send(n=1))
            group.create_task(send(n=2, lose=True))
        return 1

    error = raised(app.run, both, "t") if how == "run" else raised(asyncio.run, app.arun(both, "t"))
    assert isinstance(error, NeedsHuman)
    assert {(case.kind, case.path) for case in app.inbox().cases} == {("doubt", "1"), ("doubt", "2")}


def test_a_refusal_in_a_task_group_asks_about_the_sibling_that_it_cancelled_and_then_fails_the_task(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    send, refuse = grouped(app, world)

    @app.task
    async def both() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(send(n=1))
            group.create_task(refuse(n=1))
        return 1

    error = raised(app.run, both, "t")
    assert isinstance(error, NeedsHuman), error
    assert (only_case(app).kind, only_case(app).path) == ("doubt", "1")
    settle(app, Happened({"n": 1}))
    failed = raised(app.resume, "t")
    assert isinstance(failed, TaskFailed)
    assert (failed.context["failure"]["kind"], failed.context["failure"]["code"]) == ("rejected", "refused_1")


def test_a_sibling_that_a_refusal_cancelled_and_its_query_settles_does_not_hold_up_the_failure(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    _, refuse = grouped(app, world)

    def query(n: int) -> Any:
        return {"n": n}

    @app.step(effect="non_idem_write", query=query)
    async def found(n: int) -> dict[str, int]:
        await asyncio.sleep(60)
        return {"n": n}

    @app.task
    async def both() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(found(n=1))
            group.create_task(refuse(n=1))
        return 1

    failed = raised(app.run, both, "t")
    assert isinstance(failed, TaskFailed) and failed.context["failure"]["code"] == "refused_1"
    assert statuses(app, "t") == {"1": "done", "2": "not_applied"}


def test_of_two_refusals_in_a_task_group_the_first_in_branch_order_fails_the_task(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    async def refuse(n: int) -> dict[str, int]:
        raise Rejected(f"refused_{n}")

    @app.task
    async def both() -> int:
        errors: list[Exception] = []
        for branch in [refuse(n=1), refuse(n=2)][::-1]:
            try:
                await branch
            except StepFailed as error:
                errors.append(error)
        raise ExceptionGroup("refused", errors)  # as a task group does, in the order of their ends

    failed = raised(app.run, both, "t")
    assert isinstance(failed, TaskFailed) and failed.context["failure"]["code"] == "refused_1"


def test_a_task_group_with_an_exception_of_the_code_stays_a_case_of_code_error(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    async def broken() -> None:
        async def branch() -> None:
            raise KeyError("x")

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())

    assert isinstance(raised(app.run, broken, "t"), NeedsHuman)
    assert only_case(app).kind == "code_error" and only_case(app).evidence["error"] == "ExceptionGroup"


# ---------------------------------------------------------------- called and not awaited


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("how", ["forgotten", "left to a task"])
def test_a_step_that_is_called_and_never_awaited_is_a_case_and_not_a_done_task(deploy: Deploys, world: World, how: str) -> None:
    for awaits in (False, True):
        app = deploy()

        @app.step(effect="non_idem_write")
        async def pay(n: int) -> dict[str, Any]:
            return world.do("pay", n)

        @app.task
        async def settles() -> str:
            called = pay(n=2)
            if awaits:  # noqa: B023
                await called
            elif how == "left to a task":
                asyncio.ensure_future(called)  # noqa: RUF006
            return "paid"

        if not awaits:
            assert isinstance(raised(app.run, settles, "t"), NeedsHuman)
            case = only_case(app)
            assert case.kind == "code_error"
            assert case.why == "step pay at place 1 was called but not awaited; nothing was sent"
            assert isinstance(raised(app.resume, "t"), NeedsHuman)
            assert only_case(app).id == case.id and world.n() == 0
        else:
            assert app.resume("t") == "paid" and world.n() == 1
            assert app.inbox().cases == []


# ---------------------------------------------------------------- an output that does not fit any more


@dataclass
class Old:
    id: str


@dataclass
class New:
    id: str
    new: int


def release(deploy: Deploys, world: World, kind: Any, *, fails: bool = False) -> tuple[Doubtless, Any]:
    app = deploy()

    def create() -> Any:
        world.do("create")
        return Old("1")

    create.__annotations__["return"] = kind
    step = app.step(effect="non_idem_write")(create)

    @app.task
    def t() -> str:
        made = step()
        if fails:
            raise ValueError("first release")
        return f"{type(made).__name__} {made.id}"

    return app, t


def after_a_change(deploy: Deploys, world: World) -> Doubtless:
    """A step whose output was logged as `Old`, in a release that says `New`: parked with one output case."""
    first, t = release(deploy, world, Old, fails=True)
    assert isinstance(raised(first.run, t, "t"), NeedsHuman)
    app, _ = release(deploy, world, New)
    for _ in range(2):  # the second resume keeps the case of the first
        assert isinstance(raised(app.resume, "t"), NeedsHuman)
    cases = [case for case in app.inbox().cases if case.kind == "output"]
    assert len(cases) == 1 and cases[0].path == "1" and cases[0].step == "create"
    assert kinds(app, "t", "1").count(Kind.CASE_OPENED) == 1
    return app


def test_a_logged_output_that_does_not_fit_the_new_annotation_is_asked_of_a_person(deploy: Deploys, world: World) -> None:
    app = after_a_change(deploy, world)
    assert "AnswerRefused" in type(raised(settle, app, Answer({"id": "1"}), kind="output")).__name__
    settle(app, Answer({"id": "7", "new": 2}), kind="output")
    assert app.resume("t") == "New 7"
    assert world.n() == 1 and app.inbox().cases == []


def test_a_logged_output_that_does_not_fit_can_be_denied(deploy: Deploys, world: World) -> None:
    app = after_a_change(deploy, world)
    settle(app, Deny(), kind="output")
    failed = raised(app.resume, "t")
    assert isinstance(failed, TaskFailed) and failed.context["failure"]["kind"] == "abandoned"


def test_an_annotation_that_fits_again_closes_the_case_of_the_output(deploy: Deploys, world: World) -> None:
    after_a_change(deploy, world)
    app, _ = release(deploy, world, Old)
    assert app.resume("t") == "Old 1"
    assert world.n() == 1 and app.inbox().cases == []


def test_an_answer_that_a_later_annotation_does_not_take_is_asked_again(deploy: Deploys, world: World) -> None:
    app = after_a_change(deploy, world)
    settle(app, Answer({"id": "7", "new": 2}), kind="output")
    later, _ = release(deploy, world, int)
    assert isinstance(raised(later.resume, "t"), NeedsHuman)
    assert [case.kind for case in later.inbox().cases] == ["output"]
