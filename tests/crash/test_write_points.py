"""Killed at every write point of a small task, and resumed: the end is always the undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests import nursery

from .driver import by_the_count, settle, standing_check
from .outside import Office, World, environment
from .program import Scenario
from .small import NEEDS_HUMAN, TASK, build_small
from .sweep import KILL_AT, RECORD, Points, Subject, Swept, sweep


class Small(Subject):
    """The small task against an office of its own for each run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[Path, tuple[Scenario, Office]] = {}

    def of(self, place: Path) -> tuple[Scenario, Office]:
        if place not in self.runs:
            office = self.world.office(place / "clock")
            self.runs[place] = (Scenario(str(place), self.world.port, office.name, "non_idem_write"), office)
        return self.runs[place]

    def run(self, place: Path, environment_too: Mapping[str, str]) -> int:
        scenario, _ = self.of(place)
        command = [sys.executable, "-m", f"{__package__}.small", scenario.dump()]
        return nursery.run(command, env={**environment(), **environment_too}, check=False).returncode

    def check(self, place: Path) -> None:
        scenario, office = self.of(place)
        app, _ = build_small(scenario)
        try:
            if any(head.task_id == TASK for head in app.tasks()):
                standing_check(app, office, TASK)
            else:
                assert office.effects() == {}, "an effect of a task that is not recorded"
        finally:
            app.close()

    def finish(self, place: Path) -> None:
        scenario, office = self.of(place)
        for _ in range(10):
            code = self.run(place, {})
            if code == 0:
                return
            assert code == NEEDS_HUMAN, f"it ended with exit code {code}"
            app, _ = build_small(scenario)
            try:
                assert settle(app, by_the_count(office)), "it needs a person and asks nothing"
            finally:
                app.close()
        raise AssertionError("it does not come to an end")

    def state(self, place: Path) -> object:
        scenario, office = self.of(place)
        app, _ = build_small(scenario)
        try:
            view = app.show(TASK)
            steps = [(step.path, step.name, str(step.status), step.output, step.keys) for step in view.steps]
            return office.effects(), str(view.status), view.output, steps, app.inbox()
        finally:
            app.close()


def check_sweep(swept: Swept) -> None:
    assert swept.wrong == [], "\n".join(swept.wrong)
    commits = [point for point in swept.points if point == "append:before"]
    assert len(commits) == 8, "a read is one commit, a write two, the end one"
    for point in ("accept:before", "accept:after", "blob:write", "blob:written", "create_sheet:call", "chat:called"):
        assert point in swept.points


def test_killed_at_every_other_write_point_and_resumed_it_ends_as_undisturbed(world: World, tmp_path: Path) -> None:
    """At one half or the other, by chance; `make prove` at all of them, and again while it resumes."""
    swept = sweep(Small(world), tmp_path, every=2, seed=random.SystemRandom().randrange(2))
    check_sweep(swept)
    assert len(swept.points) // 2 <= swept.runs <= len(swept.points) // 2 + 1


@pytest.mark.prove
def test_killed_at_any_write_point_and_again_while_it_resumes_it_ends_as_undisturbed(world: World, tmp_path: Path) -> None:
    swept = sweep(Small(world), tmp_path, second_kills=4)
    check_sweep(swept)
    assert swept.runs == 5 * len(swept.points)


def test_a_point_kills_the_process_that_reaches_it_and_no_other(tmp_path: Path) -> None:
    record = tmp_path / "points"
    program = f"from {__package__}.sweep import Points\npoints = Points.from_environment()\npoints('one'); points('two')"
    for kill_at, code, reached in (("2", -signal.SIGKILL, "one\ntwo\n"), ("3", 0, "one\ntwo\n")):
        environs = {**environment(), KILL_AT: kill_at, RECORD: str(record)}
        assert nursery.run([sys.executable, "-c", program], env=environs, check=False).returncode == code
        assert record.read_text() == reached
        os.unlink(record)
    Points()("nobody counts here")
