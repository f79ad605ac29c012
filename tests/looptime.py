"""The clock of an event loop, turned by a test: a limit of asyncio's is over at a moment that the test names, however slow the machine."""

from __future__ import annotations

import asyncio

LIMIT = 20.0
"""What a test limits by `asyncio.wait_for` or `asyncio.timeout`; shorter than a step's own time."""


def is_over_after(moment: asyncio.Event) -> asyncio.Task[None]:
    """Turn the running loop's clock by LIMIT when this has come; what it was to limit is over then and not sooner."""
    loop = asyncio.get_running_loop()
    past = loop.time

    async def turn() -> None:
        await moment.wait()
        loop.time = lambda: past() + LIMIT  # type: ignore[method-assign]

    return loop.create_task(turn())


def has_worked_for(seconds: float) -> None:
    """Turn the running loop's clock by so much: as if it had been busy for so long, however fast the machine."""
    loop = asyncio.get_running_loop()
    past = loop.time
    loop.time = lambda: past() + seconds  # type: ignore[method-assign]
