"""Compensation where tasks are: one that undoes a step, a child task that is undone, children that end with their parent."""

from __future__ import annotations

from collections.abc import Sequence

from . import canonical
from .attempts import intent, next_attempt
from .calls import ChildEnd, Input, Run, RunChild, StepLoop
from .canonical import encode, idempotency_key
from .effects import StepDefinition
from .errors import Frozen, Moved
from .events import TERMINAL, UNDO, Effect, Event, Kind, StepStatus, TaskStatus, draft, dump, ended_words
from .fold import StepRecord
from .obligations import Obligation
from .outputs import Output
from .protocol import TOO_LATE, Call, time_left
from .recording import closing_rows, settled_rows
from .settling import ask, ask_unsent
from .store.base import Blob
from .undoing import let_stand, shows_nothing, undo_row, undone_row


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
        elif record.doubt_case is not None:
            yield from ask(run, record, run.log.cases[record.doubt_case].row.details["why"])
        elif record.attempts[-1].code == "deadline":
            yield from ask(run, record, TOO_LATE)
        else:
            number = len(record.attempts)
            child = f"{run.task_id}/{path}" + (f"{UNDO}{number}" if number > 1 else "")
            end = yield RunChild(child, definition.name, path, given, one.deadline, definition.secret)
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
        _append(run, [let_stand(run.task_id, one.path, record, run.runtime.store.now(), run.log.epoch)], None, ())
        return
    again = Call(len(record.attempts) + 1, allow=True)
    _append(run, next_attempt(run, definition, record, again, run.runtime.store.now())[1], definition.name, ())


def take_end(run: Run, one: Obligation, record: StepRecord, child: str, end: ChildEnd) -> StepLoop:
    """What became of the compensating task: done with an output, or ended otherwise."""
    now = run.runtime.store.now()
    if end.status != TaskStatus.DONE:
        yield from ask(run, record, f"task {child} ended {ended_words(end.status, end.why)}")
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


# ---------------------------------------------------------------- child tasks


def undo_child(run: Run, one: Obligation, child: str) -> StepLoop:
    """A child task that is done is undone at its own place: in its own log, in reverse; then its place is settled."""
    store = run.runtime.store
    while one.path not in run.log.settled:
        run.check()
        rows = store.rows(child)
        head = store.head(child)
        assert head is not None
        if head.status == TaskStatus.DONE:
            failure = {"kind": "undo", "code": "", "detail": f"its parent {run.task_id} is undone", "by": "doubtless"}
            try:
                store.add(child, [undo_row(child, failure, store.now(), None)], expect=rows[-1].event_seq)
            except Moved:
                continue
        if head.status not in TERMINAL or head.status == TaskStatus.DONE:
            yield RunChild(child, one.compensate, one.path)
            continue
        _append(run, _undone_child(run, one, child, head.status), None, ())


def _undone_child(run: Run, one: Obligation, child: str, status: str) -> list[Event]:
    now, log = run.runtime.store.now(), run.log
    undone = status == TaskStatus.COMPENSATED
    ref, _ = run.runtime.content.put(encode({"task": child, "status": status}))
    error = None if undone else dump({"kind": "child", "code": status, "detail": f"{child} ended {status}"})
    settled = draft(
        run.task_id, Kind.STEP_SETTLED, now, step_seq=log.next_step_seq(), path=one.path, step_name=one.compensate,
        status=StepStatus.DONE if undone else StepStatus.NOT_APPLIED, effect_class=Effect.READ, error=error,
        output_ref=ref if undone else None, epoch=log.epoch,
    )  # fmt: skip
    return [settled, undone_row(run.task_id, one.path, one.origin, now, log.epoch)] if undone else [settled]


def open_children(run: Run) -> dict[str, str]:
    """The child tasks that were started and have not come to anything yet: their ids by their places."""
    return {path: child for path, rows in run.log.open.items() if (child := rows[0].details.get("child")) is not None}


def end_children(run: Run) -> StepLoop:
    """Children end before their parent does: each is cancelled, brought to its end, and its place is settled."""
    store = run.runtime.store
    for path, child in open_children(run).items():
        while path in run.log.open:
            run.check()
            head, first = store.head(child), run.log.open[path][0]
            if head is not None and head.status not in TERMINAL:
                if not any(row.kind == Kind.CANCEL_REQUESTED for row in store.rows(child)):
                    said = {"by": "doubtless", "why": f"its parent {run.task_id} ends"}
                    store.add(child, [draft(child, Kind.CANCEL_REQUESTED, store.now(), data=said)])
                yield RunChild(child, first.step_name or "", path)
                continue
            _append(run, [_ended_child(run, path, child, first)], None, ())


def _ended_child(run: Run, path: str, child: str, first: Event) -> Event:
    """The row of what a child came to, as its parent's code would have been told."""
    store = run.runtime.store
    head = store.head(child)
    status = TaskStatus.CANCELLED if head is None else head.status  # None: it was never accepted
    done = status == TaskStatus.DONE
    ended = None if head is None else next(row for row in reversed(store.rows(child)) if row.kind == Kind.TASK_ENDED)
    error = None if done else dump({"kind": "child", "code": status, "detail": "" if head is None else head.why or ""})
    now = store.now()
    return draft(
        run.task_id, Kind.STEP_SETTLED, now, step_seq=first.step_seq, path=path, step_name=first.step_name, attempt=1,
        status=StepStatus.DONE if done else StepStatus.FAILED, effect_class=Effect.READ, error=error,
        output_ref=ended.output_ref if done and ended is not None else None, finished_at=now.wall, epoch=run.log.epoch,
        data={"child": child},
    )  # fmt: skip
