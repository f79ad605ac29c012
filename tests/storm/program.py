"""The app that the workers of the storm run: the reconciliation of the examples, on the storm's bounds, sync and async.

``$DOUBTLESS_STORE`` is the log, ``$STORM_SERVER`` the other side, ``$STORM_BOUNDS`` how long things may take. The steps are those of
`examples.reconciliation`; what is added is a second way to submit an approval (on the event loop, by another client), a task
that runs its sheets side by side, and one that sleeps.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from examples.reconciliation.actions import Actions
from examples.reconciliation.app import step_table
from examples.reconciliation.client import Approval

from doubtless import Doubtless, injected

from .bounds import Bounds, duration, read

DAY = "2026-11-28"
SLOW = ("create_adjustment", "submit_approval", "notify", "close_run", "withdraw_adjustment", "withdraw_approval")


class Unhurried(Actions):
    """The example's actions; each write takes its time before its request, and some before it returns."""

    def __init__(self, server: str | None, pace: float) -> None:
        super().__init__(server)
        for name in SLOW:
            setattr(self, name, _slowly(getattr(self, name), pace))


def _slowly(do: Callable[..., Any], pace: float) -> Callable[..., Any]:
    @functools.wraps(do)
    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(random.random() * pace)
        made = do(*args, **kwargs)
        time.sleep(random.random() * pace / 4)
        return made

    return slowly


def steps(actions: Actions, bounds: Bounds) -> dict[str, dict[str, Any]]:
    """The example's step table with the storm's times."""
    table = step_table(actions)
    for step in table.values():
        if step["effect"] == "read":
            continue
        step |= {"timeout": duration(bounds.timeout), "settle_within": duration(bounds.settle_within), "attempts": 4}
        if "absent_after" in step:
            step |= {"absent_after": duration(bounds.absent_after), "compensate_deadline": duration(bounds.deadline)}
    table["submit_approval"]["on_absent"] = "fail"  # of the two that can be asked, one is sent again and one is given up
    return table


def build(url: str | None, server: str | None, bounds: Bounds) -> Doubtless:
    """The app: six tasks' worth of steps, three tasks."""
    app = Doubtless(url, store_patience="PT8S")
    actions = Unhurried(server, bounds.pace)
    table = steps(actions, bounds)
    app.add_steps(table)
    step = app.steps
    approving = {name: value for name, value in table["submit_approval"].items() if name != "call"}

    @app.step(name="submit_approval_async", **approving)
    async def submit_async(run: str, sheets: list[str], idempotency_key: str = injected()) -> Approval:
        import asyncio

        import httpx

        await asyncio.sleep(random.random() * bounds.pace)
        async with httpx.AsyncClient(timeout=8.0) as client:
            sent = await client.post(
                f"{server}/approvals", json={"run": run, "sheets": sheets, "reference": idempotency_key}
            )
            sent.raise_for_status()
            return sent.json()  # type: ignore[no-any-return]

    def differences(day: str, statement: str, orders: str) -> Any:
        return step["match_orders"](
            statement=step["load_statement"](path=statement), orders=step["load_orders"](path=orders), day=day
        )

    def sheet(run: str, difference: Any) -> dict[str, Any]:
        return {"run": run, "difference": difference, "requested_at": datetime.now(UTC).isoformat()}

    @app.task
    def reconcile(run: str, statement: str, orders: str) -> str:
        """One step after the other, in a thread."""
        sheets = [step["create_adjustment"](**sheet(run, each))["id"] for each in differences(DAY, statement, orders)]
        approval = step["submit_approval"](run=run, sheets=sheets)["id"]
        step["notify"](run=run, text=f"{len(sheets)} sheets wait for approval {approval}")
        return step["close_run"](run=run, approval=approval)["id"]  # type: ignore[no-any-return]

    @app.task
    def reconcile_branches(run: str, statement: str, orders: str) -> str:
        """The sheets side by side, and a pause before the run is closed."""
        made = app.map(lambda each: step["create_adjustment"](**sheet(run, each)), differences(DAY, statement, orders))
        approval = step["submit_approval"](run=run, sheets=[each["id"] for each in made])["id"]
        app.sleep("PT1S")
        step["notify"](run=run, text=f"{len(made)} sheets wait for approval {approval}")
        return step["close_run"](run=run, approval=approval)["id"]  # type: ignore[no-any-return]

    @app.task
    async def reconcile_async(run: str, statement: str, orders: str) -> str:
        """On the event loop, beside the other tasks of its worker."""
        entries = await step["load_statement"].acall(path=statement)
        found = await step["match_orders"].acall(
            statement=entries, orders=await step["load_orders"].acall(path=orders), day=DAY
        )
        sheets = [(await step["create_adjustment"].acall(**sheet(run, each)))["id"] for each in found]
        approval = (await submit_async(run=run, sheets=sheets))["id"]
        await step["notify"].acall(run=run, text=f"{len(sheets)} sheets wait for approval {approval}")
        return (await step["close_run"].acall(run=run, approval=approval))["id"]  # type: ignore[no-any-return]

    return app


TASKS = ("reconcile", "reconcile_branches", "reconcile_async")

if "STORM_BOUNDS" in os.environ:
    app = build(None, os.environ["STORM_SERVER"], read(os.environ["STORM_BOUNDS"]))
