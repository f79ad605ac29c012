"""The same reconciliation with a model that chooses the steps. Read `app` first.

    python -m examples.reconciliation --agent --statement bank.csv --orders ledger.csv --day 2026-11-28

`scripted` is a model that is a function: it wants what a real one would want, and needs no network. A real one is put in
its place by giving `reconciler` another `choose`: show `state.goal`, `state.tools`, `state.turns` and `state.facts` to it,
and turn what it answers into a `Turn` or `Finish`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from doubtless import Finish, Rejected, State, StepCall, Turn
from doubtless.agents import Agent

from .app import Recon
from .load import BadInput, load_orders, load_statement
from .match import Difference, match

Choose = Callable[[State], Turn | Finish]


def scripted(state: State) -> Turn | Finish:
    """Find the differences, write a sheet for each, all at once; then one approval, one message, and close the run."""
    goal = state.goal
    run = goal["day"]
    outputs: dict[str, list[Any]] = {}
    for fact in state.facts:
        if fact["status"] != "done":
            return Finish({"stopped_at": fact["step"], "why": fact["text"]})
        outputs.setdefault(fact["step"], []).append(fact["output"])
    if "find_differences" not in outputs:
        return Turn([StepCall("find_differences", goal)], memo="what is different?")
    [differences] = outputs["find_differences"]
    if differences and "create_adjustment" not in outputs:
        return Turn([StepCall("create_adjustment", {"run": run, "difference": each}) for each in differences])
    sheets = [sheet["id"] for sheet in outputs.get("create_adjustment", [])]
    if sheets and "submit_approval" not in outputs:
        return Turn([StepCall("submit_approval", {"run": run, "sheets": sheets})])
    approval = outputs["submit_approval"][0]["id"] if sheets else ""
    if sheets and "notify" not in outputs:
        return Turn([StepCall("notify", {"run": run, "text": f"{len(sheets)} sheets wait for approval {approval}"})])
    if "close_run" not in outputs:
        return Turn([StepCall("close_run", {"run": run, "approval": approval})])
    return Finish({"sheets": sheets, "approval": approval, "closing": outputs["close_run"][0]["id"]})


def reconciler(recon: Recon, choose: Choose = scripted) -> Agent:
    """Declare the agent on this app. Its steps are the task's, but for the three reads, which a model needs as one."""

    @recon.app.step(effect="read")
    def find_differences(statement: str, orders: str, day: str) -> list[Difference]:
        """The true differences between a bank statement and an order ledger, both files, as of a day."""
        try:
            return match(load_statement(statement), load_orders(orders), date.fromisoformat(day))
        except BadInput as bad:
            raise Rejected("bad_input", str(bad)) from bad

    steps = [find_differences, "create_adjustment", "submit_approval", "notify", "close_run"]
    # The model has to see every difference: it is to write a sheet for each.
    return recon.app.agent("reconciler", choose=aloud(choose), steps=steps, max_choices=20, output_bytes=65_536)


def aloud(choose: Choose) -> Choose:
    """The same model, and a line each time when it is asked: what is recorded is not asked again."""

    def asked(state: State) -> Turn | Finish:
        print(f"the model is asked: choice {state.choices + 1}", flush=True)
        return choose(state)

    return asked
