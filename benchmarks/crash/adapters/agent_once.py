"""agent-once: its README, "Quickstart", "Verify" (`stale_after` covers a process that died mid-call)."""

from once import NOT_HAPPENED, Once

SAYS = {"EffectPending": "busy", "EffectUnknown": "refuses", "EffectFailed": "failed"}


def run(world):
    once = Once(f"{world.folder}/once.db", stale_after=world.lease)

    def verify(key, args):
        return world.find() or NOT_HAPPENED

    @once.tool(name="pay", verify=verify if world.look else None)
    def pay(reference: str, idempotency_key: str | None = None) -> dict:
        return world.pay(idempotency_key)

    with once.scope(world.task):
        paid = pay(world.task)
    world.after()
    return paid
