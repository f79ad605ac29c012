"""Compensation: each obligation of a task is undone by a full step at the path ``~P``, one after the other (section 4).

The latest first; the next one begins when the one before is settled. What the machine cannot undo ends with a person:
nothing is skipped, and nothing is said to be undone that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import canonical
from .calls import Input, Run, Runtime, StepLoop
from .drivers import drive
from .effects import StepDefinition
from .errors import Moved, StaleEpoch, StepFailed, StoreError, UsageError
from .events import CaseKind, Effect, Kind, StepStatus, draft
from .executor import run_step
from .fold import StepRecord
from .inputs import prepare, stored_input
from .obligations import Obligation, obligations
from .passes import Pass
from .recording import closing_rows, tell_cases
from .secrets import Secret
from .settling import ask
from .undo_tasks import end_children, undo_by_task, undo_child
from .undoing import let_stand


class Undoing(StepDefinition):
    """A step as a compensation: what its output is annotated with asks nothing of anybody; it is evidence."""

    restore_return = None


class UndoingTask(Undoing):
    """A task as a compensation: its intent says so."""

    def policy(self) -> dict[str, Any]:
        """What the intent freezes: also that no step is called, but a child task is run."""
        return {**super().policy(), "task": True}


# ---------------------------------------------------------------- undoing


def undo_all(this: Pass) -> None:
    """End the children, then undo what is still to be undone, one after the other; parks for a person or a time."""
    drive(this, end_children(this))
    for one in _todo(this):
        loop = undo(this, one)
        if needs_loop(this.runtime, one):
            import asyncio

            asyncio.run(_on_its_own_loop(this, loop))
        else:
            drive(this, loop)


async def aundo_all(this: Pass) -> None:
    """The same on the event loop: a sync compensation runs in a thread of its own."""
    from .adrivers import adrive

    await adrive(this, end_children(this))
    for one in _todo(this):
        await adrive(this, undo(this, one))


async def _on_its_own_loop(this: Pass, loop: StepLoop) -> None:
    """An async compensation in a sync task: an event loop lives as long as it runs."""
    import asyncio

    from .adrivers import adrive

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
    if this.log.failing is None:
        return []
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
    if one.child is not None:
        if run.runtime.find_task(one.compensate) is None:
            yield from cannot_begin(run, one, f"{one.compensate} is gone: nobody can undo what the child task {one.child} did")
        elif may_begin(run, one):
            yield from undo_child(run, one, one.child)
        return
    record = run.log.record(one.path)
    step, task = run.runtime.find(one.compensate), run.runtime.find_task(one.compensate)
    if step is not None and step.effect == Effect.READ:  # a deploy has made it one: a read undoes nothing
        step = None
    if record is not None and record.keys:  # begun: key and params come from its intent (I5)
        given = Input(stored_input(run.runtime, None, record), "", record.input_hash or b"")
        if begun_as_task(run.runtime, record):  # what a deploy has made of it since cannot know what the other one did
            step = None
        else:
            task = None
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


def begun_as_task(runtime: Runtime, record: StepRecord) -> bool:
    """Whether the intent of this compensation is that of a task."""
    assert record.policy_digest is not None
    return bool(canonical.decode(runtime.content.get(record.policy_digest)).get("task"))


def undoing(definition: StepDefinition, secret: frozenset[str]) -> Undoing:
    """A step as a compensation; what was secret of the original stays secret."""
    secret = definition.secret | (secret & definition.binder.accepts)
    if definition.effect == Effect.READ:  # a task: one id, one run
        return UndoingTask(*definition._replace(secret=secret, effect=Effect.IDEM_WRITE))
    return Undoing(*definition._replace(secret=secret))


def offered(runtime: Runtime, definition: StepDefinition, one: Obligation) -> Mapping[str, Any]:
    """What a compensation is called with: of what it is offered, what it declares by name. Raises UsageError."""
    record = one.record
    params = canonical.decode(runtime.content.get(record.input_ref)) if record.input_ref is not None else {}
    for name in one.secret & params.keys():
        if isinstance(params[name], dict):
            params[name] = Secret(params[name]["$secret"])
    if record.output_ref is None and record.error is not None and "result" in definition.binder.names and "result" not in params:
        raise UsageError(f"it asks for result, and the output of {record.name} at {record.path} is not known")
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
                run.log.append(let_stand(run.task_id, one.path, record, run.runtime.store.now(), run.log.epoch))
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
            row = let_stand(run.task_id, one.path, record, run.runtime.store.now(), run.log.epoch)
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
