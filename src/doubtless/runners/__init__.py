"""Runners: an app's tasks on an engine that people already run. Each is thin, and asks the engine for "at least once" only.

`doubtless.runners.celery`, `.dbos`, `.restate`, `.temporal`; docs/engines.md shows each of them, and how to write another:
hand over what `app.on_wake` tells, call `app.advance`, come again after `again` seconds, and `sweep` every so often.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..advancing import Advance
    from ..app import Doubtless

log = logging.getLogger("doubtless.runners")

SWEEP_LIMIT = 200
"""How many tasks one sweep hands over: what is due and already queued is handed over again, and must not flood a queue."""

NAP = 3600.0
"""Seconds after which an engine that keeps a timer for each task looks at it again, should all else have been lost."""


def sweep(app: Doubtless, hand_over: Callable[[str], object], *, limit: int = SWEEP_LIMIT) -> int:
    """Hand over every task that has something to do and that nobody runs: the net under what was lost; how many they were.

    Meaning: of more than `limit` some are picked by chance, so that none is passed over for ever.
    """
    due = app.due()
    chosen = due if len(due) <= limit else random.sample(due, limit)
    for task_id in chosen:
        hand_over(task_id)
    return len(chosen)


def advance(app: Doubtless, task_id: str) -> Advance:
    """`app.advance`, and a warning in the log where the store is in trouble or the task's code is not here."""
    stands = app.advance(task_id)
    if stands.trouble:
        log.warning("task %s: its store cannot be used, it is tried again: %s", task_id, stands.why)
    else:
        log.info("task %s is %s%s", task_id, stands.status, f": {stands.why}" if stands.why else "")
    return stands


def nap(stands: Advance) -> float:
    """How long an engine with a durable timer for each task sleeps, unless the task is woken before."""
    return NAP if stands.again is None else min(stands.again, NAP)
