"""A task of three writes on PostgreSQL: ``pg_program.py URL STATE WORLD START N``, killed at the n-th write point (0: never).

Its effects are lines of the file WORLD, where its query looks for them. Prints how many write points there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from doubtless import Doubtless, injected
from doubtless.testing import FakeClock


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

    def find(idempotency_key: str) -> dict[str, str] | None:
        hook("query")
        lines = made.read_text().splitlines() if made.exists() else []
        return {"sheet": idempotency_key} if idempotency_key in lines else None

    @app.step(effect="non_idem_write", query=find, absent_after="PT1M", on_absent="retry", timeout="PT10S", attempts=9)
    def create(name: str, idempotency_key: str = injected()) -> dict[str, str]:
        hook("call:before")
        with made.open("a") as file:
            file.write(idempotency_key + "\n")
        hook("call:after")
        return {"sheet": idempotency_key}

    @app.step(effect="read")
    def orders() -> list[str]:
        return ["a", "b", "c" * 2000]

    @app.task
    def reconcile() -> int:
        return len([create(name=order) for order in orders()])

    assert app.run(reconcile, "t-1") == 3
    assert [problem.what for problem in app.verify()] == []
    print(points)


if __name__ == "__main__":
    main(*sys.argv[1:])
