"""An agent is killed at every write point and resumed: no choice that is recorded is asked for again, each effect once."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

HERE = Path(__file__).parent


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.prove)])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_killed_at_any_write_point_the_model_is_not_asked_again_and_whatever_it_words_now_each_effect_happens_once(
    kind: str, stride: int, tmp_path: Path
) -> None:
    """In the short form at every other point, beginning at the first or the second by chance."""
    first = 1 + random.SystemRandom().randrange(stride)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *(part for part in sys.path if part)])}
    done = nursery.run(
        [sys.executable, str(HERE / "agents_child.py"), kind, str(first), str(stride)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 20 // stride, "each of its commits has a point before and one after it"
    for number, result in zip(range(first, 1000, stride), found, strict=False):
        assert result["effects"] == [["pay", "o1"], ["pay", "o2"], ["send", "anna"]], number
        assert result["output"] == [
            ["call-1", "done"], ["a", "done"], ["b", "done"], ["refused", "refused"], ["c", "done"]
        ], number  # fmt: skip
        assert result["asked_after"] == list(range(result["recorded"], 4)), number
        assert (result["choices"], result["problems"]) == (4, 0), number
    assert {result["recorded"] for result in found} == {0, 1, 2, 3, 4}, "it was killed between all of its choices"
