"""What goes to stdout and stderr: JSON documents, plain text, and the one line of an error."""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import (
    AlreadySettled,
    CaseChanged,
    DoubtlessError,
    InputDiffers,
    NeedsHuman,
    StepTableError,
    StoreError,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UnknownCase,
    UnknownTask,
    UsageError,
)
from .exits import INTERRUPTED, PIPE_CLOSED, Interrupted, Unexpected, exit_code
from .typed import show_time, typed

if TYPE_CHECKING:
    from .group import Invocation


def prepare_streams() -> None:
    """Let a character that a terminal or a pipe cannot show be escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence() -> int:
    """Nobody reads stdout any more: write the rest nowhere, so that the interpreter ends without a complaint."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return PIPE_CLOSED


def plain(text: str) -> str:
    """Text with its control characters escaped: what another system said must not move a terminal's cursor."""
    return text if text.isprintable() else "".join(c if _shows(c) else _escaped(c) for c in text)


def _shows(character: str) -> bool:
    """Whether a character only shows: no control, no change of direction, no line or paragraph end, no lone surrogate."""
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of any script


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1]  # as ASCII: outside of strings JSON has no such character


def emit(document: object) -> None:
    """Print one JSON document on one line, without a raw control character."""
    text = json.dumps(document, ensure_ascii=False)
    click.echo(text if text.isprintable() else "".join(c if _shows(c) else _json_escaped(c) for c in text))


def say(text: str) -> None:
    """Print a line to stdout; control characters in it, other than its own line ends, are escaped."""
    click.echo("\n".join(plain(line) for line in text.split("\n")))


def note(text: str) -> None:
    """Print one line to stderr, as `doubtless: …`."""
    click.echo(f"doubtless: {plain(text)}", err=True)


# ---------------------------------------------------------------- errors


def report(error: BaseException, called: Invocation) -> int:
    """Say in one line what went wrong and what to type next; the exit code."""
    if called.debug:
        import traceback

        traceback.print_exception(error)
    known = recognised(error)
    hint, code = next_step(known, called), exit_code(known)
    message = one_line(known)
    if called.as_json:
        try:
            emit({"error": {"code": known.code, "message": message, "hint": hint, "context": clean(known.context)}, "exit": code})
            sys.stdout.flush()
        except BrokenPipeError:
            silence()
    ended = message if message.endswith((".", "?", "!")) else f"{message}."
    note(f"{ended} {hint}".rstrip())
    return code


def recognised(error: BaseException) -> DoubtlessError:
    """Any error as one with a message, a hint and a code."""
    match error:
        case DoubtlessError():
            return error
        case click.Abort() | KeyboardInterrupt():
            return Interrupted("interrupted; no task was running", exit_code=INTERRUPTED)
        case click.UsageError():
            context = error.ctx
            return UsageError(error.format_message().rstrip("."), hint=f"{context.command_path} --help" if context else "")
        case click.ClickException():
            return UsageError(error.format_message())
        case _:
            return Unexpected(f"{type(error).__name__}: {error}", hint="the same command with --debug shows where")


def one_line(error: DoubtlessError) -> str:
    """An error's message on one line."""
    if isinstance(error, StepTableError):
        noun = "fault" if len(error.faults) == 1 else "faults"
        return f"the step table has {len(error.faults)} {noun}: {'; '.join(error.faults)}"
    return "; ".join(part.strip() for part in error.message.splitlines() if part.strip())


def next_step(error: DoubtlessError, called: Invocation) -> str:
    """What to type next, as it has to be typed: with this call's app and store."""
    task, store = error.context.get("task"), called.url
    resume = typed("resume", called.target or "MODULE:APP", task) if task else ""
    match error:
        case NeedsHuman():
            return typed("inbox", *error.cases[:1], store=store) if error.cases else typed("show", task, store=store)
        case TaskWaiting():
            return f"from {show_time(error.until.wall)} on: {resume}" if error.until else resume
        case TaskFrozen():
            return f"{typed('thaw', error.context.get('step'), store=store)}; then: {resume}"
        case TaskFailed():
            return typed("show", task, store=store)
        case InputDiffers():
            return f"one id is one task: use another id, or the same input; {typed('show', task, store=store)}"
        case AlreadySettled():
            case = str(error.context.get("case", ""))
            return typed("show", case.rpartition(":")[0], store=store)
        case CaseChanged():
            return f"look at it again: {typed('inbox', error.context.get('case'), store=store)}"
        case UnknownTask() if task and error.hint.startswith("doubtless tasks"):
            return f"{typed('tasks', store=store)} lists them"
        case UnknownCase():
            return f"{typed('inbox', store=store)} lists the open ones"
        case StoreError() | UsageError() | _:
            return "; ".join(error.hint.splitlines())


def clean(value: Any) -> Any:
    """A context's values as JSON; what has no JSON form is left out."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items() if _has_json(v)}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value if _has_json(v)]
    return value


def _has_json(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | Mapping) or type(value) is tuple
