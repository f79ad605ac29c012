"""The page of the crash bench, from what was noted."""

from __future__ import annotations

import platform
import re
from typing import Any, NamedTuple

from peers import DOUBTLESS, Entry
from situations import HERE, LAG, LEASE, RUNS, WINDOW, Result, Said, Situation

PERSON = ("asks", "refuses")


class Row(NamedTuple):
    """A peer's row: its cells, or why there are none. A cell that is text says why it has no result."""

    entry: Entry
    version: str
    unavailable: str
    cells: dict[str, Result | str]

    @classmethod
    def noted(cls, entry: Entry, plain: dict[str, Any]) -> Row:
        """From what `plain` gave."""
        cells = {
            letter: cell if isinstance(cell, str) else Result(**cell | {"said": [Said(**said) for said in cell["said"]]})
            for letter, cell in plain["cells"].items()
        }
        return cls(entry, plain["version"], plain["unavailable"], cells)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        cells = {
            letter: cell if isinstance(cell, str) else cell._asdict() | {"said": [said._asdict() for said in cell.said]}
            for letter, cell in self.cells.items()
        }
        return {"name": self.entry.name, "version": self.version, "unavailable": self.unavailable, "cells": cells}


def verdict(result: Result) -> str:
    """One word for a cell: what it means for whoever owns the money."""
    if result.effects > 1:
        return "twice"
    if result.word in PERSON:
        return "asks"
    if result.stuck:
        return "stuck"
    if result.word == "done":
        return "right" if result.effects == 1 else "lost"
    return "false word" if result.effects else "gave up"


def cell_text(cell: Result | str | None) -> str:
    """What stands in the table."""
    if cell is None or isinstance(cell, str):
        return "–" if cell in (None, "none") else "?"
    found = verdict(cell)
    word = "stuck" if found == "stuck" else cell.word
    if found in ("twice", "lost", "false word"):
        return f"**{cell.effects} {word}**"
    return f"{cell.effects} {word}"


def table(rows: list[Row], situations: list[Situation]) -> list[str]:
    head = ["| | " + " | ".join(s.letter for s in situations) + " |", "|---|" + "---|" * len(situations)]
    return head + [
        f"| [{row.entry.name}](../benchmarks/crash/adapters/{row.entry.adapter}) {row.version} | "
        + " | ".join(cell_text(row.cells.get(s.letter)) for s in situations)
        + " |"
        for row in rows
        if not row.unavailable
    ]


def summary(rows: list[Row], situations: list[Situation]) -> list[str]:
    """How often each came to what."""
    kinds = ["right", "asks", "stuck", "gave up", "false word", "lost", "twice"]
    lines = ["| | cells | one payment, `done` | a person is needed | stuck | nothing paid, says so | says it failed, but paid "
             "| says it is done, but nothing is paid | paid more than once |", "|---|" + "---:|" * (len(kinds) + 1)]  # fmt: skip
    for row in rows:
        found = [v for s in situations if (v := verdict_in(row, s.letter))]
        if found:
            lines.append(f"| {row.entry.name} | {len(found)} | " + " | ".join(str(found.count(kind)) for kind in kinds) + " |")
    return lines


def not_best(rows: list[Row], situations: list[Situation]) -> list[str]:
    """The cells in which somebody came further than Doubtless did, and where the same program paid twice."""
    ours = next((row for row in rows if row.entry is DOUBTLESS), None)
    lines = []
    for situation in situations:
        mine = ours.cells.get(situation.letter) if ours else None
        if not isinstance(mine, Result) or verdict(mine) == "right":
            continue
        text = f"- **{situation.letter}** ({situation.title}): Doubtless has {mine.effects} effect(s) and says `{mine.word}`"
        text += ": a person has to look. " if mine.word in PERSON else ". "
        better = [row for row in rows if verdict_in(row, situation.letter) == "right"]
        named = [row.entry.name + twice_in(row, situations) for row in better]
        lines.append(text + (f"One effect and `done` without anybody: {'; '.join(named)}." if named else "Nobody did better."))
    return lines or ["- In none of the cells that were played."]


def verdict_in(row: Row, letter: str) -> str:
    """The verdict of one cell of a row; empty where there is none."""
    cell = row.cells.get(letter)
    return verdict(cell) if isinstance(cell, Result) else ""


def twice_in(row: Row, situations: list[Situation]) -> str:
    """Where the same program paid twice."""
    letters = [s.letter for s in situations if verdict_in(row, s.letter) == "twice"]
    return f" (but paid twice in {', '.join(letters)})" if letters else ""


def quotes(rows: list[Row], situations: list[Situation]) -> list[str]:
    """What each peer said, cell by cell."""
    lines: list[str] = []
    for row in rows:
        if row.unavailable:
            continue
        lines += ["", f"### {row.entry.name} {row.version}", "", row.entry.note, ""]
        lines += ["| | effects | requests | what its processes said |", "|---|---:|---:|---|"]
        for situation in situations:
            cell = row.cells.get(situation.letter)
            if isinstance(cell, Result):
                said = "; ".join(f"{s.owner}: {s.word}" + (f" ({quoted(s.text)})" if s.text else "") for s in shortened(cell))
                lines.append(f"| {situation.letter} | {cell.effects} | {cell.requests} | {said} |")
            elif cell and cell != "none":
                lines.append(f"| {situation.letter} | | | {quoted(cell)} |")
    return lines


def shortened(cell: Result) -> list[Any]:
    """What was said, without saying it twice."""
    return [said for i, said in enumerate(cell.said) if i == 0 or said != cell.said[i - 1]]


def quoted(text: str) -> str:
    """A message, short enough for a table; the folders of this machine say nothing to a reader."""
    short = re.sub(r"(/[\w.-]+)+/([\w.-]+)", r"…/\2", text)
    short = short if len(short) <= 150 else short[:149] + "…"
    return "`" + short.replace("`", "'").replace("|", "/") + "`"


def page(rows: list[Row], situations: list[Situation], seconds: float) -> str:
    """docs/crash-bench.md."""
    missing = [f"- {row.entry.name} (`{row.entry.package}`): {row.unavailable}." for row in rows if row.unavailable]
    pins = [
        f"- {row.entry.name} {row.version}: `pip install -r benchmarks/crash/requirements/{row.entry.requirements}`"
        for row in rows if not row.unavailable and row.entry.requirements
    ]  # fmt: skip
    text = (HERE / "page.md").read_text(encoding="utf-8")
    filled = {
        "TABLE": "\n".join(table(rows, situations)),
        "SUMMARY": "\n".join(summary(rows, situations)),
        "SITUATIONS": "\n".join(f"- **{s.letter}** {s.title}." for s in situations),
        "NOT_BEST": "\n".join(not_best(rows, situations)),
        "MISSING": "\n".join(missing) or "- Everybody was run.",
        "PINS": "\n".join(pins),
        "QUOTES": "\n".join(quotes(rows, situations)),
        "MACHINE": f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; {seconds / 60:.0f} minutes",
        "LEASE": f"{LEASE:.0f}", "LAG": f"{LAG:.0f}", "WINDOW": f"{WINDOW:.0f}", "RUNS": str(RUNS),
    }  # fmt: skip
    for name, value in filled.items():
        text = text.replace("{" + name + "}", value)
    return re.sub(r"exactly[- ]once", "exactly_once", text)  # a package's name: these docs never say it of anything
