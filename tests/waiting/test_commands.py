"""Questions on the command line: settle with answer and deny, and what comes too late."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

PROGRAM = """
from doubtless import Denied, Doubtless, Expired

app = Doubtless("sqlite:///ask.db")

@app.task
def ask(deadline: str) -> str:
    try:
        return f"answer {app.wait_for('approve', schema=int, deadline=deadline or None)}"
    except (Denied, Expired) as error:
        return str(error)
"""


@pytest.fixture
def doubtless(tmp_path: Path) -> Any:
    (tmp_path / "ask.py").write_text(PROGRAM)

    def call(*arguments: str) -> tuple[int, Any, str]:
        command = [sys.executable, "-m", "doubtless.cli", *arguments, "--json"]
        done = nursery.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout), done.stderr

    return call


def ask(doubtless: Any, deadline: str = "") -> tuple[str, list[str]]:
    """Start a task that asks; its case, and the end of each answer's command."""
    code, told, _ = doubtless("run", "ask.py:app", "ask", "t", "-p", f"deadline={deadline}", "--no-wait")
    assert code == (4 if deadline else 3), told
    _, shown, _ = doubtless("inbox", "--store", "sqlite:///ask.db")
    (case,) = shown["cases"]
    return case["id"], ["--by", "anna", "--why", "looked", "--shown", case["hash"][:8]]


@pytest.mark.parametrize("deadline", ["", "P1D"])
def test_a_person_answers_on_the_command_line_and_the_task_goes_on(doubtless: Any, deadline: str) -> None:
    case, who = ask(doubtless, deadline)
    code, told, _ = doubtless("settle", "ask.py:app", case, "answer", "--output", '"x"', *who)
    assert code == 2
    assert "expected integer" in json.dumps(told)
    code, told, _ = doubtless("settle", "ask.py:app", case, "answer", "--output", "7", "--resume", *who)
    assert (code, told["status"], told["output"]) == (0, "done", "answer 7")
    code, told, _ = doubtless("settle", "ask.py:app", case, "deny", *who)
    assert code == 5
    assert "already settled, by anna" in json.dumps(told)


def test_a_denial_on_the_command_line_reaches_the_task(doubtless: Any) -> None:
    case, who = ask(doubtless)
    code, told, _ = doubtless("settle", "ask.py:app", case, "deny", "--resume", *who)
    assert code == 0
    assert told["output"].startswith("the question 'approve' at 1 was denied by anna")


def test_an_answer_and_an_event_after_the_deadline_are_told_that_they_are_late(doubtless: Any) -> None:
    case, who = ask(doubtless, "PT1S")
    end = time.monotonic() + 1
    while time.monotonic() < end:  # the deadline passes while nobody looks at the task
        doubtless("tasks", "--store", "sqlite:///ask.db")
    code, told, _ = doubtless("settle", "ask.py:app", case, "answer", "--output", "7", *who)
    assert (code, told["error"]["code"]) == (5, "late"), told
    code, told, _ = doubtless("send-event", "t", "approve", "7", "--store", "sqlite:///ask.db")
    assert (code, told["error"]["code"]) == (5, "late"), told
    code, told, _ = doubtless("resume", "ask.py:app", "t")
    assert told["output"] == "nobody answered the question 'approve' at 1 by its deadline"
