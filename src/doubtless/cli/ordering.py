"""Commands by which a person ends a task or takes back what it did: cancel, compensate."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..app import Doubtless
from ..errors import NeedsHuman, TaskFailed, TaskWaiting
from ..events import TERMINAL
from .exits import FAILED, OK
from .group import Invocation, common, target_argument
from .loading import aside, load_app
from .progress import shown
from .reporting import emit, note, say
from .running import Waiting, how_long, ready, wait_options
from .signals import guarded
from .typed import typed

by_option = click.option("--by", required=True, metavar="NAME", help="Who says so.")
why_option = click.option("--why", required=True, metavar="TEXT", help="Why.")


@click.command(cls=Waiting, short_help="Cancel a task; what it did is undone.")
@target_argument
@click.argument("task_id", metavar="ID")
@by_option
@why_option
@wait_options
@common
@click.pass_obj
def cancel(
    called: Invocation, *, target: str, task_id: str, by: str, why: str, wait: str | None, no_wait: bool
) -> int:  # fmt: skip
    """Cancel the task of this ID, and its children: nothing new begins.

    What runs is settled first; then what the task did is undone, or waits for a person, as the task is declared; then it ends.
    The wish is durable. A task that another process runs sees it before its next step; one that nobody runs ends here. Of a
    task that has ended nothing happens, and the exit code is 1 where that is another end than cancelled or compensated.

    JSON: {"task", "status", "stands"}; stands lists what was not undone.
    """
    with guarded():
        app = ready(load_app(called, target))
        limit = how_long(wait, no_wait, default=True)
        good = ("cancelled", "compensated")
        recorded = "the task is cancelled: nothing new begins, and it ends when what is in doubt is settled"
        return carried_out(called, app, task_id, lambda: app.cancel(task_id, by=by, why=why, wait=limit), good, recorded)


@click.command(cls=Waiting, short_help="Undo what a task that is done did.")
@target_argument
@click.argument("task_id", metavar="ID")
@by_option
@why_option
@wait_options
@common
@click.pass_obj
def compensate(
    called: Invocation, *, target: str, task_id: str, by: str, why: str, wait: str | None, no_wait: bool
) -> int:  # fmt: skip
    """Undo what the task of this ID did, the latest first, each by its registered compensation.

    The task has to be done. The wish is durable; called again, it goes on where it stopped.

    JSON: {"task", "status", "stands"}; stands lists what was not undone.
    """
    with guarded():
        app = ready(load_app(called, target))
        limit = how_long(wait, no_wait, default=True)
        good, recorded = ("compensated",), "what the task did is being undone"
        return carried_out(called, app, task_id, lambda: app.compensate(task_id, by=by, why=why, wait=limit), good, recorded)


def carried_out(
    called: Invocation, app: Doubtless, task_id: str, order: Callable[[], str], good: tuple[str, ...], recorded: str
) -> int:  # fmt: skip
    """Give the order, and say how the task stands then; `recorded`: what holds also where it cannot be carried out yet."""
    with shown(app, task_id), aside(called.as_json):
        try:
            status = order()
        except TaskFailed as error:
            status = error.status
        except (NeedsHuman, TaskWaiting) as error:  # what was said holds all the same
            error.message = f"recorded: {recorded}; {error.message}"
            raise
    stands = list(app.show(task_id).stands) if status in TERMINAL else []
    if called.as_json:
        emit({"task": task_id, "status": status, "stands": stands})
    else:
        from .render import stands as in_words

        say("\n".join([f"task {task_id} is {status}", *(f"  {in_words(effect)}" for effect in stands)]))
    if status in good:
        return OK
    if status in TERMINAL:
        note(f"task {task_id} had ended {status} already; {typed('show', task_id, store=called.url)}")
        return FAILED
    note(f"recorded: {recorded}; whoever runs task {task_id} sees it: {typed('show', task_id, store=called.url)}")
    return OK
