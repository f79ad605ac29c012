"""Playing a plan: the processes, what befalls them, and the calm afterwards in which everything has to come to an end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from examples.reconciliation.client import call
from examples.reconciliation.outside import Outside
from tests.crash.reconciliation import write_books

from doubtless.errors import StoreError, UsageError
from doubtless.events import TERMINAL, TaskStatus
from doubtless.store.base import Head
from doubtless.store.pg.migrate import migrate

from . import truth
from .bounds import Bounds, duration
from .check import read_tasks, silent
from .crew import Database, Member, Orders, client, worker
from .person import Person
from .plan import ALONE, Trouble, plan, tasks
from .program import TASKS, build
from .proxy import Weather

BOOKS = 5
RUNNING = frozenset(TaskStatus) - TERMINAL
TICK = 0.05
CALM = 240.0
"""Seconds that the calm may take until nothing moves any more, and again until all cases are answered and all tasks have ended."""
LATE = 15.0
"""Seconds that trouble may go on after its time, for what found nobody whom it could befall."""
AGAIN = 0.5
RECOVERING = 2.0
"""Seconds that PostgreSQL is left alone after it was started again."""
OF_WORKERS = ("start", "again", "wake")
LEAD = 3.0
"""Seconds from the making of the list of tasks to the first of them; the workers start meanwhile."""
FRESH = 2.0
"""Seconds that a worker is left alone after it was woken: two stops in a row would be one that is longer than the bounds say."""


class Settings(NamedTuple):
    """`seconds` of trouble; `folder`: where everything is kept."""

    seed: int
    seconds: float
    folder: Path
    workers: int = 4
    tasks: int = 200
    bounds: Bounds = Bounds()


class Storm:
    """One storm. `happened`: what befell whom, how often; `story`: the same by the second; `stuck`: what did not come to an end."""

    def __init__(self, settings: Settings) -> None:
        settings.bounds.check()
        self.settings = settings
        self.folder = settings.folder
        self.plan = plan(settings.seed, settings.seconds, settings.workers, settings.bounds)
        self.tasks = tasks(settings.seed, settings.tasks, settings.seconds, TASKS, BOOKS)
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        self.stuck: list[str] = []
        self.inbox = 0
        self.took: dict[str, float] = {}
        self._recovered = -RECOVERING
        self._supervised: dict[str, float] = {}
        self._later: list[tuple[float, str, Trouble]] = []
        self._begun = time.monotonic()
        self.processed: set[str] = set()
        with ExitStack() as made:
            self._build(made)
            self.close = made.pop_all().close

    def _build(self, made: ExitStack) -> None:
        """Everybody who takes part; `made` ends them, the last first."""
        bounds = self.settings.bounds
        for number in range(BOOKS):
            write_books(self.folder / f"books-{number}", seed=number + 1, keep=1 + number % 3)
        self.database = Database()
        made.callback(self.database.server.remove)
        self.database.server.start()
        self.outside = made.enter_context(Outside(self.folder / "office.db"))
        self.url = self.database.server.url(mark=str(self.folder / "mark-desk"), schema="storm", lease=duration(bounds.lease))
        migrate(self.url, state=str(self.folder))
        self.desk = build(self.url, self.outside.url, bounds)  # straight at the server: the storm's own, and the person's
        made.callback(self.desk.close)
        self.members = [self._worker(number) for number in range(self.settings.workers)]
        self.client = self._client()
        straight = {name: value.replace("{port}", str(self.database.server.port)) for name, value in self._environ("orders").items()}
        self.orders = Orders(straight, self.folder)
        made.callback(self.orders.close)
        for member in (*self.members, self.client):
            made.callback(member.close)
        self.person = Person(self.desk, self.outside, self.folder / "office.db", bounds, self.settings.seed)

    # ------------------------------------------------------------ the cast

    def store_url(self, name: str) -> str:
        """The store as a process sees it: through its own proxy, with the mark of its own machine."""
        mark, lease = str(self.folder / f"mark-{name}"), duration(self.settings.bounds.lease)
        url = self.database.server.url(mark=mark, schema="storm", lease=lease, sslmode="disable", gssencmode="disable")
        return url.replace(f":{self.database.server.port}/", ":{port}/")

    def _environ(self, name: str) -> dict[str, str]:
        return {
            **os.environ, "DOUBTLESS_STORE": self.store_url(name), "STORM_SERVER": self.outside.url,
            "STORM_BOUNDS": self.settings.bounds.text(), "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
            "PYTHONFAULTHANDLER": "1",
        }  # fmt: skip

    def _worker(self, number: int) -> Member:
        options = ["--concurrency", str(3 + number % 2), *(["--queues", "month-end,default"] if number % 2 else []), "--poll", "PT1S"]
        name = f"worker-{number}"
        return worker(number, self._environ(name), self.folder, self.database.server.port, options)

    def _client(self) -> Member:
        began = time.time() + LEAD
        lines = []
        for one in self.tasks:
            books = self.folder / one.books
            params = {"run": one.id, "statement": str(books / "statement.csv"), "orders": str(books / "orders.csv")}
            told = {"id": one.id, "task": one.task, "at": began + one.at, "queue": one.queue, "priority": one.priority, "params": params}
            lines.append(json.dumps(told))
        file = self.folder / "tasks.jsonl"
        file.write_text("\n".join(lines) + "\n")
        return client(self._environ("client"), self.folder, self.database.server.port, file)

    # ------------------------------------------------------------ the storm

    def run(self) -> None:
        """Trouble, then calm, then a person; the workers are drained at the end."""
        for one in self.tasks:
            if one.refused:
                self.outside.fault(f"/runs/{one.id}/close", "refuse_422", count=1000)
        for member in self.members:
            member.start()
        self._wait_for_workers()
        self._begun = time.monotonic()
        self.client.start()
        self._trouble()
        self._end_of_trouble()
        self.took["trouble"] = self._now()
        self._until(self._is_quiet, "is not quiet")
        self.took["quiet"] = self._now()
        tasks = read_tasks(self.desk)
        self.inbox = sum(task.status not in TERMINAL for task in tasks)
        self.stuck += silent(tasks, {(doubt.task_id, doubt.path) for doubt in self.desk.inbox().doubts})
        self._until(self._is_over, "has not ended")
        self.took["over"] = self._now()
        for member in self.members:
            code = member.drain()
            if code != 0:
                self.stuck.append(f"{member.name} was drained and ended with {code}")

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def tell(self, line: str) -> None:
        self.story.append(f"{self._now():8.2f}  {line}")

    def _trouble(self) -> None:
        due = list(self.plan)
        visited = 0.0
        while self._now() < self.settings.seconds or (due and self._now() < self.settings.seconds + LATE):
            while due and due[0].at <= self._now():
                one, befell = due.pop(0), False
                with suppress(StoreError):  # it is away: later
                    befell = self._befall(one)
                if not befell:
                    insort(due, one._replace(at=self._now() + AGAIN), key=lambda one: one.at)
            self._afterwards()
            self._supervise()
            if self._now() > visited + 1.0:
                visited = self._now()
                self._clerk()
                with suppress(StoreError):  # it is killed, too; the person comes again
                    self.person.visit(some=0.3)
            time.sleep(TICK)
        self.stuck += [f"{one.what} found nobody whom it could befall" for one in due]

    def _befall(self, one: Trouble) -> bool:
        """Let one thing go wrong; what has to follow (a start, a wake) is put down for its time. False: not now."""
        if one.what.startswith("SIG"):
            some = [who % len(self.members) for who in range(one.who, one.who + len(self.members)) if self._may(who % len(self.members))]
            if not some:
                return False
            busy = self._busy()
            one = one._replace(who=next((who for who in some if who in busy), some[0]))
        if one.what == "client SIGKILL" and not self.client.alive:
            return bool(self.client.lives > 1)  # it has been killed before, and is through by now
        if one.what in ALONE and (self.database.down or self._now() < self._recovered + RECOVERING):
            return False
        member = self.members[one.who]
        what, told = one.what, one.told
        match what:
            case "SIGKILL":
                member.kill()
                self._put(told["down"], "start", one)
            case "client SIGKILL":
                self.client.kill()
                self._put(told["down"], "start client", one)
            case "SIGSTOP" | "SIGSTOP briefly":
                member.stop(told["seconds"])
                self._put(told["seconds"], "wake", one)
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
                self.database.kill(all_of_it=what.startswith("Postgre"))
                self._put(told["down"], "start database", one)
            case "backend kill -9":
                if not self.database.kill_a_backend():
                    return False
                self._recovered = self._now()
            case "other side":
                self.outside.fault(**told)
                what = f"other side: {told['fault']}"
            case "cancel" | "compensate":
                return self._order(what, told["which"])
            case "freeze":
                self.desk.freeze(told["step"], why="look first", by="ann")
                self._put(told["seconds"], "thaw", one)
            case "lag":
                self.outside.lag(told["path"], told["seconds"])
            case "hide":
                self.outside.fault(told["path"], "hide", count=told["count"])
            case _:
                raise AssertionError(what)
        self.happened[what] += 1
        self.tell(f"{member.name if what.startswith(('SIG', 'cut', 'refuse', 'stall', 'delay')) else '-'}: {one.line()}")
        return True

    def _order(self, what: str, which: float) -> bool:
        """Cancel one of the tasks that are there, or undo one that is done."""
        ids = [head.task_id for head in self.desk.tasks() if (head.status not in TERMINAL if what == "cancel" else head.status == "done")]
        if not ids:
            return False
        task_id = ids[int(which * len(ids))]
        self.orders.give(what, task_id)
        self.happened[what] += 1
        self.tell(f"-: {what} {task_id}")
        return True

    def _weather(self, one: Trouble) -> Weather:
        """The proxy of a worker, or now and then the client's."""
        return self.client.weather if one.at * 100 % 6 < 1 else self.members[one.who].weather

    def _busy(self) -> set[int]:
        """The workers that run a task at this moment: what befalls these befalls something."""
        owners = {(head.owner or "").partition("-")[0] for head in self.desk.store.heads(status=[*RUNNING])}
        return {number for number, member in enumerate(self.members) if member.process is not None and str(member.process.pid) in owners}

    def _may(self, number: int) -> bool:
        """Whether a worker is there, awake for long enough, and nothing is about to follow of what befell it before."""
        member = self.members[number]
        awake = time.monotonic() - member.awake_since > FRESH
        return member.alive and awake and not any(one.who == number and what in OF_WORKERS for _, what, one in self._later)

    def _put(self, after: float, what: str, one: Trouble) -> None:
        self._later.append((self._now() + after, what, one))

    def _afterwards(self, *, at_once: bool = False) -> None:
        """What follows from what befell, once its time has come."""
        for then in sorted(self._later):
            at, what, one = then
            member = self.members[one.who]
            if at > self._now() and not at_once:
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
                    self.client.start()
                case "wake":
                    member.wake()
                case "again":
                    member.signal(signal.SIGTERM)
                case "start database":
                    self.database.start()
                    self._recovered = self._now()
                case "thaw":
                    try:
                        self.desk.thaw(one.told["step"], why="go on", by="ann")
                    except StoreError:
                        self._put(AGAIN, "thaw", one)
                    except UsageError:  # it was frozen twice, and is thawed
                        pass
            self.tell(f"{what} {member.name if what in OF_WORKERS else ''}")

    def _supervise(self) -> None:
        """Start a worker again that has ended by itself: it was refused a store that is away, and said so by its exit code."""
        for number, member in enumerate(self.members):
            if member.alive or any(one.who == number and what == "start" for _, what, one in self._later):
                continue
            if self._now() > self._supervised.setdefault(member.name, self._now() + 0.5):
                del self._supervised[member.name]
                member.note_end()
                member.start()
                self.happened["worker started again that could not open the store"] += 1

    def _wait_for_workers(self) -> None:
        end = time.monotonic() + CALM
        while not all("at a time" in member.said() for member in self.members):
            assert time.monotonic() < end and all(member.alive for member in self.members), "the workers do not start"
            time.sleep(TICK)

    def _clerk(self) -> None:
        """Somebody at the other side processes approvals: they cannot be withdrawn any more."""
        wanted = {one.id for one in self.tasks if one.processed} - self.processed
        for run, made in truth.read(self.folder / "office.db").approvals.items():
            if run in wanted and made[0]["status"] == "submitted":
                with suppress(OSError):
                    call(self.outside.url, "POST", f"/approvals/{made[0]['id']}/process", {}, timeout=5)
                    self.processed.add(run)

    # ------------------------------------------------------------ the calm

    def _end_of_trouble(self) -> None:
        """Everybody is there and awake, nothing is cut, and the other side does what it is asked."""
        while self._later:
            self._afterwards(at_once=True)
        for member in (*self.members, self.client):
            member.weather.calm()
        refused = [one.id for one in self.tasks if one.refused]
        self.outside.clear()
        for run in refused:
            self.outside.fault(f"/runs/{run}/close", "refuse_422", count=1000)
        for member in self.members:
            if not member.alive:
                member.note_end()
                member.start()
        self.tell("calm")
        self.orders.wait()

    def _until(self, over: Callable[[], bool], said: str) -> None:
        end = time.monotonic() + CALM
        while time.monotonic() < end:
            self._clerk()
            self._supervise()
            with suppress(StoreError):
                if over():
                    return
            time.sleep(0.3)
        self.stuck += [f"{head.task_id} {said}: {head.status}, {head.why}, owner {head.owner}" for head in self._moving()]
        self.stuck += [] if self.stuck else [f"the client {said}: {len(self.acknowledged())} tasks are acknowledged"]

    def _accepted(self) -> bool:
        return not self.client.alive and len(set(self.acknowledged())) == len(self.tasks)

    def _moving(self) -> list[Head]:
        """The tasks that have neither ended nor stand in the inbox."""
        cases = {case.task_id for case in self.desk.store.cases()}
        return [
            head for head in self.desk.tasks()
            if head.status not in TERMINAL and not (head.status == TaskStatus.NEEDS_HUMAN and head.owner is None and head.task_id in cases)
        ]  # fmt: skip

    def _is_quiet(self) -> bool:
        return self._accepted() and not self._moving()

    def _is_over(self) -> bool:
        self.person.visit()
        return all(head.status in TERMINAL for head in self.desk.tasks())

    def acknowledged(self) -> list[str]:
        """The ids that the client was told of."""
        return self.client.out.read_text().split() if self.client.out.exists() else []
