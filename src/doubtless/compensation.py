"""Compensation: what a failed task has to undo, in which order, and each of it as a full step at the path ``~P`` (section 4).

The plan is read off the log: the done steps with a registered compensation, the latest first. One is undone after the
other; the next one begins when the one before is settled. What cannot be undone by the machine ends with a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import canonical
from .calls import ChildEnd, Input, Run, RunChild, Runtime, StepLoop
from .canonical import idempotency_key
from .drivers import adrive, drive
from .effects import Deadline, StepDefinition
from .errors import Frozen, Moved, StaleEpoch, StepFailed, StoreError, UsageError
from .events import UNDO, CaseKind, Effect, Event, Kind, StepStatus, TaskStatus, draft, dump
from .executor import ask, ask_unsent, intent, next_attempt, run_step
from .fold import Attempt, StepRecord, fold_steps
from .inputs import prepare, stored_input
from .log import Origin
from .outputs import Output
from .passes import Pass
from .protocol import TOO_LATE, Call, time_left
from .recording import closing_rows, settled_rows, tell_cases
from .secrets import Secret
from .store.base import Blob
from .undoing import shows_nothing


class Obligation(NamedTuple):
    """A done step with a registered compensation, and what has come of that. `undoing`: the fold of its rows, or None."""

    record: StepRecord
    compensate: str
    deadline: Deadline | None
    secret: frozenset[str]
    undoing: StepRecord | None

    @property
    def path(self) -> str:
        """The place of the compensation."""
        return UNDO + self.record.path

    @property
    def origin(self) -> Origin:
        return Origin(self.record.name, self.record.step_seq, self.deadline)

    @property
    def settled(self) -> bool:
        return self.undoing is not None and self.undoing.settled

    def entry(self) -> dict[str, Any]:
        """As cases and ends list it."""
        return {"path": self.record.path, "step": self.record.name, "compensate": self.compensate}


class Undoing(StepDefinition):
    """A step as a compensation: what its output is annotated with asks nothing of anybody; it is evidence."""

    restore_return = None


# ---------------------------------------------------------------- the plan


def obligations(runtime: Runtime, rows: Sequence[Event]) -> list[Obligation]:
    """What a failed task has to undo: the done steps with a registered compensation whose effect it made, the latest first."""
    done_at = {r.path: r.event_seq for r in rows if r.kind == Kind.STEP_SETTLED and r.status == StepStatus.DONE}
    records = fold_steps(rows)
    found: list[Obligation] = []
    for path, record in records.items():
        if path[0] == UNDO or record.origin is not None or record.effect == Effect.READ or record.policy_digest is None:
            continue  # a read, or another task made the effect
        if record.status not in (StepStatus.DONE, StepStatus.COMPENSATED):
            continue
        policy = canonical.decode(runtime.content.get(record.policy_digest))
        if not policy.get("compensate"):
            continue
        within = policy.get("compensate_deadline_us")
        deadline = None if within is None else Deadline(first_effect(record).started, within)
        secret = frozenset(policy.get("secret", ()))
        found.append(Obligation(record, policy["compensate"], deadline, secret, records.get(UNDO + path)))
    return sorted(found, key=lambda one: -done_at.get(one.record.path, 0))


def first_effect(record: StepRecord) -> Attempt:
    """The first attempt that may have had the effect: none that was not sent, was refused, or proven to be absent."""
    may = [a for a in record.attempts if a.outcome not in ("not_sent", "rejected") and not a.cleared]
    return (may or record.attempts)[0]


def standing(runtime: Runtime, rows: Sequence[Event]) -> list[dict[str, Any]]:
    """What stands of a task that has ended: writes that were not undone, the latest first."""
    owed = {one.record.path: one for one in obligations(runtime, rows)}
    stands: list[dict[str, Any]] = []
    for path, record in fold_steps(rows).items():
        if path[0] == UNDO or record.origin is not None or record.effect == Effect.READ:
            continue
        if record.status not in (StepStatus.DONE, StepStatus.FAILED):
            continue
        if record.status == StepStatus.FAILED:
            stands.append({"path": path, "step": record.name, "compensate": None, "may": True})
        elif path in owed:
            undoing = owed[path].undoing
            may = {"may": True} if undoing is not None and undoing.status == StepStatus.FAILED else {}
            stands.append(owed[path].entry() | may)
        else:
            stands.append({"path": path, "step": record.name, "compensate": None})
    return stands[::-1]


# ---------------------------------------------------------------- undoing


def undo_all(this: Pass) -> None:
    """Undo what is still to be undone, one after the other; parks where a person or a time is needed."""
    for one in _todo(this):
        loop = undo(this, one)
        if needs_loop(this.runtime, one):
            import asyncio

            asyncio.run(_on_its_own_loop(this, loop))
        else:
            drive(this, loop)


async def aundo_all(this: Pass) -> None:
    """The same on the event loop: a sync compensation runs in a thread of its own."""
    for one in _todo(this):
        await adrive(this, undo(this, one))


async def _on_its_own_loop(this: Pass, loop: StepLoop) -> None:
    """An async compensation in a sync task: an event loop lives as long as it runs."""
    import asyncio

    this.loop = asyncio.get_running_loop()
    this.root.aio_task = asyncio.current_task()
    try:
        await adrive(this, loop)
    finally:
        this.loop, this.root.aio_task = None, None


def needs_loop(runtime: Runtime, one: Obligation) -> bool:
    """Whether a compensation has to be awaited."""
    definition = runtime.find(one.compensate)
    return definition is not None and (definition.is_async or definition.query_is_async)


def _todo(this: Pass) -> list[Obligation]:
    try:
        owed = obligations(this.runtime, this.log.store.rows(this.task_id))
    except (StoreError, StaleEpoch) as error:
        raise this.broken(error) from error
    todo = [one for one in owed if not one.settled]
    for one in todo:
        this.log.origins[one.path] = one.origin
    return todo


def undo(run: Run, one: Obligation) -> StepLoop:
    """Bring one compensation to its end; returns when it is settled, also where a person has let the effect stand."""
    record = run.log.record(one.path)
    step, task = run.runtime.find(one.compensate), run.runtime.find_task(one.compensate)
    if record is not None and record.keys:  # begun: key and params come from its intent (I5)
        given = Input(stored_input(run.runtime, None, record), "", record.input_hash or b"")
        definition = None if step is None else undoing(step, one.secret)
    else:
        if step is None and task is None:
            yield from cannot_begin(run, one, f"{one.compensate} is gone from the table: nothing undoes {one.record.name}")
            return
        definition = undoing(step or task, one.secret)  # type: ignore[arg-type]
        try:
            given = prepare(run.runtime, definition, offered(run.runtime, definition, one))
        except UsageError as error:
            yield from cannot_begin(run, one, f"{one.compensate} cannot be called: {error.message}")
            return
        if not may_begin(run, one):
            return
    try:
        if step is None and task is not None:
            yield from undo_by_task(run, one, undoing(task, one.secret), given)
        else:
            yield from run_step(run, definition, one.path, given, name=one.compensate)
    except StepFailed:
        pass  # a person has let the effect stand: the end lists it
    except UsageError as error:  # what it is to be called with cannot be had: nothing was sent
        record = run.log.record(one.path)
        if record is None or not record.keys:
            yield from cannot_begin(run, one, f"{one.compensate} cannot be called: {error.message}")
        else:
            while True:
                yield from ask(run, record, f"{one.compensate} cannot be called: {error.message}")
                record = run.log.record(one.path) or record


def undoing(definition: StepDefinition, secret: frozenset[str]) -> Undoing:
    """A step as a compensation; what was secret of the original stays secret."""
    effect = definition.effect if definition.effect != Effect.READ else Effect.IDEM_WRITE  # a task: one id, one run
    secret = definition.secret | (secret & definition.binder.accepts)
    return Undoing(*definition._replace(secret=secret, effect=effect))


def offered(runtime: Runtime, definition: StepDefinition, one: Obligation) -> dict[str, Any]:
    """What a compensation is called with: of what it is offered, what it declares by name. Raises UsageError."""
    record = one.record
    params = canonical.decode(runtime.content.get(record.input_ref)) if record.input_ref is not None else {}
    for name in one.secret & params.keys():
        if isinstance(params[name], dict):
            params[name] = Secret(params[name]["$secret"])
    keys = [key.hex() for key in record.keys]
    values: dict[str, Any] = {
        "result": None if record.output_ref is None else canonical.decode(runtime.content.get(record.output_ref)),
        "idempotency_key": keys[-1] if keys else None, "idempotency_keys": keys,
        "handle": record.handles[-1] if record.handles else None, "handles": list(record.handles),
        "first_sent_at": record.attempts[0].started.wall / 1e6 if record.attempts else None,
    } | params  # fmt: skip
    return definition.binder.bind((), {name: values[name] for name in definition.binder.names if name in values})


# ---------------------------------------------------------------- what cannot begin


def may_begin(run: Run, one: Obligation) -> bool:
    """Close what was asked while it could not begin; False: a person has let the effect stand meanwhile."""
    while (record := run.log.record(one.path)) is not None:
        try:
            if record.answer is not None and record.answer.then == "fail":
                run.log.append(let_stand(run, one, record))
                return False
            rows = closing_rows(run, record, run.runtime.store.now(), f"{one.compensate} can be called again")
            if rows:
                run.log.append(*rows)
            return True
        except Moved:
            continue
    return True


def cannot_begin(run: Run, one: Obligation, why: str) -> StepLoop:
    """A compensation without anything to call: never skipped, a person is asked (and asked again)."""
    while one.path in run.log.open or one.path not in run.log.settled:
        record = run.log.record(one.path)
        now = run.runtime.store.now()
        if record is not None and record.answer is not None and record.answer.then == "fail":
            row = let_stand(run, one, record)
        elif record is not None and record.doubt_case is not None:
            raise run.park(f"{one.compensate} at {one.path}: {why}", human=True)
        else:
            row = draft(
                run.task_id, Kind.CASE_OPENED, now, path=one.path, step_name=one.compensate, status=StepStatus.NEEDS_HUMAN,
                step_seq=run.log.next_step_seq() if record is None else record.step_seq, effect_class=Effect.NON_IDEM_WRITE,
                data={"kind": CaseKind.COMPENSATION, "why": why[:1000], **one.entry()}, epoch=run.log.epoch,
            )  # fmt: skip
        try:
            run.log.append(row)
        except Moved:
            continue
        if row.kind == Kind.CASE_OPENED:
            tell_cases(run, one.path, CaseKind.COMPENSATION)
    return
    yield  # a generator like its siblings


def let_stand(run: Run, one: Obligation, record: StepRecord) -> Event:
    """The row of a compensation that a person has given up."""
    answer = record.answer
    error = dump({"kind": "not_applied", "code": "did_not_happen", "detail": f"said by {answer.by if answer else ''}"})
    return draft(
        run.task_id, Kind.STEP_SETTLED, run.runtime.store.now(), step_seq=record.step_seq, path=one.path, epoch=run.log.epoch,
        step_name=one.compensate, status=StepStatus.NOT_APPLIED, error=error,
    )  # fmt: skip


# ---------------------------------------------------------------- several steps: a task


def undo_by_task(run: Run, one: Obligation, definition: StepDefinition, given: Input) -> StepLoop:
    """A compensation of several steps runs as a child task, ``T/~P``; only its end, with an output, settles it as done."""
    path = one.path
    policy = definition.effective._replace(undo_by=one.deadline)
    while path in run.log.open or path not in run.log.settled:
        run.check()
        record = run.log.record(path)
        if record is None or not record.keys:
            if time_left(policy, run.runtime.store.now()):
                begin_task(run, definition, path, given)
            else:
                ask_unsent(run, definition, path, given, TOO_LATE)
        elif record.answer is not None:
            take_answer(run, one, definition, record)
        elif record.doubt_case is not None or record.attempts[-1].code == "deadline":
            yield from ask(run, record, TOO_LATE)
        else:
            number = len(record.attempts)
            child = f"{run.task_id}/{path}" + (f"{UNDO}{number}" if number > 1 else "")
            end = yield RunChild(child, definition.name, path, given, one.deadline)
            assert isinstance(end, ChildEnd)
            yield from take_end(run, one, record, child, end)


def begin_task(run: Run, definition: StepDefinition, path: str, given: Input) -> None:
    """Write the intent of a child task that compensates, before it is accepted (I1)."""
    now, key = run.runtime.store.now(), idempotency_key(
        run.runtime.namespace, run.task_id, path, definition.name, given.key_text, 0
    )  # fmt: skip
    row, blobs = intent(run, definition, path, given, run.log.next_step_seq(), key, now)
    _append(run, [row], definition.name, blobs)


def take_answer(run: Run, one: Obligation, definition: StepDefinition, record: StepRecord) -> None:
    """A person said that it did not undo anything: let the effect stand, or run the compensating task once more."""
    assert record.answer is not None
    if record.answer.then == "fail":
        _append(run, [let_stand(run, one, record)], None, ())
        return
    again = Call(len(record.attempts) + 1, allow=True)
    _append(run, next_attempt(run, definition, record, again, run.runtime.store.now())[1], definition.name, ())


def take_end(run: Run, one: Obligation, record: StepRecord, child: str, end: ChildEnd) -> StepLoop:
    """What became of the compensating task: done with an output, or ended otherwise."""
    now = run.runtime.store.now()
    if end.status != TaskStatus.DONE:
        yield from ask(run, record, f"task {child} ended {end.status}: {end.why}")
    elif end.output_ref is None or shows_nothing(canonical.decode(run.runtime.content.get(end.output_ref))):
        yield from ask(run, record, f"task {child} is done and returned nothing that shows what it undid")
    else:
        output = Output(end.output_ref, (), None, None, None)
        started = record.attempts[-1].started
        rows = settled_rows(run, record.effect, one.path, record.name, record.step_seq, len(record.attempts), output, started)
        _append(run, rows + closing_rows(run, record, now, f"task {child} is done"), None, ())


def _append(run: Run, rows: Sequence[Event], guard: str | None, blobs: Sequence[Blob]) -> None:
    """Append; where the log has moved, whoever called looks again."""
    try:
        run.log.append(*rows, guard=guard, blobs=blobs)
    except Moved:
        return
    except Frozen as frozen:
        raise run.park(f"frozen: {frozen.message}", frozen=guard) from None
