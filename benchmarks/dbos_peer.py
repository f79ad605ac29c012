"""DBOS on SQLite beside us: one step that does the same nothing, as its own documentation declares it."""

from __future__ import annotations

import logging
import statistics
import time
from typing import Any

from dbos import DBOS, DBOSConfig


def per_step(folder: str, rounds: int, count: int) -> float:
    """Microseconds of one step inside a workflow: the median of the rounds."""
    logging.disable(logging.WARNING)
    config: DBOSConfig = {"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.sqlite", "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.step()
    def create_adjustment(difference: dict[str, Any], amount: int) -> dict[str, Any]:
        return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}

    @DBOS.workflow()
    def measure() -> list[float]:
        timed: list[float] = []
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            for i in range(count):
                create_adjustment({"order": "A-17", "kind": "missing"}, i)
            timed.append((time.perf_counter() - begun) / count * 1e6)
        return timed[1:]

    DBOS.launch()
    try:
        return statistics.median(measure())
    finally:
        DBOS.destroy()
        logging.disable(logging.NOTSET)
