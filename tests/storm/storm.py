"""Playing a plan: the processes, what befalls them, and the calm afterwards in which everything has to come to an end."""

from __future__ import annotations

import json
import os
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

from doubtless.errors import StoreError
from doubtless.events import TERMINAL, TaskStatus
from doubtless.store.base import Head
from doubtless.store.pg.migrate import migrate

from . import truth
from .bounds import Bounds, duration
from .check import read_tasks, silent
from .crew import Database, Member, Orders, client, worker
from .person import Person
from .plan import plan, tasks
from .program import TASKS, build
from .trouble import AGAIN, Fate

BOOKS = 5
TICK = 0.05
CALM = 240.0
"""Seconds that the calm may take until nothing moves any more, and again until all cases are answered and all tasks have ended."""
LATE = 60.0
"""Seconds that trouble may go on after its time, for what found nobody whom it could befall."""
LEAD = 3.0
"""Seconds from the making of the list of tasks to the first of them; the workers start meanwhile."""


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
        self.fate = Fate(self)
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
        self.took["trouble"] = self.now()
        self._until(self._is_quiet, "is not quiet")
        self.took["quiet"] = self.now()
        tasks = read_tasks(self.desk)
        self.inbox = sum(task.status not in TERMINAL for task in tasks)
        self.stuck += silent(tasks, {(doubt.task_id, doubt.path) for doubt in self.desk.inbox().doubts})
        self._until(self._is_over, "has not ended")
        self.took["over"] = self.now()
        for member in self.members:
            code = member.drain()
            if code != 0:
                self.stuck.append(f"{member.name} was drained and ended with {code}")

    def now(self) -> float:
        return time.monotonic() - self._begun

    def tell(self, line: str) -> None:
        self.story.append(f"{self.now():8.2f}  {line}")

    def _trouble(self) -> None:
        due = list(self.plan)
        visited = worked = 0.0
        while self.now() < self.settings.seconds or (due and self.now() < self.settings.seconds + LATE):
            while due and due[0].at <= self.now():
                one = due.pop(0)
                if not self.fate.begin(one):
                    insort(due, one._replace(at=self.now() + AGAIN), key=lambda one: one.at)
            self.fate.afterwards()
            self.fate.supervise()
            if self.now() > worked + 0.3:
                worked = self.now()
                self._clerk()
            if self.now() > visited + 1.0:
                visited = self.now()
                with suppress(StoreError):  # it is killed, too; the person comes again
                    self.person.visit(some=0.3)
            time.sleep(TICK)
        if due:
            self.happened["found nobody whom it could befall"] = len(due)

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
        while not self.fate.is_over:
            self.fate.afterwards(at_once=True)
            time.sleep(TICK)
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
            self.fate.supervise()
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
