"""Tasks on Restate: a virtual object for each task; Restate keeps its messages, its timers and its one turn at a time.

    runner = RestateRunner(app, ingress="http://localhost:8080")
    service = restate.app([runner.object])       # served by hypercorn, say, and registered as any deployment is
    runner.begin()                               # once it is registered: the sweep goes on by itself from then on
    app.start(reconcile, "recon-7", day="…")     # recorded, and a message is sent to the object "recon-7"
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from restate import ObjectContext, TerminalError, VirtualObject

from .. import runners
from ..app import Doubtless
from ..durations import parse_duration
from ..errors import UnknownTask, UsageError

SWEEP = "$sweep"
"""The key of the one object that sweeps. No task's id begins so."""


class RestateRunner:
    """Runs an app's tasks as virtual objects of the name `name`, with the task's id as their key.

    Meaning: the handler ``advance`` calls `app.advance` in a thread; Restate's retry of it, also while the first one still
    runs because a timeout of Restate's has passed, does no harm. Its journal holds when to come again and nothing else.
    `options` are `restate.VirtualObject`'s; `headers` go with each message to the ingress.
    Units: `every`, how often the sweep looks. `concurrency`: how many tasks one process runs at once.
    """

    def __init__(
        self, app: Doubtless, *, ingress: str = "http://localhost:8080", name: str = "Doubtless", every: str = "PT15S",
        concurrency: int = 16, headers: dict[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.app = app
        self.ingress = ingress.rstrip("/")
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self._every = timedelta(microseconds=parse_duration(every))
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="doubtless-restate")
        self.object = VirtualObject(name, **options)

        async def advance(ctx: ObjectContext, task_id: str) -> None:
            await self._advance(ctx, task_id)

        async def sweep(ctx: ObjectContext, chain: str) -> None:
            await self._sweep(ctx, chain)

        self._advance_handler = self.object.handler("advance")(advance)
        self._sweep_handler = self.object.handler("sweep")(sweep)
        app.on_wake(self.hand_over)

    def hand_over(self, task_id: str) -> None:
        """Send the message that a task has something to do. Raises OSError: nothing was sent, as far as is known."""
        self._send(root_of(task_id), "advance", task_id)

    def begin(self) -> None:
        """Begin to sweep; called again, as by each process that starts, it replaces the sweep that goes on."""
        self._send(SWEEP, "sweep", "")

    def _send(self, key: str, handler: str, argument: str) -> None:
        url = f"{self.ingress}/{self.object.name}/{quote(key, safe='')}/{handler}/send"
        request = urllib.request.Request(url, json.dumps(argument).encode(), self.headers, method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    async def _advance(self, ctx: ObjectContext, task_id: str) -> None:
        async def step() -> float | None:
            try:
                stands = await self._in_thread(runners.advance, self.app, task_id)
            except (UnknownTask, UsageError) as error:
                raise TerminalError(str(error)) from error  # no retry helps
            # Only whoever ran the task sets the next timer: doubled deliveries end instead of going on side by side.
            return stands.again if stands.ran else None

        after = await ctx.run_typed("advance", step)
        if after is not None:
            root = root_of(task_id)
            ctx.object_send(self._advance_handler, root, root, send_delay=timedelta(seconds=after))

    async def _sweep(self, ctx: ObjectContext, chain: str) -> None:
        if not chain:
            chain = str(ctx.uuid())
            ctx.set("chain", chain)
        elif await ctx.get("chain", type_hint=str) != chain:
            return  # another sweep was begun since

        async def due() -> list[str]:
            found: list[str] = []
            await self._in_thread(self.app.notify)
            await self._in_thread(runners.sweep, self.app, found.append)
            return found

        for task_id in await ctx.run_typed("due", due):
            ctx.object_send(self._advance_handler, root_of(task_id), task_id)
        ctx.object_send(self._sweep_handler, SWEEP, chain, send_delay=self._every)

    async def _in_thread(self, fn: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)


def root_of(task_id: str) -> str:
    """The id of the task that a child belongs to: its object runs them both."""
    return task_id.partition("/")[0]
