"""One task: what a step costs inside it, and what a whole task of so many steps costs, beside the floor and the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from floor import Floor
from ground import DIFFERENCE, SHOWN, TASK_ID, Ground, Log, create_adjustment, match_orders
from measuring import Turns, held, per_step, seconds, take_turns, us
from others import asked
from sections import table

LIMIT = 1.25


def steps(ground: Ground) -> str:
    """A write and a read inside one task, each beside the floor, in turn."""
    rows = []
    for store in ground.stores:
        turns = _steps(ground, store)
        write, read = turns.ratio("write", "floor write"), turns.ratio("read", "floor read")
        rows += [
            [f"{SHOWN[store]}: a write step, two durable commits", us(turns.median("write")), us(turns.median("floor write")),
             f"{write:.2f}", held(write, LIMIT)],
            [f"{SHOWN[store]}: a read step, one commit", us(turns.median("read")), us(turns.median("floor read")), f"{read:.2f}",
             ""],
        ]  # fmt: skip
        name = "key, params and output only" if store == "sqlite" else "nothing prepared, as through a pooler"
        rows.append([f"{SHOWN[store]}: the write step beside another floor: {name}", us(turns.median("write")),
                     us(turns.median("other")), f"{turns.ratio('write', 'other'):.2f}", ""])  # fmt: skip
    return table(["", "µs", "floor, µs", "ratio", "limit"], rows)


def _steps(ground: Ground, store: str) -> Turns:
    app, step = ground.app(store)
    floor, count = ground.floor(store), 20
    rounds = 15 if ground.quick else 200
    other = _other(ground, store, floor)
    numbers = itertools.count()
    found: list[Turns] = []

    def some(work: Callable[[int], object]) -> float:
        start = next(numbers) * count
        return per_step(work, range(start, start + count))

    def write(i: int) -> None:
        floor.write(TASK_ID, i, "create_adjustment", create_adjustment, difference=DIFFERENCE, amount=i)

    def read(i: int) -> None:
        floor.read(TASK_ID, i, "match_orders", match_orders, difference=DIFFERENCE, amount=i)

    @app.task
    def measure() -> None:
        works = {
            "write": lambda: some(lambda i: step["write"](difference=DIFFERENCE, amount=i)),
            "floor write": lambda: some(write),
            "other": lambda: some(other),
            "read": lambda: some(lambda i: step["read"](difference=DIFFERENCE, amount=i)),
            "floor read": lambda: some(read),
        }
        found.append(take_turns(works, rounds, warm=5))

    app.run(measure, TASK_ID)
    app.close()
    return found[0]


def _other(ground: Ground, store: str, floor: Log) -> Callable[[int], object]:
    def plain(i: int) -> None:
        other.write(TASK_ID, i, "create_adjustment", create_adjustment, difference=DIFFERENCE, amount=i)

    def thin(i: int) -> None:
        assert isinstance(floor, Floor)
        floor.write_thin(f"{TASK_ID}-thin", i, "create_adjustment", create_adjustment, difference=DIFFERENCE, amount=i)

    if store == "sqlite":
        return thin
    other = ground.floor(store, prepare=False)
    return plain


def tasks(ground: Ground) -> str:
    """Whole tasks of so many write steps, from their start to their end, beside the floor and the others."""
    parts = []
    counts = (10, 100) if ground.quick else (10, 100, 1_000)
    for store in ground.stores:
        rows, names = [], []
        with ground.others.on(store) as peers:
            names = list(peers)
            for count in counts:
                turns = _tasks(ground, store, count, asked(ground.others, peers, store, "one", steps=count, size=0))
                ours, floor = turns.median("ours"), turns.median("floor")
                best = min((turns.median(name) for name in peers), default=float("inf"))
                ratio = turns.ratio("ours", "floor")
                ahead = f"{best / ours:.1f} × as fast as the best of them" if best < float("inf") else ""
                theirs = [us(turns.median(name)) for name in names]
                rows.append([f"{count:,}", us(ours), us(floor), f"{ratio:.2f}", *theirs, ahead])
        head = ["steps", "Doubtless", "floor", "ratio", *names, "ahead"]
        parts.append(f"**{SHOWN[store]}**, µs a step:\n\n" + table(head, rows))
    return "\n\n".join(parts) + f"\n\n{said_of(ground)}"


def _tasks(ground: Ground, store: str, count: int, peers: dict[str, Callable[[], float]]) -> Turns:
    app, step = ground.app(store)
    floor = ground.floor(store)
    numbers = itertools.count(1)

    @app.task
    def many(steps: int) -> None:
        for i in range(steps):
            step["write"](difference=DIFFERENCE, amount=i)

    def by_hand() -> None:
        task = f"{TASK_ID}-{next(numbers)}"
        floor.read(task, -1, "accepted", match_orders, difference=DIFFERENCE, amount=0)
        for i in range(count):
            floor.write(task, i, "create_adjustment", create_adjustment, difference=DIFFERENCE, amount=i)
        floor.read(task, count, "ended", match_orders, difference=DIFFERENCE, amount=0)

    def micro(work: Callable[[], Any]) -> Callable[[], float]:
        return lambda: work() / count * 1e6

    works = {
        "ours": micro(lambda: seconds(lambda: app.run(many, f"{TASK_ID}-{next(numbers)}", steps=count))),
        "floor": micro(lambda: seconds(by_hand)),
        **{name: micro(work) for name, work in peers.items()},
    }
    turns = take_turns(works, 2 if ground.quick else {10: 15, 100: 7}.get(count, 3))
    app.close()
    return turns


def said_of(ground: Ground) -> str:
    """Who was measured, and who was not, and why."""
    missing = "".join(f"\n- {name}: {why}" for name, why in ground.others.missing.items())
    lines = [f"Beside: {ground.others.versions}." if ground.others.versions else "No peer was measured in this run."]
    if missing:
        lines.append(f"\nNot measured:{missing}")
    return "\n".join(lines)
