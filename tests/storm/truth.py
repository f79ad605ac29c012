"""What the other side has really done, read from its own database: the only count that nobody in the storm can touch."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class Truth(NamedTuple):
    """Effects by what they were done for, as they stand now.

    `sheets`: (run, difference) → records; `approvals`, `messages`, `closings`: run → records. A record is the row as a dict.
    `undone`: how often a sheet or an approval was withdrawn, by kind and reference. `requests`: how many came, by route.
    """

    sheets: dict[tuple[str, str], list[dict[str, Any]]]
    approvals: dict[str, list[dict[str, Any]]]
    messages: dict[str, list[dict[str, Any]]]
    closings: dict[str, list[dict[str, Any]]]
    undone: Counter[tuple[str, str]]
    faults: Counter[str]
    requests: int

    @property
    def effects(self) -> int:
        return sum(len(made) for kind in (self.sheets, self.approvals, self.messages, self.closings) for made in kind.values())

    def by_reference(self, kind: str, references: tuple[str, ...]) -> list[dict[str, Any]]:
        """The sheets, approvals or closings that bear one of these keys."""
        groups: Any = {"sheet": self.sheets, "approval": self.approvals}[kind]
        return [one for made in groups.values() for one in made if one["reference"] in references]


def read(database: Path) -> Truth:
    """The books as they are now. The other side may be working meanwhile."""
    opened = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)
    opened.row_factory = sqlite3.Row
    try:
        opened.execute("BEGIN")  # all tables as of one moment
        truth = Truth({}, {}, {}, {}, Counter(), Counter(), 0)
        for row in opened.execute("SELECT * FROM sheets ORDER BY id"):
            truth.sheets.setdefault((row["run"], row["subject"]), []).append(dict(row) | {"id": f"A-{row['id']}"})
        for table, prefix, group in (
            ("approvals", "P", truth.approvals), ("messages", "M", truth.messages), ("closings", "C", truth.closings),
        ):  # fmt: skip
            for row in opened.execute(f"SELECT * FROM {table} ORDER BY id"):
                group.setdefault(row["run"], []).append(dict(row) | {"id": f"{prefix}-{row['id']}"})
        for row in opened.execute("SELECT kind, reference FROM effects WHERE kind LIKE '%withdrawal' OR kind LIKE '%reversal'"):
            truth.undone[row["kind"], row["reference"]] += 1
        for row in opened.execute("SELECT fault, count(*) AS n FROM requests GROUP BY fault"):
            truth.faults[row["fault"] or "none"] += row["n"]
        return truth._replace(requests=truth.faults.total())
    finally:
        opened.close()
