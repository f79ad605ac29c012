"""Command that tries a task out: crashtest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .exits import FAILED, OK, Interrupted
from .group import Invocation, common, target_argument
from .loading import aside, load_app, read_json, read_params, task_named
from .reporting import emit, say
from .running import ready
from .signals import CODES, Terminated, guarded

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..testing.crashtest import CrashReport, StepReport

FAKES, WORLD = "crashtest_fakes", "crashtest_world"


@click.command(short_help="Try a task out: kill it at every point, lose replies, and count the effects.")
@target_argument
@click.argument("task")
@click.option("-p", "pairs", metavar="KEY=VALUE", multiple=True, help="A param; JSON where it reads so and fits, else text.")
@click.option("--params", "whole", metavar="JSON|@FILE", help="All params at once, as an object.")
@click.option("--fake", is_flag=True, help="Make up fakes for writes that have none, and for their queries.")
@click.option("--outputs", metavar="JSON|@FILE", help="What made-up fakes give, by step, as an object; also of reads.")
@click.option("--lag", metavar="PT1M", help="How late look-backs may be.  [default: half of absent_after; PT1M without]")
@click.option("--real", is_flag=True, help="Call the real writes where there is no fake: many times.")
@common
@click.pass_obj
def crashtest(
    called: Invocation, *, target: str, task: str, pairs: Sequence[str], whole: str | None, fake: bool, outputs: str | None,
    lag: str | None, real: bool,
) -> int:  # fmt: skip
    """Try the task out: kill it at every commit and call, lose its replies, let look-backs lag, and count the effects.

    In scratch stores on a clock that is turned; the app's own store is never opened. Real reads are called, many times;
    writes only where MODULE has fakes for them (crashtest_fakes: {"step": function, "step.query": function}, or a function
    that gives it), with --fake, or with --real. With crashtest_world, a CountingWorld, its counts are compared, too.

    Exits with 1 when something happened that must not: an effect twice, one that the log denies, a doubt nobody sees.

    JSON: {"task", "undisturbed", "points", "runs", "ends": {STATUS: N}, "steps": [{"step", "effect", "runs", "most_calls",
    "most_effects", "doubts": {BY: N}, "people"}], "wrong": [{"what", "runs", "first"}], "notes"}.
    """
    if fake and real:
        raise UsageError("--fake and --real contradict each other", hint="doubtless crashtest --help")
    try:
        with guarded():
            app = ready(load_app(called, target))
            code = task_named(app, task)
            params = read_params(code, pairs, whole)
            given = {} if outputs is None else read_json(outputs, "--outputs")
            if not isinstance(given, dict):
                raise UsageError("--outputs is JSON, but no object", hint="""--outputs '{"pay": {"id": "p-1"}}'""")
            from ..testing.crashtest import crashtest as carry_out

            with aside(True):  # what the steps print is no part of the report
                report = carry_out(
                    app, code, params, fakes=beside(app, target, FAKES), world=beside(app, target, WORLD), fake=fake,
                    outputs=given, real=real, lag=lag,
                )  # fmt: skip
    except Terminated as signal:
        raise Interrupted(
            "the crash test was ended; its scratch stores are gone", exit_code=CODES[signal.number]
        ) from signal  # fmt: skip
    if called.as_json:
        emit(as_json(report))
    else:
        say(as_text(report))
    return FAILED if report.wrong else OK


def beside(app: Doubtless, target: str, name: str) -> Any:
    """What the app's module says under this name, or None."""
    first = target.rpartition(":")[2].partition(".")[0]
    for module in list(sys.modules.values()):
        values = getattr(module, "__dict__", {})
        if values.get(first) is not None and name in values and (values[first] is app or "." in target.rpartition(":")[2]):
            return values[name]
    return None


def as_json(report: CrashReport) -> dict[str, Any]:
    """The report as data."""
    return {
        **report._asdict(), "steps": [step._asdict() for step in report.steps], "wrong": [one._asdict() for one in report.wrong],
    }  # fmt: skip


def as_text(report: CrashReport) -> str:
    """The report in words."""
    ends = ", ".join(f"{end} {number}" for end, number in report.ends.items()) or "none"
    lines = [
        f"crash test of {report.task}: {report.points} points, {report.runs} disturbed runs, all in scratch stores",
        f"undisturbed it ends {report.undisturbed}; disturbed: {ends}",
        "",
    ]
    rows = [("step", "effect", "calls", "effects", "doubts, and what settled them", "to a person"), *map(_row, report.steps)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["(calls, effects: the most at one place of one run)", ""]
    for one in report.wrong:
        lines += [f"WRONG  {one.what}", f"       in {one.runs} {'run' if one.runs == 1 else 'runs'}, first: {one.first}"]
    lines += [f"note: {text}" for text in report.notes]
    lines.append(f"wrong: {len(report.wrong)}" if report.wrong else "nothing happened that must not")
    return "\n".join(lines)


def _row(step: StepReport) -> tuple[str, ...]:
    doubts = ", ".join(f"{by} {number}" for by, number in step.doubts.items()) or "-"
    effects = "-" if step.effect == "read" else str(step.most_effects)
    return (step.step, step.effect, str(step.most_calls), effects, doubts, str(step.people))
