"""What ``--json`` prints: the stable shapes. Times are RFC 3339 in UTC; durations and evidence are as the log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .typed import typed, utc

if TYPE_CHECKING:
    from ..events import Event
    from ..inbox import Case, Doubt
    from ..store.base import Head
    from ..timeline import StepView, TaskView


def time(us: int | None) -> str | None:
    """A stored time, or null."""
    return None if us is None else utc(us)


def task_line(head: Head) -> dict[str, Any]:
    """One task in a list."""
    return {
        "id": head.task_id, "task": head.task_name, "status": head.status, "why": head.why, "owner": head.owner,
        "wake_at": time(head.wake_at), "created_at": utc(head.created_at), "updated_at": utc(head.updated_at),
        "queue": head.queue, "priority": head.priority,
    }  # fmt: skip


def task(view: TaskView, next_commands: list[str]) -> dict[str, Any]:
    """Everything that `show` tells of a task."""
    return {
        "id": view.id, "task": view.name, "status": view.status, "why": view.why, "params": view.params, "output": view.output,
        "error": view.error, "owner": view.owner, "owner_alive": view.owner_alive, "wake_at": time(view.wake_at),
        "created_at": utc(view.created_at), "updated_at": utc(view.updated_at), "steps": [step(each) for each in view.steps],
        "cases": [case(each, None) for each in view.cases], "stands": list(view.stands), "next": next_commands,
        "unacknowledged": list(view.unacknowledged), "cancelled": view.cancelled,
        "forked_from": None if view.forked_from is None else {"task": view.forked_from[0], "at": view.forked_from[1]},
    }  # fmt: skip


def step(view: StepView) -> dict[str, Any]:
    """One step, with how often it was really called and how it was settled."""
    attempts = [
        {
            "attempt": a.number, "outcome": a.outcome, "code": a.code, "detail": a.detail, "started_at": utc(a.started_at),
            "ended_at": time(a.ended_at),
        }
        for a in view.attempts
    ]  # fmt: skip
    return {
        "path": view.path, "step_seq": view.step_seq, "step": view.name, "effect": view.effect, "status": view.status,
        "calls": view.calls, "settled_by": view.settled_by, "params": view.params, "output": view.output, "error": view.error,
        "keys": list(view.keys), "handles": list(view.handles), "attempts": attempts,
        "story": [{"at": utc(moment.at), "what": moment.what} for moment in view.story],
        "changed": [change._asdict() for change in view.changed],
    }  # fmt: skip


def case(shown: Case, settled: Event | None) -> dict[str, Any]:
    """A case with its evidence, what each answer would do, and the commands to type. `settled`: its CaseSettled row."""
    done = None
    if settled is not None:
        done = {**{k: settled.details.get(k) for k in ("answer", "by", "why")}, "at": utc(settled.at.wall)}
    return {
        "id": shown.id, "task": shown.task_id, "kind": shown.kind, "why": shown.why, "path": shown.path, "step": shown.step,
        "opened_at": utc(shown.opened_at), "evidence": shown.evidence, "answers": shown.answers, "hash": shown.hash,
        "settled": done, "commands": answer_commands(shown) if settled is None else {},
    }  # fmt: skip


def doubt(found: Doubt) -> dict[str, Any]:
    """A doubt that nobody is settling."""
    return {"task": found.task_id, "path": found.path, "step": found.step, "why": found.why, "since": utc(found.since)}


def event(row: Event) -> dict[str, Any]:
    """A row of the log with its columns as they are stored: digests in hex, refs by their scheme, times in microseconds."""
    shown: dict[str, Any] = row._asdict()
    for name in ("idempotency_key", "input_hash", "prev_hash"):
        value = shown[name]
        shown[name] = None if value is None else value.hex()
    for name in ("input_ref", "output_ref", "data"):
        if isinstance(shown[name], bytes):
            shown[name] = f"sha256:{shown[name].hex()}"
    return shown


def answer_commands(shown: Case) -> dict[str, list[str]]:
    """For each answer that a case takes, what to type; what a person fills in is in capitals."""
    more: dict[str, list[dict[str, str]]] = {
        "happened": [{"output": "JSON"}], "answer": [{"output": "JSON"}],
        "did_not_happen": [{"then": "retry"}, {"then": "fail"}],
    }  # fmt: skip
    if "fork" in shown.evidence:
        more["answer"] = [{"output": f"'\"{word}\"'"} for word in shown.evidence["fork"]["answers"]]
    who = {"by": "NAME", "why": "TEXT", "shown": shown.hash[:8]}
    return {
        answer: [typed("settle", "MODULE:APP", shown.id, answer, **options, **who) for options in more.get(answer, [{}])]
        for answer in shown.answers
    }
