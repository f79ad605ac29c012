"""One step: the loop over `protocol.decide`, written once as a generator.

`run_step` yields what it cannot do itself (call user code, wait) and is told what came of it; `drivers` has the sync and
async loops around it. Appending is done at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, assert_never

from . import canonical
from .calls import PLAIN, Frame, Input, Overran, Raised, Reply, Request, Returned, Run, Runtime, StepLoop, Wait
from .canonical import encode, idempotency_key
from .effects import Policy, StepDefinition, tighten
from .errors import DoubtlessError, Frozen, KeyHeld, Moved, StepFailed, StoreUnavailable, UsageError
from .events import READ, UNDO, CaseKind, Effect, Event, Instant, Kind, StepStatus, draft, dump, intent_row
from .fold import StepRecord
from .holders import intent_data, take_key
from .inputs import call_params, stored_input
from .lookback import look_back
from .outcomes import Outcome, classify_raised, classify_returned
from .outputs import Output, replayed
from .protocol import KEY_OVER, TOO_LATE, AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, decide, key_forgotten, time_left
from .recording import closing_rows, key_data, record_outcome, record_result, settled_rows, tell_cases
from .repeats import settle_repeat
from .store.base import Blob, Leases
from .undoing import heard


def run_step(
    run: Run, definition: StepDefinition | None, path: str, given: Input | None, *, name: str = "", shares: bool = False
) -> StepLoop:  # fmt: skip
    """Bring the step at `path` to its end: returns its output, or raises StepFailed or Parking.

    `given` None settles what is in doubt before task code runs: it returns as soon as nothing is in doubt. `shares`: the
    driver waits for rows that share a commit (`Frame.flight`), before it calls and before it hands the output on.
    """
    log, runtime = run.log, run.runtime
    step = definition.name if definition is not None else name
    polls = 0
    while True:
        run.check()
        seen = log.seq
        record = log.record(path)
        if record is None and path in log.settled:
            return None if given is None else replayed(run, definition, path, log.settled_at(path))
        if not log.sure:
            log.make_sure()
        if record is not None and record.undoes and not record.keys:
            record = None  # a compensation that could not begin before: all that there is of it are cases
        policy, lost = effective(runtime, definition, record)
        if log.undo_by is not None or path[0] == UNDO:
            policy = policy._replace(undo_by=log.deadline(path))
        if record is not None and record.in_doubt and lost and not record.evidence and not record.answer:
            yield from ask(run, record, f"gone from the table since the intent: {', '.join(lost)}")
            continue
        if record is None and given is not None and definition is not None and policy.effect != READ:
            other = log.given_up_beside(path, step, given.digest)
            if other is not None:
                settle_repeat(run, definition, path, given, other)
                continue
        if run.suspect and definition is not None and policy.effect != READ and (record is None or not record.suspect):
            said = record is not None and record.answer is not None  # it may have acted since the backup was made: void
            if said or (given is not None and (record is None or not record.settled)):
                turn = 0
                if record is None and given is not None and given.once is not None:
                    turn, polls = (yield from take_key(run, definition, path, given, polls)), polls + 1
                    if not turn:
                        continue
                begin_suspect(run, definition, path, given, record, turn)
                continue
        now = runtime.store.now()
        action = decide(policy, record, now)
        if (given is None or run.cancelled(path)) and (record is None or not (record.in_doubt or record.evidence)):
            if given is None:
                return None
            raise run.park_cancelled()
        if definition is None and record is not None and isinstance(action, Call | LookBack):
            yield from ask(run, record, "the step is gone from the table", anew=record.answer is not None)
            continue
        match action:
            case Call():
                if record is None and log.open and not policy.independent and run.blocked_by_doubt(path):  # rule 8
                    yield Wait(now.wall + min(50_000 << polls, 1_000_000), "another step is in doubt", branches=True)
                    polls = min(polls + 1, 10)
                    continue
                assert definition is not None
                turn = 0
                if record is None and given is not None and given.once is not None:
                    turn, polls = (yield from take_key(run, definition, path, given, polls)), polls + 1
                    if not turn:
                        continue  # it waited for the holder, or the step is settled by what the holder did
                frame = begin_call(run, definition, policy, path, given, record, action, now, turn, shares=shares)
                if frame is not None:
                    try:
                        reply = yield frame
                    except StoreRefusal as refusal:  # its row was not written, and nothing was called
                        unwritten(run, definition, refusal)
                        continue
                    if reply is None:  # it is too late for it, which is recorded
                        continue
                    done = finish_call(frame, reply)
                    if done is not None:
                        return done[0]
            case LookBack():
                assert definition is not None and record is not None
                yield from look_back(run, definition, policy, record)
            case WaitUntil():
                run.offer_late()
                yield Wait(action.at, f"{step} at {path}: {action.why}", seen=seen, since=now)
            case AskHuman() if record is None:
                assert definition is not None
                ask_unsent(run, definition, path, given, action.why)
            case AskHuman():
                assert record is not None
                yield from ask(run, record, action.why, anew=action.anew)
            case Reuse():
                assert record is not None
                settle_reused(run, record, action)
            case Fail():
                assert record is not None
                settle_failed(run, definition, record, action, given)
            case _:
                assert_never(action)


def due(run: Run, definition: StepDefinition, path: str) -> int | None:
    """When the step at `path` has something to do again; None: at once, or it has not begun."""
    record = run.log.record(path)
    if record is None:
        return None
    action = decide(effective(run.runtime, definition, record)[0], record, run.runtime.store.now())
    return action.at if isinstance(action, WaitUntil) else None


def effective(runtime: Runtime, definition: StepDefinition | None, record: StepRecord | None) -> tuple[Policy, tuple[str, ...]]:
    """The policy that decides: the definition's, of an open intent the stricter of both (rule 10)."""
    if record is None or record.policy_digest is None:
        if definition is None:
            raise UsageError("the step is gone from the table")
        return definition.effective, ()
    if definition is not None and record.policy_digest == definition.definition_hash:
        return definition.effective, ()
    frozen = canonical.decode(runtime.content.get(record.policy_digest))
    return tighten(frozen, definition, runtime.known())


def begin_call(
    run: Run, definition: StepDefinition, policy: Policy, path: str, given: Input | None, record: StepRecord | None,
    action: Call, started: Instant, turn: int = 0, shares: bool = False,
) -> Frame | None:  # fmt: skip
    """Make the attempt durable (I1) and say what to call; None: the log or the business key has moved, decide again.

    `turn`: of a first attempt with a business key, the turn that it takes. `shares`: it is durable when its
    `Frame.flight` has landed, for which the driver waits before it calls.
    """
    # What cannot be called is said before a row is written: a param of another type, a secret without a value.
    kwargs = call_params(run.runtime, definition, stored_input(run.runtime, given, record))
    rows: Sequence[Event] = ()
    blobs: Sequence[Blob] = ()
    if policy.effect == READ:
        step_seq = record.step_seq if record is not None else run.log.next_step_seq()
    else:
        if record is None:
            assert given is not None
            key = idempotency_key(run.runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
            step_seq = run.log.next_step_seq()
            row, blobs = intent(run, definition, path, given, step_seq, key, started, turn)
            rows = (row,)
        else:
            step_seq = record.step_seq
            key, rows = next_attempt(run, definition, record, action, started)
        if definition.takes_key:
            kwargs["idempotency_key"] = key.hex()
    fn = definition.fn
    if definition.binder.positional_only:
        args, kwargs = definition.binder.arguments(kwargs)
        fn = partial(fn, *args)
    frame = Frame(run, "call", path, definition, step_seq, action.attempt, policy, given, record, started, fn, kwargs)
    frame.allowed, frame.shares = action.allow, shares
    if rows:
        try:
            if shares:
                frame.flight = run.log.submit(*rows, guard=definition.name, blobs=blobs)
            else:
                run.log.append(*rows, guard=definition.name, blobs=blobs)  # I1: the row before the call, nothing in between
        except StoreRefusal as refusal:
            unwritten(run, definition, refusal)
            return None
        if frame.flight is not None:
            frame.landed = False
            return frame  # its driver asks `may_call` when the row has landed
        leases = run.runtime.leases
        if leases is not None and not outlives(leases, frame):
            return None
    return frame if (policy.undo_by is None and record is None) or in_time(frame) else None


def may_call(frame: Frame) -> bool:
    """Whether the call whose row has landed may be made now; where not, that is recorded. Raises: StaleEpoch."""
    leases = frame.run.runtime.leases
    return (leases is None or outlives(leases, frame)) and in_time(frame)


def in_time(frame: Frame) -> bool:
    """Whether it is not too late for this call, asked right before it: a commit, or params that are read, may take long."""
    policy, record, runtime = frame.policy, frame.record, frame.run.runtime
    if frame.allowed:
        return True
    if policy.undo_by is not None and not time_left(policy, runtime.store.now()):
        record_outcome(frame, Outcome("not_sent", "deadline", TOO_LATE, None))
        return False
    if record is not None and key_forgotten(policy, record, runtime.store.now()):
        record_outcome(frame, Outcome("not_sent", "key_window", KEY_OVER, None))
        return False
    return True


def outlives(leases: Leases, frame: Frame) -> bool:
    """Whether the claim's lease lasts longer than this call may; where nobody can say, the call is not made, and so recorded.

    Raises: StaleEpoch: another owner has the task. The attempt's row stands; what it would have sent was never sent.
    """
    try:
        leases.outlive(frame.run.task_id, frame.run.log.epoch, frame.policy.timeout_us)
    except StoreUnavailable as error:
        record_outcome(frame, Outcome("not_sent", "lease", f"the lease could not be renewed: {error.message}", None))
        return False
    return True


StoreRefusal = (Moved, KeyHeld, Frozen)
"""What an attempt's row is refused as when somebody else was faster: nothing is called."""


def unwritten(run: Run, definition: StepDefinition, refusal: DoubtlessError) -> None:
    """An attempt's row was refused: decide again, or park while the step is frozen."""
    if isinstance(refusal, Frozen):
        raise run.park(f"frozen: {refusal.message}", frozen=definition.name) from None


def finish_call(frame: Frame, reply: Reply) -> tuple[Any] | None:
    """Record what came of the call. The output in a tuple, or None: decide again."""
    if frame.finished is not None:
        (done, error), frame.finished = frame.finished, None
        if error is not None:
            raise error
        return done
    run, definition = frame.run, frame.definition
    if frame.path[0] == UNDO or UNDO in run.task_id:
        said = heard(run.task_id, frame.path, reply)
        if isinstance(said, Outcome):
            record_outcome(frame, said)
            return None
        reply = said
    if isinstance(reply, Returned):
        if type(reply.value) in PLAIN and definition.classify is None:
            return (record_result(frame, reply.value),)
        outcome = classify_returned(reply.value, **_circumstances(definition, run, frame.path))
        if outcome is None:
            return (record_result(frame, reply.value),)
    elif isinstance(reply, Raised) and not reply.entered:
        if definition.effect == READ:
            raise reply.error  # nothing was asked: nothing to record
        outcome = Outcome("not_sent", "interrupted", "interrupted before the function was entered", None)
    elif isinstance(reply, Raised):
        outcome = classify_raised(reply.error, **_circumstances(definition, run, frame.path))
    else:
        outcome = timed_out(frame.policy.timeout_us)
    record_outcome(frame, outcome, running=isinstance(reply, Overran | Raised) and reply.running)
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        run.park(f"{definition.name} at {frame.path} was interrupted: {type(reply.error).__name__}")
        raise reply.error  # rule 7: recorded, then raised on unchanged
    return None


def timed_out(timeout_us: int) -> Outcome:
    """The outcome of a call that its timeout took away: nobody knows."""
    return Outcome("unknown", "timeout", f"no answer within {timeout_us / 1e6:g} s", None)


def next_attempt(
    run: Run, definition: StepDefinition, record: StepRecord, action: Call, now: Instant
) -> tuple[bytes, list[Event]]:  # fmt: skip
    """The key that a later attempt of a write sends, and the rows that have to be durable before it is called."""
    log, runtime = run.log, run.runtime
    rows: list[Event] = []
    common: dict[str, Any] = {"step_seq": record.step_seq, "path": record.path, "step_name": record.name, "epoch": log.epoch}
    if action.allow:
        answer = record.answer
        data = {"why": "did_not_happen", "by": answer.by if answer else ""}
        rows.append(draft(run.task_id, Kind.RETRY_ALLOWED, now, status=StepStatus.UNCERTAIN, data=data, **common))
    new_key: bytes | None = None
    if action.next_generation:
        params = canonical.decode(runtime.content.get(record.input_ref))
        hidden = definition.volatile | definition.secret
        key_text = encode({k: v for k, v in params.items() if k not in hidden})
        new_key = idempotency_key(runtime.namespace, run.task_id, record.path, record.name, key_text, record.generation + 1)
    rows.append(
        draft(
            run.task_id,
            Kind.ATTEMPT_STARTED,
            now,
            status=StepStatus.UNCERTAIN,
            attempt=action.attempt,
            idempotency_key=new_key,
            started_at=now.wall,
            **common,
        )  # fmt: skip
    )
    return new_key or record.keys[-1], rows


def intent(
    run: Run,
    definition: StepDefinition,
    path: str,
    given: Input,
    step_seq: int,
    key: bytes,
    now: Instant,
    turn: int = 0,
    error: str | None = None,
) -> tuple[Event, Sequence[Blob]]:
    """The intent's row, and the contents that it names."""
    content = run.runtime.content
    try:
        ref, blob = content.put(given.text)
    except StoreUnavailable as full:
        said = f"task {run.task_id}: {definition.name} at {path} was not called, nothing was sent: its params cannot be stored"
        raise StoreUnavailable(f"{said}: {full.message}", hint=full.hint, written=False) from full
    blobs = [] if blob is None else [blob]
    if not content.known(definition.definition_hash):
        blobs.append(Blob(definition.definition_hash, definition.policy_text.encode()))
    data = definition.definition_hash if given.once is None else intent_data(definition, given.once, turn)
    log = run.log
    row = intent_row(
        run.task_id, now, step_seq, path, definition.name, definition.effect, key, given.digest, ref, data, log.epoch, error,
        log.seq + 1, log.hash,
    )  # fmt: skip
    return row, blobs


def begin_suspect(
    run: Run, definition: StepDefinition, path: str, given: Input | None, record: StepRecord | None, turn: int
) -> None:  # fmt: skip
    """Suspect mode: whatever this write's log lost, it counts as sent with unknown outcome until somebody knows."""
    log, runtime = run.log, run.runtime
    now = runtime.store.now()
    error = dump({"kind": "unknown", "code": "suspect", "detail": "the log was restored; this write may have been sent before"})
    try:
        if record is None:
            assert given is not None
            key = idempotency_key(runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
            row, blobs = intent(run, definition, path, given, log.next_step_seq(), key, now, turn, error)
            log.append(row, blobs=blobs)
        else:
            log.append(
                draft(
                    run.task_id,
                    Kind.ATTEMPT_STARTED,
                    now,
                    step_seq=record.step_seq,
                    path=path,
                    step_name=record.name,
                    status=StepStatus.UNCERTAIN,
                    attempt=len(record.attempts) + 1,
                    started_at=now.wall,
                    epoch=log.epoch,
                    error=error,
                )  # fmt: skip
            )
    except (Moved, KeyHeld):
        return


def _circumstances(definition: StepDefinition, run: Run, path: str) -> dict[str, Any]:
    record = run.log.record(path)
    earlier = [] if record is None else record.current
    return {
        "single_request": definition.single_request,
        "classify": definition.classify,
        "uncertain_before": any(a.outcome == "unknown" for a in earlier),
        "handle_recorded": record is not None and bool(record.handles),
        "mask": run.runtime.vault.mask,
    }


def ask_unsent(run: Run, definition: StepDefinition, path: str, given: Input | None, why: str) -> None:
    """Open the case of a write whose time is over before it was sent: with its intent, which was never called."""
    assert given is not None
    now, step_seq, kind = run.runtime.store.now(), run.log.next_step_seq(), CaseKind.DOUBT
    if path[0] == UNDO:
        kind = CaseKind.COMPENSATION
    key = idempotency_key(run.runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
    row, blobs = intent(run, definition, path, given, step_seq, key, now)
    common: dict[str, Any] = {"step_seq": step_seq, "path": path, "step_name": definition.name, "epoch": run.log.epoch}
    error = dump({"kind": "not_sent", "code": "deadline", "detail": why})
    ended = draft(
        run.task_id, Kind.ATTEMPT_ENDED, now, status=StepStatus.UNCERTAIN, attempt=1, error=error, finished_at=now.wall, **common
    )  # fmt: skip
    opened = draft(
        run.task_id, Kind.CASE_OPENED, now, status=StepStatus.NEEDS_HUMAN, data={"kind": kind, "why": why}, **common
    )  # fmt: skip
    try:
        run.log.append(row, ended, opened, blobs=blobs)
    except Moved:
        return
    tell_cases(run, path, kind)


def settle_reused(run: Run, record: StepRecord, action: Reuse) -> None:
    """A late success of an attempt settles the step (rule 12); a second unprotected attempt is a contradiction."""
    if action.attempt is None:
        run.log.load()  # settled by somebody else between two looks
        return
    now = run.runtime.store.now()
    output = Output(action.output_ref, (), None, None, late_fault(run, record, action.attempt))
    started = next((a.started for a in record.attempts if a.number == action.attempt), now)
    rows = settled_rows(
        run, record.effect, record.path, record.name, record.step_seq, action.attempt, output, started, record.once
    )
    rows += closing_rows(run, record, now, f"attempt {action.attempt} succeeded late")
    unprotected = record.effect == Effect.NON_IDEM_WRITE and any(a.number > action.attempt for a in record.attempts)
    if unprotected:
        why = f"attempt {action.attempt} of {record.name} succeeded late, and another attempt had begun"
        rows.append(
            draft(
                run.task_id,
                Kind.CASE_OPENED,
                now,
                data={"kind": CaseKind.CONTRADICTION, "why": why},
                step_seq=record.step_seq,
                path=record.path,
                step_name=record.name,
                epoch=run.log.epoch,
            )  # fmt: skip
        )
    try:
        run.log.append(*rows)
    except Moved:
        return
    if output.fault is not None:
        tell_cases(run, record.path, CaseKind.OUTPUT)
    if unprotected:
        tell_cases(run, record.path, CaseKind.CONTRADICTION)


def late_fault(run: Run, record: StepRecord, attempt: int) -> str | None:
    """Why the late result of this attempt is no usable output, as its evidence says; None when it is one."""
    for row in run.log.open.get(record.path, ()):
        if row.kind == Kind.EVIDENCE_STORED and row.attempt == attempt and "fault" in row.details:
            return str(row.details["fault"])
    return None


def settle_failed(run: Run, definition: StepDefinition | None, record: StepRecord, action: Fail, given: Input | None) -> None:
    """Give the step up: `not_applied` for a write, `failed` for a read; then raise what task code sees."""
    if not action.settled:
        now = run.runtime.store.now()
        read = record.effect == READ
        row = draft(
            run.task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
            status=StepStatus.FAILED if read else StepStatus.NOT_APPLIED, attempt=len(record.attempts) or None,
            error=dump({"kind": action.kind, "code": action.code, "detail": action.detail}), epoch=run.log.epoch,
            effect_class=READ if read else None, input_hash=record.input_hash if read else None,
            input_ref=record.input_ref if read else None, data=key_data(record.once),
        )  # fmt: skip
        try:
            run.log.append(row, *closing_rows(run, record, now, f"settled: {action.kind}"))
        except Moved:
            return
    if given is not None:
        if not run.log.remember:
            run.log.settled.pop(record.path, None)
        run.log.open.pop(record.path, None)
        raise StepFailed(action.kind, action.code, action.detail, step=record.name, path=record.path)


def ask(run: Run, record: StepRecord, why: str, *, anew: bool = False) -> Generator[Request, Reply, None]:
    """Open a case unless one is open, and park unless the machine has something left to do."""
    if record.doubt_case is None or anew:
        kind = CaseKind.COMPENSATION if record.undoes else CaseKind.DOUBT
        row = draft(
            run.task_id, Kind.CASE_OPENED, run.runtime.store.now(), step_seq=record.step_seq, path=record.path,
            step_name=record.name, status=StepStatus.NEEDS_HUMAN, data={"kind": kind, "why": why[:1000]}, epoch=run.log.epoch,
        )  # fmt: skip
        try:
            run.log.append(row)
        except Moved:
            return
        tell_cases(run, record.path, kind)
        return  # decide again: with the case open, the machine may still have something to do
    raise run.park(f"{record.name} at {record.path}: {why}", human=True)
    yield  # a generator like its siblings
