"""The group of commands: which module holds which, and the options that all of them take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click

from ..errors import UsageError
from .exits import INTERRUPTED, MEANING, Interrupted

F = TypeVar("F", bound=Callable[..., Any])

HOMES: dict[str, str] = {
    "run": "running", "resume": "running", "worker": "working", "fork": "forking", "cancel": "ordering", "compensate": "ordering",
    "tasks": "looking", "show": "looking", "log": "looking", "steps": "looking",
    "inbox": "people", "settle": "people", "send-event": "sending", "freeze": "people", "thaw": "people",
    "verify": "care", "recover": "care", "migrate": "care", "gc": "tidying", "demo": "care",
    "crashtest": "crashtesting",
}  # fmt: skip
"""Each command and the module that holds it, in the order of the help; a module is loaded when it is needed."""


class Invocation:
    """What one call of the command line is about: how it reports, and which app and store it works with."""

    def __init__(self, arguments: Sequence[str]) -> None:
        own = list(arguments)
        own = own[: own.index("--")] if "--" in own else own
        self.as_json = "--json" in own  # looked for here, so that a line that cannot be parsed is reported as asked
        self.debug = "--debug" in own
        self.target: str | None = None
        self.url: str | None = None
        self.blobs: str | None = None


class Commands(click.Group):
    """A group that knows its commands by name and loads their modules late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = HOMES.get(cmd_name)
        if home is None:
            return None
        command = getattr(import_module(f"{__package__}.{home}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in HOMES and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], HOMES, n=1)
            meant = f"did you mean {near[0]}?" if near else "doubtless --help lists the commands"
            raise UsageError(f"there is no command {args[0]}", hint=meant)
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), words) for code, words in MEANING.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end with 1, which here says that a task failed
            from .reporting import silence

            return silence()
        except KeyboardInterrupt as error:  # of a command that only looks; click would print a line of its own
            raise Interrupted("interrupted; no task was running", exit_code=INTERRUPTED) from error


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"doubtless {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@click.pass_context
def doubtless(ctx: click.Context) -> None:
    """Durable, retry-safe steps for agents: every doubt gets settled.

    Commands that only look take --store URL, or $DOUBTLESS_STORE. Commands that run code, and settle, take MODULE:APP: where
    the app is, as in recon:app or path/to/recon.py:app.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def common(command: F) -> F:
    """Add the options that every command takes; `Invocation` has read them already."""
    command = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(command)
    return click.option("--json", is_flag=True, expose_value=False, help="Print JSON: one document, also of an error.")(command)


def _blobs_said(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if isinstance(ctx.obj, Invocation):
        ctx.obj.blobs = value


def store_option(command: F) -> F:
    """Add ``--store``, for commands that look without the app's code."""
    help_text = "The store, as in sqlite:///recon.db. Default: $DOUBTLESS_STORE."
    blobs_text = "Where its content above 1 MiB is, as in s3://bucket/prefix. Default: $DOUBTLESS_BLOBS, else the log says it."
    command = click.option("--blobs", metavar="URL", help=blobs_text, expose_value=False, callback=_blobs_said)(command)
    return click.option("--store", "url", metavar="URL", help=help_text)(command)


target_argument = click.argument("target", metavar="MODULE:APP")
