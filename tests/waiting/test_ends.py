"""How waits end with their task: denied, expired and cancelled ones are failures like others, and what was done is undone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from waiting_ground import Deploys, answer, got, raised, task_of

from doubtless import AlreadySettled, Answer, Deny, Doubtless, EventRefused, TaskFailed
from doubtless.events import Kind, draft
from doubtless.testing import FakeClock

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def buying(app: Doubtless, undone: list[Any], *, asynchronous: bool, sleeps: bool = False) -> Any:
    @app.step(effect="idem_write", idempotent_by="the number")
    def give_back(result: int) -> dict[str, int]:
        undone.append(result)
        return {"given back": result}

    @app.step(effect="idem_write", idempotent_by="the number", compensate=give_back)
    def reserve(number: int) -> int:
        return number

    async def body() -> Any:
        reserve(number=7)
        return await got(app.sleep("P1D") if sleeps else app.wait_for("approve", deadline="P1D"))

    return task_of(app, body, asynchronous=asynchronous)


@both
@pytest.mark.parametrize("how", ["denied", "expired"])
def test_a_denial_or_an_expiry_that_nobody_catches_undoes_what_was_done(
    deploy: Deploys, clock: FakeClock, asynchronous: bool, how: str
) -> None:
    app, undone = deploy(), []
    task = buying(app, undone, asynchronous=asynchronous)
    raised(app.run, task, "t", wait=False)
    if how == "denied":
        answer(app, Deny(), why="too dear")
    else:
        clock.advance("P1D")
    failed = raised(app.run, task, "t", wait=False)
    assert isinstance(failed, TaskFailed)
    assert (failed.status, how in str(failed)) == ("compensated", True)
    assert undone == [7]
    assert isinstance(raised(app.send_event, "t", "approve", 1, event_id="e"), EventRefused)


def request_cancel(app: Doubtless) -> None:
    app.store.add("t", [draft("t", Kind.CANCEL_REQUESTED, app.store.now(), data={"by": "anna", "why": "not wanted"})])


@both
@pytest.mark.parametrize("sleeps", [False, True], ids=["asks", "sleeps"])
def test_a_cancel_ends_a_wait_and_closes_its_question(deploy: Deploys, asynchronous: bool, sleeps: bool) -> None:
    app, undone = deploy(), []
    task = buying(app, undone, asynchronous=asynchronous, sleeps=sleeps)
    raised(app.run, task, "t", wait=False)
    cases = app.inbox().cases
    request_cancel(app)
    ended = raised(app.run, task, "t", wait=False)
    assert isinstance(ended, TaskFailed)
    assert undone == [7]
    assert app.inbox().cases == []
    for case in cases:
        late = raised(app.settle, case.id, Answer(1), by="anna", why="x", shown=case.hash)
        assert isinstance(late, AlreadySettled)


@both
@pytest.mark.parametrize("sleeps", [False, True], ids=["asks", "sleeps"])
def test_a_cancel_reaches_a_run_that_waits_in_place(deploy: Deploys, clock: FakeClock, asynchronous: bool, sleeps: bool) -> None:
    clock.auto_advance = False
    app, outside, undone = deploy(), deploy(), []
    task = buying(app, undone, asynchronous=asynchronous, sleeps=sleeps)
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(raised(app.run, task, "t")))
    thread.start()
    clock.until_paused()
    request_cancel(outside)
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(told[0], TaskFailed), told
    assert undone == [7]
    assert app.inbox().cases == []
