"""`on_case` is told of every case at least once, after its commit, and can break nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Child, Desk, MakeApp, contradict, land_and_lose_the_reply, vanish

from doubtless import Doubtless, NeedsHuman, TaskFailed
from doubtless.answers import DidNotHappen
from doubtless.inbox import Case

MakeDesk = Callable[..., Desk]


def test_the_hook_is_called_once_with_the_case_as_a_person_sees_it(make_desk: MakeDesk) -> None:
    desk = make_desk()
    told: list[Case] = []
    desk.app.on_case(told.append)
    desk.goes = [vanish]
    case = desk.doubt()
    assert told == [case]
    desk.needs_human()
    desk.app.resume_all()
    desk.app.notify()
    assert told == [case]


def test_when_the_hook_is_called_the_case_is_committed(make_desk: MakeDesk, make_app: MakeApp) -> None:
    desk, other = make_desk(), make_app()
    seen: list[bool] = []
    desk.app.on_case(lambda case: seen.append(case.id in [one.id for one in other.inbox().cases]))
    desk.goes = [vanish]
    desk.doubt()
    assert seen == [True]


def test_a_hook_may_answer_the_case_itself(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.app.on_case(
        lambda case: desk.app.settle(
            case.id, DidNotHappen("retry", even_now=True), by="robot", why="a rule of the house", shown=case.hash
        )
    )
    desk.goes = [vanish]
    assert desk.run() == "payment-1"
    assert desk.payments == 1


def test_an_error_of_a_hook_changes_nothing_and_the_case_is_told_again(
    make_desk: MakeDesk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = make_desk()
    told: list[str] = []
    works = [False]

    def hook(case: Case) -> None:
        told.append(case.id)
        if not works[0]:
            raise ConnectionError("the chat is down")

    desk.app.on_case(hook)
    desk.goes = [vanish]
    case = desk.doubt()
    assert told == [case.id]
    assert f"on_case hook failed for {case.id}" in capsys.readouterr().err
    desk.app.resume_all()
    assert told == [case.id] * 2
    works[0] = True
    desk.app.notify()
    desk.app.notify()
    assert told == [case.id] * 3
    assert desk.app.verify() == []


def test_one_hook_that_fails_does_not_keep_the_others_from_hearing_of_it(make_desk: MakeDesk) -> None:
    desk = make_desk()
    told: list[str] = []

    def broken(case: Case) -> None:
        raise ConnectionError("the chat is down")

    desk.app.on_case(broken)
    desk.app.on_case(lambda case: told.append(case.id))
    desk.goes = [vanish]
    case = desk.doubt()
    assert told == [case.id]


@pytest.mark.parametrize("by", ["resume_all", "worker", "notify"])
def test_a_crash_between_the_commit_and_the_hook_leaves_the_case_to_be_told(
    make_desk: MakeDesk, child: Callable[..., Child], by: str
) -> None:
    assert child("die_in_the_hook", "order-1").killed()
    desk = make_desk()
    told: list[str] = []
    desk.app.on_case(lambda case: told.append(case.id))
    (case,) = desk.app.inbox().cases
    if by == "worker":
        with desk.app.worker():
            pass
    else:
        getattr(desk.app, by)()
    assert told == [case.id]
    desk.app.notify()
    assert told == [case.id]


def test_cases_of_every_kind_are_told(app: Doubtless) -> None:
    told: list[str] = []
    app.on_case(lambda case: told.append(case.kind))

    def undo(result: dict[str, Any]) -> dict[str, Any]:
        return {}

    @app.step(effect="non_idem_write")
    def unusable() -> int:
        return object()  # type: ignore[return-value]

    @app.step(effect="non_idem_write", query=lambda: {"id": "no number"})
    def found_unusable() -> int:
        raise ConnectionResetError("lost")

    @app.step(effect="non_idem_write", compensate=undo)
    def book() -> dict[str, Any]:
        return {"id": 1}

    from doubtless import Abort

    @app.task
    def one() -> None:
        unusable()

    @app.task
    def two() -> None:
        found_unusable()

    @app.task
    def three() -> None:
        raise KeyError("rate")

    @app.task(on_failure="hold")
    def four() -> None:
        book()
        raise Abort("the business says no")

    for task in (one, two, three, four):
        with pytest.raises(NeedsHuman):
            app.run(task, f"t-{task.name}")
    assert told == ["output", "output", "code_error", "hold"]
    assert len(app.inbox().cases) == 4


def test_a_contradiction_is_told(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    desk.app.settle(case.id, DidNotHappen("fail", even_now=True), by="ann", why="", shown=case.hash)
    with pytest.raises(TaskFailed):
        desk.run()
    told: list[str] = []
    desk.app.on_case(lambda case: told.append(case.kind))
    contradict(desk, {"id": "payment-1"})
    assert told == ["contradiction"]
