"""Parallel groups: branches with places of their own, run side by side; the group is only a barrier.

A group takes one place; its branch i has the places ``<group>.<i>.1``, ``<group>.<i>.2``, …, whatever the order in which
the branches get on. In a sync task each branch has a thread, in an async task an asyncio.Task.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import host
from .calling import outside
from .calls import current
from .endings import Ending
from .errors import Parking, UsageError
from .passes import Pass, Scope

if TYPE_CHECKING:
    import asyncio

Branch = Callable[[], Any] | Awaitable[Any]
"""What a branch does: a function without arguments; in an async task also a coroutine."""

LOOK = 0.1
"""Seconds after which a group that waits for its branches looks whether its pass was given up."""


def run_group(what: str, branches: Sequence[Branch], limit: int) -> Any:
    """Run the branches, at most `limit` at once, and give their results in their order; in an async task an awaitable.

    Meaning: all branches are waited for; then the first failure in branch order is raised.
    Raises: OutsideTask, UsageError before anything runs.
    """
    scope = current.get()
    if not isinstance(scope, Scope):
        raise outside(what, inside=scope is not None)
    if limit < 1:
        raise UsageError(f"{what}: concurrency is {limit}; it is a number of branches, 1 or more")
    run = scope.run
    if run.loop is None:
        for branch in branches:
            if not callable(branch):
                raise UsageError(
                    f"{what}: {type(branch).__name__} is no function; nothing was written",
                    hint="in a sync task a branch is a function without arguments: lambda: step(…)",
                )
    place = scope.place(what)
    run.enter_group(place)
    scopes = [Scope(run, f"{place}.{number}.") for number in range(1, len(branches) + 1)]
    if run.loop is not None:
        run.undriven[place] = what
        return _together(run, place, scopes, branches, limit)
    with run.under_way(place, limit, len(branches)):
        return _in_threads(run, place, scopes, branches, limit)


def results(run: Pass, place: str, endings: Sequence[Ending | None]) -> list[Any]:
    """The branches' results; or what the group raises: the run's parking, else the first failure in branch order."""
    errors = [ending.error for ending in endings if ending is not None and ending.error is not None]
    if run.asides and run.parked is None and "." not in place:  # all others of the pass have gone as far as they could
        raise run.park_for(run.asides)
    for error in errors:
        if isinstance(error, Parking):
            raise error
    run.check()
    if errors:
        raise errors[0]
    return [ending.value for ending in endings if ending is not None]


# ---------------------------------------------------------------- threads


def _in_threads(run: Pass, place: str, scopes: Sequence[Scope], branches: Sequence[Branch], limit: int) -> list[Any]:
    endings: list[Ending | None] = [None] * len(branches)
    ended = [host.event() for _ in branches]
    turns = iter(range(len(branches)))
    turn = host.lock()

    def work() -> None:
        while True:
            with turn:
                number = next(turns, None)
            if number is None:
                return
            endings[number] = _branch(run, scopes[number], branches[number])
            ended[number].set()

    for number in range(min(limit, len(branches))):
        name = f"doubtless:{run.task_id}:{scopes[number].prefix}"
        context = contextvars.copy_context()
        host.thread(target=context.run, args=(work,), name=name, daemon=True).start()
    for event in ended:
        while not event.wait(LOOK):
            if run.abandoned:  # a call overran and has its outcome: the task goes on by replay, in another thread
                run.check()
    return results(run, place, endings)


def _branch(run: Pass, scope: Scope, branch: Branch) -> Ending:
    token = current.set(scope)
    scope.begin()
    try:
        run.check()
        assert callable(branch)
        return Ending(branch())
    except BaseException as error:  # noqa: BLE001 - a thread's exception would reach nobody
        return Ending(error=error)
    finally:
        current.reset(token)
        run.branch_ended(scope.prefix.rsplit(".", 2)[0])


# ---------------------------------------------------------------- asyncio


async def _together(run: Pass, place: str, scopes: Sequence[Scope], branches: Sequence[Branch], limit: int) -> list[Any]:
    import asyncio

    run.check()
    run.undriven.pop(place, None)  # not before: what begins only after the task's code has ended is never driven
    slots = asyncio.Semaphore(limit)
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(_abranch(run, scope, branch, slots)) for scope, branch in zip(scopes, branches, strict=True)
    ]  # fmt: skip
    if tasks:
        with run.under_way(place, limit, len(tasks)):
            await _all_ended(tasks)
    return results(run, place, [task.result() for task in tasks])


async def _all_ended(tasks: Sequence[asyncio.Task[Ending]]) -> None:
    """Wait for all; when cancelled, cancel them, and still wait: what they have in flight is recorded first."""
    import asyncio

    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in tasks:
                task.cancel()
    if cancelled is not None:
        raise cancelled


async def _abranch(run: Pass, scope: Scope, branch: Branch, slots: asyncio.Semaphore) -> Ending:
    current.set(scope)
    scope.begin()
    try:
        async with slots:
            run.check()
            value = branch() if callable(branch) else branch
            return Ending(await value if isinstance(value, Awaitable) else value)
    except BaseException as error:  # noqa: BLE001 - an asyncio.Task would let some through its event loop
        return Ending(error=error)
    finally:
        run.branch_ended(scope.prefix.rsplit(".", 2)[0])
        if not callable(branch) and hasattr(branch, "close"):
            branch.close()  # of one that never began
