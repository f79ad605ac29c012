"""The program of the child processes: ``keys_child.py URL EFFECTS TASK_ID``: says ``ready``, waits for a line, runs the task."""

from __future__ import annotations

import os
import sys

from doubtless import Doubtless

URL, EFFECTS, TASK = sys.argv[1:]
app = Doubtless(URL, namespace="tests")


@app.step(effect="non_idem_write", once="refund:{order}")
def refund(order: str) -> dict[str, int]:
    """One effect: a line that is there for good, whatever becomes of this process."""
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{order} {os.getpid()}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    return {"pid": os.getpid()}


@app.task
def pay(orders: int) -> list[int]:
    return [refund(order=f"o{number}")["pid"] for number in range(orders)]


app.store.info()  # open, before the race
print("ready", flush=True)
sys.stdin.readline()
print("got", app.run(pay, TASK, orders=10), flush=True)
