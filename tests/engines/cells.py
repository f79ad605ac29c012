"""The kill and redelivery cells of the crash matrix, played on an engine: its workers die, and its deliveries double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crash.cells import TASK, Played, Stage
from crash.clock import TurnedClock
from crash.driver import by_the_count, even_now, settle, standing_check
from crash.expected import EXCEPTIONS, EXPECTED, LAG, LOOKS, WORDS
from crash.outside import Office, World
from crash.program import Scenario
from crash.test_matrix import machine_only
from doubtless.durations import parse_duration

from .ground import Crew, Engine, program_of, until

LEASE = "PT20S"
"""How long an owner lasts where a lease, and no lock, says who is alive; by the clock that the tests turn."""


class Scene(NamedTuple):
    """What a cell plays on."""

    scenario: Scenario
    crew: Crew
    office: Office
    clock: TurnedClock

    def check(self) -> None:
        standing_check(self.crew.app, self.office, TASK)

    def start(self) -> None:
        self.crew.app.start(self.crew.task, TASK, reference=TASK)


def found_dead(scene: Scene) -> None:
    """The owner's process has ended, and nobody takes it for alive any more: where it had a lease, that is over, too."""
    owner = scene.crew.view(TASK).owner
    if scene.scenario.store and owner is not None:
        pid = owner.partition("-")[0]
        until(lambda: ended(int(pid)), "the owner's end")
        scene.clock.turn(parse_duration(LEASE) / 1e6)
    until(lambda: not scene.crew.view(TASK).owner_alive, "the owner's death")


def ended(pid: int) -> bool:
    """Whether a process is no more; a zombie is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def killed_at(scene: Scene, where: str, *, drop: bool = True) -> None:
    """The worker and all its children are killed while the request stands before or after its effect."""
    scene.office.hold(TASK, where)
    worker = scene.crew.worker()
    scene.start()
    scene.office.wait_held(worker)  # type: ignore[arg-type]
    worker.kill()
    found_dead(scene)
    if drop:
        scene.office.release("drop")
    scene.check()
    scene.clock.turn(60.0)
    scene.crew.worker()


def killed_before(scene: Scene) -> None:
    killed_at(scene, "before")


def killed_after(scene: Scene) -> None:
    killed_at(scene, "after")


def killed_on_its_way(scene: Scene) -> None:
    """The request lands when its sender is dead: when somebody has looked already, or after it was sent again."""
    killed_at(scene, "before", drop=False)
    if scene.scenario.effect != "non_idem_write":
        scene.crew.rests(TASK)
    elif scene.scenario.query is not None:
        until(lambda: scene.office.requests("look"), "a look-back")
        scene.check()
    scene.office.release()
    until(lambda: not scene.office.busy(), "the late request")


def killed_recorded(scene: Scene) -> None:
    """Whoever records the step is killed at that moment; of the worker nothing else is."""
    dying = scene.crew.worker(die=True)
    scene.start()
    until(lambda: scene.office.n(TASK) or scene.office.requests("read", TASK), "the call")
    found_dead(scene)
    dying.kill()
    scene.check()
    scene.crew.worker()


def delivered_twice(scene: Scene) -> None:
    """Two workers are given the task at the same moment."""
    for _ in range(2):
        scene.crew.worker()
    scene.start()
    scene.crew.doubled(TASK)


def redelivered_while_it_runs(scene: Scene) -> None:
    """The engine delivers the task again while its owner is slow, to a second worker: it is told so and does nothing."""
    scene.office.hold(TASK, "before")
    owner = scene.crew.worker()
    scene.start()
    scene.office.wait_held(owner)  # type: ignore[arg-type]
    scene.crew.worker()
    scene.crew.redelivered(TASK)
    scene.check()
    assert len(scene.office.requests("write", TASK) + scene.office.requests("read", TASK)) == 1
    scene.office.release()


PLAY: dict[str, Callable[[Scene], None]] = {
    "A": killed_before,
    "late": killed_on_its_way,
    "B": killed_after,
    "C": killed_recorded,
    "race": delivered_twice,
    "slow": redelivered_while_it_runs,
}

SHORT = [
    ("non_idem_write", "B", "honest"), ("non_idem_write", "A", "none"), ("non_idem_write", "slow", "none"),
    ("idem_write", "B", "none"),
]  # fmt: skip
"""What is played first, and on every engine also where time is short."""

CELLS = [
    *SHORT,
    ("non_idem_write", "A", "honest-retry"), ("non_idem_write", "A", "honest-fail"), ("non_idem_write", "A", "several"),
    ("non_idem_write", "A", "raising"), ("non_idem_write", "B", "none"), ("non_idem_write", "B", "lagging"),
    ("non_idem_write", "B", "longer-retry"), ("non_idem_write", "B", "empty"), ("non_idem_write", "late", "honest-fail"),
    ("non_idem_write", "C", "honest"), ("non_idem_write", "race", "none"), ("idem_write", "A", "none"),
    ("idem_write", "late", "none"), ("idem_write", "C", "none"), ("idem_write", "race", "none"), ("idem_write", "slow", "none"),
    ("read", "A", "none"), ("read", "C", "none"), ("read", "slow", "none"),
]  # fmt: skip


def play(engine: Engine, world: World, folder: Path, effect: str, cell: str, look: str, store: str = "") -> None:
    """One cell: the trouble, what the machine makes of it, and what a person settles. `store`: the log's URL, if no file's."""
    word, kind = EXPECTED[effect][look, cell], LOOKS[look]
    clock = TurnedClock(folder / "clock")
    office = world.office(clock.path)
    office.set(look=kind.search, lag_us=LAG * 1_000_000 if kind.lags else 0)
    scenario = Scenario(
        str(folder), world.port, office.name, effect, kind.query, kind.absent_after, kind.on_absent, settle_within="PT10H",
        store=store,
    )
    with engine.crew(folder, program_of(scenario)) as crew:
        scene = Scene(scenario, crew, office, clock)
        PLAY[cell](scene)
        assert (folder / "store.db").exists() is not bool(store)
        rested = crew.rests(TASK)
        played = Played({"stands": rested.status}, None)  # type: ignore[arg-type]
        machine_only(Stage(scenario, office, clock, None, "no"), played, word, cell, look)  # type: ignore[arg-type]
        if WORDS[word].stands == "needs_human":
            settled(scene, word, look)


def settled(scene: Scene, word: str, look: str) -> None:
    """A person answers by the count; nobody calls `resume`: the engine is told, and brings the task to its end."""
    crew, office = scene.crew, scene.office
    assert settle(crew.app, by_the_count(office)) == 1
    if (look, word) == ("several", "ask0"):  # its fresh look finds several: asked anew
        crew.rests(TASK)
        assert settle(crew.app, even_now) == 1
    view = crew.rests(TASK)
    assert view.status == "done", view
    assert office.n(TASK) == 1
    assert office.n(f"{TASK}/close") == 1
    standing_check(crew.app, office, TASK, false_declaration=word in EXCEPTIONS)
    assert crew.app.inbox() == ([], [])


def names() -> Iterator[Any]:
    import pytest

    for effect, cell, look in CELLS:
        yield pytest.param(effect, cell, look, id=f"{effect}-{cell}-{look}")
