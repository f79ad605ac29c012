"""`app.send_event`: once per id, before or after the wait, in the order of the log; late is late."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from tests import nursery
from waiting_ground import Deploys, answer, got, kinds, question, raised, rows, task_of

from doubtless import Answer, Deny, Doubtless, EventRefused, Expired, Late, NeedsHuman, UnknownTask, UsageError
from doubtless.errors import Denied
from doubtless.events import Kind
from doubtless.testing import FakeClock

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def collector(app: Doubtless, count: int = 3, *, asynchronous: bool = False, **how: Any) -> Any:
    """A task that takes so many events of one name."""

    async def body() -> list[Any]:
        return [await got(app.wait_for("tick", **how)) for _ in range(count)]

    return task_of(app, body, asynchronous=asynchronous)


@both
@pytest.mark.parametrize("early", range(4))
def test_events_are_taken_in_the_order_of_the_log_each_once_before_and_after_the_wait(
    deploy: Deploys, asynchronous: bool, early: int
) -> None:
    app = deploy()
    task = collector(app, asynchronous=asynchronous)
    app.start(task, "t")
    for number in range(early):
        app.send_event("t", "tick", number, event_id=f"e{number}")
    raised(app.run, task, "t")
    for number in range(early, 3):
        assert app.show("t").status == "needs_human"
        app.send_event("t", "tick", number, event_id=f"e{number}")
        assert app.show("t").status == "ready"
        raised(app.run, task, "t")
    assert app.run(task, "t") == [0, 1, 2]
    assert taken(app, "t") == received(app, "t")


def received(app: Doubtless, task_id: str) -> list[int]:
    return [row.event_seq for row in rows(app, task_id) if row.kind == Kind.EVENT_RECEIVED]


def taken(app: Doubtless, task_id: str) -> list[int]:
    """The events that waits say they have taken, in the order of the log."""
    return [row.details["event"] for row in rows(app, task_id) if row.kind == Kind.STEP_SETTLED and "event" in row.details]


def test_the_same_id_again_changes_nothing_and_returns_the_same_also_after_the_end(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 1)
    raised(app.run, task, "t")
    first = app.send_event("t", "tick", {"n": 1}, event_id="e")
    before = len(rows(app, "t"))
    assert app.send_event("t", "tick", {"n": 1.0}, event_id="e") == first
    assert len(rows(app, "t")) == before
    assert app.run(task, "t") == [{"n": 1}]
    assert deploy().send_event("t", "tick", {"n": 1}, event_id="e") == first


@pytest.mark.parametrize(("name", "payload"), [("tick", 2), ("tock", 1)])
def test_the_same_id_with_another_payload_or_name_is_refused(deploy: Deploys, name: str, payload: Any) -> None:
    app = deploy()
    app.start(collector(app, 1), "t")
    app.send_event("t", "tick", 1, event_id="e")
    before = len(rows(app, "t"))
    refused = raised(app.send_event, "t", name, payload, event_id="e")
    assert isinstance(refused, EventRefused)
    assert "nothing was written" in str(refused)
    assert len(rows(app, "t")) == before


def test_without_an_id_each_call_is_an_event_of_its_own(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 2)
    app.start(task, "t")
    assert app.send_event("t", "tick", 1).event_id != app.send_event("t", "tick", 1).event_id
    assert app.run(task, "t") == [1, 1]


def test_an_event_for_nobody_or_for_a_task_that_has_ended_is_refused(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 0)
    app.run(task, "t")
    before = len(rows(app, "t"))
    ended = raised(app.send_event, "t", "tick", 1, event_id="e")
    assert isinstance(ended, EventRefused)
    assert "has ended (done)" in str(ended)
    assert len(rows(app, "t")) == before
    for nobody in ("never", "$store"):
        assert isinstance(raised(app.send_event, nobody, "tick", 1, event_id="e"), UnknownTask)


@pytest.mark.parametrize(
    ("name", "payload", "event_id"),
    [("", 1, "e"), (3, 1, "e"), ("a", 1, ""), ("a", 1, "\ud800"), ("a", {1, 2}, "e"), ("a", float("nan"), "e")],
)
def test_an_event_that_has_no_form_is_refused(deploy: Deploys, name: Any, payload: Any, event_id: Any) -> None:
    app = deploy()
    app.start(collector(app), "t")
    assert isinstance(raised(app.send_event, "t", name, payload, event_id=event_id), UsageError)
    assert received(app, "t") == []


def test_events_of_other_names_are_kept_for_their_own_waits(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def task() -> list[Any]:
        return [app.wait_for("a"), app.wait_for("b"), app.wait_for("a")]

    app.start(task, "t")
    for name, payload in (("b", 1), ("a", 2), ("c", 3), ("a", 4)):
        app.send_event("t", name, payload, event_id=f"{name}{payload}")
    assert app.run(task, "t") == [2, 1, 4]


@pytest.mark.parametrize("recorded", [False, True], ids=["before a process has recorded it", "after"])
def test_an_event_after_the_deadline_is_late_and_answers_nothing(deploy: Deploys, clock: FakeClock, recorded: bool) -> None:
    app = deploy()

    @app.task
    def task() -> list[Any]:
        try:
            app.wait_for("tick", deadline="PT1H")
        except Expired:
            app.sleep("PT1H")
        return [app.wait_for("tick")]

    raised(app.run, task, "t", wait=False)
    clock.advance("PT1H")
    if recorded:
        raised(app.run, task, "t", wait=False)
    before = len(rows(app, "t"))
    late = raised(app.send_event, "t", "tick", "for the first", event_id="e")
    assert isinstance(late, Late)
    assert "expired at 2026-11-28T10:00:00Z" in str(late)
    assert len(rows(app, "t")) == before
    raised(app.run, task, "t", wait=False)
    clock.advance("PT1H")
    raised(app.run, task, "t", wait=False)
    app.send_event("t", "tick", "for the second", event_id="e")
    assert app.run(task, "t") == ["for the second"]


def test_an_event_in_time_counts_although_the_task_looks_after_the_deadline(deploy: Deploys, clock: FakeClock) -> None:
    app = deploy()
    task = collector(app, 1, deadline="PT1H")
    raised(app.run, task, "t", wait=False)
    clock.advance("PT59M")
    app.send_event("t", "tick", 1, event_id="e")
    clock.advance("P1D")
    assert app.run(task, "t") == [1]


def test_whoever_comes_second_to_a_question_is_told_who_was_first(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 1)
    raised(app.run, task, "t")
    case = question(app)
    app.send_event("t", "tick", 1, event_id="e7")
    second = raised(app.settle, case.id, Answer(2), by="anna", why="x", shown=case.hash)
    assert "already settled, by event e7" in str(second)
    assert app.run(task, "t") == [1]


def test_an_event_for_a_question_that_a_person_has_answered_waits_for_the_next_one(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 2)
    raised(app.run, task, "t")
    answer(app, Answer("person"))
    app.send_event("t", "tick", "event", event_id="e")
    assert app.run(task, "t") == ["person", "event"]


def test_a_running_task_that_waits_in_place_takes_an_event_at_once(deploy: Deploys, clock: FakeClock) -> None:
    import threading

    clock.auto_advance = False
    app, outside = deploy(), deploy()
    task = collector(app, 1, deadline="PT1H")
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(app.run(task, "t")))
    thread.start()
    clock.until_paused()
    outside.send_event("t", "tick", 5, event_id="e")
    thread.join(20)
    assert ended == [[5]]


def test_the_payload_of_an_event_may_be_large_and_known_secrets_are_masked(
    deploy: Deploys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doubtless import Secret

    monkeypatch.setenv("TOKEN", "very-secret-token")
    app = deploy()

    @app.step(effect="read", secret="token")
    def look(token: Any) -> int:
        return 1

    @app.task
    def task() -> list[Any]:
        look(token=Secret("env:TOKEN"))
        return [app.wait_for("a"), app.wait_for("b")]

    raised(app.run, task, "t")
    app.send_event("t", "a", "x" * 3_000_000, event_id="1")
    app.send_event("t", "b", "it is very-secret-token", event_id="2")
    large, masked = app.run(task, "t")
    assert len(large) == 3_000_000
    assert "very-secret-token" not in masked


def test_a_denial_and_an_event_do_not_mix(deploy: Deploys) -> None:
    app = deploy()

    @app.task
    def task() -> Any:
        try:
            return app.wait_for("approve")
        except Denied as error:
            return error.why

    raised(app.run, task, "t")
    answer(app, Deny(), why="no")
    assert app.run(task, "t") == "no"


# ---------------------------------------------------------------- the command


def command(*arguments: str) -> tuple[int, str, str]:
    done = nursery.run([sys.executable, "-m", "doubtless.cli", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_sends_an_event_once_and_says_why_it_is_refused(deploy: Deploys) -> None:
    app = deploy()
    task = collector(app, 1, schema=int)
    raised(app.run, task, "t")
    store = ("--store", deploy.url)
    code, _, told = command("send-event", "t", "tick", '"seven"', "--event-id", "e", *store)
    assert code == 2
    assert "expected integer, got string" in told
    code, out, _ = command("send-event", "t", "tick", "7", "--event-id", "e", "--json", *store)
    assert code == 0
    sent = json.loads(out)
    assert sent == {"task": "t", "name": "tick", "event_id": "e", "event_seq": received(app, "t")[0]}
    assert json.loads(command("send-event", "t", "tick", "7", "--event-id", "e", "--json", *store)[1]) == sent
    assert app.run(task, "t") == [7]
    code, _, told = command("send-event", "t", "tick", "8", *store)
    assert code == 2
    assert "has ended" in told
    code, out, _ = command("show", "t", "--all", *store)
    assert "event e" in out
    assert "EventReceived" in command("log", "t", *store)[1]


def test_the_inbox_shows_a_question_and_the_command_that_answers_it(deploy: Deploys) -> None:
    app = deploy()
    raised(app.run, collector(app, 1, schema=int, about={"amount": 500}), "t")
    case = question(app)
    code, out, _ = command("inbox", case.id, "--store", deploy.url)
    assert code == 0
    for text in ("tick", "amount", "500", "integer", f"settle MODULE:APP {case.id} answer --output JSON", "deny"):
        assert text in out
    shown = command("show", "t", "--store", deploy.url)[1]
    assert "waits" in shown
    assert kinds(app, "t").count(Kind.CASE_OPENED) == 1
    assert isinstance(raised(app.resume, "t"), NeedsHuman)
