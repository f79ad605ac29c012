"""Planted bugs: each takes one guard away, in the owner's hand or, in a process of its own, in the real protocol.

The product is never changed: what is patched lives and ends in the child process that explores it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from doubtless import fold, protocol
from doubtless.effects import Policy
from doubtless.events import Event, Instant, Kind, StepStatus, elapsed_least, elapsed_most
from doubtless.fold import Look, StepRecord
from doubtless.protocol import Action, Call

from .moves import World
from .owner import Hand
from .world import Move, Request, State


class CallBeforeIntent(Hand):
    """The call begins, and its row is to be written afterwards (against I1)."""

    def begin(self, state: State, owner: int, index: int, action: Call) -> Move:
        call = Request(index, action.attempt, self.key(index, 0), owner, state.now, False)
        if any(q.step == index and q.held for q in state.requests):
            return super().begin(state, owner, index, action)
        return Move(f"owner {owner + 1} enters the call of step {index + 1}", state._replace(requests=(*state.requests, call)))


class AttemptWithoutRow(Hand):
    """A second attempt is called, and only the first one has its row (against I1)."""

    def next_attempt(self, state: State, owner: int, index: int, action: Call, record: StepRecord) -> tuple[bytes, list[Event]]:
        waits = any(q.step == index and q.held for q in state.requests)
        key, rows = super().next_attempt(state, owner, index, action, record)
        return key, rows if waits else [self.row(state, index, owner, Kind.HANDLE_RECORDED, data={"handle": "none"})]


class KeyRecomputed(Hand):
    """After a takeover the key is made anew, of what the model says the second time (against I5)."""

    def key_to_send(self, state: State, owner: int, index: int, key: bytes) -> bytes:
        return key if owner == 0 else self.key(index, 100 + owner)


class AnswerTwice(Hand):
    """A person's permission is not used up by the attempt that it allows (against I8)."""

    def next_attempt(self, state: State, owner: int, index: int, action: Call, record: StepRecord) -> tuple[bytes, list[Event]]:
        key, rows = super().next_attempt(state, owner, index, action, record)
        return key, [row for row in rows if row.kind != Kind.RETRY_ALLOWED]


class UndoOfADoubt(Hand):
    """A step that is in doubt is compensated, as if it were done (against I7)."""

    def to_undo(self, state: State, origin: int) -> bool:
        record = state.records[origin]
        return record is not None and record.status in (StepStatus.DONE, StepStatus.UNCERTAIN)


class BesideADoubt(Hand):
    """A new intent is written while another step is in doubt (against rule 8)."""

    def beside_a_doubt(self, state: State) -> bool:
        return False


class EpochUnchecked(Hand):
    """A stopped owner that is woken goes on writing (against I4)."""

    def check_epoch(self, state: State, owner: int) -> None:
        return


class OneAbsent(Hand):
    """One absent is proof, whenever it was seen."""

    def look_counts(self, state: State, index: int, record: StepRecord, seen: Look) -> bool:
        return seen.answer == "absent" or super().look_counts(state, index, record, seen)


class RestoredLogTrusted(Hand):
    """A restored backup is believed: what it does not know was not done."""

    def count_as_sent(self, state: State, owner: int, index: int) -> Move | None:
        return None


class AnswerOutlivesTheBackup(Hand):
    """What a person said before a backup was made acts, as if it could not have acted since."""

    def count_as_sent(self, state: State, owner: int, index: int) -> Move | None:
        record = state.records[index]
        answered = record is not None and record.in_doubt
        return None if answered else super().count_as_sent(state, owner, index)


class DeadlineBeforeTheRow(World):
    """`compensate_deadline` is checked when the row is written, and not again right before the call."""

    def still_in_time(self, state: State, call: Request) -> bool:
        return True


# ---------------------------------------------------------------- in the real protocol, in a child process


def absence_from_the_start() -> None:
    def quiet_for(self: StepRecord, at: Instant, timeout_us: int) -> int | None:
        return min((elapsed_least(a.started, at) for a in self.attempts if a.generation == self.generation), default=None)

    StepRecord.quiet_for = quiet_for  # type: ignore[method-assign]


def last_attempt_counts() -> None:
    def gravest(self: StepRecord) -> str | None:
        last = self.current[-1] if self.current else None
        return None if last is None else last.outcome or ("unknown" if self._left(last) else None)

    StepRecord.gravest = property(gravest)  # type: ignore[assignment, method-assign]


def window_unchecked() -> None:
    protocol._inside_key_window = lambda policy, record, now: policy.effect == "idem_write"


def window_without_margin() -> None:
    def inside(policy: Policy, record: StepRecord, now: Instant) -> bool:
        if policy.effect != "idem_write" or policy.key_window_us is None:
            return bool(policy.effect == "idem_write")
        first = next(a for a in record.attempts if a.generation == record.generation)
        return elapsed_most(first.started, now) < policy.key_window_us

    protocol._inside_key_window = inside


def wall_clock_alone() -> None:
    def by_the_wall(since: Instant, now: Instant) -> int:
        return now.wall - since.wall

    for module in (protocol, fold):
        module.elapsed_least = by_the_wall  # type: ignore[attr-defined]
    protocol.elapsed_most = by_the_wall  # type: ignore[attr-defined]


def window_outlives_the_backup() -> None:
    real = protocol._inside_key_window

    def inside(policy: Policy, record: StepRecord, now: Instant) -> bool:
        record.suspect = False
        return real(policy, record, now)

    protocol._inside_key_window = inside


def settle_within_ignored() -> None:
    protocol._by_the_deadline = lambda policy, record, now, action: action


def answer_acts_at_once() -> None:
    real: Callable[..., Action] = protocol._answered

    def answered(policy: Policy, record: StepRecord, now: Instant) -> Action:
        assert record.answer is not None
        record.answer = record.answer._replace(even_now=True)
        return real(policy, record, now)

    protocol._answered = answered


class Plant(NamedTuple):
    """A planted bug: which guard is gone, the slice that finds it, and the invariant that it has to break."""

    guard: str
    slice: str
    breaks: tuple[str, ...]
    hand: type[Hand] = Hand
    world: type[World] = World
    patch: Callable[[], None] | None = None


PLANTS: dict[str, Plant] = {
    "call-before-intent": Plant("the intent is durable before the call", "crash-queried", ("I1",), CallBeforeIntent),
    "attempt-without-row": Plant("each attempt has its row before it begins", "crash-keyed", ("I1",), AttemptWithoutRow),
    "key-recomputed": Plant("the key comes from the intent", "crash-keyed", ("I5",), KeyRecomputed),
    "answer-twice": Plant("a permission is used up by its attempt", "answered-blind", ("I8",), AnswerTwice),
    "undo-of-a-doubt": Plant("only what is proven done is compensated", "undo-queried", ("I7",), UndoOfADoubt),
    "beside-a-doubt": Plant("nothing new begins beside a doubt", "two-parallel", ("rule 8",), BesideADoubt),
    "epoch-unchecked": Plant("an old epoch's append is refused", "stopped-queried", ("I4",), EpochUnchecked),
    "one-absent": Plant("two absents, both begun when an absence is proof", "crash-queried", ("I2",), OneAbsent),
    "deadline-before-the-row": Plant(
        "the deadline is checked right before the call", "undo-queried", ("I7",), world=DeadlineBeforeTheRow
    ),
    "deploy-loosens": Plant("a deploy may only tighten an open intent", "untightened", ("I2",)),
    "deploy-forgets-the-window": Plant("the shorter key_window holds", "untightened-window", ("I2",)),
    "absence-from-the-start": Plant(
        "the absence clock starts at the last possible send", "thread-queried", ("I2",), patch=absence_from_the_start
    ),
    "last-attempt-counts": Plant(
        "the worst attempt decides, not the last", "refused", ("I2", "not_applied means so"), patch=last_attempt_counts
    ),
    "window-unchecked": Plant("a resend only inside key_window", "crash-windowed", ("I2",), patch=window_unchecked),
    "window-without-margin": Plant("the window has a margin", "crash-windowed", ("I2",), patch=window_without_margin),
    "restored-log-trusted": Plant(
        "of a restored log, what it does not know counts as sent", "restored-queried", ("I2",), RestoredLogTrusted
    ),
    "answer-outlives-the-backup": Plant(
        "what a person said before a backup is void", "restored-blind", ("I2",), AnswerOutlivesTheBackup
    ),
    "window-outlives-the-backup": Plant(
        "after a restored backup no key window is trusted", "restored-windowed", ("I2",), patch=window_outlives_the_backup
    ),
    "wall-clock-alone": Plant("of two clocks the cautious one counts", "clock-queried", ("I2",), patch=wall_clock_alone),
    "wall-clock-alone-undo": Plant("the same of a deadline", "clock-undo", ("I7",), patch=wall_clock_alone),
    "settle-within-ignored": Plant("a case by settle_within", "answered-sooner", ("I6",), patch=settle_within_ignored),
    "answer-acts-at-once": Plant(
        "an answer acts when nothing can land any more, after a fresh look",
        "answered-queried",
        ("I2", "not_applied means so"),
        patch=answer_acts_at_once,
    ),
}
