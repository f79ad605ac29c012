"""A host that dies at each point and asks again, with the same id, a new one, or other params: one effect in each."""

from __future__ import annotations

from pathlib import Path

import pytest
from guests_child import ORDER, POINTS, payments
from guests_ground import Ground, raised

from doubtless import Refused
from doubtless.events import Kind

WITHOUT_EFFECT = ("before intent", "after intent")
"""Where the host dies before the call: of an intent without effect the look-back proves that."""

ASKS = {
    "the same id": {**ORDER, "call_id": "toolu_1"},
    "a new id": {**ORDER, "call_id": "toolu_9"},
    "no id": {**ORDER, "call_id": None},
    "other params": {**ORDER, "amount": 501, "call_id": "toolu_9"},
    "other params, the same id": {**ORDER, "amount": 501, "call_id": "toolu_1"},
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("point", POINTS)
def test_a_host_killed_at_any_point_that_asks_again_has_one_effect(ground: Ground, point: str, ask: str) -> None:
    ground.kill_host(point)
    app = ground.app()
    pay, _ = payments(app, str(ground.folder))
    refusal = None
    with app.session("thread-42") as session:
        try:
            session.call(pay, **ASKS[ask])
        except Refused as error:
            refusal = error  # the model reads what stands, and does not ask again
    assert len(ground.effects()) == 1
    other = ask.startswith("other params")
    if other and point in WITHOUT_EFFECT:
        assert refusal is None and ground.effects() == ["pay o1 501"], "nothing stood in its way"
    elif other:
        assert refusal is not None and 'pay(amount=500, order="o1") was carried out' in refusal.text_for_model
        assert session.calls == ()
    else:
        (call,) = session.calls
        assert call.replayed == (point not in WITHOUT_EFFECT)
        if call.call_id is not None:
            assert session.replayed(call.call_id) == call.replayed
    assert app.show("thread-42").status == "waiting"


@pytest.mark.parametrize("point", POINTS)
def test_what_the_host_has_met_again_or_been_told_of_stands_in_nobodys_way_later(ground: Ground, point: str) -> None:
    ground.kill_host(point)
    app = ground.app()
    pay, notify = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        raised(session.call, notify, whom="anna", call_id="n1")  # refused, where something stands
    with app.session("thread-42") as session:
        session.call(pay, **ORDER, call_id="p2")
    before = 0 if point in WITHOUT_EFFECT else 1
    assert len(ground.effects("pay")) == before + 1, "a payment that is asked for in a later turn is one of its own"
    assert len(ground.effects("notify")) == 1 - before


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.prove)])
def test_a_host_killed_at_any_write_point_of_a_turn_of_three_writes_has_each_effect_once(tmp_path: Path, stride: int) -> None:
    """The next turn asks for the same three, under new ids: whatever was recorded is met again, the rest is sent."""
    reached, number = True, 0
    while reached:
        ground = Ground(tmp_path / str(number))
        ground.folder.mkdir()
        reached = ground.kill_host(str(number))
        app = ground.app()
        pay, notify = payments(app, str(ground.folder))
        with app.session("thread-42") as session:
            if not any(row.kind == Kind.CALLS_ACKNOWLEDGED for row in app.store.rows("thread-42")):
                for call_id in ("a", "b"):
                    session.call(pay, **ORDER, call_id=call_id)
                session.call(notify, whom="anna", call_id="c")
        assert sorted(ground.effects()) == ["notify anna", "pay o1 500", "pay o1 500"], f"write point {number}"
        assert app.show("thread-42").unacknowledged == ()
        ground.end()
        number += stride
    assert number > 20, "it was killed at many points"


def test_a_host_that_never_acknowledges_has_one_effect_however_often_it_asks(ground: Ground) -> None:
    app = ground.app()
    pay, _ = payments(app, str(ground.folder))
    for turn in range(4):
        session = app.session("thread-42")
        with pytest.raises(ZeroDivisionError), session:
            session.call(pay, **ORDER, call_id=f"toolu_{turn}")
            raise ZeroDivisionError
        assert session.replayed(f"toolu_{turn}") == (turn > 0)
    assert ground.effects() == ["pay o1 500"]
    assert "not acknowledged" in (app.show("thread-42").why or "")
