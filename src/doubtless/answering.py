"""The one answer that a case takes: whether it may be given, and the rows that say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import canonical
from .answers import (
    SPELLED,
    TAKES,
    Abandon,
    Answer,
    AnyAnswer,
    Compensate,
    Deny,
    DidNotHappen,
    Happened,
    Noted,
    Retry,
)  # fmt: skip
from .calls import Runtime
from .canonical import encode
from .effects import StepDefinition
from .errors import AlreadySettled, AnswerRefused, CaseChanged, Conflict, KeyHeld, Moved, UnknownCase
from .events import UNDO, CaseKind, Effect, Event, Kind, StepStatus, draft, dump
from .fold import StepRecord, fold_steps
from .holders import next_turn
from .inbox import Case, question_asked, read_case
from .log import Origin
from .outcomes import unstorable
from .outputs import store_output
from .questions import EXPIRED, Question, closing_rows, denial
from .recording import key_data
from .store.base import CaseRow
from .undoing import undo_row, undone_row

Authorize = Callable[[str, Case, AnyAnswer], bool]


def settle(
    runtime: Runtime, case_id: str, answer: AnyAnswer, *, by: str, why: str, shown: str, authorize: Authorize | None = None
) -> Case:
    """Take a person's answer: one per case, bound to what was shown. Durable at return; wakes the task.

    Raises: UnknownCase, AlreadySettled (by whom, when), CaseChanged (look again), AnswerRefused.
    """
    store = runtime.store
    while True:
        row = store.case(case_id)
        if row is None:
            raise UnknownCase(f"there is no case {case_id}", hint="doubtless inbox --store URL lists the open ones", case=case_id)
        if row.settled_seq is not None:
            raise already_settled(row, store.rows_at(row.task_id, [row.settled_seq])[0], question_asked(runtime, row))
        last = store.last(row.task_id)
        case, question = read_case(runtime, row), question_asked(runtime, row)
        if question is not None and question.is_over(store.now()):
            raise question.late()
        check_answer(case, answer, by, shown, why)
        if authorize is not None and not authorize(by, case, answer):
            raise AnswerRefused(f"{by} may not answer case {case_id} with {SPELLED[type(answer)]}", case=case_id, by=by)
        rows, blobs = answer_rows(runtime, case, answer, by, why, question)
        try:
            store.add(row.task_id, rows, expect=last.event_seq if last else None, blobs=blobs)
            return case
        except (Moved, KeyHeld):
            continue  # look again: the same evidence gives the same hash


def already_settled(row: CaseRow, closed: Event, question: Question | None) -> Conflict:
    """Who was first, and when; of a question that has expired: that the answer is late."""
    from datetime import UTC, datetime

    answer = closed.details.get("answer", "")
    if question is not None and answer == EXPIRED:
        return question.late()
    said = "" if answer == "settled" else f" with {answer}"
    when = datetime.fromtimestamp((row.settled_at or 0) / 1e6, UTC).isoformat(timespec="seconds")
    return AlreadySettled(
        f"case {row.case_id} is already settled, by {row.settled_by} at {when}{said}; your answer was not taken",
        hint=f"doubtless show {row.task_id} --store URL",
        case=row.case_id,
        by=row.settled_by,
    )


def check_answer(case: Case, answer: AnyAnswer, by: str, shown: str, why: str = "") -> None:
    """Refuse an answer of the wrong kind, without a name, or to something else than was shown."""
    takes = TAKES.get(case.kind, ())
    if not isinstance(answer, takes):
        known = ", ".join(SPELLED[a] for a in takes)
        raise AnswerRefused(
            f"a case of kind {case.kind} does not take {SPELLED.get(type(answer), type(answer).__name__)}",
            hint=f"it takes: {known}",
            case=case.id,
        )
    known_answers = case.evidence.get("fork", {}).get("answers", ()) if isinstance(answer, Answer) else ()
    if known_answers and answer.value not in known_answers:
        raise AnswerRefused(
            f"case {case.id} does not take the answer {answer.value!r}; nothing was written",
            hint=f"it takes: {', '.join(known_answers)}, or deny",
            case=case.id,
        )
    if isinstance(answer, DidNotHappen) and answer.then not in ("retry", "fail"):
        raise AnswerRefused(f"did_not_happen needs then=retry or then=fail, not {answer.then!r}", case=case.id)
    for name, text in (("by", by), ("why", why)):
        if (fault := unstorable(text)) is not None:
            raise AnswerRefused(f"{name} of an answer {fault}; nothing was written", case=case.id)
    if not by.strip():
        raise AnswerRefused("an answer needs a name: who says so?", hint="by=… (--by on the command line)", case=case.id)
    if len(shown) < 8 or not case.hash.startswith(shown.lower()):
        raise CaseChanged(
            f"case {case.id} is not what was shown ({shown or 'nothing'}): it has new evidence since, or another hash was given; "
            "your answer was not taken",
            hint=f"look at it again: doubtless inbox {case.id} --store URL",
            case=case.id,
            hash=case.hash,
        )


def answer_rows(
    runtime: Runtime, case: Case, answer: AnyAnswer, by: str, why: str, question: Question | None = None
) -> tuple[list[Event], list[Any]]:
    """The rows that an answer writes, in one transaction: the case's end, and what follows from it at once."""
    now = runtime.store.now()
    if question is not None:
        return question_rows(runtime, question, case, answer, by, why)
    records = fold_steps(runtime.store.rows(case.task_id)) if case.path is not None else {}
    record = records.get(case.path or "")
    where: dict[str, Any] = {"path": case.path, "step_name": case.step, "step_seq": record.step_seq if record else None}
    data: dict[str, Any] = {
        "case_id": case.id, "answer": SPELLED[type(answer)], "by": by, "why": why, "shown": case.hash,
        "wake": not isinstance(answer, Noted),
    }  # fmt: skip
    blobs: list[Any] = []
    after: list[Event] = []
    output_ref: str | bytes | None = None
    error: str | None = None
    match answer:
        case DidNotHappen():
            data |= {"then": answer.then, "even_now": answer.even_now}
        case Happened() | Answer():
            value = answer.output if isinstance(answer, Happened) else answer.value
            ref, blobs = given_output(runtime, case, value)
            if isinstance(answer, Answer):
                output_ref = ref
            else:
                after.append(settled_row(case, where, now, StepStatus.DONE, record, output_ref=ref))
                if case.kind == CaseKind.COMPENSATION:
                    original = records[(case.path or "").removeprefix(UNDO)]
                    origin = Origin(original.name, original.step_seq, None)
                    after.append(undone_row(case.task_id, case.path or "", origin, now, None))
        case Abandon():
            failure = dump({"kind": "abandoned", "code": "abandoned", "detail": f"by {by}: {why}"})
            after.append(settled_row(case, where, now, StepStatus.FAILED, record, error=failure))
        case Deny() if case.kind == CaseKind.OUTPUT:
            error = dump({"kind": "abandoned", "code": "output_denied", "detail": f"by {by}: {why}"})
        case Compensate():
            after.append(undo_row(case.task_id, case.evidence["failure"], now, len(case.evidence["obligations"])))
        case Retry():
            after += retry_rows(runtime, case, by, now)
        case _:
            pass
    closed = draft(case.task_id, Kind.CASE_SETTLED, now, data=data, output_ref=output_ref, error=error, **where)
    return [closed, *after], blobs


def question_rows(
    runtime: Runtime, question: Question, case: Case, answer: AnyAnswer, by: str, why: str
) -> tuple[list[Event], list[Any]]:
    """The rows of a person's answer to a question. Refused when it does not fit the question's schema."""
    now, blobs = runtime.store.now(), list[Any]()
    ended: dict[str, Any] = {"error": denial(question, by, why)}
    if isinstance(answer, Answer):
        text = runtime.vault.mask(encode(answer.value, where="the answer"))
        fault = question.fault_of(canonical.decode(text))
        if fault is not None:
            raise AnswerRefused(
                f"this is no answer to {question.name!r}: {fault}; nothing was written",
                hint=f"doubtless inbox {case.id} shows what it takes",
                case=case.id,
            )
        ref, blob = runtime.content.put(text)
        ended, blobs = {"output_ref": ref}, [] if blob is None else [blob]
    rows = closing_rows(question, now, answer=SPELLED[type(answer)], by=by, why=why, shown=case.hash, wake=True, **ended)
    return rows, blobs


def settled_row(case: Case, where: dict[str, Any], now: Any, status: StepStatus, record: StepRecord | None, **more: Any) -> Event:
    """The row that a person's answer settles a step with."""
    number = len(record.attempts) or None if record is not None else None
    data = key_data(record.once) if record is not None else None
    return draft(case.task_id, Kind.STEP_SETTLED, now, status=status, attempt=number, data=data, **where, **more)


def retry_rows(runtime: Runtime, case: Case, by: str, now: Any) -> list[Event]:
    """A retry after a step's attempts were used up reopens it and grants one more."""
    if case.evidence.get("failure") != "exhausted":
        return []
    path = case.evidence["path"]
    record = fold_steps(runtime.store.rows(case.task_id)).get(path)
    if record is None or (record.effect != Effect.READ and not record.keys):  # taken over by a fork: nothing of it can be sent
        return []
    status = StepStatus.STARTED if record.effect == Effect.READ else StepStatus.UNCERTAIN
    data: dict[str, Any] = {"why": "retry", "by": by, "case_id": case.id}
    if record.once is not None:  # it was freed when the step was given up
        data |= {"once": record.once, "turn": turn_again(runtime, record, now)}
        data |= {} if record.once_window_us is None else {"window_us": record.once_window_us}
    return [
        draft(
            case.task_id,
            Kind.RETRY_ALLOWED,
            now,
            path=path,
            step_name=record.name,
            step_seq=record.step_seq,
            status=status,
            data=data,
        )  # fmt: skip
    ]


def turn_again(runtime: Runtime, record: StepRecord, now: Any) -> int:
    """The turn in which a reopened step takes its business key again. Raises: AnswerRefused, while another step has it."""
    key = runtime.store.key(record.once or "")
    turn = next_turn(key, record.once_window_us, now)
    if turn or key is None:
        return turn or 1
    raise AnswerRefused(
        f"the step cannot be retried: its business key {key.once!r} is held by the step at {key.path} of task {key.task_id} now; "
        "your answer was not taken",
        hint=f"doubtless show {key.task_id}",
        task=key.task_id,
        path=key.path,
    )


def given_output(runtime: Runtime, case: Case, value: Any) -> tuple[str | bytes | None, list[Any]]:
    """A person's output in its stored form. Refused when it has none, or does not fit the step's annotation."""
    undoes = case.kind == CaseKind.COMPENSATION  # its output is evidence: no annotation asks anything of it
    definition: StepDefinition | None = None if undoes else runtime.find(case.step or "")
    if definition is None:
        ref, blob = runtime.content.put(encode(value, where="the output"))
        return ref, [] if blob is None else [blob]
    output = store_output(runtime, definition, value)
    if output.fault is not None:
        raise AnswerRefused(
            f"this output does not do for {case.step}: {output.fault}; your answer was not taken",
            hint="give what the step would have returned: output=… (--output JSON on the command line)",
            case=case.id,
        )
    return output.ref, list(output.blobs)
