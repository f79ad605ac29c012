"""`make docs`: write docs/reference.md from the code, so that prose and code cannot drift. A test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from doubtless import clients, errors, events
from doubtless.answers import DOES, DOES_THERE, SPELLED, TAKES, UNDOES
from doubtless.cli.exits import MEANING
from doubtless.cli.group import doubtless
from doubtless.declaring import OPTIONS
from doubtless.fold import GRAVITY

PAGE = Path(__file__).parent / "reference.md"


def first_line(thing: object) -> str:
    """A docstring's first sentence."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def diagram(moves: dict[object, tuple[object, ...]]) -> Iterator[str]:
    """A state diagram of a table of moves."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for before, afters in moves.items():
        for after in afters:
            yield f"  {before or '[*]'} --> {after}"
    yield "```"


def closed_sets() -> Iterator[str]:
    """The closed sets of the log, and how statuses move."""
    for title, members in (
        ("Event kinds", events.Kind), ("Task statuses", events.TaskStatus), ("Step statuses", events.StepStatus),
        ("Effect classes", events.Effect), ("Case kinds", events.CaseKind),
    ):  # fmt: skip
        yield f"**{title}**: {', '.join(f'`{m.value}`' for m in members)}."
        yield ""
    yield f"**Outcomes of an attempt**, the gravest first: {', '.join(f'`{o}`' for o in GRAVITY)}; and `done`."
    yield ""
    yield "A step moves so:"
    yield ""
    yield from diagram(dict(events.STEP_MOVES))
    yield ""
    yield "A task moves so:"
    yield ""
    yield from diagram(dict(events.TASK_MOVES))


def columns() -> Iterator[str]:
    """An event's columns."""
    yield "| column | type |"
    yield "|---|---|"
    for name, kind in inspect.get_annotations(events.Event).items():
        yield f"| `{name}` | {str(kind).replace('|', 'or')} |"


def answers() -> Iterator[str]:
    """What a person may answer, by kind of case."""
    elsewhere = {events.CaseKind.QUESTION: DOES_THERE, events.CaseKind.COMPENSATION: DOES | UNDOES}
    yield "| case | answer | what it does |"
    yield "|---|---|---|"
    for kind, taken in TAKES.items():
        for answer in taken:
            yield f"| `{kind}` | `{SPELLED[answer]}` | {elsewhere.get(kind, DOES)[answer]} |"


def error_tree() -> Iterator[str]:
    """Every error, its code and what it says."""
    yield "| error | code | when |"
    yield "|---|---|---|"
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__:
            yield f"| `{name}` | `{getattr(kind, 'code', '')}` | {first_line(kind)} |"


def commands() -> Iterator[str]:
    """Every command and option."""
    context = click.Context(doubtless, info_name="doubtless")
    for name in doubtless.list_commands(context):
        one = doubtless.get_command(context, name)
        assert one is not None
        yield f"**`doubtless {name}`**: {(one.help or '').split(chr(10) + chr(10))[0].replace(chr(10), ' ').strip()}"
        yield ""
        for param in one.params:
            if isinstance(param, click.Option):
                yield f"- `{' / '.join([*param.opts, *param.secondary_opts])}`: {param.help or ''}"
        yield ""


def known_clients() -> Iterator[str]:
    """What the ready-made classifiers say (`single_request=True`)."""
    yield "| client | error | reading |"
    yield "|---|---|---|"
    for client, name, rule in clients.KNOWN:
        yield f"| {client} | `{name}` | {rule} |"


def page() -> str:
    """The whole page."""
    parts: list[tuple[str, Iterator[str]]] = [
        ("The log's closed sets", closed_sets()), ("An event's columns", columns()), ("Answers", answers()),
        ("Errors", error_tree()), ("Known clients", known_clients()), ("Commands", commands()),
        ("Exit codes", (f"- {code}: {text}" for code, text in MEANING.items())),
        ("Step options", iter([", ".join(f"`{option}`" for option in OPTIONS) + ". See [steps.md](steps.md)."])),
    ]  # fmt: skip
    lines = ["# Reference", "", "Written from the code by `make docs`.", ""]
    for title, body in parts:
        lines += [f"## {title}", "", *body, ""]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
