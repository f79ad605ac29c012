"""Faults to order: at which point of which step something goes wrong, and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, NoReturn

from ..errors import UsageError

When = Literal["before", "after"]
What = Literal["intent", "effect", "record", "query"]
Point = tuple[When, What]


class Fault:
    """One order: lets `skip` arrivals pass, then acts `times` times."""

    __slots__ = ("act", "fired", "label", "left", "skip")

    def __init__(self, label: str, act: Callable[[], NoReturn], times: int, skip: int) -> None:
        self.label = label
        self.act = act
        self.left = times
        self.skip = skip
        self.fired = False


class Faults:
    """The faults of one harness, by step and point; at one point they act in the order in which they were ordered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: dict[tuple[str, Point], list[Fault]] = {}

    def order(self, step: str, point: Point, label: str, act: Callable[[], NoReturn], *, times: int, skip: int) -> None:
        """Let `act` happen when `step` arrives at `point`."""
        if times < 1 or skip < 0:
            raise UsageError(f"{label}: times={times}, skip={skip}: it has to happen at least once", hint="times=1, skip=0")
        with self._lock:
            self._ordered.setdefault((step, point), []).append(Fault(label, act, times, skip))

    def reach(self, step: str, when: When, what: What) -> None:
        """`step` arrives at this point: raise what was ordered for it, if anything."""
        with self._lock:
            waiting = [fault for fault in self._ordered.get((step, (when, what)), []) if fault.left]
            if not waiting:
                return
            fault = waiting[0]
            if fault.skip:
                fault.skip -= 1
                return
            fault.left -= 1
            fault.fired = True
        fault.act()

    def unreached(self) -> list[str]:
        """What was ordered and never happened: a test that believes in it proves nothing."""
        with self._lock:
            return [fault.label for faults in self._ordered.values() for fault in faults if not fault.fired]
