"""Pages whose sections are measured one by one: each stands between two markers, with a line about the machine and the day."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

ROOT = Path(__file__).resolve().parent.parent


def machine(postgres: str = "") -> str:
    """What was measured on, and when: a section may be older than its neighbour."""
    load = os.getloadavg()[1]
    said = [
        f"Python {platform.python_version()}",
        f"SQLite {apsw.sqlite_lib_version()}",
        *([f"PostgreSQL {postgres}"] if postgres else []),
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"load {load:.1f}",
        time.strftime("%Y-%m-%d", time.gmtime()),
    ]
    return f"*{', '.join(said)}.*"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all columns but the first and the last are numbers."""
    rule = ["---", *["---:"] * (len(head) - 2), "---"] if len(head) > 2 else ["---", "---"]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(page: Path, name: str, text: str) -> None:
    """Write a section in the place of the one that stands on the page. Raises ValueError: the page has no place for it."""
    whole = page.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(whole):
        raise ValueError(f"{page} has no place for {name!r}: {begin} … {end}")
    page.write_text(pattern.sub(lambda _: f"{begin}\n\n{text.strip()}\n\n{end}", whole, count=1), encoding="utf-8")
