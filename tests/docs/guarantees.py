"""docs/guarantees.md, read: each guarantee, its checks, and the command that runs these and no others.

`python -m tests.docs.guarantees NAME …` (`make guarantee G="NAME …"`) runs the checks of the named guarantees, one after
the other; exit 1 where one fails. NAME is an id (`doubt-2`), a section (`doubt`), an invariant (`I4`) or a rule (`rule 8`).

--list    what there is
--whole   also what is left to `make prove`
--number  give an id and a command to each row that has none yet (`make docs`)

A check is, in backticks: a test file or one test of it; `python -m tests.explore …`; `python -m tests.simulation SEEDS`;
`python -m tests.mutation.run GUARD`; `make TARGET …`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
COMMAND = "make guarantee G="
HEAD = ("| guarantee | checks | command |", "|---|---|---|")

PREFIXES = {
    "The promise": "promise", "Before the call": "call", "Retries": "retry", "Doubts": "doubt", "Business keys": "key",
    "Tasks": "task", "Agents": "agent", "Forks and changed code": "change", "Sessions": "session", "Time and events": "wait",
    "Undoing": "undo", "People": "person", "The log": "log", "The examples, end to end": "example",
    "The protocol as a whole": "proof", "Somebody's own tasks": "own", "The face": "face",
    "A team's log": "team",
}  # fmt: skip
"""The beginning of the ids of a section; one that is not here has the first word of its title."""


class Guarantee(NamedTuple):
    """One row of the page. `name` is its id; empty while nobody has numbered it."""

    section: str
    name: str
    says: str
    checks: tuple[str, ...]
    command: str
    line: int

    @property
    def tests(self) -> list[str]:
        """The checks that pytest runs."""
        return [check for check in self.checks if check.startswith("tests/")]

    @property
    def commands(self) -> list[str]:
        """The checks that are commands of their own."""
        return [check for check in self.checks if not check.startswith("tests/")]

    @property
    def marks(self) -> set[str]:
        """The invariants and rules of the design that it states: `I4`, `rule 8`."""
        return {mark for bold in re.findall(r"\*\*(.+?)\*\*", self.says) for mark in re.findall(r"I\d+|rule \d+", bold)}


def prefix_of(section: str) -> str:
    """How the ids of a section begin."""
    return PREFIXES.get(section) or re.sub(r"[^a-z]", "", section.lower().removeprefix("the ").split()[0])


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def read(text: str) -> list[Guarantee]:
    """The page's guarantees, in order."""
    section, found = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            section = line[3:].strip()
        elif line.startswith("| ") and not line.startswith("| guarantee |"):
            says, checks, command = [*cells(line), "", ""][:3]
            bare = command.strip("`")
            name = bare.removeprefix(COMMAND) if bare.startswith(COMMAND) else ""
            found.append(Guarantee(section, name, says, tuple(re.findall(r"`([^`]+)`", checks)), bare, number))
    return found


def numbered(text: str) -> str:
    """The page with a command for each row that has none: the next free number of its section. What has one keeps it."""
    taken = {each.name for each in read(text)}
    lines, section = text.splitlines(), ""
    for at, line in enumerate(lines):
        if line.startswith("## "):
            section = line[3:].strip()
        elif line.startswith("| guarantee |"):
            lines[at : at + 2] = HEAD
        elif line.startswith("| ") and len(cells(line)) == 2:
            name = next(name for n in range(1, 10_000) if (name := f"{prefix_of(section)}-{n}") not in taken)
            taken.add(name)
            lines[at] = f"{line.rstrip()} `{COMMAND}{name}` |"
    return "\n".join(lines) + "\n"


def chosen(guarantees: Sequence[Guarantee], words: Sequence[str]) -> list[Guarantee]:
    """Those that are named by an id, a section, an invariant or a rule. Raises: SystemExit for a name of nothing."""
    found: list[Guarantee] = []
    for word in words:
        mine = [g for g in guarantees if word in (g.name, g.section, prefix_of(g.section)) or word in g.marks]
        if not mine:
            raise SystemExit(f"no guarantee is called {word!r}; --list shows what there is")
        found += [g for g in mine if g not in found]
    return found


def to_run(guarantee: Guarantee, *, whole: bool) -> Iterator[list[str]]:
    """The commands of its checks, as they are run."""
    if guarantee.tests:
        only = ["-m", "prove or not prove"] if whole else []
        yield [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:randomly", *only, *guarantee.tests]
    for check in guarantee.commands:
        words = shlex.split(check)
        yield [sys.executable, *words[1:]] if words[0] == "python" else words


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.guarantees")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--number", action="store_true")
    asked = parser.parse_args(arguments)
    text = PAGE.read_text(encoding="utf-8")
    if asked.number:
        PAGE.write_text(numbered(text), encoding="utf-8")
        return 0
    guarantees = read(text)
    if asked.list or not asked.names:
        for each in guarantees:
            print(f"{each.name:12} {each.says}")
        return 0 if asked.list else 2
    failed = 0
    for each in chosen(guarantees, asked.names):
        print(f"{each.name}: {each.says}", flush=True)
        for command in to_run(each, whole=asked.whole):
            print("  " + shlex.join(command[1:] if command[0] == sys.executable else command), flush=True)
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            failed += code != 0
            if code:
                print(f"  FAILED ({code})", flush=True)
    print("all of it holds" if not failed else f"{failed} of the checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
