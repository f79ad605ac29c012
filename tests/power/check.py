"""What has to hold on a disk that lost its power: nothing that was acknowledged is missing, and nothing is done twice.

Each finding says whether the product told it too (it refused the store, or `verify` named it) or was silent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from doubtless.blobs import Content, show_ref
from doubtless.errors import StoreDamaged, StoreError
from doubtless.events import Event, Instant, Kind
from doubtless.store.base import Store
from doubtless.store.verify import refs

from .disk import State
from .programs import ENDS, ONCE, TASKS, Tasks, World
from .recorder import Op


class Finding(NamedTuple):
    """What was wrong in a state. `told`: the product said so itself."""

    at: int
    how: str
    what: str
    told: bool

    def __str__(self) -> str:
        return f"power lost after operation {self.at}, {self.how}: {self.what} ({'told' if self.told else 'and nothing says so'})"


class Known:
    """What had been acknowledged, and what had happened outside, when the power went."""

    def __init__(self) -> None:
        self.opened = False
        self.rows: dict[tuple[str, int], Event] = {}
        self.calls: Counter[str] = Counter()
        self.effects: list[tuple[str, str]] = []
        self.spilled: list[Event] = []
        self.facts = 0
        self.now: Instant | None = None

    def take(self, op: Op) -> None:
        """Take in a mark."""
        kind, what = op.fact
        self.facts += 1
        match kind:
            case "opened":
                self.opened = True
            case "rows":
                self.rows.update({(row.task_id, row.event_seq): row for row in what})
                self.now = max((row.at for row in what), default=self.now, key=lambda at: at.wall)
            case "call":
                self.calls[what] += 1
            case "effect":
                self.effects.append(what)
            case "spilled":
                self.spilled.append(what)


def scratch() -> str:
    """A place for folders that are thrown away; in memory where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


@contextlib.contextmanager
def laid_out(state: State) -> Iterator[str]:
    """A folder that holds the state."""
    folder = tempfile.mkdtemp(prefix="doubtless-power-", dir=scratch())
    try:
        state.lay_out(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def judge(state: State, known: Known, at: int) -> list[Finding]:
    """Open the store on a disk in this state, look for all that was acknowledged, and run the tasks to their ends."""
    with laid_out(state) as folder:
        world = World(tuple(known.effects))
        tasks = Tasks(f"sqlite:///{folder}/recon.db", world, since=known.now)
        try:
            tasks.app.store.info()
            lost = list(missing(tasks.app.store, known))
            problems = [str(problem) for problem in tasks.app.store.verify()]
            findings = [Finding(at, state.how, what, bool(problems)) for what in lost]
            findings += [Finding(at, state.how, f"verify: {what}", True) for what in problems]
            if not findings:
                tasks.drive()
                findings = [Finding(at, state.how, what, False) for what in wrong_at_the_end(tasks, world)]
        except StoreError as error:
            findings = [Finding(at, state.how, f"{type(error).__name__}: {error.message.replace(folder, '')}", True)]
        finally:
            tasks.app.close()
    return findings


def missing(store: Store, known: Known) -> Iterator[str]:
    """What of the acknowledged is not there, or not whole."""
    stand = {(row.task_id, row.event_seq): row for task in TASKS for row in store.rows(task)}
    content = Content(store, store.folder)
    for place, row in known.rows.items():
        if stand.get(place) != row:
            yield f"row {place} ({row.kind} {row.step_name or ''}) is {'not there' if place not in stand else 'another one'}"
            continue
        for _, digest in refs(row):
            try:
                content.get(digest)
            except StoreDamaged as error:
                yield f"row {place}: {error.message}"
    attempts = Counter(
        row.idempotency_key.hex()
        for row in stand.values()
        if row.idempotency_key is not None and row.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED)
    )
    for key, calls in known.calls.items():  # I1
        if attempts[key] < calls:
            yield f"{calls} calls were made under key {key[:8]}, and {attempts[key]} attempts have a row"
    for event in known.spilled:
        kept = [spilled.path for _, spilled in store.spilled(event.task_id)]
        told = [row.path for row in stand.values() if row.kind in (Kind.EVIDENCE_STORED, Kind.STEP_SETTLED)]
        if event.path not in (*kept, *told):
            yield f"the spilled result of {event.step_name} ({show_ref(event.output_ref)}) is gone"


def wrong_at_the_end(tasks: Tasks, world: World) -> Iterator[str]:
    """What is not as it has to be when both tasks were run to their ends."""
    counts = Counter(reference for reference, _ in world.effects)
    for reference in (*ONCE, *sorted(counts.keys() - set(ONCE))):
        if counts[reference] != 1 or reference not in ONCE:
            yield f"{reference} happened {counts[reference]} times"
    for task, end in ENDS.items():
        head = tasks.app.store.head(task)
        if head is None or head.status != end:
            yield f"task {task} is {head and head.status} at its end, not {end}"
    for problem in tasks.app.store.verify():
        yield f"at the end, verify: {problem}"
