"""Taking turns: the same work by several, round after round, and what is made of their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Turns(NamedTuple):
    """The times of all who took turns, by name, a time a round."""

    times: dict[str, list[float]]

    def median(self, name: str) -> float:
        """The median of one's times."""
        return statistics.median(self.times[name])

    def ratio(self, name: str, to: str) -> float:
        """The median of the rounds' ratios: what is the same in a round, such as the disk's mood, falls out."""
        return statistics.median(a / b for a, b in zip(self.times[name], self.times[to], strict=True))


def take_turns(works: Mapping[str, Callable[[], float]], rounds: int, *, warm: int = 1) -> Turns:
    """A B C A B C …; each work says its own time. The first rounds warm caches and are not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-warm, rounds):
        for name, work in works.items():
            taken = work()
            if number >= 0:
                times[name].append(taken)
    return Turns(times)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def per_step(work: Callable[[int], object], numbers: Sequence[int]) -> float:
    """Microseconds for one of these calls."""
    begun = time.perf_counter()
    for number in numbers:
        work(number)
    return (time.perf_counter() - begun) / len(numbers) * 1e6


def us(value: float) -> str:
    """Microseconds, as a table shows them; of who failed there is nothing to show."""
    return f"{value:,.0f}" if value < float("inf") else "failed"


def held(value: float, limit: float, *, least: bool = False) -> str:
    """A limit, and whether it was held in this run."""
    kept = value >= limit if least else value <= limit
    return f"{'≥' if least else '≤'} {limit:g}: {'held' if kept else '**not held**'}"
