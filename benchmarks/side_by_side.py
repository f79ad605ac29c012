"""Fifty tasks at the same time in one process, beside a floor with shared commits and beside the others."""

from __future__ import annotations

from ground import SHOWN, Ground
from measuring import held, us
from one_task import said_of
from others import asked
from sections import table
from shared_floor import shared

TASKS = 50
FLOOR, AHEAD = 0.6, 5.0


def measured(ground: Ground) -> str:
    """Tasks of so many write steps under asyncio, a floor that encodes, hashes and chains the same rows, and the others."""
    parts = []
    for store in ground.stores:
        counts = (10,) if ground.quick else (10, 100, 1_000)
        rows = []
        with ground.others.on(store) as peers:
            names = list(peers)
            for count in counts:
                rounds = 2 if ground.quick else {10: 9, 100: 5}.get(count, 3)
                url = None if store == "sqlite" else ground.url(store)
                line, *others = shared(ground.fresh("shared"), rounds, TASKS, count, url=url)
                times: dict[str, float] = {}
                if count <= 100:
                    works = asked(ground.others, peers, store, "beside", tasks=TASKS, steps=count)
                    some = {10: 3}.get(count, 1)
                    times = {name: min(work() for _ in range(some)) / TASKS / count * 1e6 for name, work in works.items()}
                best = min(times.values(), default=float("inf"))
                speed, ahead = 1 / line.ratio, best / line.ours
                rows.append(
                    [
                        f"{count:,}", us(line.ours), us(line.floor), f"{speed:.0%} ({held(speed, FLOOR, least=True)})",
                        *[f"{1 / other.ratio:.0%}" for other in others],
                        *[us(times[name]) if name in times else "" for name in names],
                        f"{ahead:.1f} × ({held(ahead, AHEAD, least=True)})" if best < float("inf") else "",
                    ]
                )  # fmt: skip
        head = [
            "steps each", "Doubtless", "floor", "as fast as the floor", "as with commits in the loop's thread",
            "as with the product's own thread", *names, "as fast as the best of them",
        ]  # fmt: skip
        parts.append(f"**{SHOWN[store]}**, µs a write step:\n\n" + table(head, rows))
    return "\n\n".join(parts) + f"\n\n{said_of(ground)}"
