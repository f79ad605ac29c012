"""durastep: its README, "Quickstart" and "Limits" (which say that a process dead between effect and record runs it again)."""

from durastep import SQLiteStore, step
from durastep import run as durable_run


def run(world):
    @step(name="pay")
    def pay(reference: str) -> dict:
        return world.pay(f"pay:{reference}")

    @step(name="after")
    def after() -> dict:
        return world.after()

    with durable_run(world.task, store=SQLiteStore(f"{world.folder}/steps.db")):
        paid = pay(world.task)
        after()
    return paid
