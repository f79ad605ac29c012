"""absurd on PostgreSQL: its SDK's README, "Synchronous API" and "Task Result Snapshots"; the database has its schema."""

import threading

from absurd_sdk import Absurd


def run(world):
    worker = Absurd(world.postgres, queue_name=world.table)
    worker.create_queue()

    @worker.register_task(name="order")
    def order(params, ctx):
        paid = ctx.step("pay", lambda: world.pay(f"pay:{params['reference']}"))
        ctx.step("after", world.after)
        return paid

    task = worker.spawn("order", {"reference": world.task}, idempotency_key=world.task)
    told = {"worker_id": world.owner, "claim_timeout": int(world.lease)}
    threading.Thread(target=worker.start_worker, kwargs=told, daemon=True).start()
    ended = Absurd(world.postgres, queue_name=world.table).await_task_result(task["task_id"])
    return {"completed": "done", "failed": "failed", "cancelled": "failed"}[ended.state]
