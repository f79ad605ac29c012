"""Cases: what only a person can know, with its evidence, as that person sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import canonical
from .answers import (
    DOES,
    DOES_AT_THE_END,
    DOES_THERE,
    SPELLED,
    TAKES,
    UNDOES,
)  # fmt: skip
from .calls import Runtime
from .canonical import encode
from .canonical_writer import CHUNK
from .errors import StoreDamaged
from .events import CaseKind, Effect, Event, Kind, dump
from .fold import StepRecord, fold_steps
from .questions import Question, is_question, moment, question_of
from .store.base import CaseRow


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
    wish = wish_to_cancel(events)
    if wish is not None and not is_question(opened):
        evidence["cancelled"] = wish
        if row.kind == CaseKind.DOUBT:
            answers |= {SPELLED[a]: text for a, text in DOES_AT_THE_END.items()}
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


def wish_to_cancel(events: Iterable[Event]) -> dict[str, Any] | None:
    """Who wants the task of these rows cancelled, and why; None: nobody does, or it has ended."""
    wish: dict[str, Any] | None = None
    for event in events:
        if event.kind == Kind.CANCEL_REQUESTED and wish is None:
            wish = {name: event.details[name] for name in ("by", "why")}
        elif event.kind == Kind.TASK_ENDED:
            return None
    return wish


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


def question_asked(runtime: Runtime, row: CaseRow) -> Question | None:
    """The question that a case is, if it is one."""
    if row.kind != CaseKind.QUESTION:
        return None
    opened = runtime.store.rows_at(row.task_id, [row.event_seq])[0]
    return question_of(opened) if is_question(opened) else None
