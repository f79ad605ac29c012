"""Cases: what only a person can know, with its evidence, and the one answer that each of them takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import canonical
from .answers import (
    DOES,
    DOES_THERE,
    SPELLED,
    TAKES,
    UNDOES,
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
from .canonical_writer import CHUNK
from .effects import StepDefinition
from .errors import AlreadySettled, AnswerRefused, CaseChanged, Conflict, KeyHeld, Moved, StoreDamaged, UnknownCase
from .events import UNDO, CaseKind, Effect, Event, Kind, StepStatus, draft, dump
from .fold import StepRecord, fold_steps
from .holders import next_turn
from .log import Origin
from .outcomes import unstorable
from .outputs import store_output
from .questions import EXPIRED, Question, closing_rows, denial, is_question, moment, question_of
from .recording import key_data
from .store.base import CaseRow
from .undoing import undo_row, undone_row


class Case(NamedTuple):
    """A question to a person, with its evidence. Bound to `hash`: new evidence changes it.

    Shapes: `id` is ``<task>:<event_seq>``; `evidence` is JSON; `answers` maps each answer that it takes to what it
    would do; `opened_at` is microseconds of the store's clock.
    """

    id: str
    task_id: str
    kind: str
    why: str
    path: str | None
    step: str | None
    opened_at: int
    evidence: dict[str, Any]
    answers: dict[str, str]
    hash: str


class Doubt(NamedTuple):
    """An unsettled write that nobody is settling: its owner is dead, or it is past `settle_within`, without a case yet."""

    task_id: str
    path: str
    step: str
    why: str
    since: int


class Inbox(NamedTuple):
    """What waits for a person (`cases`) or for somebody to resume the task (`doubts`)."""

    cases: list[Case]
    doubts: list[Doubt]


# ---------------------------------------------------------------- reading


def read_case(runtime: Runtime, row: CaseRow) -> Case:
    """A case as a person sees it now, and the hash of what that is."""
    events = runtime.store.rows(row.task_id)
    opened = next(e for e in events if e.event_seq == row.event_seq)
    data = opened.details
    record = fold_steps(events).get(row.path) if row.path is not None else None
    evidence: dict[str, Any] = {k: v for k, v in data.items() if k not in ("kind", "why")}
    if record is not None:
        evidence |= step_evidence(runtime, record, events)
    does = DOES | UNDOES if row.kind == CaseKind.COMPENSATION else DOES
    answers = {SPELLED[a]: does[a] for a in TAKES.get(row.kind, ())}
    if "fork" in evidence:
        answers = fork_question(runtime, opened, evidence)
    elif is_question(opened):
        evidence = question_evidence(runtime, question_of(opened))
        answers = {SPELLED[a]: DOES_THERE[a] for a in TAKES[row.kind]}
    shown = encode({"case": row.case_id, "kind": row.kind, "why": data.get("why", ""), "evidence": json.loads(dump(evidence))})
    digest = canonical.content_hash(shown.encode()).hex()
    return Case(
        row.case_id,
        row.task_id,
        row.kind,
        data.get("why", ""),
        row.path,
        opened.step_name,
        row.opened_at,
        evidence,
        answers,
        digest,
    )


OF_A_FORK = {
    "reuse": "this write is not made: the output that stands is taken over, and the fork owes no compensation for it",
    "run": "this write is made, under the fork's own key: a second effect, on purpose",
    "reuse_all": "as reuse, also for the fork's later writes of this class that stand unchanged at their place",
    "run_all": "as run, also for all later writes of this class in the fork",
}
"""What each answer to a fork's question would do."""


def fork_question(runtime: Runtime, opened: Event, evidence: dict[str, Any]) -> dict[str, str]:
    """Fill a fork's question with the write's params and what stands as it is now; what each answer would do."""
    if opened.input_ref is not None:
        evidence["params"] = read_ref(runtime, opened.input_ref)
    for one in evidence["stands"]:
        record = fold_steps(runtime.store.rows(one["task"], path=one["path"])).get(one["path"])
        if record is not None:
            one |= {"status": record.status, "params": read_ref(runtime, record.input_ref)}
            one["output"] = read_ref(runtime, record.output_ref)
    told = "; ".join(f'"{answer}": {OF_A_FORK[answer]}' for answer in evidence["fork"]["answers"])
    return {"answer": told, "deny": "this write is not made: the fork's code sees StepFailed('not_applied', 'denied')"}


def _read_or_told(runtime: Runtime, row: CaseRow) -> Case:
    """A case of the list; one that cannot be read says why, takes no answer, and hides no other."""
    try:
        return read_case(runtime, row)
    except Exception as error:  # noqa: BLE001  whatever a damaged or foreign content raises, the cases of others are readable
        why = f"this case cannot be shown ({type(error).__name__}: {error}); doubtless verify says what is damaged"
        evidence = {"unreadable": f"{type(error).__name__}: {error}"}
        digest = canonical.content_hash(encode({"case": row.case_id, "kind": row.kind}).encode()).hex()
        return Case(row.case_id, row.task_id, row.kind, why, row.path, None, row.opened_at, evidence, {}, digest)


def step_evidence(runtime: Runtime, record: StepRecord, events: Iterable[Event]) -> dict[str, Any]:
    """Everything that the log knows of a step: params, keys, every attempt, every look-back, late news."""
    params = canonical.decode(runtime.content.get(record.input_ref)) if record.input_ref is not None else {}
    looks: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    for event in events:
        if event.path != record.path:
            continue
        if event.kind == Kind.LOOKED_BACK:
            data = event.details
            look = {k: data[k] for k in ("answer", "why", "items") if k in data}
            if not looks or looks[-1]["look"] != look:  # the same answer again is no new evidence
                looks.append({"look": look, "attempt": event.attempt})
        elif event.kind == Kind.EVIDENCE_STORED:
            said = {name: value for name, value in event.details.items() if name != "wake"}
            late.append({**said, "attempt": event.attempt, "output": read_ref(runtime, event.output_ref)})
    attempts = [
        {
            "attempt": a.number,
            "outcome": a.outcome or "in flight",
            "code": a.code,
            "detail": a.detail,
            "started_at": a.started.wall,
        }
        for a in record.attempts
    ]
    return {
        "step": record.name, "effect": str(record.effect), "params": jsonable(params), "keys": [k.hex() for k in record.keys],
        "handles": record.handles, "attempts": attempts, "looks": [entry["look"] for entry in looks], "late": late,
    }  # fmt: skip


def question_evidence(runtime: Runtime, question: Question) -> dict[str, Any]:
    """What a person needs to answer a question: what it is about, what an answer looks like, until when."""
    asked = canonical.decode(runtime.content.get(question.input_ref)) if question.input_ref is not None else {}
    until = None if question.deadline is None else moment(question.deadline).isoformat()
    return {"name": question.name, "about": jsonable(asked.get("about")), "schema": question.schema, "deadline": until}


def read_ref(runtime: Runtime, ref: str | bytes | None) -> Any:
    """The content behind a ref as JSON, or None."""
    return None if ref is None else shown_json(runtime.content.get(ref))


def jsonable(tree: Any) -> Any:
    """A decoded tree as plain JSON values (tags as in the canonical form; a secret as its reference)."""
    return _unwrapped(shown_json(encode(tree)))


def shown_json(text: str) -> Any:
    """Stored JSON as it is shown: an int too long for the interpreter to write is ``{"$int": "its digits"}``.

    The limit is a property of the process (4300 digits, or fewer where it was set so); what is shown is the same in all.
    """
    return json.loads(text, parse_int=_shown_int)


def _shown_int(digits: str) -> Any:
    return int(digits) if len(digits) <= CHUNK else {"$int": digits}


def _unwrapped(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_unwrapped(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    inner = tree.get("$map")
    if len(tree) == 1 and isinstance(inner, dict) and list(inner) == ["$secret"]:
        return inner
    return {key: _unwrapped(value) for key, value in tree.items()}


def read_inbox(runtime: Runtime, settle_within: Callable[[str], int]) -> Inbox:
    """Open cases, oldest first, and every doubt that nobody is settling (I6: none is silent)."""
    store = runtime.store
    cases = [_read_or_told(runtime, row) for row in store.cases()]
    about = {(case.task_id, case.path) for case in cases}
    doubts: list[Doubt] = []
    now = store.now()
    for head in store.heads(status=("ready", "running", "waiting", "needs_human", "compensating")):
        head, alive = store.owned(head)
        try:
            records = fold_steps(store.rows(head.task_id))
        except StoreDamaged as error:  # it hides no other task's
            why = f"its log is damaged, and may hold writes in doubt: {error.message}"
            doubts.append(Doubt(head.task_id, "", head.task_name, why, head.updated_at))
            continue
        for record in records.values():
            if record.settled or record.effect == Effect.READ or (head.task_id, record.path) in about:
                continue
            if record.settle_from is None:
                continue
            age = now.wall - record.settle_from.wall
            if head.owner is not None and not alive:  # also where nothing is unknown any more: nobody sends it again
                why = "its owner died; whoever resumes the task settles it"
            elif not (record.gravest == "unknown" or record.in_flight):
                continue
            elif not alive and head.status not in ("waiting", "compensating"):
                why = "nobody is settling it; resume the task"
            elif age >= settle_within(record.name):
                why = "it is not settled within settle_within"
            else:
                continue
            doubts.append(Doubt(head.task_id, record.path, record.name, why, record.settle_from.wall))
    return Inbox(cases, doubts)


# ---------------------------------------------------------------- settling


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


def question_asked(runtime: Runtime, row: CaseRow) -> Question | None:
    """The question that a case is, if it is one."""
    if row.kind != CaseKind.QUESTION:
        return None
    opened = runtime.store.rows_at(row.task_id, [row.event_seq])[0]
    return question_of(opened) if is_question(opened) else None


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
            raise AnswerRefused(f"this is no answer to {question.name!r}: {fault}; nothing was written", case=case.id)
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
