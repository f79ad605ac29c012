"""What a store does: one method is one transaction; no user code and no network call inside it.

Rows of one task come from one owner at a time. Every append by an owner carries the owner's epoch and the
place that it expects; it is refused as `StaleEpoch` (stop) or `Moved` (fold, decide again). What a person or
an old owner adds (answers, cancel, freeze, evidence) needs no epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..events import Event, Instant
from ..snapshots import Snapshot
from .folder import Folder


class StoreInfo(NamedTuple):
    """What a store says of itself. `namespace` is part of every key; `suspect` follows `recover --accept`.

    `blobs`: where content above 1 MiB lies, as `Store.place_blobs` has written it down; None: in `Store.folder`.
    """

    location: str
    namespace: bytes
    suspect: bool
    schema: int
    blobs: str | None = None


class Head(NamedTuple):
    """A task's head row, a projection of its log: changed at accept, claim, park, wake and end, never per step.

    `owner` names the claim's lock (None: nobody's); `epoch` is the number of the last claim; `wake_at` is when
    a waiting task has something to do (microseconds of the store's clock), and before which one that is ready is not begun;
    `why` is one line for a person. `awaits`: the business key whose holder it waits for; it has something to do as soon as
    that one is settled. `queue`: which workers take it; `priority`: of two that are due the smaller one first.
    """

    task_id: str
    task_name: str
    status: str
    input_hash: bytes
    owner: str | None
    epoch: int | None
    wake_at: int | None
    created_at: int
    updated_at: int
    why: str | None
    awaits: str | None
    queue: str
    priority: int


class Wanted(NamedTuple):
    """What a worker looks for. `names`: the tasks whose code it has; `queues`: None for all of them.

    `idle`: what the head of a waiting task says that has nothing to do, although no time says until when.
    """

    names: tuple[str, ...]
    queues: tuple[str, ...] | None = None
    idle: tuple[str, ...] = ()


class Beginning(NamedTuple):
    """The rows of a task that is begun, and the hash of the second."""

    accepted: Event
    claimed: Event
    digest: bytes


class Claim(NamedTuple):
    """A claim that was granted: the task's owner from now on, until `release` or a parked or ended row."""

    head: Head
    epoch: int
    takeover: bool
    """True: the owner before died; its TaskClaimed row is written, what was in flight is in doubt."""
    begun: Beginning | None = None
    """All rows of a task that this claim has begun (`Store.begin`): there is nothing to read."""


class Due(NamedTuple):
    """What a worker may run now. `claims`: of this process already; `heads`: to be claimed one by one, each if it still can be.

    A head may be a child's: then it is its root that is run for it.
    """

    claims: list[Claim]
    heads: list[Head]


class CaseRow(NamedTuple):
    """A case's projection. `event_seq` is its CaseOpened row; `settled_seq` its CaseSettled row, or None.

    `notified_at` is when a hook had last taken it (`Store.notified`); no event says so, and no fold gives it back.
    """

    case_id: str
    task_id: str
    event_seq: int
    path: str | None
    kind: str
    opened_at: int
    settled_seq: int | None
    settled_at: int | None
    settled_by: str | None
    notified_at: int | None = None


class KeyRow(NamedTuple):
    """A business key and its newest holder: the step at `path` of `task_id`, whose `turn` it is.

    `state`: ``open`` (in flight or in doubt), ``done`` (since `done_at` and `done_boot`), ``failed`` (it may stand) or
    ``freed`` (it did not happen). `window_us`: how long after done the holder keeps it; None: for ever.
    """

    once: str
    turn: int
    task_id: str
    path: str
    state: str
    window_us: int | None
    done_at: int | None
    done_boot: int | None


class Outline(NamedTuple):
    """The columns that replay needs of each row; nothing else is read for a settled step.

    `kind`: of an intent `INTENDED`; of a StepSettled as done without error and data `DONE`; else the kind.
    """

    event_seq: int
    kind: str
    path: str | None
    step_name: str | None
    input_hash: bytes | None
    output_ref: str | bytes | None
    step_seq: int | None
    status: str | None
    error: str | None


INTENDED, DONE = "I", "D"
"""How `Outline` says the two kinds of rows that nearly all of a long log are."""


class Problem(NamedTuple):
    """One thing that `verify` found. `where` is a task id, a file or a table; `what` is one sentence."""

    where: str
    event_seq: int | None
    what: str


class Blob(NamedTuple):
    """Content that an append writes in its own transaction, before the event that names it."""

    digest: bytes
    content: bytes


class Leases(Protocol):
    """The claims of one owner where a lease, and no lock, says who is alive."""

    def outlive(self, task_id: str, epoch: int, timeout_us: int) -> None:
        """Return when the claim's lease surely lasts longer than a call of this length that begins now.

        Meaning: asked right before each write is called; a look at this process's own clock, unless the lease is too short:
        then it is renewed first. Nothing may be sent when this raises.
        Raises: StaleEpoch when another owner has the task; StoreUnavailable when the store cannot be asked.
        """


class Shared(Protocol):
    """A row that was put down for a commit that it shares with others. `done`: that commit is over."""

    done: bool


class Store(Protocol):
    """The one interface of all stores; `tests/store` is its conformance suite."""

    far: bool
    """Whether a commit is a question to another process, for which an event loop does not stand still."""

    folder: Folder
    """Where content above 1 MiB lies unless `blobs` of its info says another place (`blobs.Content`)."""

    @property
    def leases(self) -> Leases | None:
        """How an owner knows that it still is one; None where it holds a lock that nobody can take from it."""

    def info(self) -> StoreInfo: ...

    def now(self) -> Instant:
        """The store's clock: what leases, waits and deadlines are compared with."""

    def accept(self, accepted: Event, blobs: Sequence[Blob] = (), *, taken: Sequence[Event] = ()) -> Head | None:
        """Write the task's first row and its head, durably. None: done; a head: the id exists, nothing written.

        `taken`: of a fork, the rows that follow the first one, in the same transaction: none of them changes a projection.
        """

    def begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Claim | None:
        """`accept` and `claim` in one transaction, with the TaskClaimed row: nobody else is told of the task.

        None: the id exists, nothing written.
        """

    def claim(self, task_id: str) -> Claim:
        """Make this process the owner, with a new random epoch.

        Atomic. Writes a TaskClaimed row when the owner before died (a takeover) and none otherwise: a claim that
        changes nothing adds no row. The head keeps its status until a row changes it. Where leases say who is alive, a
        takeover's row says in its `data` when the dead owner's lease ended (`lease_until`).
        Raises: TaskBusy (who, since when, how to end it), UnknownTask.
        """

    def release(self, task_id: str, epoch: int) -> None:
        """Give the task up without a row; nothing happens when the epoch is not the current one."""

    def append(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), keep_owner: bool = False
    ) -> None:
        """Append sealed rows of one task by its owner; all or none, durable at return.

        `guard` names a step whose freeze is checked in the same transaction. Rows that change the head or a case
        (`changes.project`) do so here; a TaskParked or TaskEnded row releases the owner unless `keep_owner`.
        A row that takes a business key takes it in this transaction too: of two at the same instant one has it.
        Raises: StaleEpoch, Moved, Frozen, AlreadySettled, KeyHeld; StoreUnavailable when it is surely not written.
        An append whose fate is unknown is looked up by place and compared whole before it is repeated.
        """

    def submit(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), digest: bytes | None = None
    ) -> Shared | None:
        """Put sealed rows of one task down for the next commit, which it shares with others. None: append them instead.

        They are not durable before `landed` has returned, and nobody sees them. The task's next row is sealed only then.
        `digest`: the hash of the last of them, where it is known.
        """

    def submit_begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Shared:
        """Put a task down that `begin` would begin, for the next commit; `landed` gives what that would."""

    def flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> int:
        """Commit what was put down, in one transaction; `most`: no more rows than these, the oldest ones.

        How many rows wait still, if no more waits than rows: those can be committed by one call, beside a busy interpreter.

        A row that is refused does not harm the others. `gone`: called when nothing but the commit itself is left to do, which
        leaves the interpreter to other threads.
        """

    def landed(self, ticket: Any) -> Any:
        """Return when what a ticket stands for is durable, after a `flush` if need be; raise what its method would."""

    def add(self, task_id: str, drafts: Sequence[Event], *, expect: int | None = None, blobs: Sequence[Blob] = ()) -> list[Event]:
        """Append drafts without an epoch: a person's answer, cancel, freeze, evidence. Sealed in the transaction.

        `expect`: the task's last `event_seq` that the caller saw, or None for any.
        Raises: Moved, AlreadySettled, KeyHeld, UnknownTask.
        """

    def rows(self, task_id: str, *, path: str | None = None, after: int = 0) -> list[Event]:
        """The task's rows in order; of one step with `path`; after a place with `after`.

        Raises: StoreDamaged when all rows of a task are read and one of them is not what was written.
        """

    def check_chain(self, task_id: str, *, after: int = 0, digest: bytes = b"", used: Sequence[int] = ()) -> None:
        """Check that the task's rows chain, from the row at `after` on, whose hash is `digest` (0 and none: from the first).

        Meaning: for whoever is to act on them. What this process has seen to chain, or has written, is not read again. `used`:
        rows before that place that are used too: each is checked against the one after it.
        Raises: StoreDamaged, which names the row.
        """

    def rows_at(self, task_id: str, seqs: Sequence[int]) -> list[Event]:
        """The task's rows at these places, in order; a place without a row is left out."""

    def outline(self, task_id: str, *, after: int = 0) -> Iterator[Outline]:
        """The rows in order, with the columns that replay needs; after a place with `after`.

        They are read in pieces, as they are needed: together a prefix of the log, up to some moment before the end of it.
        """

    def next_rows(self, task_id: str, *, after: int = 0) -> Iterator[Event]:
        """What `rows` gives, read in pieces as they are needed; from the first row on, each is checked before it is given."""

    def rows_of(self, task_id: str, kinds: Sequence[str]) -> list[Event]:
        """The task's rows of these kinds, in order."""

    def first(self, task_id: str) -> Event:
        """The task's first row, its TaskAccepted. Raises: UnknownTask."""

    def last(self, task_id: str) -> Event | None:
        """The task's last row."""

    def head(self, task_id: str) -> Head | None: ...

    def heads(self, *, status: Sequence[str] = (), due: int | None = None, limit: int | None = None) -> list[Head]:
        """Heads, oldest first; of some statuses. `due`: only those that have not ended and have something to do: with no
        `wake_at` after this time (of needs_human: only those with one, which is not), or whose key moved; and none that only
        waits for its host (`events.IDLE`)."""

    def due(self, wanted: Wanted, *, limit: int, now: int) -> Due:
        """What there is to run for a worker with `limit` free places, by priority, then the oldest first; one round trip.

        Meaning: no more than `limit` tasks that nobody has; with them what a dead owner has left, and children that are due
        although their root is not. Where leases say who is alive, those that nobody has are claimed in the same statement,
        passing over what another worker is claiming at this moment: many workers do not fight for the same head.
        """

    def next_due(self, now: int) -> int | None:
        """The next time after `now` at which a task that nobody has is due; None: there is none."""

    def strangers(self, wanted: Wanted, *, limit: int = 100) -> list[Head]:
        """Tasks in these queues that nobody has and whose names are not among those that are wanted; oldest first."""

    def listen(self, wake: Callable[[], None]) -> Callable[[], None] | None:
        """Call `wake` from now on when a task is given something to do, by whichever process; what ends that.

        Meaning: a hint that may come late, twice or not at all; whoever waits for it looks by itself every so often.
        None: this store tells nobody.
        """

    def owner_alive(self, owner: str | None) -> bool:
        """True while the process that a head row names still holds its lock."""

    def owned(self, head: Head) -> tuple[Head, bool]:
        """A head and whether its owner lives, as they belong together: of a task that was given up since, the head that is now.

        Meaning: a head is read first and its owner looked at afterwards; where a lease says who is alive, one that has parked in
        between would look dead, and its doubt like nobody's.
        """

    def cases(self, *, task_id: str | None = None, settled: bool = False) -> list[CaseRow]:
        """Open cases, oldest first (`settled`: all of them)."""

    def case(self, case_id: str) -> CaseRow | None: ...

    def notified(self, case_id: str) -> None:
        """Note that the hooks have taken this open case: at least once, so that a crash before this calls them again."""

    def key(self, once: str) -> KeyRow | None:
        """Who has or had this business key last; None: nobody ever."""

    def frozen(self) -> dict[str, str]:
        """What is frozen: step name (``*`` for every step) → why."""

    def blob(self, digest: bytes) -> bytes | None:
        """Content that the database itself holds; None when it does not."""

    def usable_snapshot(self, task_id: str, *, below: int | None = None) -> Snapshot | None:
        """The task's newest snapshot (below a place) that is whole and was made at a row that its log holds, or None.

        Everything else is passed over: damaged, another task's, ahead of the log, of another format. `verify` tells of it.
        """

    def put_snapshot(self, snapshot: Snapshot, *, before: int | None = None) -> None:
        """Keep a snapshot, and of the task's others only the one at `before`: a cache, in a transaction of its own.

        Raises: StoreError; then nothing has changed.
        """

    def drop_snapshots(self, task_id: str | None = None) -> int:
        """Delete a task's snapshots, or all of them (None); how many there were. Changes nothing but speed."""

    def spill(self, event: Event, blobs: Sequence[Blob] = ()) -> str:
        """Keep a result that cannot be appended in a synced file beside the database (rule 6); its name.

        `blobs`: content that the event names; it is kept in the folder, where `Content.get` finds it too.
        """

    def spilled(self, task_id: str) -> list[tuple[str, Event]]:
        """The task's spilled results, oldest first, by name; damaged files are reported by `verify`, not here."""

    def drop_spilled(self, name: str) -> None:
        """Remove a spilled result once it stands in the log."""

    def end_suspect(self, *, by: str, why: str) -> None:
        """End suspect mode: a person vouches that nothing was sent of which the log knows nothing."""

    def place_blobs(self, place: str) -> str:
        """Write down where content above 1 MiB lies from now on, unless a place is written down; the one that stands."""

    def unnamed(self, digests: set[bytes]) -> set[bytes]:
        """Those of these digests that no event, no snapshot and no spilled result names. Reads the whole log."""

    def verify(self, holds: Callable[[bytes], bool] | None = None) -> list[Problem]:
        """Check every chain, gap, ref, projection and the mark; read only.

        `holds`: whether content lies elsewhere than in the database and `folder`.
        """

    def close(self) -> None: ...
