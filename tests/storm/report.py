"""The figures of a storm: what befell whom, how the tasks ended, and what the log and the other side counted."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import NamedTuple

from doubtless.events import Kind

from . import truth
from .check import read_tasks, takeovers
from .storm import Storm


class Figures(NamedTuple):
    """Counts by name; `took`: seconds until trouble ended, all was quiet, and all was over."""

    seed: int
    seconds: float
    workers: int
    tasks: int
    happened: dict[str, int]
    proxies: dict[str, int]
    other_side: dict[str, int]
    ends: dict[str, int]
    inbox: int
    cases: dict[str, int]
    answers: dict[str, int]
    log: dict[str, float]
    effects: dict[str, int]
    took: dict[str, float]

    def text(self) -> str:
        lines = []
        for name in ("happened", "proxies", "other_side", "ends", "cases", "answers", "log", "effects", "took"):
            counted = ", ".join(f"{what} {count:g}" for what, count in getattr(self, name).items())
            lines.append(f"{name.replace('_', ' ')}: {counted}")
        return "\n".join([*lines, f"in the inbox when the trouble was over: {self.inbox}"])


def figures(storm: Storm) -> Figures:
    books = truth.read(storm.folder / "office.db")
    tasks = read_tasks(storm.desk)
    rows = [row for task in tasks for row in task.rows]
    proxies: Counter[str] = Counter()
    for member in (*storm.members, storm.client):
        proxies += member.weather.seen
    kinds = Counter(row.kind for row in rows)
    looks = Counter(row.details.get("answer", "?") for row in rows if row.kind == Kind.LOOKED_BACK)
    waits = [seconds for task in tasks for seconds in takeovers(task)]
    log = {
        "rows": len(rows),
        "takeovers": len(waits),
        "seconds from a lease's end to the takeover, the median": round(statistics.median(waits or [0.0]), 1),
        "the same, the longest": round(max(waits, default=0.0), 1),
        "attempts": kinds[Kind.STEP_INTENDED] + kinds[Kind.ATTEMPT_STARTED],
        "attempts after the first": kinds[Kind.ATTEMPT_STARTED],
        **{f"look-backs: {answer}": count for answer, count in sorted(looks.items())},
        "late results kept as evidence": kinds[Kind.EVIDENCE_STORED],
        "starts of workers": sum(member.lives for member in storm.members),
        "cancelled on demand": kinds[Kind.CANCEL_REQUESTED],
        "starts of the client": storm.client.lives,
        "acknowledgements": len(storm.acknowledged()),
    }
    effects = {
        "sheets": len(books.sheets), "approvals": len(books.approvals), "messages": len(books.messages),
        "closings": len(books.closings), **Counter(kind for kind, _ in books.undone), "requests": books.requests,
    }  # fmt: skip
    return Figures(
        storm.settings.seed, storm.settings.seconds, storm.settings.workers, storm.settings.tasks, dict(sorted(storm.happened.items())),
        dict(sorted(proxies.items())), dict(sorted(books.faults.items())), dict(Counter(str(task.status) for task in tasks)),
        storm.inbox, dict(storm.person.kinds), dict(sorted(storm.person.answered.items())), log, effects,
        {name: round(at, 1) for name, at in storm.took.items()},
    )  # fmt: skip
