"""DBOS: docs.dbos.dev, "Workflows" and "Steps". Many at once: `start_workflow`, and the handles' results."""

import uuid

from dbos import DBOS, SetWorkflowID


@DBOS.step()
def create_adjustment(difference: dict, amount: int, note: str) -> dict:
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}


@DBOS.workflow()
def reconcile(steps: int, note: str) -> None:
    for n in range(steps):
        create_adjustment({"order": "A-17", "kind": "missing"}, n, note)


class Peer:
    def one(self, steps, size=0):
        with SetWorkflowID(uuid.uuid4().hex):
            reconcile(steps, "x" * size)

    def beside(self, tasks, steps):
        for handle in [DBOS.start_workflow(reconcile, steps, "") for _ in range(tasks)]:
            handle.get_result()

    def end(self):
        DBOS.destroy()


def begin(spec):
    DBOS(config={"name": "bench", "system_database_url": spec["url"], "executor_id": spec["name"], "log_level": "ERROR"})
    DBOS.launch()
    return Peer()
