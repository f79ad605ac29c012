"""How a session ends when a person stops it: cancelled, and what it did is undone, as for any task."""

from __future__ import annotations

from typing import Any

import pytest
from guests_ground import Ground, raised

from doubtless import Doubtless, EventRefused, Refused, TaskFailed
from doubtless.events import Kind, draft


class Desk:
    """A write with a compensation; what was done and undone."""

    def __init__(self, app: Doubtless) -> None:
        self.done: list[int] = []
        self.undone: list[int] = []

        @app.step(effect="non_idem_write")
        def withdraw(result: dict[str, int]) -> dict[str, int]:
            self.undone.append(result["id"])
            return {"withdrawn": result["id"]}

        @app.step(effect="non_idem_write", compensate=withdraw)
        def create(amount: int) -> dict[str, int]:
            self.done.append(amount)
            return {"id": len(self.done)}

        self.create = create


def cancel(app: Doubtless) -> None:
    row = draft("thread-42", Kind.CANCEL_REQUESTED, app.store.now(), data={"by": "anna", "why": "wrong customer"})
    app.store.add("thread-42", [row])


@pytest.fixture
def app(ground: Ground) -> Doubtless:
    return ground.app()


def test_a_session_cancelled_between_two_openings_undoes_its_calls_when_it_is_resumed(app: Doubtless) -> None:
    desk = Desk(app)
    with app.session("thread-42") as session:
        session.call(desk.create, amount=1)
        session.call(desk.create, amount=2)
    cancel(app)
    assert isinstance(raised(app.resume, "thread-42"), TaskFailed)
    assert app.show("thread-42").status == "compensated"
    assert desk.undone == [2, 1]
    assert "ended" in str(raised(app.session("thread-42").__enter__))


def test_a_session_cancelled_while_its_host_has_it_sends_nothing_more_and_is_undone_after_it_is_left(app: Doubtless) -> None:
    desk = Desk(app)
    with app.session("thread-42") as session:
        session.call(desk.create, amount=1, call_id="a")
        cancel(app)
        for call in (lambda: session.call(desk.create, amount=2, call_id="b"), session.finish):
            error: Any = raised(call)
            assert isinstance(error, Refused)
            assert "stopped by a person" in error.text_for_model
    assert desk.undone == [], "the host's process undoes nothing behind its back"
    assert app.show("thread-42").status == "ready"
    assert isinstance(raised(app.resume, "thread-42"), TaskFailed)
    view = app.show("thread-42")
    assert (view.status, view.unacknowledged) == ("compensated", ())
    assert (desk.done, desk.undone) == ([1], [1])


def test_an_event_for_a_session_is_refused_with_a_hint_and_nothing_is_written(ground: Ground) -> None:
    """Nothing in a session could ever read it; neither between its openings nor while it is open."""
    app = ground.app()
    desk = Desk(app)
    with app.session("s") as session:
        session.call(app.steps["create"], amount=5, call_id="a")
        before = len(app.store.rows("s"))
        refused = [raised(app.send_event, "s", "go", 1, event_id="e")]
        assert len(app.store.rows("s")) == before
    before = len(app.store.rows("s"))
    refused.append(raised(app.send_event, "s", "go", 1, event_id="e"))
    assert len(app.store.rows("s")) == before
    for error in refused:
        assert isinstance(error, EventRefused)
        assert "is a session" in error.message
        assert "its host" in error.hint
    assert desk.done == [5]
