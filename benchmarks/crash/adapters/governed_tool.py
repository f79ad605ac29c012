"""agent-runtime-governance: its README and the docstring of `SQLiteIdempotencyStore`."""

from agent_runtime_governance import ExecutionMode, InvocationOptions, Runtime, SQLiteIdempotencyStore

SAYS = {"IdempotencyOutcomeUnknownError": "refuses", "IdempotencyInProgressError": "busy"}


def run(world):
    runtime = Runtime(idempotency_store=SQLiteIdempotencyStore(f"{world.folder}/arg.db", lease_seconds=world.lease))

    @runtime.tool(execution_mode=ExecutionMode.IDEMPOTENT)
    def pay(reference: str) -> dict:
        return world.pay(f"pay:{reference}")

    paid = pay(world.task, _governance=InvocationOptions(idempotency_key=f"pay:{world.task}"))
    world.after()
    return paid
