"""Makes a fork and runs it to its end, in a process of its own, which is killed at its n-th write point.

    python fork_child.py FOLDER N      exit code 0: it came to its end before the point
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from doubtless import Answer, Doubtless, NeedsHuman, injected


def build(folder: Path, kill_at: int = 0) -> tuple[Doubtless, Any]:
    """The app and its task; effects are lines of a file, and can be asked for by their key."""
    reached = 0
    file = folder / "effects"

    def point(name: str) -> None:
        nonlocal reached
        reached += 1
        if reached == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    app = Doubtless(f"sqlite:///{folder / 'fork.db'}", namespace="kill", hooks=point)

    def effects() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    def do(name: str, key: str) -> dict[str, Any]:
        point(f"{name}:call")
        with file.open("a") as out:
            out.write(f"{name} {key}\n")
        point(f"{name}:called")
        return {"name": name, "key": key}

    def asked(idempotency_key: str) -> dict[str, Any] | None:
        lines = [line for line in effects() if line.endswith(idempotency_key)]
        return {"name": lines[0].split()[0], "key": idempotency_key} if lines else None

    @app.step(effect="read")
    def look() -> str:
        return "x" * 300

    options: dict[str, Any] = {"effect": "non_idem_write", "query": asked, "absent_after": "PT0.01S", "on_absent": "retry"}

    @app.step(**options, attempts=9)
    def first(idempotency_key: str = injected()) -> dict[str, Any]:
        return do("first", idempotency_key)

    @app.step(**options, attempts=9)
    def second(idempotency_key: str = injected()) -> dict[str, Any]:
        return do("second", idempotency_key)

    @app.task
    def work() -> list[str]:
        return [look()[:1], first()["name"], second()["name"]]

    return app, work


def fork_and_run(app: Doubtless) -> Any:
    """Make the fork, and bring it to its end: the first write is taken over, the second made again."""
    app.fork("t", at=2, task_id="f")
    while True:
        try:
            return app.resume("f")
        except NeedsHuman as error:
            case = app.case(error.cases[0])
            said = "reuse" if case.evidence["fork"]["step"] == "first" else "run"
            app.settle(case.id, Answer(said), by="anna", why="test", shown=case.hash)


if __name__ == "__main__":
    app, _ = build(Path(sys.argv[1]), int(sys.argv[2]))
    app.store.info()
    fork_and_run(app)
