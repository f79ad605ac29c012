"""A crash test of somebody's own task: killed at every commit and every call, replies lost, look-backs late.

    report = crashtest(app, adjust, {"order": "A-17", "amount": 5}, fakes=fakes)
    assert not report.wrong, report.wrong

Each run has a store of its own in a scratch folder and a clock that is turned; the app's own store is never opened.
`trial` is one such run, `doubtless crashtest` the command.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from ..durations import parse_duration, show_duration
from ..events import CaseKind, Effect, TaskStatus
from .standins import StandIns
from .trial import Found, Trial, Trouble

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..effects import StepDefinition
    from ..steps import Task
    from .trial import Arrival
    from .world import CountingWorld

ASKED = (CaseKind.QUESTION, CaseKind.OUTPUT, CaseKind.HOLD)
"""Where an undisturbed task may stand: it has asked a person something, and goes on only with the answer."""
LAG = parse_duration("PT1M")
"""How late the look-back of a step is that declares no `absent_after`."""


class StepReport(NamedTuple):
    """One step in all runs together.

    Shapes: `runs`: in how many it was called; `most_calls`, `most_effects`: at one place of one run; `doubts`: how often
    what settled a doubt of it (``{"the look-back found it": 4}``); `people`: how many questions about it went to a person.
    """

    step: str
    effect: str
    runs: int
    most_calls: int
    most_effects: int
    doubts: dict[str, int]
    people: int


class Wrong(NamedTuple):
    """Something that must not happen: what, in how many runs, and the trouble of the first of them."""

    what: str
    runs: int
    first: str


class CrashReport(NamedTuple):
    """What a crash test found. No `wrong`: nothing that must not happen has happened.

    Shapes: `undisturbed`: how the task ends when nothing happens; `points`: at how many points it was killed; `ends`: how
    often the disturbed runs ended how; `notes`: what the test could not see.
    """

    task: str
    undisturbed: str
    points: int
    runs: int
    ends: dict[str, int]
    steps: list[StepReport]
    wrong: list[Wrong]
    notes: list[str]


def crashtest(
    app: Doubtless,
    task: Task[..., Any] | str,
    params: Mapping[str, Any] | None = None,
    *,
    fakes: Mapping[str, Callable[..., Any]] | Callable[[], Mapping[str, Callable[..., Any]]] | None = None,
    world: CountingWorld | None = None,
    fake: bool = False,
    outputs: Mapping[str, Any] | None = None,
    real: bool = False,
    lag: str | int | float | None = None,
) -> CrashReport:
    """Run the task once undisturbed, then once for each trouble, each time to its end, and say what came of it.

    Meaning: the troubles are a kill before and after each commit, each call of a step and each look-back; a lost reply of
    each call; look-backs that lag (and a kill while they are asked); a second run that comes while a write's owner
    stands still for an hour. Cases about doubts are answered as a person would who sees what was counted. Each call
    that runs to its end counts as an effect: of an idem_write once for each key.
    Shapes: `fakes`: by step what is called in place of its function, by ``"<step>.query"`` in place of its query; a
    function that gives them is called before each run. `world`: cleared before each run, its counts are compared with
    the undisturbed run's, so that a read that writes shows. `fake`: whatever write has no fake gets one that gives
    `outputs[step]`, or what its annotation says. `real`: call writes that have no fake; they are called many times.
    `lag`: how late look-backs may be, ``"PT10M"``; None: half of each step's `absent_after`, PT1M without one.
    Raises: UsageError before anything is called when a write, or the query of a faked one, would be the real one.
    """
    code = app.declared_tasks[task] if isinstance(task, str) else task
    stand_ins = StandIns(app, fakes, fake=fake, outputs=outputs or {}, real=real)
    prefix = f"crashtest-{os.urandom(4).hex()}" if real else "crashtest"  # other systems remember the keys of an earlier test
    late = None if lag is None else parse_duration(lag, zero=True)
    with TemporaryDirectory(prefix="doubtless-crashtest-", dir=scratch()) as folder:

        def attempt(number: int, trouble: Trouble | None) -> Found:
            if world is not None:
                world.clear()
            place = os.path.join(folder, str(number))
            os.mkdir(place)
            with Trial(app, place, stand_ins, trouble) as trial:
                return trial.carry_out(code, f"{prefix}-{number}", params or {}, world)

        calm = attempt(0, None)
        if calm.stuck and not (calm.end == TaskStatus.NEEDS_HUMAN and calm.stuck.startswith(ASKED)):
            calm.wrong.append(f"it does not end: {calm.stuck}")
        troubles = [] if calm.wrong else list(troubles_of(calm.arrivals, app._table.__getitem__, late))
        found = [attempt(number, trouble) for number, trouble in enumerate(troubles, 1)]
    return conclude(code.name, calm, troubles, found, world)


def scratch() -> str | None:
    """Where scratch stores go: memory, where there is a file system in it and nobody says otherwise; nothing has to last."""
    memory = "/dev/shm"
    return memory if "TMPDIR" not in os.environ and os.access(memory, os.W_OK | os.X_OK) else None


# ---------------------------------------------------------------- what is to happen


def troubles_of(arrivals: list[Arrival], find: Callable[[str], StepDefinition], lag: int | None) -> list[Trouble]:
    """Everything that is to happen once, by what the undisturbed run came by."""
    troubles: list[Trouble] = []
    for number, point in enumerate(arrivals, 1):
        troubles.append(Trouble(f"killed {point.words}", number, "kill"))
        if point.what != "effect" or point.step.startswith("$"):  # the library's own reads: of a model's choice, of the time
            continue
        definition = find(point.step)
        writes = definition.effect != Effect.READ
        if point.when == "before":
            if writes:
                troubles.append(Trouble(f"stopped {point.words} while a second run comes", number, "stop"))
            continue
        lost = f"the reply of {point.step} lost"
        troubles.append(Trouble(lost, number, "lose"))
        if writes and definition.query is not None:
            late = lag_of(definition) if lag is None else lag
            lagging = f", its look-back {show_duration(late)} late"
            troubles.append(Trouble(lost + lagging, number, "lose", lags=(point.step, late)))
            troubles.append(Trouble(f"killed {point.words}{lagging}", number, "kill", lags=(point.step, late)))
            troubles.append(Trouble(f"{lost}, then killed before it looks back", number, "lose", then="before"))
            troubles.append(Trouble(f"{lost}, then killed after it has looked back", number, "lose", then="after"))
    return troubles


def lag_of(definition: StepDefinition) -> int:
    """A lag that keeps what the step declares of its other side."""
    return LAG if definition.absent_after_us is None else definition.absent_after_us // 2


# ---------------------------------------------------------------- what came of it


def conclude(
    task: str, calm: Found, troubles: list[Trouble], found: list[Found], world: CountingWorld | None
) -> CrashReport:  # fmt: skip
    """One report of all runs."""
    wrong: dict[str, Wrong] = {text: Wrong(text, 1, "nothing happened") for text in calm.wrong}
    for trouble, one in zip(troubles, found, strict=True):
        for text in dict.fromkeys([*one.wrong, *against(calm, one)]):
            before = wrong.get(text)
            wrong[text] = Wrong(text, 1, trouble.words) if before is None else before._replace(runs=before.runs + 1)
    notes = []
    missed = sum(not one.reached for one in found)
    if missed:
        notes.append(f"in {missed} runs the point was not reached: what the task does depends on timing")
    if calm.stuck and not calm.wrong:
        notes.append(f"what comes after this was not tested: {calm.stuck}")
    if world is None:
        notes.append("no counting world is given: a read that writes would not show")
    return CrashReport(
        task, calm.end, len(calm.arrivals), len(found), dict(Counter(one.end for one in found)),
        steps_of([calm, *found]), list(wrong.values()), notes,
    )  # fmt: skip


def against(calm: Found, one: Found) -> list[str]:
    """What is wrong with a run's end, beside the undisturbed one's."""
    wrong = []
    if one.stuck and (one.end, one.stuck) != (calm.end, calm.stuck):
        wrong.append(f"it does not end: {one.stuck}")
    for kind in sorted({*one.counted, *calm.counted}):
        there, usual = one.counted[kind], calm.counted[kind]
        if there > usual:  # fewer are no fault: a task may go on without what is proven not to have happened
            wrong.append(f"the world counts {there} of {kind}, undisturbed {usual}")
    return wrong


def steps_of(found: list[Found]) -> list[StepReport]:
    """All steps in the order in which they were first met."""
    steps: dict[str, StepReport] = {}
    for one in found:
        met = {}
        for step in one.steps:
            report = steps.get(step.name) or StepReport(step.name, step.effect, 0, 0, 0, {}, 0)
            doubts = Counter(report.doubts)
            if step.doubt is not None:
                doubts[step.doubt] += 1
            met[step.name] = steps[step.name] = report._replace(
                most_calls=max(report.most_calls, step.calls),
                most_effects=max(report.most_effects, step.effects),
                doubts=dict(doubts),
                people=report.people + step.people,
            )
        for name, report in met.items():
            steps[name] = report._replace(runs=report.runs + 1)
    return list(steps.values())
