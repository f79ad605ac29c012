"""How a pass over a task's code ended, and what counts of what it raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .drift import place_order
from .errors import Abort, Parking, StepFailed


class Ending(NamedTuple):
    """How a pass ended: with a value, or with what was raised."""

    value: Any = None
    error: BaseException | None = None


def unwrapped(error: BaseException) -> BaseException:
    """What an `asyncio.TaskGroup` raised, as what it holds: of steps that failed, the first in branch order.

    A group that holds something else too (an exception of the code, Ctrl-C) stays as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    from asyncio import CancelledError

    leaves = list(_leaves(error))
    if not all(isinstance(leaf, StepFailed | Abort | Parking | CancelledError) for leaf in leaves):
        return error
    failed = [leaf for leaf in leaves if isinstance(leaf, StepFailed)]
    if failed:
        return min(failed, key=lambda one: place_order(one.path))
    order = (Abort, Parking, CancelledError)
    return next(leaf for kind in order for leaf in leaves if isinstance(leaf, kind))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
