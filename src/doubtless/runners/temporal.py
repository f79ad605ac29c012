"""Tasks on Temporal: a workflow for each task; its one activity advances the task, signals wake it, timers call it again.

    runner = TemporalRunner(app, lambda: Client.connect("localhost:7233"))
    async with Worker(client, task_queue=runner.queue, workflows=runner.workflows, activities=runner.activities):
        await runner.begin(client)               # the sweep, a workflow of its own
    app.start(reconcile, "recon-7", day="…")     # recorded, and its workflow is started (or signalled)

The workflows hold no result and decide nothing: what they do again, they may do again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from .. import host, runners
from ..app import Doubtless
from ..durations import parse_duration

LONGEST = timedelta(days=30)
LONG_HISTORY = 500
"""Turns after which a workflow goes on as a new one, so that no history grows for ever."""


@workflow.defn(name="doubtless.task", sandboxed=False)
class TaskWorkflow:
    """Advances one task until it has ended: now, when it is signalled, and when its time has come."""

    def __init__(self) -> None:
        self._woken: list[str] = []

    @workflow.signal(name="wake")
    def wake(self, task_id: str) -> None:
        if task_id not in self._woken:
            self._woken.append(task_id)

    @workflow.run
    async def run(self, task_id: str, woken: list[str], heartbeat: float) -> str:
        self._woken = list(dict.fromkeys([*woken, *self._woken]))
        for _ in range(LONG_HISTORY):
            due = self._woken.pop(0) if self._woken else task_id
            status, seconds = await _activity("doubtless.advance", heartbeat, due)
            if seconds is None:
                return str(status)
            try:
                await workflow.wait_condition(lambda: bool(self._woken), timeout=timedelta(seconds=float(seconds)))
            except TimeoutError:
                pass
        workflow.continue_as_new(args=[task_id, self._woken, heartbeat])
        raise AssertionError("it goes on as a new one")


@workflow.defn(name="doubtless.sweep", sandboxed=False)
class SweepWorkflow:
    """Looks every so often for what nobody was told of."""

    @workflow.run
    async def run(self, seconds: float, heartbeat: float) -> None:
        for _ in range(LONG_HISTORY):
            await _activity("doubtless.sweep", heartbeat)
            await asyncio.sleep(seconds)
        workflow.continue_as_new(args=[seconds, heartbeat])  # raises


async def _activity(name: str, heartbeat: float, *args: Any) -> Any:
    beat = timedelta(seconds=heartbeat)
    return await workflow.execute_activity(name, args=args, start_to_close_timeout=LONGEST, heartbeat_timeout=beat)


class TemporalRunner:
    """Runs an app's tasks as workflows named ``doubtless:<task id>`` on the task queue `queue`.

    Meaning: `connect` is called once, on a loop of the runner's own, when this process wakes a task first. An activity
    that is tried again while the first attempt still runs, because its heartbeat was late, does no harm.
    Units: `every`, how often the sweep looks. `heartbeat`, how long after its worker's death an activity is tried again
    elsewhere; while that lives, it takes as long as it takes. `concurrency`: how many tasks one process runs at once.
    """

    workflows: Sequence[type] = (TaskWorkflow, SweepWorkflow)

    def __init__(
        self, app: Doubtless, connect: Callable[[], Awaitable[Client]], *, queue: str = "doubtless", every: str = "PT15S",
        heartbeat: str = "PT30S", concurrency: int = 32,
    ) -> None:  # fmt: skip
        self.app = app
        self.queue = queue
        self._connect = connect
        self._every, self._heartbeat = (parse_duration(each) / 1e6 for each in (every, heartbeat))
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = host.lock()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="doubtless-temporal")
        self.activities: Sequence[Callable[..., Any]] = (self._advance, self._sweep)
        app.on_wake(self.hand_over)

    def hand_over(self, task_id: str) -> None:
        """Signal the task's workflow, and start it where there is none. Raises what the client raises, within 10 s."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                host.thread(target=self._loop.run_forever, name="doubtless-temporal", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._wake(task_id), self._loop).result(10)

    async def begin(self, client: Client) -> None:
        """Start the sweep; where it goes on already, nothing happens."""
        await client.start_workflow(
            SweepWorkflow.run, args=[self._every, self._heartbeat], id=f"doubtless-sweep:{self.queue}", task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )  # fmt: skip

    async def _wake(self, task_id: str) -> None:
        if self._client is None:
            self._client = await self._connect()
        root = task_id.partition("/")[0]  # a child is run by its root, and so by its root's workflow
        await self._client.start_workflow(
            TaskWorkflow.run, args=[root, [], self._heartbeat], id=f"doubtless:{root}", task_queue=self.queue,
            start_signal="wake", start_signal_args=[task_id],
        )  # fmt: skip

    @activity.defn(name="doubtless.advance")
    async def _advance(self, task_id: str) -> tuple[str, float | None]:
        """The task's status, and after how many seconds it is to be advanced again; None: it has ended."""
        stands = await self._beating(runners.advance, self.app, task_id)
        return stands.status, None if stands.ended else runners.nap(stands)

    @activity.defn(name="doubtless.sweep")
    async def _sweep(self) -> int:
        await self._beating(self.app.notify)
        return int(await self._beating(runners.sweep, self.app, self.hand_over))

    async def _beating(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call in a thread, with heartbeats while it lasts; cancelled, the thread goes on and keeps its task."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)
        while not (await asyncio.wait({call}, timeout=self._heartbeat / 4))[0]:
            activity.heartbeat()
        return call.result()
