"""How the command line shows sessions: by what they are, with what their host has not acknowledged, and nothing to type for it."""

from __future__ import annotations

import json
import os
import sys

import pytest
from guests_child import ORDER, payments
from guests_ground import Ground
from tests import nursery


def cli(ground: Ground, *words: str) -> str:
    environment = {**os.environ, "DOUBTLESS_STORE": f"sqlite:///{ground.folder / 'guests.db'}", "COLUMNS": "120", "TZ": "UTC"}
    done = nursery.run(
        [sys.executable, "-m", "doubtless.cli", *words], env=environment, capture_output=True, text=True, cwd=ground.folder, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_and_show_say_that_it_is_a_session_and_what_its_host_has_not_acknowledged(ground: Ground) -> None:
    app = ground.app()
    pay, _ = payments(app, str(ground.folder))
    with pytest.raises(ZeroDivisionError), app.session("thread-42") as session:
        session.call(pay, **ORDER)
        raise ZeroDivisionError
    assert "thread-42  session  waiting: between two openings; the last one was not left normally" in cli(ground, "tasks")
    shown = cli(ground, "show", "thread-42")
    assert "not acknowledged by its host yet: pay at 1" in shown
    assert "next" not in shown, "only its host goes on with it"
    assert json.loads(cli(ground, "show", "thread-42", "--json"))["unacknowledged"] == ["1"]
    with app.session("thread-42") as session:
        session.call(pay, **ORDER)
    shown = cli(ground, "show", "thread-42")
    assert "not acknowledged" not in shown
    assert "$session" not in shown
