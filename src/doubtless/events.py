"""The event log's rows: the closed sets, an event's columns, its hash, and how a row is encoded.

The log is the only truth. A row never changes; `seal` gives it its place and chains it to the row before.
The closed sets below are repeated by CHECK constraints in every store and drawn into the docs from here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple, NewType

TaskId = NewType("TaskId", str)
"""200 printable characters; ``/`` separates children; a leading ``$`` belongs to the store."""

FORMAT = 1
"""The format of a row's columns, stored with each row; `upcast` reads the older ones."""

STORE_TASK = TaskId("$store")
"""The reserved task whose events are freeze, thaw and recover."""


class Kind(StrEnum):
    """What a row says happened."""

    TASK_ACCEPTED = "TaskAccepted"
    TASK_CLAIMED = "TaskClaimed"
    TASK_PARKED = "TaskParked"
    TASK_ENDED = "TaskEnded"
    STEP_INTENDED = "StepIntended"
    ATTEMPT_STARTED = "AttemptStarted"
    ATTEMPT_ENDED = "AttemptEnded"
    HANDLE_RECORDED = "HandleRecorded"
    LOOKED_BACK = "LookedBack"
    RETRY_ALLOWED = "RetryAllowed"
    STEP_SETTLED = "StepSettled"
    EVIDENCE_STORED = "EvidenceStored"
    CASE_OPENED = "CaseOpened"
    CASE_SETTLED = "CaseSettled"
    CANCEL_REQUESTED = "CancelRequested"
    EVENT_RECEIVED = "EventReceived"
    CALLS_ACKNOWLEDGED = "CallsAcknowledged"
    STORE_FROZEN = "StoreFrozen"
    STORE_THAWED = "StoreThawed"
    STORE_RECOVERED = "StoreRecovered"


class TaskStatus(StrEnum):
    """Where a task stands. Terminal: done, failed, compensated, cancelled."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    NEEDS_HUMAN = "needs_human"
    DONE = "done"
    FAILED = "failed"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"


TERMINAL = frozenset({TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.COMPENSATED, TaskStatus.CANCELLED})


def ended_words(status: str, why: str) -> str:
    """How a task ended, and why; what the reason says of the status itself is said once."""
    return why if why.startswith(status) else f"{status}: {why}"


class StepStatus(StrEnum):
    """Where a step stands. Settled: done, not_applied, failed (and compensated, which follows done)."""

    STARTED = "started"
    UNCERTAIN = "uncertain"
    NEEDS_HUMAN = "needs_human"
    DONE = "done"
    NOT_APPLIED = "not_applied"
    FAILED = "failed"
    COMPENSATED = "compensated"


UNDO = "~"
"""What the path of a compensation begins with; the rest is the path of the step that it undoes. No place of the code."""

SETTLED = frozenset({StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED, StepStatus.COMPENSATED})


STEP_MOVES: dict[StepStatus | None, tuple[StepStatus, ...]] = {
    # At once `not_applied`: refused, because another step has the business key; in a fork: taken over, or denied.
    # At once `needs_human`: a compensation that cannot even begin, because its code is gone, begins with its case.
    None: (
        StepStatus.STARTED, StepStatus.UNCERTAIN, StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED,
        StepStatus.NEEDS_HUMAN,
    ),
    StepStatus.STARTED: (StepStatus.DONE, StepStatus.FAILED),
    StepStatus.UNCERTAIN: (StepStatus.NEEDS_HUMAN, StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED),
    StepStatus.NEEDS_HUMAN: (StepStatus.UNCERTAIN, StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED),
    StepStatus.DONE: (StepStatus.COMPENSATED,),
    StepStatus.NOT_APPLIED: (StepStatus.UNCERTAIN,),  # a person's retry after `exhausted`
    StepStatus.FAILED: (StepStatus.STARTED,),  # the same, of a read
    StepStatus.COMPENSATED: (),
}
"""From which status a step may move to which (I3). `verify` and the docs use this table; None: its first row."""

TASK_MOVES: dict[TaskStatus | None, tuple[TaskStatus, ...]] = {
    None: (TaskStatus.READY,),
    TaskStatus.READY: (TaskStatus.RUNNING,),
    TaskStatus.RUNNING: (
        TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.NEEDS_HUMAN, TaskStatus.DONE, TaskStatus.FAILED,
        TaskStatus.COMPENSATING, TaskStatus.CANCELLED,
    ),
    TaskStatus.WAITING: (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.CANCELLED),
    TaskStatus.NEEDS_HUMAN: (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.COMPENSATING, TaskStatus.CANCELLED),
    TaskStatus.COMPENSATING: (
        TaskStatus.RUNNING, TaskStatus.COMPENSATING, TaskStatus.NEEDS_HUMAN, TaskStatus.COMPENSATED, TaskStatus.FAILED,
        TaskStatus.CANCELLED,
    ),
    TaskStatus.DONE: (TaskStatus.COMPENSATING,),  # a person's wish: `app.compensate`
    TaskStatus.FAILED: (),
    TaskStatus.COMPENSATED: (),
    TaskStatus.CANCELLED: (),
}  # fmt: skip
"""From which status a task may move to which; terminal ones are final (I3)."""


class Effect(StrEnum):
    """A step's side-effect class: declared by the developer, read by the executor, never by the model."""

    READ = "read"
    IDEM_WRITE = "idem_write"
    NON_IDEM_WRITE = "non_idem_write"


READ = Effect.READ
"""By itself, for what is asked several times in a step: an enum's class takes as long to give a member as three calls take."""


class CaseKind(StrEnum):
    """What a person is asked about."""

    DOUBT = "doubt"
    COMPENSATION = "compensation"
    CODE_ERROR = "code_error"
    DIVERGED = "diverged"
    HOLD = "hold"
    CONTRADICTION = "contradiction"
    OUTPUT = "output"
    QUESTION = "question"


IDLE = ("between two openings", "between two openings; the last one was not left normally, its calls are not acknowledged")
"""What the head of a waiting task says (`why`) that has nothing to do, although no time says until when."""

ASKING = frozenset({CaseKind.DOUBT, CaseKind.COMPENSATION})
"""The kinds of cases that ask whether an unsettled write happened; a compensation has its own."""


class Instant(NamedTuple):
    """A moment on the store's clock.

    Units: `wall` is microseconds since 1970 (UTC); `boot` is microseconds of the boot-time clock with the
    boot's own mark in the upper bits (`boot_mark`), so that moments of two boots are never compared.
    """

    wall: int
    boot: int


FOREVER = 1 << 62
"""More microseconds than any window has."""

BOOT_BITS = 47  # 4.4 years of microseconds


def boot_mark(boot_id: str, boot_us: int) -> int:
    """Join a boot's identity and its clock into one integer: 16 bits of the id's hash, 47 bits of time."""
    mark = int.from_bytes(sha256(boot_id.encode()).digest()[:2], "big")
    return (mark << BOOT_BITS) | (boot_us & ((1 << BOOT_BITS) - 1))


def elapsed_least(since: Instant, now: Instant) -> int:
    """Microseconds that have surely passed: the smaller of what the clocks say (absence is proven later)."""
    wall = now.wall - since.wall
    if since.boot >> BOOT_BITS != now.boot >> BOOT_BITS:
        return wall
    return min(wall, now.boot - since.boot)


def elapsed_most(since: Instant, now: Instant) -> int:
    """Microseconds that may have passed: the larger of what the clocks say (windows and deadlines end sooner).

    A wall clock that stands before `since` after a reboot says nothing: then any time may have passed.
    """
    wall = now.wall - since.wall
    if since.boot >> BOOT_BITS != now.boot >> BOOT_BITS:
        return wall if wall >= 0 else FOREVER
    return max(wall, now.boot - since.boot)


class Event(NamedTuple):
    """One row of the log, in the order of its columns. Digests are 32 bytes; times are `Instant.wall`.

    `input_ref` and `output_ref`: text ``inline:…`` or, for content elsewhere, the 32 bytes of its sha256.
    `error`: JSON of an outcome (`kind`, `code`, `detail`, …). `data`: JSON of what a kind needs more; of a
    StepIntended the 32 bytes of its policy's digest, or, of a step with a business key, JSON with the digest in hex.
    """

    task_id: str
    event_seq: int
    step_seq: int | None
    path: str | None
    step_name: str | None
    kind: str
    status: str | None
    attempt: int | None
    effect_class: str | None
    idempotency_key: bytes | None
    input_hash: bytes | None
    input_ref: str | bytes | None
    output_ref: str | bytes | None
    error: str | None
    data: str | bytes | None
    started_at: int | None
    finished_at: int | None
    boot_at: int
    epoch: int | None
    format: int
    prev_hash: bytes | None

    @property
    def at(self) -> Instant:
        """When the row was written: the later of its two times."""
        return Instant(self.wall, self.boot_at)

    @property
    def wall(self) -> int:
        """When the row was written, in microseconds of the wall clock."""
        return self.finished_at if self.finished_at is not None else (self.started_at or 0)

    @property
    def details(self) -> dict[str, Any]:
        """`data` decoded; empty for a row without any."""
        if not isinstance(self.data, str):
            return {}
        try:
            found = json.loads(self.data)
        except (RecursionError, ValueError) as error:
            raise self._damaged(str(error)) from error
        if type(found) is not dict:
            raise self._damaged("its data is no object")
        return found

    def _damaged(self, why: str) -> Exception:
        from .errors import StoreDamaged

        what = f"task {self.task_id}: row {self.event_seq} of its log is damaged: {why}"
        return StoreDamaged(what, hint="doubtless verify", task=self.task_id)


COLUMNS = Event._fields


_make: Callable[[type[Event], tuple[Any, ...]], Event] = tuple.__new__
"""A row made straight: the constructor of a named tuple is a Python function, and two rows are made for each step."""


def draft(
    task_id: str,
    kind: Kind,
    now: Instant,
    *,
    step_seq: int | None = None,
    path: str | None = None,
    step_name: str | None = None,
    status: str | None = None,
    attempt: int | None = None,
    effect_class: str | None = None,
    idempotency_key: bytes | None = None,
    input_hash: bytes | None = None,
    input_ref: str | bytes | None = None,
    output_ref: str | bytes | None = None,
    error: str | None = None,
    data: str | bytes | dict[str, Any] | None = None,
    started_at: int | None = None,
    finished_at: int | None = None,
    epoch: int | None = None,
) -> Event:
    """An event without its place in the chain: `event_seq` 0 and no `prev_hash`. `seal` gives it both.

    A dict as `data` is stored as JSON. Without either time, `finished_at` is now.
    """
    if isinstance(data, dict):
        data = dump(data)
    if started_at is None and finished_at is None:
        finished_at = now.wall
    row = (
        task_id, 0, step_seq, path, step_name, kind, status, attempt, effect_class, idempotency_key, input_hash,
        input_ref, output_ref, error, data, started_at, finished_at, now.boot, epoch, FORMAT, None,
    )  # fmt: skip
    return _make(Event, row)


def intent_row(
    task_id: str, now: Instant, step_seq: int, path: str, step_name: str, effect_class: str, idempotency_key: bytes,
    input_hash: bytes, input_ref: str | bytes, data: str | bytes | None, epoch: int | None, error: str | None,
    seq: int = 0, prev: bytes | None = None,
) -> Event:  # fmt: skip
    """The draft of an intent, with its first attempt; with the place that it will most likely have, if one is given."""
    row = (
        task_id, seq, step_seq, path, step_name, _INTENDED, _UNCERTAIN, 1, effect_class, idempotency_key, input_hash, input_ref,
        None, error, data, now[0], None, now[1], epoch, FORMAT, prev,
    )  # fmt: skip
    return _make(Event, row)


def done_row(
    task_id: str, now: Instant, step_seq: int, path: str, step_name: str, attempt: int, output_ref: str | bytes | None,
    error: str | None, epoch: int | None, read_since: int | None, seq: int = 0, prev: bytes | None = None,
) -> Event:  # fmt: skip
    """The draft of the row that settles a step as done, likewise; `read_since`: of a read, when it began."""
    row = (
        task_id, seq, step_seq, path, step_name, _SETTLED, _DONE, attempt, None if read_since is None else _READ, None, None,
        None, output_ref, error, None, read_since, now[0], now[1], epoch, FORMAT, prev,
    )  # fmt: skip
    return _make(Event, row)


_INTENDED, _UNCERTAIN, _SETTLED = Kind.STEP_INTENDED.value, StepStatus.UNCERTAIN.value, Kind.STEP_SETTLED.value
_DONE, _READ = StepStatus.DONE.value, READ.value

dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
"""JSON of `data` and `error` columns: plain JSON values only."""


def row_hash(event: Event) -> bytes:
    """The hash that the next row of the task carries as its `prev_hash`: sha256 over all columns.

    Meaning: the columns as text in their order, a NUL between them (names are printable and JSON escapes it, so that no
    column holds one), digests in hex, an empty one as ``None``. Written out, because it is made twice for each step.
    """
    (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, error, data, began, ended, boot,
        epoch, form, prev,
    ) = event  # fmt: skip
    columns = (
        task, str(seq), str(step), "None" if path is None else path, "None" if name is None else name, kind,
        "None" if status is None else status, str(attempt), "None" if effect is None else effect,
        "None" if key is None else key.hex(), "None" if digest is None else digest.hex(),
        "None" if given is None else given.hex() if isinstance(given, bytes) else given,
        "None" if made is None else made.hex() if isinstance(made, bytes) else made, "None" if error is None else error,
        "None" if data is None else data.hex() if isinstance(data, bytes) else data, str(began), str(ended), str(boot),
        str(epoch), str(form), "None" if prev is None else prev.hex(),
    )  # fmt: skip
    try:
        text = "\0".join(columns)
    except TypeError:  # of a damaged file: bytes or a number, where text was; then it has a hash all the same, and another one
        text = "\0".join(map(str, columns))
    return sha256(text.encode()).digest()


def seal(drafts: Sequence[Event], last_seq: int, last_hash: bytes | None) -> list[Event]:
    """Give drafts the places after `last_seq` and chain them: gapless, each with the hash of the one before."""
    if len(drafts) == 1:
        event = drafts[0]
        if event[1] == last_seq + 1 and event[-1] == last_hash:  # it was drafted for this place
            return [event]
        return [_make(Event, (event[0], last_seq + 1, *event[2:-1], last_hash))]
    sealed: list[Event] = []
    for event in drafts:
        if sealed:
            last_hash = row_hash(sealed[-1])
        last_seq += 1
        sealed.append(_make(Event, (event[0], last_seq, *event[2:-1], last_hash)))
    return sealed


def upcast(row: Sequence[Any]) -> Event:
    """A stored row, of any released format, as today's `Event`."""
    event = Event._make(row)
    if event.format > FORMAT:
        from .errors import StoreRefused

        raise StoreRefused(
            f"task {event.task_id}: event {event.event_seq} has format {event.format}; this version reads up to {FORMAT}",
            hint="upgrade doubtless; the log was not touched",
        )
    return event
