"""The log as an owner and a person write it: rows in one append, an epoch that is checked, and the real fold."""

from __future__ import annotations

from typing import Any

from doubtless import canonical
from doubtless.events import ASKING, CaseKind, Event, Kind, StepStatus, draft, seal
from doubtless.fold import StepRecord, fold_step

from .world import FAULT, NAMESPACE, TASK, Slice, State


class Stale(Exception):
    """The append was refused: another claim has the task (I4)."""


class Rows:
    """What every hand shares: how a row is made, appended and folded."""

    def __init__(self, explored: Slice) -> None:
        self.slice = explored
        self.bound = tuple(explored.may.get(fault, 0) for fault in FAULT)

    def spend(self, state: State, *faults: str | None) -> State | None:
        """The state with these faults spent; None where the slice's bound is reached."""
        spent = list(state.spent)
        for fault in faults:
            if fault is not None:
                spent[FAULT[fault]] += 1
                if spent[FAULT[fault]] > self.bound[FAULT[fault]]:
                    return None
        return state._replace(spent=tuple(spent))

    def append(self, state: State, owner: int | None, *drafts: Event) -> State:
        """Append rows, in one transaction. Raises Stale for an old epoch; `owner` None: evidence and answers need none."""
        rows = state.rows
        if owner is not None:
            self.check_epoch(state, owner)
            mine = state.owners[owner]
            if not mine.announced:
                claimed = draft(TASK, Kind.TASK_CLAIMED, state.at, status="running", epoch=mine.epoch, data={"owner": str(owner)})
                drafts = (claimed, *drafts)
                owners = (*state.owners[:owner], mine._replace(announced=True), *state.owners[owner + 1 :])
                state = state._replace(owners=owners)
        sealed = seal(drafts, len(rows), b"h" * 32)
        return self.folded(state._replace(rows=(*rows, *sealed)))

    def check_epoch(self, state: State, owner: int) -> None:
        if state.owners[owner].epoch != state.owners[-1].epoch:
            raise Stale

    def folded(self, state: State) -> State:
        """The state with its records folded from its rows, as the newest claim sees them."""
        epoch = state.owners[-1].epoch
        return state._replace(records=tuple(self.fold(state.rows, step.path, epoch) for step in self.slice.steps))

    def fold(self, rows: tuple[Event, ...], path: str, epoch: int) -> StepRecord | None:
        return fold_step(rows, path, epoch)

    def case(self, index: int, why: str) -> dict[str, Any]:
        return {"kind": CaseKind.DOUBT if self.slice.steps[index].undoes is None else CaseKind.COMPENSATION, "why": why}

    def row(self, state: State, index: int, owner: int | None, kind: Kind, **more: Any) -> Event:
        epoch = None if owner is None else state.owners[owner].epoch
        where = {"path": self.slice.steps[index].path, "step_name": f"step{index}", "step_seq": index + 1, "epoch": epoch}
        return draft(TASK, kind, state.at, **{**where, **more})

    def key(self, index: int, generation: int) -> bytes:
        return canonical.idempotency_key(NAMESPACE, TASK, self.slice.steps[index].path, f"step{index}", "{}", generation)

    def closing(self, state: State, index: int, owner: int | None) -> list[Event]:
        """What the machine settles first closes the step's open doubt in the same transaction."""
        record = state.records[index]
        data = {"answer": "settled", "by": "doubtless", "why": ""}
        open_cases = [] if record is None else [case for case, kind in record.cases.items() if kind in ASKING]
        return [self.row(state, index, owner, Kind.CASE_SETTLED, data={**data, "case_id": case}) for case in open_cases]

    def undone(self, state: State, index: int, owner: int | None) -> list[Event]:
        """With a compensation that is done, what it undoes is compensated: one append."""
        origin = self.slice.steps[index].undoes
        return [] if origin is None else [self.row(state, origin, owner, Kind.STEP_SETTLED, status=StepStatus.COMPENSATED)]
