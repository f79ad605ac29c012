"""airlock-sdk: its README, "Quickstart" and "Exactly-once, or honest about it"; stale rows are settled inline."""

from datetime import timedelta

import airlock
from airlock import Decision, Effect, Policy, Reversibility, Rule, Verification

SAYS = {"CommitFailed": "refuses", "VerificationUnknown": "refuses", "CommitWaitTimeout": "busy", "ExecuteTimeout": "waiting"}


def run(world):
    def verify(**_):
        found = world.find()
        return (Verification.PRESENT, found) if found else (Verification.ABSENT, None)

    effect = Effect(verify=verify) if world.look else Effect(key_param="idempotency_key" if world.keys else None)

    @airlock.guard("payment.pay", reversibility=Reversibility.IRREVERSIBLE, effect=effect)
    def pay(reference, *, idempotency_key=None):
        return world.pay(idempotency_key)

    airlock.init(
        store=f"sqlite:///{world.folder}/airlock.db",
        policy=Policy(rules=[Rule(match="payment.*", decision=Decision.AUTO)]),
        reconcile_after=timedelta(seconds=world.lease),
        execute_timeout=timedelta(seconds=world.lease - 0.5),
    )
    paid = pay(world.task)
    world.after()
    return {"paid": paid}
