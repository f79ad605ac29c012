"""What a step leaves in the file, and what importing the package costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import apsw

from ground import DIFFERENCE, TASK_ID, Ground, unsynced
from measuring import held, take_turns


def measured(ground: Ground) -> str:
    """Bytes of the file per write step, and milliseconds of an import."""
    beside, content = growth(ground, 500 if ground.quick else 5_000)
    imported = import_time(5 if ground.quick else 31)
    return "\n".join(
        [
            f"SQLite file growth per write step after VACUUM: {beside:.0f} bytes beside {content:.0f} bytes of content "
            f"({held(beside, 450)}).",
            "",
            f"`import doubtless`: {imported[0]:.0f} ms; `import asyncio, sqlite3, json`: {imported[1]:.0f} ms; "
            f"ratio {imported[2]:.2f} ({held(imported[2], 1.5)}).",
        ]
    )


def growth(ground: Ground, count: int) -> tuple[float, float]:
    """Bytes of the file per write step after VACUUM, beside the content itself (params and output)."""
    app, step = ground.app("sqlite")
    app.store.info()
    unsynced(app)

    @app.task
    def many(steps: int) -> None:
        for i in range(steps):
            step["write"](difference=DIFFERENCE, amount=i)

    app.run(many, TASK_ID, steps=count)
    path: str = app.store.path  # type: ignore[attr-defined]
    app.close()
    connection = apsw.Connection(path)
    (content,) = connection.execute(
        "SELECT coalesce(sum(length(input_ref) - 7), 0) + coalesce(sum(length(output_ref) - 7), 0) FROM events"
    ).fetchone()
    connection.execute("VACUUM")
    connection.close()
    return (os.path.getsize(path) - content) / count, content / count


def import_time(rounds: int) -> tuple[float, float, float]:
    """Milliseconds of a fresh interpreter with our import and with the base's, from compiled modules; their ratio."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPYCACHEPREFIX": cache}

        def timed(code: str) -> float:
            from measuring import seconds

            return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True, env=environment)) * 1e3

        turns = take_turns(
            {"ours": lambda: timed("import doubtless"), "base": lambda: timed("import asyncio, sqlite3, json")}, rounds
        )
    return turns.median("ours"), turns.median("base"), turns.ratio("ours", "base")
