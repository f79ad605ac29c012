"""What docs/storm.md says of a storm: the figures, written by the command that made them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .bounds import Bounds
from .report import Figures

PAGE = Path(__file__).parents[2] / "docs" / "storm.md"
FIGURES = Path(__file__).with_name("figures.json")
BEGIN, END = "<!-- played: written by make storm -->", "<!-- /played -->"


def record(seen: Figures, bounds: Bounds) -> None:
    """Write a storm's figures down, and the page with them."""
    FIGURES.write_text(json.dumps({**seen._asdict(), "bounds": bounds._asdict(), "cores": os.cpu_count()}, indent=1) + "\n")
    PAGE.write_text(with_figures(PAGE.read_text()))


def with_figures(text: str) -> str:
    """The page with its figures written anew; what stands around them stays."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{played()}\n\n{END}{rest.split(END)[1]}"


def played() -> str:
    """The recorded figures as prose and tables."""
    was = json.loads(FIGURES.read_text())
    bounds = Bounds(**was["bounds"])
    took, minutes = was["took"], was["seconds"] / 60
    lines = [
        f"`python -m tests.storm {minutes:g} --seed {was['seed']}`: {was['workers']} workers, {was['tasks']} tasks, {was['cores']} cores."
        f" Trouble for {took['trouble']:.0f} s; {took['quiet'] - took['trouble']:.0f} s later nothing moved any more, with {was['inbox']} tasks in"
        f" the inbox; after {took['over']:.0f} s all had ended. **No effect twice, nothing silent.**",
        "",
        f"A lease of {bounds.lease:g} s, a timeout of {bounds.timeout:g} s, stops of {bounds.pause[0]:g} to {bounds.pause[1]:g} s,"
        f" effects up to {bounds.landing:g} s late, searches up to {bounds.lag:g} s late; hence `absent_after` of {bounds.absent_after:g} s.",
    ]
    for title, name in TABLES.items():
        lines += ["", f"| {title} | |", "|---|--:|", *(f"| {what} | {count:,} |" for what, count in was[name].items())]
    return "\n".join(lines)


TABLES = {
    "what befell them": "happened",
    "what the proxies did to connections and queries": "proxies",
    "what the other side did with a request": "other_side",
    "how the tasks ended": "ends",
    "cases that were opened": "cases",
    "what the person said": "answers",
    "what the log counts": "log",
    "effects at the other side, none of them twice": "effects",
}
