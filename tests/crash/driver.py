"""Drives children against the world: start, kill, stop, wake, wait for a barrier; then says whether all is as it must be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from doubtless import Abandon, DidNotHappen, Doubtless, Happened
from doubtless.events import StepStatus, TaskStatus
from doubtless.inbox import AnyAnswer, Case
from doubtless.timeline import StepView

from .clock import TurnedClock
from .program import Scenario, build

Answers = dict[str, Any]
WRITES = ("idem_write", "non_idem_write")
SECOND = 1_000_000


def environment() -> dict[str, str]:
    """What a child needs to import what this process imports."""
    package_root = Path(__file__).parents[len(__package__.split("."))]
    places = [str(package_root), *(place or os.getcwd() for place in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def spawn(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A child process that is told and asked by lines; it ends with its input, so with this process."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())


# ---------------------------------------------------------------- the world


class World:
    """The server process; `office` opens a test's own share of it."""

    def __init__(self, database: Path) -> None:
        self._process = spawn("world", "--db", str(database))
        assert self._process.stdout is not None
        self.port: int = json.loads(self._process.stdout.readline())["port"]
        self._opened = 0

    def office(self, clock: Path) -> Office:
        """An office that nobody else uses, with its clock."""
        self._opened += 1
        return Office(self.port, f"o{self._opened}", clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


class Office:
    """A test's hold on its office: what goes wrong there, who is held, what was counted."""

    def __init__(self, port: int, name: str, clock: Path) -> None:
        self.port, self.name = port, name
        self.control("open", clock=str(clock))

    def control(self, what: str, **spec: Any) -> dict[str, Any]:
        """One request to the control plane."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=40)
        connection.request("POST", f"/{self.name}/control/{what}", json.dumps(spec))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def set(self, **spec: Any) -> None:
        """Change what goes wrong: ``look=``, ``lag_us=``, ``key_window_us=``."""
        self.control("set", **spec)

    def hold(self, reference: str, where: str, count: int = 1) -> None:
        """The next requests for this reference stand ``before`` or ``after`` their effect until `release`."""
        self.control("set", reference=reference, hold=where, count=count)

    def lose(self, reference: str, how: str, count: int = 1) -> None:
        """The next replies for this reference are lost: ``reply``, ``500 after``, ``503 before``."""
        self.control("set", reference=reference, lose=how, count=count)

    def wait_held(self, child: Child) -> None:
        """A request has come to the barrier. Fails when the child that is to send it died, or none comes in 30 s."""
        deadline = time.monotonic() + 30.0
        while not self.control("wait?count=1")["reached"]:
            assert child.process.poll() is None, "the child died before its request came"
            assert time.monotonic() < deadline, "no request came to the barrier"

    def release(self, how: str = "go") -> None:
        """Whoever is held goes on (``go``), or its connection is closed at once (``drop``)."""
        assert self.control("release", how=how)["released"], "nobody was held"

    def effects(self, reference: str | None = None) -> Any:
        """What was really done: the numbers of the effects, of one reference or by reference."""
        counted = self.control("counts")["effects"]
        return counted if reference is None else counted.get(reference, [])

    def made_at(self, reference: str) -> list[int]:
        """When the effects were really made, on the shared clock."""
        found: list[int] = self.control("counts")["made_at"].get(reference, [])
        return found

    def n(self, reference: str) -> int:
        """How often the effect was really made."""
        return len(self.effects(reference))

    def busy(self) -> bool:
        """Whether a request is being served, or held."""
        return bool(self.control("counts")["serving"])

    def requests(self, what: str, reference: str = "") -> list[str]:
        """The keys of the requests that came: ``write``, ``read``, or ``look`` (whatever the reference)."""
        found: list[str] = self.control("counts")["requests"].get(what, {}).get(reference, [])
        return found


# ---------------------------------------------------------------- a child


class Child:
    """A process that runs the program. Ends with the `with` block, whatever state it is in."""

    def __init__(self, scenario: Scenario) -> None:
        self.process = spawn("child", scenario.dump())
        self.pid = self.process.pid
        assert self.process.stdin is not None and self.process.stdout is not None
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
    scenario: Scenario, child: Child, task_id: str, answer: Callable[[Case], AnyAnswer], again: Callable[[Case], AnyAnswer]
) -> Answers:
    """A person answers what is open, and `again` where the first answer was void; then the task is brought to its end."""
    with watching(scenario) as app:
        assert settle(app, answer), "a task that needs a person has no open case"
        ended = unattended(child, scenario.clock, task_id)
        if ended["stands"] == "needs_human":
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
    proofs = [moment.at for moment in step.story if "that is proof" in moment.what]
    assert not any(at < proof for proof in proofs for at in office.made_at(reference)), f"a proven absence of what is there: {step}"
    if made:
        assert all(a.outcome in ("done", "unknown", None) for a in step.attempts), f"a false outcome: {step}"
