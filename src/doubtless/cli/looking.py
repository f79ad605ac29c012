"""Commands that look: tasks, show, log, steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from ..app import Doubtless
from ..errors import UnknownTask, UsageError
from ..events import TaskStatus
from ..store import where_is
from . import shapes
from .exits import OK, USAGE
from .group import Invocation, common, store_option, target_argument
from .loading import load_app, looking
from .reporting import emit, note, say

if TYPE_CHECKING:
    from ..timeline import TaskView


@click.command(short_help="List the tasks.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([s.value for s in TaskStatus]), metavar="STATUS",
    help=f"Only of this status; may be given more than once: {', '.join(TaskStatus)}.",
)  # fmt: skip
@store_option
@common
@click.pass_obj
def tasks(called: Invocation, statuses: Sequence[str], url: str | None) -> int:
    """List the tasks, oldest first.

    JSON: {"tasks": [{"id", "task", "status", "why", "owner", "wake_at", "created_at", "updated_at", "queue",
    "priority"}]}.
    """
    with looking(called, url) as app:
        heads = app.tasks(status=statuses)
        alive = {head.owner: app.store.owner_alive(head.owner) for head in heads if head.owner is not None}
        path = where_is(app.url)
    if called.as_json:
        emit({"tasks": [shapes.task_line(head) for head in heads]})
    elif not heads:
        say("no tasks" + (f" of status {' or '.join(statuses)}" if statuses else "") + f" in {path}")
    else:
        from .render import task_list

        say(task_list(heads, alive, path=path))
    return OK


@click.command(short_help="Show a task's timeline: calls, doubts, what is open.")
@click.argument("task_id", metavar="ID")
@click.option("--all", "every", is_flag=True, help="Every step on a line of its own, with all of its story.")
@click.option("--app", "target", metavar="MODULE:APP", help="Also say where its code defines a step otherwise than the log.")
@store_option
@common
@click.pass_obj
def show(called: Invocation, task_id: str, every: bool, target: str | None, url: str | None) -> int:
    """Show a task: each step, how often it was really called, how each doubt was settled, what is open, what to type.

    Steps that went well stand on one line each, many alike on one together; the others tell their story. With --app, whose
    store it then is, each write says in which fields today's definition differs from the one that its intent has frozen.

    JSON: {"id", "task", "status", "why", "params", "output", "error", "owner", "owner_alive", "wake_at", "created_at",
    "updated_at", "steps": [{"path", "step_seq", "step", "effect", "status", "calls", "settled_by", "params", "output", "error",
    "keys", "handles", "attempts": [...], "story": [{"at", "what"}], "changed": [{"field", "was", "now"}]}],
    "cases": [case], "stands": [{"path", "step",
    "compensate"}], "next": [commands], "forked_from": {"task", "at"} or null,
    "unacknowledged": [paths of a session's writes], "cancelled": {"by", "why"} of a task that is to be cancelled, or null}.
    """
    from .render import next_commands, timeline

    if target is not None and url is not None:
        raise UsageError("--app and --store contradict each other: the app knows its store")
    with looking(called, url) if target is None else nullcontext(load_app(called, target)) as app:
        view = seen(app, task_id)
        path = where_is(app.url)
    if called.as_json:
        emit(shapes.task(view, next_commands(view, store=called.url)))
    else:
        click.echo(timeline(view, every=every, store=called.url, path=path))
    return OK


@click.command(short_help="Print a task's events, one per line.")
@click.argument("task_id", metavar="ID")
@store_option
@common
@click.pass_obj
def log(called: Invocation, task_id: str, url: str | None) -> int:
    """Print a task's events as they are stored, one per line. The store's own task is '$store'.

    JSON: one object per line, with the columns of the log: digests in hex, refs as inline:... or sha256:..., times in
    microseconds.
    """
    with looking(called, url) as app:
        rows = app.store.rows(task_id)
        if not rows:
            seen(app, task_id)
    for row in rows:
        if called.as_json:
            emit(shapes.event(row))
        else:
            say(event_line(shapes.event(row)))
    return OK


def event_line(event: dict[str, object]) -> str:
    """An event on one line: its place and kind, then each column that says something."""
    lead = f"{event['event_seq']:>4}  {event['kind']}"
    left_out = ("task_id", "event_seq", "kind")
    return "  ".join([lead, *(f"{name}={value}" for name, value in event.items() if value is not None and name not in left_out)])


@click.command(short_help="Print what happens to each step in each kind of trouble.")
@target_argument
@common
@click.pass_obj
def steps(called: Invocation, target: str) -> int:
    """Print the step table: what will happen to each step in each kind of trouble, and what is assumed.

    A table with faults is printed as the list of its faults, and the exit code is 2.

    JSON: the report as data; {"faults": [...]} when there are any.
    """
    app = load_app(called, target)
    faults = app.check()
    if faults:
        if called.as_json:
            emit({"faults": faults})
        else:
            say("\n".join(f"- {fault}" for fault in faults))
        note(f"the step table has {len(faults)} {'fault' if len(faults) == 1 else 'faults'}.")
        return USAGE
    from ..report import report

    made = report(app)
    if called.as_json:
        emit(made.as_json())
    else:
        say(made.text())
    return OK


def seen(app: Doubtless, task_id: str) -> TaskView:
    """The task as `show` tells it. Raises UnknownTask with the ids that are near."""
    try:
        return app.show(task_id)
    except UnknownTask as error:
        near = get_close_matches(task_id, [head.task_id for head in app.tasks()], n=1)
        if near:
            raise UnknownTask(error.message, hint=f"did you mean {near[0]}?", task=task_id) from None
        raise
