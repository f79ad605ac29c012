"""What undoing meets in the world: replies that are none, deploys in the middle, orders that come twice, secrets of tasks."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from undo_ground import Deploys, Office, World, only_case, settle, statuses

from doubtless import (
    Abandon,
    Abort,
    Answer,
    Doubtless,
    Happened,
    NeedsHuman,
    NotSent,
    Secret,
    TaskFailed,
    TaskWaiting,
    injected,
)


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


# ---------------------------------------------------------------- what is no reply


def a_generator(do: Any) -> Any:
    """A function with a `yield` in it: called, it has done nothing yet."""
    yield do()


class Refusal:
    """A reply of a client that nobody knows, which says no by itself."""

    def __bool__(self) -> bool:
        return False


NO_REPLIES = {
    "generator": a_generator,
    "iterator": lambda do: iter([do]),
    "future": lambda do: Future(),
    "thread": lambda do: threading.Thread(target=do),
    "function": lambda do: do,
    "exception class": lambda do: ConnectionError,
    "NotImplemented": lambda do: NotImplemented,
    "falsy object": lambda do: Refusal(),
}


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_what_has_yet_to_run_or_says_no_is_no_evidence_that_something_was_undone(app: Doubtless, world: World, reply: str) -> None:
    office = Office(app, world)
    world.goes = [NO_REPLIES[reply]]
    with pytest.raises(NeedsHuman):
        office.run()
    assert statuses(app)["1"] == "done"
    settle(app, Happened({"by": "hand"}))
    assert office.failed().status == "compensated"
    assert world.calls == ["s1"]


class Receipt:
    """A reply of a client that nobody knows, without a stored form."""


def test_a_reply_without_a_stored_form_is_kept_as_its_type(app: Doubtless, world: World) -> None:
    office = Office(app, world)
    world.goes = [lambda do: do() and Receipt()]
    assert office.failed().status == "compensated"


# ---------------------------------------------------------------- deploys in the middle


def paying(app: Doubtless, world: World) -> Any:
    @app.step(effect="non_idem_write", compensate="undo_pay")
    def pay(order: str) -> dict[str, Any]:
        return world.make(order)

    @app.task
    def task() -> None:
        pay(order="o1")
        raise Abort("no stock")

    return task


def undone_by_step(app: Doubtless, world: World, error: BaseException | None = None, *, key: bool = False) -> Any:
    def undo(result: dict[str, Any]) -> Any:
        done = world.withdraw(result["sheet"])
        if error is not None:
            raise error
        return done

    if key:

        @app.step(effect="idem_write", name="undo_pay")
        def undo_by_key(result: dict[str, Any], idempotency_key: str = injected()) -> Any:
            return undo(result)

    else:
        app.step(effect="non_idem_write", name="undo_pay")(undo)
    return paying(app, world)


def undone_by_task(app: Doubtless, world: World, error: BaseException | None = None, **policy: Any) -> Any:
    @app.step(**{"effect": "non_idem_write", **policy})
    def void(payment: str) -> Any:
        if isinstance(error, NotSent):
            raise error
        done = world.withdraw(payment)
        if error is not None:
            raise error
        return done

    @app.task
    def undo_pay(result: dict[str, Any]) -> Any:
        return void(payment=result["sheet"])

    return paying(app, world)


def test_a_step_in_doubt_that_a_deploy_has_made_a_task_is_not_undone_a_second_time(deploy: Deploys, world: World) -> None:
    app = deploy()
    with pytest.raises(KeyboardInterrupt):
        app.run(undone_by_step(app, world, KeyboardInterrupt()), "t")
    app.close()
    after = deploy()
    task = undone_by_task(after, world)
    with pytest.raises(NeedsHuman):
        after.run(task, "t")
    assert world.undone == ["o1"]
    settle(after, Happened({"seen": "o1"}))
    with pytest.raises(TaskFailed) as caught:
        after.run(task, "t")
    assert (caught.value.status, world.undone) == ("compensated", ["o1"])


@pytest.mark.parametrize("key", [False, True])
def test_a_task_in_doubt_that_a_deploy_has_made_a_step_is_not_undone_a_second_time(
    deploy: Deploys, world: World, key: bool
) -> None:
    app = deploy()
    with pytest.raises(NeedsHuman):
        app.run(undone_by_task(app, world, ConnectionResetError()), "t")
    app.close()
    after = deploy()
    with pytest.raises(NeedsHuman):
        after.run(undone_by_step(after, world, key=key), "t")
    assert world.undone == ["o1"]


def test_a_compensation_that_a_deploy_has_made_a_read_undoes_nothing(deploy: Deploys, world: World) -> None:
    app = deploy()
    with pytest.raises(TaskWaiting):
        app.run(undone_by_step(app, world, NotSent()), "t", wait=False)
    app.close()
    after = deploy()

    @after.step(effect="read")
    def undo_pay(result: dict[str, Any]) -> Any:
        raise AssertionError("a read undoes nothing")

    @after.task
    def task() -> None: ...

    with pytest.raises(NeedsHuman):
        after.run(task, "t")
    assert only_case(after).path == "~1"


def made_with_a_child(app: Doubtless, world: World, *, child: bool = True) -> Any:
    @app.step(effect="non_idem_write")
    def withdraw(name: str) -> Any:
        return world.withdraw(name)

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> dict[str, Any]:
        return world.make(name)

    @app.task(name="below" if child else "other")
    def below() -> Any:
        return make(name="c")

    @app.task
    def above() -> None:
        make(name="a")
        below()
        make(name="b")

    return above


def test_a_child_whose_code_is_gone_is_a_case_at_its_place_and_the_machine_goes_on_when_it_is_back(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    app.run(made_with_a_child(app, world), "t")
    app.close()
    without = deploy()
    above = made_with_a_child(without, world, child=False)
    with pytest.raises(NeedsHuman):
        without.compensate("t", by="anna", why="wrong month")
    assert world.undone == ["b"]
    case = only_case(without)
    assert (case.kind, case.path) == ("compensation", "~2")
    assert set(case.answers) == {"happened", "did_not_happen", "abandon"}
    with pytest.raises(NeedsHuman):
        without.run(above, "t")
    without.close()
    back = deploy()
    with pytest.raises(TaskFailed) as caught:
        back.run(made_with_a_child(back, world), "t")
    assert caught.value.status == "compensated"
    assert world.undone == ["b", "c", "a"]
    assert back.inbox().cases == []


# ---------------------------------------------------------------- orders, and what is said


def test_a_second_cancel_does_not_stop_the_task_that_undoes(app: Doubtless, world: World) -> None:
    task = undone_by_task(app, world, NotSent(), backoff="PT1M", attempts=100)
    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    with pytest.raises(TaskWaiting):
        app.cancel("t", by="anna", why="stop", wait=False)
    assert [row.kind for row in app.store.rows("t/~1") if row.kind == "CancelRequested"] == []


def test_a_case_about_a_compensating_task_says_each_time_why_it_is_open(app: Doubtless, world: World) -> None:
    @app.task
    def undo_pay(result: dict[str, Any]) -> Any:
        return None

    task = paying(app, world)
    said = []
    for _ in range(2):
        with pytest.raises(NeedsHuman) as caught:
            app.run(task, "t")
        said.append(str(caught.value))
    assert "returned nothing that shows what it undid" in said[1]
    assert "compensate_deadline" not in said[1]


def test_a_compensating_task_gets_the_secrets_of_the_original_and_hands_them_to_its_steps(
    app: Doubtless, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAY_KEY", "sk-of-this-test-only")
    seen: list[Any] = []

    @app.step(effect="non_idem_write", secret=("token",))
    def void(payment: str, token: str) -> Any:
        seen.append(token)
        return {**world.undo(payment), "echo": token}

    @app.task
    def undo_pay(result: dict[str, Any], token: str) -> Any:
        seen.append(token)
        return void(payment=result["sheet"], token=token)

    @app.step(effect="non_idem_write", compensate=undo_pay, secret=("token",))
    def pay(order: str, token: str) -> dict[str, Any]:
        return {**world.make(order), "echo": token}

    @app.task
    def task() -> None:
        pay(order="o1", token=Secret("env:PAY_KEY"))  # type: ignore[arg-type]
        raise Abort("no stock")

    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert caught.value.status == "compensated"
    assert (world.undone, seen) == (["o1"], [Secret("env:PAY_KEY"), "sk-of-this-test-only"])
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sk-of-this-test-only" not in file.read_bytes()


# ---------------------------------------------------------------- questions that are over, outputs that nobody knows


def opaque(app: Doubtless, world: World) -> Any:
    """A step whose output has no stored form, and a compensation that asks for it."""

    @app.step(effect="non_idem_write")
    def withdraw(result: Any) -> Any:
        return world.withdraw(result["sheet"])

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> Any:
        world.make(name)
        return Receipt()

    @app.task
    def task() -> None:
        make(name="s1")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    return task


def test_a_compensation_that_asks_for_an_output_that_nobody_knows_is_not_called_without_it(app: Doubtless, world: World) -> None:
    task = opaque(app, world)
    with pytest.raises(NeedsHuman, match="the output of make at 1 is not known"):
        app.cancel("t", by="anna", why="wrong month")
    assert world.calls == []
    (output,) = (case for case in app.inbox().cases if case.kind == "output")
    app.settle(output.id, Answer({"sheet": "s1"}), by="anna", why="looked", shown=output.hash)
    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert (caught.value.status, world.undone) == ("compensated", ["s1"])
    assert app.inbox().cases == []


def test_a_task_that_has_ended_asks_for_no_output_any_more(app: Doubtless, world: World) -> None:
    task = opaque(app, world)
    with pytest.raises(NeedsHuman):
        app.cancel("t", by="anna", why="wrong month")
    (case,) = (case for case in app.inbox().cases if case.kind == "compensation")
    app.settle(case.id, Happened({"by": "hand"}), by="anna", why="looked", shown=case.hash)
    with pytest.raises(TaskFailed):
        app.run(task, "t")
    assert app.inbox().cases == []


def test_a_question_is_over_when_its_task_is_undone_and_the_error_names_the_case_that_is_left(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(result: Any) -> Any:
        return world.withdraw(result["sheet"])

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> Any:
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1")
        app.wait_for("approval")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    world.goes = [lambda do: None]
    with pytest.raises(NeedsHuman) as caught:
        app.cancel("t", by="anna", why="wrong month")
    case = only_case(app)
    assert case.kind == "compensation"
    assert caught.value.hint == f"doubtless inbox {case.id}"


def test_a_task_with_a_write_that_was_abandoned_is_not_called_compensated(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    def withdraw(result: Any) -> Any:
        return world.withdraw(result["sheet"])

    @app.step(effect="non_idem_write", compensate=withdraw)
    def make(name: str) -> Any:
        if name == "s2":
            raise ConnectionResetError("the reply was lost")
        return world.make(name)

    @app.task
    def task() -> None:
        make(name="s1")
        make(name="s2")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Abandon())
    with pytest.raises(TaskFailed) as caught:
        app.run(task, "t")
    assert world.undone == ["s1"]
    assert caught.value.status == "failed"
    assert caught.value.context["stands"] == [{"path": "2", "step": "make", "compensate": None, "may": True}]
