"""Failures that other engines had with pauses, questions and signals, by their number in tests/cases.json."""

from __future__ import annotations

from typing import Any

import pytest
from waiting_ground import Deploys, answer, got, question, raised, rows, task_of

from doubtless import (
    AlreadySettled,
    Answer,
    CaseChanged,
    Denied,
    Deny,
    Doubtless,
    EventRefused,
    Expired,
    NeedsHuman,
    UnknownCase,
    injected,
)
from doubtless.events import Kind
from doubtless.testing import FakeClock, Killed, harness

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


# ---------------------------------------------------------------- C01


@both
@pytest.mark.parametrize("kill", [None, "intent", "effect", "record"])
def test_a_pause_inside_a_loop_runs_what_stands_before_it_once_a_round(
    tmp_path: Any, asynchronous: bool, kill: str | None
) -> None:
    """C01: three rounds notify three times, however often the body is entered from the top, also through a crash."""
    app = Doubtless()
    sent: list[tuple[int, str]] = []

    def find(idempotency_key: str) -> dict[str, str] | None:
        return {"key": idempotency_key} if any(key == idempotency_key for _, key in sent) else None

    @app.step(effect="non_idem_write", query=find, absent_after="PT1S", on_absent="retry")
    def notify(number: int, idempotency_key: str = injected()) -> dict[str, str]:
        sent.append((number, idempotency_key))
        return {"key": idempotency_key}

    async def body() -> Any:
        return [(notify(number=0), await got(app.wait_for("reply")))[1] for _ in range(3)]

    task = task_of(app, body, asynchronous=asynchronous)
    with harness(app, tmp_path) as h:
        if kill is not None:
            h.kill(notify, after=kill, skip=1)  # type: ignore[arg-type]
        answered = 0
        while answered < 3:
            stands = raised(h.run, task, "t")
            if isinstance(stands, Killed):
                continue
            assert isinstance(stands, NeedsHuman)
            assert len(sent) == answered + 1
            h.settle_all(Answer(answered))
            answered += 1
        assert h.run(task, "t") == [0, 1, 2]
    assert [number for number, _ in sent] == [0, 0, 0]
    assert len({key for _, key in sent}) == 3


# ---------------------------------------------------------------- C08


@both
@pytest.mark.parametrize("by", ["person", "event", "worker"])
def test_another_process_that_knows_only_the_id_goes_on_after_the_wait_and_calls_nothing_before_it(
    deploy: Deploys, asynchronous: bool, by: str
) -> None:
    """C08: what has run before the wait is answered from the log, whoever resumes the task."""
    from test_sleep import until

    calls: list[str] = []

    def declare(app: Doubtless, process: str) -> Any:
        @app.step(effect="read")
        def before() -> int:
            calls.append(f"{process} before")
            return 1

        @app.step(effect="idem_write", idempotent_by="its place")
        def after(value: int) -> int:
            calls.append(f"{process} after")
            return value

        async def body() -> Any:
            return before() + after(await got(app.wait_for("go", schema=int)))

        return task_of(app, body, asynchronous=asynchronous)

    first = deploy()
    raised(first.run, declare(first, "A"), "t")
    first.close()
    second = deploy()
    declare(second, "B")
    if by == "person":
        answer(second, Answer(41))
    else:
        second.send_event("t", "go", 41, event_id="e")
    if by == "worker":
        with second.worker():
            until(lambda: second.show("t").status == "done")
    assert second.resume("t") == 42
    assert calls == ["A before", "B after"]


# ---------------------------------------------------------------- C73


@both
def test_a_finished_run_is_not_resumed_or_answered_again(deploy: Deploys, asynchronous: bool) -> None:
    """C73: after a denial no approval runs the tool, and what has ended takes no answer and no event."""
    app, ran = deploy(), []

    @app.step(effect="idem_write", idempotent_by="its place")
    def tool() -> int:
        ran.append(1)
        return 1

    async def body() -> Any:
        try:
            if await got(app.wait_for("approve", schema=bool)):
                return tool()
        except Denied:
            return "denied"

    task = task_of(app, body, asynchronous=asynchronous)
    raised(app.run, task, "t")
    case = question(app)
    app.settle(case.id, Deny(), by="anna", why="no", shown=case.hash)
    for _ in range(2):
        again = raised(app.settle, case.id, Answer(True), by="otto", why="yes", shown=case.hash)
        assert isinstance(again, AlreadySettled)
        assert "by anna" in str(again)
        assert app.run(task, "t") == "denied"
        assert isinstance(raised(app.send_event, "t", "approve", True, event_id="e"), EventRefused)
        assert app.resume("t") == "denied"
    assert ran == []


# ---------------------------------------------------------------- C75


@both
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_answers_to_parallel_questions_reach_their_own_waits_in_whatever_order_they_come(
    deploy: Deploys, asynchronous: bool, order: str
) -> None:
    """C75: an answer addresses a case, not the next wait."""
    app = deploy()

    async def body() -> Any:
        return await got(app.parallel(lambda: app.wait_for("a", about=1), lambda: app.wait_for("b", about=2)))

    task = task_of(app, body, asynchronous=asynchronous)
    assert len(raised(app.run, task, "t").cases) == 2
    a, b = question(app, "a"), question(app, "b")
    assert (a.evidence["about"], b.evidence["about"]) == (1, 2)
    assert isinstance(raised(app.settle, a.id, Answer("x"), by="anna", why="x", shown=b.hash), CaseChanged)
    for name in order:
        answer(app, Answer(f"to {name}"), name)
    assert app.run(task, "t") == ["to a", "to b"]


# ---------------------------------------------------------------- C76


def asks_about(app: Doubtless, amount: int) -> Any:
    @app.task(name="task")
    def task() -> Any:
        return app.wait_for("approve", schema=bool, about={"amount": amount})

    return task


def test_an_approval_given_for_one_task_is_none_for_another(deploy: Deploys) -> None:
    """C76: two tasks that ask the same have two cases, and what was shown of one does not answer the other."""
    app = deploy()
    task = asks_about(app, 500)
    for name in ("one", "other"):
        raised(app.run, task, name)
    by_task = {case.task_id: case for case in app.inbox().cases}
    one, other = by_task["one"], by_task["other"]
    assert isinstance(raised(app.settle, other.id, Answer(True), by="anna", why="x", shown=one.hash), CaseChanged)
    app.settle(one.id, Answer(True), by="anna", why="x", shown=one.hash)
    assert app.run(task, "one") is True
    assert isinstance(raised(app.run, task, "other"), NeedsHuman)
    assert isinstance(raised(app.settle, "third:3", Answer(True), by="a", why="x", shown=one.hash), UnknownCase)


@pytest.mark.parametrize("answered", [False, True], ids=["open", "answered"])
def test_an_approval_given_for_one_state_is_none_for_another(deploy: Deploys, answered: bool) -> None:
    """C76: code that asks about something else than was answered has diverged; the old approval is not taken for it."""
    app = deploy()
    raised(app.run, asks_about(app, 500), "t")
    if answered:
        answer(app, Answer(True))
    later = deploy()
    task = asks_about(later, 50_000)
    assert isinstance(raised(later.run, task, "t"), NeedsHuman)
    diverged = [case for case in later.inbox().cases if case.kind == "diverged"]
    assert len(diverged) == 1
    assert diverged[0].evidence["field"] == "params.about.amount"


# ---------------------------------------------------------------- C78


@both
def test_a_wait_that_runs_out_is_expired_and_nobody_has_rejected_it(
    deploy: Deploys, clock: FakeClock, asynchronous: bool
) -> None:
    """C78: in the log, in show and in the code's hands an expiry is no denial."""
    app = deploy()

    async def body() -> Any:
        try:
            return await got(app.wait_for("approve", deadline="PT15S"))
        except Expired as error:
            return [type(error).__name__, str(error)]

    task = task_of(app, body, asynchronous=asynchronous)
    assert app.run(task, "t") == ["Expired", "nobody answered the question 'approve' at 1 by its deadline"]
    (closed,) = [row for row in rows(app, "t") if row.kind == Kind.CASE_SETTLED]
    assert (closed.details["answer"], closed.details["by"]) == ("expired", "doubtless")
    step = app.show("t").steps[0]
    assert step.error["code"] == "expired"
    assert step.settled_by == "its deadline"
    told = " ".join(moment.what for moment in step.story)
    assert "den" not in told
    assert "reject" not in told


# ---------------------------------------------------------------- C102


def test_events_are_handled_in_the_order_of_the_log_on_each_replay_and_two_copies_do_not_mix(deploy: Deploys) -> None:
    """C102: which wait took which event is in the log; two processes that replay it see the same, each its own."""
    passes: list[list[Any]] = []

    def declare(app: Doubtless) -> Any:
        @app.task
        def task() -> Any:
            seen: list[Any] = []
            passes.append(seen)
            for name in ("b", "a", "a", "b"):
                seen.append([name, app.wait_for(name)])
            raise KeyError("the code's own fault")

        return task

    app = deploy()
    app.start(declare(app), "t")
    for number, name in enumerate("aabb"):
        app.send_event("t", name, number, event_id=str(number))
    copies = [deploy() for _ in range(3)]
    tasks = [declare(copy) for copy in copies]
    for copy, task in zip(copies, tasks, strict=True):
        raised(copy.run, task, "t")
    assert passes == [[["b", 2], ["a", 0], ["a", 1], ["b", 3]]] * 3
    assert [row.details["event"] for row in rows(app, "t") if "event" in row.details] == [4, 2, 3, 5]


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_snapshot_knows_which_events_are_taken(deploy: Deploys, clock: FakeClock, every: int) -> None:
    """C102, with snapshots: what a wait has taken before or after a snapshot is not taken again."""

    def declare(app: Doubtless) -> Any:
        @app.task(snapshot_every=every)
        def task() -> Any:
            taken = [app.wait_for("tick") for _ in range(5)]
            app.sleep("PT1M")
            return [*taken, app.wait_for("tick"), app.wait_for("tick")]

        return task

    app = deploy()
    app.start(declare(app), "t")
    for number in range(5):
        app.send_event("t", "tick", number, event_id=str(number))
    raised(app.run, app.declared_tasks["task"], "t", wait=False)
    clock.advance("PT1M")
    for number in (5, 6):
        later = deploy()
        declare(later)
        raised(later.resume, "t", wait=False)
        later.send_event("t", "tick", number, event_id=str(number))
    assert later.resume("t") == list(range(7))
