"""Refund lines of one order.

    python -m examples.refund --order SO-1001 --customer ana@example.com 1=2500 2=1200

needs $DOUBTLESS_STORE (or --store) and the gateway's address in $REFUND_GATEWAY (or --gateway). The same command
again refunds nothing twice: it resumes. `python -m examples.refund.run` shows every trouble.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from doubtless import DoubtlessError

from .app import Claim, build


def claim(text: str) -> Claim:
    """Read ``1=2500``: 25.00 of line 1."""
    line, _, amount = text.partition("=")
    return {"line": int(line), "amount": int(amount)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="refund lines of one order")
    parser.add_argument("claims", nargs="+", type=claim, metavar="LINE=CENTS")
    parser.add_argument("--order", required=True, help="the merchant's own id of the order")
    parser.add_argument("--customer", required=True, help="who is told")
    parser.add_argument("--task", default=None, help="the task's id (default: refund-ORDER)")
    parser.add_argument("--agent", action="store_true", help="let a (scripted) model choose the steps; needs pydantic")
    parser.add_argument("--store", default=None, help="default: $DOUBTLESS_STORE")
    parser.add_argument("--gateway", default=None, help="default: $REFUND_GATEWAY")
    chosen = parser.parse_args(argv)
    refunds = build(chosen.store, chosen.gateway)
    task_id = chosen.task or f"refund-{chosen.order}"
    goal = {"order_id": chosen.order, "customer": chosen.customer, "claims": chosen.claims}
    try:
        if chosen.agent:
            from .agent import refunder

            output = refunds.app.run(refunder(refunds), task_id, goal=goal)
        else:
            output = refunds.app.run(refunds.refund_order, task_id, **goal)
    except DoubtlessError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        refunds.app.close()
    print(json.dumps(output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
