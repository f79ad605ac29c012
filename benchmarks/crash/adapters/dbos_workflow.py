"""DBOS on SQLite: docs.dbos.dev, "Workflows" and "Steps"; the workflow's id as idempotency key; an executor id a process."""

from dbos import DBOS, SetWorkflowID


def run(world):
    url = f"sqlite:///{world.folder}/dbos.sqlite"
    DBOS(config={"name": "crash-bench", "system_database_url": url, "executor_id": world.owner})

    @DBOS.step()
    def pay(reference: str) -> dict:
        return world.pay(f"pay:{reference}")

    @DBOS.step()
    def after() -> dict:
        return world.after()

    @DBOS.workflow()
    def order(reference: str) -> dict:
        paid = pay(reference)
        after()
        return paid

    DBOS.launch()  # takes up again what this executor had pending
    with SetWorkflowID(world.task):
        handle = DBOS.start_workflow(order, world.task)
    return handle.get_result()
