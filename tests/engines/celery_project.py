"""What `celery -A` loads in a worker of the tests: the app of the environment on the broker of the environment."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from celery.signals import worker_shutting_down

from doubtless import Doubtless
from doubtless.runners.celery import CeleryRunner

from . import built

BROKER = "ENGINES_BROKER"


def connect(app: Doubtless, broker: dict[str, Any]) -> CeleryRunner:
    """The runner on the broker that the tests say: its URL, its transport's options, its queue."""
    celery = Celery("engines", broker=broker["url"])
    celery.conf.update(
        broker_transport_options=broker["options"], broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1,
        task_default_queue=broker["queue"], worker_enable_remote_control=False, beat_max_loop_interval=0.5,
        broker_connection_timeout=2, worker_hijack_root_logger=True, worker_cancel_long_running_tasks_on_connection_loss=False,
    )  # fmt: skip
    runner = CeleryRunner(app, celery, every=broker["every"])
    worker_shutting_down.connect(_told, weak=False)  # behind the runner's own, which drains the app
    return runner


def _told(**_: object) -> None:
    print("told to stop: the app is drained", flush=True)


if BROKER in os.environ:
    app, task = built.build()
    runner = connect(app, json.loads(os.environ[BROKER]))
    celery = runner.celery
