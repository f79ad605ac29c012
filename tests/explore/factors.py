"""The factors of the exploration, and a slice for every pair of them that no larger slice has.

Two faults that are harmless alone may not be together: every pair is explored, whatever else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from .deploys import DEPLOYED, DEPLOYED_WINDOW
from .world import S, Slice, Step, policy

FACTORS: dict[str, Callable[[Slice], bool]] = {
    "two writes": lambda s: sum(step.undoes is None for step in s.steps) > 1,
    "two owners": lambda s: s.may.get("owners", 1) > 1,
    "two crashes": lambda s: s.may.get("crash", 0) > 1,
    "late landing": lambda s: "late" in s.may,
    "lost reply": lambda s: "lost" in s.may,
    "lagging look-back": lambda s: "lag" in s.may and any(step.policy.has_query for step in s.steps),
    "stopped and woken owner": lambda s: "stopped" in s.may,
    "overrun thread": lambda s: "overrun" in s.may,
    "answer of a person": lambda s: "answers" in s.may,
    "deadline": lambda s: any(step.within_us is not None for step in s.steps),
    "key window": lambda s: any(step.policy.key_window_us is not None for step in s.steps),
    "refusal": lambda s: "rejected" in s.may and any(step.policy.retry_rejected for step in s.steps),
    "deploy": lambda s: any(step.later is not None for step in s.steps),
    "set clock": lambda s: "jump" in s.may,
    "restored backup": lambda s: "restored" in s.may,
}
"""Each factor, and whether a slice has it."""

MAY: dict[str, dict[str, int]] = {
    "two owners": {"owners": 2, "crash": 1},
    "two crashes": {"owners": 3, "crash": 2},
    "late landing": {"late": 1, "lost": 1},
    "lost reply": {"lost": 1},
    "lagging look-back": {"lag": 1, "lost": 1},
    "stopped and woken owner": {"owners": 2, "stopped": 1, "pause": 1},
    "overrun thread": {"overrun": 1},
    "answer of a person": {"answers": 1, "several": 1, "lost": 1},
    "refusal": {"rejected": 1},
    "deploy": {"owners": 2, "crash": 1},
    "set clock": {"jump": 1, "lost": 1},
    "restored backup": {"restored": 1, "owners": 2, "lost": 1},
}
"""How often the world may do what, for a factor to show itself."""

QUERIED = policy(has_query=True, absent_after_us=4 * S, on_absent="retry", attempts=2)
WINDOWED = policy("idem_write", attempts=2, key_window_us=14 * S, has_query=True, absent_after_us=4 * S, on_absent="retry")


def pairs_of(explored: Slice) -> set[tuple[str, str]]:
    """The pairs of factors that a slice has."""
    return set(combinations([name for name, has in FACTORS.items() if has(explored)], 2))


def for_pair(*pair: str) -> Slice:
    """A small slice with these two factors: with the least of everything that shows them."""
    windowed, deployed = "key window" in pair, "deploy" in pair
    first = (DEPLOYED_WINDOW if windowed else DEPLOYED) if deployed else Step("1", WINDOWED if windowed else QUERIED)
    if "refusal" in pair:
        first = first._replace(policy=first.policy._replace(retry_rejected=True))
    steps = [first]
    if "two writes" in pair:
        steps.append(Step("2", QUERIED._replace(attempts=1)))
    if "deadline" in pair:
        steps.append(Step("~1", QUERIED, undoes=0, within_us=5 * S))
    may = {"looks": 3, "ticks": 5}
    for factor in pair:
        for fault, count in MAY.get(factor, {}).items():
            may[fault] = max(count, may.get(fault, 0))
    if not may.keys() & {"lost", "crash", "overrun", "rejected"}:
        may["lost"] = 1
    words = {word: word.replace(" ", "-") for word in pair}
    return Slice("pair-" + "+".join(words.values()), " and ".join(pair), tuple(steps), may)


def missing_pairs(slices: Sequence[Slice]) -> list[Slice]:
    """Slices for the pairs of factors that none of these has."""
    known = set().union(*(pairs_of(each) for each in slices))
    return [for_pair(*pair) for pair in combinations(FACTORS, 2) if pair not in known]
