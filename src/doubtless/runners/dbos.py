"""Tasks on DBOS: a short workflow on a queue for each task that has something to do.

    runner = DBOSRunner(app)                     # before DBOS.launch(), which registers its two workflows
    DBOS.launch()
    runner.listen()                              # the queue, and the schedule of the sweep
    app.start(reconcile, "recon-7", day="…")     # recorded, and enqueued

A process that only starts tasks and settles cases needs no DBOS of its own: ``DBOSRunner(app, client=DBOSClient(…))``.
"""

from __future__ import annotations

import contextvars
from datetime import datetime
from typing import Any

from dbos import DBOS, DBOSClient, EnqueueOptions

from .. import runners
from ..app import Doubtless
from ..durations import parse_duration

ADVANCE = "doubtless.advance"
SWEEP = "doubtless.sweep"


class DBOSRunner:
    """Runs an app's tasks as DBOS workflows, one for each time that a task has something to do.

    Meaning: a workflow that is recovered, or run by two executors at once, does no harm: its one step is `app.advance`.
    DBOS keeps its own steps and results of them; what the task did is in Doubtless's log alone. `name` tells several apps
    on one system database apart.
    Units: `schedule`, the cron line of the sweep, with seconds. `horizon`: a time to look again that is nearer is a
    workflow with a delay, one that is farther is found by the sweep.
    """

    def __init__(
        self, app: Doubtless, *, client: DBOSClient | None = None, queue: str = "doubtless", schedule: str = "*/15 * * * * *",
        horizon: str = "PT10M", name: str = "",
    ) -> None:  # fmt: skip
        self.app = app
        self.queue = queue
        self._schedule = schedule
        self._horizon = parse_duration(horizon) / 1e6
        suffix = f".{name}" if name else ""
        self._advance_name, self._sweep_name = ADVANCE + suffix, SWEEP + suffix
        self._enqueue = DBOS.enqueue_workflow_with_options if client is None else client.enqueue
        if client is None:

            def advance(task_id: str) -> None:
                self._advance(task_id)

            def sweep(at: datetime, context: Any) -> None:
                DBOS.run_step({"name": self._sweep_name}, self._sweep)

            DBOS.workflow(name=self._advance_name)(advance)
            self._sweep_workflow = DBOS.workflow(name=self._sweep_name)(sweep)
        app.on_wake(self.hand_over)

    def listen(self, *, concurrency: int = 4, polling_interval_sec: float = 1.0) -> None:
        """Run tasks in this process, so many at once, and sweep. To be called after `DBOS.launch()`."""
        DBOS.register_queue(self.queue, worker_concurrency=concurrency, polling_interval_sec=polling_interval_sec)
        DBOS.apply_schedules(
            [{"schedule_name": self._sweep_name, "workflow_fn": self._sweep_workflow, "schedule": self._schedule}]
        )

    def hand_over(self, task_id: str, delay: float | None = None, once: str | None = None) -> None:
        """Enqueue the workflow that advances a task; with `once` not while another of that name is on its way."""
        options: EnqueueOptions = {"workflow_name": self._advance_name, "queue_name": self.queue}
        if delay is not None:
            options["delay_seconds"] = delay
        if once is not None:
            options["deduplication_id"] = once
            options["duplication_policy"] = "return-existing"
        # Whoever wakes a task may be within a workflow or a step of his own: this is no part of that.
        contextvars.Context().run(self._enqueue, options, task_id)

    def _advance(self, task_id: str) -> None:
        root, after = DBOS.run_step({"name": self._advance_name}, self._step, task_id)
        if after is not None:
            DBOS.enqueue_workflow_with_options(
                {"workflow_name": self._advance_name, "queue_name": self.queue, "delay_seconds": after}, root
            )

    def _step(self, task_id: str) -> tuple[str, float | None]:
        """The task's id, and in how many seconds it is to be advanced again; None: by somebody else, or never."""
        stands = runners.advance(self.app, task_id)
        near = stands.ran and stands.again is not None and stands.again <= self._horizon
        return stands.task_id, stands.again if near else None

    def _sweep(self) -> int:
        self.app.notify()
        return runners.sweep(self.app, lambda task_id: self.hand_over(task_id, once=f"sweep:{task_id}"))
