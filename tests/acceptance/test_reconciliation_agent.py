"""The reconciliation driven by a scripted model: killed in the middle and resumed, the model is not asked again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.reconciliation import generate
from examples.reconciliation.agent import reconciler, scripted
from examples.reconciliation.app import build
from examples.reconciliation.outside import Outside, environment
from tests import nursery

from doubtless import Finish, State, StepCall, Turn
from doubtless.timeline import TaskView

LONG_S = 3600.0
CHOICES = 6


class Ground:
    """One office, one store, the generated files, and the agent as a process or in this one."""

    def __init__(self, folder: Path, office: Outside) -> None:
        generate.write(folder, 1)
        self.office = office
        self.store = f"sqlite:///{folder / 'recon.db'}"
        self.goal = {
            "day": str(generate.DAY),
            "statement": str(folder / "statement.csv"),
            "orders": str(folder / "orders.csv"),
        }

    def process(self) -> subprocess.Popen[str]:
        files = [part for name, value in self.goal.items() for part in (f"--{name}", value)]
        command = [sys.executable, "-m", "examples.reconciliation", "--agent", "--task", "recon-1", *files]
        environ = environment(DOUBTLESS_STORE=self.store, RECON_SERVER=self.office.url)
        return nursery.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)

    def killed_at_the_approval(self) -> str:
        """The process is killed when the approval has landed and its reply is held back; what it had printed."""
        self.office.fault("/approvals", "lose_reply", delay_s=LONG_S)
        child = self.process()
        try:
            assert self.office.wait_for("approval")
        finally:
            child.kill()
            said = child.communicate()[0]
        self.office.advance(LONG_S)
        return said

    def run(self, choose: Any) -> tuple[TaskView, Any]:
        """Resume (or start) it in this process; how the task stands, and its output."""
        recon = build(self.store, self.office.url)
        try:
            output = recon.app.run(reconciler(recon, choose), "recon-1", goal=self.goal)
            return recon.app.show("recon-1"), output
        finally:
            recon.app.close()

    def counted(self) -> tuple[int, ...]:
        kinds = ("sheet", "approval", "message", "closing")
        return (*(self.office.effects(kind) for kind in kinds), self.office.most_per_subject("sheet"))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Outside(tmp_path / "office.db") as office:
        yield Ground(tmp_path, office)


def test_a_model_that_chooses_the_steps_does_what_the_task_does(ground: Ground) -> None:
    with ground.process() as child:
        said = child.communicate()[0].splitlines()
    assert child.returncode == 0
    output = json.loads(said[-1])
    assert (len(output["sheets"]), output["approval"], output["closing"]) == (12, "P-1", "C-1")
    assert sum("the model is asked" in line for line in said) == CHOICES
    assert ground.counted() == (12, 1, 1, 1, 1)


def test_killed_while_the_approvals_reply_is_lost_it_is_resumed_without_asking_again(ground: Ground) -> None:
    before = ground.killed_at_the_approval().count("the model is asked")
    shown: list[int] = []

    def choose(state: State) -> Turn | Finish:
        shown.append(state.choices)
        assert [fact["status"] for fact in state.facts] == ["done"] * len(state.facts)
        return scripted(state)

    task, output = ground.run(choose)
    [approval] = [step for step in task.steps if step.name == "submit_approval"]
    assert (before, shown) == (3, [3, 4, 5]), "each choice was asked for once, in one process or the other"
    assert (approval.calls, approval.settled_by) == (1, "the look-back found it")
    assert output["approval"] == "P-1"
    assert ground.counted() == (12, 1, 1, 1, 1)


def test_a_model_that_words_it_otherwise_after_the_crash_makes_no_second_approval(ground: Ground) -> None:
    ground.killed_at_the_approval()

    def forgetful(state: State) -> Turn | Finish:
        """It would submit the sheets in another order, had it not been recorded what it wanted."""
        turn = scripted(state)
        if isinstance(turn, Turn) and turn.calls[0].name == "submit_approval":
            call = turn.calls[0]
            return Turn([StepCall(call.name, {**call.params, "sheets": call.params["sheets"][::-1]})])
        return turn

    ground.run(forgetful)
    assert ground.counted() == (12, 1, 1, 1, 1)
    assert ground.office.requests("POST /approvals") == 1


def test_a_model_that_sets_a_policy_or_invents_a_step_is_refused_and_told_and_nothing_is_sent(ground: Ground) -> None:
    told: list[list[str]] = []

    def cheeky(state: State) -> Turn | Finish:
        if state.choices == 0:
            keyed = {"run": "r", "difference": {}, "idempotency_key": "mine"}
            return Turn([StepCall("create_adjustment", keyed), StepCall("pay", {"amount": 5})])
        told.append([fact["status"] for fact in state.facts])
        return Finish("gave up")

    _, output = ground.run(cheeky)
    assert (output, told) == ("gave up", [["refused", "refused"]])
    assert ground.office.counts()["requests"]["count"] == 0
