"""Obligations: what a failed task has to undo, in which order, and what stands in the end. Read off the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import canonical
from .calls import Runtime
from .effects import Deadline
from .events import UNDO, Effect, Event, Kind, StepStatus
from .fold import Attempt, StepRecord, fold_steps
from .log import Origin


class Obligation(NamedTuple):
    """A done step with a registered compensation, or a done child task, and what has come of that.

    `undoing`: the fold of the compensation's rows, or None. `compensate`: its name; of a child task: the task's own.
    """

    record: StepRecord
    compensate: str
    deadline: Deadline | None
    secret: frozenset[str]
    undoing: StepRecord | None
    child: str | None = None
    """Of a child task that is done: its id. What it did is undone in its own log, in reverse."""

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


def obligations(runtime: Runtime, rows: Sequence[Event]) -> list[Obligation]:
    """What a failed task has to undo: the done steps with a registered compensation whose effect it made, the latest first.

    A child task that is done is one, where it has done something itself that has to be undone.
    """
    done_at = {r.path: r.event_seq for r in rows if r.kind == Kind.STEP_SETTLED and r.status == StepStatus.DONE}
    records, children = fold_steps(rows), children_of(rows)
    found: list[Obligation] = []
    for path, record in records.items():
        if path[0] == UNDO or record.origin is not None or record.status not in (StepStatus.DONE, StepStatus.COMPENSATED):
            continue  # another task made the effect; or there is none
        undoing = records.get(UNDO + path)
        if path in children:
            if obligations(runtime, runtime.store.rows(children[path])):
                found.append(Obligation(record, record.name, None, frozenset(), undoing, children[path]))
        elif record.effect != Effect.READ and record.policy_digest is not None:
            policy = canonical.decode(runtime.content.get(record.policy_digest))
            if policy.get("compensate"):
                found.append(_of_step(record, policy, undoing))
    return sorted(found, key=lambda one: -done_at.get(one.record.path, 0))


def _of_step(record: StepRecord, policy: Mapping[str, Any], undoing: StepRecord | None) -> Obligation:
    within = policy.get("compensate_deadline_us")
    deadline = None if within is None else Deadline(first_effect(record).started, within)
    return Obligation(record, policy["compensate"], deadline, frozenset(policy.get("secret", ())), undoing)


def children_of(rows: Sequence[Event]) -> dict[str, str]:
    """The ids of the child tasks that these rows name, by their places."""
    return {r.path: r.details["child"] for r in rows if r.path and isinstance(r.data, str) and "child" in r.details}


def first_effect(record: StepRecord) -> Attempt:
    """The first attempt that may have had the effect: none that was not sent, was refused, or proven to be absent."""
    may = [a for a in record.attempts if a.outcome not in ("not_sent", "rejected") and not a.cleared]
    return (may or record.attempts)[0]


def standing(runtime: Runtime, rows: Sequence[Event]) -> list[dict[str, Any]]:
    """What stands of a task that has ended: writes that were not undone, the latest first; of child tasks, too."""
    owed = {one.record.path: one for one in obligations(runtime, rows)}
    children = children_of(rows)
    stands: list[dict[str, Any]] = []
    for path, record in fold_steps(rows).items():
        if path in children:
            below = standing(runtime, runtime.store.rows(children[path]))
            stands += [{**entry, "task": entry.get("task", children[path])} for entry in reversed(below)]
        elif path[0] == UNDO or record.origin is not None or record.effect == Effect.READ:
            continue
        elif record.status == StepStatus.FAILED or (record.status == StepStatus.NOT_APPLIED and record.evidence is not None):
            # A late success: what was settled stays settled (I3), and what came of it stands, undone by nobody.
            stands.append({"path": path, "step": record.name, "compensate": None, "may": True})
        elif record.status == StepStatus.DONE and path in owed:
            undoing = owed[path].undoing
            may = {"may": True} if undoing is not None and undoing.status == StepStatus.FAILED else {}
            stands.append(owed[path].entry() | may)
        elif record.status == StepStatus.DONE:
            stands.append({"path": path, "step": record.name, "compensate": None})
    return stands[::-1]
