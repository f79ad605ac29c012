"""Commands that run tasks: run, resume."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ..app import Doubtless
from ..canonical import encode
from ..errors import NotCanonical, StepTableError, TaskFrozen, UsageError
from ..inbox import shown_json
from .exits import FAILED, FROZEN, NEEDS_HUMAN, OK, STORE, Unexpected
from .group import Invocation, common, target_argument
from .loading import aside, load_app, read_params, task_named
from .progress import shown
from .reporting import emit, note, say
from .signals import Terminated, guarded, interrupted
from .typed import typed

FOR_EVER = "for-ever"


class Waiting(click.Command):
    """A command whose ``--wait`` takes a duration or nothing: the next word is its value only when it is a duration."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, joined(args))


def joined(args: Sequence[str]) -> list[str]:
    """``--wait PT1M`` as one word; ``--wait`` alone as waiting for ever."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    if "--wait" in words[:end]:
        at = words.index("--wait")
        following = words[at + 1 : at + 2]
        if following and (following[0][:1] == "P" or following[0][:1].isdigit()):
            words[at : at + 2] = [f"--wait={following[0]}"]
        else:
            words[at] = f"--wait={FOR_EVER}"
    return words


def wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--wait``, ``--wait PT1M``, ``--no-wait``."""
    command = click.option("--no-wait", is_flag=True, help="Do not wait for a time to look again: exit with 4 instead.")(command)
    return click.option(
        "--wait", metavar="[PT1M]", help="Wait through times to look again; with a duration no longer than that."
    )(command)


def how_long(wait: str | None, no_wait: bool, default: bool) -> bool | str:
    """What the two options say to `app.run`. Raises UsageError for both, and for what is no duration."""
    if wait is not None and no_wait:
        raise UsageError("--wait and --no-wait contradict each other")
    if wait is None:
        return False if no_wait else default
    if wait == FOR_EVER:
        return True
    from ..durations import parse_duration

    parse_duration(wait)  # refused here, before anything is recorded
    return wait


@click.command(cls=Waiting, short_help="Start a task, or go on with it.")
@target_argument
@click.argument("task")
@click.argument("task_id", metavar="ID")
@click.option("-p", "pairs", metavar="KEY=VALUE", multiple=True, help="A param; JSON where it reads so and fits, else text.")
@click.option("--params", "whole", metavar="JSON|@FILE", help="All params at once, as an object.")
@wait_options
@common
@click.pass_obj
def run(
    called: Invocation, *, target: str, task: str, task_id: str, pairs: Sequence[str], whole: str | None, wait: str | None,
    no_wait: bool,
) -> int:  # fmt: skip
    """Start the task of this ID, or go on with it: the same call for both.

    Prints the task's output. One ID is one task: with other input it is refused. A value of -p stays text where the param
    is text: -p day=20261128; quote it twice to force text elsewhere: -p 'code="007"'.

    JSON: {"task", "status": "done", "output"}.
    """
    with guarded():
        app = ready(load_app(called, target))
        code = task_named(app, task)
        params = read_params(code, pairs, whole)
        limit = how_long(wait, no_wait, default=True)
        return carried(called, app, task_id, lambda: app.run(code, task_id, wait=limit, **params))


@click.command(cls=Waiting, short_help="Go on with a task, or with all of them.")
@target_argument
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("--all", "every", is_flag=True, help="One pass over all tasks that have not ended.")
@click.option("--at", metavar="SEQ", hidden=True)
@wait_options
@common
@click.pass_obj
def resume(
    called: Invocation, *, target: str, task_id: str | None, every: bool, at: str | None, wait: str | None, no_wait: bool
) -> int:
    """Go on with the task of this ID, or with --all of them: what is in doubt is settled first.

    Does no harm, however often it is called. --all does not wait unless --wait says so; of what it met the gravest is
    its exit code: 6, then 1, 3, 7; tasks that wait, are busy or belong to another app count as 0.

    JSON: {"task", "status": "done", "output"}; with --all {"tasks": {ID: {"result", "message"}}}, where result is done,
    skipped, unknown_task or the code of an error.
    """
    if (task_id is None) == (not every):
        raise UsageError("give the ID of a task, or --all" + (", not both" if every else ""), hint="doubtless resume --help")
    if at is not None:
        raise UsageError(
            "a task is not rewound: its log says what happened, and effects do not go away; nothing was done",
            hint=f"a fork goes another way from a step: {typed('fork', target, task_id, at=at)}",
        )
    with guarded():
        app = ready(load_app(called, target))
        limit = how_long(wait, no_wait, default=not every)
        if task_id is not None:
            return carried(called, app, task_id, lambda: app.resume(task_id, wait=limit))
        return all_of_them(called, app, limit)


def ready(app: Doubtless) -> Doubtless:
    """The app, when its step table has no fault: it is refused before its store is opened or made."""
    faults = app.check()
    if faults:
        raise StepTableError(faults)
    return app


def carried(
    called: Invocation, app: Doubtless, task_id: str, go: Callable[[], Any], before: Mapping[str, Any] | None = None
) -> int:
    """Run a task with progress, print its output, and say of a signal what it left in doubt.

    `before`: what the command has done already, for the one document that it prints.
    """
    try:
        with shown(app, task_id), aside(called.as_json):
            output = go()
    except Terminated as signal:
        raise interrupted(app, signal.number, called.target or "MODULE:APP", task_id) from signal
    except SystemExit as error:
        raise Unexpected(
            f"the code of task {task_id} ended its process (SystemExit: {error.code}); the task is parked",
            hint=f"let it raise an error instead, then doubtless resume {called.target} {task_id}",
            task=task_id,
        ) from error
    except TaskFrozen as error:
        if error.context.get("step") not in app.store.frozen():
            error.context["step"] = None  # everything is frozen, not only this step
        raise
    tell(called, app, task_id, output, before or {})
    return OK


def tell(called: Invocation, app: Doubtless, task_id: str, output: Any, before: Mapping[str, Any]) -> None:
    """Print a finished task's output: as the log has it, not as its class would show itself."""
    import json

    try:
        value = shown_json(encode(output))
    except NotCanonical:
        value = app.show(task_id).output
    if called.as_json:
        emit({**before, "task": task_id, "status": "done", "output": value})
        return
    if sys.stderr.isatty():
        note(f"task {task_id} is done")
    say(json.dumps(value, ensure_ascii=False, indent=2))


# ---------------------------------------------------------------- all of them

GRAVEST: dict[str, int] = {
    "store": STORE, "store_refused": STORE, "store_suspect": STORE, "store_damaged": STORE, "store_unavailable": STORE,
    "task_failed": FAILED, "needs_human": NEEDS_HUMAN, "task_frozen": FROZEN,
}  # fmt: skip
"""What a pass over all tasks can meet that its exit code tells, the gravest first."""


def all_of_them(called: Invocation, app: Doubtless, limit: bool | str) -> int:
    """One pass; a line per task."""
    since = app.store.now().wall
    try:
        with aside(called.as_json):
            results = app.resume_all(wait=limit)
    except Terminated as signal:
        raise interrupted(app, signal.number, called.target or "MODULE:APP", None, since) from signal
    told = {task_id: result_of(text) for task_id, text in results.items()}
    met = {each["result"] for each in told.values()}
    if called.as_json:
        emit({"tasks": told})
    elif not told:
        say("every task has ended; there is nothing to resume")
    else:
        for task_id, each in told.items():
            say(f"{task_id}  {each['result']}" + (f"  {each['message']}" if each["message"] else ""))
    worst = next((result for result in GRAVEST if result in met), None)
    if worst is None:
        return OK
    number = sum(each["result"] == worst for each in told.values())
    next_command = typed("inbox", store=called.url) if worst == "needs_human" else typed("tasks", store=called.url)
    note(f"of {len(told)} tasks that had not ended, {number} stand at {worst}. {next_command}")
    return GRAVEST[worst]


def result_of(text: str) -> dict[str, str | None]:
    """What became of one task, as a word and a sentence."""
    if text.startswith("unknown task "):
        return {"result": "unknown_task", "message": text}
    word, _, message = text.partition(": ")
    return {"result": word, "message": "; ".join(message.splitlines()) or None}
