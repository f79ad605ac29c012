"""A worker of the tests on DBOS: ``python -m engines.dbos_worker SYSTEM_DATABASE_URL``; runs until it is killed."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from dbos import DBOS

from doubtless.runners.dbos import DBOSRunner

from . import built


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("dbos").propagate = False
    app, _ = built.build()
    DBOS(
        config={
            "name": "engines", "system_database_url": sys.argv[1], "executor_id": "the-same-for-all", "application_version": "1",
            "scheduler_polling_interval_sec": 0.2, "notification_listener_polling_interval_sec": 0.1,
        }  # fmt: skip
    )
    runner = DBOSRunner(app, schedule="* * * * * *")
    DBOS.launch()
    runner.listen(polling_interval_sec=0.1)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("worker ready", flush=True)
    stop.wait()
    app.drain()
    DBOS.destroy(workflow_completion_timeout_sec=20)


if __name__ == "__main__":
    main()
