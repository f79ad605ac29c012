"""Commands for people: inbox, settle, freeze, thaw."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from ..answers import (
    SPELLED,
    Abandon,
    Answer,
    AnyAnswer,
    Compensate,
    Deny,
    DidNotHappen,
    Fail,
    Happened,
    LetStand,
    Noted,
    Retry,
)
from ..app import Doubtless
from ..errors import DoubtlessError, TaskBusy, UsageError
from . import shapes
from .exits import OK
from .group import Invocation, common, store_option, target_argument
from .loading import aside, changing, load_app, looking, read_json
from .reporting import emit, note, say
from .running import carried, ready
from .signals import guarded
from .typed import typed


@click.command(short_help="List what waits for a person, or show a case.")
@click.argument("case_id", metavar="[CASE]", required=False)
@store_option
@common
@click.pass_obj
def inbox(called: Invocation, case_id: str | None, url: str | None) -> int:
    """List what waits for a person; with CASE show all of it: evidence, what each answer does, what to type.

    Also listed: doubts that nobody is settling (their owner died, or they are overdue), and what is frozen.

    JSON: {"cases": [case], "doubts": [{"task", "path", "step", "why", "since"}], "frozen": {step: why}, "suspect"}; with CASE
    one case: {"id", "task", "kind", "why", "path", "step", "opened_at", "evidence", "answers", "hash", "settled", "commands"}.
    """
    with looking(called, url) as app:
        if case_id is not None:
            return one_case(called, app, case_id)
        found, frozen, suspect = app.inbox(), app.store.frozen(), app.store.info().suspect
    if called.as_json:
        cases = [shapes.case(each, None) for each in found.cases]
        emit({"cases": cases, "doubts": [shapes.doubt(each) for each in found.doubts], "frozen": frozen, "suspect": suspect})
    else:
        from .render_case import inbox_list

        say(inbox_list(found, frozen, suspect=suspect, store=called.url))
    return OK


def one_case(called: Invocation, app: Doubtless, case_id: str) -> int:
    """Show everything of one case, open or settled."""
    shown, row = app.case(case_id), app.store.case(case_id)
    settled = None
    if row is not None and row.settled_seq is not None:
        settled = app.store.rows(row.task_id, after=row.settled_seq - 1)[0]
    if called.as_json:
        emit(shapes.case(shown, settled))
    else:
        from .render_case import case_text

        say(case_text(shown, settled))
    return OK


@click.command(short_help="Answer a case, once.")
@target_argument
@click.argument("case_id", metavar="CASE")
@click.argument("answer", type=click.Choice(list(SPELLED.values())), metavar="ANSWER")
@click.option("--by", required=True, metavar="NAME", help="Who says so.")
@click.option("--why", required=True, metavar="TEXT", help="How they know.")
@click.option("--shown", metavar="HASH", help="The hash that inbox CASE showed; its first 8 characters do.  [required]")
@click.option("--output", metavar="JSON|@FILE", help="Of happened and answer: the step's output.")
@click.option("--then", type=click.Choice(["retry", "fail"]), help="Of did_not_happen: send it again, or give it up.")
@click.option("--even-now", is_flag=True, help="Of did_not_happen: without waiting and without a fresh look, at your risk.")
@click.option("--resume", "go_on", is_flag=True, help="Go on with the task at once.")
@common
@click.pass_obj
def settle(
    called: Invocation, *, target: str, case_id: str, answer: str, by: str, why: str, shown: str | None,
    output: str | None, then: str | None, even_now: bool, go_on: bool,
) -> int:  # fmt: skip
    """Answer a case, once. The answer is bound to what was shown: new evidence means looking again.

    ANSWER is one that the case takes (inbox CASE lists them): happened, did_not_happen, abandon, retry, fail, compensate,
    let_stand, noted,
    answer or deny. It is durable when the command returns; the task goes on with --resume, by resume, or in a worker.

    JSON: {"case", "task", "answer", "by"}; with --resume also "status" and "output" of the task that is done.
    """
    if shown is None:
        raise UsageError("an answer is bound to what was shown: --shown HASH is missing", hint=f"look: {typed('inbox', case_id)}")
    taken = read_answer(answer, output, then, even_now)
    with guarded():
        app = ready(load_app(called, target))
        with aside(called.as_json):
            case = app.settle(case_id, taken, by=by, why=why, shown=shown)
        told: dict[str, Any] = {"case": case.id, "task": case.task_id, "answer": answer, "by": by}
        if go_on:
            if not called.as_json:
                say(f"case {case.id} is settled: {answer}, by {by}")
            try:
                return carried(called, app, case.task_id, lambda: app.resume(case.task_id), told)
            except TaskBusy:  # the answer has woken a worker, which was faster
                view = app.show(case.task_id)
                if called.as_json:
                    emit({**told, "status": view.status, "output": view.output})
                note(f"task {case.task_id} goes on in another process: {typed('show', case.task_id, store=called.url)}")
                return OK
            except DoubtlessError as error:
                error.context["settled"] = told  # the answer stands, whatever became of the task
                raise
    if called.as_json:
        emit(told)
    else:
        say(f"case {case.id} is settled: {answer}, by {by}\nnext: {typed('resume', target, case.task_id)}")
    return OK


def read_answer(answer: str, output: str | None, then: str | None, even_now: bool) -> AnyAnswer:
    """The answer and its options. Raises UsageError for an option of another answer, and for one that is missing."""
    if output is not None and answer not in ("happened", "answer"):
        raise UsageError(f"{answer} takes no --output; happened and answer do")
    if answer != "did_not_happen" and (then is not None or even_now):
        raise UsageError(f"{answer} takes no --then and no --even-now; did_not_happen does")
    value = read_json(output, "--output") if output is not None else None
    match answer:
        case "happened":
            return Happened(value)
        case "answer":
            if output is None:
                raise UsageError("answer needs the value", hint="--output JSON, or --output @file.json")
            return Answer(value)
        case "did_not_happen":
            if then is None:
                raise UsageError("did_not_happen needs what then", hint="--then retry sends it again, --then fail gives it up")
            return DidNotHappen(then, even_now)
        case _:
            plain: dict[str, AnyAnswer] = {
                "abandon": Abandon(), "retry": Retry(), "fail": Fail(), "compensate": Compensate(),
                "let_stand": LetStand(), "noted": Noted(), "deny": Deny(),
            }  # fmt: skip
            return plain[answer]


@click.command(short_help="Stop a step's writes now.")
@click.argument("step", required=False)
@click.option("--why", required=True, metavar="TEXT", help="Why; shown wherever a task stands before it.")
@click.option("--by", default="", metavar="NAME", help="Who says so.")
@store_option
@common
@click.pass_obj
def freeze(called: Invocation, step: str | None, why: str, by: str, url: str | None) -> int:
    """Stop new attempts of STEP's writes now, in all processes; without STEP, of every write.

    Look-backs, reads and deadlines go on. The step table is not at hand here: a step's name is taken as it is written, and
    one that the log does not know is frozen, too, with a warning.

    JSON: {"frozen": {step: why}}, all that is frozen now; * is every step.
    """
    with changing(called, url) as app:
        app.freeze(step, why=why, by=by)
        code = tell_frozen(called, app)
        doubtful = never_seen(called, app, step) if step is not None else ""
    if doubtful:
        note(doubtful)
    return code


NEWEST = 1000
"""So many of the newest tasks are searched for a step's name."""


def never_seen(called: Invocation, app: Doubtless, step: str) -> str:
    """A warning for a step's name that the log does not know: it may be a slip. Empty when the log knows it."""
    known: set[str] = set()
    for head in reversed(app.tasks()[-NEWEST:]):
        names = {row.step_name for row in app.store.rows(head.task_id) if row.step_name is not None}
        if step in names:
            return ""
        known |= names
    near = get_close_matches(step, sorted(known), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    back = typed("thaw", step, store=called.url)
    return f"no task so far has called a step {step}; {meant}it is frozen as written; to take that back: {back}"


@click.command(short_help="Let frozen writes go on.")
@click.argument("step", required=False)
@click.option("--why", default="", metavar="TEXT", help="Why.")
@click.option("--by", default="", metavar="NAME", help="Who says so.")
@store_option
@common
@click.pass_obj
def thaw(called: Invocation, step: str | None, why: str, by: str, url: str | None) -> int:
    """Let what is frozen go on: STEP, or what freeze without a step has stopped. Tasks that stood before it are resumed.

    JSON: {"frozen": {step: why}}, what is still frozen.
    """
    with changing(called, url) as app:
        app.thaw(step, why=why, by=by)
        return tell_frozen(called, app)


def tell_frozen(called: Invocation, app: Doubtless) -> int:
    """Print what is frozen now."""
    frozen = app.store.frozen()
    if called.as_json:
        emit({"frozen": frozen})
    elif not frozen:
        say("nothing is frozen")
    else:
        say("\n".join(f"frozen: {'every write' if name == '*' else name}: {why}" for name, why in frozen.items()))
    return OK
