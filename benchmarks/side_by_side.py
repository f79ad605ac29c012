"""Fifty tasks at the same time in one process, beside a floor with shared commits and beside the others."""

from __future__ import annotations

from ground import SHOWN, Ground
from measuring import held, take_turns, us
from one_task import said_of
from others import asked
from sections import table
from shared_floor import FLOOR, OURS, WRITERS, works

TASKS = 50
AS_FAST, AHEAD = 0.6, 5.0


def measured(ground: Ground) -> str:
    """Tasks of so many write steps under asyncio, a floor that encodes, hashes and chains the same rows, and the others."""
    parts = []
    for store in ground.stores:
        counts = (10,) if ground.quick else (10, 100, 1_000)
        rows = []
        with ground.others.on(store) as peers:
            for count in counts:
                rounds = 2 if ground.quick else {10: 9}.get(count, 3)
                theirs = asked(ground.others, peers, store, "beside", tasks=TASKS, steps=count) if count <= 100 else {}
                url = None if store == "sqlite" else ground.url(store)
                with works(ground.fresh("shared"), TASKS, count, url=url) as by_hand_and_ours:
                    turns = take_turns({**by_hand_and_ours, **theirs}, rounds)
                took = {name: turns.median(name) / TASKS / count * 1e6 for name in turns.times}
                fast = {name: turns.ratio(name, OURS) for name in WRITERS}
                best = min((took[name] for name in theirs), default=float("inf"))
                ahead, limit = best / took[OURS], held(fast[FLOOR], AS_FAST, least=True)
                rows.append(
                    [
                        f"{count:,}", us(took[OURS]), us(took[FLOOR]), f"{fast[FLOOR]:.0%} ({limit})",
                        *[f"{fast[name]:.0%}" for name in WRITERS if name != FLOOR],
                        *[us(took[name]) if name in theirs else "" for name in peers],
                        f"{ahead:.1f} × ({held(ahead, AHEAD, least=True)})" if best < float("inf") else "",
                    ]
                )  # fmt: skip
            others = [f"as fast as with {name}" for name in WRITERS if name != FLOOR]
            head = ["steps each", "Doubtless", "floor", "as fast as the floor", *others, *peers, "as fast as the best of them"]
        parts.append(f"**{SHOWN[store]}**, µs a write step:\n\n" + table(head, rows))
    return "\n\n".join(parts) + f"\n\n{said_of(ground)}"
