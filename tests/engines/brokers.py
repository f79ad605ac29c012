"""A broker that dies: what runs goes on, what could not be handed over is found when it is there again."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from crash.clock import TurnedClock
from crash.driver import standing_check
from crash.outside import World
from crash.program import Scenario

from .ground import Engine, program_of


class Broker(Engine, Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


def killed_and_restarted(broker: Broker, world: World, folder: Path, *, new_worker: bool) -> None:
    """Killed by SIGKILL while one task stands in a call; another is started meanwhile; then the broker is started again.

    `new_worker`: the old one is not trusted to find its broker again, and is replaced.
    """
    clock = TurnedClock(folder / "clock")
    office = world.office(clock.path)
    scenario = Scenario(str(folder), world.port, office.name, "non_idem_write", "found")
    with broker.crew(folder, program_of(scenario)) as crew:
        office.hold("first", "before")
        worker = crew.worker()
        crew.app.start(crew.task, "first", reference="first")
        office.wait_held(worker)  # type: ignore[arg-type]
        broker.kill()
        try:
            assert crew.app.start(crew.task, "second", reference="second") == "second", "a task is recorded without a broker"
            office.release()
            assert crew.rests("first").status == "done", "what runs needs no broker"
        finally:
            broker.start()
        if new_worker:
            worker.kill()
            crew.worker()
        assert crew.rests("second").status == "done", "the sweep finds what could not be handed over"
        for task in ("first", "second"):
            assert (office.n(task), office.n(f"{task}/close"), len(office.requests("write", task))) == (1, 1, 1)
            standing_check(crew.app, office, task)
