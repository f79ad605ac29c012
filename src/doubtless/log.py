"""One task's log in its owner's hands: load, fold on demand, append in order, notice what others added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from . import host
from .changes import wakes
from .effects import Deadline
from .errors import DoubtlessError, Moved, StoreDamaged
from .events import UNDO, Event, Instant, Kind, StepStatus, TaskStatus, draft, row_hash, seal
from .fold import StepRecord, fold_step
from .questions import WAIT_FOR
from .snapshots import Held, Plan, Restored
from .snapshotting import Snapshotting
from .store.base import DONE, INTENDED, Beginning, Blob, Claim, Shared, Store
from .store.chain import follow, links_of
from .taskfold import WHOLE, OpenCase, Settled, TaskFold, changes_replay, first_digest, needs_keeping, rows_of_step

__all__ = ["OpenCase", "Settled", "TaskLog", "groups_of"]


_INTENDED, _SETTLED = Kind.STEP_INTENDED.value, Kind.STEP_SETTLED.value
_NEW = (_INTENDED, Kind.RETRY_ALLOWED.value)  # the rows before a call that only task code wants


class Origin(NamedTuple):
    """The step that a compensation undoes, and until when it may be sent."""

    name: str
    step_seq: int
    deadline: Deadline | None


class Flight:
    """Rows on their way to a commit that other tasks share; `error`: what came of them, once they have landed."""

    __slots__ = ("digest", "error", "forget", "sealed", "ticket")

    def __init__(self, ticket: Shared, sealed: Sequence[Event], digest: bytes, forget: bool) -> None:
        self.ticket = ticket
        self.sealed = sealed
        self.digest = digest
        self.forget = forget
        self.error: DoubtlessError | None = None


class TaskLog(TaskFold):
    """The owner's view of one task: `settled` by path, the rows of open steps, and the place of the next row.

    Thread-safe. All appends carry the claim's epoch and are refused when it is stale (I4) or when the log holds
    something newer than this view (`Moved`, after which the view is fresh). `plan`: how often a snapshot is made.
    """

    __slots__ = (
        "_announced", "_since", "_used", "epoch", "flight", "groups", "lock", "news", "origins", "owner", "remember", "restored",
        "snapshotting", "store", "sure", "task_id", "turns", "undo_by",
    )  # fmt: skip

    forgets = True

    def __init__(self, store: Store, claim: Claim, *, owner: str | None, plan: Plan | None = None) -> None:
        self.store = store
        self.task_id = claim.head.task_id
        self.epoch = claim.epoch
        self.owner = owner
        self.lock = host.rlock()
        self.flight: Flight | None = None  # rows that share a commit, until they are durable and in this view
        self.groups: set[str] = set()  # the places where the log, as it was loaded, holds parallel groups
        self.restored: Restored | None = None  # what task code left in the snapshot that this view began at
        rows_of = partial(_rows_of, store, self.task_id)  # no method of its own: it would go with the garbage collector alone
        self.snapshotting = None if plan is None else Snapshotting(store, self.task_id, plan, rows_of)
        self.news = 0  # how often others have added something that wakes a sleeping task
        self.remember = False  # an agent's loop looks at each of its steps once more: keep what is settled until it has
        self.turns: set[str] = set()  # the groups of an agent's turns that are under way: a model chose their calls together
        self.origins: dict[str, Origin] = {}  # of compensations that this owner has begun with
        self.undo_by: Deadline | None = None  # of a task that is a compensation: until when its writes may be sent
        self._announced = claim.takeover
        self.sure = False  # whether the rows that were loaded are known to be what was written
        self._used: list[int] = []  # rows before the snapshot that are used too
        super().__init__(rows_of)
        if claim.begun is not None:
            self._begin(claim.begun)
        else:
            self.load()

    def _begin(self, begun: Beginning) -> None:
        """Begin behind the rows of a task that this claim has begun."""
        self.seq, self.hash, self.sure, self._since = begun.claimed.event_seq, begun.digest, True, (0, b"")
        self._announced = True
        if self.snapshotting is not None:
            self.snapshotting.begin(self, None)

    def deadline(self, path: str) -> Deadline | None:
        """Until when the step at `path` may be sent: of a compensation, and in a task that is one."""
        return self.origins[path].deadline if path[0] == UNDO else self.undo_by

    # ------------------------------------------------------------ reading

    def load(self) -> None:
        """Fold the log anew, from its newest snapshot or from zero: settled steps lean, the rows of open ones whole."""
        with self.lock:
            if self.flight is not None:
                self._land()
            seen, self._since = self.steps_seen, (self.seq, self.hash or b"") if self.sure else (0, b"")
            self.sure = False
            held = None if self.snapshotting is None else self.snapshotting.newest()
            if held is None or not self._load(held):
                held = None
                self._load(None)
            self.restored = None if held is None else held.restored
            if held is not None:
                self._since, self._used = max(self._since, (held.event_seq, held.row_hash)), held.seqs()
            self.groups = {g for p in (*self.settled, *self.open) if "." in p for g in groups_of(p)}
            if self.snapshotting is not None:
                self.snapshotting.begin(self, held)
            self.steps_seen = max(seen, self.steps_seen)  # a number that was given is not given again

    def _load(self, held: Held | None) -> bool:
        """Fold the log after what the snapshot holds; False: what came after it reaches back before it."""
        self.clear()
        if held is not None and not held.restore(self, self.store.rows_at(self.task_id, held.seqs())):
            return False
        base = self.seq
        try:
            first, last = self._outline()
        except (TypeError, ValueError) as error:  # of a damaged file: a value of another type than its column's
            what = f"task {self.task_id}: its log cannot be read: {error}"
            raise StoreDamaged(what, hint="doubtless verify", task=self.task_id) from error
        if self.reached_back or (base and first <= base):
            return False
        if not last:
            raise Moved(f"task {self.task_id} has no rows", task=self.task_id)
        for row in self.store.next_rows(self.task_id, after=min(first, last) - 1):
            if row.event_seq > last:  # written since the outline was read
                self.take([row], row_hash(row))
            elif row.event_seq > base:
                self._take_whole(row)
            if row.event_seq == last:
                self.seq, self.hash = last, row_hash(row)
        return not self.reached_back

    def _take_whole(self, row: Event) -> None:
        """Take in a row of which `_outline` has seen the lean columns."""
        path = row.path
        if needs_keeping(row):
            self.keep(row)
        if row.kind == Kind.TASK_CLAIMED:
            self.take_claim(row)
        elif path is not None and path not in self.settled and (path in self.open or not self.covered(path)):
            self.open.setdefault(path, []).append(row)

    def _outline(self) -> tuple[int, int]:
        """Fill `settled`; say from which row on the rows are needed whole, and which is the last."""
        settled, base = self.settled, self.seq
        open_from: dict[str, tuple[int, bytes | None]] = {}  # of steps that are not settled: their first row, input hash
        for known_open, rows in self.open.items():
            open_from[known_open] = (base + 1, first_digest(rows))
        compensating, compensated = TaskStatus.COMPENSATING.value, StepStatus.COMPENSATED.value
        settle, done, make = Kind.STEP_SETTLED.value, StepStatus.DONE.value, tuple.__new__
        whole, seen, seq, floor = 1 << 62, self.steps_seen, base, self.floor
        names: dict[str | None, str | None] = {}  # the text of a step's name once, and not once for each step
        for seq, kind, path, name, digest, output, step_seq, status, error in self.store.outline(self.task_id, after=base):
            if step_seq is not None and step_seq > seen:
                seen = step_seq
            if path is None:
                if kind in WHOLE or status == compensating:
                    whole = min(whole, seq)
            elif floor and path not in open_from and path not in settled and self.covered(path):
                self.reached_back = self.reached_back or path[0] == UNDO or changes_replay(kind, output, error)
                whole = min(whole, seq) if kind in WHOLE else whole
            elif kind == INTENDED:
                open_from[path] = (seq, digest)
            elif kind == DONE:
                known = open_from.pop(path, None)
                if known is not None:
                    digest = known[1] or digest
                elif digest is None and path in settled:
                    digest = settled[path].input_hash
                settled[path] = make(Settled, (names.setdefault(name, name), digest, done, output, None))
            elif kind == settle:
                known = open_from.pop(path, None)
                if known is not None and known[1] is not None:
                    settled[path] = make(Settled, (name, known[1], status, output, error))
                elif status == compensated and path in settled:
                    settled[path] = settled[path]._replace(status=status)
                else:
                    before = settled.get(path) if digest is None else None
                    settled[path] = make(Settled, (name, digest if before is None else before[1], status, output, error))
                if name == WAIT_FOR:  # it says which event it has taken
                    whole = min(whole, seq)
            elif kind in WHOLE and path not in settled:
                whole = min(whole, seq)
                open_from.setdefault(path, (seq, digest))
            elif path in settled:
                whole = min(whole, seq) if kind in WHOLE else whole
                if kind == Kind.CASE_SETTLED and (output is not None or error is not None):
                    settled[path] = settled[path].given(output, error)
                elif kind == Kind.RETRY_ALLOWED:  # rare: its rows may be anywhere
                    open_from[path] = (1, settled.pop(path).input_hash)
            else:
                if path not in open_from:
                    open_from[path] = (seq, digest)
                elif digest is not None and open_from[path][1] is None:
                    open_from[path] = (open_from[path][0], digest)
                if kind == Kind.ATTEMPT_ENDED:
                    self.tries[path] = self.tries.get(path, 0) + 1
        self.steps_seen = seen
        self.open = {place: rows for place, rows in self.open.items() if place not in settled}
        return min([whole, *(first for first, _ in open_from.values())]), seq

    def record(self, path: str) -> StepRecord | None:
        """The fold of the open step at `path`, seen by this claim; None when nothing is logged there."""
        with self.lock:
            rows = self.open.get(path)
            return None if rows is None else fold_step(rows, path, self.epoch)

    def open_records(self) -> list[StepRecord]:
        """The records of all open steps, in the order of first arrival."""
        with self.lock:
            records = [self.record(path) for path in self.open]
        return sorted((r for r in records if r is not None), key=lambda r: r.step_seq)

    def settled_at(self, path: str) -> Settled:
        """The settled step that task code asks for; it is not asked for again in this pass."""
        return self.settled[path] if self.remember else self.settled.pop(path)

    def make_sure(self) -> None:
        """Check what was loaded, before anything new is done because of it: a call, or a row.

        Meaning: replay of what is settled does without, so that a resume stays as fast as reading the rows; the first step
        that it does not answer waits for this, once for each claim. Rows that this process knows to chain are not read again.
        Raises: StoreDamaged; then nothing was sent or written.
        """
        with self.lock:
            self.store.check_chain(self.task_id, after=self._since[0], digest=self._since[1], used=self._used)
            self.sure = True

    # ------------------------------------------------------------ appending

    def append(
        self, *drafts: Event, guard: str | None = None, blobs: Sequence[Blob] = (), keep_owner: bool = False, forget: bool = False
    ) -> None:
        """Append drafts, durable at return. Raises `Moved` with a view that is fresh, or what the store raises.

        `forget`: the step that these rows settle will not be asked for again in this pass; keep nothing of it.
        """
        with self.lock:
            if self.flight is not None:
                self._land()
            sealed, digest = self._sealed(drafts, guard)
            try:
                self.store.append(sealed, guard=guard, blobs=blobs, keep_owner=keep_owner)
            except Moved:
                self._catch_up()
                raise
            self._appended(sealed, digest, forget)

    def submit(self, *drafts: Event, guard: str | None = None, blobs: Sequence[Blob] = (), forget: bool = False) -> Flight | None:
        """Append drafts in a commit that other tasks share: durable, and in this view, when `landed` returns.

        None: they were appended at once, as `append` does. One at a time is on its way: whoever appends next makes it land.
        """
        self.lock.acquire()  # no `with`, which costs twice as much: these two are done for every row on a loop
        try:
            if self.flight is not None:
                self._land()
            sealed, digest = self._sealed(drafts, guard)
            ticket = self.store.submit(sealed, guard=guard, blobs=blobs, digest=digest)
            if ticket is None:
                self.append(*drafts, guard=guard, blobs=blobs, forget=forget)
                return None
            self.flight = Flight(ticket, sealed, digest, forget)
            return self.flight
        finally:
            self.lock.release()

    def landed(self, flight: Flight) -> None:
        """Take in the rows of `submit`. Raises what `append` raises."""
        self.lock.acquire()
        try:
            if flight is self.flight:
                self._land()
        finally:
            self.lock.release()
        if flight.error is not None:
            raise flight.error

    def _land(self) -> None:
        flight = self.flight
        assert flight is not None
        refused: DoubtlessError | None = None
        try:
            self.store.landed(flight.ticket)  # broken into, by a signal, it is on its way still: whoever looks next asks again
        except DoubtlessError as error:
            refused = error
        self.flight, flight.error = None, refused
        if refused is None:
            self._appended(flight.sealed, flight.digest, flight.forget)
        elif isinstance(refused, Moved):
            try:
                self._catch_up()
            except StoreDamaged as damage:
                flight.error = damage

    def _sealed(self, drafts: Sequence[Event], guard: str | None) -> tuple[list[Event], bytes]:
        if not self.sure:
            self.make_sure()
        first = drafts[0]
        if guard is not None and self.cancel is not None and self.failing is None and first.kind in _NEW:
            raise Moved(f"task {self.task_id} is cancelled: nothing new begins", task=self.task_id)
        if guard is not None and self.open and first.kind == _INTENDED and self._doubt_beside(first.path):
            raise Moved(f"task {self.task_id}: another step is in doubt", task=self.task_id)  # rule 8, between branches
        if guard is not None and self.turns and self._repeats(first):
            raise Moved(f"task {self.task_id}: an equal call of this turn was given up, and may stand", task=self.task_id)
        if not self._announced:
            drafts = (self._claimed(Instant(first.at.wall, first.boot_at)), *drafts)
        sealed = seal(drafts, self.seq, self.hash)
        return sealed, row_hash(sealed[-1])  # before the commit: after a sync nothing is in the processor's caches any more

    def _appended(self, sealed: Sequence[Event], digest: bytes, forget: bool) -> None:
        self._announced = True
        self._advance(sealed, digest, forget)
        if self.snapshotting is not None:
            self.snapshotting.after_append(sealed[-1].kind, held=self.held)

    def keep_state(self, state: str | Callable[[], str], places: int) -> None:
        """Offer a snapshot of what task code knows after its first `places` places; it is made when one is due.

        Only where the log holds nothing that the state does not stand for: every step that was called is settled, and
        replay has met all of them.
        """
        with self.lock:
            if self.snapshotting is not None and not (self.held or self.open or self.settled):
                self.snapshotting.keep_state(state, places)

    def _doubt_beside(self, path: str | None) -> bool:
        return any(record.in_doubt for record in self.open_records() if record.path != path)

    def given_up_beside(self, path: str, name: str, digest: bytes) -> str | None:
        """Where in the same turn of an agent an equal call was given up, so that its effect may stand; None: nowhere."""
        group = ".".join(path.split(".")[:-2])
        if group not in self.turns:
            return None
        with self.lock:
            for other, settled in self.settled.items():
                if other != path and ".".join(other.split(".")[:-2]) == group and settled.name == name:
                    if settled.input_hash == digest and settled.given_up:
                        return other
        return None

    def _repeats(self, first: Event) -> bool:
        if not self.turns or first.kind != Kind.STEP_INTENDED or first.path is None or first.input_hash is None:
            return False
        return self.given_up_beside(first.path, first.step_name or "", first.input_hash) is not None

    def _claimed(self, now: Instant) -> Event:
        return draft(
            self.task_id, Kind.TASK_CLAIMED, now, status=TaskStatus.RUNNING, epoch=self.epoch, data={"owner": self.owner}
        )  # fmt: skip

    def _advance(self, sealed: Sequence[Event], digest: bytes, forget: bool = False) -> None:
        if self.snapshotting is not None:
            self.snapshotting.saw(sealed, digest)
        for row in sealed:
            if forget and not self.remember and row.path is not None and row.kind == _SETTLED:
                self.open.pop(row.path, None)
            else:
                self.take_row(row)
        self.seq, self.hash = sealed[-1].event_seq, digest

    def refresh(self) -> bool:
        """Take in what others have added since; True when there was something."""
        with self.lock:
            if self.flight is not None:
                self._land()
            rows = self.store.rows(self.task_id, after=self.seq)
            if rows:
                follow(self.task_id, links_of(rows), (self.seq, self.hash or b""), None)
                self._advance(rows, row_hash(rows[-1]))
                self.news += any(map(wakes, rows))
            return bool(rows)

    def _catch_up(self) -> None:
        """Take in what stands where this process believed the next place to be. Raises StoreDamaged: the log ends before that."""
        if self.refresh():
            return
        last = self.store.last(self.task_id)
        end = 0 if last is None else last.event_seq
        if end < self.seq:
            raise StoreDamaged(
                f"task {self.task_id}: this process has written row {self.seq}, and the log ends at row {end}",
                hint="doubtless verify; rows were deleted, or a backup was restored behind a running process: doubtless recover",
                task=self.task_id,
                last=end,
            )

    def first_event(self, name: str) -> Event | None:
        """The first event of this name that no wait has taken, in the order of the log."""
        with self.lock:
            return next((row for _, row in sorted(self.events.items()) if row.details["name"] == name), None)

    def next_step_seq(self) -> int:
        """The next step's number: increasing, never reused."""
        with self.lock:
            self.steps_seen += 1
            return self.steps_seen


def _rows_of(store: Store, task_id: str, path: str, until: int) -> list[Event]:
    """The rows of one step whole, from its first one on, with the takeovers since."""
    return list(rows_of_step(store.rows(task_id), path, until))


def groups_of(path: str) -> list[str]:
    """The places of the groups that a place is in: of ``4.1.2.3.1`` these are ``4`` and ``4.1.2``."""
    parts = path.lstrip("~").split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts), 2)]
