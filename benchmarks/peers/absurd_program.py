"""absurd on PostgreSQL: its SDK's README, "Synchronous API"; a worker with so many tasks at once. The database has its schema."""

import threading

from absurd_sdk import Absurd


class Peer:
    def __init__(self, url, name):
        self.queue = "bench_" + "".join(c if c.isalnum() else "_" for c in name).lower()
        worker = Absurd(url, queue_name=self.queue)
        worker.create_queue()

        @worker.register_task(name="reconcile")
        def reconcile(params, ctx):
            for n in range(params["steps"]):
                ctx.step(
                    f"create_adjustment-{n}",
                    lambda n=n: {"id": "sheet-4711", "amount": n, "state": "open", "key": "12345678", "note": params["note"]},
                )

        self.client = Absurd(url, queue_name=self.queue)
        told = {"worker_id": name, "claim_timeout": 600, "concurrency": 50, "poll_interval": 0.01}
        threading.Thread(target=worker.start_worker, kwargs=told, daemon=True).start()

    def one(self, steps, size=0):
        self.ended(self.client.spawn("reconcile", {"steps": steps, "note": "x" * size}))

    def beside(self, tasks, steps):
        for spawned in [self.client.spawn("reconcile", {"steps": steps, "note": ""}) for _ in range(tasks)]:
            self.ended(spawned)

    def ended(self, spawned):
        found = self.client.await_task_result(spawned["task_id"])
        if found.state != "completed":
            raise RuntimeError(found.state)


def begin(spec):
    return Peer(spec["url"], spec["name"])
