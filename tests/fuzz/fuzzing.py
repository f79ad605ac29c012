"""How much is fuzzed, and how: three profiles; and the corpus, which every one of them plays first.

`FUZZ` is ``test`` (unless said; what `make test` does: a few examples, the same each time), ``prove`` (`make prove`: more of
them, the same each time too) or ``long`` (`make fuzz`: others in each round; what Hypothesis has found is kept in
``.hypothesis`` and tried first in the next round).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

F = TypeVar("F", bound=Callable[..., Any])

CORPUS = Path(__file__).with_name("corpus")
PROFILE = os.environ.get("FUZZ", "test")
TIMES = {"test": 1, "prove": 8, "long": int(os.environ.get("FUZZ_TIMES", "25"))}[PROFILE]
"""How many times the examples of `make test`."""


PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if PROFILE == "long" else [])]
"""Shrinking takes long; the same failure is found again in the long profile, which shrinks."""


def examples(count: int, *, steps: int = 30) -> settings:
    """Settings for so many examples in `make test`, and more elsewhere; of a machine, of so many steps each."""
    return settings(
        max_examples=count * TIMES,
        stateful_step_count=steps if PROFILE == "test" else 2 * steps,
        deadline=None,
        derandomize=PROFILE != "long",
        database=None if PROFILE != "long" else settings.default.database,  # type: ignore[union-attr]
        phases=PHASES,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        print_blob=True,
    )


def corpus(name: str) -> list[Any]:
    """The kept examples of one kind: one JSON value a line, each with what it once showed."""
    lines = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def replay(name: str) -> Callable[[F], F]:
    """Play each kept example of a kind: the test gets it as `kept`."""
    kept = corpus(name)
    return pytest.mark.parametrize("kept", kept, ids=[f"{name}-{number}" for number in range(1, len(kept) + 1)])
