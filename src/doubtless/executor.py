"""One step: the loop over `protocol.decide`, written once as a generator, and the two drivers that act for it.

`run_step` yields what it cannot do itself (call user code, wait) and is told what came of it; appending is
done at once. `drive` and `adrive` are the sync and async loops around it. User code is called in `invoke`.
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, assert_never

from . import canonical
from .blobs import Content
from .canonical import encode, idempotency_key, input_hash
from .binding import is_async
from .effects import Policy, StepDefinition, tighten
from .errors import (
    DoesNotFit,
    DoubtlessError,
    Frozen,
    Moved,
    NotCanonical,
    OutsideTask,
    Parking,
    StaleEpoch,
    StepFailed,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from .events import CaseKind, Effect, Event, Instant, Kind, StepStatus, draft, dump
from .fold import StepRecord, fold_steps
from .log import Settled, TaskLog
from .outcomes import Found, NoEffect, NotSent, Outcome, Pending, Several, Unclear, classify_raised, classify_returned, read_answer
from .protocol import AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, counts, decide
from .secrets import Secret, Vault
from .store.base import Blob, Store

if TYPE_CHECKING:
    import asyncio

PLAIN = frozenset({dict, list, str, int, float, bool, type(None), tuple})
"""Output types that no client uses for a response."""


class Frame:
    """One running call of user code: what the supervisor times, and where its late news goes."""

    __slots__ = (
        "attempt", "deadline", "definition", "done", "entered", "name", "overran", "overrun", "path", "run", "step_seq", "what",
    )  # fmt: skip

    def __init__(
        self, run: Run, what: Literal["call", "query"], path: str, definition: StepDefinition, step_seq: int, attempt: int
    ) -> None:
        self.run = run
        self.what = what
        self.path = path
        self.definition = definition
        self.name = definition.name
        self.step_seq = step_seq
        self.attempt = attempt
        self.deadline = 0.0
        self.entered = False
        self.done = False
        self.overrun = False
        self.overran: Callable[[Outcome], None] = lambda outcome: None  # records that the call was given up


class Invoke:
    """Ask the driver to call user code; it answers with `Returned`, `Raised` or `Overran`."""

    __slots__ = ("fn", "frame", "kwargs", "timeout_us")

    def __init__(self, fn: Callable[..., Any], kwargs: dict[str, Any], timeout_us: int, frame: Frame) -> None:
        self.fn = fn
        self.kwargs = kwargs
        self.timeout_us = timeout_us
        self.frame = frame


class Wait:
    """Ask the driver to wait until this time of the store's clock, or until the log moves."""

    __slots__ = ("until", "why")

    def __init__(self, until: int, why: str) -> None:
        self.until = until
        self.why = why


class Returned:
    """The call returned a value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Raised:
    """The call raised; `running`: it still runs, in a thread or task left behind. `entered` False: it never began."""

    __slots__ = ("entered", "error", "running")

    def __init__(self, error: BaseException, running: bool = False, entered: bool = True) -> None:
        self.error = error
        self.running = running
        self.entered = entered


class Overran:
    """The call took longer than its timeout; `running`: it still does, in a thread or task left behind."""

    __slots__ = ("running",)

    def __init__(self, running: bool) -> None:
        self.running = running


Request = Invoke | Wait
Reply = Returned | Raised | Overran | None
StepLoop = Generator[Request, Reply, Any]


class Runtime:
    """What a run works with: the parts that `app.py` has put together.

    `known`: the names of all steps and tasks, to see whether a registered compensation still exists. `patience`:
    seconds for which a result that the store does not take is offered again, before it is spilled. `kept`: results
    by task that could not even be spilled; they live as long as this process does.
    """

    __slots__ = (
        "apause", "case_opened", "content", "find", "invoke", "kept", "known", "monotonic", "namespace", "patience", "pause",
        "store", "vault",
    )  # fmt: skip

    def __init__(
        self,
        *,
        store: Store,
        content: Content,
        namespace: bytes,
        find: Callable[[str], StepDefinition | None],
        known: Callable[[], Collection[str]],
        vault: Vault,
        monotonic: Callable[[], float],
        pause: Callable[[float, threading.Event | None], None],
        apause: Callable[[float], Awaitable[None]],
        invoke: Callable[[Callable[..., Any], dict[str, Any]], Any],
        case_opened: Callable[[str], None],
        patience: float,
    ) -> None:
        self.store = store
        self.content = content
        self.namespace = namespace
        self.find = find
        self.known = known
        self.vault = vault
        self.monotonic = monotonic
        self.pause = pause
        self.apause = apause
        self.invoke = invoke
        self.case_opened = case_opened
        self.patience = patience
        self.kept: dict[str, list[Event]] = {}


class Run(Protocol):
    """What a step needs of the run that it belongs to (`tasks.TaskRun`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime
    suspect: bool
    lock: threading.Lock
    frame: Frame | None
    stop: threading.Event

    def park(self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None) -> Parking:
        """Mark the run as parking and return what unwinds it; from now on every step call is refused."""

    def broken(self, error: DoubtlessError) -> Parking:
        """The store failed under this run: no further effect; return what unwinds it. The caller gets the error."""

    def check(self) -> None:
        """Raise `Parking` when the run parks already."""

    def may_wait(self, until: int) -> bool:
        """Whether this run waits in place until then."""

    def blocked_by_doubt(self, path: str) -> bool:
        """Whether another write of the task is in doubt, so that no new intent may be written (rule 8)."""

    def left_behind(self, frame: Frame) -> None:
        """Note that this call of a write goes on although nobody waits for it: the task stays owned until it has ended."""

    def late(self, frame: Frame, reply: Returned | Raised) -> None:
        """Take the outcome of a call whose attempt was given up: evidence, and where possible the settlement."""


current: contextvars.ContextVar[Run | Frame | None] = contextvars.ContextVar("doubtless_current", default=None)
"""The run whose task code is running, or the frame of the step that is."""


# ---------------------------------------------------------------- the loop


class Input:
    """Bound params in their stored form: `text` is what is stored and sent, `key_text` what is hashed."""

    __slots__ = ("digest", "key_text", "text")

    def __init__(self, text: str, key_text: str, digest: bytes) -> None:
        self.text = text
        self.key_text = key_text
        self.digest = digest


def prepare(runtime: Runtime, definition: StepDefinition, params: Mapping[str, Any]) -> Input:
    """Encode bound params; secrets as their resolvers. Raises NotCanonical, UsageError: nothing is written yet."""
    where = definition.name
    if not definition.volatile and not definition.secret:
        text = key_text = encode(params, where=where)
    else:
        for name in definition.secret:
            if not isinstance(params.get(name), Secret | None):
                raise UsageError(
                    f"step {where}: param {name} is secret and was given as a raw value; nothing was written",
                    hint=f"pass {name}=Secret('env:NAME'): the resolver is stored, its value is not",
                    step=where,
                    param=name,
                )
        stored = {k: (v.stored() if k in definition.secret and isinstance(v, Secret) else v) for k, v in params.items()}
        text = encode(stored, where=where)
        key_text = encode({k: v for k, v in params.items() if k not in definition.volatile and k not in definition.secret})
    if not runtime.vault.empty:
        runtime.vault.refuse_known(text, where)
    return Input(text, key_text, input_hash(runtime.namespace, key_text))


def run_step(run: Run, definition: StepDefinition | None, path: str, given: Input | None, *, name: str = "") -> StepLoop:
    """Bring the step at `path` to its end: returns its output, or raises StepFailed or Parking.

    `given` None settles what is in doubt before task code runs: it returns as soon as nothing is in doubt.
    """
    log, runtime = run.log, run.runtime
    step = definition.name if definition is not None else name
    while True:
        run.check()
        record = log.record(path)
        if record is None and path in log.settled:
            return None if given is None else replayed(run, definition, path, log.settled.pop(path))
        policy, lost = effective(runtime, definition, record)
        if record is not None and record.in_doubt and lost and not record.evidence and not record.answer:
            yield from ask(run, record, f"gone from the table since the intent: {', '.join(lost)}")
            continue
        if run.suspect and definition is not None and policy.effect != Effect.READ and (record is None or not record.suspect):
            if given is not None and (record is None or not record.settled):
                begin_suspect(run, definition, path, given, record)
                continue
        action = decide(policy, record, runtime.store.now())
        if given is None and (record is None or not (record.in_doubt or record.evidence)):
            return None
        if definition is None and record is not None and isinstance(action, Call | LookBack):
            yield from ask(run, record, "the step is gone from the table", anew=record.answer is not None)
            continue
        match action:
            case Call():
                if record is None and not policy.independent and run.blocked_by_doubt(path):  # rule 8
                    yield Wait(runtime.store.now().wall + 50_000, "another step is in doubt")
                    continue
                assert definition is not None
                done = yield from attempt(run, definition, policy, path, given, record, action)
                if done is not None:
                    return done[0]
            case LookBack():
                assert definition is not None and record is not None
                yield from look_back(run, definition, policy, record)
            case WaitUntil():
                yield Wait(action.at, f"{step} at {path}: {action.why}")
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


# ---------------------------------------------------------------- an attempt


def attempt(
    run: Run, definition: StepDefinition, policy: Policy, path: str, given: Input | None, record: StepRecord | None, action: Call
) -> Generator[Request, Reply, tuple[Any] | None]:
    """Make the attempt durable (I1), call, record its outcome. The output in a tuple, or None: decide again."""
    log, runtime = run.log, run.runtime
    read = policy.effect == Effect.READ
    # What cannot be called is said before a row is written: a param of another type, a secret without a value.
    kwargs = call_params(runtime, definition, stored_input(runtime, given, record))
    step_seq = record.step_seq if record is not None else 0
    started = runtime.store.now()
    if read:
        if record is None:
            step_seq = log.next_step_seq()
    else:
        try:
            step_seq, key = begin(run, definition, path, given, record, action, started)
        except Moved:
            return None
        except Frozen as frozen:
            raise run.park(f"frozen: {frozen.message}", frozen=definition.name) from None
        if definition.takes_key:
            kwargs["idempotency_key"] = key.hex()
    frame = Frame(run, "call", path, definition, step_seq, action.attempt)
    frame.overran = lambda outcome: record_outcome(
        run, definition, path, given, record, step_seq, action.attempt, outcome, started, running=True
    )
    fn = definition.fn
    if definition.binder.positional_only:
        args, kwargs = definition.binder.arguments(kwargs)
        fn = partial(fn, *args)
    reply = yield Invoke(fn, kwargs, policy.timeout_us, frame)
    if isinstance(reply, Returned):
        outcome = returned_outcome(definition, reply.value, run, path)
        if outcome is None:
            value = record_result(run, definition, path, given, record, step_seq, action.attempt, reply.value, started)
            return (value,)
    elif isinstance(reply, Raised) and not reply.entered:
        if read:
            raise reply.error  # nothing was asked: nothing to record
        outcome = Outcome("not_sent", "interrupted", "interrupted before the function was entered", None)
    elif isinstance(reply, Raised):
        outcome = classify_raised(reply.error, **_circumstances(definition, run, path))
    else:
        outcome = timed_out(policy.timeout_us)
    running = isinstance(reply, Overran | Raised) and reply.running
    record_outcome(run, definition, path, given, record, step_seq, action.attempt, outcome, started, running)
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        run.park(f"{definition.name} at {path} was interrupted: {type(reply.error).__name__}")
        raise reply.error  # rule 7: recorded, then raised on unchanged
    return None


def timed_out(timeout_us: int) -> Outcome:
    """The outcome of a call that its timeout took away: nobody knows."""
    return Outcome("unknown", "timeout", f"no answer within {timeout_us / 1e6:g} s", None)


def stored_input(runtime: Runtime, given: Input | None, record: StepRecord | None) -> str:
    """The params as they are stored: of an intent its own, whatever the code words this time (rule 2)."""
    if record is not None and record.input_ref is not None:
        return runtime.content.get(record.input_ref)
    assert given is not None
    return given.text


def call_params(runtime: Runtime, definition: StepDefinition, text: str) -> dict[str, Any]:
    """The arguments of a call: decoded from the stored form, typed again, secrets resolved. Raises DoesNotFit, UsageError."""
    params: dict[str, Any] = canonical.decode(text)
    if definition.secret:
        for name in definition.secret:
            if params.get(name) is not None:
                params[name] = runtime.vault.resolve(params[name])
    try:
        definition.restore_params(params)
    except DoesNotFit as misfit:
        raise misfit.within(f"{definition.name}.") from misfit.__cause__
    return params


def begin(
    run: Run, definition: StepDefinition, path: str, given: Input | None, record: StepRecord | None, action: Call, now: Instant
) -> tuple[int, bytes]:
    """Write the row of this attempt of a write: the first one's is the intent. Durable at return (I1).

    Raises: Moved (the log holds something newer than what decided), Frozen, StaleEpoch; nothing was called.
    """
    log, runtime = run.log, run.runtime
    if record is None:
        assert given is not None
        key = idempotency_key(runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
        step_seq = log.next_step_seq()
        row, blobs = intent(run, definition, path, given, step_seq, key, now)
        log.append(row, guard=definition.name, blobs=blobs)
        return step_seq, key
    rows: list[Event] = []
    common: dict[str, Any] = {"step_seq": record.step_seq, "path": path, "step_name": record.name, "epoch": log.epoch}
    if action.allow:
        answer = record.answer
        data = {"why": "did_not_happen", "by": answer.by if answer else ""}
        rows.append(draft(run.task_id, Kind.RETRY_ALLOWED, now, status=StepStatus.UNCERTAIN, data=data, **common))
    new_key: bytes | None = None
    if action.next_generation:
        params = canonical.decode(runtime.content.get(record.input_ref))
        hidden = definition.volatile | definition.secret
        key_text = encode({k: v for k, v in params.items() if k not in hidden})
        new_key = idempotency_key(runtime.namespace, run.task_id, path, record.name, key_text, record.generation + 1)
    rows.append(
        draft(
            run.task_id, Kind.ATTEMPT_STARTED, now, status=StepStatus.UNCERTAIN, attempt=action.attempt,
            idempotency_key=new_key, started_at=now.wall, **common,
        )  # fmt: skip
    )
    log.append(*rows, guard=record.name)
    return record.step_seq, new_key or record.keys[-1]


def intent(
    run: Run, definition: StepDefinition, path: str, given: Input, step_seq: int, key: bytes, now: Instant, error: str | None = None
) -> tuple[Event, Sequence[Blob]]:
    """The intent's row, and the contents that it names."""
    content = run.runtime.content
    ref, blob = content.put(given.text)
    blobs = [] if blob is None else [blob]
    if not content.known(definition.definition_hash):
        blobs.append(Blob(definition.definition_hash, definition.policy_text.encode()))
    row = draft(
        run.task_id, Kind.STEP_INTENDED, now, step_seq=step_seq, path=path, step_name=definition.name,
        status=StepStatus.UNCERTAIN, attempt=1, effect_class=definition.effect, idempotency_key=key,
        input_hash=given.digest, input_ref=ref, data=definition.definition_hash, started_at=now.wall,
        epoch=run.log.epoch, error=error,
    )  # fmt: skip
    return row, blobs


def begin_suspect(run: Run, definition: StepDefinition, path: str, given: Input, record: StepRecord | None) -> None:
    """Suspect mode: whatever this write's log lost, it counts as sent with unknown outcome until somebody knows."""
    log, runtime = run.log, run.runtime
    now = runtime.store.now()
    error = dump({"kind": "unknown", "code": "suspect", "detail": "the log was restored; this write may have been sent before"})
    try:
        if record is None:
            key = idempotency_key(runtime.namespace, run.task_id, path, definition.name, given.key_text, 0)
            row, blobs = intent(run, definition, path, given, log.next_step_seq(), key, now, error)
            log.append(row, blobs=blobs)
        else:
            log.append(
                draft(
                    run.task_id, Kind.ATTEMPT_STARTED, now, step_seq=record.step_seq, path=path, step_name=record.name,
                    status=StepStatus.UNCERTAIN, attempt=len(record.attempts) + 1, started_at=now.wall, epoch=log.epoch,
                    error=error,
                )  # fmt: skip
            )
    except Moved:
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


def returned_outcome(definition: StepDefinition, value: Any, run: Run, path: str) -> Outcome | None:
    """None for an ordinary output; an outcome for a refusal inside a 200 or a client's response object."""
    if definition.classify is None and type(value) in PLAIN:
        return None
    return classify_returned(value, **_circumstances(definition, run, path))


# ---------------------------------------------------------------- recording what came of it


class Output(NamedTuple):
    """An output in its stored form. `fault`: why a person has to give the output instead (rule 6)."""

    ref: str | bytes | None
    blobs: Sequence[Blob]
    text: str | None
    value: Any
    fault: str | None
    unstored: str | None = None
    """The text of an output whose content could not be put anywhere yet."""


def store_output(runtime: Runtime, definition: StepDefinition, value: Any) -> Output:
    """Encode an output and give it back as the log will: the same on the first run and on replay."""
    try:
        text = runtime.vault.mask(encode(value, where=f"the output of {definition.name}"))
    except NotCanonical as error:
        return Output(None, (), None, None, f"{type(value).__name__} cannot be stored: {error.message}")
    ref, blob = runtime.content.put(text)
    blobs = () if blob is None else (blob,)
    try:
        return Output(ref, blobs, text, definition.restore_output(canonical.decode(text)), None)
    except DoesNotFit as error:
        return Output(ref, blobs, text, None, str(error))


def record_result(
    run: Run, definition: StepDefinition, path: str, given: Input | None, record: StepRecord | None, step_seq: int,
    number: int, value: Any, started: Instant,
) -> Any:  # fmt: skip
    """The call returned: settle the step as done. A result is always appended again, never lost (rule 6)."""
    output = keep_trying(run, lambda: store_output(run.runtime, definition, value), lambda: unstored(run, definition, value))
    rows = settled_rows(run, definition.effect, path, definition.name, step_seq, number, output, started)
    if output.unstored is not None:
        raise spill_result(run, rows[0], output.unstored)
    if definition.effect == Effect.READ and record is None and given is not None:
        ref, blob = run.runtime.content.put(given.text)
        rows[0] = rows[0]._replace(input_hash=given.digest, input_ref=ref)
        if blob is not None:
            output = output._replace(blobs=(*output.blobs, blob))
    if not append_result(run, path, rows, output, forget=given is not None):
        return replayed(run, definition, path, run.log.settled[path] if given is None else run.log.settled.pop(path))
    if output.fault is not None:
        raise open_output_case(run, path)
    return output.value


def settled_rows(
    run: Run, effect: str, path: str, name: str, step_seq: int, number: int, output: Output, started: Instant
) -> list[Event]:
    """The row that settles a step as done; with a fault also the case that asks a person for the output."""
    now = run.runtime.store.now()
    common: dict[str, Any] = {"step_seq": step_seq, "path": path, "step_name": name, "epoch": run.log.epoch}
    error = None if output.fault is None else dump({"kind": "output", "detail": output.fault})
    read = effect == Effect.READ
    rows = [
        draft(
            run.task_id, Kind.STEP_SETTLED, now, status=StepStatus.DONE, attempt=number, output_ref=output.ref, error=error,
            effect_class=Effect.READ if read else None, started_at=started.wall if read else None, finished_at=now.wall, **common,
        )  # fmt: skip
    ]
    if output.fault is not None:
        data = {"kind": CaseKind.OUTPUT, "why": f"{name} is done, but its output is not usable: {output.fault}"}
        rows.append(draft(run.task_id, Kind.CASE_OPENED, now, status=StepStatus.DONE, data=data, **common))
    return rows


def append_result(run: Run, path: str, rows: list[Event], output: Output, *, forget: bool) -> bool:
    """Append what is known of an effect; only the death of this process can turn it into a doubt.

    `forget`: task code gets the output now and does not ask for this place again in this pass. False: somebody has
    settled the step while its call ran; the result is kept as evidence, and what stands is what the task goes on with.
    """
    forget = forget and output.fault is None
    while True:
        try:
            keep_trying(run, lambda: run.log.append(*rows, blobs=output.blobs, forget=forget))
        except Moved:
            settled = run.log.settled.get(path)
            if settled is None:
                continue
            late_result(run.runtime, run.task_id, rows[0], output.blobs)
            return False
        except StaleEpoch:
            late_result(run.runtime, run.task_id, rows[0], output.blobs)
            raise
        except StoreUnavailable as error:
            raise spill_result(run, rows[0], output.text, error) from error
        break
    if output.fault is not None:
        tell_cases(run, path, CaseKind.OUTPUT)
    return True


def keep_trying(run: Run, record: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
    """Record something of an effect that has happened, again and again while the store refuses it (rule 6)."""
    begun = run.runtime.monotonic()
    while True:
        try:
            return record()
        except StoreUnavailable:
            if run.runtime.monotonic() - begun < run.runtime.patience and not run.stop.is_set():
                run.runtime.pause(0.2, run.stop)
            elif otherwise is None:
                raise
            else:
                return otherwise()


def unstored(run: Run, definition: StepDefinition, value: Any) -> Output:
    """An output whose content the store does not take: its text is spilled with the row."""
    text = run.runtime.vault.mask(encode(value, where=f"the output of {definition.name}"))
    return Output(None, (), text, None, None, text)


def spill_result(run: Run, row: Event, text: str | None, error: StoreUnavailable | None = None) -> StoreUnavailable:
    """Keep a result beside the database, or at least in this process; the next claim takes it in as evidence.

    `text`: the output in its stored form; None when it has none, and the row says why.
    """
    row = row._replace(output_ref=None if text is None else "inline:" + text)
    try:
        place = f"in {run.runtime.store.spill(row)}"
    except StoreUnavailable:
        run.runtime.kept.setdefault(run.task_id, []).append(row)
        place = "only in this process, which must not end before the store can be written"
    return StoreUnavailable(
        f"task {run.task_id}: {row.step_name} at {row.path} is done but cannot be recorded"
        f" ({error.message if error else 'its output cannot be stored'}); its result is kept {place}",
        hint=f"make the store writable again, then: doubtless resume {run.task_id}; the step is not run again",
        task=run.task_id,
        step=row.step_name,
    )


def take_in(runtime: Runtime, row: Event) -> None:
    """Make a result that was spilled or kept the evidence that it is; once, however often it is offered."""
    if row.effect_class == Effect.READ:
        return  # nothing stands on it: the step is called again
    ref, blob = row.output_ref, None
    if isinstance(ref, str):
        ref, blob = runtime.content.put(ref.removeprefix("inline:"))
    for event in runtime.store.rows(row.task_id, path=row.path):
        known = event.status == StepStatus.DONE or event.details.get("what") == "late_result"
        if known and (event.path, event.attempt, event.output_ref) == (row.path, row.attempt, ref):
            return  # taken in before a crash; or the append whose fate was unknown did land
    late_result(runtime, row.task_id, row._replace(output_ref=ref), () if blob is None else (blob,))


def late_result(runtime: Runtime, task_id: str, row: Event, blobs: Sequence[Blob]) -> None:
    """Store a success that came too late as evidence (I3); a contradiction of what is settled opens a case."""
    common: dict[str, Any] = {"step_seq": row.step_seq, "path": row.path, "step_name": row.step_name}
    data = {"what": "late_result"}
    if row.error is not None:  # it is no usable output
        data["fault"] = json.loads(row.error)["detail"]
    while True:
        now, events = runtime.store.now(), runtime.store.rows(task_id)
        rows = [
            draft(
                task_id, Kind.EVIDENCE_STORED, now, attempt=row.attempt, output_ref=row.output_ref, epoch=row.epoch, data=data,
                **common,
            )  # fmt: skip
        ]
        why = contradiction(fold_steps(events).get(row.path or ""), row)
        if why is not None:
            rows.append(draft(task_id, Kind.CASE_OPENED, now, data={"kind": CaseKind.CONTRADICTION, "why": why}, **common))
        try:
            written = runtime.store.add(task_id, rows, expect=events[-1].event_seq, blobs=blobs)
        except Moved:
            continue  # what is settled may be another thing now
        for event in written:
            if event.kind == Kind.CASE_OPENED:
                runtime.case_opened(f"{task_id}:{event.event_seq}")
        return


def contradiction(record: StepRecord | None, row: Event) -> str | None:
    """Why a late success contradicts what is settled, or None (rule 12)."""
    if record is None or not record.settled or record.effect == Effect.READ:
        return None
    late = f"attempt {row.attempt} of {row.step_name} succeeded late"
    if record.status in (StepStatus.NOT_APPLIED, StepStatus.FAILED):
        return f"{late}, after the step was settled as {record.status}"
    if record.effect == Effect.NON_IDEM_WRITE and any(a.number > (row.attempt or 0) for a in record.attempts):
        return f"{late}, and another attempt, which no key protects, had begun"
    return None


def record_outcome(
    run: Run, definition: StepDefinition, path: str, given: Input | None, record: StepRecord | None, step_seq: int,
    number: int, outcome: Outcome, started: Instant, running: bool = False,
) -> None:  # fmt: skip
    """The call gave no output: write the attempt's outcome."""
    runtime = run.runtime
    now = runtime.store.now()
    read = definition.effect == Effect.READ
    error: dict[str, Any] = {"kind": outcome.kind, "code": outcome.code, "detail": runtime.vault.mask(outcome.detail)}
    if outcome.retry_after_us is not None:
        error["retry_after_us"] = outcome.retry_after_us
    blobs: list[Blob] = []
    first: dict[str, Any] = {}
    if read and record is None and given is not None:
        ref, blob = runtime.content.put(given.text)
        first = {"input_hash": given.digest, "input_ref": ref, "effect_class": Effect.READ}
        blobs = [] if blob is None else [blob]
    row = draft(
        run.task_id, Kind.ATTEMPT_ENDED, now, step_seq=step_seq, path=path, step_name=definition.name,
        status=StepStatus.STARTED if read else StepStatus.UNCERTAIN, attempt=number, error=dump(error),
        data={"running": True} if running else None, started_at=started.wall if read else None, finished_at=now.wall,
        epoch=run.log.epoch, **first,
    )  # fmt: skip
    while True:
        try:
            keep_trying(run, lambda: run.log.append(row, blobs=blobs))
            return
        except Moved:
            if path in run.log.settled:  # a person was faster
                return


# ---------------------------------------------------------------- look-back


def look_back(run: Run, definition: StepDefinition, policy: Policy, record: StepRecord) -> Generator[Request, Reply, None]:
    """Ask the other system, and write down what it answered."""
    runtime = run.runtime
    assert definition.query is not None
    started = runtime.store.now()
    frame = Frame(run, "query", record.path, definition, record.step_seq, record.attempts[-1].number if record.attempts else 0)
    frame.overran = lambda outcome: record_look(
        run, definition, policy, record, Unclear(f"the query did not answer: {outcome.detail}"), started
    )
    try:
        kwargs = definition.query_params(callback_params(runtime, definition, record))
    except DoubtlessError as error:
        reply: Reply = Raised(error)
    else:
        reply = yield Invoke(definition.query, kwargs, policy.timeout_us, frame)
    if isinstance(reply, Raised) and not reply.entered:
        raise reply.error  # nobody was asked
    if isinstance(reply, Returned):
        answer = read_answer(reply.value)
    elif isinstance(reply, Raised):
        answer = Unclear(runtime.vault.mask(f"the query raised {type(reply.error).__name__}: {reply.error}")[:500])
    else:
        answer = Unclear(f"the query did not answer within {policy.timeout_us / 1e6:g} s")
    try:
        record_look(run, definition, policy, record, answer, started)
    except Moved:
        pass  # something newer is in the log: fold, decide again
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        run.park(f"the look-back of {record.name} at {record.path} was interrupted")
        raise reply.error


def callback_params(runtime: Runtime, definition: StepDefinition, record: StepRecord) -> dict[str, Any]:
    """What a query is offered: the step's params, all its keys and handles, and when it was first sent."""
    params = call_params(runtime, definition, runtime.content.get(record.input_ref))
    keys = [key.hex() for key in record.keys]
    params["idempotency_keys"] = keys
    params["idempotency_key"] = keys[-1] if keys else None
    params["handles"] = list(record.handles)
    params["handle"] = record.handles[-1] if record.handles else None
    params["first_sent_at"] = record.attempts[0].started.wall / 1e6 if record.attempts else None
    return params


def record_look(run: Run, definition: StepDefinition, policy: Policy, record: StepRecord, answer: Any, started: Instant) -> None:
    """Write a look-back's row; `found` settles the step in the same transaction."""
    from .fold import Look  # the shape that `counts` takes

    runtime, now = run.runtime, run.runtime.store.now()
    kind = type(answer).__name__.lower() if not isinstance(answer, NoEffect) else "no_effect"
    why = runtime.vault.mask(str(getattr(answer, "why", "") or getattr(answer, "note", "") or ""))
    data: dict[str, Any] = {"answer": kind}
    again = answer.look_again_us if isinstance(answer, Pending) else None
    number = record.attempts[-1].number if record.attempts else 0
    if kind == "absent" and record.handles:
        why = why or "a handle is recorded: an absence is no proof"
    if isinstance(answer, Several):
        try:
            data["items"] = canonical.decode(runtime.vault.mask(encode(list(answer.items))))[:20]
            dump(data["items"])
        except (NotCanonical, TypeError, ValueError):
            data["items"] = [runtime.vault.mask(str(item))[:200] for item in list(answer.items)[:20]]
    if why:
        data["why"] = why
    if again is not None:
        data["look_again_us"] = again
    if counts(policy, record, Look(0, kind, why, started, now, run.log.epoch, number, again)):
        data["counts"] = True
    common: dict[str, Any] = {
        "step_seq": record.step_seq, "path": record.path, "step_name": record.name, "epoch": run.log.epoch, "attempt": number,
    }  # fmt: skip
    row = draft(
        run.task_id, Kind.LOOKED_BACK, now, status=record.status, data=data, started_at=started.wall, finished_at=now.wall, **common
    )
    if not isinstance(answer, Found):
        run.log.append(row)
        return
    output = store_output(runtime, definition, answer.output)
    settled = settled_rows(run, record.effect, record.path, record.name, record.step_seq, number, output, started)
    closing = closing_rows(run, record, now, "found by the look-back")
    run.log.append(row, *settled, *closing, blobs=output.blobs)
    if output.fault is not None:
        tell_cases(run, record.path, CaseKind.OUTPUT)
        raise open_output_case(run, record.path)


# ---------------------------------------------------------------- ends


def closing_rows(run: Run, record: StepRecord, now: Instant, why: str) -> list[Event]:
    """What the machine settles first closes the step's open doubt in the same transaction."""
    return [
        draft(
            run.task_id, Kind.CASE_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
            data={"case_id": case, "answer": "settled", "by": "doubtless", "why": why}, epoch=run.log.epoch,
        )  # fmt: skip
        for case, kind in record.cases.items()
        if kind == CaseKind.DOUBT
    ]


def settle_reused(run: Run, record: StepRecord, action: Reuse) -> None:
    """A late success of an attempt settles the step (rule 12); a second unprotected attempt is a contradiction."""
    if action.attempt is None:
        run.log.load()  # settled by somebody else between two looks
        return
    now = run.runtime.store.now()
    output = Output(action.output_ref, (), None, None, late_fault(run, record, action.attempt))
    started = next((a.started for a in record.attempts if a.number == action.attempt), now)
    rows = settled_rows(run, record.effect, record.path, record.name, record.step_seq, action.attempt, output, started)
    rows += closing_rows(run, record, now, f"attempt {action.attempt} succeeded late")
    unprotected = record.effect == Effect.NON_IDEM_WRITE and any(a.number > action.attempt for a in record.attempts)
    if unprotected:
        why = f"attempt {action.attempt} of {record.name} succeeded late, and another attempt had begun"
        rows.append(
            draft(
                run.task_id, Kind.CASE_OPENED, now, data={"kind": CaseKind.CONTRADICTION, "why": why}, step_seq=record.step_seq,
                path=record.path, step_name=record.name, epoch=run.log.epoch,
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
        read = record.effect == Effect.READ
        row = draft(
            run.task_id, Kind.STEP_SETTLED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
            status=StepStatus.FAILED if read else StepStatus.NOT_APPLIED, attempt=len(record.attempts) or None,
            error=dump({"kind": action.kind, "code": action.code, "detail": action.detail}), epoch=run.log.epoch,
            effect_class=Effect.READ if read else None, input_hash=record.input_hash if read else None,
            input_ref=record.input_ref if read else None,
        )  # fmt: skip
        try:
            run.log.append(row, *closing_rows(run, record, now, f"settled: {action.kind}"))
        except Moved:
            return
    if given is not None:
        run.log.settled.pop(record.path, None)
        run.log.open.pop(record.path, None)
        raise StepFailed(action.kind, action.code, action.detail, step=record.name, path=record.path)


def ask(run: Run, record: StepRecord, why: str, *, anew: bool = False) -> Generator[Request, Reply, None]:
    """Open a case unless one is open, and park unless the machine has something left to do."""
    if record.doubt_case is None or anew:
        now = run.runtime.store.now()
        row = draft(
            run.task_id, Kind.CASE_OPENED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
            status=StepStatus.NEEDS_HUMAN, data={"kind": CaseKind.DOUBT, "why": why}, epoch=run.log.epoch,
        )  # fmt: skip
        try:
            run.log.append(row)
        except Moved:
            return
        tell_cases(run, record.path, CaseKind.DOUBT)
        return  # decide again: with the case open, the machine may still have something to do
    raise run.park(f"{record.name} at {record.path}: {why}", human=True)
    yield  # a generator like its siblings


def tell_cases(run: Run, path: str, kind: CaseKind) -> None:
    """Call the hook for the newest open case of this kind at this path."""
    found = [case for case, opened in run.log.cases.items() if opened.path == path and opened.kind == kind]
    if found:
        run.runtime.case_opened(found[-1])


def open_output_case(run: Run, path: str) -> Parking:
    """Park on a step that is done without a usable output."""
    return run.park(f"the step at {path} is done; a person has to give its output", human=True)


def replayed(run: Run, definition: StepDefinition | None, path: str, settled: Settled) -> Any:
    """What task code sees of a settled step: its output as the log has it, or the failure that it had."""
    if settled.status in (StepStatus.DONE, StepStatus.COMPENSATED):
        if settled.error is not None:
            error = json.loads(settled.error)
            if error["kind"] == "abandoned":  # a person denied the output
                raise StepFailed("abandoned", error["code"], error["detail"], step=settled.name, path=path)
            raise open_output_case(run, path)
        assert settled.output_ref is not None
        tree = canonical.decode(run.runtime.content.get(settled.output_ref))
        if definition is None:
            return tree
        try:
            return definition.restore_output(tree)
        except DoesNotFit:  # a person's answer, or the code's annotation, says otherwise than the log
            return tree
    error = json.loads(settled.error or "{}")
    raise StepFailed(error.get("kind", "not_applied"), error.get("code", ""), error.get("detail", ""), step=settled.name, path=path)


# ---------------------------------------------------------------- the drivers


def invoke(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The one place where user code is called; `doubtless.testing` goes between it and the drivers."""
    return fn(**kwargs)


def drive(run: Run, loop: StepLoop) -> Any:
    """The sync driver: calls run in this thread; a supervisor may take an overrun call away from it."""
    reply: Reply = None
    try:
        run.check()
        while True:
            request = loop.send(reply)
            if isinstance(request, Wait):
                wait(run, request)
                reply = None
            else:
                reply = call_here(run, request)
    except StopIteration as end:
        return end.value
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def call_here(run: Run, request: Invoke) -> Reply:
    """Call in this thread, visible to the supervisor while it lasts."""
    frame = request.frame
    frame.deadline = run.runtime.monotonic() + request.timeout_us / 1e6
    with run.lock:
        try:
            run.check()
        except Parking as parking:  # a signal came between the attempt's row and its call: rule 7
            return Raised(parking, entered=False)
        frame.entered = True
        run.frame = frame
    token = current.set(frame)
    try:
        reply = called(request)
    finally:
        current.reset(token)
        with run.lock:
            frame.done = True
            run.frame = None
            given_up = frame.overrun
    if given_up:
        run.late(frame, reply)
        raise run.park("the call overran its timeout and was settled without this thread")
    return reply


def called(request: Invoke) -> Returned | Raised:
    """Call a sync function; whatever it raises is its outcome."""
    try:
        value = request.frame.run.runtime.invoke(request.fn, request.kwargs)
        if type(value) not in PLAIN and hasattr(value, "__await__"):
            if hasattr(value, "close"):
                value.close()
            raise UsageError(f"{request.frame.name} returned an awaitable in a sync call", hint="declare it with async def")
        return Returned(value)
    except BaseException as error:
        return Raised(error)


def wait(run: Run, request: Wait) -> None:
    """Wait in place until the time or until the log moves; or park until then."""
    run.check()
    if not run.may_wait(request.until):
        raise run.park(request.why, until=request.until)
    store = run.runtime.store
    while not run.stop.is_set():
        left = request.until - store.now().wall
        if left <= 0 or run.log.refresh():
            return
        run.runtime.pause(left / 1e6, run.stop)
    run.check()


async def adrive(run: Run, loop: StepLoop) -> Any:
    """The async driver: async calls on the event loop; sync ones of `acall` in a thread of their own."""
    reply: Reply = None
    try:
        while True:
            request = loop.send(reply)
            if isinstance(request, Wait):
                await await_time(run, request)
                reply = None
            else:
                try:
                    reply = await call_async(run, request)
                except GeneratorExit as gone:  # its event loop is torn down: nothing can be awaited any more
                    reply = torn_down(run, request.frame, gone)
    except StopIteration as end:
        return end.value
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


async def await_time(run: Run, request: Wait) -> None:
    """`wait` without blocking the event loop."""
    run.check()
    if not run.may_wait(request.until):
        raise run.park(request.why, until=request.until)
    while True:
        left = request.until - run.runtime.store.now().wall
        if left <= 0 or run.log.refresh():
            return
        await run.runtime.apause(left / 1e6)
        run.check()  # another branch may have parked the run


GRACE = 0.5
"""Seconds that a cancelled async call has to end before it counts as still running."""


async def call_async(run: Run, request: Invoke) -> Reply:
    """Call as an `asyncio.Task` of its own, or a sync function in a thread; give up at its timeout."""
    import asyncio

    frame, context = request.frame, contextvars.copy_context()
    context.run(current.set, frame)
    threaded = not is_async(request.fn)
    call: asyncio.Future[Returned | Raised]
    if threaded:
        call = in_thread(request, context)
    else:
        call = asyncio.get_running_loop().create_task(awaited(request), context=context)
    interrupted: BaseException | None = None
    try:
        await asyncio.wait({call}, timeout=request.timeout_us / 1e6)
        if call.done():
            return _reply(call)
    except BaseException as error:  # the run itself is cancelled: rule 7
        if isinstance(error, GeneratorExit):
            raise
        interrupted = error
    reply = await give_up(call, frame, threaded)
    if interrupted is not None:
        if isinstance(reply, Returned):
            run.late(frame, reply)  # it came through all the same: evidence
        return Raised(interrupted, running=reply is None and frame.entered, entered=frame.entered)
    if isinstance(reply, Returned):
        return reply
    return Overran(running=reply is None) if frame.entered else Raised(NotSent("its turn did not come within its timeout"))


def torn_down(run: Run, frame: Frame, gone: GeneratorExit) -> Raised:
    """What a call came to whose event loop is gone; a thread of it goes on."""
    with run.lock:
        running = frame.entered and not frame.done
        if running and not frame.definition.is_async:
            frame.overrun = True
            run.left_behind(frame)
    return Raised(gone, running=running, entered=frame.entered)


async def give_up(call: asyncio.Future[Returned | Raised], frame: Frame, threaded: bool) -> Returned | Raised | None:
    """Cancel a call that overran; None: it goes on, and what comes of it is late news. One that has ended counts."""
    import asyncio

    run = frame.run
    if threaded:
        with run.lock:
            frame.overrun = not frame.done
            if frame.overrun and frame.entered:
                run.left_behind(frame)
        while not frame.overrun and not call.done():  # its result is on the way
            try:
                await asyncio.wait({call})
            except asyncio.CancelledError:
                pass
        return None if frame.overrun else _reply(call)
    call.cancel()
    try:
        await asyncio.wait({call}, timeout=GRACE)
    except asyncio.CancelledError:
        pass  # cancelled twice: do not wait for it
    if call.done():
        return _reply(call)
    frame.overrun = True
    run.left_behind(frame)
    call.add_done_callback(lambda ended: run.late(frame, _reply(ended)))
    return None


async def awaited(request: Invoke) -> Returned | Raised:
    """Call an async function; whatever it raises is its outcome, also what an `asyncio.Task` would let through its loop."""
    request.frame.entered = True
    try:
        value = request.frame.run.runtime.invoke(request.fn, request.kwargs)
        return Returned(await value if isinstance(value, Awaitable) else value)
    except BaseException as error:
        return Raised(error)


def _reply(call: asyncio.Future[Returned | Raised]) -> Returned | Raised:
    """What a call that has ended came to; one that was cancelled before it began has no result of its own."""
    import asyncio

    try:
        return call.result()
    except asyncio.CancelledError as error:
        return Raised(error, entered=False)


def in_thread(request: Invoke, context: contextvars.Context) -> asyncio.Future[Returned | Raised]:
    """Run a sync call in a daemon thread: a hung one must not hold up the end of the process."""
    import asyncio

    frame, loop = request.frame, asyncio.get_running_loop()
    future: asyncio.Future[Returned | Raised] = loop.create_future()

    def work() -> None:
        with frame.run.lock:
            if frame.overrun:  # given up before it began
                return
            frame.entered = True
        reply = context.run(called, request)
        with frame.run.lock:
            frame.done = True
            late = frame.overrun
        if late:
            frame.run.late(frame, reply)
        else:
            try:
                loop.call_soon_threadsafe(_set, future, reply)
            except RuntimeError:  # the loop is closed: nobody waits any more
                frame.run.late(frame, reply)

    threading.Thread(target=work, name=f"doubtless-{frame.name}", daemon=True).start()
    return future


def _set(future: asyncio.Future[Returned | Raised], reply: Returned | Raised) -> None:
    if not future.done():
        future.set_result(reply)


def record_handle(handle: Any) -> None:
    """Record, durably and at once, the other system's id of what this step is creating (rule 9).

    Meaning: called inside a step, before its reply is looked at; the query gets it as `handle` and `handles`.
    After it, an absence is no proof and the attempt can no longer be `not_sent` or `rejected`.
    Shapes: any JSON value with a canonical form, ``"sheet-4711"``.
    Raises: OutsideTask when no step is running in this context.
    """
    frame = current.get()
    if not isinstance(frame, Frame) or frame.what != "call":
        raise OutsideTask("record_handle() was called outside a step", hint="call it in the step's function, in its own thread")
    run = frame.run
    text = run.runtime.vault.mask(encode(handle, where="handle"))
    row = draft(
        run.task_id, Kind.HANDLE_RECORDED, run.runtime.store.now(), step_seq=frame.step_seq, path=frame.path,
        step_name=frame.name, status=StepStatus.UNCERTAIN, attempt=frame.attempt, epoch=run.log.epoch,
        data='{"handle":' + text + "}",
    )  # fmt: skip
    while True:
        try:
            run.log.append(row)
            return
        except Moved:
            continue
        except StaleEpoch:  # evidence needs no epoch
            run.runtime.store.add(run.task_id, [row])
            return
