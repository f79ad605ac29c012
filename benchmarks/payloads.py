"""What a step costs whose params are large: 1 KiB to 10 MiB, beside the floor and the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from doubtless import injected
from ground import SHOWN, TASK_ID, Ground
from measuring import Turns, seconds, take_turns, us
from one_task import said_of
from others import asked
from sections import table

SIZES = {"1 KiB": 1 << 10, "10 KiB": 10 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20, "10 MiB": 10 << 20}
STEPS = {1 << 10: 20, 10 << 10: 20, 100 << 10: 10, 1 << 20: 4, 10 << 20: 2}


def create_adjustment(note: str, amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
    """A write's body, with something large in its params."""
    return {"id": "sheet-4711", "amount": amount, "length": len(note)}


def measured(ground: Ground) -> str:
    """A write step with so large a param. The same text in each step: content is kept once, by its digest."""
    parts = []
    for store in ground.stores:
        rows = []
        with ground.others.on(store) as peers:
            names = list(peers)
            for name, size in SIZES.items():
                if ground.quick and size > 1 << 20:
                    continue
                steps = STEPS[size]
                works = asked(ground.others, peers, store, "one", steps=steps, size=size) if size <= 1 << 20 else {}
                turns = _write(ground, store, size, steps, works)
                rows.append(
                    [
                        name, ms(turns.median("ours")), ms(turns.median("same")), ms(turns.median("floor")),
                        *[ms(turns.median(peer)) if peer in works else "" for peer in names],
                        f"{turns.ratio('ours', 'floor'):.2f}",
                    ]
                )  # fmt: skip
        head = ["params", "Doubtless", "the same text again", "floor", *names, "ratio to the floor"]
        parts.append(f"**{SHOWN[store]}**, ms a write step:\n\n" + table(head, rows))
    return "\n\n".join(parts) + f"\n\n{said_of(ground)}"


def _write(ground: Ground, store: str, size: int, steps: int, peers: dict[str, Callable[[], float]]) -> Turns:
    from doubtless import Doubtless

    app = Doubtless(ground.url(store))
    step = app.step(effect="non_idem_write")(create_adjustment)
    floor = ground.floor(store)
    numbers = itertools.count(1)

    @app.task
    def many(steps: int, first: int) -> None:
        for i in range(steps):
            step(note=text(first + i), amount=i)

    def text(number: int) -> str:
        return f"{number:08}" + "x" * (size - 8)

    def ours() -> None:
        number = next(numbers)
        app.run(many, f"{TASK_ID}-{number}", steps=steps, first=number * steps)

    def again() -> None:
        app.run(many, f"{TASK_ID}-{next(numbers)}", steps=steps, first=0)

    def by_hand() -> None:
        number = next(numbers)
        for i in range(steps):
            floor.write(f"{TASK_ID}-{number}", i, "create_adjustment", create_adjustment, note=text(number * steps + i), amount=i)

    def milli(work: Callable[[], float]) -> Callable[[], float]:
        return lambda: work() / steps * 1e3

    works = {
        "ours": milli(lambda: seconds(ours)),
        "same": milli(lambda: seconds(again)),
        "floor": milli(lambda: seconds(by_hand)),
        **{name: milli(work) for name, work in peers.items()},
    }
    turns = take_turns(works, 2 if ground.quick else 5)
    app.close()
    return turns


def ms(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else us(value)
