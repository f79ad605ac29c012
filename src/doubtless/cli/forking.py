"""The command that forks a task."""

from __future__ import annotations

import click

from ..beyond import POLICIES, WritePolicy
from ..forking import Forked, Stands
from .exits import OK
from .group import Invocation, common, target_argument
from .loading import aside, load_app
from .reporting import emit, say
from .running import ready
from .sheet import Sheet, call_text, short_json
from .signals import guarded
from .typed import typed

policy = click.Choice(POLICIES)


@click.command(short_help="Make a new task that goes another way from a step.")
@target_argument
@click.argument("task_id", metavar="ID")
@click.option("--at", type=int, required=True, metavar="SEQ", help="The step_seq from which on the fork's own code decides.")
@click.option("--as", "new_id", metavar="NEWID", help="The new task's id.  [default: ID@SEQ]")
@click.option("--idem-write", type=policy, default="ask", metavar="POLICY", help="Its idem_writes: ask, reuse or run.")
@click.option("--non-idem-write", type=policy, default="ask", metavar="POLICY", help="Its non_idem_writes: ask, reuse or run.")
@common
@click.pass_obj
def fork(
    called: Invocation, *, target: str, task_id: str, at: int, new_id: str | None, idem_write: WritePolicy,
    non_idem_write: WritePolicy,
) -> int:  # fmt: skip
    """Make a new task that goes another way from step SEQ of the task ID, which stays as it is, whatever became of it.

    Steps before SEQ are answered from the log of ID. From SEQ on reads run again, and a write is held against what stands
    of ID beyond SEQ: ask opens a question first, reuse takes over what stands unchanged at its place (and asks where
    nothing fits), run sends it again, a second effect, on purpose. The fork is made, and not run.

    JSON: {"task", "forked_from", "at", "taken", "stands": [{"task", "path", "step", "effect", "status", "params",
    "output"}], "next"}.
    """
    with guarded():
        app = ready(load_app(called, target))
        with aside(called.as_json):
            made = app.fork(task_id, at=at, task_id=new_id, idem_write=idem_write, non_idem_write=non_idem_write)
    following = typed("resume", target, made.id)
    if called.as_json:
        stands = [one._asdict() for one in made.stands]
        emit({
            "task": made.id, "forked_from": made.forked_from, "at": made.at, "taken": made.taken, "stands": stands,
            "next": following,
        })  # fmt: skip
    else:
        say(told(made, following))
    return OK


def told(made: Forked, following: str) -> str:
    """A fork in words: what it takes over, what stands beyond its point, what to type next."""
    sheet = Sheet()
    sheet.title((made.id, "bold"), f"  a fork of {made.forked_from} at {made.at}; steps taken over: {made.taken}")
    if made.stands:
        sheet.line("beyond that point stands:")
    for one in made.stands:
        sheet.line(stands(one), lead="  ! ", lead_style="bold yellow")
    sheet.command(following, "  next  ")
    return sheet.text()


def stands(one: Stands) -> str:
    """An effect that stands, on one line."""
    output = "" if one.output is None else f" -> {short_json(one.output, 120)}"
    return f"{call_text(one.step, one.params, 200)}{output}  ({one.status}, {one.effect}, at {one.path} of {one.task})"
