"""What a run came through: so that a simulation that never gets into trouble is noticed."""

from __future__ import annotations

from collections import Counter

from doubtless.events import TERMINAL, UNDO, CaseKind, Effect, Event, Kind, StepStatus
from doubtless.fold import fold_steps

from .check import open_store
from .play import Play
from .program import every
from .scenario import HOWS, LOOKS, STORE_FAULTS, Ask, Child, Read, Sleep, Together, Write

SITUATIONS = (
    "takeover", "takeover with a write in doubt", "takeover of an undo in doubt", "a look-back found it", "proven absent", "sent again after an absence",
    "given up after an absence", "a late success settles", "a late success is evidence", "a contradiction", "a case by settle_within",
    "a look that did not count", "a key's next generation", "a key met again", "an attempt after a person's permission", "already undone",
    "a handle was recorded", "undone in order", "an undo in doubt", "an undo for a person", "an exhausted step", "a cancelled task", "a compensated task",
    "a failed task", "a done task", "two answer at once", "a child task", "branches side by side", "a call overran",
    "an owner taken for dead",
)  # fmt: skip
"""The situations that many seeds together have to come through."""


def expected() -> list[str]:
    """Everything that must be there: a count of zero means that the simulation has lost a part of its world."""
    faults = ["kill", "stop", "second", "jump", "cancel", "freeze", "restart", "deploy", "unlock", *STORE_FAULTS]
    return [
        *(f"fault {what}" for what in faults), *(f"call {how}" for how in HOWS), *(f"look {how}" for how in LOOKS if how != "true"),
        *(f"write {kind}" for kind in ("absent", "query", "blind", "key", "window", "once")), "node Read", "node Sleep", "node Ask",
        "node Together", "node Child", "async", "host worker", "host arun", *SITUATIONS,
    ]  # fmt: skip


def situations(played: Play) -> Counter[str]:
    """Count what this run came through."""
    seen = Counter(played.seen)
    seen.update(played.world.seen)
    scenario = played.scenario
    seen["async"] += scenario.is_async
    seen[f"host {scenario.host}"] += 1
    for node in every(scenario.nodes):
        seen["a child task"] += isinstance(node, Child)
        seen["branches side by side"] += isinstance(node, Together)
        seen[f"write {node.kind}" if isinstance(node, Write) else f"node {type(node).__name__}"] += 1
    seen["points"] += played.points
    seen["hand-overs"] += played.kernel.switches
    seen["processes"] += len(played.kernel.processes) - 1
    store = open_store(played)
    try:
        for head in store.heads():
            if not head.task_id.startswith("$"):
                if head.status in TERMINAL:
                    seen[f"a {head.status} task"] += 1
                _of_log(seen, store.rows(head.task_id))
    finally:
        store.close()
    return seen


def _of_log(seen: Counter[str], rows: list[Event]) -> None:
    _takeovers(seen, rows)
    for row in rows:
        details = row.details
        if row.kind == Kind.LOOKED_BACK:
            seen[f"looked back: {details.get('answer')}"] += 1
            if details.get("answer") == "absent" and not details.get("counts"):
                seen["a look that did not count"] += 1
        elif row.kind == Kind.EVIDENCE_STORED and details.get("what") == "late_result":
            seen["a late success is evidence"] += 1
        elif row.kind == Kind.RETRY_ALLOWED:
            seen["an attempt after a person's permission"] += 1
        elif row.kind == Kind.HANDLE_RECORDED:
            seen["a handle was recorded"] += 1
        elif row.kind == Kind.CASE_OPENED:
            seen[f"case {details.get('kind')}"] += 1
            seen["a contradiction"] += details.get("kind") == CaseKind.CONTRADICTION
            seen["an undo for a person"] += details.get("kind") == CaseKind.COMPENSATION
            seen["a case by settle_within"] += "settle_within" in str(details.get("why"))
            seen["an exhausted step"] += "exhausted" in str(details.get("why"))
        elif row.kind == Kind.ATTEMPT_ENDED and row.error is not None:
            seen["a call overran"] += "timeout" in row.error
    records = fold_steps(rows)
    for path, record in records.items():
        if record.effect == Effect.READ:
            continue
        answers = [look.answer for look in record.looks]
        evidence = any(r.path == path and r.kind == Kind.EVIDENCE_STORED and r.details.get("what") == "late_result" for r in rows)
        seen["a late success settles"] += evidence and record.status == StepStatus.DONE
        seen["a look-back found it"] += "found" in answers
        seen["proven absent"] += record.absent or any(a.cleared for a in record.attempts)
        seen["sent again after an absence"] += any(a.cleared for a in record.attempts) and len(record.attempts) > 1
        seen["given up after an absence"] += record.absent and record.status == StepStatus.NOT_APPLIED
        seen["a key's next generation"] += record.generation > 0
        seen["an undo in doubt"] += record.undoes and any(a.outcome == "unknown" for a in record.attempts)
    undone = [path for path in records if path.startswith(UNDO)]
    seen["undone in order"] += len(undone) > 1


def _takeovers(seen: Counter[str], rows: list[Event]) -> None:
    for number, row in enumerate(rows):
        if row.kind == Kind.TASK_CLAIMED:
            seen["takeover"] += 1
            doubts = [r for r in fold_steps(rows[: number + 1]).values() if r.in_doubt]
            seen["takeover with a write in doubt"] += any(not r.undoes for r in doubts)
            seen["takeover of an undo in doubt"] += any(r.undoes for r in doubts)


__all__ = ["SITUATIONS", "Ask", "Child", "Read", "Sleep", "Together", "expected", "situations"]
