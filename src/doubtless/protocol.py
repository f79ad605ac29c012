"""The protocol: one pure function says what may be done next with a step. Read this file first.

    decide(policy, record, now) -> Reuse | Call | LookBack | WaitUntil | AskHuman | Fail

`policy` is the step's effective policy, `record` the fold of all its rows (None: nothing is logged), `now` the
store's clock. No I/O, no clock, no user code: `executor.py` is the loop over it, and the drivers are loops over that.

The table, for what the log says (DESIGN, section 3):

    nothing, or all cleared       Call
    done, or a late success       Reuse
    gravest is not_sent           Call again after the backoff, same key
    gravest is rejected           Fail, or with `retry_rejected` Call under the key's next generation
    gravest is unknown            read: Call again; idem_write: Call, same key, while inside `key_window`;
                                  else LookBack if there is a query, else AskHuman
    budget used up                unknown: LookBack, else AskHuman; cleared: AskHuman; otherwise Fail
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, NamedTuple

from .effects import Policy
from .errors import StepFailure
from .events import FOREVER, Effect, Instant, StepStatus, elapsed_least, elapsed_most
from .fold import NOT_UNDOABLE, Attempt, Look, StepRecord

SECOND = 1_000_000


class Reuse(NamedTuple):
    """The step is done: its output stands. `attempt`: a late success of this attempt has to be recorded first."""

    output_ref: str | bytes | None
    attempt: int | None = None


class Call(NamedTuple):
    """Write the attempt's row (of a write), then call. `allow`: a person's permission to retry acts with it."""

    attempt: int
    next_generation: bool = False
    allow: bool = False


class LookBack(NamedTuple):
    """Ask the other system what happened."""

    why: str


class WaitUntil(NamedTuple):
    """Nothing may be done before this time of the store's clock (microseconds)."""

    at: int
    why: str


class AskHuman(NamedTuple):
    """Only a person can know: open a case, unless one is open."""

    why: str
    anew: bool = False
    """True: what was seen makes the person's last answer void; a new case shows it."""


class Fail(NamedTuple):
    """The step is given up: a write settles as `not_applied`, a read as `failed`."""

    kind: StepFailure
    code: str = ""
    detail: Any = ""
    settled: bool = False
    """True: the log says so already."""


Action = Reuse | Call | LookBack | WaitUntil | AskHuman | Fail

FIRST = Call(1)
"""What may be done where nothing is logged."""


def decide(policy: Policy, record: StepRecord | None, now: Instant) -> Action:
    """What may be done next with this step."""
    if record is None:
        return FIRST if time_left(policy, now) else AskHuman(TOO_LATE)
    if record.status in (StepStatus.DONE, StepStatus.COMPENSATED):
        return Reuse(record.output_ref)
    if record.settled:
        error = json.loads(record.error or "{}")
        return Fail(error.get("kind", "not_applied"), error.get("code", ""), error.get("detail", ""), settled=True)
    if record.evidence is not None:  # rule 12: a success of any attempt settles what is unsettled
        return Reuse(record.evidence[1], record.evidence[0])
    if record.in_flight is not None:
        return WaitUntil(now.wall + policy.timeout_us, "its call is in flight")
    if policy.effect == Effect.READ:
        return _read(policy, record, now)
    if record.answer is not None:
        return _answered(policy, record, now)
    action = _by_the_deadline(policy, record, now, _write(policy, record, now))
    if record.undoes and isinstance(action, Fail):  # no machine lets an effect stand
        return AskHuman(f"it was not undone: {action.code or action.kind}" + (f" ({action.detail})" if action.detail else ""))
    return _in_time(policy, record, now, action)


def _read(policy: Policy, record: StepRecord, now: Instant) -> Action:
    last = record.attempts[-1] if record.attempts and not record.attempts[-1].cleared else None
    if last is None:
        return Call(len(record.attempts) + 1)
    if last.outcome == "rejected" and not policy.retry_rejected:
        return Fail("rejected", last.code, last.detail)
    return _call(policy, record, now, last) or _used_up(last)


def _write(policy: Policy, record: StepRecord, now: Instant) -> Action:
    last = record.attempts[-1]
    match record.gravest:
        case "not_sent":
            return _call(policy, record, now, last) or _used_up(last)
        case "rejected" if not policy.retry_rejected or last.code == NOT_UNDOABLE:
            worst = next(a for a in record.current if a.outcome == "rejected")
            return Fail("rejected", worst.code, worst.detail)
        case "rejected":
            return _call(policy, record, now, last, next_generation=True) or _used_up(last)
        case "unknown":
            may = _inside_key_window(policy, record, now) and not record.shown_nothing and time_left(policy, now) > 0
            resend = _call(policy, record, now, last) if may else None
            return resend or _look(policy, record, now)
        case _:  # all cleared: proven absent, or a person said so
            if policy.on_absent == "fail" and record.absent:
                return Fail("not_applied", "absent", "the look-back proved that it did not happen")
            again = _call(policy, record, now, None, next_generation=_refused(record))
            return again or AskHuman("it did not happen, and the attempts are used up")


def _call(
    policy: Policy, record: StepRecord, now: Instant, after: Attempt | None, *, next_generation: bool = False
) -> Action | None:
    """Call again, once the backoff after that attempt is over; None when the budget is used up (rule 5)."""
    if len(record.attempts) >= max(policy.attempts + record.granted, record.granted_until):
        return None
    if after is not None and after.ended is not None:
        wait = max(backoff(policy, record, len(record.attempts)), after.retry_after_us or 0)
        left = wait - elapsed_most(after.ended, now)  # a clock set back makes no pause longer
        if left > 0:
            return WaitUntil(now.wall + left, "the backoff before the next attempt")
    return Call(len(record.attempts) + 1, next_generation)


def _refused(record: StepRecord) -> bool:
    """Whether the other side has refused the current key, and may remember that."""
    return any(a.outcome == "rejected" and a.generation == record.generation for a in record.attempts)


def _used_up(last: Attempt) -> Fail:
    return Fail("exhausted", last.code, last.detail)


def _inside_key_window(policy: Policy, record: StepRecord, now: Instant) -> bool:
    """Whether a call that starts when the backoff is over surely ends while the other side knows the key."""
    if policy.effect != Effect.IDEM_WRITE or record.suspect:
        return False
    if policy.key_window_us is None:
        return True
    first = next(a for a in record.attempts if a.generation == record.generation)
    wait = _call(policy, record, now, record.attempts[-1])
    start = max(0, wait.at - now.wall) if isinstance(wait, WaitUntil) else 0
    margin = max(5 * SECOND, policy.key_window_us // 100)  # rule 11
    return elapsed_most(first.started, now) + start + policy.timeout_us + margin < policy.key_window_us


def key_forgotten(policy: Policy, record: StepRecord, now: Instant) -> bool:
    """Whether a resend that stands on its key came too late: between `decide` and the call its window has ended (rule 11)."""
    stands_on_key = policy.effect == Effect.IDEM_WRITE and policy.key_window_us is not None and record.gravest == "unknown"
    return stands_on_key and not _inside_key_window(policy, record, now)


def _look(policy: Policy, record: StepRecord, now: Instant) -> Action:
    """A doubt: ask the other system; where it cannot answer, a person."""
    if not policy.has_query:
        return AskHuman("nobody can be asked whether it happened: the step has no query")
    looks = record.recent_looks()
    if not looks or (record.doubt_case and looks[-1].epoch != record.epoch):
        return LookBack("a doubt: ask first")
    last = looks[-1]
    match last.answer:
        case "several":
            return AskHuman("the query found several")
        case "pending":
            wait = last.look_again_us or _pause(policy, record, len(looks))
            return _look_at(wait - elapsed_most(last.finished, now), now, "the other side is still working on it")
        case "no_effect":  # it counts once no call under that key can still land
            return _look_at(_until_quiet(policy, record, last, now), now, "a call under its key may still land")
        case "absent" if policy.absent_after_us is None and not record.handles:
            return AskHuman("the query found nothing, and no absent_after says when that is proof")
        case "absent" if not record.handles:
            return _look_at(_until_absence_counts(policy, record, looks, now), now, "an absence is no proof yet")
        case _:
            unclear = sum(look.answer == "unclear" or (look.answer == "absent" and bool(record.handles)) for look in looks)
            if unclear >= policy.query_attempts:
                return AskHuman("the query gave no clear answer")
            wait = _pause(policy, record, unclear)
            return _look_at(wait - elapsed_most(last.finished, now), now, "the query was unclear")


def _pause(policy: Policy, record: StepRecord, looks: int) -> int:
    """The wait between two looks: the backoff, and never none at all."""
    return backoff(policy, record, looks) or SECOND


def _look_at(left: int, now: Instant, why: str) -> Action:
    return WaitUntil(now.wall + left, why) if left > 0 else LookBack(why)


def _until_quiet(policy: Policy, record: StepRecord, last: Look, now: Instant) -> int:
    """Microseconds until no call under the key can land any more; while one runs: until the next look."""
    quiet = record.quiet_for(now, policy.timeout_us)
    if quiet is None:
        wait = _pause(policy, record, len(record.looks))
        return wait - elapsed_most(last.finished, now)
    return landing_time(policy) - quiet


def _until_absence_counts(policy: Policy, record: StepRecord, looks: list[Look], now: Instant) -> int:
    """Microseconds until the next look that can prove an absence."""
    proofs = absences(policy, record, looks)
    if not proofs:
        return _until_quiet(policy, record, looks[-1], now)
    return absence_gap(policy) - elapsed_least(proofs[0].started, now)


def landing_time(policy: Policy) -> int:
    """How long after the last possible send something may still land, as the step declares it."""
    return policy.timeout_us if policy.absent_after_us is None else policy.absent_after_us


def absence_gap(policy: Policy) -> int:
    """How far apart two absents must have started: a guard against flapping, not a proof."""
    return max(SECOND, (policy.absent_after_us or 0) // 4)


def absences(policy: Policy, record: StepRecord, looks: list[Look]) -> list[Look]:
    """The unbroken run of latest absents that each started when an absence was proof already."""
    after = policy.absent_after_us
    if after is None or record.handles:
        return []
    proofs: list[Look] = []
    for look in reversed(looks):
        quiet = record.quiet_for(look.started, policy.timeout_us)
        if look.answer != "absent" or quiet is None or quiet < after:
            break
        proofs.insert(0, look)
    return proofs


def counts(policy: Policy, record: StepRecord, look: Look) -> bool:
    """Whether this look-back, the newest, settles the doubt: a second proven absence, or a final no effect."""
    if look.answer == "no_effect":
        quiet = record.quiet_for(look.started, policy.timeout_us)
        return quiet is not None and quiet >= landing_time(policy)
    if look.answer != "absent":
        return False
    proofs = absences(policy, record, [*record.recent_looks(), look])
    return len(proofs) >= 2 and elapsed_least(proofs[0].started, look.started) >= absence_gap(policy)


def _answered(policy: Policy, record: StepRecord, now: Instant) -> Action:
    """A person said that it did not happen: that acts when nothing can land any more, and after a fresh look."""
    answer = record.answer
    assert answer is not None
    if not answer.even_now:
        quiet, settle = record.quiet_for(now, policy.timeout_us), landing_time(policy)
        if quiet is None and record.current:
            return WaitUntil(now.wall + policy.timeout_us, "the answer acts when the running call has ended")
        if quiet is not None and quiet < settle:
            return WaitUntil(now.wall + settle - quiet, "the answer acts when nothing can land any more")
        if policy.has_query and quiet is not None:
            since = [k for k in record.looks if k.seq > answer.seq]
            fresh = [k for k in since if (record.quiet_for(k.started, policy.timeout_us) or 0) >= settle]
            if not fresh:
                return LookBack("a fresh look before the answer acts")
            if fresh[-1].answer in ("pending", "several"):
                return AskHuman(f"the fresh look said {fresh[-1].answer}: the answer is void", anew=True)
    if answer.then == "retry":
        return Call(len(record.attempts) + 1, _refused(record), allow=True)
    return Fail("not_applied", "did_not_happen", f"said by {answer.by}")


def _by_the_deadline(policy: Policy, record: StepRecord, now: Instant, action: Action) -> Action:
    """`settle_within`: from then on a case is open, whatever else is going on (I6)."""
    if record.doubt_case or record.settle_from is None or isinstance(action, AskHuman | Fail):
        return action
    left = policy.settle_within_us - elapsed_most(record.settle_from, now)
    if left <= 0:
        return AskHuman("it is not settled within settle_within")
    if isinstance(action, WaitUntil) and action.at > now.wall + left:
        return WaitUntil(now.wall + left, action.why)
    return action


TOO_LATE = "compensate_deadline is over: nothing is sent any more"
KEY_OVER = "the key's window ended before it could be sent again; it was not sent"


def time_left(policy: Policy, now: Instant) -> int:
    """Microseconds for which a compensation may still be sent; never negative, and endless without a deadline."""
    if policy.undo_by is None:
        return FOREVER
    return max(0, policy.undo_by.within_us - elapsed_most(policy.undo_by.since, now))


def _in_time(policy: Policy, record: StepRecord, now: Instant, action: Action) -> Action:
    """`compensate_deadline`: after it nothing is sent and a case is open; what may have landed is still settled (I7)."""
    if policy.undo_by is None:
        return action
    left = time_left(policy, now)
    if left or isinstance(action, AskHuman):
        return WaitUntil(min(action.at, now.wall + left), action.why) if isinstance(action, WaitUntil) else action
    if isinstance(action, Call) or record.doubt_case is None or record.gravest != "unknown":
        return AskHuman(TOO_LATE)
    return action


def backoff(policy: Policy, record: StepRecord, failures: int) -> int:
    """The wait after that many failures: doubling, bounded, with jitter that is the same after a crash."""
    base: int = min(policy.backoff_us << max(0, min(failures, 30) - 1), policy.backoff_max_us)
    seed = sha256((record.keys[-1] if record.keys else record.input_hash or b"") + bytes([failures & 255])).digest()
    return base * (75 + seed[0] * 50 // 255) // 100
