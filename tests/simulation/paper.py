"""What `docs/proof.md` says of the simulation: the figures, written by the command that made them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .coverage import SITUATIONS
from .many import Report
from .plants import PLANTS

PROOF = Path(__file__).parents[2] / "docs" / "proof.md"
FIGURES = Path(__file__).with_name("figures.json")
BEGIN, END = "<!-- simulated: written by make simulate -->", "<!-- /simulated -->"


def record(report: Report, first: int) -> None:
    """Write the figures of a run of many seeds down, and the page with them."""
    figures = {
        "seeds": report.seeds, "first": first, "failed": len(report.failed), "seconds": round(report.seconds), "cores": os.cpu_count(),
        "seen": dict(sorted(report.seen.items())),
    }  # fmt: skip
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PROOF.write_text(with_figures(PROOF.read_text()))


def with_figures(text: str) -> str:
    """The page with its figures written anew; what stands around them stays."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{figures()}\n\n{END}{rest.split(END)[1]}"


def _found(found: dict[str, str]) -> list[str]:
    """What seeds of that run found, each mended since and played again: `found` has what it was by seed."""
    if not found:
        return []
    return ["", "What they found, mended since, and played again on the mended state:", "", *(f"- seed {n}: {what}" for n, what in found.items())]


def figures() -> str:
    """The recorded figures as prose and tables."""
    was = json.loads(FIGURES.read_text())
    seen = was["seen"]
    lines = [
        f"`python -m tests.simulation {was['seeds']}{'' if not was['first'] else ' --first ' + str(was['first'])}`: **{was['seeds']:,} seeds**,"
        f" {was['failed']} failed, {was['seconds']:,} s on {was['cores']} cores;"
        f" {seen['processes']:,} processes, {seen['points']:,} points at which a fault could strike, {seen['hand-overs']:,} hand-overs"
        " between threads.",
        *_found(was.get("found", {})),
        "",
        "| faults | | calls | | situations | |",
        "|---|--:|---|--:|---|--:|",
    ]
    columns = [
        [(name.removeprefix(word), seen[name]) for name in sorted(seen) if name.startswith(word)] for word in ("fault ", "call ")
    ]
    columns.append([(name, seen.get(name, 0)) for name in SITUATIONS])
    for number in range(max(map(len, columns))):
        cells = [column[number] if number < len(column) else ("", "") for column in columns]
        lines.append("| " + " | ".join(f"{name} | {count:,}" if count != "" else " | " for name, count in cells) + " |")
    lines += ["", "| planted bug | the guard that it takes away | command |", "|---|---|---|"]
    lines += [f"| {name} | {plant.guard} | `python -m tests.simulation --plant {name}` |" for name, plant in PLANTS.items()]
    return "\n".join(lines)
