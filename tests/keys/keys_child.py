"""The program of the child processes: ``keys_child.py URL EFFECTS TASK_ID ORDERS [STOP]``.

It says ``ready``, waits for a line, runs the task, and says ``got`` what it returned or ``waits`` for what. With STOP, ``call``
or ``effect``, it says so at that place of its first refund, and stands there until it is killed.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from doubtless import Doubtless, TaskWaiting


def program(url: str, effects: str, stop: str = "") -> tuple[Doubtless, Any]:
    """The app and its task; one effect is a line of a file that is there for good, whatever becomes of this process."""
    app = Doubtless(url, namespace="tests")

    def stand(place: str) -> None:
        if stop == place:
            print(place, flush=True)
            threading.Event().wait()

    @app.step(effect="non_idem_write", once="refund:{order}")
    def refund(order: str) -> dict[str, int]:
        stand("call")
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{order} {os.getpid()}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)
        stand("effect")
        return {"pid": os.getpid()}

    @app.task
    def pay(orders: int) -> list[int]:
        return [refund(order=f"o{number}")["pid"] for number in range(orders)]

    return app, pay


if __name__ == "__main__":
    url, effects, task, orders, *stop = sys.argv[1:]
    app, pay = program(url, effects, *stop)
    app.store.info()  # open, before the race
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("got", app.run(pay, task, orders=int(orders)), flush=True)
    except TaskWaiting as waiting:
        print("waits", waiting, flush=True)
