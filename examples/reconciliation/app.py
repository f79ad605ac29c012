"""The reconciliation as a durable task: the step table, and seven steps in plain Python.

    DOUBTLESS_STORE=sqlite:///recon.db RECON_SERVER=http://127.0.0.1:8123 \\
        doubtless steps examples.reconciliation.app:app

The accident to keep in mind: the approval's request times out, although it landed. Whoever sends it again has
two approvals. Here the step is `uncertain` instead, the other side is asked, and the task goes on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from doubtless import Doubtless, Task

from .actions import Actions


class Recon(NamedTuple):
    """The app and its one task."""

    app: Doubtless
    reconcile: Task[..., dict[str, Any]]


def step_table(do: Actions) -> dict[str, dict[str, Any]]:
    """What may be done, and how safe it is to do it again. The last two are there to take the writes back."""
    asked = {"attempts": 3, "timeout": "PT10S", "single_request": True}
    # The office's search is up to date after a minute at most; two minutes after the last possible send, two
    # empty searches are proof that nothing arrived, and the same request is sent again.
    looked_for = {**asked, "absent_after": "PT2M", "on_absent": "retry", "compensate_deadline": "PT10M"}
    return {
        "load_statement": {"effect": "read", "call": do.load_statement},
        "load_orders": {"effect": "read", "call": do.load_orders},
        "match_orders": {"effect": "read", "call": do.match_orders},
        "create_adjustment": {
            "effect": "non_idem_write",
            "call": do.create_adjustment,
            "query": do.find_adjustment,
            "compensate": "withdraw_adjustment",
            "volatile": ("requested_at",),
            **looked_for,
        },
        "submit_approval": {
            "effect": "non_idem_write",
            "call": do.submit_approval,
            "query": do.find_approval,
            "compensate": "withdraw_approval",
            **looked_for,
        },
        # Nobody can ask this chat. If the reply is lost, a person has to look.
        "notify": {"effect": "non_idem_write", "call": do.notify, **asked},
        "close_run": {"effect": "idem_write", "call": do.close_run, "key_window": "PT24H", **asked},
        "withdraw_adjustment": {
            "effect": "idem_write",
            "call": do.withdraw_adjustment,
            "idempotent_by": "the sheet's id: a sheet is withdrawn or not",
            **asked,
        },
        "withdraw_approval": {
            "effect": "idem_write",
            "call": do.withdraw_approval,
            "idempotent_by": "the approval's id: an approval is withdrawn or not",
            **asked,
        },
    }


def build(store_url: str | None = None, server_url: str | None = None, **options: Any) -> Recon:
    """Return the app and its task. Without arguments: $DOUBTLESS_STORE and $RECON_SERVER, read when they are needed.

    `options` are those of `Doubtless`: a test gives it a clock to turn.
    """
    app = Doubtless(store_url, **options)
    app.add_steps(step_table(Actions(server_url)))
    step = app.steps

    @app.task
    def reconcile(day: str, statement: str, orders: str) -> dict[str, Any]:
        """Compare `statement` with `orders` as of `day`; the run at the other side bears the day's name."""
        differences = step["match_orders"](
            statement=step["load_statement"](path=statement), orders=step["load_orders"](path=orders), day=day
        )
        sheets = [
            step["create_adjustment"](run=day, difference=difference, requested_at=datetime.now(UTC).isoformat())
            for difference in differences
        ]
        approval = ""
        if sheets:
            approval = step["submit_approval"](run=day, sheets=[sheet["id"] for sheet in sheets])["id"]
            step["notify"](run=day, text=f"{len(sheets)} adjustment sheets wait for approval {approval}")
        closing = step["close_run"](run=day, approval=approval)
        return {"sheets": [sheet["id"] for sheet in sheets], "approval": approval, "closing": closing["id"]}

    return Recon(app, reconcile)


app, reconcile = build()
