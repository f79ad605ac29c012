"""A fork that is killed anywhere: no half of it is ever there, and no effect is had twice."""

from __future__ import annotations

import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fork_child import build, fork_and_run
from tests import nursery

from doubtless.events import Kind

CHILD = Path(__file__).parent / "fork_child.py"


def killed_at(folder: Path, number: int) -> int:
    """Make the original, then fork it in a process that dies at its n-th point; bring it to its end; the exit code."""
    folder.mkdir()
    app, work = build(folder)
    app.run(work, "t")
    original = app.store.rows("t")
    app.close()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = nursery.run([sys.executable, str(CHILD), str(folder), str(number)], env=environ, check=False).returncode

    app, _ = build(folder)
    if any(head.task_id == "f" for head in app.tasks()):
        rows = app.store.rows("f")
        assert [row.kind for row in rows[:2]] == [Kind.TASK_ACCEPTED, Kind.STEP_SETTLED], "the fork is there whole or not at all"
    assert fork_and_run(app) == ["x", "first", "second"]
    effects = [line.split()[0] for line in (folder / "effects").read_text().splitlines()]
    assert effects == ["first", "second", "second"], f"killed at {number}: {effects}"
    assert [head.task_id for head in app.tasks()] == ["t", "f"]
    assert app.store.rows("t") == original
    assert app.verify() == []
    assert sum(row.kind == Kind.STEP_SETTLED for row in app.store.rows("f")) == 3
    app.close()
    return code


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.prove)])
def test_a_fork_killed_at_every_point_is_one_fork_with_one_effect_of_its_own(tmp_path: Path, every: int) -> None:
    """In the short form at one half or the other, by chance."""
    begin = 1 + random.SystemRandom().randrange(every)
    with ThreadPoolExecutor(2) as pool:
        codes: list[int] = []
        while 0 not in codes:
            first = begin + len(codes) * every
            numbers = range(first, first + 4 * every, every)
            codes += pool.map(lambda number: killed_at(tmp_path / str(number), number), numbers)
    points = codes.index(0)
    assert points >= 15 // every, "so many commits and calls it has at least"
    assert set(codes[:points]) == {-signal.SIGKILL}
