"""Replay: what was done is answered from the log, in the same form, without effects."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import pydantic
import pytest
from tasks_ground import Deploys, World, intents, kinds, outcomes, rows, settle, statuses

from doubtless import (
    Deny,
    DidNotHappen,
    Doubtless,
    Happened,
    NeedsHuman,
    NotSent,
    Rejected,
    Retry,
    StepFailed,
    TaskFailed,
    TaskWaiting,
    injected,
)
from doubtless.events import Kind
from doubtless.testing import FakeClock, Killed, harness


@dataclass
class Line:
    sku: str
    price: Decimal


class Sheet(TypedDict):
    id: int
    day: date


class Model(pydantic.BaseModel):
    name: str
    when: datetime


class Colour(StrEnum):
    RED = "red"


MOMENT = datetime(2026, 11, 28, 9, 30, tzinfo=UTC)


def a_dataclass() -> Line:
    return Line("s", Decimal("1.50"))


def a_typed_dict() -> Sheet:
    return {"id": 1, "day": date(2026, 11, 28)}


def a_model() -> Model:
    return Model(name="m", when=MOMENT)


def a_decimal() -> Decimal:
    return Decimal("1.10")


def a_datetime() -> datetime:
    return MOMENT


def a_tuple() -> tuple[int, str]:
    return (1, "a")


def a_uuid() -> UUID:
    return UUID(int=5)


def an_enum() -> Colour:
    return Colour.RED


def some_bytes() -> bytes:
    return b"\x00\xff"


def many() -> dict[str, list[Line]]:
    return {"lines": [Line("a", Decimal(1)), Line("b", Decimal("2.5"))]}


def an_int_as_float() -> float:
    return 2


def maybe() -> Line | None:
    return None


def untyped():  # type: ignore[no-untyped-def]
    return {"pair": (1, 2), "d": Decimal("3.0")}


OUTPUTS = [
    a_dataclass, a_typed_dict, a_model, a_decimal, a_datetime, a_tuple, a_uuid, an_enum, some_bytes, many, an_int_as_float, maybe,
    untyped,
]  # fmt: skip


@pytest.mark.parametrize("effect", ["read", "non_idem_write"])
@pytest.mark.parametrize("output", OUTPUTS, ids=lambda fn: fn.__name__)
def test_an_output_has_the_same_value_and_type_on_the_first_run_and_on_replay(deploy: Deploys, output: Any, effect: Any) -> None:
    app = deploy()
    calls = 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        return output()

    call.__annotations__ = output.__annotations__
    step = app.step(effect=effect, name="give")(call)
    seen: list[Any] = []

    @app.task
    def task() -> None:
        seen.append(step())
        if len(seen) == 1:
            raise KeyError("the first run ends here")

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app.run(task, "t")
    first, again = seen
    assert first == again
    assert type(first) is type(again)
    assert repr(first) == repr(again)  # also of what is inside
    assert calls == 1


def test_params_are_given_in_the_form_that_the_log_gives_back_also_on_the_first_call(deploy: Deploys) -> None:
    app = deploy()
    seen: list[Any] = []

    @app.step(effect="idem_write", backoff="PT0.01S")
    def pay(line: Line, pair: tuple[int, int], extra: Any, idempotency_key: str = injected()) -> None:
        seen.append((line, pair, extra))
        if len(seen) == 1:
            raise ConnectionResetError

    @app.task
    def task() -> None:
        pay(Line("a", Decimal("1.0")), pair=(1, 2), extra={"pair": (3, 4)})

    app.run(task, "t")
    assert seen[0] == seen[1] == (Line("a", Decimal("1.0")), (1, 2), {"pair": [3, 4]})
    assert type(seen[0][1]) is tuple


def test_a_task_output_has_the_same_value_and_type_each_time(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def task(line: Line) -> list[Line]:
        return [Line(line.sku, line.price + 1)]

    first = app.run(task, "t", line=Line("a", Decimal(1)))
    assert first == app.run(task, "t", line=Line("a", Decimal(1))) == app.resume("t") == [Line("a", Decimal(2))]


def test_a_finished_task_is_answered_from_the_log_without_running_its_code(deploy: Deploys) -> None:
    app = deploy()
    runs: list[int] = []

    @app.task
    def task() -> int:
        runs.append(1)
        return len(runs)

    assert app.run(task, "t") == app.run(task, "t") == asyncio.run(app.arun(task, "t")) == 1
    assert kinds(app, "t") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, Kind.TASK_ENDED]


def test_a_failed_step_raises_the_same_on_the_first_run_and_on_replay(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay() -> int:
        world.do("pay")
        raise Rejected("422", {"field": "amount"})

    seen: list[Any] = []

    @app.task
    def task() -> str:
        try:
            pay()
        except StepFailed as failure:
            seen.append((failure.kind, failure.reason, failure.detail, failure.step, failure.path, str(failure)))
        if len(seen) == 1:
            raise KeyError("the first run ends here")
        return "went on"

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert app.run(task, "t") == "went on"
    assert seen[0] == seen[1]
    assert seen[0][:2] == ("rejected", "422")
    assert world.n() == 1


def test_a_caught_step_failed_lets_the_task_go_on_and_an_escaping_one_fails_it(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="non_idem_write")
    def pay(n: int) -> int:
        raise Rejected("no")

    @app.step(effect="non_idem_write")
    def note(text: str) -> None:
        world.do("note", text)

    @app.task
    def catching() -> str:
        try:
            pay(1)
        except StepFailed as failure:
            note(failure.kind)
        return "done"

    @app.task
    def failing() -> None:
        pay(1)

    assert app.run(catching, "c") == "done"
    errors = []
    for _ in range(2):
        with pytest.raises(TaskFailed) as caught:
            app.run(failing, "f")
        errors.append((str(caught.value), caught.value.status, caught.value.context["failure"]))
    assert errors[0] == errors[1]
    assert errors[0][1] == "failed"
    assert app.show("f").status == "failed"


def test_a_step_failure_never_is_the_clients_own_exception(deploy: Deploys) -> None:
    app = deploy()

    class ClientError(Exception):
        pass

    @app.step(effect="read", attempts=2, backoff="PT0.01S")
    def ask() -> int:
        raise ClientError("no answer")

    @app.task
    def task() -> str:
        try:
            ask()
        except ClientError:
            return "the client's own"
        except StepFailed as failure:
            return f"{failure.kind} {failure.reason}"
        return "nothing"

    assert app.run(task, "t") == "exhausted ClientError"
    assert outcomes(app, "t", "1") == [("unknown", "ClientError")] * 2


def test_a_write_settled_on_resume_before_task_code_runs_is_not_called_again(deploy: Deploys, world: World) -> None:
    """An idem_write in doubt is resent with its key before the code runs; the code gets that output."""
    app = deploy()

    @app.step(effect="idem_write", backoff="PT0.01S")
    def pay(n: int, idempotency_key: str = injected()) -> int:
        world.do("pay", n, idempotency_key)
        if world.n() == 1:
            raise KeyboardInterrupt
        return world.n()

    @app.task
    def task() -> int:
        return pay(1) + pay(2)

    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    assert app.run(task, "t") == 2 + 3
    assert world.n() == 3
    assert intents(app, "t") == {"1": 1, "2": 1}
    assert len(set(world.keys("pay")[:2])) == 1


@pytest.mark.parametrize(
    "effect, place",
    [
        (effect, place)
        for effect in ("read", "idem_write", "non_idem_write")
        for place in ("intent", "effect", "record")
        if (effect, place) != ("read", "intent")  # it has none
    ],
)
def test_a_process_killed_around_any_step_is_resumed_where_it_stopped(tmp_path: Path, effect: Any, place: Any) -> None:
    """The kill is simulated by the harness; real ones are in the signal tests and in tests/crash."""
    app = Doubtless(namespace="tests")
    world = World()

    def call(n: int, idempotency_key: str) -> int:
        if (n, idempotency_key) not in [(what, key) for _, what, key in world.done]:  # this other side honours keys
            world.do("step", n, idempotency_key)
        return n

    def find(n: int) -> dict[str, int] | None:
        return {"n": n} if any(what == n for _, what, _ in world.done) else None

    if effect == "read":

        @app.step(effect="read")
        def step(n: int) -> Any:
            return call(n, "")

    elif effect == "idem_write":

        @app.step(effect="idem_write")
        def step(n: int, idempotency_key: str = injected()) -> Any:
            return call(n, idempotency_key)

    else:

        @app.step(effect="non_idem_write", query=find, absent_after="PT1S", on_absent="retry")
        def step(n: int) -> Any:
            return call(n, "")

    @app.task
    def task() -> list[Any]:
        return [step(n=n) for n in (1, 2, 3)]

    with harness(app, tmp_path) as h:
        h.kill(step, after=place, skip=1)
        with pytest.raises(Killed):
            h.run(task, "t")
        assert app.show("t").status == "running"
        h.run(task, "t")
        assert world.n() == 3
        assert set(statuses(app, "t").values()) == {"done"}
        assert app.verify() == []


@pytest.mark.parametrize("seed", range(40))
def test_gathered_steps_have_the_same_paths_after_a_crash_whatever_the_delays(tmp_path: Path, seed: int) -> None:
    """C98: identity is the place of the call, not the order in which the calls happen to come through."""
    app = Doubtless(namespace="tests")
    delays, world = random.Random(seed), World()

    @app.step(effect="non_idem_write", query=lambda n: world.find(str(n), "k"))
    async def step(n: int) -> dict[str, Any]:
        for _ in range(delays.randrange(4)):
            await asyncio.sleep(0)
        return world.do(str(n), key="k")

    @app.task
    async def task() -> list[Any]:
        first = await asyncio.gather(*(step(n) for n in range(3)))
        second = await asyncio.gather(*(step(n) for n in range(3, 5)))
        return [receipt["name"] for receipt in [*first, *second]]

    with harness(app, tmp_path) as h:
        h.kill(step, after=delays.choice(["intent", "effect"]), skip=delays.randrange(5))
        with pytest.raises(Killed):
            h.run(task, "t")
        output = None
        while output is None:
            try:
                output = h.run(task, "t")
            except NeedsHuman:  # an absence without absent_after is no proof: a person says so
                assert h.settle_all(DidNotHappen("retry", even_now=True))
        assert output == ["0", "1", "2", "3", "4"]
        assert {step.path: step.params["n"] for step in app.show("t").steps} == {str(n + 1): n for n in range(5)}
        assert world.n() == 5
        assert intents(app, "t") == {str(n + 1): 1 for n in range(5)}


def test_the_key_is_the_same_over_all_attempts_of_an_intent(deploy: Deploys, world: World) -> None:
    """C10."""
    app = deploy()

    @app.step(effect="idem_write", attempts=4, backoff="PT0.01S")
    def pay(n: int, idempotency_key: str = injected()) -> int:
        world.do("pay", n, idempotency_key)
        if world.n() == 1:
            raise NotSent
        if world.n() == 2:
            raise TimeoutError
        if world.n() == 3:
            raise KeyboardInterrupt
        return n

    @app.task
    def task() -> int:
        return pay(1)

    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    app.run(task, "t")
    assert len(world.keys("pay")) == 4
    (key,) = set(world.keys("pay"))
    assert key is not None
    assert len(key) == 64
    assert [row.idempotency_key for row in rows(app, "t") if row.idempotency_key] == [bytes.fromhex(key)]


def test_what_is_resent_are_the_stored_params_whatever_the_code_words_now(deploy: Deploys, world: World) -> None:
    """C32, C34: volatile params of the second run are not sent, and make no new key."""
    app = deploy()
    now = iter(["09:00", "10:00"])

    @app.step(effect="idem_write", volatile="at")
    def pay(n: int, at: str, idempotency_key: str = injected()) -> int:
        world.do("pay", at, idempotency_key)
        if world.n() == 1:
            raise KeyboardInterrupt
        return n

    @app.task
    def task() -> int:
        return pay(1, at=next(now))

    with pytest.raises(KeyboardInterrupt):
        app.run(task, "t")
    assert app.run(task, "t") == 1
    assert [what for _, what, _ in world.done] == ["09:00", "09:00"]
    assert len(set(world.keys("pay"))) == 1


@pytest.mark.parametrize("effect", ["idem_write", "non_idem_write"])
def test_what_was_surely_not_sent_is_sent_as_it_was_stored_too(
    deploy: Deploys, world: World, clock: FakeClock, effect: Any
) -> None:
    """C32, C34: no doubt is settled first here; task code comes to its place with a param that is worded anew."""
    app = deploy()
    now, sent = iter(["09:00", "10:00"]), list[str]()

    @app.step(effect=effect, volatile="at", backoff="PT1H")
    def pay(n: int, at: str, idempotency_key: str = injected()) -> int:
        sent.append(at)
        if len(sent) == 1:
            raise NotSent
        world.do("pay", at, idempotency_key)
        return n

    @app.task
    def task() -> int:
        return pay(1, at=next(now))

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    clock.advance(2 * 3600)
    assert app.run(task, "t") == 1
    assert sent == ["09:00", "09:00"]
    assert world.n() == 1


@pytest.mark.parametrize("effect", ["idem_write", "non_idem_write"])
def test_the_next_generation_of_a_key_follows_only_a_durable_rejection(deploy: Deploys, world: World, effect: Any) -> None:
    """C46."""
    app = deploy()

    @app.step(effect=effect, retry_rejected=True, backoff="PT0.01S", attempts=4)
    def pay(idempotency_key: str = injected()) -> int:
        world.do("pay", None, idempotency_key)
        if world.n() == 1:
            raise NotSent
        if world.n() == 2:
            raise Rejected("job_failed")
        return world.n()

    @app.task
    def task() -> int:
        return pay()

    assert app.run(task, "t") == 3
    first, second, third = world.keys("pay")
    assert first == second != third
    assert outcomes(app, "t", "1")[1] == ("rejected", "job_failed")
    rejected = next(i for i, row in enumerate(rows(app, "t")) if row.error and "job_failed" in row.error)
    renewed = next(i for i, row in enumerate(rows(app, "t")) if row.idempotency_key and row.idempotency_key.hex() == third)
    assert rejected < renewed


def test_a_rejection_after_an_unknown_attempt_is_its_echo_and_moves_no_generation_on(deploy: Deploys, world: World) -> None:
    app = deploy()

    @app.step(effect="idem_write", retry_rejected=True, backoff="PT0.01S", attempts=3)
    def pay(idempotency_key: str = injected()) -> int:
        world.do("pay", None, idempotency_key)
        raise TimeoutError if world.n() == 1 else Rejected("409")

    @app.task
    def task() -> int:
        return pay()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert len(set(world.keys("pay"))) == 1
    assert {outcome for outcome, _ in outcomes(app, "t", "1")} == {"unknown"}


def test_a_doubt_that_failed_on_resume_is_raised_where_the_code_reaches_its_place(deploy: Deploys, world: World) -> None:
    app = deploy()
    order: list[str] = []

    @app.step(effect="non_idem_write")
    def pay() -> int:
        raise TimeoutError

    @app.task
    def task() -> str:
        order.append("before")
        try:
            pay()
        except StepFailed as failure:
            order.append(failure.kind)
        return "went on"

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, DidNotHappen("fail"))
    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    assert order == ["before"]  # settled before task code runs
    assert app.run(task, "t") == "went on"
    assert order == ["before", "before", "not_applied"]


def test_an_output_given_by_a_person_is_what_the_code_gets_now_and_later(deploy: Deploys, world: World) -> None:
    app = deploy()
    seen: list[Any] = []

    @app.step(effect="non_idem_write")
    def pay() -> Line:
        world.do("pay")
        raise TimeoutError

    @app.task
    def task() -> None:
        seen.append(pay())
        if len(seen) == 1:
            raise KeyError

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Happened(Line("x", Decimal(1))))
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    app.run(task, "t")
    assert seen == [Line("x", Decimal(1))] * 2
    assert world.n() == 1


def test_an_output_that_cannot_be_stored_leaves_the_effect_done_and_asks_for_the_output(deploy: Deploys, world: World) -> None:
    app = deploy()

    class Handle:
        pass

    @app.step(effect="non_idem_write")
    def pay() -> Any:
        world.do("pay")
        return Handle()

    @app.task
    def task() -> str:
        try:
            pay()
        except StepFailed as failure:
            return failure.kind
        return "done"

    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    assert statuses(app, "t") == {"1": "done"}
    assert "Handle" in app.inbox().cases[0].why
    settle(app, Deny(), kind="output")
    assert app.run(task, "t") == "abandoned"
    assert world.n() == 1


def test_a_read_is_one_row_and_a_write_two(deploy: Deploys) -> None:
    app = deploy()

    @app.step(effect="read")
    def look() -> int:
        return 1

    @app.step(effect="non_idem_write")
    def write() -> int:
        return 1

    @app.task
    def task() -> int:
        return look() + write()

    app.run(task, "t")
    assert kinds(app, "t")[2:-1] == [Kind.STEP_SETTLED, Kind.STEP_INTENDED, Kind.STEP_SETTLED]


def test_two_apps_in_one_process_do_not_influence_each_other(deploy: Deploys, world: World) -> None:
    """C102: nothing is cached by task or step outside the log."""

    def release() -> tuple[Doubtless, Any]:
        app = deploy()

        @app.step(effect="non_idem_write")
        def pay(n: int) -> int:
            world.do("pay", n)
            return world.n()

        @app.task
        def task(stop: int) -> list[int]:
            out = [pay(n) for n in range(2)]
            if world.n() == stop:
                raise KeyError
            return out

        return app, task

    (one, task_one), (two, task_two) = release(), release()
    with pytest.raises(NeedsHuman):
        one.run(task_one, "a", stop=2)
    assert two.run(task_two, "b", stop=2) == [3, 4]
    assert two.run(task_two, "a", stop=2) == one.run(task_one, "a", stop=2) == [1, 2]
    assert one.run(task_one, "b", stop=2) == [3, 4]
    assert world.n() == 4


def test_a_retry_granted_after_exhaustion_is_replayed_as_its_outcome(deploy: Deploys, world: World, clock: FakeClock) -> None:
    app = deploy()

    @app.step(effect="read", attempts=2, backoff="PT1H")
    def ask() -> int:
        world.do("ask")
        if world.n() < 3:
            raise ConnectionError
        return world.n()

    seen: list[int] = []

    @app.task
    def task() -> int:
        seen.append(ask())
        if len(seen) == 1:
            raise KeyError
        return seen[-1]

    before = clock.now().wall
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert clock.now().wall - before > 40 * 60 * 1_000_000  # it waited on the clock, not in real time
    settle(app, Retry(), kind="code_error")
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert app.run(task, "t") == 3
    assert seen == [3, 3]
