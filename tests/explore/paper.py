"""What `docs/proof.md` says of the exploration, written from the slices, the recorded counts and the planted bugs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .plants import PLANTS
from .slices import BROKEN, SLICES
from .world import ASSUMPTIONS

PROOF = Path(__file__).parents[2] / "docs" / "proof.md"
FOUND = Path(__file__).with_name("found.json")
"""Of each planted bug what it broke, after how many states and seconds, and how many moves its story has."""
BEGIN, END = "<!-- explored: written by make explore -->", "<!-- /explored -->"


Counts = Mapping[str, Mapping[str, Any]]


def tables(recorded: Counts, plants: Counts) -> str:
    """The three tables: slices with their counts and bounds, assumptions, planted bugs with their commands."""
    lines = ["| slice | what it is about | states | moves | seconds | bounds |", "|---|---|--:|--:|--:|---|"]
    for each in (known for known in SLICES if known.name in recorded):
        was = recorded[each.name]
        lines.append(
            f"| `{each.name}` | {each.says} | {was['states']:,} | {was['moves']:,} | {was['seconds']} | {was['bounds']} |"
        )
    total = sum(was["states"] for was in recorded.values())
    lines += ["", f"Together {total:,} states, and in each of them every invariant held.", ""]
    lines += ["| assumption | when it fails | the slice that finds the double |", "|---|---|---|"]
    for name, says in ASSUMPTIONS.items():
        found = ", ".join(f"`python -m tests.explore --slice {s.name}`" for s in BROKEN if name in s.broken)
        lines.append(f"| `{name}` | {says} | {found} |")
    lines += ["", "| planted bug | the guard that it takes away | what breaks | moves of the story | states | seconds | command |"]
    lines += ["|---|---|---|--:|--:|--:|---|"]
    for name, plant in PLANTS.items():
        came = plants[name]
        lines.append(
            f"| {name} | {plant.guard} | {came['breaks']} | {came['story']} | {came['states']:,} | {came['seconds']} | "
            f"`python -m tests.explore --plant {name}` |"
        )
    return "\n".join(lines)


def with_tables(text: str, recorded: Counts, plants: Counts) -> str:
    """The page with its tables written anew; what stands around them stays."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables(recorded, plants)}\n\n{END}{after}"
