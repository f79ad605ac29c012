"""The named queries of each dialect, as data: ``<dialect>.sql``, blocks that begin with ``-- name: …``."""

from __future__ import annotations

import os
from collections.abc import Mapping


def load(dialect: str, fill: Mapping[str, str]) -> dict[str, str]:
    """Read a dialect's queries by name, with each ``{{word}}`` replaced by what `fill` says.

    Raises: KeyError for a word that `fill` does not know, so that nothing half-filled reaches a database.
    """
    with open(os.path.join(os.path.dirname(__file__), dialect + ".sql"), encoding="utf-8") as file:
        blocks = file.read().split("-- name: ")[1:]
    queries: dict[str, str] = {}
    for block in blocks:
        name, _, text = block.partition("\n")
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        queries[name.strip()] = filled("\n".join(lines), fill)
    return queries


def filled(text: str, fill: Mapping[str, str]) -> str:
    """A text with each ``{{word}}`` replaced by what `fill` says."""
    parts = text.split("{{")
    for place, part in enumerate(parts[1:], 1):
        word, _, rest = part.partition("}}")
        parts[place] = fill[word] + rest
    return "".join(parts)
