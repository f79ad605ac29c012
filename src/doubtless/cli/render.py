"""Pictures for a terminal: a task's timeline, the list of tasks. Plain text without colour where no terminal is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ..events import TERMINAL, UNDO, Effect, StepStatus, TaskStatus
from ..questions import WAIT_FOR
from ..standing import SESSION
from .reporting import plain
from .sheet import Sheet, call_text, cell_len, clock, short_json, shorten
from .typed import moment, offset, typed

if TYPE_CHECKING:
    from ..inbox import Case
    from ..store.base import Head
    from ..timeline import StepView, TaskView

ALIKE = 4
"""So many steps in a row that went well in the same way share a line."""


# ---------------------------------------------------------------- how things stand


class Look(NamedTuple):
    """How a state is shown: a mark, words, a style."""

    mark: str
    words: str
    style: str


def step_look(step: StepView, view: TaskView) -> Look:
    """How a step stands, in words."""
    last = step.attempts[-1] if step.attempts else None
    match step.status:
        case StepStatus.DONE:
            return Look("✓", "done", "green")
        case StepStatus.COMPENSATED:
            return Look("↺", "compensated", "green")
        case StepStatus.NOT_APPLIED if step.path[0] == UNDO:
            return Look("!", "let stand", "bold yellow")
        case StepStatus.NOT_APPLIED:
            return Look("✗", "not applied", "red")
        case StepStatus.FAILED:
            return Look("✗", "failed" if step.effect == Effect.READ else "given up; may stand", "red")
        case StepStatus.NEEDS_HUMAN:
            return Look("!", "needs a person", "bold yellow")
        case StepStatus.STARTED if step.child is not None:
            needs = any(of_child(case, step.child) for case in view.cases)
            return Look("!", "needs a person", "bold yellow") if needs else Look("…", "not ended", "yellow")
        case StepStatus.STARTED if step.name == WAIT_FOR:
            return Look("…", "waits", "yellow")
        case StepStatus.STARTED:
            return Look("…", "to be called again", "yellow")
        case _ if last is not None and last.outcome is None and view.owner_alive:
            return Look("…", "in flight", "cyan")
        case _ if last is not None and last.outcome in ("not_sent", "rejected"):
            return Look("…", "to be sent again", "yellow")
        case _:
            return Look("?", "in doubt", "bold yellow")


def task_look(status: str, why: str | None, *, wake_at: int | None, owner: str | None, alive: bool, day: object) -> Look:
    """How a task stands, in words."""
    match status:
        case TaskStatus.DONE:
            return Look("✓", status, "green")
        case TaskStatus.COMPENSATED:
            return Look("↺", status, "green")
        case TaskStatus.FAILED | TaskStatus.CANCELLED:
            return Look("✗", status, "red")
        case TaskStatus.NEEDS_HUMAN:
            return Look("!", "needs a person", "bold yellow")
        case TaskStatus.WAITING | TaskStatus.COMPENSATING if frozen_step(why) is not None:
            return Look("*", "frozen", "bold cyan")
        case TaskStatus.WAITING if wake_at is not None:
            return Look("…", f"waiting until {clock(wake_at, day)}", "cyan")
        case _ if owner is not None and alive:
            return Look("…", f"running in process {owner.partition('-')[0]}", "cyan")
        case _ if owner is not None:
            return Look("?", "its process is gone", "bold yellow")
        case TaskStatus.COMPENSATING:
            return Look("↺", "to be undone" if wake_at is None else f"undone from {clock(wake_at, day)} on", "yellow")
        case TaskStatus.READY if wake_at is not None:
            return Look("…", f"ready, not before {clock(wake_at, day)}", "yellow")
        case _:
            return Look("…", "waiting" if status == TaskStatus.WAITING else "ready to go on", "yellow")


_FROZEN = re.compile(r"^frozen: (?:every step|step (?P<step>.+?)) is frozen: ")


def frozen_step(why: str | None) -> str | None:
    """What a task that is parked before a freeze stands before: a step's name, ``*`` for all; None when it does not."""
    found = _FROZEN.match(why or "")
    return None if found is None else found["step"] or "*"


def task_name(name: str) -> str:
    """A task's name as it is shown: a session has none of its own."""
    return "session" if name == SESSION else plain(name)


def next_commands(view: TaskView, *, store: str | None = None) -> list[str]:
    """What to type next, in this order; empty when nothing has to be done."""
    resume = typed("resume", "MODULE:APP", view.id)
    if view.status in (TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.COMPENSATED, TaskStatus.CANCELLED):
        return [typed("inbox", case.id, store=store) for case in view.cases]
    if view.owner is not None and view.owner_alive:
        return []
    if view.name == SESSION and view.status == TaskStatus.WAITING and view.wake_at is None and frozen_step(view.why) is None:
        return []  # its host opens it again
    frozen = frozen_step(view.why) if view.status in (TaskStatus.WAITING, TaskStatus.COMPENSATING) else None
    if frozen is not None:
        return [typed("thaw", None if frozen == "*" else frozen, store=store), resume]
    cases = [typed("inbox", case.id, store=store) for case in view.cases]
    return cases if view.status == TaskStatus.NEEDS_HUMAN and cases else [*cases, resume]


# ---------------------------------------------------------------- a task


def timeline(
    view: TaskView, *, width: int | None = None, every: bool = False, store: str | None = None, path: str | None = None
) -> str:
    """A task as a person reads it: how it stands, its steps, what was in doubt and how it was settled, what to type next.

    Shapes: at most `width` columns (the terminal's, or 100); colour only where stdout is a terminal. `every`: each step on a line
    of its own, with its story. `store`: the URL that the commands to type have to name, where no environment names it.
    `path`: where the store lies.
    """
    sheet = Sheet(width)
    day = moment(view.updated_at).date()
    header(sheet, view, day, path)
    if view.steps:
        sheet.line()
        step_lines(sheet, view, day, every)
        sheet.line()
        sheet.line(total(view), "dim")
    if view.unacknowledged:
        names = {step.path: step.name for step in view.steps}
        said = ", ".join(f"{plain(names[place])} at {place}" for place in view.unacknowledged)
        sheet.line(f"not acknowledged by its host yet: {said}", lead="  … ", lead_style="yellow")
    for effect in view.stands:
        sheet.line(stands(effect), lead="  ! ", lead_style="bold yellow")
    for case in view.cases:
        sheet.line()
        open_case(sheet, case)
    commands = next_commands(view, store=store)
    if commands:
        sheet.line()
    for number, command in enumerate(commands):
        sheet.command(command, "  next  " if not number else "        ")
    return sheet.text()


def header(sheet: Sheet, view: TaskView, day: object, path: str | None) -> None:
    """Which task it is, how it stands and why, when it ran, with what and to what end."""
    look = task_look(view.status, view.why, wake_at=view.wake_at, owner=view.owner, alive=view.owner_alive, day=day)
    sheet.title((plain(view.id), "bold"), f"  {task_name(view.name)}  ", (f"{look.mark} {look.words}", look.style))
    began, ended = moment(view.created_at), moment(view.updated_at)
    until = f"{ended:%H:%M:%S}" if began.date() == ended.date() else f"{ended:%Y-%m-%d %H:%M:%S}"
    sheet.line(f"{began:%Y-%m-%d %H:%M:%S} to {until} {offset(ended)}", lead="  time    ", lead_style="dim")
    if path is not None:
        sheet.command(path, "  store   ")  # never broken, so that it can be copied
    if view.forked_from is not None:
        original, at = view.forked_from
        sheet.line(f"of {plain(original)}, at {at}", lead="  fork    ", lead_style="dim")
    if view.params:
        sheet.line(call_text("", view.params)[1:-1], lead="  input   ", lead_style="dim")
    if view.status == TaskStatus.DONE:
        sheet.line(short_json(view.output, 400), lead="  output  ", lead_style="dim")
    if view.cancelled is not None:
        sheet.line(wish(view.cancelled), "bold yellow", lead="  cancel  ", lead_style="dim")
    told_below = any(case.why in (view.why or "") for case in view.cases)
    if view.why and not told_below and view.status not in (TaskStatus.DONE, TaskStatus.RUNNING):
        why = without_command(view.why).removeprefix(f"{look.words}: ")
        sheet.line(why, lead="  why     ", lead_style="dim")


def wish(cancelled: dict[str, Any]) -> str:
    """Who wants a task cancelled, and what that means for what it has under way."""
    return f"wanted by {plain(cancelled['by'])}: {plain(cancelled['why'])}; nothing new begins, what is in doubt is settled first"


def without_command(why: str) -> str:
    """A reason without the command that follows it in brackets: commands stand at the end, complete."""
    return re.sub(r" \(doubtless [^)]*\)$", "", why)


class Row(NamedTuple):
    """One line of the table of steps."""

    look: Look
    place: str
    name: str
    effect: str
    calls: str
    how: str
    steps: tuple[StepView, ...]


def smooth(step: StepView, view: TaskView) -> bool:
    """Whether nothing happened that needs telling: called once, done by its reply (and undone), and nothing is open about it."""
    undone = step.status == StepStatus.COMPENSATED
    ended = step.settled_by is not None and (step.settled_by == "its reply" or step.child is not None or undone)
    well = (undone or step.status == StepStatus.DONE) and step.calls == 1 and ended and len(step.story) <= 2 + undone
    return well and not step.changed and all(case.path != step.path or case.task_id != view.id for case in view.cases)


def rows_of(view: TaskView, every: bool) -> Iterator[Row]:
    """The steps as lines, many alike in a row on one."""
    def like(step: StepView) -> tuple[str, ...]:
        return (step.name, kind_of(step), step.status) if smooth(step, view) and not every else (step.path,)

    for key, group in groupby(view.steps, key=like):
        steps = tuple(group)
        if len(key) > 1 and len(steps) >= ALIKE:
            place = f"{steps[0].path}–{steps[-1].path}"
            name = f"{steps[0].name} ×{len(steps)}"
            look = step_look(steps[0], view)
            ended = how(steps[0], view) if steps[0].child is None else "its end"
            if steps[0].path[0] == UNDO:
                ended = f"undoes steps {steps[0].path[1:]} to {steps[-1].path[1:]}"
            yield Row(look, place, name, kind_of(steps[0]), "each once", ended, ())
            continue
        for step in steps:
            told = () if smooth(step, view) and not every else (step,)
            yield Row(step_look(step, view), step.path, step.name, kind_of(step), calls(step), how(step, view), told)


def of_child(case: Case, child: str) -> bool:
    """Whether a case is a child task's, or one of its children's."""
    return case.task_id == child or case.task_id.startswith(f"{child}/")


def kind_of(step: StepView) -> str:
    """A step's class; a child task is none of its own."""
    return step.effect if step.child is None else "child task"


def calls(step: StepView) -> str:
    """How often a step was really called; not known where the log was restored from a backup."""
    if any(attempt.code == "suspect" for attempt in step.attempts):
        return "not known"
    return {0: "never", 1: "once", 2: "twice"}.get(step.calls, f"{step.calls} times")


def how(step: StepView, view: TaskView) -> str:
    """What settled a step, and the open cases that ask about it; of a compensation also what it undoes."""
    told = [f"case {case.id}" for case in view.cases if case.path == step.path and case.task_id == view.id]
    if step.child is not None:
        told += [f"case {case.id}" for case in view.cases if of_child(case, step.child)]
    if step.settled_by is not None:
        code = step.error.get("code") if isinstance(step.error, Mapping) else None
        failed = step.status in (StepStatus.NOT_APPLIED, StepStatus.FAILED) and code not in (None, "", step.settled_by)
        told.insert(0, f"{step.settled_by}: {code}" if failed else step.settled_by)
    if step.path[0] == UNDO:
        told.insert(0, f"undoes step {step.path[1:]}")
    return "; ".join(told)


def step_lines(sheet: Sheet, view: TaskView, day: object, every: bool) -> None:
    """The table of steps, with the story of each one that has one below it."""
    rows = list(rows_of(view, every))
    titles = ("step", "class", "stands", "called", "settled by")
    cells = [(row.name, row.effect, row.look.words, row.calls) for row in rows]
    wide = [max(cell_len(plain(text)) for text in column) for column in zip(titles[:4], *cells, strict=True)]
    wide[0] = min(wide[0], max(16, sheet.width - sum(wide[1:]) - 40))
    place = max(cell_len(row.place) for row in rows)
    lead = 4 + place + 2
    narrow = sheet.width < lead + sum(wide) + 2 * len(wide) + 20  # then what settled a step stands on a line below
    sheet.line(fit(titles[:4], wide) + ("" if narrow else titles[4]), "dim", lead=" " * lead, lead_style="dim")
    for row, cell in zip(rows, cells, strict=True):
        mark = f"  {row.look.mark} {row.place:>{place}}  "
        if narrow:
            sheet.line(mark + fit(cell, wide), row.look.style)
            sheet.line(row.how, row.look.style, lead=" " * lead)
        else:
            sheet.line(row.how, row.look.style, lead=mark + fit(cell, wide), lead_style=row.look.style)
        for step in row.steps:
            story(sheet, step, day, lead)


def fit(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells in columns of these widths, two spaces apart."""
    out = ""
    for cell, width in zip(cells, widths, strict=True):
        shown = shorten(plain(cell), width)
        out += shown + " " * (width - cell_len(shown) + 2)
    return out


def story(sheet: Sheet, step: StepView, day: object, indent: int) -> None:
    """What happened to a step, line by line."""
    for change in step.changed:
        told = f"changed since: {change.field} was {short_json(change.was, 80)}, is {short_json(change.now, 80)}"
        sheet.line(told, "yellow", lead=" " * indent)
    for at, what in step.story:
        sheet.line(what, "dim", lead=f"{' ' * indent}{clock(at, day, fine=True)}  ", lead_style="dim")


def total(view: TaskView) -> str:
    """How many steps there are, how they stand, and how often writes were really called."""
    settled = sum(step.settled_by is not None for step in view.steps)
    writes = [step for step in view.steps if step.effect != Effect.READ]
    done = sum(step.status == StepStatus.DONE for step in writes)
    called = sum(step.calls for step in writes)
    told = f"  {many(len(view.steps), 'step')}, {settled} settled"
    return f"{told}; {many(len(writes), 'write')}: {done} done, {many(called, 'call')} in all" if writes else told


def many(number: int, thing: str) -> str:
    """A number of things in words."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def open_case(sheet: Sheet, case: Case) -> None:
    """An open case, in short; of a task that failed also what stands."""
    where = f" about {case.step} at {case.path}" if case.step else ""
    sheet.line(f"case {case.id} ({case.kind}){where}: {case.why}", "bold yellow", lead="  ! ", lead_style="bold yellow")
    for owed in case.evidence.get("obligations", []):
        sheet.line(stands(owed), lead="      ")


def stands(effect: Mapping[str, Any]) -> str:
    """An effect of a failed task that was not undone."""
    where = f" of task {effect['task']}" if "task" in effect else ""
    may = "may stand" if effect.get("may") else "stands"
    undo = f"; {effect['compensate']} would undo it" if effect.get("compensate") else "; nothing undoes it"
    return f"{may}: {effect['step']} at {effect['path']}{where}{undo}"


# ---------------------------------------------------------------- many tasks


def task_list(heads: Sequence[Head], alive: Mapping[str, bool], *, path: str) -> str:
    """Tasks, one per line: how each stands, and why. `path`: where their store lies."""
    sheet = Sheet()
    newest = moment(max(head.updated_at for head in heads))
    ids = min(max(cell_len(plain(head.task_id)) for head in heads), 48)
    names = max(cell_len(task_name(head.task_name)) for head in heads)
    sheet.command(path, "")
    sheet.line(f"last event, {newest:%Y-%m-%d} {offset(newest)}", "dim")
    for head in heads:
        alive_now = alive.get(head.owner or "", False)
        look = task_look(head.status, head.why, wake_at=head.wake_at, owner=head.owner, alive=alive_now, day=newest.date())
        told = "" if head.status == TaskStatus.DONE else without_command(head.why or "").removeprefix(f"{look.words}: ")
        task_id = plain(head.task_id)  # whole, however long: it is there to be typed
        name = f"{task_id}{' ' * (ids - cell_len(task_id))}  {fit((task_name(head.task_name),), (names,))}"
        lead = f"{clock(head.updated_at, newest.date())}  {look.mark} {name}"
        sheet.line(look.words + (f": {told}" if told else "") + place_of(head), look.style, lead=lead)
    return sheet.text()


def place_of(head: Head) -> str:
    """Which workers take a task that has not ended, and in which order, where that is not as for most."""
    if head.status in TERMINAL:
        return ""
    queue = "" if head.queue == "default" else f"; queue {plain(head.queue)}"
    return queue + (f"; priority {head.priority}" if head.priority else "")
