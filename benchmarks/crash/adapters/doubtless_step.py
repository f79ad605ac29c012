"""Doubtless: docs/steps.md."""

from datetime import timedelta

from doubtless import Doubtless, injected

SAYS = {"NeedsHuman": "asks", "TaskBusy": "busy", "TaskFailed": "failed", "TaskWaiting": "waiting"}


def run(world):
    app = Doubtless(f"sqlite:///{world.folder}/store.db")
    declared = {}
    if world.look:
        declared = {"query": lambda: world.find(), "absent_after": timedelta(seconds=world.lag + 1), "on_absent": "retry"}
    if world.keys:
        declared = {"key_window": timedelta(seconds=world.window)}

    @app.step(effect="idem_write" if world.keys else "non_idem_write", **declared)
    def pay(reference: str, idempotency_key: str = injected()) -> dict:
        return world.pay(idempotency_key)

    @app.step(effect="read")
    def after() -> dict:
        return world.after()

    @app.task
    def order(reference: str) -> dict:
        paid = pay(reference=reference)
        after()
        return paid

    return app.run(order, world.task, reference=world.task)
