"""Real signals, to a process of its own, at each moment of a step: afterwards the log tells the truth (rule 7)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tasks_child import Program
from tasks_ground import Child, kinds, outcomes, statuses

from doubtless.events import Kind
from doubtless.testing import FakeClock

RAISED = {("run", "SIGINT"): "KeyboardInterrupt", ("run", "SIGTERM"): "Terminated"}

TRUTH: dict[str, tuple[list[Any], int]] = {
    "unsent": ([("not_sent", "interrupted")], 0),
    "intent": ([("not_sent", "interrupted")], 0),
    "call": ([("unknown", "?")], 0),
    "effect": ([("unknown", "?")], 1),
    "record": ([("done", "")], 1),
}
"""By place: the attempts of the write as the log has them, and its effects."""


@pytest.fixture
def finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program started again where it stopped, here, on a clock that waits turn."""
    monkeypatch.chdir(tmp_path)

    def resumed() -> Program:
        return Program(f"sqlite:///{tmp_path / 'tasks.db'}", clock=FakeClock(start="2100-01-01T00:00:00+00:00"))

    return resumed


CALLS = [
    *(("run", place, number) for place in TRUTH for number in ("SIGINT", "SIGTERM")),
    *(("run-async", place, number) for place in ("call", "effect") for number in ("SIGINT", "SIGTERM")),
    *(("arun", place, number) for place in ("call", "effect") for number in ("SIGINT", "SIGTERM")),
]


@pytest.mark.parametrize("how, place, number", CALLS)
def test_a_signal_at_any_moment_of_a_write_leaves_a_true_log_and_no_second_effect(
    child: Any, finish: Any, how: str, place: str, number: str
) -> None:
    one: Child = child(how, "t", place)
    one.reach(place)
    one.send(signal.Signals[number])
    result = one.result()
    assert one.end() == 0
    if how == "arun":  # asyncio turns Ctrl-C into a cancellation, and back
        assert result["raised"] == ("KeyboardInterrupt" if number == "SIGINT" else "CancelledError")
    else:
        assert result["raised"] == RAISED["run", number]

    program = finish()
    app = program.app
    attempts, effects = TRUTH[place]
    said = outcomes(app, "t", "2")
    assert [outcome for outcome, _ in said] == [outcome for outcome, _ in attempts]
    if said[0][0] == "unknown":
        assert said[0][1] in ("KeyboardInterrupt", "Terminated", "CancelledError")
    assert one.effects() == effects
    assert app.inbox().cases == []
    task = program.sync_task if how == "run" else program.async_task
    assert app.run(task, "t") == 2
    assert one.effects() == 1
    assert statuses(app, "t") == {"1": "done", "2": "done", "3": "done"}
    assert app.verify() == []
    app.close()


def test_a_second_signal_while_the_first_is_recorded_loses_nothing(child: Any, finish: Any) -> None:
    one: Child = child("run", "t", "effect")
    one.reach("effect")
    one.send(signal.SIGINT)
    one.send(signal.SIGTERM)
    one.send(signal.SIGINT)
    one.end()
    program = finish()
    assert program.app.run(program.sync_task, "t") == 2
    assert one.effects() == 1
    assert program.app.verify() == []
    program.app.close()


def test_a_task_that_has_ended_is_not_run_again_by_a_supervisor_that_restarts_its_program(child: Any, finish: Any) -> None:
    """C108: only the log grants work; an outer restart of a finished task does nothing."""
    first: Child = child("run", "t")
    assert first.result() == {"output": 2}
    for _ in range(2):
        again: Child = child("run", "t")
        assert again.result() == {"output": 2}
    assert first.effects() == 1
    program = finish()
    assert kinds(program.app, "t").count(Kind.TASK_ENDED) == 1
    program.app.close()
