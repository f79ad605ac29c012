"""One call of a guest: a session's step on its way, in a thread of its own or on the host's event loop.

What parks a call concerns this call alone: the host gets an error that says how it stands, and may go on.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import host
from .calls import Input
from .drivers import drive
from .effects import StepDefinition
from .endings import Ending
from .errors import Parking
from .executor import run_step
from .outcomes import Outcome
from .passes import Pass
from .tasks import PULSE, wait_limit, what_interrupted

if TYPE_CHECKING:
    from .openings import Opening


class Visit(Pass):
    """One attempt to bring a call, or a doubt of an earlier one, to its end. It takes no place: the session gives it."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self.turns = opening.turns
        self.limit = wait_limit(self.runtime.store.now(), opening.wait)

    def may_wait(self, until: int) -> bool:
        return self.limit is None or until <= self.limit

    def blocked_by_doubt(self, path: str) -> bool:
        doubtful = [r for r in self.log.open_records() if r.path != path and r.in_doubt] if self.log.open else []
        if doubtful and not any(self.turns.taken(record.path) for record in doubtful):
            raise self.park(f"{doubtful[0].name} at {doubtful[0].path} is in doubt: no new write begins", human=True)
        return bool(doubtful)


class Unfinished(Exception):
    """A call has parked: what its visit says of it. Never leaves the session."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        super().__init__("parked")


class Turns:
    """Who brings which place to its end: one at a time, the others wait for it."""

    def __init__(self) -> None:
        self._busy: dict[str, Future[None]] = {}
        self._lock = host.lock()

    def take(self, path: str) -> Future[None] | None:
        """Take the turn at this place: None; or what ends when whoever has it is through."""
        with self._lock:
            busy = self._busy.get(path)
            if busy is None:
                self._busy[path] = Future()
            return busy

    def over(self, path: str) -> None:
        """Give the turn back, and let those who wait for it look again."""
        with self._lock:
            ended = self._busy.pop(path)
        ended.set_result(None)

    def taken(self, path: str) -> bool:
        """Whether somebody has the turn at this place."""
        return path in self._busy

    def pending(self) -> list[Future[None]]:
        """What ends when those who have a turn now are through."""
        with self._lock:
            return list(self._busy.values())


def visit_step(opening: Opening, definition: StepDefinition | None, path: str, given: Input | None, name: str = "") -> Any:
    """Bring the step at `path` to its end, in threads of its own: its timeout holds, and Ctrl-C waits for no call.

    Raises: StepFailed; `Unfinished` when it has parked; what interrupted the wait, unchanged (rule 7).
    """
    while True:
        with opening.visiting() as visit:
            ending = _supervised(opening, visit, lambda: drive(visit, run_step(visit, definition, path, given, name=name)))
        if ending is None:
            continue  # the call overran its timeout, which is recorded: decide again
        if isinstance(ending.error, Parking):
            raise Unfinished(visit)
        if ending.error is not None:
            raise ending.error
        return ending.value


def _supervised(opening: Opening, visit: Visit, work: Callable[[], Any]) -> Ending | None:
    """Run `work` in a thread; None: its call was taken away from it at its timeout."""

    def here() -> None:
        try:
            visit.ending = Ending(work())
        except BaseException as error:  # a thread's exception would reach nobody  # noqa: BLE001
            visit.ending = Ending(error=error)
        finally:
            visit.done.set()

    context = contextvars.copy_context()
    thread = host.thread(target=context.run, args=(here,), name=f"doubtless:{opening.task_id}", daemon=True)
    try:
        thread.start()
        while not visit.done.wait(min(opening.next_look(visit), PULSE)):
            if opening.take_over(visit):
                return None
    except BaseException as caught:  # Ctrl-C, a signal's exception: rule 7; or the store failed  # noqa: BLE001
        error = what_interrupted(caught)
        interrupt(opening, visit, error)
        if thread.ident is not None:
            opening.say_goodbye(visit)
        raise error from None
    assert visit.ending is not None
    return visit.ending


def interrupt(opening: Opening, visit: Visit, error: BaseException) -> None:
    """Somebody broke into the wait for a call: what it has in flight is in doubt, and what comes of it late news."""
    with visit.lock:
        visit.park(f"interrupted: {type(error).__name__}")
        visit.stop.set()
        frames = list(visit.frames)
        for frame in frames:
            opening._abandon(visit, frame)
    for frame in frames:
        opening._record(frame, Outcome("unknown", type(error).__name__, "interrupted while the call ran", None))


async def avisit_step(opening: Opening, definition: StepDefinition | None, path: str, given: Input | None, name: str = "") -> Any:
    """The same on the host's event loop: async calls as tasks of it, sync ones in threads."""
    from .adrivers import adrive

    with opening.visiting() as visit:
        try:
            return await adrive(visit, run_step(visit, definition, path, given, name=name))
        except Parking:
            raise Unfinished(visit) from None
