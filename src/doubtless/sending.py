"""Events from outside: one row each, taken by the wait of their name; sent twice with one id, they are one event."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import canonical
from .calls import Runtime
from .canonical import encode
from .errors import EventRefused, Moved, UnknownTask, UsageError
from .events import TERMINAL, Event, Kind, draft
from .outcomes import unstorable
from .questions import EXPIRED, Question, closing_rows, is_question, open_questions, question_of

_KINDS = (Kind.EVENT_RECEIVED, Kind.CASE_OPENED, Kind.CASE_SETTLED)


class Received(NamedTuple):
    """An event as the log has it: the same whenever it is sent again. `event_seq`: its row."""

    task_id: str
    name: str
    event_id: str
    event_seq: int


def receive(runtime: Runtime, task_id: str, name: str, payload: Any, event_id: str) -> Received:
    """Record an event, once per id; and where its task waits for it, that it is the answer, in the same transaction.

    Raises: UnknownTask, EventRefused, Late, UsageError; then nothing is written.
    """
    for what, text in (("name", name), ("event_id", event_id)):
        fault = "is a text that is not empty" if not isinstance(text, str) or not text else unstorable(text)
        if fault is not None:
            raise UsageError(f"the {what} of an event {fault}; nothing was written")
    text = runtime.vault.mask(encode(payload, where="the payload"))
    store = runtime.store
    while True:
        head, last = store.head(task_id), store.last(task_id)
        if head is None or last is None or task_id.startswith("$"):
            raise UnknownTask(f"there is no task {task_id}: the event was not taken", hint="doubtless tasks", task=task_id)
        rows = store.rows_of(task_id, _KINDS)
        known = sent_before(runtime, rows, name, event_id, text)
        if known is not None:
            return known
        if head.status in TERMINAL:
            raise EventRefused(
                f"task {task_id} has ended ({head.status}): it takes no events any more; nothing was written",
                hint=f"doubtless show {task_id}",
                task=task_id,
            )
        if store.first(task_id).details.get("session"):
            raise EventRefused(
                f"task {task_id} is a session: nothing in it can wait for an event; nothing was written",
                hint="tell its host, whose loop it is; or the task that waits: a session has no app.wait_for",
                task=task_id,
            )
        now = runtime.store.now()
        question = waiting_for(runtime, rows, name)
        if question is not None and (fault := question.fault_of(canonical.decode(text))) is not None:
            raise EventRefused(
                f"task {task_id} waits for {name!r}, and this payload does not fit: {fault}; nothing was written",
                hint=f"doubtless inbox {question.case_id} shows what it takes",
                task=task_id,
                case=question.case_id,
            )
        ref, blob = runtime.content.put(text)
        seq = last.event_seq + 1
        drafts = [draft(task_id, Kind.EVENT_RECEIVED, now, data={"name": name, "event_id": event_id}, output_ref=ref)]
        if question is not None:
            by = f"event {event_id}"
            drafts += closing_rows(question, now, answer="event", by=by, why="", output_ref=ref, event=seq, wake=True)
        try:
            store.add(task_id, drafts, expect=last.event_seq, blobs=() if blob is None else (blob,))
            return Received(task_id, name, event_id, seq)
        except Moved:
            continue


def sent_before(runtime: Runtime, rows: list[Event], name: str, event_id: str, text: str) -> Received | None:
    """The event of this id, if there is one. Raises EventRefused when it was another one."""
    row = next((r for r in rows if r.kind == Kind.EVENT_RECEIVED and r.details["event_id"] == event_id), None)
    if row is None:
        return None
    logged = "null" if row.output_ref is None else runtime.content.get(row.output_ref)
    if row.details["name"] != name or logged != text:
        other = "another name" if row.details["name"] != name else "another payload"
        raise EventRefused(
            f"task {row.task_id} has an event {event_id} already, with {other}; nothing was written",
            hint="one id is one event: use another id, or send the same again",
            task=row.task_id,
            event_id=event_id,
        )
    return Received(row.task_id, name, event_id, row.event_seq)


def waiting_for(runtime: Runtime, rows: list[Event], name: str) -> Question | None:
    """The open question that an event of this name answers: the first one; None: it comes before the wait.

    Raises: Late when the only wait that it can be for has expired: kept, it would answer a question asked later.
    """
    now = runtime.store.now()
    waiting = [question for question in open_questions(rows) if question.name == name]
    for question in waiting:
        if not question.is_over(now):
            return question
    if waiting:
        raise waiting[-1].late()
    asked = [question_of(row) for row in rows if is_question(row)]
    before = next((question for question in reversed(asked) if question.name == name), None)
    ends = {r.details["case_id"]: r.details["answer"] for r in rows if r.kind == Kind.CASE_SETTLED}
    if before is not None and ends.get(before.case_id) == EXPIRED:
        raise before.late()
    return None
