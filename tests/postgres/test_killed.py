"""A process killed at any write point on PostgreSQL, and again while the next one resumes: no write happens twice."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests import nursery
from tests.postgres.server import Server

from doubtless.store.pg.migrate import migrate

PROGRAM = Path(__file__).with_name("pg_program.py")
SIDE_BY_SIDE = Path(__file__).with_name("pg_side_by_side.py")
DAYS = [f"2026-11-{day}T09:00:00+00:00" for day in (20, 21, 22)]
"""When each process runs: all leases of the one before have ended."""


class Place:
    """A store, and the world that its task writes into."""

    def __init__(self, server: Server, folder: Path, program: Path = PROGRAM) -> None:
        self.program = program
        folder.mkdir()
        self.url = server.url(mark=str(folder / "mark"))
        self.folder = folder
        self.world = folder / "world"
        migrate(self.url, state=str(folder))

    def run(self, day: str, kill_at: int) -> tuple[int, str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = nursery.run(
            [sys.executable, str(self.program), self.url, str(self.folder), str(self.world), day, str(kill_at)],
            capture_output=True, text=True, env=env, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode, done.stdout.strip()

    def effects(self) -> list[str]:
        return self.world.read_text().splitlines()


def killed_at(server: Server, folder: Path, point: int, again: int, program: Path = PROGRAM, writes: int = 3) -> None:
    place = Place(server, folder, program)
    assert place.run(DAYS[0], point)[0] == -signal.SIGKILL
    place.run(DAYS[1], again)
    code, _ = place.run(DAYS[2], 0)
    assert code == 0
    effects = place.effects()
    assert len(effects) == len(set(effects)) == writes, f"killed at {point}, then at {again}: {effects}"


@pytest.fixture
def points(server: Server, tmp_path: Path) -> int:
    """How many write points a whole run has."""
    code, said = Place(server, tmp_path / "whole").run(DAYS[0], 0)
    assert code == 0
    return int(said)


def test_killed_at_some_write_points_and_resumed_no_write_happens_twice(server: Server, tmp_path: Path, points: int) -> None:
    assert points > 25
    for point in range(2, points + 1, 7):
        killed_at(server, tmp_path / f"p{point}", point, point % 4 * 3)


@pytest.mark.prove
def test_killed_at_every_write_point_and_again_while_it_resumes_no_write_happens_twice(
    server: Server, tmp_path: Path, points: int
) -> None:
    for point in range(1, points + 1):
        for again in (0, 2, 5, 9):
            killed_at(server, tmp_path / f"p{point}-{again}", point, again)


@pytest.fixture
def shared_points(server: Server, tmp_path: Path) -> int:
    """How many write points a run has whose tasks share their commits."""
    code, said = Place(server, tmp_path / "whole", SIDE_BY_SIDE).run(DAYS[0], 0)
    assert code == 0
    return int(said)


def test_killed_while_tasks_share_their_commits_and_resumed_no_write_happens_twice(
    server: Server, tmp_path: Path, shared_points: int
) -> None:
    assert shared_points > 25
    for point in range(5, shared_points + 1, 13):
        killed_at(server, tmp_path / f"p{point}", point, point % 4 * 3, SIDE_BY_SIDE, 8)


@pytest.mark.prove
def test_killed_at_every_write_point_of_tasks_that_share_their_commits_no_write_happens_twice(
    server: Server, tmp_path: Path, shared_points: int
) -> None:
    for point in range(1, shared_points + 1):
        for again in (0, 7):
            killed_at(server, tmp_path / f"p{point}-{again}", point, again, SIDE_BY_SIDE, 8)
