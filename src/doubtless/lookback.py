"""Look-back: asking the other system what happened, and writing down what it answered."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from . import canonical
from .calls import Frame, Raised, Reply, Request, Returned, Run
from .canonical import encode
from .effects import Policy, StepDefinition
from .errors import DoubtlessError, Moved, NotCanonical
from .events import CaseKind, Instant, Kind, draft, dump
from .fold import StepRecord
from .inputs import callback_params
from .outcomes import Found, NoEffect, Outcome, Pending, Several, Unclear, read_answer, storable, text_of
from .outputs import open_output_case, store_output
from .protocol import counts
from .recording import closing_rows, settled_rows, tell_cases


def look_back(run: Run, definition: StepDefinition, policy: Policy, record: StepRecord) -> Generator[Request, Reply, None]:
    """Ask the other system, and write down what it answered."""
    runtime = run.runtime
    assert definition.query is not None
    started = runtime.store.now()
    number = record.attempts[-1].number if record.attempts else 0
    try:
        kwargs = definition.query_params(callback_params(runtime, definition, record))
    except DoubtlessError as error:
        reply: Reply = Raised(error)
    else:
        reply = yield Frame(
            run, "query", record.path, definition, record.step_seq, number, policy, None, record, started, definition.query,
            kwargs,
        )  # fmt: skip
    if isinstance(reply, Raised) and not reply.entered:
        raise reply.error  # nobody was asked
    if isinstance(reply, Returned):
        answer = answered(reply.value)
    elif isinstance(reply, Raised):
        answer = Unclear(runtime.vault.mask(f"the query raised {text_of(reply.error)}")[:500])
    else:
        answer = Unclear(f"the query did not answer within {policy.timeout_us / 1e6:g} s")
    try:
        record_look(run, definition, policy, record, answer, started)
    except Moved:
        pass  # something newer is in the log: fold, decide again
    if isinstance(reply, Raised) and not isinstance(reply.error, Exception):
        run.park(f"the look-back of {record.name} at {record.path} was interrupted")
        raise reply.error


def answered(value: Any) -> Any:
    """What the query's value means; an object that does not even let itself be looked at is unclear."""
    try:
        return read_answer(value)
    except Exception as failure:  # noqa: BLE001 - an attribute of a foreign class may raise anything
        return Unclear(f"the query's value cannot be read: {text_of(failure)}")


def record_overrun_look(frame: Frame, outcome: Outcome) -> None:
    """The query was given up before it answered: that is unclear."""
    assert frame.record is not None
    answer = Unclear(f"the query did not answer: {outcome.detail}")
    record_look(frame.run, frame.definition, frame.policy, frame.record, answer, frame.started)


def record_look(run: Run, definition: StepDefinition, policy: Policy, record: StepRecord, answer: Any, started: Instant) -> None:
    """Write a look-back's row; `found` settles the step in the same transaction."""
    from .fold import Look  # the shape that `counts` takes

    runtime, now = run.runtime, run.runtime.store.now()
    kind = type(answer).__name__.lower() if not isinstance(answer, NoEffect) else "no_effect"
    why = storable(runtime.vault.mask(shown(getattr(answer, "why", "") or getattr(answer, "note", "") or "")))
    data: dict[str, Any] = {"answer": kind}
    again = answer.look_again_us if isinstance(answer, Pending) else None
    number = record.attempts[-1].number if record.attempts else 0
    if kind == "absent" and record.handles:
        why = why or "a handle is recorded: an absence is no proof"
    if isinstance(answer, Several):
        data["items"] = items_of(answer.items, runtime.vault.mask)
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
        run.task_id,
        Kind.LOOKED_BACK,
        now,
        status=record.status,
        data=data,
        started_at=started.wall,
        finished_at=now.wall,
        **common,
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


def shown(value: Any) -> str:
    """A value of the query as text, whatever its `__str__` does."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a foreign __str__
        return f"({type(value).__name__}, which cannot be read)"


def items_of(found: Any, mask: Callable[[str], str]) -> list[Any]:
    """The first things of `Several`, for a person to choose from: as JSON, or as text where they are no JSON."""
    try:
        first = list(found)[:20]
    except Exception:  # noqa: BLE001 - it may be anything, also an iterator that fails
        return [storable(mask(shown(found)))[:200]]
    try:
        items: list[Any] = canonical.decode(mask(encode(first)))
        dump(items)
    except (NotCanonical, TypeError, ValueError):
        return [storable(mask(shown(item)))[:200] for item in first]
    return items
