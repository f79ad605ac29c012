"""Reconcile two files of your own.

    python -m examples.reconciliation --statement bank.csv --orders ledger.csv --day 2026-11-28

needs $DOUBTLESS_STORE (or --store) and the other side's address in $RECON_SERVER (or --server). A bad row is
named by file, line and column, and nothing is started. The same command again starts nothing twice: it resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from doubtless.errors import DoubtlessError

from . import load


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description="reconcile a bank statement with an order ledger"
    )
    parser.add_argument("--statement", type=Path, required=True)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--day", type=date.fromisoformat, required=True, help="the day as of which to compare: 2026-11-28")
    parser.add_argument("--task", default=None, help="the task's id (default: recon-DAY)")
    parser.add_argument("--agent", action="store_true", help="let a (scripted) model choose the steps; needs pydantic")
    parser.add_argument("--store", default=None, help="default: $DOUBTLESS_STORE")
    parser.add_argument("--server", default=None, help="default: $RECON_SERVER")
    chosen = parser.parse_args(argv)
    try:
        load.check(chosen.statement, chosen.orders)
    except load.BadInput as bad:
        print(f"{bad}\nnothing was started", file=sys.stderr)
        return 2
    # After the check: bad files are told before anything of the store is looked at.
    from .app import build

    recon = build(chosen.store, chosen.server)
    task_id = chosen.task or f"recon-{chosen.day}"
    goal = {"day": str(chosen.day), "statement": str(chosen.statement.resolve()), "orders": str(chosen.orders.resolve())}
    try:
        if chosen.agent:
            from .agent import reconciler

            output = recon.app.run(reconciler(recon), task_id, goal=goal)
        else:
            output = recon.app.run(recon.reconcile, task_id, **goal)
    except DoubtlessError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        recon.app.close()
    print(json.dumps(output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
