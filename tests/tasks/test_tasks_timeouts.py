"""Calls that overrun their timeout: the supervisor settles them, and what comes later is late news (rules 6, 12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tasks_ground import PATIENCE, Deploys, World, intents, kinds, only_case, outcomes, raised, rows, settle, statuses, until

from doubtless import (
    Absent,
    DidNotHappen,
    Doubtless,
    Happened,
    NeedsHuman,
    Noted,
    Pending,
    StepFailed,
    TaskBusy,
    TaskWaiting,
    injected,
)
from doubtless.calls import current
from doubtless.events import Kind
from doubtless.testing import FakeClock

SHORT = "PT0.05S"
"""The timeout of the steps here, in real time: a call that hangs is timed by the process's own clock."""


class Gate:
    """A place where a call hangs until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def hang(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


def evidence(app: Doubtless, task_id: str = "t") -> list[Any]:
    return [row.details["what"] for row in rows(app, task_id) if row.kind == Kind.EVIDENCE_STORED]


def free(app: Doubtless, task_id: str = "t") -> Any:
    """Wait until no thread of this process has the task."""
    return until(lambda: app.show(task_id).owner is None, "the task's release")


def test_a_write_that_overran_and_is_found_goes_on_by_replay_in_a_new_thread(app: Doubtless, world: World, gate: Gate) -> None:
    passes: list[int] = []

    @app.step(effect="non_idem_write")
    def first() -> int:
        world.do("first")
        return 1

    def find(idempotency_key: str) -> Any:
        return world.find("pay", idempotency_key)

    @app.step(effect="non_idem_write", query=find, timeout=SHORT)
    def pay(idempotency_key: str = injected()) -> dict[str, Any]:
        world.do("pay", None, idempotency_key)
        gate.hang()
        return {"late": True}

    @app.task
    def task() -> Any:
        passes.append(threading.get_ident())
        return [first(), pay()["name"]]

    assert app.run(task, "t") == [1, "pay"]
    assert len(passes) == 2
    assert passes[0] != passes[1]
    assert (world.n("first"), world.n("pay")) == (1, 1)
    assert outcomes(app, "t", "2") == [("unknown", "timeout")]
    assert app.show("t").steps[1].settled_by == "the look-back found it"

    gate.open.set()
    until(lambda: evidence(app) == ["late_result"], "the late result")
    free(app)
    assert app.run(task, "t") == [1, "pay"]  # what is settled stays
    assert app.inbox().cases == []


def test_without_a_query_a_case_opens_while_the_thread_still_runs_and_the_task_stays_owned(
    app: Doubtless, world: World, gate: Gate
) -> None:
    @app.step(effect="non_idem_write", timeout=SHORT)
    def chat() -> str:
        world.do("chat")
        gate.hang()
        return "sent"

    @app.task
    def task() -> str:
        return chat()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert not gate.open.is_set()
    assert only_case(app).kind == "doubt"
    assert app.show("t").owner_alive
    with pytest.raises(TaskBusy, match="this process"):
        app.run(task, "t")
    ended = [row for row in rows(app, "t") if row.kind == Kind.ATTEMPT_ENDED]
    assert [row.details for row in ended] == [{"running": True}]

    gate.open.set()
    free(app)
    assert app.run(task, "t") == "sent"  # the late result settled it
    assert app.inbox().cases == []
    assert app.show("t").steps[0].settled_by == "a late reply"
    assert world.n() == 1


def test_what_a_person_said_is_not_overwritten_by_the_late_result(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="non_idem_write", timeout=SHORT)
    def chat() -> str:
        gate.hang()
        return "late"

    @app.task
    def task() -> str:
        return chat()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    settle(app, Happened("seen by anna"))
    gate.open.set()
    free(app)
    assert app.run(task, "t") == "seen by anna"
    assert evidence(app) == ["late_result"]
    assert app.inbox().cases == []  # both say that it happened


def test_a_late_success_after_a_person_gave_the_step_up_is_a_contradiction(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="non_idem_write", timeout=SHORT, query=lambda: Pending("PT1S"), settle_within="PT10S")
    def chat() -> str:
        gate.hang()
        return "late"

    def answer(case: Any) -> None:
        if case.kind == "doubt":
            app.settle(case.id, DidNotHappen("fail", even_now=True), by="anna", why="sure", shown=case.hash)

    app.on_case(answer)

    @app.task
    def task() -> str:
        try:
            return chat()
        except StepFailed as failure:
            return failure.kind

    assert app.run(task, "t") == "not_applied"
    gate.open.set()
    free(app)
    case = only_case(app)
    assert (case.kind, case.path) == ("contradiction", "1")
    assert statuses(app, "t") == {"1": "not_applied"}  # what is settled never changes
    assert app.run(task, "t") == "not_applied"
    app.settle(case.id, Noted(), by="anna", why="refunded by hand", shown=case.hash)
    assert app.inbox().cases == []


def test_a_late_success_settles_a_step_that_waits_in_place(app: Doubtless, world: World, gate: Gate) -> None:
    looks: list[int] = []

    def find() -> Any:
        looks.append(1)
        if len(looks) == 3:
            gate.open.set()
        return Pending("PT1M")

    @app.step(effect="non_idem_write", query=find, timeout=SHORT, settle_within="P300D")
    def pay() -> str:
        world.do("pay")
        gate.hang()
        return "late"

    @app.task
    def task() -> str:
        return pay()

    assert app.run(task, "t") == "late"
    assert evidence(app) == ["late_result"]
    assert app.show("t").steps[0].settled_by == "a late reply"
    assert world.n() == 1


def test_a_late_success_after_an_attempt_that_a_person_risked_is_a_contradiction(
    app: Doubtless, world: World, gate: Gate
) -> None:
    """Rule 12: `even_now` sent again while the first call still ran; both came through."""

    @app.step(effect="non_idem_write", timeout=SHORT, query=lambda: Pending("PT1S"), settle_within="PT10S")
    def pay() -> int:
        number = world.do("pay")["id"]
        if number == 1:
            gate.hang()
        return int(number)

    def answer(case: Any) -> None:
        if case.kind == "doubt":
            app.settle(case.id, DidNotHappen("retry", even_now=True), by="anna", why="at my risk", shown=case.hash)

    app.on_case(answer)

    @app.task
    def task() -> int:
        return pay()

    assert app.run(task, "t") == 2
    assert intents(app, "t") == {"1": 1}
    gate.open.set()
    free(app)
    case = only_case(app)
    assert case.kind == "contradiction"
    assert "attempt 1" in case.why
    assert statuses(app, "t") == {"1": "done"}
    assert app.run(task, "t") == 2


def test_a_late_success_that_settles_a_step_whose_risked_attempt_is_in_doubt_too_is_a_contradiction(
    app: Doubtless, world: World, gate: Gate
) -> None:
    """Rule 12: the first call came through late, and nobody knows of the second, which no key protects."""

    @app.step(effect="non_idem_write", timeout=SHORT, query=lambda: Pending("PT1S"), settle_within="PT10S")
    def pay() -> int:
        number = world.do("pay")["id"]
        if number == 1:
            gate.hang()
            return 1
        gate.open.set()
        until(lambda: Kind.EVIDENCE_STORED in kinds(app, "t"), "the late reply of the first call")
        raise ConnectionResetError("the second reply was lost")

    def answer(case: Any) -> None:
        if case.kind == "doubt" and world.n() == 1:
            app.settle(case.id, DidNotHappen("retry", even_now=True), by="anna", why="at my risk", shown=case.hash)

    app.on_case(answer)

    @app.task
    def task() -> int:
        return pay()

    assert app.run(task, "t") == 1
    free(app)
    case = only_case(app)
    assert case.kind == "contradiction"
    assert "attempt 1" in case.why
    assert statuses(app, "t") == {"1": "done"}
    assert world.n() == 2


def test_a_drain_between_two_passes_is_not_lost(app: Doubtless, world: World, gate: Gate) -> None:
    looks: list[int] = []

    @app.step(effect="non_idem_write", query=lambda: looks.append(1), timeout=SHORT)
    def pay() -> str:
        world.do("pay")
        gate.hang()
        return "late"

    @app.task
    def task() -> str:
        return pay()

    def drain_while_it_is_given_up(point: str) -> None:
        if point == "append:before" and threading.current_thread() is threading.main_thread() and world.n():
            app.drain()

    app._hooks = drain_while_it_is_given_up
    with pytest.raises(TaskWaiting):
        app.run(task, "t")
    assert looks == []
    assert app.show("t").status == "ready"
    gate.open.set()
    free(app)
    assert app.run(task, "t") == "late"


def test_no_second_attempt_begins_before_the_first_call_has_ended(
    everywhere: Deploys, world: World, gate: Gate, clock: FakeClock
) -> None:
    """C84: also where an absence would be proof, time alone never ends a call that still runs."""
    app = everywhere()
    looks: list[int] = []

    def find() -> Any:
        looks.append(clock.now().wall)
        if len(looks) == 6:
            assert world.n() == 1
            gate.open.set()
        return Absent()

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", on_absent="retry", timeout=SHORT, settle_within="P300D")
    def pay() -> str:
        world.do("pay")
        if world.n() == 1:
            gate.hang()
            raise ConnectionError
        return "second"

    @app.task
    def task() -> str:
        return pay()

    assert app.run(task, "t") == "second"
    assert evidence(app) == ["late_error"]
    late = next(row for row in rows(app, "t") if row.kind == Kind.EVIDENCE_STORED)
    again = next(row for row in rows(app, "t") if row.kind == Kind.ATTEMPT_STARTED)
    assert again.at.wall - late.at.wall >= 60 * 1_000_000  # absent_after runs from the end of the call, its thread included
    assert looks[5] - looks[0] > 0


def test_a_call_that_ends_while_it_is_given_up_is_not_recorded_as_running(
    deploy: Deploys, world: World, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late news stands before the row that gives it up; an absence can be proven all the same."""
    frames: list[Any] = []
    now = deploy.clock.now

    def slow_now() -> Any:
        """The supervisor has taken the call away and asks for the time of its row: just now the call ends."""
        if frames and frames[0].overrun and threading.current_thread() is threading.main_thread():
            frames.clear()
            gate.open.set()
            until(lambda: evidence(app), "the late news")
        return now()

    monkeypatch.setattr(deploy.clock, "now", slow_now)
    app = deploy()

    @app.step(effect="non_idem_write", query=lambda: None, absent_after="PT1M", on_absent="retry", timeout=SHORT)
    def pay() -> str:
        if world.do("pay")["id"] > 1:
            return "second"
        frames.append(current.get())
        gate.hang()
        raise ConnectionError

    @app.task
    def task() -> str:
        return pay()

    assert app.run(task, "t") == "second"
    order = [row.kind for row in rows(app, "t") if row.kind in (Kind.EVIDENCE_STORED, Kind.ATTEMPT_ENDED)]
    assert order == [Kind.EVIDENCE_STORED, Kind.ATTEMPT_ENDED]
    assert Kind.CASE_OPENED not in kinds(app, "t")


def test_a_query_that_never_returns_is_unclear_until_its_budget_is_used_up_then_a_case(
    app: Doubtless, world: World, gate: Gate
) -> None:
    def find() -> Any:
        gate.hang()

    @app.step(effect="non_idem_write", query=find, timeout=SHORT, query_attempts=3)
    def pay() -> int:
        world.do("pay")
        raise ConnectionError

    @app.task
    def task() -> int:
        return pay()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    looks = [row.details["answer"] for row in rows(app, "t") if row.kind == Kind.LOOKED_BACK]
    assert looks == ["unclear"] * 3
    assert only_case(app).kind == "doubt"
    free(app)  # a query sends nothing: its thread does not hold the task
    settle(app, Happened(4))
    assert app.run(task, "t") == 4
    assert world.n() == 1


def test_an_answer_of_a_query_that_came_too_late_changes_nothing(app: Doubtless, gate: Gate) -> None:
    late = threading.Event()

    def find() -> Any:
        gate.hang()
        late.set()
        return {"found": True}

    @app.step(effect="non_idem_write", query=find, timeout=SHORT, query_attempts=1)
    def pay() -> dict[str, bool]:
        raise ConnectionError

    @app.task
    def task() -> Any:
        return pay()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    before = len(rows(app, "t"))
    gate.open.set()
    assert late.wait(PATIENCE)
    assert len(rows(app, "t")) == before
    assert app.run(task, "t") == {"found": True}  # every later claim makes one fresh look first


def test_a_read_that_overran_is_called_again(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="read", timeout=SHORT, attempts=3)
    def ask() -> int:
        number = int(world.do("ask")["id"])
        if number == 1:
            gate.hang()
        return number

    @app.task
    def task() -> int:
        return ask()

    assert app.run(task, "t") == 2
    assert outcomes(app, "t", "1")[0] == ("unknown", "timeout")
    gate.open.set()
    until(lambda: evidence(app), "the late result")
    assert app.run(task, "t") == 2
    assert app.inbox().cases == []


def test_reads_that_always_overrun_are_given_up(app: Doubtless, gate: Gate) -> None:
    @app.step(effect="read", timeout=SHORT, attempts=2)
    def ask() -> int:
        gate.hang()
        return 1

    @app.task
    def task() -> str:
        try:
            return str(ask())
        except StepFailed as failure:
            return f"{failure.kind} {failure.reason}"

    assert app.run(task, "t") == "exhausted timeout"


def test_an_idem_write_that_overran_is_sent_again_with_its_key(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="idem_write", timeout=SHORT)
    def pay(idempotency_key: str = injected()) -> int:
        number = int(world.do("pay", None, idempotency_key)["id"])
        if number == 1:
            gate.hang()
        return number

    @app.task
    def task() -> int:
        return pay()

    assert app.run(task, "t") == 2
    assert len(set(world.keys("pay"))) == 1
    gate.open.set()
    free(app)
    assert app.inbox().cases == []  # its key protects it: no contradiction


def test_a_late_result_that_cannot_be_stored_settles_the_effect_and_asks_for_the_output(app: Doubtless, gate: Gate) -> None:
    class Handle:
        pass

    @app.step(effect="non_idem_write", timeout=SHORT)
    def pay() -> Any:
        gate.hang()
        return Handle()

    @app.task
    def task() -> Any:
        return pay()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    gate.open.set()
    free(app)
    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    case = only_case(app)
    assert case.kind == "output"
    assert "Handle" in case.why
    assert statuses(app, "t") == {"1": "done"}


def test_a_late_result_that_the_store_does_not_take_is_kept_beside_it(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="non_idem_write", timeout=SHORT)
    def pay() -> str:
        world.do("pay")
        gate.hang()
        return "x" * 60_000

    @app.task
    def task() -> int:
        return len(pay())

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    store: Any = app.store
    store.limit_pages(store.pages())
    gate.open.set()
    until(lambda: store.spilled("t"), "the spilled result")
    store.limit_pages(None)
    deadlines = until(lambda: not isinstance(raised(app.resume, "t"), TaskBusy), "the release")
    assert deadlines
    assert app.run(task, "t") == 60_000
    assert store.spilled("t") == []
    assert world.n() == 1


# ---------------------------------------------------------------- async


def test_an_async_write_that_overran_is_cancelled_and_looked_for(app: Doubtless, world: World) -> None:
    ended: list[str] = []

    def find(idempotency_key: str) -> Any:
        assert ended == ["cancelled"]
        return world.find("pay", idempotency_key)

    @app.step(effect="non_idem_write", query=find, timeout=SHORT)
    async def pay(idempotency_key: str = injected()) -> dict[str, Any]:
        world.do("pay", None, idempotency_key)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return {}

    @app.task
    async def task() -> Any:
        return (await pay())["name"]

    assert asyncio.run(app.arun(task, "t")) == "pay"
    (row,) = [row for row in rows(app, "t") if row.kind == Kind.ATTEMPT_ENDED]
    assert row.details == {}  # nothing of it runs any more


def test_a_coroutine_that_swallows_its_cancellation_keeps_the_task_owned_until_it_has_ended(app: Doubtless, world: World) -> None:
    go_on = threading.Event()

    @app.step(effect="non_idem_write", timeout=SHORT)
    async def pay() -> str:
        world.do("pay")
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass
        return "late"

    @app.task
    async def task() -> str:
        return await pay()

    async def main() -> str:
        with pytest.raises(NeedsHuman):
            await app.arun(task, "t")
        assert only_case(app).kind == "doubt"
        with pytest.raises(TaskBusy):
            await app.arun(task, "t")
        go_on.set()
        while app.show("t").owner is not None:
            await asyncio.sleep(0.002)
        return await app.arun(task, "t")

    assert asyncio.run(main()) == "late"
    assert evidence(app) == ["late_result"]
    assert world.n() == 1


def test_run_of_an_async_task_returns_although_a_coroutine_swallows_its_cancellation(app: Doubtless, world: World) -> None:
    go_on = threading.Event()

    @app.step(effect="non_idem_write", timeout=SHORT)
    async def pay() -> str:
        world.do("pay")
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass
        return "late"

    @app.task
    async def task() -> str:
        return await pay()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    with pytest.raises(TaskBusy):
        app.run(task, "t")
    go_on.set()
    free(app)
    assert app.run(task, "t") == "late"
    assert world.n() == 1


def test_a_threaded_write_that_overran_keeps_the_task_owned_until_it_has_ended(app: Doubtless, world: World, gate: Gate) -> None:
    @app.step(effect="non_idem_write", timeout=SHORT)
    def pay() -> str:
        world.do("pay")
        gate.hang()
        return "late"

    @app.task
    async def task() -> str:
        return await pay.acall()

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    with pytest.raises(TaskBusy):
        app.run(task, "t")
    gate.open.set()
    free(app)
    assert asyncio.run(app.arun(task, "t")) == "late"
    assert evidence(app) == ["late_result"]
    assert world.n() == 1


def test_an_async_read_that_overran_is_called_again(app: Doubtless, world: World) -> None:
    @app.step(effect="read", timeout=SHORT)
    async def ask() -> int:
        number = int(world.do("ask")["id"])
        if number == 1:
            await asyncio.sleep(3600)
        return number

    @app.task
    async def task() -> int:
        return await ask()

    assert app.run(task, "t") == 2


def test_a_sync_query_of_an_async_step_that_hangs_does_not_block_the_loop(app: Doubtless, gate: Gate) -> None:
    ticks: list[int] = []

    def find() -> Any:
        gate.hang()

    @app.step(effect="non_idem_write", query=find, timeout=SHORT, query_attempts=1)
    async def pay() -> int:
        raise ConnectionError

    @app.task
    async def task() -> int:
        return await pay()

    async def main() -> None:
        running = asyncio.ensure_future(app.arun(task, "t"))
        while not running.done():
            ticks.append(1)
            await asyncio.sleep(0.001)
        with pytest.raises(NeedsHuman):
            await running

    asyncio.run(main())
    assert len(ticks) >= 3


# ---------------------------------------------------------------- settle_within


def test_settle_within_opens_a_case_in_place_whatever_else_is_going_on(app: Doubtless, clock: FakeClock) -> None:
    opened: list[int] = []
    app.on_case(lambda case: opened.append(clock.now().wall))

    @app.step(effect="non_idem_write", query=lambda: Pending("PT7M"), settle_within="PT10M")
    def pay() -> int:
        raise TimeoutError

    @app.task
    def task() -> int:
        return pay()

    with pytest.raises(TaskWaiting) as caught:
        app.run(task, task_id="t", wait="PT1H")
    case = only_case(app)
    intended = next(row for row in rows(app, "t") if row.kind == Kind.STEP_INTENDED).at.wall
    assert 0 <= opened[0] - intended - 10 * 60 * 1_000_000 < 1_000_000
    assert "settle_within" in case.why
    assert caught.value.context["cases"] == [case.id]
    later = [row for row in rows(app, "t") if row.kind == Kind.LOOKED_BACK and row.at.wall > opened[0]]
    assert len(later) >= 5  # a case about a doubt does not stop the look-backs


def test_settle_within_is_found_past_by_a_later_run_too(app: Doubtless, clock: FakeClock) -> None:
    """A deadline needs no process: each check compares its stored time with the store's clock."""

    @app.step(effect="non_idem_write", query=lambda: Pending("P1D"), settle_within="PT10M")
    def pay() -> int:
        raise TimeoutError

    @app.task
    def task() -> int:
        return pay()

    with pytest.raises(TaskWaiting):
        app.run(task, "t", wait=False)
    assert app.inbox().cases == []
    assert app.tasks()[0].wake_at is not None
    clock.advance("PT11M")
    assert [doubt.path for doubt in app.inbox().doubts] == ["1"]
    with pytest.raises(TaskWaiting):
        app.resume("t", wait=False)
    assert only_case(app).kind == "doubt"
    assert Kind.CASE_OPENED in kinds(app, "t")


def test_a_person_who_answers_while_the_run_waits_in_place_moves_it_on(deploy: Deploys) -> None:
    app = deploy()
    deploy.clock.auto_advance = False

    @app.step(effect="non_idem_write", query=lambda: Pending("P1D"), settle_within="PT10M")
    def pay() -> str:
        raise TimeoutError

    @app.task
    def task() -> str:
        return pay()

    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(app.run(task, "t")))
    thread.start()
    deploy.clock.until_paused()
    deploy.clock.advance("PT10M")
    until(lambda: app.inbox().cases, "the case")
    settle(app, Happened("seen"))
    thread.join(PATIENCE)
    assert got == ["seen"]


@pytest.mark.parametrize("second", ["succeeds", "raises"])
def test_what_a_person_says_while_the_call_runs_stands_and_is_what_the_code_gets(
    app: Doubtless, world: World, second: str
) -> None:
    @app.step(effect="idem_write", backoff="PT1H", settle_within="PT10M")
    def pay(idempotency_key: str = injected()) -> str:
        world.do("pay")
        if world.n() == 1:
            raise TimeoutError
        settle(app, Happened("said"), kind="doubt")  # the case is open since PT10M
        if second == "raises":
            raise TimeoutError
        return "returned"

    seen: list[str] = []

    @app.task
    def task() -> str:
        seen.append(pay())
        if len(seen) == 1:
            raise KeyError
        return seen[-1]

    with pytest.raises(NeedsHuman):
        app.run(task, "t")
    assert app.run(task, "t") == "said"
    assert seen == ["said", "said"]
    assert world.n() == 2
    assert evidence(app) == (["late_result"] if second == "succeeds" else [])
    assert app.inbox().cases == []


def test_an_effect_that_came_after_a_person_gave_the_step_up_is_a_contradiction_and_the_code_sees_what_stands(
    app: Doubtless, world: World
) -> None:
    from doubtless import Abandon

    @app.step(effect="idem_write", backoff="PT1H", settle_within="PT10M")
    def pay(idempotency_key: str = injected()) -> str:
        world.do("pay")
        if world.n() == 1:
            raise TimeoutError
        settle(app, Abandon(), kind="doubt")
        return "returned"

    @app.task
    def task() -> str:
        try:
            return pay()
        except StepFailed as failure:
            return failure.kind

    assert app.run(task, "t") == "abandoned"
    assert app.run(task, "t") == "abandoned"
    assert only_case(app).kind == "contradiction"
