"""Put a real model in the scripted one's place: the glue between `choose` and a chat API with tools.

    app.run(refunder(refunds, chatting(complete)), "refund-7", goal={"order_id": "SO-1001", …})

`complete(messages, tools)` is yours: one request to your provider, and what it said as a `Said`. Messages and tool calls
have the shape that most chat APIs share; where yours differs, change it there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypedDict

from doubtless import Finish, State, StepCall, Turn

from .agent import Choose

SYSTEM = (
    "You refund lines of orders at a payment gateway, with the tools that you are given, and tell the customer once."
    " Each tool's result has a status. done: it happened. refused, not_applied, failed: it did not; read why."
    " uncertain: it may have happened and somebody is finding out; never repeat it."
    " When there is nothing left to do, say in one sentence what was done."
)


class ToolCall(TypedDict):
    """A call that the model wants; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class Said(TypedDict):
    """What the model said, and what it wants called; no calls: it has finished."""

    text: str
    tool_calls: list[ToolCall]


Complete = Callable[[list[dict[str, Any]], list[dict[str, Any]]], Said]


def chatting(complete: Complete, system: str = SYSTEM) -> Choose:
    """A `choose` that asks a chat model. What the model answers is recorded by Doubtless, not here."""

    def choose(state: State) -> Turn | Finish:
        said = complete(messages(state, system), state.tools)
        # An error in here, of the provider or of JSON that is none, is a failed read: the model is asked again.
        calls = [StepCall(call["name"], json.loads(call["arguments"]), call["id"]) for call in said["tool_calls"]]
        return Turn(calls, memo=said["text"]) if calls else Finish(said["text"])

    return choose


def messages(state: State, system: str) -> list[dict[str, Any]]:
    """The conversation, made from the log: what was wanted, and what became of it."""
    told: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": json.dumps(state.goal)}]
    if state.earlier is not None:
        told.append({"role": "user", "content": f"(the first {state.earlier['turns']} turns are not shown)"})
    for turn in state.turns:
        calls = [{"id": call["call_id"], "name": call["step"], "arguments": json.dumps(call["params"])} for call in turn["calls"]]
        told.append({"role": "assistant", "content": turn["memo"], "tool_calls": calls})
        for fact in state.facts:
            if fact["turn"] == turn["turn"]:
                result = {name: fact[name] for name in ("status", "output", "text") if name in fact}
                told.append({"role": "tool", "tool_call_id": fact["call_id"], "content": json.dumps(result)})
    return told
