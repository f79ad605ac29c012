"""What must hold after a storm: the log's rules, the effects counted outside, that both agree, and that nothing is silent."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.check import log_rules

from doubtless import Doubtless
from doubtless.events import TERMINAL, UNDO, Effect, Event, Kind, StepStatus, TaskStatus
from doubtless.fold import StepRecord, fold_steps

from . import truth
from .truth import Truth

if TYPE_CHECKING:
    from .storm import Storm

GRACE, MANY = 3, 15
"""Seconds after the end of its lease after which a dead owner's task lies, and how many younger ones may be begun meanwhile."""
AWAY = 6
"""The exit code of a worker that was started while the store was away; whoever supervises it starts it again."""
MADE = {"create_adjustment": "sheet", "submit_approval": "approval", "submit_approval_async": "approval"}


class Task(NamedTuple):
    """One task as the log has it. `turn`: its priority, and when it was accepted."""

    id: str
    status: str
    run: str
    turn: tuple[int, int]
    records: dict[str, StepRecord]
    rows: list[Event]


def check(storm: Storm) -> list[str]:
    """What is wrong, in words; empty: nothing."""
    wrong = [*storm.stuck, *storm.person.wrong]
    books = truth.read(storm.folder / "office.db")
    tasks = read_tasks(storm.desk)
    wrong += accepted(storm.acknowledged(), [one.id for one in storm.tasks], [task.id for task in tasks])
    wrong += none_twice(books)
    for task in tasks:
        wrong += log_rules(task.id, task.rows)
        wrong += ended(task)
        wrong += agrees(task, books)
    wrong += left_lying(tasks)
    wrong += unknown_to_the_log(tasks, books)
    wrong += [f"verify: {problem.where} {problem.event_seq}: {problem.what}" for problem in storm.desk.verify()]
    wrong += too_late(storm)
    wrong += marks(storm)
    wrong += said_by_the_processes(storm)
    return wrong


def read_tasks(app: Doubtless) -> list[Task]:
    tasks = []
    for head in app.tasks():
        rows = app.store.rows(head.task_id)
        tasks.append(Task(head.task_id, head.status, head.task_id, (head.priority, head.created_at), fold_steps(rows), rows))
    return tasks


# ------------------------------------------------------------ each by itself


def accepted(acknowledged: list[str], wanted: list[str], stored: list[str]) -> list[str]:
    """Everything that was acknowledged is there, once; and everything was acknowledged."""
    wrong = [f"task {one} was acknowledged, and the log does not have it" for one in sorted({*acknowledged} - {*stored})]
    wrong += [f"task {one} was never acknowledged" for one in sorted({*wanted} - {*acknowledged})]
    wrong += [f"task {one} is in the log, and nobody started it" for one in sorted({*stored} - {*wanted})]
    return wrong


def none_twice(books: Truth) -> list[str]:
    """No effect twice, by what it was done for."""
    wrong = []
    kinds: dict[str, Any] = {
        "sheet": books.sheets, "approval": books.approvals, "message": books.messages, "closing": books.closings,
    }  # fmt: skip
    for kind, groups in kinds.items():
        wrong += [f"TWICE: {len(made)} of the {kind} for {what}" for what, made in groups.items() if len(made) != 1]
    return wrong + [f"TWICE: {kind} of {reference}: {times} times" for (kind, reference), times in books.undone.items() if times != 1]


def silent(tasks: Iterable[Task], told: set[tuple[str, str]]) -> list[str]:
    """I6, when nothing moves any more and nobody has answered yet: each write that is not settled is in the inbox.

    `told`: the doubts without a case that the inbox lists, by task and path.
    """
    return [
        f"silent: {record.name} at {task.id} {path} is {record.status}, and no case asks about it; the task is {task.status}"
        for task in tasks
        for path, record in task.records.items()
        if record.effect != Effect.READ and not record.settled and not record.cases and (task.id, path) not in told
    ]


def ended(task: Task) -> list[str]:
    """The task has an end that says why, and none of its writes is left in doubt."""
    wrong = []
    if task.status not in TERMINAL:
        wrong.append(f"I6: task {task.id} stands at {task.status}")
    for path, record in task.records.items():
        if record.effect != Effect.READ and not record.settled and not record.name.startswith("$"):
            wrong.append(f"I6: {record.name} at {task.id} {path} is {record.status}, and its task has ended {task.status}")
        wrong += [f"I6: case {case} of {task.id} is open, and its task has ended" for case in record.cases]
    if task.status == TaskStatus.FAILED and not any(row.error or row.data for row in task.rows[-1:]):
        wrong.append(f"task {task.id} has failed, and nothing says why")
    return wrong


def agrees(task: Task, books: Truth) -> list[str]:
    """What the log says of each write is so at the other side."""
    wrong = []
    for path, record in task.records.items():
        if record.effect == Effect.READ or record.name.startswith(("$", "withdraw_")):
            continue
        made = made_by(task, record, books)
        what = f"{record.name} at {task.id} {path} is {record.status}"
        if record.status in (StepStatus.DONE, StepStatus.COMPENSATED) and len(made) != 1:
            wrong.append(f"done means done: {what}, and was made {len(made)} times")
        if record.status == StepStatus.NOT_APPLIED and made:
            wrong.append(f"not_applied means so: {what}, and was made {len(made)} times")
        undo = task.records.get(UNDO + path)
        withdrawn = bool(made) and made[0].get("status") == "withdrawn"
        if record.status == StepStatus.COMPENSATED and not withdrawn:
            wrong.append(f"I7: {what}, and stands at the other side: {made}")
        if withdrawn and undo is None:
            wrong.append(f"I7: {what}, it was withdrawn, and the log knows of no compensation")
        if undo is not None and undo.status == StepStatus.DONE and not withdrawn:
            wrong.append(f"I7: {what}, its compensation is done, and it stands at the other side")
        if undo is not None and undo.status == StepStatus.NOT_APPLIED and withdrawn:
            wrong.append(f"I7: {what}, its compensation is not applied, and it was withdrawn")
        if task.status == TaskStatus.COMPENSATED and path + record.name in MADE and record.status == StepStatus.DONE:
            wrong.append(f"I7: {what}, and its task is compensated")
    return wrong


def made_by(task: Task, record: StepRecord, books: Truth) -> list[dict[str, Any]]:
    """The other side's records of what this write was to do."""
    if record.name in MADE:
        return books.by_reference(MADE[record.name], tuple(key.hex() for key in record.keys))
    group = books.messages if record.name == "notify" else books.closings
    return group.get(task.run, [])


def takeovers(task: Task) -> list[float]:
    """Seconds from the end of a dead owner's lease to the claim that took its task over, for each of them."""
    claims = [row for row in task.rows if row.kind == Kind.TASK_CLAIMED and "lease_until" in row.details]
    return [(row.at.wall - row.details["lease_until"]) / 1e6 for row in claims]


def left_lying(tasks: list[Task]) -> list[str]:
    """What a dead owner left has its turn: it does not lie while one younger task after the other is begun."""
    begun = [
        (first.at.wall, task.turn) for task in tasks if (first := next((row for row in task.rows if row.kind == Kind.TASK_CLAIMED), None))
    ]
    wrong = []
    for task in tasks:
        for row in task.rows:
            if row.kind == Kind.TASK_CLAIMED and "lease_until" in row.details:
                since = row.details["lease_until"] + GRACE * 1_000_000
                younger = sum(since < at < row.at.wall and turn > task.turn for at, turn in begun)
                if younger > MANY:
                    wrong.append(f"task {task.id} was left lying while {younger} younger ones were begun")
    return wrong


def unknown_to_the_log(tasks: list[Task], books: Truth) -> list[str]:
    """I1: nothing was done of which the log knows nothing."""
    keys = {key.hex() for task in tasks for record in task.records.values() for key in record.keys}
    made = [one for groups in (books.sheets, books.approvals) for group in groups.values() for one in group]
    wrong = [f"I1: {one['id']} bears a key that the log does not have: {one}" for one in made if one["reference"] not in keys]
    for name, groups in (("notify", books.messages), ("close_run", books.closings)):
        runs = {task.run for task in tasks if any(record.name == name for record in task.records.values())}
        wrong += [f"I1: {name} was done for {run}, and the log knows of no such step" for run in groups if run not in runs]
    return wrong


# ------------------------------------------------------------ beside the log


def too_late(storm: Storm) -> list[str]:
    """The storm itself has kept its bounds; where it has not, an effect that was made twice says nothing."""
    most = storm.settings.bounds.pause[1] + storm.settings.bounds.slack / 2
    return [
        f"the storm itself has kept {member.name} stopped for {member.longest_stop:.1f} s, longer than its bounds: it shows nothing"
        for member in storm.members
        if member.longest_stop > most
    ]


def marks(storm: Storm) -> list[str]:
    """Each machine's mark names an event that the store has: opened with it, it is not refused, and verify has nothing to say."""
    wrong = []
    for member in (*storm.members, storm.client):
        url = storm.store_url(member.name).replace("{port}", str(storm.database.server.port))
        url = storm.store_url(member.name).replace("{port}", str(member.weather.port)) if member.lives else url
        app = Doubtless(url, read_only=True)
        try:
            wrong += [f"the mark of {member.name}: {problem.where}: {problem.what}" for problem in app.store.verify()]
        finally:
            app.close()
    return wrong


def said_by_the_processes(storm: Storm) -> list[str]:
    """No process has died of a fault of its own, or was refused the store."""
    orders = storm.orders.log.read_text(errors="replace") if storm.orders.log.exists() else ""
    wrong = [f"an order said: …{orders[max(0, at - 200) : at + 1500]}"] if (at := orders.find("Traceback")) >= 0 else []
    for member in (*storm.members, storm.client):
        said = member.said()
        for word in ("Traceback", "StoreDamaged", "StoreRefused", "StoreSuspect", "Fatal Python error", "left alone"):
            if word in said:
                at = said.index(word)
                wrong.append(f"{member.name} said {word}: …{said[max(0, at - 200) : at + 1500]}")
        for life, (text, code) in enumerate(zip(said.split("---- life ")[1:], member.codes, strict=False)):
            fine = code in (0, -signal.SIGKILL, 128 + signal.SIGTERM)  # the last one: by a second signal, at once
            fine |= code == AWAY and "the store cannot be opened" in text
            fine |= code == -signal.SIGTERM and ("at a time" not in text or "drained after" in text)  # before it began, or after it had ended
            if not fine:
                wrong.append(f"{member.name} ended with exit code {code} in life {life}: {text[-500:]}")
    return wrong
