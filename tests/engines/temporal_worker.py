"""A worker of the tests on Temporal's SDK: ``python -m engines.temporal_worker TARGET``; runs until it is killed."""

from __future__ import annotations

import asyncio
import logging
import sys

from temporalio.client import Client
from temporalio.worker import Worker

from doubtless.runners.temporal import TemporalRunner

from . import built


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    app, _ = built.build()
    client = await Client.connect(sys.argv[1])
    runner = TemporalRunner(app, lambda: Client.connect(sys.argv[1]), every="PT0.5S", heartbeat="PT2S")
    worker = Worker(
        client, task_queue=runner.queue, workflows=runner.workflows, activities=runner.activities, max_cached_workflows=0
    )  # fmt: skip
    async with worker:
        await runner.begin(client)
        print("worker ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
