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
        rows = [(in_words(what, name), count) for what, count in was[name].items()]
        rows = sorted(rows) if name in UNORDERED else rows
        lines += ["", f"| {title} | |", "|---|--:|", *(f"| {what} | {count:,} |" for what, count in rows)]
    return "\n".join(lines)


def in_words(what: str, table: str) -> str:
    """A kind of trouble as the page calls it."""
    fault = what.removeprefix("other side: ")
    if table == "other_side":
        return FAULTS.get(what, what)
    return f"other side: told: {FAULTS.get(fault, fault)}" if fault != what else WORDS.get(what, what)


WORDS = {
    "SIGKILL": "worker killed (SIGKILL)",
    "SIGSTOP": "worker stopped for longer than any claim lasts (SIGSTOP, SIGCONT)",
    "SIGSTOP briefly": "worker stopped for less than a lease",
    "SIGTERM": "worker drained (SIGTERM)",
    "SIGTERM twice": "worker drained, and ended by a second SIGTERM",
    "worker started again that could not open the store": "worker started while PostgreSQL was away: exit code 6, started again",
    "client SIGKILL": "client killed",
    "postmaster kill -9": "PostgreSQL: postmaster killed (-9)",
    "PostgreSQL kill -9, all": "PostgreSQL: everything killed (-9)",
    "backend kill -9": "PostgreSQL: one backend killed (-9)",
    "cut": "proxy told to cut the connections of the next queries",
    "cut all": "proxy told to cut all its connections",
    "refuse": "proxy told to refuse connections for a while",
    "stall": "proxy told to hold everything for a while",
    "delay": "proxy told to delay queries and answers for a while",
    "freeze": "a step, or all, frozen for a while",
    "cancel": "a task cancelled",
    "compensate": "a task that was done undone on demand",
    "lag": "other side: told to let a search lag",
    "hide": "other side: told to let a search find nothing",
}
FAULTS = {
    "lose_reply": "the effect, and no reply",
    "drop_before": "no effect, and no reply",
    "503_before": "no effect, 503",
    "500_after": "the effect, and 500",
    "422_before": "refused, 422",
    "refuse_422": "refused, 422",
    "delay": "a late reply",
    "delay_before": "a late effect",
    "hide": "a search that found nothing",
    "none": "as it was asked",
}
UNORDERED = ("happened", "other_side")


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
