"""One attempt of a step: its row before the call, whether the call may still be made, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from . import canonical
from .calls import PLAIN, Frame, Input, Overran, Raised, Reply, Returned, Run
from .canonical import encode, idempotency_key
from .effects import Policy, StepDefinition
from .errors import DoubtlessError, Frozen, KeyHeld, Moved, StoreUnavailable
from .events import READ, UNDO, Event, Instant, Kind, StepStatus, draft, dump, intent_row
from .fold import StepRecord
from .holders import intent_data
from .inputs import call_params, stored_input
from .outcomes import Outcome, classify_raised, classify_returned
from .protocol import KEY_OVER, TOO_LATE, Call, key_forgotten, time_left
from .recording import record_outcome, record_result
from .store.base import Blob, Leases
from .undoing import heard


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
