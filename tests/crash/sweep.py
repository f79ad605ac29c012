"""The kill sweep: a program is killed by SIGKILL at write point k, for every k, and brought to its end each time.

For any program: the child makes its app with ``hooks=Points.from_environment()`` and puts its steps through
`Points.around`; the test describes it as a `Subject` and calls `sweep`. A point is each commit and each write of a file
(before and after it), and each call of a step (before and after it).
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

KILL_AT, RECORD = "CRASH_KILL_AT", "CRASH_RECORD"


# ---------------------------------------------------------------- in the child


class Points:
    """Counts this process's write points, and ends it by SIGKILL at one of them. A hook for `Doubtless(hooks=…)`.

    `record`: a file that gets each point's name, one a line, before anything happens there.
    """

    def __init__(self, kill_at: int | None = None, record: Path | None = None) -> None:
        self.kill_at, self.reached = kill_at, 0
        self._record = None if record is None else os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Points:
        """As the sweep that started this process says."""
        kill_at, record = os.environ.get(KILL_AT), os.environ.get(RECORD)
        return cls(int(kill_at) if kill_at else None, Path(record) if record else None)

    def __call__(self, name: str) -> None:
        with self._lock:
            self.reached += 1
            if self._record is not None:
                os.write(self._record, name.encode() + b"\n")
            if self.reached == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, fn: Callable[P, R]) -> Callable[P, R]:
        """The function with a point before and after it; put it under the step's decorator."""

        @functools.wraps(fn)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            self(f"{fn.__name__}:call")
            value = fn(*args, **kwargs)
            self(f"{fn.__name__}:called")
            return value

        return called


# ---------------------------------------------------------------- in the test


class Subject(Protocol):
    """A program to sweep. Every run has a place of its own: a folder that is empty when `run` sees it first."""

    def run(self, place: Path, environment: Mapping[str, str]) -> int:
        """Start or resume it in a process of its own, with this added to its environment; the process's exit code."""

    def check(self, place: Path) -> None:
        """What must hold at any moment, raised if it does not: after a kill, and at the end."""

    def finish(self, place: Path) -> None:
        """Bring it to its end, however it stands: resume, settle what is open by what was counted, turn the clock."""

    def state(self, place: Path) -> object:
        """How it all stands at the end, in the log and outside: to be compared with an undisturbed run.

        It is asked last: let go what the run holds, its folder may be removed.
        """


class Kill(NamedTuple):
    """Where a run was killed, and where the resume after it (None: not)."""

    first: int
    second: int | None = None


class Swept(NamedTuple):
    """What a sweep found. `points`: the undisturbed run's, in order; `runs`: how many were killed; `wrong`: one line each."""

    points: list[str]
    runs: int
    wrong: list[str]


def sweep(
    subject: Subject, folder: Path, *, second_kills: int = 0, jobs: int = 2, seed: int = 1, every: int = 1
) -> Swept:  # fmt: skip
    """Run it undisturbed, then once for each point with a kill there; every end must be the undisturbed one.

    `second_kills`: how many more runs for each point are killed again while they resume, at points drawn with `seed`:
    so that look-backs and takeovers are killed too. `every`: only at each so many-th point, which `seed` says the first of.
    """
    points, undisturbed = run_undisturbed(subject, folder / "undisturbed")
    draw = random.Random(seed)
    places = range(1 + seed % every, len(points) + 1, every)
    kills = [Kill(k) for k in places]
    kills += [Kill(k, again) for k in places for again in draw.sample(places, second_kills)]

    def killed(kill: Kill) -> str | None:
        place = folder / "-".join(str(at) for at in kill if at is not None)
        return run_killed(subject, place, kill, points, undisturbed)

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(killed, kills))
    return Swept(points, len(kills), [line for line in found if line is not None])


def run_undisturbed(subject: Subject, place: Path) -> tuple[list[str], object]:
    """The points of a run that nobody kills, and its end."""
    place.mkdir(parents=True)
    record = place.parent / f"{place.name}.points"
    assert subject.run(place, {RECORD: str(record)}) == 0, "the undisturbed run does not end"
    subject.finish(place)
    subject.check(place)
    return record.read_text().split(), subject.state(place)


def run_killed(subject: Subject, place: Path, kill: Kill, points: list[str], undisturbed: object) -> str | None:
    """One run with its kills; None, or what is wrong in one line."""
    place.mkdir(parents=True)
    where = f"killed at point {kill.first} ({points[kill.first - 1]})" + (f", then at {kill.second}" if kill.second else "")
    code = subject.run(place, {KILL_AT: str(kill.first)})
    if code != -signal.SIGKILL:
        return f"{where}: it was not reached (exit code {code})"
    try:
        subject.check(place)
        if kill.second is not None:
            subject.run(place, {KILL_AT: str(kill.second)})
            subject.check(place)
        subject.finish(place)
        subject.check(place)
    except Exception as error:
        return f"{where}: {type(error).__name__}: {error}"
    state = subject.state(place)
    if state != undisturbed:
        return f"{where}: it ends as {state}, undisturbed as {undisturbed}"
    shutil.rmtree(place)  # a place stays only where something is wrong
    return None
