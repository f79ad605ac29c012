"""The matrix: every kind of trouble, for each class and each kind of look-back, with effects counted at the server.

`expected.EXPECTED` says what must come of each cell. Here each is played with real processes and real kills; then a
person settles what only a person can, by what the server counted, and the task is brought to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from doubtless import TaskBusy
from doubtless.events import Kind
from doubtless.timeline import StepView

from . import driver
from .cells import KEY_WINDOW, PLAY, TASK, Played, Stage, killed_at, until
from .clock import TurnedClock
from .driver import attended, by_the_count, even_now, standing_check, watching
from .expected import CELLS, EXCEPTIONS, EXPECTED, LAG, LOOKS, WORDS
from .outside import World
from .program import Scenario, build

LOOKS_MADE = {"honest": 1, "lagging": 1, "several": 1, "raising": 5, "empty": 5, "none": 0}
"""Of a doubt that ends with a person, after a kill: how often the other side was asked first."""

# What always runs: each cell of each class, and each look-back against a landed and an absent effect.
SHORT = {
    "non_idem_write": {
        "A": ["none", "honest", "honest-retry", "raising", "several", "empty"],
        "B": ["none", "honest", "lagging", "longer-fail", "longer-retry", "shorter-fail", "shorter-retry", "raising", "several",
              "empty"],
        "late": ["honest", "honest-fail"],
        "C": ["honest"], "timeout": ["none", "longer-retry"], "reply": ["honest"], "500": ["honest-fail"],
        "overrun": ["none", "shorter-retry"], "race": ["none"], "resumed": ["honest-retry"], "slow": ["honest-retry"],
        "slower": ["none", "honest-retry"], "stopped": ["honest"], "woken": ["none"], "ended": ["longer-fail"],
    },
    "idem_write": {
        "A": ["none"], "late": ["none"], "B": ["none", "lagging"], "C": ["none"], "timeout": ["honest"], "reply": ["none"],
        "500": ["none"], "overrun": ["none"], "race": ["none"], "resumed": ["none"], "slow": ["none"], "slower": ["none"],
        "stopped": ["none"], "woken": ["none"], "ended": ["none"], "inside": ["none"],
        "over": ["none", "honest", "longer-retry", "raising"], "over0": ["honest-retry"], "budget": ["none", "honest"],
    },
    "read": {cell: ["none"] for _, cell in EXPECTED["read"]},
}  # fmt: skip

MODES = {"parks": "", "in place": ", waiting in place", "async": ", async"}
ASYNC_CELLS = ("A", "late", "B", "C", "reply", "500", "resumed", "over", "budget")
IN_PLACE_CELLS = ("A", "B", "timeout", "reply", "over", "over0", "budget")


def matrix() -> Iterator[Any]:
    """The whole product; what is not in the short form is marked."""
    for effect, table in EXPECTED.items():
        for (look, cell), word in table.items():
            for mode, how in MODES.items():
                if (mode == "async" and cell not in ASYNC_CELLS) or (mode == "in place" and cell not in IN_PLACE_CELLS):
                    continue
                always = look in SHORT[effect].get(cell, ()) if mode == "parks" else (effect, cell, look) in ALSO[mode]
                letter, words, cases = CELLS[cell]
                name = f"{letter}: {effect} {words}, {LOOKS[look].words}{how}: {WORDS[word].says} ({cases})"
                yield pytest.param(effect, cell, look, mode, id=name, marks=() if always else pytest.mark.prove)


ALSO = {
    "in place": [("non_idem_write", "B", "longer-retry"), ("idem_write", "reply", "none")],
    "async": [("non_idem_write", "B", "honest"), ("non_idem_write", "A", "honest-retry"), ("idem_write", "reply", "none")],
}


@pytest.mark.parametrize(("effect", "cell", "look", "mode"), list(matrix()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    world: World, tmp_path: Path, effect: str, cell: str, look: str, mode: str
) -> None:
    word = EXPECTED[effect][look, cell]
    kind = LOOKS[look]
    clock = TurnedClock(tmp_path / "clock")
    office = world.office(clock.path)
    window = KEY_WINDOW if CELLS[cell].letter == "K" and cell != "budget" else None
    office.set(look=kind.search, lag_us=LAG * 1_000_000 if kind.lags else 0, key_window_us=40_000_000 if window else None)
    scenario = Scenario(
        str(tmp_path), world.port, office.name, effect, kind.query, kind.absent_after, kind.on_absent, window,
        asynchronous=mode == "async",
    )  # fmt: skip
    with ExitStack() as children:
        stage = Stage(scenario, office, clock, children, "PT10M" if mode == "in place" else "no")
        played = PLAY[cell](stage)
        machine_only(stage, played, word, cell, look)
        if played.held:
            late_reply(stage, played)
        elif WORDS[word].stands == "needs_human":
            by_a_person(stage, played, word, look)


def machine_only(stage: Stage, played: Played, word: str, cell: str, look: str) -> None:
    """How it stands when the machine has done what it can."""
    office, effect, expected = stage.office, stage.scenario.effect, WORDS[word]
    assert played.answer["stands"] == expected.stands, played.answer
    with watching(stage.scenario) as app:
        view = app.show(TASK)
        standing_check(app, office, TASK, false_declaration=word in EXCEPTIONS)
        act: StepView = next(step for step in view.steps if step.name == "act")
        assert len(office.requests("read", f"{TASK}/survey")) == 1, "the read before it was made again"
        assert office.n(f"{TASK}/close") == (expected.stands == "done"), "rule 8: a write in doubt stops its task"
        assert [case.kind for case in app.inbox().cases] == ["doubt"] * (expected.stands == "needs_human")
        assert act.settled_by == expected.settled_by
        if effect == "read":
            assert len(office.requests("read", TASK)) == expected.calls
            return
        calls = 3 if cell == "budget" else expected.calls
        assert (office.n(TASK), act.calls, len(office.requests("write", TASK))) == (expected.effects, calls, calls)
        assert len(set(act.keys)) == 1, "another key: another effect"
        if cell in ("A", "B") and expected.stands == "needs_human":
            assert len(office.requests("look")) == LOOKS_MADE[look]
            assert len(office.requests("read", f"{TASK}/code")) == 1, "rule 1: what is in doubt is settled before task code runs"
        if effect == "idem_write" and word in ("again", "reply") and stage.scenario.key_window is None and cell != "budget":
            assert office.requests("look") == [], "its key settles it; nobody has to be asked"


def late_reply(stage: Stage, played: Played) -> None:
    """The call that overran comes back after all: its word settles what is open, and contradicts nothing."""
    ended = played.answer["stands"] == "done"
    if not ended and stage.scenario.effect == "non_idem_write":
        still_calling(stage, played)
    stage.office.release()
    until(lambda: not stage.office.busy(), "the late reply")
    until(lambda: played.child.run(TASK)["stands"] == "done", "the end of the late call")
    with watching(stage.scenario) as app:
        until(lambda: app.show(TASK).owner is None, "the end of the late call")
        standing_check(app, stage.office, TASK)
        act = next(step for step in app.show(TASK).steps if step.name == "act")
        assert app.inbox() == ([], [])
        if stage.scenario.effect != "read":
            assert stage.office.n(TASK) == 1
            assert ended or act.settled_by == "a late reply"


def still_calling(stage: Stage, played: Played) -> None:
    """While its thread may still send, nobody takes the task over, and the doubt is listed when it is old."""
    with watching(stage.scenario) as app:
        assert app.show(TASK).owner_alive
        stage.clock.turn(7200.0)
        inbox = app.inbox()
        assert len(inbox.cases) + len(inbox.doubts) == 1, inbox
        assert stage.child().run(TASK)["stands"] == "busy"
        assert stage.office.n(f"{TASK}/close") == 0


def by_a_person(stage: Stage, played: Played, word: str, look: str) -> None:
    """A person answers by the count, or the search that lagged shows it meanwhile; then the task goes to its end."""
    void = even_now if (look, word) == ("several", "ask0") else None  # its fresh look finds several: asked anew
    if (look, word) == ("lagging", "ask1"):
        stage.clock.turn(LAG)
        answer = stage.go_on(played.child)
    else:
        answer = attended(stage.scenario, played.child, TASK, by_the_count(stage.office), void)
    assert answer["stands"] == "done", answer
    assert stage.office.n(TASK) == 1
    with watching(stage.scenario) as app:
        standing_check(app, stage.office, TASK, false_declaration=word in EXCEPTIONS)
        assert app.inbox() == ([], []), "what is settled is out of the inbox"
        assert answer["output"]["made"]["id"] in stage.office.effects(TASK)
    assert stage.office.n(f"{TASK}/close") == 1
    assert played.child.run(TASK) == answer, "run again, it is the same"


def test_a_person_who_says_too_early_that_it_did_not_happen_is_corrected_by_the_fresh_look(world: World, tmp_path: Path) -> None:
    clock = TurnedClock(tmp_path / "clock")
    office = world.office(clock.path)
    scenario = Scenario(str(tmp_path), world.port, office.name, "non_idem_write", query="found")
    with ExitStack() as children:
        stage = Stage(scenario, office, clock, children, "no")
        killed_at(stage, "before", drop=False)
        child = stage.child()
        assert child.run(TASK)["stands"] == "needs_human"
        with watching(scenario) as app:
            assert driver.settle(app, by_the_count(office)) == 1
            assert child.run(TASK)["stands"] == "waiting", "what was sent may still land"
            office.release()
            until(lambda: office.n(TASK) == 1, "the late effect")
            assert stage.go_on(child)["stands"] == "done"
            act = next(step for step in app.show(TASK).steps if step.name == "act")
            assert (act.settled_by, act.calls, office.n(TASK)) == ("the look-back found it", 1, 1)
            standing_check(app, office, TASK)


def test_what_a_person_abandons_is_listed_as_standing_and_the_task_fails(world: World, tmp_path: Path) -> None:
    clock = TurnedClock(tmp_path / "clock")
    office = world.office(clock.path)
    scenario = Scenario(str(tmp_path), world.port, office.name, "non_idem_write")
    with ExitStack() as children:
        stage = Stage(scenario, office, clock, children, "no")
        played = PLAY["B"](stage)
        answer = attended(scenario, played.child, TASK, driver.give_up)
        assert answer["stands"] == "failed", answer
        assert answer["failure"]["kind"] == "abandoned"
        with watching(scenario) as app:
            standing_check(app, office, TASK)
            act = next(step for step in app.show(TASK).steps if step.name == "act")
            assert (act.status, office.n(TASK), office.n(f"{TASK}/close")) == ("failed", 1, 0)


def test_the_matrix_names_every_cell_for_each_class_and_each_look_back() -> None:
    for effect, table in EXPECTED.items():
        looks = {look for look, _ in table}
        cells = {cell for _, cell in table}
        assert looks == ({"none"} if effect == "read" else set(LOOKS))
        assert cells == set(CELLS) - (set() if effect == "idem_write" else {"inside", "over", "over0", "budget"})
        assert cells == set(SHORT[effect]), "the short form leaves a cell out"


def test_fifty_threads_and_a_second_process_that_start_one_task_make_one_intent_and_one_effect(
    world: World, tmp_path: Path
) -> None:
    clock = TurnedClock(tmp_path / "clock")
    office = world.office(clock.path)
    scenario = Scenario(str(tmp_path), world.port, office.name, "non_idem_write")
    with driver.Child(scenario) as child, ThreadPoolExecutor(50) as pool:
        app, task = build(scenario)
        child.tell("run", TASK, "no")
        runs = [pool.submit(app.run, task, TASK, reference=TASK) for _ in range(50)]
        failures = [run.exception() for run in runs if run.exception() is not None]
        assert {type(failure) for failure in failures} <= {TaskBusy}
        assert child.hear()["stands"] in ("busy", "done")
        intents = [row for row in app.store.rows(TASK) if row.kind == Kind.STEP_INTENDED and row.step_name == "act"]
        assert (len(intents), office.n(TASK)) == (1, 1)
        standing_check(app, office, TASK)
        app.close()
