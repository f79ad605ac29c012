"""LangGraph's ToolNode in a graph with its SQLite checkpointer; the model is played: it calls the tool, then reads and ends."""

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def run(world):
    @tool
    def pay(reference: str) -> dict:
        """Pay an order."""
        return world.pay(f"pay:{reference}")

    def model(state: MessagesState) -> dict:
        if len(state["messages"]) == 1:
            call = {"name": "pay", "args": {"reference": world.task}, "id": "call-1"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        world.after()
        return {"messages": [AIMessage("paid")]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([pay]))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string(f"{world.folder}/checkpoints.db") as saver:
        agent = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": world.task}}
        begun = agent.get_state(config).next
        start = None if begun else {"messages": [HumanMessage("pay the order")]}
        return dict(agent.invoke(start, config, durability="sync"))
