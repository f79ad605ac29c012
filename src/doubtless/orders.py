"""What a person orders: a task that is done is undone; one that goes on is cancelled, its children first (section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import Runtime
from .children import root_of
from .errors import Moved, TaskBusy, TaskFailed, UsageError
from .events import TERMINAL, UNDO, Kind, TaskStatus, draft
from .obligations import obligations
from .outcomes import unstorable
from .store.base import Head, Store
from .undoing import undo_row

if TYPE_CHECKING:
    from .runs import Runs


def said_by(by: str, why: str) -> dict[str, Any]:
    """Who says so, and why. Raises UsageError before anything is written."""
    for name, text in (("by", by), ("why", why)):
        if (fault := unstorable(text)) is not None:
            raise UsageError(f"{name} {fault}; nothing was written")
    if not by.strip():
        raise UsageError("this needs a name: who says so? Nothing was written", hint="by=… (--by on the command line)")
    return {"by": by, "why": why}


# ---------------------------------------------------------------- compensate


def order_undoing(runtime: Runtime, head: Head, by: str, why: str) -> None:
    """Write, durably, that what a done task did is to be undone. Raises UsageError where there is nothing to undo."""
    store, task_id, said = runtime.store, head.task_id, said_by(by, why)
    root = root_of(task_id)
    if root != task_id:
        raise UsageError(f"{task_id} is a child task; nothing was written", hint=f"compensate {root}: it undoes its own")
    while True:
        rows = store.rows(task_id)
        status = _status(store, task_id)
        begun = status not in TERMINAL and any(row.status == TaskStatus.COMPENSATING for row in rows)
        if begun or status == TaskStatus.COMPENSATED:
            return  # it was ordered already, or it failed: whoever runs the task goes on with it
        if status != TaskStatus.DONE:
            raise UsageError(
                f"task {task_id} is {status}: only what a task did that is done can be undone so; nothing was written",
                hint=f"doubtless cancel MODULE:APP {task_id}" if status not in TERMINAL else f"doubtless show {task_id}",
                task=task_id,
            )
        owed = obligations(runtime, rows)
        if not owed:
            raise UsageError(f"task {task_id} has done nothing that has a compensation; nothing was written", task=task_id)
        row = undo_row(task_id, {"kind": "undo", "code": "", "detail": said["why"], "by": by}, store.now(), len(owed))
        try:
            store.add(task_id, [row], expect=rows[-1].event_seq)
            return
        except Moved:
            continue


# ---------------------------------------------------------------- cancel


def order_cancelling(runtime: Runtime, task_id: str, by: str, why: str) -> list[str]:
    """Write, durably, that a task and the children below it begin nothing new, from the top down; the ids of all of them.

    What undoes them goes on: a wish to stop stops no undoing.
    """
    store, said = runtime.store, said_by(by, why)
    told: list[str] = []
    waiting, seen = [task_id], {task_id}
    while waiting:  # children are looked for once their parent knows: one that is accepted later asks its parent
        for each in sorted(waiting, key=lambda one: (one.count("/"), one)):
            if _status(store, each) in TERMINAL:
                continue
            if not any(row.kind == Kind.CANCEL_REQUESTED for row in store.rows(each)):
                store.add(each, [draft(each, Kind.CANCEL_REQUESTED, store.now(), data=said)])
            told.append(each)
        below = [head.task_id for head in store.heads() if head.task_id.startswith(f"{task_id}/")]
        waiting = [each for each in below if each not in seen and f"/{UNDO}" not in each.removeprefix(task_id)]
        seen.update(waiting)
    return told


def see_through(runs: Runs, store: Store, task_id: str, wait: bool | str) -> str:
    """Let whoever has the task see what was ordered, or bring it to its end here; its status then."""
    try:
        runs.run(root_of(task_id), wait)
    except (TaskFailed, TaskBusy) as error:
        if isinstance(error, TaskBusy) or _status(store, task_id) in TERMINAL:
            return _status(store, task_id)
        raise
    return _status(store, task_id)


def _status(store: Store, task_id: str) -> str:
    head = store.head(task_id)
    assert head is not None
    return str(head.status)
