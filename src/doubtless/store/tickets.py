"""Rows that wait for a commit which they share, and how each is told what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from ..changes import names_key
from ..errors import DoubtlessError
from ..events import Event
from .base import Blob
from .schema import PLAIN


class Waits:
    """What waits for a commit. `done`: the commit is over; `alone`: it was not written with the others.

    What is `alone` is written by itself, which writes it, finds it standing, or says why it is refused. `what`: what it does.
    """

    __slots__ = ("alone", "done", "error")

    what = "append"

    def __init__(self) -> None:
        self.done = False
        self.alone = False
        self.error: DoubtlessError | None = None


class Ticket(Waits):
    """One sealed row. `sent`: as it is sent, where that is made when it is put down, while another commit is on its way."""

    __slots__ = ("blobs", "event", "guard", "sent")

    def __init__(self, event: Event, guard: str | None, blobs: Sequence[Blob]) -> None:
        self.event = event
        self.guard = guard
        self.blobs = blobs
        self.done = False
        self.alone = False
        self.error = None
        self.sent: tuple[bytes, ...] = ()


T = TypeVar("T")


class Waiting(deque[T]):
    """What waits, in the order in which it came. Put down by any thread; taken by who commits."""

    def take(self, most: int | None = None) -> list[T]:
        """Take what waits, no more than `most`; by one at a time."""
        count = len(self) if most is None else min(len(self), most)
        return [self.popleft() for _ in range(count)]


def is_plain(events: Sequence[Event]) -> bool:
    """Whether this is one row that changes no projection, so that it can share a statement or a transaction with others."""
    event = events[0]
    return len(events) == 1 and event.kind in PLAIN and (type(event.data) is not str or not names_key(event))
