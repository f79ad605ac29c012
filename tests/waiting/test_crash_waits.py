"""Killed between an answer and its being taken, killed while asleep: taken once, woken at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import nursery
from waiting_child import Program
from waiting_ground import raised

from doubtless import TaskWaiting
from doubtless.events import Kind
from doubtless.testing import FakeClock


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    program = Path(__file__).parent / "waiting_child.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return nursery.Popen([sys.executable, str(program), *arguments], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("name", "stride"), [("rounds", 3), ("arounds", 5), pytest.param("rounds", 1, marks=pytest.mark.prove)])
def test_killed_at_any_write_point_each_answer_is_taken_once_and_each_round_notifies_once(
    tmp_path: Path, name: str, stride: int
) -> None:
    child = start(tmp_path, name, str(stride))
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    points = int(out)
    assert points > 20
    for kill_at in range(1, points + 1, stride):
        folder = tmp_path / str(kill_at)
        assert json.loads((folder / "result").read_text())[0] == [0, 1, 2], kill_at
        assert_sound(folder, kill_at)


def assert_sound(folder: Path, kill_at: int) -> None:
    """Each round notified once, each event taken once, each question settled once, and the store is sound."""
    effects = (folder / "effects").read_text().splitlines()
    assert [line.split()[1] for line in effects] == ["0", "1", "2"], kill_at
    program = Program(url=f"sqlite:///{folder / 'tasks.db'}")
    rows = program.app.store.rows("t")
    received = [row.event_seq for row in rows if row.kind == Kind.EVENT_RECEIVED]
    taken = [row.details["event"] for row in rows if row.kind == Kind.STEP_SETTLED and "event" in row.details]
    assert taken == received
    assert len(received) == 2
    settled = [row.details["case_id"] for row in rows if row.kind == Kind.CASE_SETTLED]
    assert len(settled) == len(set(settled)) == 3, kill_at
    assert program.app.verify() == []
    program.app.close()


def test_killed_while_it_sleeps_it_wakes_at_the_recorded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    child = start(tmp_path, "sleeper")
    try:
        program = Program()
        asleep = recorded_sleep(program)
    finally:
        child.kill()
        child.communicate()
    waiting = raised(program.app.run, program.tasks["sleeper"], "t", wait=False)
    assert isinstance(waiting, TaskWaiting)
    assert waiting.until.wall == asleep
    program.app.close()
    later = Program(clock=FakeClock(start=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(asleep / 1e6 + 1))))
    assert later.app.run(later.tasks["sleeper"], "t", wait=False) == "woke"
    assert len((tmp_path / "effects").read_text().splitlines()) == 1
    later.app.close()


def recorded_sleep(program: Program) -> int:
    """The time to wake, as soon as the other process has recorded it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        head = program.app.store.head("t") if Path("tasks.db.mark").exists() else None
        for step in program.app.show("t").steps if head is not None else ():
            if step.name == "$sleep":
                return int(step.output["until"])
        time.sleep(0.01)
    raise AssertionError("the child never slept")
