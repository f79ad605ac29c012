"""Gravtory on SQLite: its README, "Quick Start"."""

import asyncio

from gravtory import Gravtory, step


def run(world):
    return asyncio.run(order(world))


async def order(world):
    grav = Gravtory(f"sqlite:///{world.folder}/gravtory.db", node_id=world.owner)

    @grav.workflow(id="order-{reference}")
    class Order:
        @step(1)
        async def pay(self, reference: str) -> dict:
            return await asyncio.to_thread(world.pay, f"pay:{reference}")

        @step(2, depends_on=1)
        async def after(self, reference: str) -> dict:
            return await asyncio.to_thread(world.after)

    await grav.start()
    ended = await grav.run(Order, reference=world.task)
    return {"completed": "done", "failed": "failed"}.get(ended.status.value, "waiting")
