"""A clock to turn, shared by every process that opens its file: the store's, the world's, the test's.

It stands still until somebody turns it, and a wait turns it: what takes hours in the log takes no time in a test,
and every run of a test sees the same moments.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from pathlib import Path

from doubtless import Instant
from doubtless.events import boot_mark

START = 1_767_571_200_000_000  # 2026-01-05, in microseconds
_FIELDS = struct.Struct("<qq")


class TurnedClock:
    """The clock behind a file; a `doubtless.clocks.Clock`. Made with its file at first use.

    Units: `wall` microseconds since 1970; `turn` takes seconds. `pause` turns the shared wall clock and this process's
    monotonic one: a wait in one process must not overrun the calls of another.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < _FIELDS.size:
                os.ftruncate(descriptor, _FIELDS.size)
            self._shared = mmap.mmap(descriptor, _FIELDS.size)
        finally:
            os.close(descriptor)
        self._waited = 0.0

    def now(self) -> Instant:
        turned = self.turned()
        return Instant(START + turned, boot_mark("turned", 1_000_000 + turned))

    def turned(self) -> int:
        """By how many microseconds the wall clock has been turned."""
        wall, _ = _FIELDS.unpack_from(self._shared)
        return int(wall)

    def monotonic(self) -> float:
        _, turned = _FIELDS.unpack_from(self._shared)
        return float(1000.0 + turned / 1e6 + self._waited)

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        if stop is not None and stop.is_set():
            return
        self._waited += seconds
        self.turn(seconds)

    async def apause(self, seconds: float) -> None:
        self.pause(seconds, None)

    def turn(self, seconds: float, *, overrun: bool = False) -> None:
        """The wall clock shows so many seconds more; with `overrun` also the clocks that time calls in every process."""
        us = max(1, round(seconds * 1e6))
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            wall, monotonic = _FIELDS.unpack_from(self._shared)
            _FIELDS.pack_into(self._shared, 0, wall + us, monotonic + (us if overrun else 0))
        finally:
            os.close(descriptor)

    def turn_to(self, wall: int) -> None:
        """The wall clock shows at least this moment."""
        left = wall - self.now().wall
        if left > 0:
            self.turn(left / 1e6)
