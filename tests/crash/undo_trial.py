"""The test's side of `undoing`: its processes, the person who answers, and what must hold by the log and by the world's count."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests import nursery

from doubtless import Doubtless, StoreRefused
from doubtless.events import Kind, StepStatus, TaskStatus
from doubtless.inbox import Case
from doubtless.timeline import StepView, TaskView

from . import undoing
from .outside import World, environment
from .sweep import KILL_AT, RECORD
from .undoing import CELL, DEADLINE_S, ENDED, MADE, NEEDS_HUMAN, TASK, Cell, build, undone

KILLED = -signal.SIGKILL
TARGET = f"{__package__}.undoing_app:app"
SETTLED = (StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED, StepStatus.COMPENSATED)

TROUBLES = (
    "ok", "already undone", "not undoable", "let stand", "unknown, landed", "unknown, vanished", "shows nothing", "late undo",
    "late write", "late write, given up", "handler missing", "deadline passed while down",
)  # fmt: skip


class Nursery:
    """A process that has imported everything, and forks one for each run and each command: killing one costs little.

    What runs in a fork is a process of its own: it opens the store itself, and dies by SIGKILL.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", undoing.__name__]
        self._process = nursery.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment()
        )
        assert self._hear() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, cell: Cell, answer: Callable[[], object], **environs: str) -> int:
        """Start or resume the cell's task; how its process ended. `answer`: it has to be answered while it lives."""
        self._say(json.dumps({"environment": {KILL_AT: "", RECORD: "", CELL: cell.dump(), **environs}}))
        while (word := self._hear()) == "asks":
            answer()
            self._say("answered")
        return int(word)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the nursery died: {self._process.wait()}"
        return line.strip()

    def command(self, cell: Cell, *arguments: str) -> None:
        """One command of the command line, in a process of its own; it succeeds."""
        output = Path(cell.folder) / "said"
        told = {"environment": {CELL: cell.dump()}, "command": arguments, "output": str(output)}
        self._say(json.dumps(told))
        code = self._hear()
        assert code == "0", f"doubtless {' '.join(arguments)} exits with {code}: {output.read_text()}"


class Hands(NamedTuple):
    """Who runs what: one nursery for the tasks, another for the person, who answers while a task's process lives."""

    tasks: Nursery
    person: Nursery


class Ended(NamedTuple):
    """How a run ended. `machine`: what was undone at the server, by whatever the machine sent; `asked`: how often a person was."""

    status: str
    machine: list[str]
    by_hand: list[str]
    late_news: int
    contradicted: bool
    asked: int


class Trial:
    """One run of a cell: its world, its person, its checks."""

    def __init__(self, world: World, hands: Hands, folder: Path, shape: str, trouble: str) -> None:
        folder.mkdir(parents=True)
        self.hands, self.folder = hands, folder
        self.office = world.office(folder / "clock")
        self.cell = Cell(str(folder), world.port, self.office.name, shape, trouble)
        self.by_hand: list[str] = []
        self.stands: list[str] = []
        self.denied = 0
        self.asked = 0
        target = undone(self.cell.target)
        match trouble:
            case "already undone":
                self.office.refuse(target, "already done")
            case "not undoable" | "let stand":
                self.office.refuse(target, "processed")
            case "unknown, landed":
                self.office.lose(target, "reply")
            case "unknown, vanished" | "shows nothing":
                self.office.lose(target, "503 before")
            case "late undo":
                self.office.hold(target, "before")
            case "late write" | "late write, given up":
                self.office.hold("late", "before")

    # ------------------------------------------------------------ running

    def start(self, kill_at: int | None = None) -> tuple[int, list[str]]:
        """Start or resume it, killed at that point if it comes there; how its process ended, and the points that it came by."""
        record = self.folder / "points"
        record.unlink(missing_ok=True)
        environs = {RECORD: str(record)} if kill_at is None else {RECORD: str(record), KILL_AT: str(kill_at)}
        code = self.hands.tasks.run(self.cell, self.answer_open, **environs)
        assert code in (KILLED, NEEDS_HUMAN, ENDED), f"it ends with exit code {code}"
        return code, record.read_text().split()

    def down(self) -> None:
        """What happens while nobody runs: a deploy, or time."""
        if self.cell.trouble == "handler missing":
            self.cell = self.cell._replace(gone=True)
        elif self.cell.trouble == "deadline passed while down":
            self.cell.clock.turn(DEADLINE_S + 60.0)

    def to_the_end(self) -> None:
        """Resume it in new processes, and let the person answer, until it ends."""
        for _ in range(12):
            code, _ = self.start()
            self.check()
            if code == ENDED:
                return
            self.answer_all()
        raise AssertionError("a person is asked again and again")

    # ------------------------------------------------------------ the person

    def answer_all(self) -> None:
        """Answer what is open: something is."""
        assert self.answer_open(), "it needs a person and asks nothing"

    def answer_open(self) -> int:
        """Answer every open case, as somebody who sees what the world counted; how many there were."""
        with self.look() as app:
            cases, alive = app.inbox().cases, app.show(TASK).owner_alive
            answers = [(case, self.answer(app, case, alive)) for case in cases if case.kind != "contradiction"]
        for case, words in answers:
            self.asked += 1
            said = ("--by", "anna", "--why", "the world's books", "--shown", case.hash)
            self.hands.person.command(self.cell, "settle", TARGET, case.id, *words, *said)
        return len(answers)

    def answer(self, app: Doubtless, case: Case, alive: bool) -> list[str]:
        """What the person says. What is not undone, and may be, is undone by hand; what is not there did not happen."""
        step = case.path or ""
        if case.kind == "doubt" and case.step == "make_late":
            assert self.office.effects("late") == [], "what is late is there before its time"
            self.denied += 1
            return ["did_not_happen", "--then", "fail", *(["--even-now"] if alive else [])]
        if case.kind == "doubt" and case.step == "make":
            made = self.office.effects(case.evidence["params"]["reference"])
            output = json.dumps({"id": made[0], "reference": case.evidence["params"]["reference"]}) if made else ""
            return ["happened", "--output", output] if made else ["did_not_happen", "--then", "retry"]
        steps = {one.path: one for one in app.show(case.task_id).steps}
        reference = steps[step.removeprefix("~")].params["reference"]
        if self.cell.trouble == "let stand":
            self.stands.append(reference)
            return ["did_not_happen", "--then", "fail"]
        if self.office.n(undone(reference)) == 0:
            self.by_hand.append(reference)
        return ["happened", "--output", json.dumps({"by": "hand"})]

    # ------------------------------------------------------------ what must hold

    def look(self) -> Looking:
        return Looking(self.cell)

    def check(self) -> None:
        """What holds at every moment: undone at most once, none said to be undone that is not, no doubt without an owner."""
        counts = self.office.control("counts")
        effects: dict[str, list[int]] = counts["effects"]
        again = {reference: made for reference, made in effects.items() if len(made) > 1}
        assert again == {}, f"counted twice at the server: {again}"
        both = [name for name in self.by_hand if undone(name) in effects]
        assert both == [], f"undone by hand and then by the machine: {both}"
        with self.look() as app:
            try:
                heads = app.tasks()
            except StoreRefused:  # killed before there was a store
                heads = []
            if not heads:
                assert effects == {}, "an effect of a task that is not recorded"
                return
            inbox = app.inbox()
            listed = {(one.task_id, one.path) for one in (*inbox.cases, *inbox.doubts)}
            views = [app.show(head.task_id) for head in heads]
            for view in views:
                self.check_steps(view, counts, listed)
            known = {self.counted_as(step) for view in views for step in view.steps if step.keys}
            assert effects.keys() <= known, f"the server has what the log does not know: {effects.keys() - known}"
            assert app.verify() == []

    def counted_as(self, step: StepView) -> str:
        reference = str(step.params["reference"])
        return undone(reference) if step.name == "withdraw" else reference

    def check_steps(self, view: TaskView, counts: dict[str, Any], listed: set[tuple[str, str | None]]) -> None:
        steps = {step.path: step for step in view.steps}
        for step in view.steps:
            if step.child is not None or not step.keys:
                continue
            if step.name in ("make", "make_late", "withdraw"):
                reference = self.counted_as(step)
                keys = counts["requests"].get("write", {}).get(reference, [])
                assert len(keys) <= step.calls, f"I1: {len(keys)} requests, fewer attempts in the log: {step}"
                assert set(keys) <= set(step.keys), f"a request under a key that the log does not have: {step}"
                there = bool(counts["effects"].get(reference))
                if step.status == StepStatus.DONE and step.name != "withdraw":
                    assert there, f"done in the log, not at the server: {step}"
                if step.status == StepStatus.NOT_APPLIED and step.name == "make":
                    assert not there, f"not_applied in the log and made at the server: {step}"
            if step.status == StepStatus.COMPENSATED:
                self.is_undone(step, counts)
                assert steps[f"~{step.path}"].status == StepStatus.DONE, f"compensated without a recorded success: {step}"
            hands = view.owner_alive or view.wake_at is not None or (view.id, step.path) in listed
            assert step.status in SETTLED or hands, f"I6: a doubt that nobody settles and nobody sees: {step}"

    def is_undone(self, step: StepView, counts: dict[str, Any]) -> None:
        reference = step.params["reference"]
        there = bool(counts["effects"].get(undone(reference))) or reference in self.by_hand
        assert there, f"said to be undone, and it is not: {step}"

    def check_end(self) -> Ended:
        """What holds when it has ended: nothing is forgotten, and what stands is listed; in short how it ended."""
        self.check()
        effects: dict[str, list[int]] = self.office.effects()
        in_order = sorted(effects, key=lambda reference: effects[reference])
        with self.look() as app:
            rows, views = app.store.rows(TASK), [app.show(head.task_id) for head in app.tasks()]
            end = next(row for row in rows if row.kind == Kind.TASK_ENDED)
            listed = [self.named(app, entry) for entry in end.details.get("stands", [])]
            kinds = [case.kind for case in app.inbox().cases]
        news = [row.event_seq for row in rows if row.kind == Kind.EVIDENCE_STORED and row.step_name == "make_late"]
        late = next((step for step in views[0].steps if step.name == "make_late"), None)
        contradicted = bool(news) and late is not None and late.status == StepStatus.NOT_APPLIED
        made = MADE[self.cell.shape] + (["late"] if late is not None and late.status != StepStatus.NOT_APPLIED else [])
        assert [name for name in in_order if name in made] == made, f"made at the server: {in_order}"
        machine = [name for name in made if undone(name) in effects]
        left = [name for name in made if name not in machine and name not in self.by_hand]
        assert sorted(left) == sorted(self.stands), f"forgotten: {left}, let stand: {self.stands}"
        order = [name.removeprefix("undo ") for name in in_order if name.startswith("undo ")]
        assert order == machine[::-1], f"not in reverse: {order}"
        writes = [step for view in views for step in view.steps if step.name.startswith("make")]
        said = sorted(str(step.params["reference"]) for step in writes if step.status == StepStatus.COMPENSATED)
        assert said == sorted(set(made) - set(left)), f"said to be undone: {said}"
        known = ["late"] if contradicted and news[0] < end.event_seq else []
        assert sorted(listed) == sorted(left + known), f"listed as standing: {listed}; it stands: {left + known}"
        assert (end.status == TaskStatus.COMPENSATED) == (not left and not known), f"it ends {end.status}"
        assert kinds == (["contradiction"] if contradicted else []), f"open at the end: {kinds}"
        if "late" in effects and "late" not in made and not news:
            assert self.denied, "nobody knows of what is late, and nobody has said that it is not there"
        if self.cell.trouble == "deadline passed while down":
            self.check_deadlines()
        return Ended(str(end.status), machine, self.by_hand, len(news), contradicted, self.asked)

    def named(self, app: Doubtless, entry: dict[str, Any]) -> str:
        task, path = entry.get("task", TASK), entry["path"]
        return str(next(step for step in app.show(task).steps if step.path == path).params["reference"])

    def check_deadlines(self) -> None:
        """The server got nothing to undo after its time."""
        for name in MADE[self.cell.shape]:
            for at in self.office.made_at(undone(name)):
                age = (at - self.office.made_at(name)[0]) / 1e6
                assert age <= DEADLINE_S, f"{name} was undone {age} s after it was made"


class Looking:
    """The app in this process, read only: to look."""

    def __init__(self, cell: Cell) -> None:
        self.app = build(cell, read_only=True).app

    def __enter__(self) -> Doubtless:
        return self.app

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.app.close()
