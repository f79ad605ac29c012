"""The invariants of the design, by name, as far as they speak of one or two steps; asked of every move.

Where a person took the risk (`even_now`, or a word about a step that nobody can be asked about), the doubling is
that person's; `broken={"person"}` takes that exemption away, and the explorer has to find it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from doubtless.changes import CaseClosed, CaseOpened, project
from doubtless.events import STEP_MOVES, Effect, Event, Kind, StepStatus
from doubtless.fold import Moves, StepRecord, fold_steps
from doubtless.protocol import Action, WaitUntil

from .world import Slice, State, Violation, policy_now, truly


def persons_risk(explored: Slice, state: State, index: int) -> bool:
    """Whether a person said something about this step that no look-back was to check."""
    said = {word for step, word in state.said if step == index}
    unasked = not explored.steps[index].policy.has_query
    return (
        "unchecked" in said
        or "even_now" in said
        or "fail even_now" in said
        or (unasked and bool(said & {"retry", "fail did_not_happen"}))
    )


def may_land(state: State, index: int, lags: Sequence[int], *, besides: int = -1, unless_key: bytes | None = None) -> str | None:
    """Which attempt of a step may still land, in words; None when no call can."""
    for number, q in enumerate(state.requests):
        if q.step != index or number == besides or (unless_key is not None and q.key == unless_key):
            continue
        if q.fate == "out" and q.sent_at is not None and state.now < q.sent_at + lags[index]:
            return f"attempt {q.attempt} may still land"
        if q.fate == "none" and q.held and state.owners[q.owner].alive:
            return f"attempt {q.attempt} is still called and may be sent"
    return None


def at_sending(explored: Slice, state: State, number: int, lags: Sequence[int], broken: Collection[str]) -> Violation | None:
    """I1, I2, I5, I7: asked when a request is about to leave."""
    call = state.requests[number]
    step = explored.steps[call.step]
    began = [
        row for row in state.rows
        if row.path == step.path and row.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED) and row.attempt == call.attempt
    ]  # fmt: skip
    if not began:
        return Violation("I1", f"attempt {call.attempt} is sent, and no row says that it began")
    keys = [
        r.idempotency_key for r in state.rows if r.path == step.path and r.idempotency_key and r.event_seq <= began[0].event_seq
    ]
    if call.key != keys[-1]:
        return Violation("I5", f"attempt {call.attempt} sends another key than its intent has")
    if step.undoes is not None:
        origin = state.records[step.undoes]
        if origin is None or origin.status not in (StepStatus.DONE, StepStatus.COMPENSATED):
            return Violation("I7", "a compensation is sent for what is not proven done")
        undo_by = policy_now(explored, state, call.step).undo_by
        allowed = any(r.kind == Kind.RETRY_ALLOWED and r.path == step.path for r in state.rows)
        if undo_by is not None and not allowed and not call.overran and state.now >= truly(undo_by.since) + undo_by.within_us:
            return Violation("I7", "a compensation is sent after its deadline")
    protected = call.key if step.dedupes else None
    other = may_land(state, call.step, lags, besides=number, unless_key=protected)
    if broken:  # with an assumption taken away the story goes on to the double itself
        return None
    if other is not None and not (call.free or persons_risk(explored, state, call.step)):
        return Violation("I2", f"attempt {call.attempt} is sent while {other}")
    return None


def at_landing(explored: Slice, state: State, index: int, broken: Collection[str]) -> Violation | None:
    """I2, counted outside: one intent, one effect."""
    if len(state.effects[index]) < 2 or ("person" not in broken and persons_risk(explored, state, index)):
        return None
    return Violation("I2", f"step {explored.steps[index].path} has {len(state.effects[index])} effects")


def at_waiting(explored: Slice, state: State, index: int, action: Action) -> Violation | None:
    """I6: a doubt is being settled, at a time to come, or in the inbox; none is for ever."""
    record = state.records[index]
    if record is None or not isinstance(action, WaitUntil):
        return None
    ends = state.true(action.at)
    if ends <= state.now:
        return Violation("I6", f"it waits for a moment that is over: {action.why}")
    if record.in_flight is not None:
        if not any(q.step == index and q.held for q in state.requests):
            return Violation("I6", "it waits for a call that nobody has")
        return None
    policy = policy_now(explored, state, index)
    if record.settle_from is not None and record.doubt_case is None and record.answer is None:
        if ends > truly(record.settle_from) + policy.settle_within_us and "clock" not in explored.broken:
            return Violation("I6", f"it waits beyond settle_within, and no case is open: {action.why}")
    return None


def between(explored: Slice, before: State, after: State) -> Violation | None:
    """I3, I4, I5, I7, I8, I9, and `never done in the log and absent in the world`: asked of the rows that a move wrote."""
    rows = after.rows[len(before.rows) :]
    if not rows:
        return None
    cases = {case for record in before.records if record is not None for case in record.cases}
    for row in rows:
        if row.epoch is not None and row.kind != Kind.EVIDENCE_STORED and row.epoch != before.owners[-1].epoch:
            return Violation("I4", f"a row of claim {row.epoch} is in the log after claim {before.owners[-1].epoch}: {row.kind}")
        for change in project(row):
            if isinstance(change, CaseOpened):
                cases.add(change.case_id)
            elif isinstance(change, CaseClosed):
                if change.case_id not in cases:
                    return Violation("I8", f"case {change.case_id} is settled twice")
                cases.remove(change.case_id)
    if cases != {case for record in after.records if record is not None for case in record.cases}:
        return Violation("I9", "the cases that a store keeps are not those of the fold")
    for index, (was, now) in enumerate(zip(before.records, after.records, strict=True)):
        if was is not now and now is not None:
            wrong = _moved(explored, before, after, rows, index, was, now)
            if wrong is not None:
                return wrong
    return None


def _moved(
    explored: Slice, before: State, after: State, rows: Sequence[Event], index: int, was: StepRecord | None, now: StepRecord
) -> Violation | None:
    path = explored.steps[index].path
    status_before = None if was is None else StepStatus(was.status)
    if now.status != status_before and now.status not in STEP_MOVES[status_before]:
        watch = Moves()
        illegal = [move for row in after.rows for move in watch.add(row)]
        if illegal:
            return Violation("I3", f"the status of step {path} moved from {illegal[0][1]} to {illegal[0][2]}")
    if was is not None and was.settled and (was.output_ref, was.error) != (now.output_ref, now.error):
        return Violation("I3", f"what step {path} was settled with has changed")
    if was is not None and was.keys != now.keys[: len(was.keys)]:
        return Violation("I5", f"the key of step {path} has changed")
    if was is not None and len(now.keys) > max(1, len(was.keys)) and not any(a.outcome == "rejected" for a in was.attempts):
        return Violation("I5", f"the key of step {path} moved to its next generation without a rejection")
    if was is not None and was.answer is not None and len(now.attempts) > len(was.attempts) and now.answer is not None:
        return Violation("I8", f"an answer about step {path} has acted, and can act again")
    begun = was is None or not was.keys
    if begun and any(r is not None and r.in_doubt and n != index for n, r in enumerate(before.records)):
        return Violation("rule 8", f"step {path} begins beside a doubt")
    step = explored.steps[index]
    if begun and step.undoes is not None:
        origin = before.records[step.undoes]
        if origin is None or origin.status != StepStatus.DONE:
            return Violation("I7", f"a compensation begins for a step that is {origin and origin.status}")
    if now.settled and (was is None or not was.settled) and now.effect != Effect.READ:
        return _settled(explored, after, rows, index, now)
    return None


def _settled(explored: Slice, after: State, rows: Sequence[Event], index: int, now: StepRecord) -> Violation | None:
    """What the log says of the world, once settled, is so."""
    path = explored.steps[index].path
    if now.status == StepStatus.DONE and not after.effects[index]:
        return Violation("done means done", f"step {path} is done in the log and absent in the world")
    if now.status == StepStatus.NOT_APPLIED and not persons_risk(explored, after, index) and not explored.broken:
        if after.effects[index]:
            return Violation("not_applied means so", f"step {path} is settled as not_applied, and its effect is there")
        lags = [step.lag_us for step in explored.steps]
        other = may_land(after, index, lags)
        if other is not None:
            return Violation("not_applied means so", f"step {path} is settled as not_applied while {other}")
    whole = fold_steps(after.rows, after.owners[-1].epoch)
    if any(
        (whole[p.path].status if p.path in whole else None) != (r and r.status)
        for p, r in zip(explored.steps, after.records, strict=True)
    ):
        return Violation("I9", "folding step by step and folding the task give two answers")
    return None
