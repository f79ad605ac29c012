"""`doubtless.testing`: each tool does what it says, counted in a world of its own, on real SQLite files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubtless import (
    Abandon,
    Doubtless,
    Happened,
    NeedsHuman,
    NotSent,
    Rejected,
    Several,
    TaskFailed,
    TaskWaiting,
    UnknownStep,
    UsageError,
    injected,
)
from doubtless.events import Kind
from doubtless.testing import CountingWorld, FakeClock, Harness, Killed, harness


class Shop:
    """An app with a step of each class, whose other side is a `CountingWorld`."""

    def __init__(self) -> None:
        world = self.world = CountingWorld()
        app = self.app = Doubtless("sqlite:////nowhere/production.db")

        @app.step(effect="read", backoff="PT1H")
        def rows(day: str) -> list[int]:
            return [1, 2]

        @app.step(effect="non_idem_write", query=world.find, absent_after="PT1M", on_absent="retry")
        def create(row: int, idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do("sheet", key=idempotency_key, row=row)

        @app.step(effect="idem_write", backoff="PT1H")
        def close(day: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do("close", key=idempotency_key)

        @app.step(effect="non_idem_write")
        def tell(text: str) -> dict[str, Any]:
            return world.do("message", text=text)

        @app.task
        def one(row: int) -> str:
            return str(create(row=row)["id"])

        @app.task
        def day(day: str) -> int:
            for row in rows(day=day):
                create(row=row)
            close(day=day)
            tell(text=day)
            return world.count()

        self.rows, self.create, self.close, self.tell, self.one, self.day = rows, create, close, tell, one, day


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(name="h")
def harness_of_the_shop(shop: Shop, tmp_path: Path) -> Iterator[Harness]:
    with harness(shop.app, tmp_path) as h:
        yield h


def kinds(h: Harness, task_id: str) -> list[str]:
    return [str(event.kind) for event in h.app.store.rows(task_id)]


# ---------------------------------------------------------------- a store and a clock of its own


def test_the_app_runs_in_a_store_of_its_own_and_gets_its_own_back(shop: Shop, tmp_path: Path) -> None:
    own = Doubtless(f"sqlite:///{tmp_path / 'own.db'}")
    task = own.task(_one)
    assert own.run(task, "before") == 1
    with harness(own, tmp_path) as h:
        assert own.url == h.url != f"sqlite:///{tmp_path / 'own.db'}"
        assert own.tasks() == []
        assert h.run(task, "within") == 1
    assert [head.task_id for head in own.tasks()] == ["before"]
    own.close()


def _one() -> int:
    return 1


def test_two_harnesses_in_one_folder_have_two_stores(shop: Shop, tmp_path: Path) -> None:
    with harness(shop.app, tmp_path) as first:
        first.run(shop.one, "r1", row=1)
    with harness(shop.app, tmp_path) as second:
        assert second.url != first.url
        assert second.app.tasks() == []


def test_keys_are_the_same_in_each_run_of_a_test(shop: Shop, tmp_path: Path) -> None:
    for _ in range(2):
        with harness(shop.app, tmp_path) as h:
            h.run(shop.one, "r1", row=1)
    first, second = shop.world.all("sheet")
    assert first["key"] == second["key"]


def test_a_run_passes_its_waits_by_turning_the_clock(shop: Shop, h: Harness) -> None:
    h.fail(shop.rows, TimeoutError, times=2)
    before = h.clock.now()
    assert h.run(shop.day, "d1", day="mon") == 4
    after = h.clock.now()
    assert after.wall - before.wall > 2 * 45 * 60 * 1_000_000  # two backoffs of an hour, with their jitter
    assert after.wall - before.wall == after.boot - before.boot
    assert h.calls(shop.rows) == 3


def test_an_async_run_passes_its_waits_by_turning_the_clock(tmp_path: Path) -> None:
    app = Doubtless()

    @app.step(effect="read", backoff="P1D")
    async def ask() -> int:
        return 5

    @app.task
    async def wonder() -> int:
        return await ask()

    with harness(app, tmp_path) as h:
        before = h.clock.now().wall
        h.fail(ask, ConnectionError)
        assert asyncio.run(h.arun(wonder, "w1")) == 5
        assert h.clock.now().wall - before > 18 * 3600 * 1_000_000


@pytest.mark.parametrize("run", ["run", "arun"])
def test_a_clock_turned_by_hand_holds_a_run_until_it_is_turned(shop: Shop, tmp_path: Path, run: str) -> None:
    with harness(shop.app, tmp_path, auto_advance=False) as h:
        h.fail(shop.rows, TimeoutError)
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(h.run(shop.day, "d1", day="mon")))
        if run == "arun":
            thread = threading.Thread(target=lambda: ended.append(asyncio.run(h.arun(shop.day, "d1", day="mon"))))
        thread.start()
        h.clock.until_paused()
        h.advance("PT30M")
        h.clock.until_paused()
        assert ended == []
        h.advance("PT2H")
        thread.join(10)
        assert ended == [4]


def test_without_waiting_a_turn_of_the_clock_makes_a_task_due(shop: Shop, h: Harness) -> None:
    h.fail(shop.rows, TimeoutError)
    with pytest.raises(TaskWaiting) as waiting:
        h.run(shop.day, "d1", day="mon", wait=False)
    with pytest.raises(TaskWaiting):
        h.app.resume("d1", wait=False)
    assert waiting.value.until is not None
    h.advance((waiting.value.until.wall - h.clock.now().wall) / 1e6)
    assert h.app.resume("d1", wait=False) == 4


def test_a_call_that_really_hangs_is_taken_away_after_its_real_timeout(tmp_path: Path) -> None:
    app, answered = Doubtless(), threading.Event()

    @app.step(effect="read", timeout="PT0.05S", attempts=2)
    def ask() -> bool:
        return answered.is_set() or answered.wait(30)

    @app.task
    def wonder() -> bool:
        return ask()

    with harness(app, tmp_path) as h:
        h.advance("P1D")  # ends no call
        h.clock.auto_advance = False
        with pytest.raises(TaskWaiting):
            h.run(wonder, "w1", wait=False)
        assert "timeout" in str(h.app.store.rows("w1")[-2].error)
        answered.set()
        h.clock.auto_advance = True
        while h.app.show("w1").owner is not None:  # the thread that was left behind has the task until it ends
            threading.Event().wait(0.005)
        assert h.run(wonder, "w1") is True


def test_a_clock_that_nobody_waits_on_says_so() -> None:
    with pytest.raises(AssertionError, match="no run waited"):
        FakeClock(auto_advance=False).until_paused(timeout=0.01)


def test_a_clock_cannot_be_turned_back() -> None:
    with pytest.raises(UsageError):
        FakeClock().advance(-1)


# ---------------------------------------------------------------- a process that dies

POINTS = [
    # point, rows of the step at the death, effects at the death, calls in the end, looks in the end
    ({"before": "intent"}, [], 0, 1, 0),
    ({"after": "intent"}, ["StepIntended"], 0, 1, 3),
    ({"before": "effect"}, ["StepIntended"], 0, 2, 3),
    ({"after": "effect"}, ["StepIntended"], 1, 1, 1),
    ({"before": "record"}, ["StepIntended"], 1, 1, 1),
    ({"after": "record"}, ["StepIntended", "StepSettled"], 1, 1, 0),
]


@pytest.mark.parametrize("run", ["run", "arun"])
@pytest.mark.parametrize(("point", "rows", "effects", "calls", "looks"), POINTS)
def test_a_killed_process_leaves_what_it_had_written_and_the_next_run_ends_with_one_effect(
    shop: Shop, h: Harness, point: dict[str, Any], rows: list[str], effects: int, calls: int, looks: int, run: str
) -> None:
    def go() -> str:
        return h.run(shop.one, "r1", row=7) if run == "run" else asyncio.run(h.arun(shop.one, "r1", row=7))

    h.kill(shop.create, **point)
    with pytest.raises(Killed, match=f"died {next(iter(point))} the {next(iter(point.values()))} of create"):
        go()
    assert shop.world.count() == effects
    assert [str(event.kind) for event in h.app.store.rows("r1", path="1") if event.path] == rows
    assert go() == "sheet-1"
    assert shop.world.count() == 1
    assert (h.calls(shop.create), h.effects(shop.create), h.looks(shop.create)) == (calls, 1, looks)
    claims = [event.details for event in h.app.store.rows("r1") if event.kind == Kind.TASK_CLAIMED]
    assert claims[-1]["was"] != claims[-1]["owner"], "the run after a death is a takeover"
    assert h.app.verify() == []


def test_a_process_can_die_while_it_asks(shop: Shop, h: Harness) -> None:
    h.kill(shop.create, after="effect")
    h.kill(shop.create, before="query")
    h.kill(shop.create, after="query")
    for _ in range(3):
        with pytest.raises(Killed):
            h.run(shop.one, "r1", row=7)
        assert Kind.LOOKED_BACK not in kinds(h, "r1")
    assert h.run(shop.one, "r1", row=7) == "sheet-1"
    assert (shop.world.count(), h.looks(shop.create)) == (1, 3)


def test_nothing_is_recorded_after_the_death_whatever_task_code_catches(tmp_path: Path) -> None:
    app, world = Doubtless(), CountingWorld()

    @app.step(effect="non_idem_write", query=world.find)
    def create(idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("sheet", key=idempotency_key)

    @app.task
    def stubborn() -> str:
        try:
            create()
        except BaseException:
            pass
        finally:
            try:
                create()
            except BaseException:
                pass
        return "as if nothing had been"

    with harness(app, tmp_path) as h:
        h.kill(create, after="effect")
        with pytest.raises(Killed):
            h.run(stubborn, "s1")
        assert kinds(h, "s1") == ["TaskAccepted", "TaskClaimed", "StepIntended"]
        assert world.count() == 1


def test_an_exception_handler_of_the_step_does_not_survive_the_death(shop: Shop, h: Harness) -> None:
    def careful(row: int, idempotency_key: str) -> dict[str, Any]:
        try:
            return shop.world.do("sheet", key=idempotency_key)
        except Exception:
            return {}

    h.replace(shop.create, careful)
    h.kill(shop.create, before="effect")
    with pytest.raises(Killed):
        h.run(shop.one, "r1", row=7)
    assert shop.world.count() == 0


def test_an_order_can_let_calls_pass_and_can_happen_more_than_once(shop: Shop, h: Harness) -> None:
    h.kill(shop.create, after="effect", skip=1)
    with pytest.raises(Killed):
        h.run(shop.day, "d1", day="mon")
    assert [sheet["row"] for sheet in shop.world.all("sheet")] == [1, 2]
    h.kill(shop.create, before="query", times=2)
    for _ in range(2):
        with pytest.raises(Killed):
            h.run(shop.day, "d1", day="mon")
    assert h.run(shop.day, "d1", day="mon") == 4
    assert (shop.world.count("sheet"), h.effects(shop.create), h.looks(shop.create)) == (2, 2, 3)


def test_a_step_of_an_async_task_dies_in_its_thread(tmp_path: Path) -> None:
    app, world = Doubtless(), CountingWorld()

    @app.step(effect="non_idem_write", query=world.find)
    def create(idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("sheet", key=idempotency_key)

    @app.step(effect="non_idem_write", query=world.find)
    async def submit(idempotency_key: str = injected()) -> dict[str, Any]:
        await asyncio.sleep(0)
        return world.do("approval", key=idempotency_key)

    @app.task
    async def both() -> list[str]:
        return [(await create.acall())["id"], (await submit())["id"]]

    with harness(app, tmp_path) as h:
        for step in (create, submit):
            h.kill(step, after="effect")
            with pytest.raises(Killed):
                asyncio.run(h.arun(both, "b1"))
        assert h.run(both, "b1") == ["sheet-1", "approval-1"]
        assert world.count() == 2
        assert (h.effects(create), h.effects(submit)) == (1, 1)


def test_a_restart_ends_a_run_of_the_old_process(shop: Shop, tmp_path: Path) -> None:
    entered, go = threading.Event(), threading.Event()
    died: list[BaseException] = []

    def slow(row: int, idempotency_key: str) -> dict[str, Any]:
        entered.set()
        assert go.wait(10)
        return shop.world.do("sheet", key=idempotency_key)

    def old() -> None:
        try:
            h.run(shop.one, "r1", row=7)
        except Killed as error:
            died.append(error)

    with harness(shop.app, tmp_path) as h:
        h.replace(shop.create, slow)
        thread = threading.Thread(target=old)
        thread.start()
        assert entered.wait(10)
        h.restart()
        h.kill(shop.create, after="effect")  # is for the new process: a thread of the old one does not meet it
        go.set()
        thread.join(10)
        assert [str(error) for error in died] == ["the process was restarted"]
        assert kinds(h, "r1") == ["TaskAccepted", "TaskClaimed", "StepIntended"]
        assert h.run(shop.one, "r1", row=7) == "sheet-1"
        assert shop.world.count() == 1
        with pytest.raises(Killed, match="died after the effect"):
            h.run(shop.one, "r2", row=8)


def test_a_restart_ends_a_run_that_waits(shop: Shop, tmp_path: Path) -> None:
    died: list[BaseException] = []

    def old() -> None:
        try:
            h.run(shop.day, "d1", day="mon")
        except Killed as error:
            died.append(error)

    with harness(shop.app, tmp_path, auto_advance=False) as h:
        h.fail(shop.rows, TimeoutError)
        thread = threading.Thread(target=old)
        thread.start()
        h.clock.until_paused()
        h.restart()
        thread.join(10)
        assert len(died) == 1
        h.clock.auto_advance = True
        assert h.run(shop.day, "d1", day="mon") == 4


def test_a_worker_dies_with_its_process_and_without_a_word(shop: Shop, h: Harness) -> None:
    dead = threading.Event()
    h.kill(shop.create, after="effect")
    with h.app.worker(concurrency=2) as worker:
        shop.app.on_case(lambda case: None)
        h.app.start(shop.one, "r1", row=7)
        while shop.world.count() == 0 or worker._busy:
            dead.wait(0.005)
        assert kinds(h, "r1") == ["TaskAccepted", "TaskClaimed", "StepIntended"]
    assert h.run(shop.one, "r1", row=7) == "sheet-1"
    assert shop.world.count() == 1


def test_a_worker_takes_up_what_a_turn_of_the_clock_makes_due(shop: Shop, h: Harness) -> None:
    h.fail(shop.rows, TimeoutError)
    look = threading.Event()
    with h.app.worker():
        h.app.start(shop.day, "d1", day="mon")
        while h.app.show("d1").status != "waiting":
            look.wait(0.005)
        h.advance("PT2H")
        while h.app.show("d1").status != "done":
            look.wait(0.005)
    assert shop.world.count() == 4


# ---------------------------------------------------------------- replies that are lost, calls that fail, an index that lags


@pytest.mark.parametrize("single_request", [False, True])
def test_a_lost_reply_leaves_an_effect_and_an_unknown_outcome(tmp_path: Path, single_request: bool) -> None:
    app, world = Doubtless(), CountingWorld()

    @app.step(effect="non_idem_write", single_request=single_request)
    def tell(text: str) -> dict[str, Any]:
        return world.do("message", text=text)

    @app.task
    def talk() -> None:
        tell(text="hello")

    with harness(app, tmp_path) as h:
        h.lose_reply(tell)
        with pytest.raises(NeedsHuman):
            h.run(talk, "t1")
        (case,) = h.inbox().cases
        assert case.evidence["attempts"][0]["outcome"] == "unknown"
        assert (world.count(), h.calls(tell), h.effects(tell)) == (1, 1, 1)


def test_a_lost_reply_is_settled_by_the_look_back(shop: Shop, h: Harness) -> None:
    h.lose_reply(shop.create, times=2)
    assert h.run(shop.day, "d1", day="mon") == 4
    assert (h.effects(shop.create), h.looks(shop.create), shop.world.doubled()) == (2, 2, {})


def test_a_failing_call_does_not_reach_the_function(shop: Shop, h: Harness) -> None:
    h.fail(shop.create, NotSent)
    h.fail(shop.create, Rejected("422"))
    with pytest.raises(TaskFailed) as failed:
        h.run(shop.one, "r1", row=7)
    assert "422" in str(failed.value)
    assert (shop.world.count(), h.calls(shop.create), h.effects(shop.create)) == (0, 2, 0)


def test_a_lag_shorter_than_absent_after_is_waited_for(shop: Shop, h: Harness) -> None:
    h.lag(shop.create, "PT50S")
    h.lose_reply(shop.create)
    assert h.run(shop.one, "r1", row=7) == "sheet-1"
    assert shop.world.count() == 1
    looks = [event.details["answer"] for event in h.app.store.rows("r1") if event.kind == Kind.LOOKED_BACK]
    assert looks[0] == "absent"
    assert looks[-1] == "found"


def test_a_lag_longer_than_absent_after_doubles_the_effect_and_the_world_counts_it(shop: Shop, h: Harness) -> None:
    h.lag(shop.create, "PT10M")
    h.lose_reply(shop.create)
    h.run(shop.one, "r1", row=7)
    assert shop.world.count() == 2
    assert list(shop.world.doubled().values()) == [2]


def test_a_lag_also_hides_what_a_function_did_before_it_raised(shop: Shop, h: Harness) -> None:
    def loses(row: int, idempotency_key: str) -> dict[str, Any]:
        shop.world.do("sheet", key=idempotency_key)
        raise ConnectionResetError

    h.replace(shop.create, loses)
    h.lag(shop.create, "PT50S")
    assert h.run(shop.one, "r1", row=7) == "sheet-1"
    assert (h.calls(shop.create), h.effects(shop.create), shop.world.count()) == (1, 0, 1)
    assert h.looks(shop.create) > 1


# ---------------------------------------------------------------- fakes


def test_a_fake_is_called_as_the_step_is_and_only_within_the_harness(shop: Shop, tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    def fake(row: int, idempotency_key: str) -> dict[str, Any]:
        seen.append((row, idempotency_key))
        return {"id": "fake"}

    with harness(shop.app, tmp_path) as h:
        h.replace("create", fake)
        assert h.run(shop.one, "r1", row=7) == "fake"
        assert seen[0][0] == 7
        assert len(seen[0][1]) == 64
        assert (h.calls("create"), h.effects("create"), shop.world.count()) == (1, 1, 0)
    with harness(shop.app, tmp_path) as h:
        assert h.run(shop.one, "r1", row=7) == "sheet-1"


def test_a_fake_of_a_step_with_params_by_position_gets_them_by_position(tmp_path: Path) -> None:
    app = Doubtless()

    @app.step(effect="read")
    def add(a: int, /, b: int) -> int:
        return a + b

    @app.task
    def count() -> int:
        return add(1, b=2)

    with harness(app, tmp_path) as h:
        h.replace(add, lambda first, b: first * 100 + b)
        assert h.run(count, "c1") == 102


def test_a_fake_of_an_async_step_may_be_sync(tmp_path: Path) -> None:
    app = Doubtless()

    @app.step(effect="read")
    async def ask(what: str) -> str:
        raise AssertionError

    @app.task
    async def wonder() -> str:
        return await ask(what="x")

    async def later(what: str) -> str:
        return what * 3

    with harness(app, tmp_path) as h:
        h.replace(ask, lambda what: what * 2)
        assert h.run(wonder, "w1") == "xx"
        h.replace(ask, later)
        assert h.run(wonder, "w2") == "xxx"
        assert h.effects(ask) == 2


def test_a_fake_query_gets_by_name_what_it_declares(shop: Shop, h: Harness) -> None:
    asked: list[tuple[int, int]] = []

    def query(row: int, idempotency_keys: list[str]) -> Any:
        asked.append((row, len(idempotency_keys)))
        return shop.world.all("sheet", row=row)[0]

    h.replace_query(shop.create, query)
    h.lose_reply(shop.create)
    assert h.run(shop.one, "r1", row=7) == "sheet-1"
    assert asked == [(7, 1)]


async def _late(row: int, idempotency_key: str) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (lambda h, shop: h.replace(shop.create, lambda row: {}), "cannot be called as the step is"),
        (lambda h, shop: h.replace(shop.create, lambda row, idempotency_key, more: {}), "more"),
        (lambda h, shop: h.replace(shop.create, _late), "async"),
        (lambda h, shop: h.replace(shop.create, {"id": 1}), "say a function"),
        (lambda h, shop: h.replace_query(shop.tell, lambda: None), "has no query"),
        (lambda h, shop: h.replace_query(shop.create, lambda colour: None), "colour"),
        (lambda h, shop: h.lag(shop.tell, "PT1S"), "has no query"),
        (lambda h, shop: h.kill(shop.create), "one point"),
        (lambda h, shop: h.kill(shop.create, before="effect", after="effect"), "one point"),
        (lambda h, shop: h.kill(shop.create, after="lunch"), "knows no point"),
        (lambda h, shop: h.kill(shop.rows, after="intent"), "is a read"),
        (lambda h, shop: h.kill(shop.tell, after="query"), "has no query"),
        (lambda h, shop: h.fail(shop.tell, TimeoutError, times=0), "at least once"),
        (lambda h, shop: h.lose_reply(shop.tell, skip=-1), "at least once"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    shop: Shop, h: Harness, order: Callable[[Harness, Shop], None], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        order(h, shop)


def test_a_step_that_the_app_does_not_have_is_refused(shop: Shop, h: Harness) -> None:
    with pytest.raises(UnknownStep, match="crate"):
        h.kill("crate", after="effect")
    with pytest.raises(UnknownStep, match="another app"):
        h.calls(Shop().create)


# ---------------------------------------------------------------- what a test may rely on


def test_an_order_that_never_happened_fails_the_test(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"never happened: kill\(tell, after='effect'\); fail\(rows\)"):
        with harness(shop.app, tmp_path) as h:
            h.kill(shop.tell, after="effect")
            h.fail(shop.rows, TimeoutError)


def test_an_order_that_never_happened_does_not_hide_what_the_test_says(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with harness(shop.app, tmp_path) as h:
            h.kill(shop.tell, after="effect")
            raise ZeroDivisionError


def test_quiet_is_asserted_of_a_doubt_with_a_case_or_a_time_and_of_no_other(shop: Shop, h: Harness) -> None:
    h.kill(shop.create, after="effect")
    with pytest.raises(Killed):
        h.run(shop.one, "dead", row=1)
    with pytest.raises(AssertionError, match="task dead: create at 1"):
        h.assert_quiet()
    h.run(shop.one, "dead", row=1)
    h.assert_quiet()
    h.lag(shop.create, "PT30S")
    h.lose_reply(shop.create)
    with pytest.raises(TaskWaiting):
        h.run(shop.one, "waits", row=2, wait=False)
    h.lose_reply(shop.tell)
    with pytest.raises(NeedsHuman):
        h.run(shop.day, "asks", day="mon")
    h.assert_quiet()


def test_all_open_cases_can_be_answered_at_once_or_each_by_itself(shop: Shop, h: Harness) -> None:
    h.lose_reply(shop.tell, times=3)
    for day in ("mon", "tue", "wed"):
        with pytest.raises(NeedsHuman):
            h.run(shop.day, day, day=day)
    settled = h.settle_all(lambda case: Happened({"id": "m"}) if case.task_id == "tue" else None)
    assert [case.task_id for case in settled] == ["tue"]
    assert len(h.settle_all(Abandon())) == 2
    assert h.inbox().cases == []
    h.run(shop.day, "tue", day="tue")
    with pytest.raises(TaskFailed):
        h.run(shop.day, "mon", day="mon")
    assert shop.world.count("message") == 3


def test_importing_doubtless_does_not_load_the_testing_tools() -> None:
    code = "import sys, doubtless; sys.exit('doubtless.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- the world that counts


def test_the_world_adds_an_effect_each_time_it_is_asked() -> None:
    world = CountingWorld()
    first, second = world.do("sheet", key="k", amount=5), world.do("sheet", key="k", amount=5)
    assert (first["id"], second["id"]) == ("sheet-1", "sheet-2")
    assert (world.count("sheet"), world.count("mail"), world.count(amount=5), world.count(amount=6)) == (2, 0, 2, 0)
    assert world.doubled() == {"k": 2}
    found = world.find("k")
    assert isinstance(found, Several)
    assert len(list(found.items)) == 2


def test_the_world_finds_by_key_and_by_reference() -> None:
    world = CountingWorld()
    sheet = world.do("sheet", key="k", amount=5)
    assert world.find("k") == sheet == world.get("sheet-1")
    assert world.find("other") is None
    assert world.get("sheet-2") is None
    sheet["amount"] = 6
    assert world.count(amount=5) == 1, "a reply is a copy"


def test_a_world_that_honours_keys_gives_the_first_effect_again() -> None:
    world = CountingWorld(honours_keys=True)
    assert world.do("close", key="k") == world.do("close", key="k")
    world.do("close", key="other")
    world.do("close")
    world.do("close")
    assert world.count() == 4
    assert world.doubled() == {}


def test_the_world_counts_the_effects_of_many_threads() -> None:
    world, gate = CountingWorld(), threading.Barrier(8)

    def work() -> None:
        gate.wait(10)
        for _ in range(50):
            world.do("sheet")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({sheet["id"] for sheet in world.all()}) == 400


def test_an_ordinary_result_closes_the_open_doubt_of_its_step(tmp_path: Path) -> None:
    app = Doubtless("sqlite:///unused.db")

    @app.step(effect="idem_write", backoff="PT1H", settle_within="PT30M")
    def close(run_id: str, idempotency_key: str = injected()) -> dict[str, str]:
        return {"closed": run_id}

    @app.task
    def end(run_id: str) -> dict[str, str]:
        return close(run_id=run_id)

    with harness(app, tmp_path) as h:
        h.lose_reply(close)
        assert h.run(end, "r-1", run_id="r") == {"closed": "r"}  # a case opened after 30 minutes, the resend came after an hour
        assert h.inbox().cases == []
        assert app.verify() == []
        assert any("closed by doubtless" in moment.what for moment in app.show("r-1").steps[0].story)
