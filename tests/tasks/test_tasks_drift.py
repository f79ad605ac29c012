"""Drift is refused: code that asks for something else than the log holds stops, and says where it differs (rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tasks_ground import Deploys, World, intents, kinds, only_case, outcomes, rows, settle, statuses

from doubtless import (
    Diverged,
    Doubtless,
    Fail,
    Happened,
    InputDiffers,
    NeedsHuman,
    NotSent,
    Retry,
    StepFailed,
    TaskFailed,
    UsageError,
    injected,
)
from doubtless.events import Kind

Body = Callable[[Any, Any], Any]


@pytest.fixture
def release(deploy: Deploys, world: World) -> Callable[..., tuple[Doubtless, Any]]:
    """A release of a program with two writes, `pay` and `tell`, and a task whose code is `body(pay, tell)`."""

    def make(body: Body, *, pay_raises: type[BaseException] | None = None, **options: Any) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(**{"effect": "non_idem_write", **options})
        def pay(order: dict[str, Any], at: str = "") -> dict[str, Any]:
            receipt = world.do("pay", order)
            if pay_raises is not None:
                raise pay_raises
            return receipt

        @app.step(effect="non_idem_write")
        def tell(text: str) -> None:
            world.do("tell", text)

        @app.task
        def task() -> Any:
            return body(pay, tell)

        return app, task

    return make


def stop() -> None:
    raise KeyError("this release ends here")


def pays_then_stops(pay: Any, tell: Any) -> None:
    pay({"id": "o1", "lines": [{"sku": "a", "amount": 1}, {"sku": "b", "amount": 2}]})
    stop()


OTHER_CODE: dict[str, tuple[Body, str, Any, Any]] = {
    "another step": (lambda pay, tell: tell("hello"), "step", "pay", "tell"),
    "another param, deep inside": (
        lambda pay, tell: pay({"id": "o1", "lines": [{"sku": "a", "amount": 1}, {"sku": "b", "amount": 3}]}),
        "params.order.lines[1].amount",
        2,
        3,
    ),
    "the first of two in the order of names": (
        lambda pay, tell: pay({"id": "o2", "lines": []}),
        "params.order.id",
        "o1",
        "o2",
    ),
    "a param that is missing": (
        lambda pay, tell: pay({"lines": [{"sku": "a", "amount": 1}, {"sku": "b", "amount": 2}]}),
        "params.order.id",
        "o1",
        "(missing)",
    ),
    "another type of the same look": (
        lambda pay, tell: pay({"id": "o1", "lines": [{"sku": "a", "amount": True}, {"sku": "b", "amount": 2}]}),
        "params.order.lines[0].amount",
        1,
        True,
    ),
    "fewer steps": (lambda pay, tell: "nothing to do", "step", "pay", None),
}


@pytest.mark.parametrize("other", OTHER_CODE)
def test_other_code_is_refused_with_the_first_field_that_differs(release: Any, world: World, other: str) -> None:
    body, field, logged, asked = OTHER_CODE[other]
    app, task = release(pays_then_stops)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")

    app, task = release(body)
    before = world.n()
    with pytest.raises(NeedsHuman) as caught:
        app.run(task, "t")
    case = only_case(app)
    assert (case.kind, case.evidence["path"]) == ("diverged", "1")
    assert (case.evidence["field"], case.evidence["logged"], case.evidence["asked"]) == (field, logged, asked)
    assert caught.value.cases == (case.id,)
    assert app.show("t").status == "needs_human"
    assert world.n() == before
    assert intents(app, "t") == {"1": 1}


def test_the_old_code_deployed_again_goes_on_and_closes_the_case(release: Any, world: World) -> None:
    def more(pay: Any, tell: Any) -> str:
        pay({"id": "o1"})
        tell("first")
        return "done"

    def once_more_in_front(pay: Any, tell: Any) -> str:
        tell("surprise")
        return more(pay, tell)

    app, task = release(lambda pay, tell: (pay({"id": "o1"}), stop()))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(once_more_in_front)
    for _ in range(2):  # it stays one case
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    case = only_case(app)
    assert case.kind == "diverged"

    app, task = release(more)
    assert app.run(task, "t") == "done"
    assert app.inbox().cases == []
    assert [what for name, what, _ in world.done if name == "tell"] == ["first"]
    closed = next(row for row in rows(app, "t") if row.kind == Kind.CASE_SETTLED and row.details["case_id"] == case.id)
    assert closed.details["by"] == "doubtless"


def test_more_steps_than_logged_are_what_comes_next(release: Any, world: World) -> None:
    app, task = release(pays_then_stops)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")

    def goes_on(pay: Any, tell: Any) -> str:
        with pytest.raises(KeyError):
            pays_then_stops(pay, tell)
        tell("more")
        return "done"

    app, task = release(goes_on)
    assert app.run(task, "t") == "done"
    assert statuses(app, "t") == {"1": "done", "2": "done"}
    assert world.n("pay") == 1


def test_code_that_fails_before_it_has_called_every_logged_step_has_diverged_too(release: Any, world: World) -> None:
    app, task = release(lambda pay, tell: (pay({"id": "o1"}), tell("a"), stop()))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")

    def fails_early(pay: Any, tell: Any) -> None:
        pay({"id": "o1"})
        raise StepFailed("rejected", "forged")

    app, task = release(fails_early)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    case = only_case(app)
    assert (case.kind, case.evidence["path"], case.evidence["logged"]) == ("diverged", "2", "tell")
    assert app.show("t").status == "needs_human"


def test_a_doubt_is_settled_with_its_own_params_before_the_drift_is_refused(release: Any, world: World) -> None:
    asked: list[Any] = []

    def find(order: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(order)
        return {"found": order["id"]}

    app, task = release(lambda pay, tell: pay({"id": "old", "n": 1}), pay_raises=KeyboardInterrupt, query=find)
    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    app, task = release(lambda pay, tell: pay({"id": "new", "n": 1}), query=find)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert asked == [{"id": "old", "n": 1}]
    assert statuses(app, "t") == {"1": "done"}
    case = only_case(app)
    assert (case.kind, case.evidence["field"], case.evidence["asked"]) == ("diverged", "params.order.id", "new")
    assert [what for _, what, _ in world.done] == [{"id": "old", "n": 1}]
    order = kinds(app, "t")
    assert order.index(Kind.STEP_SETTLED) < order.index(Kind.CASE_OPENED)


def test_a_doubt_that_only_a_person_can_settle_comes_before_the_drift(release: Any, world: World) -> None:
    """C36: never both silently."""
    app, task = release(lambda pay, tell: pay({"id": "o1", "amount": 100}), pay_raises=TimeoutError)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(lambda pay, tell: pay({"id": "o1", "amount": 120}))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).kind == "doubt"
    settle(app, Happened({"id": 1}))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    case = only_case(app)
    assert (case.kind, case.evidence["field"]) == ("diverged", "params.order.amount")
    assert world.n() == 1


def test_a_write_that_was_surely_not_sent_is_still_refused_with_other_params(release: Any, world: World) -> None:
    app, task = release(lambda pay, tell: pay({"id": "o1"}), pay_raises=NotSent, backoff="PT1H")
    with pytest.raises(Exception, match="backoff"):
        app.run(task, "t", wait=False)
    app, task = release(lambda pay, tell: pay({"id": "o2"}))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert only_case(app).evidence["field"] == "params.order.id"
    assert outcomes(app, "t", "1") == [("not_sent", "NotSent")]


def test_volatile_params_do_not_matter_for_drift(release: Any, world: World) -> None:
    times = iter("12")
    body: Body = lambda pay, tell: (pay({"id": "o1"}, at=next(times)), next(times))[0]  # noqa: E731
    app, task = release(lambda pay, tell: (body(pay, tell), stop()), volatile="at")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(lambda pay, tell: pay({"id": "o1"}, at="later"), volatile="at")
    assert app.run(task, "t")["id"] == 1
    assert world.n() == 1


def test_drift_cannot_be_swallowed_by_task_code(release: Any, world: World) -> None:
    app, task = release(pays_then_stops)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")

    def swallows_exceptions(pay: Any, tell: Any) -> str:
        try:
            tell("hello")
        except Exception:
            return "swallowed"
        return "done"

    def swallows_everything(pay: Any, tell: Any) -> str:
        try:
            tell("hello")
        except BaseException as error:
            assert isinstance(error, Diverged)
        with pytest.raises(BaseException, match="tell"):
            tell("again")  # refused: this run is parking
        return "swallowed"

    for body in (swallows_exceptions, swallows_everything):
        app, task = release(body)
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
        assert app.show("t").status == "needs_human"
        assert only_case(app).kind == "diverged"
    assert world.n("tell") == 0


def test_a_diverged_task_can_be_failed_by_a_person(release: Any) -> None:
    app, task = release(pays_then_stops)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(lambda pay, tell: tell("hello"))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Fail())
    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "failed"


def test_retry_of_a_diverged_case_is_the_same_as_resume(release: Any) -> None:
    app, task = release(pays_then_stops)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app, task = release(lambda pay, tell: tell("hello"))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Retry())
    app, task = release(
        lambda pay, tell: pay({"id": "o1", "lines": [{"sku": "a", "amount": 1}, {"sku": "b", "amount": 2}]})["id"]
    )
    assert app.resume("t") == 1


def test_gathered_steps_in_another_order_have_diverged(deploy: Deploys, world: World) -> None:
    order = ["a", "b"]

    def release() -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect="non_idem_write")
        async def pay(name: str) -> str:
            world.do("pay", name)
            return name

        @app.task
        async def task() -> None:
            await asyncio.gather(*(pay(name) for name in order))
            raise KeyError

        return app, task

    app, task = release()
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    order.reverse()
    app, task = release()
    with pytest.raises(NeedsHuman):
        asyncio.run(app.arun(task, "t"))
    assert {case.kind for case in app.inbox().cases} == {"diverged"}
    assert world.n() == 2


@pytest.mark.parametrize("change", ["another input", "another task"])
def test_an_id_used_again_for_something_else_is_refused_with_the_difference(deploy: Deploys, change: str) -> None:
    app = deploy()

    @app.task
    def task(order: dict[str, Any]) -> int:
        return 1

    @app.task
    def other(order: dict[str, Any]) -> int:
        return 2

    app.start(task, "t", order={"lines": [1, 2]})
    before = len(rows(app, "t"))
    for call in (app.run, app.start):
        with pytest.raises(InputDiffers) as caught:
            call(other if change == "another task" else task, "t", order={"lines": [1, 3]})
        assert caught.value.context["field"] == ("task" if change == "another task" else "params.order.lines[1]")
    assert len(rows(app, "t")) == before
    assert app.run(task, "t", order={"lines": [1, 2]}) == 1


@pytest.mark.parametrize("task_id", ["x" * 201, "a\nb", "", "a/b", "$store", 7], ids=repr)
def test_what_is_no_task_id_is_refused_before_anything_is_written(deploy: Deploys, task_id: Any) -> None:
    app = deploy()

    @app.task
    def task() -> int:
        return 1

    with pytest.raises(UsageError):
        app.run(task, task_id)
    assert app.tasks() == []


def test_the_class_of_an_open_intent_may_only_be_tightened_by_a_deploy(deploy: Deploys, world: World) -> None:
    """C100, rule 10: an open non_idem_write stays one, whatever the new code says; its key protects nobody."""

    def release(effect: Any) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect=effect)
        def pay(idempotency_key: str = injected()) -> int:
            world.do("pay")
            raise TimeoutError

        @app.task
        def task() -> int:
            return pay()

        return app, task

    app, task = release("non_idem_write")
    with pytest.raises(NeedsHuman):
        app.run(task, "loosened")
    app, task = release("idem_write")
    with pytest.raises(NeedsHuman):
        app.run(task, "loosened")
    assert world.n() == 1
    assert only_case(app).kind == "doubt"


def test_an_open_idem_write_that_became_a_non_idem_write_is_not_sent_again(deploy: Deploys, world: World) -> None:
    """C100."""

    def release(effect: Any) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect=effect)
        def pay(idempotency_key: str = injected()) -> int:
            world.do("pay")
            raise KeyboardInterrupt

        @app.task
        def task() -> int:
            return pay()

        return app, task

    app, task = release("idem_write")
    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    app, task = release("non_idem_write")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert world.n() == 1


@pytest.mark.parametrize("gone", ["step", "query"])
def test_a_step_or_query_that_is_gone_while_in_doubt_is_a_case_and_no_crash(deploy: Deploys, world: World, gone: str) -> None:
    """C100."""

    def release(old: bool) -> tuple[Doubtless, Any]:
        app = deploy()

        def pay() -> int:
            world.do("pay")
            raise KeyboardInterrupt

        if old or gone == "query":
            app.step(effect="non_idem_write", query=(lambda: None) if old else None)(pay)

        @app.task
        def task() -> int:
            step = app.steps.get("pay")
            return 0 if step is None else step()

        return app, task

    app, task = release(old=True)
    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    app, task = release(old=False)
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    case = only_case(app)
    assert case.kind == "doubt"
    assert gone in case.why
    settle(app, Happened(5))
    if gone == "query":
        assert app.run(task, "t") == 5
    else:
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
        assert only_case(app).kind == "diverged"
    assert world.n() == 1


@pytest.mark.parametrize("gone", ["classify", "compensate"])
def test_what_an_intent_relied_on_and_is_gone_is_a_case_before_anybody_else_is_asked(
    deploy: Deploys, world: World, gone: str
) -> None:
    """C100: the other side could say that it happened, and then nothing could judge or undo it."""

    def release(old: bool) -> tuple[Doubtless, Any]:
        app = deploy()

        def undo() -> int:
            return 1

        def look() -> int:
            world.do("look")
            return 5

        options: dict[str, Any] = {} if not old else {"classify": lambda reply: None} if gone == "classify" else {"compensate": undo}

        @app.step(effect="non_idem_write", query=look, **options)
        def pay() -> int:
            world.do("pay")
            raise KeyboardInterrupt

        @app.task
        def task() -> int:
            return pay()

        return app, task

    app, task = release(old=True)
    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    app, task = release(old=False)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert f"gone from the table since the intent: {gone}" in only_case(app).why
    assert world.n("look") == 0
    settle(app, Happened(5))
    assert app.run(task, "t") == 5
    assert world.n("pay") == 1


def test_a_renamed_step_has_diverged(deploy: Deploys, world: World) -> None:
    """C100, C06: the log is untouched by code that no longer fits it."""

    def release(name: str) -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect="non_idem_write", name=name)
        def pay() -> int:
            world.do("pay")
            return 1

        @app.task
        def task() -> int:
            pay()
            raise KeyError

        return app, task

    app, task = release("pay")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    logged = rows(app, "t")
    app, task = release("pay_order")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert rows(app, "t")[: len(logged)] == logged
    newest = [case for case in app.inbox().cases if case.kind == "diverged"]
    assert [(c.evidence["logged"], c.evidence["asked"]) for c in newest] == [("pay", "pay_order")]
    assert world.n() == 1
