"""`app.wait_for`: a question in the inbox, answered once: by a person, by an event, or not in time."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict

import pydantic
import pytest
from waiting_ground import Deploys, answer, got, kinds, question, raised, rows, task_of

from doubtless import (
    AlreadySettled,
    Answer,
    AnswerRefused,
    CaseChanged,
    Denied,
    Deny,
    Doubtless,
    Expired,
    Happened,
    Late,
    NeedsHuman,
    OutsideTask,
    StepFailed,
    TaskFailed,
    TaskWaiting,
    UsageError,
)
from doubtless.events import Kind
from doubtless.testing import FakeClock

START = 1_795_856_400_000_000
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def asking(app: Doubtless, *, asynchronous: bool = False, **how: Any) -> Any:
    """A task that asks, and says what came of it."""

    async def body() -> Any:
        try:
            return ["answer", await got(app.wait_for("approve", **how))]
        except Denied as error:
            return ["denied", error.by, error.why]
        except Expired as error:
            return ["expired", error.deadline]

    return task_of(app, body, asynchronous=asynchronous)


@both
def test_a_person_answers_and_the_task_goes_on_with_the_value(deploy: Deploys, asynchronous: bool) -> None:
    app = deploy()
    task = asking(app, asynchronous=asynchronous, schema=bool)
    stands = raised(app.run, task, "t")
    assert isinstance(stands, NeedsHuman)
    assert stands.cases == (question(app).id,)
    answer(app, Answer(True))
    assert app.show("t").status == "ready"
    assert app.run(task, "t") == ["answer", True]
    assert app.run(task, "t") == ["answer", True]
    assert app.inbox().cases == []


@both
def test_a_denial_is_seen_by_the_task_with_who_and_why(deploy: Deploys, asynchronous: bool) -> None:
    app = deploy()
    task = asking(app, asynchronous=asynchronous)
    raised(app.run, task, "t")
    answer(app, Deny(), by="otto", why="too dear")
    assert app.run(task, "t") == ["denied", "otto", "too dear"]


@both
def test_a_question_that_nobody_answers_expires_at_its_deadline(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    app = deploy()
    task = asking(app, asynchronous=asynchronous, deadline="P1D")
    waiting = raised(app.run, task, "t", wait=False)
    assert isinstance(waiting, TaskWaiting)
    assert waiting.until.wall == START + 86_400_000_000
    assert app.run(task, "t") == ["expired", START + 86_400_000_000]
    assert app.inbox().cases == []


@both
def test_what_came_of_it_is_the_same_on_replay(deploy: Deploys, clock: FakeClock, asynchronous: bool) -> None:
    passes: list[list[Any]] = []

    def declare(app: Doubtless) -> Any:
        async def body() -> None:
            seen: list[Any] = []
            passes.append(seen)
            for name in ("a", "b", "c"):
                try:
                    seen.append(await got(app.wait_for(name, deadline="P1D", schema=Decimal)))
                except StepFailed as error:
                    seen.append(error)
            raise KeyError("the code's own fault")

        return task_of(app, body, asynchronous=asynchronous)

    app = deploy()
    task = declare(app)
    raised(app.run, task, "t", wait=False)
    answer(app, Answer(Decimal("1.50")))
    raised(app.run, task, "t", wait=False)
    answer(app, Deny(), why="no")
    raised(app.run, task, "t", wait=False)
    clock.advance("P1D")
    raised(app.run, task, "t", wait=False)
    later = deploy()
    raised(later.run, declare(later), "t", wait=False)
    first, again = passes[-2:]
    assert first[0] == again[0] == Decimal("1.50")
    assert [type(error) for error in first[1:]] == [Denied, Expired]
    for one, other in zip(first[1:], again[1:], strict=True):
        assert (type(one), str(one), one.detail, one.kind) == (type(other), str(other), other.detail, other.kind)
        copy = pickle.loads(pickle.dumps(one))
        assert (type(copy), str(copy)) == (type(one), str(one))


@pytest.mark.parametrize("how", ["denied", "expired"])
def test_uncaught_a_denial_or_an_expiry_fails_the_task_for_good_and_says_which(
    deploy: Deploys, clock: FakeClock, how: str
) -> None:
    app = deploy()

    @app.task
    def task() -> Any:
        return app.wait_for("approve", deadline="PT1H")

    raised(app.run, task, "t", wait=False)
    if how == "denied":
        answer(app, Deny(), why="no")
    else:
        clock.advance("PT1H")
    failed = raised(app.run, task, "t", wait=False)
    assert isinstance(failed, TaskFailed)
    assert failed.status == "failed"
    assert how in str(failed)
    assert failed.context["failure"]["code"] == how


def test_late_denied_and_expired_are_three_things_to_whoever_answers(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()
    task = asking(app, deadline="PT1H")
    for name in ("late", "denied", "expired"):
        raised(app.run, task, name, wait=False)
    by_task = {case.task_id: case for case in app.inbox().cases}

    def settle(name: str) -> BaseException | None:
        case = by_task[name]
        return raised(app.settle, case.id, Answer(1), by="anna", why="yes", shown=case.hash)

    app.settle(by_task["denied"].id, Deny(), by="otto", why="no", shown=by_task["denied"].hash)
    denied = settle("denied")
    assert isinstance(denied, AlreadySettled)
    assert "already settled, by otto" in str(denied)
    assert "with deny" in str(denied)
    clock.advance("PT1H")
    before = len(rows(app, "late"))
    late = settle("late")
    assert isinstance(late, Late)
    assert "expired at 2026-11-28T10:00:00Z" in str(late)
    assert "nothing was written" in str(late)
    assert len(rows(app, "late")) == before  # no process has recorded the expiry
    assert app.run(task, "expired", wait=False)[0] == "expired"
    assert isinstance(settle("expired"), Late)
    assert app.run(task, "late", wait=False)[0] == "expired"


def test_an_answer_a_moment_before_the_deadline_counts_whenever_the_task_takes_it(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()
    task = asking(app, deadline="PT1H")
    raised(app.run, task, "t", wait=False)
    clock.advance(timedelta(hours=1, microseconds=-1))
    answer(app, Answer(1))
    clock.advance("P1D")
    assert app.run(task, "t") == ["answer", 1]


def test_a_deadline_may_be_a_moment_and_counts_through_a_clock_that_is_set_back(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()
    task = asking(app, deadline=datetime(2026, 11, 28, 10, tzinfo=UTC))
    assert raised(app.run, task, "t", wait=False).until.wall == START + 3_600_000_000
    assert question(app).evidence["deadline"] == "2026-11-28T10:00:00+00:00"
    clock._wall -= 7_200_000_000
    clock.advance("PT1H")
    assert isinstance(raised(answer, app, Answer(1)), Late)
    assert app.run(task, "t", wait=False)[0] == "expired"


def test_a_worker_records_the_expiry_and_the_task_goes_on(deploy: Deploys, clock: FakeClock) -> None:
    from test_sleep import until

    clock.auto_advance = False
    app = deploy()
    app.start(asking(app, deadline="PT1H"), "t")
    with app.worker() as worker:
        until(lambda: app.show("t").status == "waiting")
        clock.advance("PT1H")
        worker.wake()
        until(lambda: app.show("t").status == "done")
    assert app.show("t").output[0] == "expired"


def test_a_task_that_waits_without_a_deadline_costs_a_worker_nothing(deploy: Deploys, clock: FakeClock) -> None:
    from test_sleep import until

    app = deploy()
    app.start(asking(app), "t")
    claimed: list[str] = []
    with app.worker() as worker:
        until(lambda: app.show("t").status == "needs_human")
        until(lambda: not worker._busy)
        claim, app.store.claim = app.store.claim, lambda task_id: claimed.append(task_id) or claim(task_id)  # type: ignore[method-assign]
        assert app.store.heads(status=("ready", "running", "waiting", "needs_human"), due=clock.now().wall) == []
        for _ in range(5):
            worker._claim_due()
        assert claimed == []
        answer(app, Answer(7))
        until(lambda: app.show("t").status == "done")
    assert claimed == ["t"]


# ---------------------------------------------------------------- what the person sees


def test_the_case_shows_the_name_what_it_is_about_the_schema_and_the_deadline(deploy: Deploys) -> None:
    app = deploy()
    raised(app.run, asking(app, schema=Literal["yes", "no"], about={"amount": 500}, deadline="PT1H"), "t", wait=False)
    case = question(app)
    assert case.kind == "question"
    assert case.evidence == {
        "name": "approve", "about": {"amount": 500}, "schema": {"enum": ["yes", "no"]}, "deadline": "2026-11-28T10:00:00+00:00",
    }  # fmt: skip
    assert set(case.answers) == {"answer", "deny"}
    assert "Denied" in case.answers["deny"]
    assert "approve" in case.why


def test_the_hook_is_told_of_a_question(deploy: Deploys) -> None:
    app, told = deploy(), []
    app.on_case(lambda case: told.append((case.kind, case.evidence["name"])))
    raised(app.run, asking(app), "t")
    assert told == [("question", "approve")]


def test_an_answer_is_bound_to_the_case_and_to_what_was_shown(deploy: Deploys) -> None:
    app = deploy()
    raised(app.run, asking(app), "t")
    case = question(app)
    assert isinstance(raised(app.settle, case.id, Answer(1), by="anna", why="x", shown="0" * 64), CaseChanged)
    assert isinstance(raised(app.settle, case.id, Happened(1), by="anna", why="x", shown=case.hash), AnswerRefused)
    assert question(app).id == case.id


def test_show_and_the_inbox_tell_what_was_asked_and_who_answered(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()
    task = asking(app, deadline="PT1H")
    for name in ("yes", "no", "never", "event"):
        raised(app.run, task, name, wait=False)
    by_task = {case.task_id: case for case in app.inbox().cases}
    app.settle(by_task["yes"].id, Answer(1), by="anna", why="ok", shown=by_task["yes"].hash)
    app.settle(by_task["no"].id, Deny(), by="otto", why="dear", shown=by_task["no"].hash)
    app.send_event("event", "approve", 2, event_id="e1")
    clock.advance("PT1H")
    app.run(task, "never", wait=False)
    told = {name: app.show(name).steps[0] for name in by_task}
    assert {name: step.settled_by for name, step in told.items()} == {
        "yes": "a person: anna", "no": "a person: otto", "never": "its deadline", "event": "event e1",
    }  # fmt: skip
    assert {name: step.status for name, step in told.items()} == {
        "yes": "done", "no": "failed", "never": "failed", "event": "done",
    }  # fmt: skip
    assert told["yes"].output == 1
    assert told["no"].error["code"] == "denied"
    assert told["never"].error["code"] == "expired"
    assert all(step.calls == 0 for step in told.values())


# ---------------------------------------------------------------- schemas


class Colour(Enum):
    RED = "red"


@dataclass
class Approval:
    ok: bool
    limit: int = 0


class Note(TypedDict):
    text: str


class Model(pydantic.BaseModel):
    amount: int = pydantic.Field(ge=1)


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


FITS: list[tuple[Any, Any, Any, Any]] = [
    (str, "x", "x", 1),
    (int, 3, 3, True),
    (float, 3, 3.0, "3"),
    (bool, True, True, 1),
    (Literal["yes", "no"], "no", "no", "maybe"),
    (Colour, "red", Colour.RED, "blue"),
    (Approval, {"ok": True}, Approval(True), {"ok": "yes"}),
    (Approval, Approval(False, 3), Approval(False, 3), {"ok": True, "more": 1}),
    (Note, {"text": "t"}, {"text": "t"}, {}),
    (Model, {"amount": 1}, Model(amount=1), {"amount": 0}),
    (Even, {"n": 2}, Even(n=2), {"n": 1}),
    (list[int], [1, 2], [1, 2], [1, "2"]),
    (dict[str, int], {"a": 1}, {"a": 1}, {"a": None}),
    (int | None, None, None, "none"),
    (datetime, "2026-11-28T09:00:00+00:00", datetime(2026, 11, 28, 9, tzinfo=UTC), 3),
    (Decimal, Decimal("1.0"), Decimal("1.0"), []),
]
schemas = pytest.mark.parametrize(("schema", "good", "value", "bad"), FITS, ids=[str(row[0]) for row in FITS])


@schemas
@pytest.mark.parametrize("by", ["person", "event", "event of a process without the code"])
def test_an_answer_is_checked_before_it_is_taken_and_comes_in_its_type(
    deploy: Deploys, schema: Any, good: Any, value: Any, bad: Any, by: str
) -> None:
    app, seen = deploy(), []

    @app.task
    def task() -> None:
        seen.append(app.wait_for("approve", schema=schema))

    raised(app.run, task, "t")
    outside = deploy() if "without" in by else app
    before = len(rows(app, "t"))

    def give(what: Any) -> None:
        if by == "person":
            answer(app, Answer(what))
        else:
            outside.send_event("t", "approve", what, event_id=f"e-{what}")

    refused = raised(give, bad)
    assert isinstance(refused, UsageError)
    assert "nothing was written" in str(refused)
    assert len(rows(app, "t")) == before
    give(good)
    app.run(task, "t")
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_an_early_event_that_does_not_fit_is_shown_to_a_person_who_gives_the_value(deploy: Deploys) -> None:
    app = deploy()
    task = asking(app, schema=int)
    app.start(task, "t")
    app.send_event("t", "approve", "seven", event_id="e")
    assert isinstance(raised(app.run, task, "t"), NeedsHuman)
    (case,) = app.inbox().cases
    assert case.kind == "output"
    assert "expected int" in case.why
    app.settle(case.id, Answer(7), by="anna", why="meant 7", shown=case.hash)
    assert app.run(task, "t") == ["answer", 7]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("", {}), ("x" * 201, {}), (3, {}), ("\ud800", {}), ("a", {"deadline": "soon"}), ("a", {"deadline": 0}),
        ("a", {"deadline": datetime(2026, 1, 1)}), ("a", {"about": {1, 2}}), ("a", {"schema": set[int]}),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_is_written(deploy: Deploys, name: Any, how: Any) -> None:
    app = deploy()

    @app.task
    def task() -> None:
        with pytest.raises(UsageError):
            app.wait_for(name, **how)

    app.run(task, "t")
    assert Kind.CASE_OPENED not in kinds(app, "t")
    assert isinstance(raised(app.wait_for, "a"), OutsideTask)


def test_a_question_that_an_async_task_leaves_behind_is_closed_when_the_task_ends(deploy: Deploys) -> None:
    import asyncio

    app = deploy()

    @app.task
    async def task() -> str:
        try:
            async with asyncio.timeout(0):
                await app.wait_for("approve", deadline="P1D")
        except TimeoutError:
            return "went on"
        return "answered"

    assert app.run(task, "t", wait="P2D") == "went on"
    assert app.inbox().cases == []
    case = app.store.cases(task_id="t", settled=True)[0]
    error = raised(app.settle, case.case_id, Answer(1), by="anna", why="x", shown="0" * 64)
    assert isinstance(error, AlreadySettled)


def test_the_loser_of_a_race_is_left_when_the_code_ends(deploy: Deploys, clock: FakeClock) -> None:
    import asyncio

    clock.auto_advance = False
    app = deploy()

    @app.task
    async def task() -> str:
        ask = asyncio.ensure_future(app.wait_for("approve", deadline="P1D"))
        sleep = asyncio.ensure_future(app.sleep("PT1M"))
        done, _ = await asyncio.wait([ask, sleep], return_when=asyncio.FIRST_COMPLETED)
        return "answer" if ask in done else "slept"

    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(app.run(task, "t")))
    thread.start()
    clock.until_paused()
    clock.advance("PT1M")
    thread.join(20)
    assert ended == ["slept"]
    assert app.inbox().cases == []
