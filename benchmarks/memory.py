"""How much memory a process needs at most: one task of many steps, and many tasks of few, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from typing import Any

from ground import DIFFERENCE, Ground, create_adjustment, unsynced
from measuring import held
from sections import table

SMALL, LARGE = 10_000, 100_000
LIMIT = 1.1
SHAPES = {
    "one": "one task of so many write steps",
    "many": "tasks of 100 write steps, one after the other",
    "beside": "tasks of 100 write steps, 50 at the same time",
    "resume": "a resume of a task with so many finished write steps",
}


def measured(ground: Ground) -> str:
    """The peak at a tenth of the steps, and at all of them."""
    small, large = (1_000, 10_000) if ground.quick else (SMALL, LARGE)
    rows = []
    for shape, what in SHAPES.items():
        first, second = (_peak(ground, shape, steps) for steps in (small, large))
        ratio = second / first
        per_step = (second - first) / (large - small) * 1024
        limit = held(ratio, LIMIT) if shape != "resume" else ""
        rows.append([what, f"{first / 1024:,.1f}", f"{second / 1024:,.1f}", f"{per_step:,.0f}", f"{ratio:.2f}", limit])
    head = ["SQLite, peak of the process in MiB", f"{small:,} steps", f"{large:,} steps", "bytes a step more", "ratio", "limit"]
    return table(head, rows)


def _peak(ground: Ground, shape: str, steps: int) -> int:
    """KiB."""
    url = ground.url("sqlite")
    spec = {"url": url, "shape": shape, "steps": steps}
    if shape == "resume":  # made by another process
        _child({**spec, "shape": "stand"})
    return _child(spec)


def _child(spec: dict[str, Any]) -> int:
    done = subprocess.run([sys.executable, __file__, json.dumps(spec)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return int(done.stdout.split()[-1])


def main() -> None:
    """One of the processes: prints its peak in KiB."""
    import doubtless

    spec = json.loads(sys.argv[1])
    steps, shape = spec["steps"], spec["shape"]
    app = doubtless.Doubtless(spec["url"])
    app.store.info()
    unsynced(app)
    write = app.step(effect="non_idem_write")(create_adjustment)
    notify = app.step(effect="non_idem_write", name="notify")(notified)

    @app.step(effect="non_idem_write", name="create_async")
    async def create_async(difference: dict[str, Any], amount: int) -> dict[str, Any]:
        return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}

    @app.task
    def many(steps: int, stand: bool = False) -> None:
        for i in range(steps):
            write(difference=DIFFERENCE, amount=i)
        if stand:
            notify(text="done")

    @app.task
    async def beside(steps: int) -> None:
        for i in range(steps):
            await create_async(difference=DIFFERENCE, amount=i)

    async def all_of() -> None:
        names = iter(range(steps // 100))

        async def some() -> None:
            for n in names:
                await app.arun(beside, f"beside-{n}", steps=100)

        await asyncio.gather(*[some() for _ in range(50)])

    if shape == "one":
        app.run(many, "one", steps=steps)
    elif shape == "many":
        for n in range(steps // 100):
            app.run(many, f"many-{n}", steps=100)
    elif shape == "beside":
        asyncio.run(all_of())
    else:
        if shape == "stand":
            app.freeze("notify", why="the task stands here")
        try:
            app.run(many, "stand", steps=steps, stand=True)
        except doubtless.TaskFrozen:
            pass
    print(peak())


def peak() -> int:
    """This process's largest resident set so far, in KiB; on Linux without what it was before it became this program."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def notified(text: str) -> dict[str, Any]:
    """The write before which a task stands."""
    return {"sent": text}


if __name__ == "__main__":
    main()
