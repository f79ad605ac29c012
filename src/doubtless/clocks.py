"""Clocks: the system's, and the port that tests and simulations put in its place. `app.py` makes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from .events import Instant, boot_mark


class Clock(Protocol):
    """What the product asks of time."""

    def now(self) -> Instant:
        """This host's clock, for a store that lives on it: wall time and the boot-time clock, in microseconds."""

    def monotonic(self) -> float:
        """Seconds, for waits and timeouts inside this process."""

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait that long, or until `stop` is set, or less: whoever waits looks at the log then, and waits again."""

    async def apause(self, seconds: float) -> None:
        """The same without blocking the event loop."""


_instant: Callable[[type[Instant], tuple[int, int]], Instant] = tuple.__new__
_wall, _since, _BOOT = time.time_ns, time.clock_gettime_ns, time.CLOCK_BOOTTIME

LOOK = 1.0
"""Seconds after which a run that waits looks whether the log has moved: a person may have answered."""

LOOK_ASYNC = 0.25
"""The same on the event loop, where nothing else wakes a wait when its run is to stop."""


class SystemClock:
    """The operating system's clocks. `boot_id` identifies this boot, so that boot times of two are never compared."""

    def __init__(self, boot_id: str) -> None:
        self._mark = boot_mark(boot_id, 0)

    def now(self) -> Instant:
        return _instant(Instant, (_wall() // 1000, self._mark | _since(_BOOT) // 1000))

    def monotonic(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        if stop is None:
            time.sleep(min(seconds, LOOK))
        else:
            stop.wait(min(seconds, LOOK))

    async def apause(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(min(seconds, LOOK_ASYNC))
