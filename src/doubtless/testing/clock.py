"""A clock to turn: what the log is dated with stands still until somebody advances it."""

from __future__ import annotations

import math
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING

from ..durations import parse_duration
from ..events import Instant, boot_mark

if TYPE_CHECKING:
    from datetime import timedelta

START = "2026-11-28T09:00:00+00:00"

LOOK_SECONDS = 0.005
"""Real seconds for which a pause stands on a clock that is turned by hand."""


class FakeClock:
    """A `Clock` that moves only when it is advanced.

    Meaning: with `auto_advance` whoever waits moves it on by itself, so that a run never sleeps; without, a run
    that waits stands until another thread calls `advance`. Thread-safe.
    Units: `now` (log, waits, windows, deadlines) is the clock to turn; `monotonic`, which times running calls, is
    real: a call that hangs is taken away after its real timeout, and turning the clock ends no call.
    """

    def __init__(self, *, start: str = START, auto_advance: bool = True) -> None:
        self.auto_advance = auto_advance
        self._wall = math.floor(datetime.fromisoformat(start).timestamp()) * 1_000_000
        self._boot = 3_600_000_000
        self._mark = boot_mark("doubtless.testing", 0)
        self._turned = threading.Condition()
        self._pauses = 0

    def now(self) -> Instant:
        """The time that the log is dated with."""
        with self._turned:
            return Instant(self._wall, self._mark | self._boot)

    def monotonic(self) -> float:
        """Real seconds."""
        return time.monotonic()

    def advance(self, duration: str | float | timedelta) -> None:
        """Let that much time pass: ``"PT2M"``, or a number of seconds. Wakes those who wait for it."""
        self._turn(parse_duration(duration, zero=True))

    def _turn(self, microseconds: int) -> None:
        with self._turned:
            self._wall += microseconds
            self._boot += microseconds
            self._turned.notify_all()

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait on this clock. Turned by hand, it comes back soon, and whoever waits looks again."""
        if self.auto_advance:
            if stop is None or not stop.is_set():
                self._turn(max(1, math.ceil(seconds * 1e6)))
            return
        with self._turned:
            self._enter()
            self._turned.wait(LOOK_SECONDS)

    async def apause(self, seconds: float) -> None:
        """The same on the event loop."""
        import asyncio

        if self.auto_advance:
            self._turn(max(1, math.ceil(seconds * 1e6)))
            await asyncio.sleep(0)
            return
        with self._turned:
            self._enter()
        await asyncio.sleep(LOOK_SECONDS)

    def _enter(self) -> None:
        self._pauses += 1
        self._turned.notify_all()

    def until_paused(self, *, timeout: float = 10.0) -> None:
        """Return when a run waits on this clock, so that `advance` reaches it. Raises AssertionError after `timeout`.

        Units: `timeout` in real seconds. Meaning: for a clock without `auto_advance`, from another thread than the run's.
        """
        with self._turned:
            before = self._pauses
            if not self._turned.wait_for(lambda: self._pauses > before, timeout):
                raise AssertionError(f"no run waited on the clock within {timeout:g} s")
