"""A short storm in every run of the tests, with every kind of trouble; and that what is checked after it can be found wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.postgres.server import MISSING, servers

from doubtless.events import TERMINAL, Kind
from doubtless.fold import fold_steps

from . import check, paper, truth
from .bounds import Bounds
from .keep import keep
from .plan import DRAWN, plan
from .report import Figures, figures
from .storm import Settings, Storm

SHORT = Bounds(
    lease=1.0, timeout=1.0, pause=(3.2, 3.8), landing=1.2, lag=0.4, slack=2.5, deadline=15.0, settle_within=15.0, pace=0.5
)


class Played:
    """A storm that is over, its folder still there and its store still open."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.wrong = check.check(storm)
        self.seen: Figures = figures(storm)
        self.tasks = check.read_tasks(storm.desk)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    if not servers():
        pytest.skip(MISSING)
    storm = Storm(Settings(seed=7, seconds=11.0, folder=tmp_path, tasks=26, bounds=SHORT))
    try:
        storm.run()
        yield Played(storm)
    finally:
        keep(storm)
        storm.close()


@pytest.mark.early
def test_after_a_storm_no_effect_was_made_twice_every_task_has_ended_or_stood_in_the_inbox_and_what_were_wrong_would_be_found(
    played: Played, tmp_path: Path
) -> None:
    """One test, because a storm takes its time: nothing is wrong, everything has come, and each check can fail."""
    assert played.wrong == [], f"kept in {played.storm.folder}"
    assert played.seen.tasks == sum(played.seen.ends.values())
    assert {*played.seen.ends} <= TERMINAL
    every_kind_of_trouble_has_come_and_every_kind_of_end(played.seen)
    for what, (statement, said) in FALSE.items():
        assert [line for line in falsified(played, statement, tmp_path) if said in line], what
    a_doubt_that_is_silent_is_found(played)
    a_task_that_a_dead_worker_left_lying_is_found(played)
    a_worker_that_ends_with_a_traceback_or_another_exit_code_is_found(played)
    a_stop_that_was_longer_than_the_bounds_say_is_found(played)


def every_kind_of_trouble_has_come_and_every_kind_of_end(seen: Figures) -> None:
    assert set(DRAWN) <= {what.partition(":")[0] for what in seen.happened}
    assert {"done", "compensated"} <= {*seen.ends}
    assert seen.cases
    assert seen.log["takeovers"] > 0


# ------------------------------------------------------------ the checks can fail


def falsified(played: Played, statement: str, tmp_path: Path) -> list[str]:
    """What the checks say of the same storm, had the other side done something else."""
    shutil.copy(played.storm.folder / "office.db", tmp_path / "false.db")
    with closing(sqlite3.connect(tmp_path / "false.db")) as books:
        assert books.execute(statement).rowcount > 0
        books.commit()
    found = truth.read(tmp_path / "false.db")
    wrong = check.none_twice(found) + check.unknown_to_the_log(played.tasks, found)
    return wrong + [line for task in played.tasks for line in check.agrees(task, found)]


FALSE = {
    "a second sheet": (
        "INSERT INTO sheets (reference, run, subject, body, status, created_at) SELECT reference, run, subject, body, status, created_at"
        " FROM sheets LIMIT 1", "TWICE: 2 of the sheet",
    ),
    "a second message": ("INSERT INTO messages (run, text, created_at) SELECT run, text, 0 FROM messages LIMIT 1", "TWICE: 2 of the message"),
    "a second withdrawal": (
        "INSERT INTO effects (kind, reference, subject, at) SELECT kind, reference, subject, at FROM effects"
        " WHERE kind = 'sheet_withdrawal' LIMIT 1", "TWICE: sheet_withdrawal",
    ),
    "a closing that is gone": ("DELETE FROM closings WHERE id = (SELECT min(id) FROM closings)", "done means done: close_run"),
    "a sheet that nobody withdrew": (
        "UPDATE sheets SET status = 'open' WHERE id = (SELECT min(id) FROM sheets WHERE status = 'withdrawn')", "stands at the other side",
    ),
    "a sheet that was withdrawn": (
        "UPDATE sheets SET status = 'withdrawn' WHERE id = (SELECT min(id) FROM sheets WHERE status = 'open')",
        "the log knows of no compensation",
    ),
    "a sheet of nobody": (
        "INSERT INTO sheets (reference, run, subject, body, status, created_at) VALUES ('ab', 'recon-x', 's', '{}', 'open', 0)",
        "I1: ",
    ),
}  # fmt: skip


def test_a_task_that_was_acknowledged_and_is_not_there_is_found() -> None:
    assert check.accepted(["a", "b"], ["a", "b"], ["a"]) == ["task b was acknowledged, and the log does not have it"]
    assert check.accepted(["a"], ["a", "b"], ["a"]) == ["task b was never acknowledged"]


def a_doubt_that_is_silent_is_found(played: Played) -> None:
    task = next(task for task in played.tasks if task.status == "done")
    cut = [row for row in task.rows if not (row.kind == Kind.STEP_SETTLED and row.step_name == "close_run")]
    assert len(cut) == len(task.rows) - 1
    assert check.ended(task) == check.silent([task], set()) == []
    task = task._replace(records=fold_steps(cut))
    assert [line for line in check.ended(task) if line.startswith("I6: close_run")]
    assert [line for line in check.silent([task], set()) if line.startswith("silent: close_run")]


def a_task_that_a_dead_worker_left_lying_is_found(played: Played) -> None:
    task = next(task for task in played.tasks if check.takeovers(task))
    claim = next(row for row in task.rows if row.kind == Kind.TASK_CLAIMED and "lease_until" in row.details)
    meanwhile = claim.details["lease_until"] + round((check.GRACE + 1) * 1_000_000)
    lying = task._replace(rows=[claim._replace(finished_at=meanwhile + 1_000_000)], turn=(-1000, 0))
    younger = [task._replace(rows=[claim._replace(finished_at=meanwhile)], turn=(0, 0)) for _ in range(check.MANY + 1)]
    assert check.left_lying(played.tasks) == []
    assert check.left_lying([lying, *younger])[0].startswith(f"task {lying.id} was left lying while")


def a_worker_that_ends_with_a_traceback_or_another_exit_code_is_found(played: Played) -> None:
    member = played.storm.members[0]
    assert check.said_by_the_processes(played.storm) == []
    member.codes[0], code = 1, member.codes[0]
    assert [line for line in check.said_by_the_processes(played.storm) if "exit code 1" in line]
    member.codes[0] = code
    said = member.log.read_text()
    member.log.write_text(said + "Traceback (most recent call last):\n")
    assert [line for line in check.said_by_the_processes(played.storm) if "Traceback" in line]
    member.log.write_text(said)


def a_stop_that_was_longer_than_the_bounds_say_is_found(played: Played) -> None:
    member = played.storm.members[0]
    assert check.too_late(played.storm) == []
    member.longest_stop, longest = 60.0, member.longest_stop
    assert check.too_late(played.storm)
    member.longest_stop = longest


def test_the_page_says_what_the_recorded_storm_was() -> None:
    assert paper.with_figures(paper.PAGE.read_text()) == paper.PAGE.read_text()


def test_a_seed_draws_one_plan_with_every_kind_of_trouble_in_it() -> None:
    assert plan(5, 20.0, 4, SHORT) == plan(5, 20.0, 4, SHORT)
    assert plan(5, 20.0, 4, SHORT) != plan(6, 20.0, 4, SHORT)
    assert {one.what for one in plan(5, 1.0, 4, SHORT)} == {*DRAWN}


def test_bounds_under_which_a_stopped_worker_keeps_its_task_or_an_absence_proves_nothing_are_refused() -> None:
    Bounds().check()
    SHORT.check()
    with pytest.raises(AssertionError, match="has to lose its task"):
        SHORT._replace(pause=(1.0, 3.8)).check()
    with pytest.raises(AssertionError, match="slack"):
        SHORT._replace(slack=-1.0).check()
