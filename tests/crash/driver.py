"""Drives children against the world: start, kill, stop, wake, wait for a barrier; then says whether all is as it must be."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from doubtless import Abandon, DidNotHappen, Doubtless, Happened
from doubtless.answers import AnyAnswer
from doubtless.events import Kind, StepStatus, TaskStatus
from doubtless.inbox import Case
from doubtless.timeline import StepView

from .clock import TurnedClock
from .outside import Office, spawn
from .program import Scenario, build

Answers = dict[str, Any]
WRITES = ("idem_write", "non_idem_write")


# ---------------------------------------------------------------- a child


class Child:
    """A process that runs the program. Ends with the `with` block, whatever state it is in."""

    def __init__(self, scenario: Scenario) -> None:
        self.process = spawn("child", scenario.dump())
        self.pid = self.process.pid
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._stdin.close()
        self._stdout.close()
        self.process.wait()

    def tell(self, *words: str) -> None:
        """One command; `hear` its answer, or kill the child before it has one."""
        self._stdin.write(" ".join(words) + "\n")
        self._stdin.flush()

    def hear(self) -> Answers:
        """The answer to the last command."""
        line = self._stdout.readline()
        assert line, f"the child died: {self.process.wait()}"
        answer: Answers = json.loads(line)
        return answer

    def run(self, task_id: str, wait: str = "no") -> Answers:
        """Start or resume the task there; how it stands afterwards."""
        self.tell("run", task_id, wait)
        return self.hear()

    def kill(self) -> None:
        """It is dead by SIGKILL."""
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def died(self) -> None:
        """It has killed itself with SIGKILL."""
        assert self.process.wait(timeout=30) == -signal.SIGKILL

    def stop(self) -> None:
        """It is stopped, and does nothing until it is woken."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def wake(self) -> None:
        """It goes on where it was stopped."""
        os.kill(self.pid, signal.SIGCONT)

    def finish(self) -> None:
        """It has closed its app and ended by itself."""
        self.tell("end")
        assert self.process.wait(timeout=30) == 0


# ---------------------------------------------------------------- the machine, then a person


def unattended(child: Child, clock: TurnedClock, task_id: str, wait: str = "no", rounds: int = 60) -> Answers:
    """Resume until the task ends or needs a person; between two resumes the clock is turned to when it may go on."""
    for _ in range(rounds):
        answer = child.run(task_id, wait)
        if answer["stands"] != "waiting":
            return answer
        assert answer["until"] is not None, f"a wait without a time: {answer}"
        clock.turn_to(answer["until"])
    raise AssertionError(f"the task still waits after {rounds} rounds: {answer}")


@contextmanager
def watching(scenario: Scenario) -> Iterator[Doubtless]:
    """The app in this process, to look and to settle with; it runs nothing."""
    app, _ = build(scenario)
    try:
        yield app
    finally:
        app.close()


def by_the_count(office: Office) -> Callable[[Case], AnyAnswer]:
    """The answer of a person who can see what the world counted."""

    def answer(case: Case) -> AnyAnswer:
        reference = case.evidence["params"]["reference"]
        made = office.effects(reference)
        return Happened({"id": made[0], "reference": reference}) if made else DidNotHappen(then="retry")

    return answer


def settle(app: Doubtless, answer: Callable[[Case], AnyAnswer]) -> int:
    """Answer every open case; how many there were."""
    cases = app.inbox().cases
    for case in cases:
        app.settle(case.id, answer(case), by="auditor", why="the world's count", shown=case.hash)
    return len(cases)


def attended(
    scenario: Scenario,
    child: Child,
    task_id: str,
    answer: Callable[[Case], AnyAnswer],
    again: Callable[[Case], AnyAnswer] | None = None,
) -> Answers:
    """A person answers what is open, and `again` where the first answer turns out void; then the task is brought to its end."""
    with watching(scenario) as app:
        assert settle(app, answer), "a task that needs a person has no open case"
        ended = unattended(child, scenario.clock, task_id)
        if again is not None:
            assert ended["stands"] == "needs_human", f"the first answer was not void: {ended}"
            assert settle(app, again), "a task that needs a person has no open case"
            ended = unattended(child, scenario.clock, task_id)
        return ended


def even_now(case: Case) -> AnyAnswer:
    """A person who has seen the void answer and takes the risk."""
    return DidNotHappen(then="retry", even_now=True)


def give_up(case: Case) -> AnyAnswer:
    """A person who does not find out."""
    return Abandon()


# ---------------------------------------------------------------- what must hold, whatever happened


def standing_check(app: Doubtless, office: Office, task_id: str, *, false_declaration: bool = False) -> None:
    """The invariants that hold at every moment, killed or not, settled or not.

    `false_declaration`: the step's `absent_after` is shorter than the lag. Then, and only then, an effect may stand
    twice or against a `not_applied`: what the developer declared is what the log believes.
    """
    view = app.show(task_id)
    inbox = app.inbox()
    listed = {(case.task_id, case.path) for case in inbox.cases} | {(doubt.task_id, doubt.path) for doubt in inbox.doubts}
    for step in view.steps:
        if step.effect in WRITES:
            check_write(step, office, false_declaration=false_declaration)
            assert false_declaration or not false_proofs(app, office, task_id, step), f"a proven absence of what is there: {step}"
            unsettled = step.status not in (StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED)
            in_good_hands = view.owner_alive or view.wake_at is not None or (task_id, step.path) in listed
            assert not unsettled or in_good_hands, f"I6: a doubt that nobody settles and nobody sees: {step}"
    if not false_declaration:
        counted = {reference: len(made) for reference, made in office.effects().items()}
        assert all(n <= 1 for n in counted.values()), f"an effect was made twice: {counted}"
    match view.status:
        case TaskStatus.NEEDS_HUMAN:
            assert view.cases, f"the task needs a person and asks nothing: {view.why}"
        case TaskStatus.WAITING:
            assert view.wake_at is not None, f"the task waits for nothing: {view.why}"
    assert app.verify() == []


def check_write(step: StepView, office: Office, *, false_declaration: bool) -> None:
    """What the log says of a write is true at the server."""
    reference = step.params["reference"]
    made, keys = office.effects(reference), office.requests("write", reference)
    assert len(keys) <= step.calls, f"I1: {len(keys)} requests, but {step.calls} attempts in the log: {step}"
    assert set(keys) <= set(step.keys), f"a request under a key that the log does not have: {step}"
    if step.status == StepStatus.DONE:
        assert made, f"done in the log and not in the world: {step}"
        assert step.output["id"] in made, f"an output that is not the effect's: {step}"
    if false_declaration:
        return
    if step.status == StepStatus.NOT_APPLIED:
        assert not made, f"not_applied in the log and made in the world: {step}"
    if made:
        assert all(a.outcome in ("done", "unknown", None) for a in step.attempts), f"a false outcome: {step}"


def false_proofs(app: Doubtless, office: Office, task_id: str, step: StepView) -> list[int]:
    """The look-backs of a step that count as proof of an absence although the effect was there."""
    rows = app.store.rows(task_id, path=step.path)
    proofs = [row for row in rows if row.kind == Kind.LOOKED_BACK and row.details.get("counts")]
    made_at = office.made_at(step.params["reference"])
    return [row.event_seq for row in proofs if any(at < row.at.wall for at in made_at)]
