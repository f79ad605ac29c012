"""The store's clock: the server's, carried on by this machine's boot-time clock between two answers of the server."""

from __future__ import annotations

from collections.abc import Callable

from ...events import Instant

FRESH = 30_000_000
"""Microseconds after which the server is asked again when no answer has brought its time meanwhile."""


LATELY = 1_000_000
"""Microseconds after which a row is written by the statement that tells the server's time with it."""


class ServerClock:
    """Wall time is the server's, so that all machines compare with one clock; the boot-time clock is this machine's.

    `local` is this machine's clock, of which only the boot-time half is used. `ask` fetches the server's time and takes it in.
    """

    def __init__(self, local: Callable[[], Instant], ask: Callable[[], None]) -> None:
        self.local = local
        self._ask = ask
        self._wall: int | None = None
        self._boot = 0
        self._asked = 0

    def now(self) -> Instant:
        """The server's time, as exactly as the way to it is short."""
        here = self.local()
        if self._wall is None or here.boot - self._asked > FRESH:
            self._asked = here.boot  # where the server does not answer, the last known time goes on
            try:
                self._ask()
            except Exception:
                if self._wall is None:
                    raise
            here = self.local()
        assert self._wall is not None
        return Instant(self._wall + here.boot - self._boot, here.boot)

    def wants_time(self, boot: int) -> bool:
        """Whether no answer had brought the server's time lately when this machine's clock said `boot`."""
        return self._wall is None or boot - self._asked > LATELY

    def take(self, wall: int, sent: Instant) -> None:
        """Take in the server's time, which it told after `sent` and before now; kept as it is while it fits."""
        here = self.local()
        self._asked = here.boot
        if self._wall is not None:
            ours = self._wall + here.boot - self._boot
            if ours - (here.boot - sent.boot) <= wall <= ours:
                return
        self._wall, self._boot = wall, here.boot
