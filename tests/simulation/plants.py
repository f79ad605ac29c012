"""Planted bugs: each takes one guard out of the product, in a process of its own; seeds have to find it.

The product is never changed: what is patched lives and ends in the child process that plays with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Plant(NamedTuple):
    """A planted bug: the guard that is gone, and what takes it away."""

    guard: str
    patch: Callable[[], None]


PLANTS: dict[str, Plant] = {}
