"""Tasks on Celery: a message for each task that has something to do, on any broker.

    runner = CeleryRunner(app, celery)       # in the module that `celery -A` loads, and wherever tasks are started
    app.start(reconcile, "recon-7", day="…") # recorded, and a message is sent
    celery -A myproject worker -B            # -B, or a beat of its own: the sweep

A message says a task's id and nothing else, and is acknowledged when its task has got as far as it can. It may be lost,
doubled, late or delivered to several workers at once: who comes second finds the task owned or not due, and drops it.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

from .. import runners
from ..app import Doubtless
from ..durations import parse_duration

ADVANCE = "doubtless.advance"
SWEEP = "doubtless.sweep"

# Sent at once or not at all: what was not sent, the sweep finds.
PUBLISH = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}}


class CeleryRunner:
    """Runs an app's tasks on Celery's workers.

    Meaning: registers two Celery tasks, ``doubtless.advance`` and ``doubtless.sweep``, the second in the beat schedule, and
    sends a message whenever this process's app wakes a task. The app's store is shared by all workers: PostgreSQL, or one
    SQLite file on one host. `name` tells several apps on one Celery app apart.
    Units: `every`, how often beat sweeps. `horizon`: a time to look again that is nearer comes as a message with a
    countdown, one that is farther by the sweep; keep it below the broker's visibility timeout.
    """

    def __init__(
        self, app: Doubtless, celery: Celery, *, queue: str | None = None, every: str = "PT15S", horizon: str = "PT1M",
        name: str = "",
    ) -> None:  # fmt: skip
        self.app = app
        self.celery = celery
        self._every = parse_duration(every) / 1e6
        self._horizon = parse_duration(horizon) / 1e6
        self._options: dict[str, Any] = {"ignore_result": True, **PUBLISH, **({"queue": queue} if queue else {})}
        # acks_late: a worker that dies leaves its message. Its own retries, time limits and results are not needed.
        late = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True, "shared": False}
        suffix = f".{name}" if name else ""

        def advance(task_id: str) -> None:  # functions: Celery makes static methods of what it is given
            self._advance(task_id)

        def sweep() -> None:
            self._sweep()

        self.advance = celery.task(name=ADVANCE + suffix, **late)(advance)
        self.sweep = celery.task(name=SWEEP + suffix, ignore_result=True, shared=False)(sweep)
        options = {"expires": self._every, **({"queue": queue} if queue else {})}  # a sweep that comes late is of no use
        entry = {"task": self.sweep.name, "schedule": self._every, "options": options}
        celery.conf.beat_schedule = {**(celery.conf.beat_schedule or {}), self.sweep.name: entry}
        app.on_wake(self.hand_over)
        worker_ready.connect(self._ready, weak=False)
        worker_shutting_down.connect(self._drain, weak=False)

    def hand_over(self, task_id: str, countdown: float | None = None, expires: float | None = None) -> None:
        """Send the message that a task has something to do. Raises what the broker's client raises: then nothing was sent."""
        self.advance.apply_async((task_id,), countdown=countdown, expires=expires, **self._options)

    def _advance(self, task_id: str) -> None:
        stands = runners.advance(self.app, task_id)
        # Only whoever ran the task sends the next message: doubled ones end here instead of going on side by side.
        if stands.ran and stands.again is not None and stands.again <= self._horizon:
            self.hand_over(stands.task_id, countdown=stands.again)

    def _sweep(self) -> None:
        self.app.notify()
        # What the queue has not got to by then is found again: such messages do not pile up.
        runners.sweep(self.app, lambda task_id: self.hand_over(task_id, expires=max(60.0, 4 * self._every)))

    def _ready(self, **_: object) -> None:
        self.sweep.apply_async(expires=self._every, **self._options)

    def _drain(self, **_: object) -> None:
        self.app.drain()
