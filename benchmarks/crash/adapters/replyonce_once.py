"""replyonce on PostgreSQL: its README, "30-second quickstart" and "Stores"; `reconcile` as in its `replyonce demo`."""

import asyncio

from psycopg_pool import AsyncConnectionPool
from replyonce import Key, ReplyOnce
from replyonce.stores.postgres import PostgresStore


def run(world):
    return asyncio.run(order(world))


async def order(world):
    async def reconcile(entry):
        found = await asyncio.to_thread(world.find)
        return {"outcome": "committed", "result": found} if found else {"outcome": "not_applied"}

    async def pay(ctx):
        return await asyncio.to_thread(world.pay, ctx.idempotency_key)

    async with AsyncConnectionPool(world.postgres, min_size=1, open=False) as pool:
        store = PostgresStore(pool, table=world.table)
        await store.migrate()
        once = ReplyOnce(store, pending_ttl_ms=int(world.lease * 1000), reconcile=reconcile if world.look else None)
        result = await once.once(Key(world.task, "pay", {"order": world.task}), pay)
        if result.ok:
            await asyncio.to_thread(world.after)
    says = {"executed": "done", "replayed": "done", "in_flight": "busy", "ambiguous": "refuses", "refused": "refuses"}
    return says.get(result.status, "failed")
