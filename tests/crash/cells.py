"""How a test brings each cell of the matrix about: `trouble` returns when the machine has done all that it can."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from .clock import TurnedClock
from .driver import Answers, Child, standing_check, unattended, watching
from .outside import Office
from .program import Scenario

TASK = "t"
"""The task's id, and the reference of the write in its middle."""


class Stage(NamedTuple):
    """What a cell plays on. `wait`: whether runs wait in place or park between two looks."""

    scenario: Scenario
    office: Office
    clock: TurnedClock
    children: ExitStack
    wait: str

    def child(self, **changes: object) -> Child:
        """A new process of the program."""
        return self.children.enter_context(Child(self.scenario.but(**changes)))

    def check(self) -> None:
        """The invariants hold now, whatever state things are in."""
        with watching(self.scenario) as app:
            standing_check(app, self.office, TASK)

    def go_on(self, child: Child) -> Answers:
        """The machine does all that it can."""
        return unattended(child, self.clock, TASK, self.wait)


class Played(NamedTuple):
    """What came of a cell: how the task stands, and the process that says so."""

    answer: Answers
    child: Child
    held: bool = False
    """The first call's thread still stands at the barrier."""


def until(reached: Callable[[], bool], what: str) -> None:
    """Wait for something that another process is about to do."""
    deadline = time.monotonic() + 30.0
    while not reached():
        assert time.monotonic() < deadline, f"never reached: {what}"


def killed_at(stage: Stage, where: str, *, drop: bool, found_after: float = 60.0) -> None:
    """A first process is killed while its request stands before or after its effect; its doubt shows at once.

    `found_after`: seconds until somebody finds it dead. Only from then on can its last send be surely over.
    """
    stage.office.hold(TASK, where)
    first = stage.child()
    first.tell("run", TASK, "no")
    stage.office.wait_held(first.process)
    first.kill()
    if drop:
        stage.office.release("drop")
    stage.check()
    stage.clock.turn(found_after)


def killed_before(stage: Stage) -> Played:
    killed_at(stage, "before", drop=True)
    second = stage.child()
    return Played(stage.go_on(second), second)


def killed_after(stage: Stage) -> Played:
    killed_at(stage, "after", drop=True)
    second = stage.child()
    return Played(stage.go_on(second), second)


def killed_on_its_way(stage: Stage) -> Played:
    """The request lands when its sender is dead: ten seconds after it was found dead, when somebody has looked already,
    or after it was sent again under its key."""
    killed_at(stage, "before", drop=False)
    second = stage.child()
    if stage.scenario.effect == "non_idem_write":
        second.run(TASK)
        stage.clock.turn(10.0)
        second.run(TASK)
        stage.check()
        stage.office.release()
        until(lambda: stage.office.n(TASK) == 1, "the late effect")
        return Played(stage.go_on(second), second)
    answer = stage.go_on(second)
    stage.office.release()
    until(lambda: not stage.office.busy(), "the late request")
    return Played(answer, second)


def killed_recorded(stage: Stage) -> Played:
    first = stage.child(die=True)
    first.tell("run", TASK, "no")
    first.died()
    stage.check()
    second = stage.child()
    return Played(stage.go_on(second), second)


def timed_out(stage: Stage) -> Played:
    stage.office.hold(TASK, "after")
    child = stage.child(loss="timeout")
    answer = stage.go_on(child)
    stage.office.release("drop")
    return Played(answer, child)


def reply_lost(stage: Stage) -> Played:
    stage.office.lose(TASK, "reply")
    child = stage.child()
    return Played(stage.go_on(child), child)


def answered_500(stage: Stage) -> Played:
    stage.office.lose(TASK, "500 after")
    child = stage.child()
    return Played(stage.go_on(child), child)


def overran(stage: Stage) -> Played:
    return overran_at(stage, "after")


def overran_before(stage: Stage) -> Played:
    return overran_at(stage, "before")


def overran_at(stage: Stage, where: str) -> Played:
    """The step's own timeout passes while its call stands at the barrier: its thread lives on, and may still send."""
    stage.office.hold(TASK, where)
    child = stage.child(loss="overrun", timeout="PT0.2S")
    answer = child.run(TASK, "PT10M")
    stage.check()
    return Played(answer, child, held=True)


def raced(stage: Stage) -> Played:
    """Two processes start the same task at the same moment: one runs it, the other is told so or given the output."""
    both = [stage.child(), stage.child()]
    for child in both:
        child.tell("run", TASK, "PT10M")
    stands = sorted(child.hear()["stands"] for child in both)
    assert stands in (["busy", "done"], ["done", "done"]), stands
    return Played(both[0].run(TASK), both[0])


def resumed_twice(stage: Stage) -> Played:
    killed_at(stage, "after", drop=True)
    both = [stage.child(), stage.child()]
    for child in both:
        child.tell("run", TASK, "PT10M")
    for child in both:
        child.hear()
    return Played(stage.go_on(both[0]), both[0])


def slow(stage: Stage) -> Played:
    """An owner that has been at it for hours keeps its task; the doubt is listed, nobody sends again."""
    stage.office.hold(TASK, "before")
    owner = stage.child()
    owner.tell("run", TASK, "no")
    stage.office.wait_held(owner.process)
    turned_past_all_limits(stage)
    refused = stage.child().run(TASK)
    assert refused["stands"] == "busy", refused
    assert str(owner.pid) in refused["why"]
    stage.office.release()
    return Played(owner.hear(), owner)


def turned_past_all_limits(stage: Stage) -> None:
    """Two hours: past `settle_within`, past any lease; an unsettled write must be in the inbox from now on."""
    stage.clock.turn(7200.0)
    stage.check()
    with watching(stage.scenario) as app:
        inbox = app.inbox()
        listed = [case.step for case in inbox.cases] + [doubt.step for doubt in inbox.doubts]
        assert listed == ([] if stage.scenario.effect == "read" else ["act"]), inbox


def stopped_and_woken(stage: Stage) -> Played:
    """A stopped owner keeps its task, whatever lands meanwhile; woken, it goes on where it stood."""
    stage.office.hold(TASK, "before")
    owner = stage.child()
    owner.tell("run", TASK, "no")
    stage.office.wait_held(owner.process)
    owner.stop()
    second = stage.child()
    refused = second.run(TASK)
    assert refused["stands"] == "busy", refused
    assert f"kill -CONT {owner.pid}" in refused["why"]
    stage.office.release()
    until(lambda: not stage.office.busy(), "the effect")
    turned_past_all_limits(stage)
    assert second.run(TASK)["stands"] == "busy"
    owner.wake()
    return Played(owner.hear(), owner)


def stopped_past_its_timeout(stage: Stage) -> Played:
    """Stopped with its call in flight, woken when the call's time is over: the supervisor is the first to see it."""
    stage.office.hold(TASK, "after")
    owner = stage.child(timeout="PT0.2S")
    owner.tell("run", TASK, "PT10M")
    stage.office.wait_held(owner.process)
    owner.stop()
    assert stage.child().run(TASK)["stands"] == "busy"
    stage.clock.turn(1.0, overrun=True)
    stage.check()
    owner.wake()
    return Played(owner.hear(), owner, held=True)


def stopped_and_killed(stage: Stage) -> Played:
    stage.office.hold(TASK, "after")
    owner = stage.child()
    owner.tell("run", TASK, "no")
    stage.office.wait_held(owner.process)
    owner.stop()
    second = stage.child()
    assert second.run(TASK)["stands"] == "busy"
    owner.kill()
    stage.office.release("drop")
    return Played(stage.go_on(second), second)


def inside_the_window(stage: Stage) -> Played:
    killed_at(stage, "after", drop=True, found_after=5.0)
    second = stage.child()
    return Played(stage.go_on(second), second)


def window_over(stage: Stage) -> Played:
    killed_at(stage, "after", drop=True, found_after=45.0)
    second = stage.child()
    return Played(stage.go_on(second), second)


def window_over_nothing_made(stage: Stage) -> Played:
    killed_at(stage, "before", drop=True, found_after=45.0)
    second = stage.child()
    return Played(stage.go_on(second), second)


def budget_used_up(stage: Stage) -> Played:
    stage.office.lose(TASK, "reply", count=3)
    child = stage.child()
    return Played(stage.go_on(child), child)


KEY_WINDOW = "PT40S"

PLAY: dict[str, Callable[[Stage], Played]] = {
    "A": killed_before,
    "late": killed_on_its_way,
    "B": killed_after,
    "C": killed_recorded,
    "timeout": timed_out,
    "reply": reply_lost,
    "500": answered_500,
    "overrun": overran,
    "race": raced,
    "resumed": resumed_twice,
    "slow": slow,
    "slower": overran_before,
    "stopped": stopped_and_woken,
    "woken": stopped_past_its_timeout,
    "ended": stopped_and_killed,
    "inside": inside_the_window,
    "over": window_over,
    "over0": window_over_nothing_made,
    "budget": budget_used_up,
}
