"""Tasks that share their commits on PostgreSQL: ``pg_side_by_side.py URL STATE WORLD START N``, as `pg_program`.

Four async tasks of two writes each on one event loop; each write is one line of the file WORLD.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from doubtless import Doubtless, injected
from doubtless.testing import FakeClock

TASKS, WRITES = 4, 2


def main(url: str, state: str, world: str, start: str, kill_at: str) -> None:
    os.environ["XDG_STATE_HOME"] = state
    points = 0

    def hook(point: str) -> None:
        nonlocal points
        points += 1
        if points == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    app = Doubtless(url, clock=FakeClock(start=start), hooks=hook)
    made = Path(world)

    async def find(idempotency_key: str) -> dict[str, str] | None:
        hook("query")
        lines = made.read_text().splitlines() if made.exists() else []
        return {"sheet": idempotency_key} if idempotency_key in lines else None

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", on_absent="retry", timeout="PT10S", attempts=9)
    async def create(n: int, idempotency_key: str = injected()) -> dict[str, str]:
        hook("call:before")
        with made.open("a") as file:
            file.write(idempotency_key + "\n")
        hook("call:after")
        await asyncio.sleep(0)
        return {"sheet": idempotency_key}

    @app.step(effect="read")
    async def look() -> int:
        return 1

    @app.task
    async def reconcile() -> int:
        await look()  # its row comes with the one that says whose the task is, by itself
        return len([await create(n=n) for n in range(WRITES)])

    async def side_by_side() -> list[int]:
        return await asyncio.gather(*[app.arun(reconcile, f"t-{n}") for n in range(TASKS)])

    assert asyncio.run(side_by_side()) == [WRITES] * TASKS
    assert [problem.what for problem in app.verify()] == []
    print(points)


if __name__ == "__main__":
    main(*sys.argv[1:])
