"""What the product asks of the process that it runs in: threads, locks, events, waits, its number and machine, random bytes.

`app.py` makes clocks and ids; threads are made here, under the names below and no others, so that a simulation can put
its own in their place before anything is opened. They are looked up at each use: say ``host.lock()``, never import one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial


class Slots:
    """So many places: who finds none free waits for one. (A semaphore of `threading` costs twenty times as much.)"""

    __slots__ = ("acquire", "release")

    def __init__(self, count: int) -> None:
        from queue import SimpleQueue

        free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            free.put(None)
        self.acquire: Callable[[], None] = free.get
        self.release: Callable[[], None] = partial(free.put, None)


thread: Callable[..., threading.Thread] = threading.Thread
current_thread: Callable[[], threading.Thread] = threading.current_thread
event: Callable[[], threading.Event] = threading.Event
lock: Callable[[], threading.Lock] = threading.Lock
rlock: Callable[[], threading.RLock] = threading.RLock
slots: Callable[[int], Slots] = Slots
sleep: Callable[[float], None] = time.sleep
monotonic: Callable[[], float] = time.monotonic
pid: Callable[[], int] = os.getpid
randomness: Callable[[int], bytes] = os.urandom


def name() -> str:
    """The machine's name, which people and other processes are told."""
    return os.uname().nodename
