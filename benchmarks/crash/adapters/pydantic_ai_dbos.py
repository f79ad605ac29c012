"""pydantic-ai's durable back end on DBOS: "Durable execution with DBOS" (a tool with side effects is a `@DBOS.step`)."""

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


def run(world):
    url = f"sqlite:///{world.folder}/dbos.sqlite"
    DBOS(config={"name": "crash-bench", "system_database_url": url, "executor_id": world.owner})

    def model(messages, info):
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("pay", {"reference": world.task}, "call-1")])
        world.after()
        return ModelResponse(parts=[TextPart("paid")])

    agent = Agent(FunctionModel(model), name="payer", capabilities=[DBOSDurability()])

    @agent.tool_plain
    @DBOS.step()
    def pay(reference: str) -> dict:
        """Pay an order."""
        return world.pay(f"pay:{reference}")

    @DBOS.workflow()
    async def order(reference: str) -> str:
        return (await agent.run(f"pay {reference}")).output

    DBOS.launch()  # takes up again what this executor had pending
    with SetWorkflowID(world.task):
        handle = DBOS.start_workflow(order, world.task)
    return {"text": handle.get_result()}
