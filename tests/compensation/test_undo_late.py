"""A success that comes late, in every shape: it is kept, it settles what is unsettled, and what it contradicts is said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shapes_ground import SHAPES, Program
from undo_ground import World

from doubtless import Abandon, Case, DidNotHappen, Doubtless, Happened, Pending, TaskFailed
from doubtless.answers import AnyAnswer
from doubtless.events import Kind

SHORT = "PT0.05S"
"""Real time: whoever hangs longer than that is given up."""
PLAIN = [shape for shape in SHAPES if shape != "undone by a task"]
WATCHED: dict[str, Any] = {
    "timeout": SHORT,
    "query": lambda: Pending("PT1S"),
    "settle_within": "PT10S",
    "absent_after": None,
    "on_absent": None,
}
"""A step that is given up, and stays in sight until a person is asked: the run goes on meanwhile."""


class Gate:
    """Where a call hangs until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def late(self, do: Callable[[], Any]) -> Any:
        """A call that has its effect, and succeeds, only when the gate is opened."""
        assert self.open.wait(30)
        return do()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def evidence(app: Doubtless) -> list[str]:
    """The late successes that are in the logs, by the paths of their steps."""
    rows = [row for head in app.tasks() for row in app.store.rows(head.task_id)]
    return [str(row.path) for row in rows if row.kind == Kind.EVIDENCE_STORED and row.details["what"] == "late_result"]


def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it does not come")


def answered(program: Program, answer: AnyAnswer, kind: str) -> list[Case]:
    """Every case of this kind is answered at once, while the task is run; the cases that were asked."""
    asked: list[Case] = []

    @program.app.on_case
    def tell(case: Case) -> None:
        if case.kind == kind:
            asked.append(case)
            program.app.settle(case.id, answer, by="anna", why="looked", shown=case.hash)

    return asked


def ended(program: Program) -> TaskFailed:
    error = program.run()
    assert isinstance(error, TaskFailed)
    return error


# ---------------------------------------------------------------- a withdrawal that is late


@pytest.mark.parametrize("shape", SHAPES)
def test_a_withdrawal_that_was_given_up_and_succeeds_late_settles_its_obligation_and_is_not_sent_again(
    tmp_path: Path, shape: str, gate: Gate
) -> None:
    looks: list[str] = []

    def find(name: str) -> Pending:
        looks.append(name)
        if len(looks) == 3:
            gate.open.set()
        return Pending("PT1S")  # it never says more: only the late reply itself can settle it

    world = World()
    world.goes = [gate.late]
    program = Program(tmp_path, world, shape, undo={"timeout": SHORT, "query": find, "settle_within": "P1D"})
    error = ended(program)
    assert error.status == "compensated"
    assert world.calls == world.undone == list(reversed(world.made))
    assert len(evidence(program.app)) == 1
    assert program.app.inbox().cases == []
    program.check()
    program.app.close()


@pytest.mark.parametrize("shape", PLAIN)
def test_a_withdrawal_that_a_person_undid_by_hand_and_that_succeeds_late_contradicts_nothing(
    tmp_path: Path, shape: str, gate: Gate
) -> None:
    world = World()
    world.goes = [gate.late]
    program = Program(tmp_path, world, shape, undo=WATCHED)
    asked = answered(program, Happened({"seen": True}), "compensation")
    error = ended(program)
    assert (error.status, len(asked)) == ("compensated", 1)
    gate.open.set()
    until(lambda: len(evidence(program.app)) == 1)
    assert program.app.inbox().cases == []
    assert sorted(world.undone) == sorted(world.made)
    program.check()
    program.app.close()


@pytest.mark.parametrize("shape", PLAIN)
@pytest.mark.parametrize("answer", [DidNotHappen("fail", even_now=True), Abandon()], ids=["did_not_happen", "abandon"])
def test_a_withdrawal_that_a_person_gave_up_and_that_succeeds_late_is_a_contradiction_and_the_end_stays(
    tmp_path: Path, shape: str, answer: AnyAnswer, gate: Gate
) -> None:
    world = World()
    world.goes = [gate.late]
    program = Program(tmp_path, world, shape, undo=WATCHED)
    asked = answered(program, answer, "compensation")
    error = ended(program)
    target = world.made[-1]
    assert (error.status, len(asked)) == ("failed", 1)
    assert world.standing == [target]
    assert [entry["step"] for entry in error.context["stands"]] == ["make"]
    gate.open.set()
    until(lambda: len(program.app.inbox().cases) == 1)
    (case,) = program.app.inbox().cases
    assert case.kind == "contradiction"
    assert len(evidence(program.app)) == 1
    assert sorted(world.undone) == sorted(world.made)  # the world has it, once; the log says that it does not know
    assert ended(program).status == "failed"
    assert len(world.calls) == len(world.made)
    program.check()
    program.app.close()


@pytest.mark.parametrize("shape", PLAIN)
def test_a_withdrawal_that_a_person_had_sent_again_at_their_risk_and_that_succeeds_late_is_a_contradiction(
    tmp_path: Path, shape: str, gate: Gate
) -> None:
    world = World()
    world.goes = [gate.late]
    program = Program(tmp_path, world, shape, undo=WATCHED)
    asked = answered(program, DidNotHappen("retry", even_now=True), "compensation")
    assert ended(program).status == "compensated"
    assert len(asked) == 1
    gate.open.set()
    until(lambda: len(program.app.inbox().cases) == 1)
    (case,) = program.app.inbox().cases
    assert case.kind == "contradiction"
    assert "another attempt, which no key protects, had begun" in case.why
    target = world.made[-1]
    assert [world.undone.count(name) for name in world.made] == [1 + (name == target) for name in world.made]
    program.app.close()


# ---------------------------------------------------------------- a write that is late


def with_a_late_write(folder: Path, world: World, shape: str, gate: Gate, **policy: Any) -> Program:
    """After its effects the task makes one more, which is given up and succeeds while the others are being undone."""

    def more(app: Doubtless) -> Callable[[], Any]:
        def write(name: str) -> Any:
            return gate.late(lambda: world.make(name))

        step: Any = app.step(**{"effect": "non_idem_write", "compensate": "withdraw", **policy})(write)
        return lambda: step(name="late")

    def meanwhile(do: Callable[[], Any]) -> Any:
        gate.open.set()
        until(lambda: len(evidence(program.app)) == 1)
        return do()

    world.goes = [meanwhile]
    program = Program(folder, world, shape, more=more)
    return program


@pytest.mark.parametrize("shape", PLAIN)
@pytest.mark.parametrize("answer", [DidNotHappen("fail", even_now=True), Abandon()], ids=["did_not_happen", "abandon"])
def test_a_write_that_a_person_gave_up_and_that_lands_while_its_task_undoes_is_listed_and_the_task_is_not_compensated(
    tmp_path: Path, shape: str, answer: AnyAnswer, gate: Gate
) -> None:
    world = World()
    program = with_a_late_write(tmp_path, world, shape, gate, **WATCHED)
    asked = answered(program, answer, "doubt")
    error = ended(program)
    others = [name for name in world.made if name != "late"]
    assert (error.status, len(asked)) == ("failed", 1)
    assert world.undone == list(reversed(others))
    assert [(entry["step"], entry["may"]) for entry in error.context["stands"]] == [("write", True)]
    (case,) = program.app.inbox().cases
    assert (case.kind, case.step) == ("contradiction", "write")
    assert [entry["step"] for entry in program.app.show("t").stands] == ["write"]
    assert ended(program).context == error.context
    program.check()
    program.app.close()
