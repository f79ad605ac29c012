"""Every trouble in every shape, with real processes that are really killed: counted at a server, each obligation is undone at
most once, none is forgotten, and none is said to be undone that is not.

`make test` plays every cell undisturbed and killed at a drawn point; `make prove` kills at every point of every cell.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from .outside import World
from .undo_trial import KILLED, TROUBLES, Ended, Hands, Nursery, Trial
from .undoing import MADE, SHAPES


@pytest.fixture(scope="module")
def hands() -> Iterator[Hands]:
    with Nursery() as tasks, Nursery() as person:
        yield Hands(tasks, person)


class Ground:
    """Where the trials of one cell are held."""

    def __init__(self, world: World, hands: Hands, folder: Path, shape: str, trouble: str) -> None:
        self.of = (world, hands)
        self.folder, self.shape, self.trouble = folder, shape, trouble
        self._held = 0

    def trial(self) -> Trial:
        self._held += 1
        return Trial(*self.of, self.folder / str(self._held), self.shape, self.trouble)

    def undisturbed(self) -> tuple[list[str], Ended]:
        """All points that its processes come by, and how it ends."""
        trial = self.trial()
        _, points = trial.start()
        trial.to_the_end()
        return points, trial.check_end()

    def killed(self, at: int, again: int | None = None) -> bool:
        """Killed there, and once more on the way: it comes to a good end. False: it never came there."""
        trial = self.trial()
        where = f"{self.shape}, {self.trouble}, killed at {at}"
        try:
            code, points = trial.start(at)
            if code != KILLED:
                return False
            where += f" ({points[-1]})"
            trial.down()
            trial.check()
            if again is not None:
                where += f", then at {again}"
                trial.start(again)
                trial.check()
            trial.to_the_end()
            trial.check_end()
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        return True


@pytest.fixture
def ground(request: pytest.FixtureRequest, world: World, hands: Hands, tmp_path: Path) -> Ground:
    return Ground(world, hands, tmp_path, *request.param)


WHILE_DOWN = ("handler missing", "deadline passed while down")
"""What happens while nobody runs: it means most where the undoing has begun, or is about to."""

CELLS = [(shape, trouble) for trouble in TROUBLES for shape in SHAPES]
every_cell = pytest.mark.parametrize("ground", CELLS, indirect=True, ids=[f"{trouble}: {shape}" for shape, trouble in CELLS])


def check_undisturbed(ground: Ground, ended: Ended) -> None:
    """The trouble is what it is called, and comes to what it must."""
    trouble, made = ground.trouble, MADE[ground.shape]
    target = made[-1:]
    nothing_shown = trouble == "shows nothing" and ground.shape == "undone by a task"  # a task has no query
    by_hand = target if trouble == "not undoable" or nothing_shown else []
    left = by_hand or (target if trouble == "let stand" else [])
    late = ["late"] if trouble == "late write" else []
    assert ended.machine == [name for name in made if name not in left] + late
    assert ended.by_hand == by_hand
    assert ended.late_news == (trouble in ("late write", "late write, given up"))
    assert ended.contradicted == (trouble == "late write, given up")
    assert ended.status == ("failed" if trouble in ("let stand", "late write, given up") else "compensated")
    assert ended.asked == bool(left or trouble in ("late write", "late write, given up"))


@every_cell
def test_counted_at_a_server_each_obligation_is_undone_at_most_once_and_none_is_forgotten_also_when_it_is_killed(
    ground: Ground,
) -> None:
    seed = os.environ.get("SWEEP_SEED") or str(random.SystemRandom().randrange(10_000))
    points, ended = ground.undisturbed()
    check_undisturbed(ground, ended)
    first = len(points) // 2 if ground.trouble in WHILE_DOWN else 1
    at = random.Random(f"{seed} {ground.shape} {ground.trouble}").randrange(first, len(points) + 1)
    try:
        ground.killed(at)
    except AssertionError as error:
        raise AssertionError(f"run this again with SWEEP_SEED={seed}: {error}") from error


@pytest.mark.prove
@every_cell
def test_counted_at_a_server_each_obligation_is_undone_at_most_once_and_none_is_forgotten_killed_at_any_point(
    ground: Ground,
) -> None:
    points, ended = ground.undisturbed()
    check_undisturbed(ground, ended)
    reached = sum(ground.killed(at) for at in range(1, len(points) + 1))
    # A late success comes at its own time: where it comes in between may cost or save a point, nothing else does.
    assert reached >= len(points) - (2 if ground.trouble.startswith("late") else 0)
