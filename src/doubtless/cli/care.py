"""Commands that care for a store: verify, recover, migrate; and demo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..app import Doubtless
from ..errors import StoreDamaged, StoreError, UsageError
from .exits import OK, STORE, Interrupted
from .group import Invocation, common, store_option
from .loading import aside, changing, looking, url_said
from .reporting import emit, note, say
from .signals import CODES, Terminated, guarded
from .typed import typed

if TYPE_CHECKING:
    from ..store.recover import Recovery


@click.command(short_help="Check that the log holds together.")
@click.option("--content", is_flag=True, help="Read all content in the object store, too: it costs what downloading it costs.")
@store_option
@common
@click.pass_obj
def verify(called: Invocation, *, content: bool, url: str | None) -> int:
    """Check the log: every chain, gap, ref and projection, and the mark. Reads only; 6 when something is found.

    That content is there is checked always.

    JSON: {"problems": [{"where", "event_seq", "what"}]}.
    """
    app = Doubtless(url_said(called, url), read_only=True, blobs=called.blobs)
    problems = app.verify(content=content)
    count = 0 if problems else len(app.tasks())
    app.close()
    if called.as_json:
        emit({"problems": [problem._asdict() for problem in problems]})
    else:
        for problem in problems:
            at = f", event {problem.event_seq}" if problem.event_seq is not None else ""
            say(problem.what if problem.where in problem.what else f"{problem.where}{at}: {problem.what}")
        if not problems:
            say(f"nothing found: the log of {count} {'task' if count == 1 else 'tasks'} holds together")
    if problems:
        many = f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'}"
        note(f"{many} found; copy the store's files before you do anything else, then: {typed('recover', store=called.url)}")
        return STORE
    return OK


@click.command(short_help="Go on with a store that is refused.")
@click.option("--accept", is_flag=True, help="Go on in suspect mode: what the log does not know counts as sent, outcome unknown.")
@click.option("--end", is_flag=True, help="End suspect mode: you vouch that nothing was sent that the log does not know.")
@click.option("--by", default="", metavar="NAME", help="Of --accept and --end: who says so.")
@click.option("--why", default="", metavar="TEXT", help="Of --accept and --end: why.")
@store_option
@common
@click.pass_obj
def recover(called: Invocation, *, accept: bool, end: bool, by: str, why: str, url: str | None) -> int:
    """Say why a store is refused (a restored backup, a copy, damage) and what of it can be read; or go on with it.

    Without --accept and --end nothing is changed; the exit code is 6 when the store would be refused.

    JSON: {"path", "reason": why it is refused or null, "rows", "intents": [{"task", "path", "step"}], "accepted", "suspect"}.
    """
    if accept and end:
        raise UsageError("--accept begins suspect mode and --end ends it: one at a time")
    if (accept or end) and not (by and why):
        raise UsageError(f"{'--accept' if accept else '--end'} needs who says so, and why", hint="--by NAME --why TEXT")
    if end:
        return end_suspect_mode(called, url, by, why)
    from ..app import state_directory
    from ..store import recover_store

    app = Doubtless(url_said(called, url))
    try:
        found = recover_store(
            app.url, clock=app.clock.now, state=state_directory(), accept=accept, by=by, why=why
        )
    except StoreDamaged as error:
        if not called.as_json:
            for intent in error.context.get("intents", []):
                say(f"unsettled: {intent}")
        raise
    suspect = accept or is_suspect(called, url)
    if called.as_json:
        emit(as_json(found, suspect))
    else:
        say(as_text(found, suspect, called.url))
    if found.reason and not found.accepted:
        note(f"the store is refused: {found.reason}. {typed('recover', store=called.url, accept='', by='NAME', why='TEXT')}")
        return STORE
    return OK


def end_suspect_mode(called: Invocation, url: str | None, by: str, why: str) -> int:
    """Let new writes be sent again as ever."""
    with changing(called, url) as app:
        store = app.store
        if not store.info().suspect:
            raise UsageError("the store is not in suspect mode; there is nothing to end")
        store.end_suspect(by=by, why=why)
        path = getattr(store, "path", store.info().location)
    if called.as_json:
        emit({"path": path, "reason": None, "rows": None, "intents": [], "accepted": False, "suspect": False})
    else:
        say("suspect mode is ended: new writes are sent as ever")
    return OK


def is_suspect(called: Invocation, url: str | None) -> bool:
    """Whether the store is in suspect mode."""
    try:
        with looking(called, url) as app:
            return app.store.info().suspect
    except StoreError:  # gone, or not to be read: what was found says so
        return False


def as_json(found: Recovery, suspect: bool) -> dict[str, object]:
    """A finding as data."""
    return {
        "path": found.path, "reason": found.reason or None, "rows": found.salvage.rows,
        "intents": [{"task": e.task_id, "path": e.path, "step": e.step_name} for e in found.salvage.intents],
        "accepted": found.accepted, "suspect": suspect,
    }  # fmt: skip


def as_text(found: Recovery, suspect: bool, store: str | None) -> str:
    """A finding in words."""
    lines = [f"{found.path}: {found.salvage.rows} events can be read"]
    open_ones = [f"  unsettled: task {e.task_id}, {e.step_name} at {e.path}" for e in found.salvage.intents]
    if found.accepted:
        lines.append("it goes on in suspect mode: every write that the log does not know counts as sent, its outcome unknown")
    elif not found.reason:
        lines.append("it fits its mark")
        if not suspect:
            accept = typed("recover", store=store, accept="", by="NAME", why="TEXT")
            lines.append("a database that was restored together with its mark fits it, too: if you have restored this one, run")
            lines.append(f"  {accept}")
            lines.append("before anything else runs; otherwise writes of which its log does not know are sent again")
    if suspect:
        lines.append(f"suspect mode ends with: {typed('recover', store=store, end='', by='NAME', why='TEXT')}")
    return "\n".join([*lines, *open_ones])


@click.command(short_help="Make or renew the tables of a PostgreSQL store.")
@click.option("--namespace", metavar="TEXT", help="Part of every key, set once per store. Default: random.")
@store_option
@common
@click.pass_obj
def migrate(called: Invocation, *, namespace: str | None, url: str | None) -> int:
    """Bring the tables of a PostgreSQL store to this version: forward only, all or nothing, one process at a time.

    Safe to run again, and by several at once. Refused, and then nothing is changed: a store with newer tables than this
    version knows, and a database without tables where this machine knows of a store.

    JSON: {"store", "before": the schema that it had (0: none), "after"}.
    """
    from ..app import state_directory
    from ..store import migrate_store

    said = url_said(called, url)
    before, after = migrate_store(said, state=state_directory(), namespace=None if namespace is None else namespace.encode())
    if called.as_json:
        emit({"store": called.url, "before": before, "after": after})
    else:
        say(f"schema {after}: nothing to do" if before == after else f"schema {before} -> {after}")
    return OK


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Show the accident, and the same work with Doubtless.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@common
@click.pass_obj
def demo(called: Invocation, options: Sequence[str]) -> int:
    """Show the accident, and the same work with Doubtless: under a minute, no questions. Options: demo --help.

    Counts at the server that it starts; 1 when a count is off.

    JSON: {"ok", "exit"}; what the demo prints goes to stderr then.
    """
    try:
        from ..demo import main
    except ImportError as error:
        raise UsageError(
            f"the demo is not part of this installation ({error})", hint="it comes with the wheel and the source tree"
        ) from error
    with guarded(), aside(called.as_json):
        try:
            code = main(list(options))
        except SystemExit as error:  # its own --help, or an option that it does not know
            code = error.code if isinstance(error.code, int) else OK
        except Terminated as signal:
            raise Interrupted("the demo was ended", exit_code=CODES[signal.number]) from signal
    if called.as_json:
        emit({"ok": code == OK, "exit": code})
    return code
