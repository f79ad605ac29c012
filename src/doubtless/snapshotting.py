"""The owner's snapshots of one task: when one is made, and which one a resume begins at (I9).

A snapshot is made after a commit, in a transaction of its own, and never between an intent and its call. A store that
does not take it, or cannot give one back, changes nothing but speed: that is said, and the run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from .errors import StoreError
from .events import UNDO, Event, Kind
from .snapshots import Held, Plan, Restored, copied, read, snapshot_of
from .store.base import Store
from .taskfold import TaskFold

SHARE = 8
"""A fold that grows with its task is written again when an eighth of it is new, if that is more than every N steps: all
snapshots together then cost what the log costs, not its square."""


MANY = 512
"""So many rows are kept whole before they are folded: folded one by one, after a sync each, they would cost twice as much."""

CALLS_NEXT = (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED)


class Snapshotting:
    """Makes and finds a task's snapshots. Its caller (`log.TaskLog`) holds the log's lock.

    `fold` is one that forgets nothing; it takes in the rows of `later` when a snapshot is due. `settled`: how many steps
    were settled since the last one. `good`: the place of the newest snapshot that is known to fit the log.
    """

    def __init__(self, store: Store, task_id: str, plan: Plan, rows_of: Callable[[str, int], list[Event]]) -> None:
        self.store = store
        self.task_id = task_id
        self.plan = plan
        self.fold = TaskFold(rows_of)
        self.later: list[Event] = []
        self.digest = b""
        self.settled = 0
        self.good: int | None = None
        self.broken = False
        self.said: set[str] = set()

    # ------------------------------------------------------------ beginning at one

    def newest(self) -> Held | None:
        """The newest snapshot that fits the log and this task's code; None: the log is folded from zero."""
        below = None
        try:
            while (snapshot := self.store.usable_snapshot(self.task_id, below=below)) is not None:
                held = read(snapshot, self.plan)
                if held is not None:
                    return held
                below = snapshot.event_seq
        except StoreError as error:
            self.say("cannot be read", error)
        return None

    def begin(self, fold: TaskFold, held: Held | None) -> None:
        """Go on from a fold that was loaded, from this snapshot or from zero."""
        copied(self.fold, fold)
        self.later.clear()
        self.digest = fold.hash
        self.good = None if held is None else held.event_seq
        self.settled = len(fold.settled) - (0 if held is None else len(held.fold["settled"]["paths"]))

    # ------------------------------------------------------------ making one

    def saw(self, rows: Sequence[Event], digest: bytes) -> None:
        """Note rows that were appended, by the owner or by others; `digest` is the hash of the last one."""
        if self.broken:
            return
        self.later.extend(rows)
        self.digest = digest
        if len(self.later) >= MANY:
            try:
                self.fold_later()
            except Exception as error:  # noqa: BLE001  a cache: what is wrong with it is not the task's fault
                self.give_up(error)
        for row in rows:
            if row.kind == Kind.STEP_SETTLED:
                self.settled += 1

    def after_append(self, last: str, *, held: bool) -> None:
        """Make a snapshot of the fold when one is due, with what is open at this moment; a task that has ended needs none."""
        if last == Kind.TASK_ENDED:
            self.drop()
        elif last in CALLS_NEXT:
            return  # what the row announces is called now, without anything in between
        elif self.settled >= self.plan.every and self.plan.state is None and not held:
            if self.settled >= len(self.fold.settled) // SHARE:
                self.make()

    def drop(self) -> None:
        """Delete the task's snapshots: it has ended, and nothing is left to resume."""
        self.broken = True
        try:
            self.store.drop_snapshots(self.task_id)  # also those that were passed over: none is made in their place any more
        except StoreError as error:
            self.say("was not deleted", error)

    def keep_state(self, state: str | Callable[[], str], places: int) -> None:
        """Make a snapshot with the state of the task's code when one is due."""
        if self.settled >= self.plan.every and self.plan.state is not None:
            self.make(state, places)

    def make(self, state: str | Callable[[], str] | None = None, places: int = 0) -> None:
        """Make a snapshot of the fold now, with the state that stands for these places if there is one."""
        if self.broken:
            return
        self.settled = 0
        try:
            self.fold_later()
            restored = None
            if state is not None:
                if self.fold.open or self.fold.reached_back or any(path[0] == UNDO for path in self.fold.settled):
                    self.broken = True  # news about a place that the state has behind it: the next claim folds from zero
                    return
                restored = Restored(state if isinstance(state, str) else state(), places)
            snapshot = snapshot_of(self.task_id, self.fold, restored, self.plan.state)
        except Exception as error:  # noqa: BLE001  a cache: what is wrong with it is not the task's fault
            self.give_up(error)
            return
        try:
            self.store.put_snapshot(snapshot, before=self.good)
        except StoreError as error:
            self.say("was not written", error)
            return
        self.good = snapshot.event_seq
        if restored is not None:
            self.fold.settled, self.fold.tries, self.fold.floor = {}, {}, restored.places

    def fold_later(self) -> None:
        """Take in what was appended since: of settled steps only the outline is kept."""
        if self.later:
            self.fold.take(self.later, self.digest)
            self.later.clear()

    def give_up(self, error: Exception) -> None:
        """Make no more snapshots of this task in this claim."""
        self.broken = True
        self.later.clear()
        self.say("cannot be made", error)

    def say(self, what: str, error: Exception) -> None:
        """Say once for each kind of trouble that a snapshot is missing: the log has everything."""
        if what not in self.said:
            self.said.add(what)
            text = f"doubtless: a snapshot of task {self.task_id} {what}: {error}; the task goes on, its log has everything"
            print(text, file=sys.stderr)
