"""`app.now()`, `app.uuid()`, `app.random()`: recorded, so that a task has no reason to drift."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from waiting_ground import Deploys, kinds, raised

from doubtless import Doubtless, OutsideTask, StepTableError
from doubtless.events import Kind
from doubtless.recorded import call_own, own_step
from doubtless.testing import FakeClock, harness


def taking(app: Doubtless, seen: list[Any], *, asynchronous: bool) -> Any:
    """A task that asks for all three and fails after them as often as `seen` is short."""

    def ask() -> list[Any]:
        seen.append((app.now(), app.uuid(), app.random()))
        if len(seen) == 1:
            raise KeyError("not yet")
        return list(seen[-1])

    if asynchronous:

        @app.task(name="task")
        async def atask() -> list[Any]:
            return ask()

        return atask

    @app.task(name="task")
    def task() -> list[Any]:
        return ask()

    return task


@pytest.mark.parametrize("asynchronous", [False, True])
def test_time_ids_and_random_numbers_are_the_same_on_each_replay(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    seen: list[Any] = []
    app = deploy()
    raised(app.run, taking(app, seen, asynchronous=asynchronous), "t")
    clock.advance("P1D")
    later = deploy()
    assert later.run(taking(later, seen, asynchronous=asynchronous), "t") == list(seen[0])
    assert seen[0] == seen[1]
    time, made, drawn = seen[0]
    assert (type(time), type(made), type(drawn)) == (datetime, UUID, float)
    assert made.version == 4
    assert 0 <= drawn < 1


def test_the_time_is_the_stores_clock_in_utc_to_the_microsecond(deploy: Deploys, clock: FakeClock) -> None:
    clock.advance(timedelta(microseconds=1234567))
    app = deploy()

    @app.task
    def task() -> datetime:
        return app.now()

    assert app.run(task, "t") == datetime(2026, 11, 28, 9, 0, 1, 234567, tzinfo=UTC)
    assert app.run(task, "t").tzinfo is UTC


def test_each_call_is_one_row_of_the_log(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def task() -> None:
        app.now()
        app.uuid()
        app.random()

    app.run(task, "t")
    assert kinds(app, "t") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, *[Kind.STEP_SETTLED] * 3, Kind.TASK_ENDED]
    assert [step.name for step in app.show("t").steps] == ["$now", "$uuid", "$random"]


def test_two_calls_give_two_values(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()

    @app.task
    def task() -> list[Any]:
        first = app.now()
        clock.advance(1)
        return [first, app.now(), app.uuid(), app.uuid(), app.random(), app.random()]

    first, second, one, other, low, high = app.run(task, "t")
    assert second - first == timedelta(seconds=1)
    assert one != other
    assert low != high


def test_outside_a_task_and_inside_a_step_they_are_refused_before_anything_is_written(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="read")
    def look() -> str:
        return str(raised(app.now))

    @app.task
    def task() -> str:
        return look()

    assert "app.now() was called inside a step" in app.run(task, "t")
    for call in (app.now, app.uuid, app.random):
        error = raised(call)
        assert isinstance(error, OutsideTask)
        assert "outside a task; nothing was written" in str(error)


def test_a_simulation_replaces_the_randomness(tmp_path: Any) -> None:
    app = Doubtless()

    @app.task
    def task() -> list[Any]:
        return [str(app.uuid()), app.random()]

    drawn = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        with harness(app, tmp_path / str(number)) as h:
            drawn.append(h.run(task, "t"))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("what", ["step", "task"])
def test_names_of_users_steps_and_tasks_do_not_begin_with_a_dollar(deploy: Deploys, what: str) -> None:
    app = deploy()
    declare: Any = app.step(effect="read", name="$now") if what == "step" else app.task(name="$now")

    @declare
    def mine() -> None: ...

    assert any("begin with '$' are the library's own" in fault for fault in app.check())
    with pytest.raises(StepTableError):
        app.runtime  # noqa: B018


def test_an_own_step_of_the_library_fails_retries_and_replays_like_any_read(deploy: Deploys) -> None:
    app, calls = deploy(), []

    def choose(what: str) -> dict[str, str]:
        calls.append(what)
        if len(calls) == 1:
            raise ConnectionError("again")
        return {"chose": what}

    definition = own_step("$choose", choose, backoff=0)

    @app.task
    def task() -> Any:
        return call_own(definition, "the agent", what="a")

    assert app.run(task, "t") == {"chose": "a"}
    assert calls == ["a", "a"]
