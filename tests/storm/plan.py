"""What will go wrong, and when: drawn from a seed before anything runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from .bounds import Bounds

WRITES = ("/adjustments", "/approvals", "/chat/messages", "/runs/{id}/close")
WITHDRAWALS = ("/adjustments/{id}/withdraw", "/approvals/{id}/withdraw")
FROZEN = ("create_adjustment", "notify", "withdraw_adjustment")
CUTS = ("before", "during", "after", "late")
"""Where a query's connection is cut: it never reached the server; the client was gone before the answer; the server had
answered, and the answer was lost; as `before` for the client, and the server gets it when the client has looked for it."""


class Trouble(NamedTuple):
    """One thing that goes wrong. `at`: seconds from the beginning; `who`: the worker, where there is one; `told`: how."""

    at: float
    what: str
    who: int
    told: dict[str, Any]

    def line(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.told.items())
        return f"{self.what} {told}".strip()


def _fault(rng: random.Random, bounds: Bounds) -> dict[str, Any]:
    """Something that the other side does to the next requests of one kind."""
    fault = rng.choice(
        ("lose_reply", "lose_reply", "drop_before", "503_before", "500_after", "refuse_422", "delay", "delay_before", "lose_reply_late")
    )
    path = rng.choice((*WRITES, *WRITES, *WITHDRAWALS))
    told: dict[str, Any] = {"path": path, "fault": fault, "count": rng.randint(1, 2), "after": rng.randint(0, 2)}
    if fault in ("delay", "delay_before"):
        told["delay_s"] = round(rng.uniform(0.3, bounds.landing), 2)
    if fault == "lose_reply_late":
        told |= {"fault": "lose_reply", "delay_s": round(rng.uniform(0.3, bounds.landing), 2)}
    return told


DRAWN: dict[str, tuple[int, Callable[[random.Random, Bounds], dict[str, Any]]]] = {
    "SIGKILL": (8, lambda rng, bounds: {"down": round(rng.uniform(0.0, 1.5), 2)}),
    "SIGSTOP": (12, lambda rng, bounds: {"seconds": round(rng.uniform(*bounds.pause), 2)}),
    "SIGSTOP briefly": (3, lambda rng, bounds: {"seconds": round(rng.uniform(0.2, bounds.lease), 2)}),
    "SIGTERM": (5, lambda rng, bounds: {"down": round(rng.uniform(0.0, 1.0), 2)}),
    "SIGTERM twice": (2, lambda rng, bounds: {"down": round(rng.uniform(0.0, 1.0), 2)}),
    "client SIGKILL": (3, lambda rng, bounds: {"down": round(rng.uniform(0.0, 1.0), 2)}),
    "cut": (10, lambda rng, bounds: {"how": rng.choice(CUTS), "what": rng.choice(("append", "append", "any")), "times": rng.randint(1, 3)}),
    "cut all": (4, lambda rng, bounds: {}),
    "refuse": (3, lambda rng, bounds: {"seconds": round(rng.uniform(0.5, 2.5), 2)}),
    "stall": (5, lambda rng, bounds: {"seconds": round(rng.uniform(bounds.lease, 2 * bounds.lease + 2 * bounds.timeout), 2)}),
    "delay": (5, lambda rng, bounds: {"seconds": round(rng.uniform(1.0, 4.0), 2), "by": round(rng.uniform(0.01, 0.25), 3)}),
    "postmaster kill -9": (2, lambda rng, bounds: {"down": round(rng.uniform(0.0, 2.0), 2)}),
    "PostgreSQL kill -9, all": (2, lambda rng, bounds: {"down": round(rng.uniform(0.0, 2.0), 2)}),
    "backend kill -9": (2, lambda rng, bounds: {}),
    "other side": (10, _fault),
    "cancel": (3, lambda rng, bounds: {"which": round(rng.random(), 3)}),
    "compensate": (2, lambda rng, bounds: {"which": round(rng.random(), 3)}),
    "freeze": (2, lambda rng, bounds: {"step": rng.choice((None, *FROZEN)), "seconds": round(rng.uniform(0.5, 2.5), 2)}),
    "lag": (4, lambda rng, bounds: {"path": rng.choice(WRITES[:2]), "seconds": round(rng.uniform(0.2, bounds.lag), 2)}),
    "hide": (3, lambda rng, bounds: {"path": rng.choice(WRITES[:2]), "count": rng.randint(1, 2)}),
}
"""Every kind of trouble: how often beside the others, and what is drawn for it."""

ALONE = ("postmaster kill -9", "PostgreSQL kill -9, all", "backend kill -9")
"""What PostgreSQL has to come back from: the next one waits for that."""


def plan(seed: int, seconds: float, workers: int, bounds: Bounds) -> list[Trouble]:
    """Every kind at least once, then as they are drawn: two in each second."""
    rng = random.Random(f"storm {seed}")
    kinds = list(DRAWN)
    drawn = kinds + rng.choices(kinds, [weight for weight, _ in DRAWN.values()], k=max(0, round(seconds * 1.5) - len(kinds)))
    drawn += ["other side"] * round(seconds * 0.7)
    rng.shuffle(drawn)
    times = sorted(rng.uniform(0.3, seconds) for _ in drawn)
    return [
        Trouble(round(at, 2), what, rng.randrange(workers), DRAWN[what][1](rng, bounds)) for at, what in zip(times, drawn, strict=True)
    ]


class Accepted(NamedTuple):
    """A task of the storm. `refused`: its closing is refused, so that it is undone; `processed`: somebody has processed its
    approval by then, so that it cannot be."""

    id: str
    task: str
    at: float
    queue: str
    priority: int
    books: str
    refused: bool
    processed: bool


def tasks(seed: int, count: int, seconds: float, names: tuple[str, ...], books: int) -> list[Accepted]:
    """The tasks, and when each is accepted."""
    rng = random.Random(f"tasks {seed}")
    made = []
    for number in range(count):
        refused = number % 6 == 3 or rng.random() < 0.05
        made.append(
            Accepted(
                f"recon-{number:03d}", names[number % len(names)], round(rng.uniform(0.0, seconds * 0.85), 2),
                rng.choice(("default", "default", "month-end")), rng.choice((0, 0, 0, -5, 5)), f"books-{rng.randrange(books)}",
                refused, refused and number % 12 == 3,
            )
        )  # fmt: skip
    return sorted(made, key=lambda one: one.at)
