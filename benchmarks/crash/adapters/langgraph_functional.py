"""LangGraph's functional API with its SQLite checkpointer: "Durable execution" (side effects in tasks; resume with None)."""

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task


def run(world):
    @task
    def pay(reference: str) -> dict:
        return world.pay(f"pay:{reference}")

    @task
    def after() -> dict:
        return world.after()

    with SqliteSaver.from_conn_string(f"{world.folder}/checkpoints.db") as saver:

        @entrypoint(checkpointer=saver)
        def order(reference: str) -> dict:
            paid = pay(reference).result()
            after().result()
            return paid

        config = {"configurable": {"thread_id": world.task}}
        begun = order.get_state(config).next
        return order.invoke(None if begun else world.task, config, durability="sync")
