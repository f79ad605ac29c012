"""The state that is explored: the log's rows, the outside world, the owners, a clock; and what a slice is.

Nothing of the protocol is modelled here. A state's rows are real `Event`s, folded by the real fold; what may be done
next is asked of the real `decide`. What is here is what the library cannot see: requests on their way, effects that
landed, what the other side remembers, and who is dead, stopped or woken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from doubtless.effects import Deadline, Policy
from doubtless.events import BOOT_BITS, Effect, Event, Instant
from doubtless.fold import StepRecord
from doubtless.obligations import first_effect

S = 1_000_000
TASK = "explored"
NAMESPACE = b"n" * 32
MARGIN = 5 * S
"""How late a keyed request may land after it was sent, while the `key_window` margin holds (rule 11)."""


def policy(effect: str = "non_idem_write", **options: Any) -> Policy:
    """A policy with short times: the clock of a slice has few instants. No backoff, so no jitter."""
    defaults: dict[str, Any] = {
        "timeout_us": 2 * S, "attempts": 3, "backoff_us": 0, "backoff_max_us": 0, "retry_rejected": False,
        "key_window_us": None, "absent_after_us": None, "on_absent": "fail", "query_attempts": 2, "settle_within_us": 60 * S,
        "has_query": False, "independent": False,
    }  # fmt: skip
    return Policy(effect=Effect(effect), **{**defaults, **options})


class Step(NamedTuple):
    """One write of a slice. `later`: the policy after a deploy (the second owner's), made by the real `tighten`."""

    path: str
    policy: Policy
    later: Policy | None = None
    undoes: int | None = None
    within_us: int | None = None
    """Of a compensation: the step (its index) that it undoes, and its `compensate_deadline`."""

    @property
    def dedupes(self) -> bool:
        """Whether the other side makes one effect of all requests with one key."""
        return self.policy.effect == Effect.IDEM_WRITE

    @property
    def lag_us(self) -> int:
        """How long after it was sent a request may land, and its effect be missing from what the query sees."""
        if self.dedupes and self.policy.key_window_us is not None:
            return min(self.policy.absent_after_us or MARGIN, MARGIN)
        return self.policy.timeout_us if self.policy.absent_after_us is None else self.policy.absent_after_us


class Slice(NamedTuple):
    """One exhaustive exploration: which writes, and how often the world may do what. `broken`: assumptions that fail."""

    name: str
    says: str
    steps: tuple[Step, ...]
    may: Mapping[str, int]
    broken: frozenset[str] = frozenset()
    parallel: bool = False
    short: bool = False
    """Whether it belongs to the short form."""


# What a world may do, and the words of it in the printed bounds.
FAULTS = {
    "crash": "crashes of an owner",
    "owners": "owners",
    "stopped": "owners that are stopped, taken over and woken",
    "pause": "pauses of an owner that could act",
    "lost": "replies lost",
    "not_sent": "calls that did not leave the machine",
    "rejected": "refusals by the other side",
    "overrun": "calls that overrun their timeout and run on",
    "late": "requests that land after their call has ended",
    "lag": "look-backs that miss an effect",
    "pending": "look-backs answered `pending`",
    "unclear": "look-backs answered `unclear`",
    "several": "look-backs answered `several`",
    "slow": "look-backs that take time",
    "jump": "times that the wall clock is set",
    "reboot": "starts of the host anew",
    "restored": "backups that are restored",
    "looks": "look-backs",
    "handle": "handles recorded while the call runs",
    "answers": "answers of a person",
    "ticks": "instants to which time goes on",
}
FAULT = {name: index for index, name in enumerate(FAULTS)}

ASSUMPTIONS = {
    "absent_after": "a request may land, and an effect stay unseen, later than absent_after says",
    "key_window": "the other side forgets a key before key_window is over, or a request lands later than its margin",
    "pause": "a stopped owner sends what it was about to send after another has taken over, or after the call's timeout",
    "person": "a person says even_now, or is wrong where nobody can be asked",
    "clock": "the wall clock is set, and the host started anew: how long that was, only that clock says",
}


class Owner(NamedTuple):
    """A claim. `announced`: its TaskClaimed row is in the log (it goes with its first append)."""

    epoch: int
    alive: bool = True
    announced: bool = False


class Request(NamedTuple):
    """One call of a step's function, with the request that it makes.

    `fate`: ``none`` (not sent), ``out`` (it may land), ``landed``, ``echo`` (answered from the key's memory) or
    ``refused``. `held`: its owner still has the call. `overran`: its attempt was given up, its thread runs on.
    """

    step: int
    attempt: int
    key: bytes
    owner: int
    started: int
    free: bool
    sent_at: int | None = None
    fate: str = "none"
    held: bool = True
    overran: bool = False


class Asking(NamedTuple):
    """A look-back whose answer is on its way. `rows`: how many rows the log had when it was asked."""

    owner: int
    step: int
    started: int
    answer: str
    rows: int
    asked: Instant
    """When it was asked, as the store's clock said then."""


class State(NamedTuple):
    """What is, at one moment. `records` is the fold of `rows`, by step, as the newest claim sees it.

    `now` is the true time, by which the world goes; the store's clock is `at`.
    """

    now: int
    rows: tuple[Event, ...]
    records: tuple[StepRecord | None, ...]
    owners: tuple[Owner, ...]
    requests: tuple[Request, ...]
    effects: tuple[tuple[tuple[bytes, int], ...], ...]
    """By step: of each effect its key, and from when on every look-back sees it."""
    first_sent: tuple[tuple[bytes, int], ...]
    refused: frozenset[int]
    spent: tuple[int, ...]
    said: frozenset[tuple[int, str]]
    asking: Asking | None = None
    skew: int = 0
    """How far the wall clock is ahead of the true time."""
    boots: int = 0
    suspect: bool = False
    """Whether the log is a restored backup."""
    backup: tuple[Event, ...] | None = None
    kept: tuple[StepRecord | None, ...] = ()
    """The rows of a backup, and their fold."""

    @property
    def at(self) -> Instant:
        return Instant(self.now + self.skew, self.boots << BOOT_BITS | self.now)

    def true(self, wall: int) -> int:
        """When the wall clock will say so, if nobody sets it."""
        return wall - self.skew


class Violation(NamedTuple):
    """An invariant that does not hold, by its name, and what happened."""

    invariant: str
    what: str


class Move(NamedTuple):
    """One thing that may happen next: in words, and what is then (or what must never be)."""

    words: str
    state: State
    violation: Violation | None = None


def truly(at: Instant) -> int:
    """The true time of a moment: here the boot-time clock goes on counting over a boot."""
    return at.boot & ((1 << BOOT_BITS) - 1)


def start(explored: Slice) -> State:
    """One owner with a fresh claim, nothing logged, nothing sent."""
    none = tuple(() for _ in explored.steps)
    return State(
        1000 * S, (), tuple(None for _ in explored.steps), (Owner(1),), (), none, (), frozenset(), (0,) * len(FAULT), frozenset()
    )


def policy_now(explored: Slice, state: State, index: int) -> Policy:
    """The policy with which the newest claim decides: after a deploy the tightened one; of a compensation its deadline."""
    step = explored.steps[index]
    effective = step.later if step.later is not None and len(state.owners) > 1 else step.policy
    if step.undoes is not None and step.within_us is not None:
        origin = state.records[step.undoes]
        if origin is not None:  # a restored log may not know it
            effective = effective._replace(undo_by=Deadline(first_effect(origin).started, step.within_us))
    return effective


# ---------------------------------------------------------------- two states that are one


def canonical(explored: Slice, state: State) -> tuple[Any, ...]:
    """What the future of a state depends on, of plain values: times relative to now, rows only by their fold."""
    now, horizon = state.now, -100 * S

    def ago(at: int | None) -> int | None:
        return None if at is None else max(at - now, horizon)

    def moment(at: Instant | None) -> tuple[int, int | None] | None:
        if at is None:
            return None
        here = at.boot >> BOOT_BITS == state.boots
        return max(at.wall - now - state.skew, horizon), max(truly(at) - now, horizon) if here else None

    records = tuple(None if r is None else _record(explored, state, n, r, moment) for n, r in enumerate(state.records))
    requests = sorted(
        (q.step, q.attempt, q.key, q.owner, ago(q.started), q.free, ago(q.sent_at) or 0, q.fate, q.held, q.overran)
        for q in state.requests
    )
    effects = tuple(tuple(sorted((key, max(0, seen - now)) for key, seen in each)) for each in state.effects)
    first = tuple((key, ago(at)) for key, at in state.first_sent)
    owners = tuple(tuple(owner) for owner in state.owners)
    q = state.asking
    asking = None if q is None else (q.owner, q.step, ago(q.started), q.answer, q.rows == len(state.rows), moment(q.asked))
    world = (tuple(requests), effects, first, tuple(sorted(state.refused)), tuple(sorted(state.said)))
    kept: tuple[Any, ...] = ()
    if state.backup is not None:
        folded = (None if r is None else _record(explored, state, n, r, moment) for n, r in enumerate(state.kept))
        kept = (len(state.rows) > len(state.backup), *folded)
    return records, owners, world, state.spent, asking, state.suspect, kept


def _record(
    explored: Slice, state: State, index: int, r: StepRecord, moment: Callable[[Instant | None], tuple[int, int | None] | None]
) -> tuple[Any, ...]:
    cases = tuple(map(str, r.cases.values()))
    if r.settled:  # it changes no more, but for late news of attempts that somebody still calls
        owed = any(step.undoes == index for step in explored.steps)
        began = moment(first_effect(r).started) if owed and r.attempts else None
        numbers = tuple(a.number for a in r.attempts) if any(q.step == index for q in state.requests) else ()
        return str(r.status), cases, began, numbers
    since = 1 << 62 if r.answer is None else r.answer.seq
    number = r.attempts[-1].number if r.attempts else 0
    looks = tuple(
        (k.answer, moment(k.started), moment(k.finished), k.epoch == r.epoch, k.seq > since, k.attempt == number)
        for k in r.looks
        if k.attempt == number or k.seq > since
    )
    attempts = tuple(
        (a.outcome, a.generation, moment(a.started), moment(a.call_ended), a.cleared, a.code, a.epoch == r.epoch)
        for a in r.attempts
    )
    answer = None if r.answer is None else tuple(r.answer[1:3])
    return (
        str(r.status), attempts, looks, cases, answer, r.evidence, r.granted, r.granted_until, r.absent, r.generation,
        moment(r.settle_from), len(r.keys), len(r.handles), r.suspect,
    )  # fmt: skip
