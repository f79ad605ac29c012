"""What must hold when nothing moves any more: the log's own rules, the effects counted outside, and that both agree."""

from __future__ import annotations

from collections import Counter

from doubtless.changes import CaseClosed, CaseOpened, project
from doubtless.events import TERMINAL, UNDO, Effect, Event, Kind, StepStatus, TaskStatus
from doubtless.fold import Moves, StepRecord, fold_steps
from doubtless.store.sqlite import SqliteStore

from .play import Play


def open_store(played: Play) -> SqliteStore:
    """The store that a run has left, to be read."""
    return SqliteStore(f"{played.folder}/s.db", clock=played.clock.now, file_system=lambda path: "ext4")


def check(played: Play) -> list[str]:
    """What is wrong with a run that has ended, in words; empty: nothing."""
    store = open_store(played)
    try:
        wrong = list(played.wrong)
        wrong += [f"verify: {problem.where} {problem.event_seq}: {problem.what}" for problem in store.verify()]
        heads = store.heads()
        logged = set()
        for head in heads:
            if head.task_id.startswith("$"):
                continue
            rows = store.rows(head.task_id)
            if head.status not in TERMINAL:
                wrong.append(f"I6: task {head.task_id} stands at {head.status}: {head.why}")
            wrong += log_rules(head.task_id, rows)
            records = fold_steps(rows)
            logged |= {(head.task_id, path) for path in records}
            wrong += _world(played, head.task_id, head.status, records)
            wrong += _undone(played, head.task_id, head.status, rows, records)
        for place, effects in played.world.by_place.items():
            if place not in logged:
                wrong.append(f"I1: {len(effects)} effects at {place}, and the log knows of no such step")
        return wrong
    finally:
        store.close()


def log_rules(task_id: str, rows: list[Event]) -> list[str]:
    """I3, I4, I5, I8, I9 on the rows alone."""
    wrong = []
    moves, cases, closed = Moves(), set[str](), Counter[str]()
    for row in rows:
        wrong += [f"I3: {task_id} {move[0]} moved from {move[1]} to {move[2]} by row {row.event_seq}" for move in moves.add(row)]
        for change in project(row):
            if isinstance(change, CaseOpened):
                cases.add(change.case_id)
            elif isinstance(change, CaseClosed):
                closed[change.case_id] += 1
    wrong += [f"I8: case {case} is settled {times} times" for case, times in closed.items() if times > 1]
    wrong += [f"I8: case {case} is settled, and was never opened" for case in closed if case not in cases]
    over, now = set[int](), None
    for row in rows:
        if row.epoch is None or row.kind in (Kind.EVIDENCE_STORED, Kind.HANDLE_RECORDED):
            continue
        if row.epoch in over:
            wrong.append(f"I4: {task_id}: row {row.event_seq} ({row.kind}) is of a claim that is over")
        elif now is not None and row.epoch != now:
            over.add(now)
        now = row.epoch
    ended = [row.event_seq for row in rows if row.kind == Kind.TASK_ENDED and row.status != TaskStatus.DONE]
    if len(ended) > 1:
        wrong.append(f"I3: {task_id} ended twice: rows {ended}")
    by_attempt: dict[tuple[str, int], int] = Counter()
    for row in rows:
        if row.kind in (Kind.STEP_INTENDED, Kind.ATTEMPT_STARTED) and row.path is not None:
            by_attempt[row.path, row.attempt or 0] += 1
    wrong += [f"I1: {task_id}: attempt {at} has {n} rows" for at, n in by_attempt.items() if n > 1]
    return wrong


def _world(played: Play, task_id: str, status: str, records: dict[str, StepRecord]) -> list[str]:
    """What the log says of the world is so, and no intent had two effects."""
    wrong = []
    for path, record in records.items():
        place = (task_id, path)
        effects = len(played.world.by_place.get(place, ()))
        what = f"{record.name} at {place} is {record.status}"
        if record.effect == Effect.READ or record.name.startswith("$") or record.name.startswith("child"):
            continue
        if effects > 1 and place not in played.risks:
            wrong.append(f"I2: {what}, and has {effects} effects")
        done = record.status in (StepStatus.DONE, StepStatus.COMPENSATED)
        if done and not effects and record.origin is None and place not in played.world.found_undone:
            wrong.append(f"done means done: {what}, and nothing happened")
        if record.status == StepStatus.NOT_APPLIED and effects and place not in played.risks:
            wrong.append(f"not_applied means so: {what}, and has {effects} effects")
        if not record.settled and status in TERMINAL:
            wrong.append(f"I6: {what}, and its task has ended {status}")
    return wrong


def _undone(
    played: Play, task_id: str, status: str, rows: list[Event], records: dict[str, StepRecord]
) -> list[str]:
    """I7: undone is what was done, in reverse order, each once; and what is said to be undone is."""
    wrong = []
    done_at = {r.path: r.event_seq for r in rows if r.kind == Kind.STEP_SETTLED and r.status == StepStatus.DONE}
    begun = [r for r in rows if r.kind == Kind.STEP_INTENDED and r.path is not None and r.path.startswith(UNDO)]
    order = []
    for row in begun:
        assert row.path is not None
        origin = row.path.removeprefix(UNDO)
        if origin not in done_at or done_at[origin] > row.event_seq:
            wrong.append(f"I7: {task_id}: a compensation of {origin} begins in row {row.event_seq}, and it was not done")
        else:
            order.append(done_at[origin])
    if order != sorted(order, reverse=True):
        wrong.append(f"I7: {task_id}: compensations began in the order {[r.path for r in begun]}; done in rows {done_at}")
    for path, record in records.items():
        undo = records.get(UNDO + path)
        if record.status == StepStatus.COMPENSATED and (undo is None or undo.status != StepStatus.DONE):
            wrong.append(f"I7: {task_id}: {path} is compensated, and {UNDO}{path} is {undo and undo.status}")
        if status == TaskStatus.COMPENSATED and record.status == StepStatus.DONE and record.name in played.program.undone and not record.origin:
            wrong.append(f"I7: {task_id} is compensated, and {record.name} at {path} was not undone")
    return wrong
