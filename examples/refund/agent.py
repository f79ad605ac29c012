"""The same refunds with a model that chooses the steps. It chooses names and params; keys, classes and windows it never sees.

`scripted` is a model that is a function: it wants what a real one would want, and needs no network. A real one is put in
its place by giving `refunder` another `choose`: show `state.goal`, `state.tools`, `state.turns` and `state.facts` to it,
and turn what it answers into a `Turn` or `Finish` (`memo` keeps what its provider wants back).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doubtless import Finish, State, StepCall, Turn
from doubtless.agents import Agent

from .app import Refunds

Choose = Callable[[State], Turn | Finish]


def scripted(state: State) -> Turn | Finish:
    """Look at the order, refund every claim, tell the customer; where something is refused, say so and stop."""
    goal = state.goal
    facts: dict[str, list[dict[str, Any]]] = {}
    for fact in state.facts:
        facts.setdefault(fact["step"], []).append(fact)
    if "find_order" not in facts:
        return Turn([StepCall("find_order", {"order_id": goal["order_id"]}, "look")], memo="first, what was paid")
    if "refund_line" not in facts:
        calls = [{"order_id": goal["order_id"], **claim} for claim in goal["claims"]]
        return Turn([StepCall("refund_line", call, f"line-{call['line']}") for call in calls])
    refunds = [fact["output"] for fact in facts["refund_line"] if fact["status"] == "done"]
    refused = [fact["text"] for fact in facts["refund_line"] if fact["status"] != "done"]
    ids = [refund["id"] for refund in refunds]
    if refunds and "notify_customer" not in facts:
        text = f"You get {sum(refund['amount'] for refund in refunds) / 100:.2f} back for order {goal['order_id']}."
        told = {"customer": goal["customer"], "refunds": " ".join(ids), "text": text}
        return Turn([StepCall("notify_customer", told, "tell")])
    return Finish({"refunds": ids, "refused": refused})


def refunder(refunds: Refunds, choose: Choose = scripted) -> Agent:
    """Declare the agent on this app. The calls of one turn run side by side, each as a step of its own."""
    steps = ["find_order", "refund_line", "notify_customer"]
    return refunds.app.agent("refunder", choose=aloud(choose), steps=steps, max_choices=20)


def aloud(choose: Choose) -> Choose:
    """The same model, and a line each time when it is asked: what is recorded is not asked again."""

    def asked(state: State) -> Turn | Finish:
        print(f"the model is asked: choice {state.choices + 1}", flush=True)
        return choose(state)

    return asked
