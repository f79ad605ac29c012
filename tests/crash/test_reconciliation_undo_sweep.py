"""The reconciliation that fails at step six, killed at write points and resumed: what it did is taken back, once, the last first.

The chat refuses the message for good, so everything before it is withdrawn. `make test` kills at some points of each
kind, another selection each time; `make prove` at all of them, and then again while it resumes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from examples.reconciliation.outside import Outside

from doubtless import StoreRefused
from doubtless.events import StepStatus, TaskStatus
from doubtless.timeline import StepView, TaskView

from .reconciliation import FAILED, TASK, WITHDRAWALS, WRITES, build
from .sweep import Kill, Swept, run_killed, run_undisturbed, sweep
from .test_reconciliation_sweep import KINDS, SHEETS, Ledger, Reconciliation, class_of

WITHDRAWN = {"withdraw_adjustment": "sheet_withdrawal", "withdraw_approval": "approval_withdrawal"}
FOREVER = 1_000_000
SHORT = 10
"""So many kills the short form makes."""


class Failing(Reconciliation):
    """The reconciliation of small books whose chat refuses every message: a task that fails and undoes."""

    def office(self, place: Path) -> Outside:
        known = place in self.offices
        office = super().office(place)
        if not known:
            office.fault("/chat/messages", "refuse_422", count=FOREVER)
        return office

    def run(self, place: Path, environment_too: Mapping[str, str]) -> int:
        code = super().run(place, environment_too)
        assert code != 0, "the task is done, although its sixth step was refused"
        return 0 if code == FAILED else code

    def check(self, place: Path) -> None:
        ledger = Ledger(place / "office.db")
        twice = ledger.rows("SELECT kind, subject, count(*) FROM effects GROUP BY kind, subject HAVING count(*) > 1")
        assert twice == [], f"counted twice at the server: {twice}"
        app = build(place, self.office(place).url, read_only=True).app
        try:
            if any(head.task_id == TASK for head in app.tasks()):
                view = app.show(TASK)
                check_undone(view, ledger)
                inbox = app.inbox()
                listed = {case.path for case in inbox.cases} | {doubt.path for doubt in inbox.doubts}
                writes = [step for step in view.steps if step.name in (*WRITES, *WITHDRAWALS)]
                silent = {step.path for step in writes if step.status not in SETTLED} - listed
                assert view.owner_alive or view.wake_at is not None or not silent, f"I6: a doubt that nobody sees: {view}"
                assert app.verify() == []
            else:
                assert ledger.everything()["effects"] == [], "an effect of a task that is not recorded"
        except StoreRefused:  # killed before there was a store
            assert ledger.everything()["effects"] == [], "an effect without a store"
        finally:
            app.close()


SETTLED = (StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED, StepStatus.COMPENSATED)


def check_undone(view: TaskView, ledger: Ledger) -> None:
    """What the log says was made, withdrawn and left alone is so at the server, and the server has nothing besides."""
    known: Counter[str] = Counter()
    steps = {step.path: step for step in view.steps}
    for step in view.steps:
        if step.name in WRITES:
            [key] = step.keys
            made = ledger.made(step.name, key, step.params["run"])
            known[KINDS[step.name]] += len(made)
            assert len(made) <= 1, f"made twice: {made}: {step}"
            asked = ledger.requests(step.name, "" if step.name == "notify" else key)
            assert asked <= step.calls, f"I1: {asked} requests, fewer attempts: {step}"
            if step.status in (StepStatus.DONE, StepStatus.COMPENSATED):
                assert made == [step.output["id"]], f"{step.status} in the log, at the server {made}: {step}"
            if step.status == StepStatus.NOT_APPLIED:
                assert not made, f"not_applied in the log, at the server {made}: {step}"
        elif step.name in WITHDRAWALS:
            known[WITHDRAWN[step.name]] += check_withdrawal(step, steps[step.path.removeprefix("~")], ledger)
    for step in view.steps:
        if step.status == StepStatus.COMPENSATED:
            assert steps[f"~{step.path}"].status == StepStatus.DONE, f"compensated without a success: {step}"
    assert view.status != TaskStatus.COMPENSATED or all(step.status != StepStatus.DONE or step.name not in WRITES for step in view.steps)
    counted = Counter(kind for (kind,) in ledger.rows("SELECT kind FROM effects"))
    assert counted == known, f"counted at the server {counted}, known to the log {known}"


def check_withdrawal(step: StepView, of: StepView, ledger: Ledger) -> int:
    """How often the server counted it: not without an attempt, and surely when the log says so."""
    kind, [key] = WITHDRAWN[step.name], of.keys
    times = len(ledger.rows("SELECT 1 FROM effects WHERE kind = ? AND reference = ?", kind, key))
    assert of.status in (StepStatus.DONE, StepStatus.COMPENSATED), f"I7: something is withdrawn that is not proven: {of}"
    assert times <= 1, f"withdrawn {times} times: {step}"
    assert times <= step.calls, f"I1: withdrawn without an attempt: {step}"
    assert (step.status == StepStatus.DONE) == (of.status == StepStatus.COMPENSATED), f"one without the other: {step}, {of}"
    assert times or step.status != StepStatus.DONE, f"done in the log, not at the server: {step}"
    return times


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Failing]:
    made = Failing(tmp_path)
    yield made
    made.stop()


def check_story(subject: Failing, points: list[str], place: Path) -> None:
    """The undisturbed run is the accident's: three sheets and an approval, a refusal, then all of it taken back in reverse."""
    counted = Counter(points)
    assert (counted["withdraw_approval:call"], counted["withdraw_adjustment:call"]) == (1, SHEETS)
    assert (counted["notify:call"], counted["close_run:call"]) == (1, 0)
    order = [kind for (kind,) in Ledger(place / "office.db").rows("SELECT kind FROM effects ORDER BY rowid")]
    assert order == ["sheet"] * SHEETS + ["approval", "approval_withdrawal"] + ["sheet_withdrawal"] * SHEETS


def test_killed_at_some_points_of_each_class_the_failing_reconciliation_takes_back_what_it_did(
    subject: Failing, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SWEEP_SEED") or random.SystemRandom().randrange(10_000))
    points, undisturbed = run_undisturbed(subject, tmp_path / "undisturbed")
    check_story(subject, points, tmp_path / "undisturbed")
    undoing = points.index("withdraw_approval:call") - 1  # before the first commit that undoes: most kills come after it
    draw = random.Random(seed)
    chosen = draw.sample(range(undoing, len(points) + 1), SHORT - SHORT // 4) + draw.sample(range(1, undoing), SHORT // 4)
    with ThreadPoolExecutor(2) as pool:
        killed = pool.map(lambda k: run_killed(subject, tmp_path / str(k), Kill(k), points, undisturbed), chosen)
        wrong = [line for line in killed if line is not None]
    assert wrong == [], f"run this again with SWEEP_SEED={seed}:\n" + "\n".join(wrong)


def check_swept(swept: Swept) -> None:
    assert swept.wrong == [], f"{len(swept.wrong)} of {swept.runs} runs:\n" + "\n".join(swept.wrong)
    assert {class_of(point) for point in swept.points} >= {"a commit, before", "a commit, after"}


@pytest.mark.prove
def test_killed_at_any_point_the_failing_reconciliation_takes_back_what_it_did(subject: Failing, tmp_path: Path) -> None:
    swept = sweep(subject, tmp_path)
    check_swept(swept)
    assert swept.runs == len(swept.points)


@pytest.mark.prove
def test_killed_at_any_point_and_again_while_it_resumes_the_failing_reconciliation_takes_back_what_it_did(
    subject: Failing, tmp_path: Path
) -> None:
    swept = sweep(subject, tmp_path, second_kills=1)
    check_swept(swept)
    assert swept.runs == 2 * len(swept.points)
