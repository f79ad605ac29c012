"""What befalls the processes of a storm, and what has to follow from it: a start, a wake, a thaw."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from doubtless.errors import StoreError, UsageError
from doubtless.events import TERMINAL, TaskStatus

from .plan import ALONE, Trouble
from .proxy import Weather

if TYPE_CHECKING:
    from .storm import Storm

RUNNING = tuple(status for status in TaskStatus if status not in TERMINAL)
AGAIN = 0.5
"""Seconds after which what could not be done just now is tried again."""
RECOVERING = 2.0
"""Seconds that PostgreSQL is left alone after it was started again."""
FRESH = 2.0
"""Seconds that a worker is left alone after it was woken: two stops in a row would be one that is longer than the bounds say."""
OF_WORKERS = ("start", "again")


class Fate:
    """Lets one thing after the other go wrong."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self._later: list[tuple[float, str, Trouble]] = []
        self._supervised: dict[str, float] = {}
        self._recovered = -RECOVERING

    def begin(self, one: Trouble) -> bool:
        """Let it happen; False: it cannot happen just now."""
        try:
            return self.befall(one)
        except StoreError:  # PostgreSQL is away
            return False

    @property
    def is_over(self) -> bool:
        """Whether everything has followed that has to."""
        return not self._later and not any(member.stopped for member in self.storm.members)

    def befall(self, one: Trouble) -> bool:
        """Let one thing go wrong; what has to follow (a start, a wake) is put down for its time. False: not now."""
        if one.what.startswith("SIG"):
            some = [who % len(self.storm.members) for who in range(one.who, one.who + len(self.storm.members)) if self._may(who % len(self.storm.members))]
            if not some or (one.what == "SIGSTOP" and 2 * sum(bool(member.stopped) for member in self.storm.members) >= len(self.storm.members)):
                return False  # of four workers two are awake: somebody has to take over what the others had
            busy = self._busy()
            one = one._replace(who=next((who for who in some if who in busy), some[0]))
        if one.what == "client SIGKILL" and not self.storm.client.alive:
            return bool(self.storm.client.lives > 1)  # it has been killed before, and is through by now
        if one.what in ALONE and (self.storm.database.down or self.storm.now() < self._recovered + RECOVERING):
            return False
        member = self.storm.members[one.who]
        what, told = one.what, one.told
        match what:
            case "SIGKILL":
                member.kill()
                self._put(told["down"], "start", one)
            case "client SIGKILL":
                self.storm.client.kill()
                self._put(told["down"], "start client", one)
            case "SIGSTOP" | "SIGSTOP briefly":
                member.stop(told["seconds"])
            case "SIGTERM" | "SIGTERM twice":
                member.signal(signal.SIGTERM)
                if what == "SIGTERM twice":
                    self._put(0.2, "again", one)
                self._put(told["down"] + 0.3, "start", one)
            case "cut":
                self._weather(one).cut_next(**told)
            case "cut all":
                self._weather(one).cut_all()
            case "refuse":
                self._weather(one).refuse(told["seconds"])
                self._weather(one).cut_all()
            case "stall":
                self._weather(one).stall(told["seconds"])
            case "delay":
                self._weather(one).delay(**told)
            case "postmaster kill -9" | "PostgreSQL kill -9, all":
                self.storm.database.kill(all_of_it=what.startswith("Postgre"))
                self._put(told["down"], "start database", one)
            case "backend kill -9":
                if not self.storm.database.kill_a_backend():
                    return False
                self._recovered = self.storm.now()
            case "other side":
                self.storm.outside.fault(**told)
                what = f"other side: {told['fault']}"
            case "cancel" | "compensate":
                return self._order(what, told["which"])
            case "freeze":
                self.storm.desk.freeze(told["step"], why="look first", by="ann")
                self._put(told["seconds"], "thaw", one)
            case "lag":
                self.storm.outside.lag(told["path"], told["seconds"])
            case "hide":
                self.storm.outside.fault(told["path"], "hide", count=told["count"])
            case _:
                raise AssertionError(what)
        self.storm.happened[what] += 1
        self.storm.tell(f"{member.name if what.startswith(('SIG', 'cut', 'refuse', 'stall', 'delay')) else '-'}: {one.line()}")
        return True

    def _order(self, what: str, which: float) -> bool:
        """Cancel one of the tasks that are there, or undo one that is done."""
        ids = [head.task_id for head in self.storm.desk.tasks() if (head.status not in TERMINAL if what == "cancel" else head.status == "done")]
        if not ids:
            return False
        task_id = ids[int(which * len(ids))]
        self.storm.orders.give(what, task_id)
        self.storm.happened[what] += 1
        self.storm.tell(f"-: {what} {task_id}")
        return True

    def _weather(self, one: Trouble) -> Weather:
        """The proxy of a worker, or now and then the client's."""
        return self.storm.client.weather if one.at * 100 % 6 < 1 else self.storm.members[one.who].weather

    def _busy(self) -> set[int]:
        """The workers that run a task at this moment: what befalls these befalls something."""
        owners = {(head.owner or "").partition("-")[0] for head in self.storm.desk.store.heads(status=RUNNING)}
        return {number for number, member in enumerate(self.storm.members) if member.process is not None and str(member.process.pid) in owners}

    def _may(self, number: int) -> bool:
        """Whether a worker is there, awake for long enough, and nothing is about to follow of what befell it before."""
        member = self.storm.members[number]
        awake = time.monotonic() - member.awake_since > FRESH
        return member.alive and not member.stopped and awake and not any(one.who == number and what in OF_WORKERS for _, what, one in self._later)

    def _put(self, after: float, what: str, one: Trouble) -> None:
        self._later.append((self.storm.now() + after, what, one))

    def afterwards(self, *, at_once: bool = False) -> None:
        """What follows from what befell, once its time has come."""
        for then in sorted(self._later):
            at, what, one = then
            member = self.storm.members[one.who]
            if at > self.storm.now() and not at_once:
                continue
            if what == "start" and member.alive and not at_once:  # it is draining
                continue
            self._later.remove(then)
            match what:
                case "start":
                    if member.alive:
                        assert member.process is not None
                        member.process.wait(60)
                    member.note_end()
                    member.start()
                case "start client":
                    self.storm.client.start()
                case "again":
                    member.signal(signal.SIGTERM)
                case "start database":
                    self.storm.database.start()
                    self._recovered = self.storm.now()
                case "thaw":
                    try:
                        self.storm.desk.thaw(one.told["step"], why="go on", by="ann")
                    except StoreError:
                        self._put(AGAIN, "thaw", one)
                    except UsageError:  # it was frozen twice, and is thawed
                        pass
            self.storm.tell(f"{what} {member.name if what in OF_WORKERS else ''}")

    def supervise(self) -> None:
        """Start a worker again that has ended by itself: it was refused a store that is away, and said so by its exit code."""
        for number, member in enumerate(self.storm.members):
            if member.alive or any(one.who == number and what == "start" for _, what, one in self._later):
                continue
            if self.storm.now() > self._supervised.setdefault(member.name, self.storm.now() + 0.5):
                del self._supervised[member.name]
                member.note_end()
                member.start()
                self.storm.happened["worker started again that could not open the store"] += 1
