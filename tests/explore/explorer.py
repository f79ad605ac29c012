"""Breadth first over every state of a slice; the first violation is the shortest story."""

from __future__ import annotations

import marshal
import time
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from .moves import World
from .owner import Hand
from .world import ASSUMPTIONS, FAULTS, S, Slice, State, Violation, canonical, start


class Told(NamedTuple):
    """One line of a story: when it happened (seconds since its beginning), and what."""

    at: float
    words: str


class Found(NamedTuple):
    """What an exploration came to. `violation` None: all states were seen, and every invariant held in each."""

    name: str
    states: int
    moves: int
    deepest: int
    seconds: float
    violation: Violation | None
    story: tuple[Told, ...]
    assumption: tuple[str, ...]


def digest(explored: Slice, state: State) -> bytes:
    """16 bytes for a canonical state: two states are one when their futures are."""
    return blake2b(marshal.dumps(canonical(explored, state), 2), digest_size=16).digest()


def explore(
    explored: Slice, hand: type[Hand] = Hand, world: Callable[[Slice, type[Hand]], World] = World, limit: int = 0
) -> Found:
    """Visit every state that a slice can reach. Stops at the first violation; `limit`: gives up beyond so many states."""
    began, moves, deepest = time.perf_counter(), 0, 0
    here = world(explored, hand)
    first = start(explored)
    root = digest(explored, first)
    came: dict[bytes, tuple[bytes | None, str, int]] = {root: (None, "", first.now)}
    queue = deque([(root, first, 0)])
    while queue:
        key, state, depth = queue.popleft()
        deepest = max(deepest, depth)
        for move in here.moves(state):
            moves += 1
            if move.violation is not None:
                story = (*_story(came, key, first.now), Told((state.now - first.now) / S, move.words))
                return Found(
                    explored.name, len(came), moves, depth + 1, time.perf_counter() - began, move.violation, story,
                    tuple(sorted(explored.broken)),
                )  # fmt: skip
            reached = digest(explored, move.state)
            if reached not in came:
                came[reached] = (key, move.words, state.now)
                queue.append((reached, move.state, depth + 1))
        if limit and len(came) > limit:
            raise RuntimeError(f"{explored.name}: more than {limit} states")
    return Found(explored.name, len(came), moves, deepest, time.perf_counter() - began, None, (), tuple(sorted(explored.broken)))


def _story(came: dict[bytes, tuple[bytes | None, str, int]], key: bytes, zero: int) -> list[Told]:
    told: list[Told] = []
    at: bytes | None = key
    while at is not None:
        parent, words, when = came[at]
        if words:
            told.append(Told((when - zero) / S, words))
        at = parent
    return told[::-1]


def in_words(found: Found) -> str:
    """A found violation as a story, with the invariant and the assumption that was taken away."""
    assert found.violation is not None
    lines = [f"{found.name}: {found.violation.invariant} does not hold: {found.violation.what}"]
    lines += [f"  the assumption that fails: {name}: {ASSUMPTIONS[name]}" for name in found.assumption]
    lines += [f"  {told.at:6.1f} s  {told.words}" for told in found.story]
    return "\n".join(lines)


def bounds(explored: Slice) -> str:
    """The bounds of a slice, printed with its count: exhaustive within them, and only there."""
    writes = ", ".join(f"{s.path} {s.policy.effect}" for s in explored.steps)
    may = ", ".join(f"{count} {FAULTS[fault]}" for fault, count in explored.may.items())
    return f"{writes}; at most {may}"
