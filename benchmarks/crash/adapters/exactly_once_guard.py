"""The package `exactly_once`: its README, "Quickstart" and the recipes "Crash recovery" and "Concurrent workers"."""

from exactly_once import ProbeResult, Store, Verdict, check_then_decide, current_key, once

SAYS = {"QuarantinedError": "refuses"}


def run(world):
    store = Store.sqlite(f"{world.folder}/effects.db")

    def prober(key):
        found = world.find()
        return ProbeResult(Verdict.COMMITTED, found) if found else ProbeResult(Verdict.NOT_COMMITTED)

    options = {"policy": check_then_decide(prober), "lease_ttl": world.lease} if world.look else {}

    @once(store, key=lambda reference: f"pay:{reference}", **options)
    def pay(reference):
        return world.pay(current_key())

    paid = pay(world.task)
    world.after()
    return paid
