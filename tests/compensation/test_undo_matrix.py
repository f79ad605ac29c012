"""Every trouble in every shape: each obligation is undone at most once, none is forgotten, none is said to be undone falsely."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from shapes_ground import SHAPES, Program
from undo_ground import World

from doubtless import AlreadyUndone, Happened, NeedsHuman, NotUndoable, TaskFailed
from doubtless.inbox import Case
from doubtless.testing import Killed


def lost(do: Any) -> Any:
    do()
    raise ConnectionResetError("the reply was lost")


def vanished(do: Any) -> Any:
    raise ConnectionResetError("it never arrived, and nobody here knows")


def already(do: Any) -> Any:
    do()
    return AlreadyUndone("by a colleague")


def refused(do: Any) -> Any:
    raise NotUndoable("processed")


def silent(do: Any) -> None:
    do()


TROUBLES: dict[str, Any] = {
    "ok": lambda do: do(), "already undone": already, "not undoable": refused, "unknown, landed": lost,
    "unknown, vanished": vanished, "shows nothing": silent,
}  # fmt: skip


def by_hand(program: Program, case: Case) -> None:
    """A person looks, undoes what is not undone, and says so."""
    name = case.evidence.get("params", {}).get("name")
    if name is None:  # its compensation never began: the step that it would have undone says what it was
        name = next(s for s in program.app.show(case.task_id).steps if s.path == (case.path or "").lstrip("~")).params["name"]
    if name not in program.world.undone:
        program.world.undo(name)
    program.by_hand = (*program.by_hand, name)
    program.app.settle(case.id, Happened({"by": "hand"}), by="anna", why="done by hand", shown=case.hash)


def to_the_end(program: Program) -> tuple[TaskFailed, int]:
    """Run it, undoing by hand what the machine could not; how it ended, and how often a person was asked."""
    for asked in range(20):
        error = program.run()
        program.check()
        if isinstance(error, TaskFailed):
            return error, asked
        assert isinstance(error, NeedsHuman)
        (case,) = program.app.inbox().cases
        by_hand(program, case)
    raise AssertionError("a person is asked again and again")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_the_first_withdrawal_comes_to_everything_is_undone_once_in_reverse(
    tmp_path: Path, shape: str, trouble: str
) -> None:
    world = World()
    world.goes = [TROUBLES[trouble]]
    program = Program(tmp_path, world, shape)
    error, asked = to_the_end(program)
    assert error.status == "compensated"
    assert world.undone == list(reversed(world.made))
    shown = trouble != "shows nothing" or shape != "undone by a task"  # a task has no query that could show it
    assert asked == (trouble == "not undoable" or not shown)
    program.app.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_handler_that_is_missing_for_all_of_them_is_asked_about_one_by_one(tmp_path: Path, shape: str) -> None:
    program = about_to_undo(tmp_path, shape)
    program.app, program.task = program.build(False)  # the deploy has lost what undoes
    error, asked = to_the_end(program)
    assert error.status == "compensated"
    assert asked == len(program.world.made)
    assert program.world.calls == []
    program.app.close()


def about_to_undo(folder: Path, shape: str, **create: Any) -> Program:
    """A program that was killed when its failure was durable, and nothing was undone yet."""
    (folder / "whole").mkdir()
    (folder / "killed").mkdir()
    whole = Program(folder / "whole", World(), shape)
    whole.run()
    whole.app.close()
    kill_at = whole.points.index("after TaskParked") + 1
    program = Program(folder / "killed", World(), shape, kill_at=kill_at, **create)
    with pytest.raises(Killed):
        program.app.run(program.task, "t")
    assert program.world.calls == []
    return program


@pytest.mark.parametrize("shape", SHAPES)
def test_where_the_deadline_has_passed_while_it_was_down_nothing_is_sent_and_a_person_undoes(tmp_path: Path, shape: str) -> None:
    program = about_to_undo(tmp_path, shape, compensate_deadline="PT10M")
    program.clock.advance("PT11M")
    error, asked = to_the_end(program)
    assert error.status == "compensated"
    assert program.world.calls == []
    assert asked == len(program.world.made)
    program.app.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_while_it_undoes_and_down_until_after_the_deadline_nothing_more_is_sent(tmp_path: Path, shape: str) -> None:
    (tmp_path / "0").mkdir()
    whole = Program(tmp_path / "0", World(), shape)
    whole.run()
    whole.app.close()
    first = whole.points.index("after TaskParked") + 1
    every = 1 if shape == "undone by a task" else 5
    for kill_at in range(first, len(whole.points) + 1, every):
        (tmp_path / str(kill_at)).mkdir()
        program = Program(tmp_path / str(kill_at), World(), shape, kill_at=kill_at, compensate_deadline="PT10M")
        with pytest.raises(Killed):
            program.app.run(program.task, "t")
        sent = len(program.world.calls)
        program.clock.advance("PT11M")
        error, _ = to_the_end(program)
        where = f"killed at {kill_at}: {whole.points[kill_at - 1]}"
        assert len(program.world.calls) == sent, where
        assert error.status == "compensated", where
        program.app.close()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.prove)])
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_at_every_point_everything_is_undone_once_and_nothing_is_forgotten(tmp_path: Path, shape: str, every: int) -> None:
    """In the short form at every fourth, of which one is the first by chance."""
    (tmp_path / "0").mkdir()
    whole = Program(tmp_path / "0", World(), shape)
    whole.run()
    whole.app.close()
    for kill_at in range(1 + random.SystemRandom().randrange(every), len(whole.points) + 1, every):
        world = World()
        (tmp_path / str(kill_at)).mkdir()
        program = Program(tmp_path / str(kill_at), world, shape, kill_at=kill_at)
        error = program.run()
        where = f"killed at {kill_at}: {whole.points[kill_at - 1]}"
        assert isinstance(error, TaskFailed), (where, error)
        assert error.status == "compensated", where
        assert world.undone == list(reversed(world.made)), where
        assert len(world.made) == len(set(world.made)), where
        program.check()
        program.app.close()
