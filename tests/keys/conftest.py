"""Business keys through the public API, on a real SQLite file; at the end the store has to be sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keys_ground import Refunds, Start

from doubtless.testing import Harness, harness


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the ground with other options of its step, or with a clock that is turned by hand."""
    made: list[tuple[Refunds, Harness]] = []

    def begin(*, auto_advance: bool = True, **options: Any) -> tuple[Refunds, Harness]:
        refunds = Refunds(**options)
        made.append((refunds, harness(refunds.app, tmp_path, auto_advance=auto_advance)))
        return made[-1]

    yield begin
    for refunds, h in made:
        problems = refunds.app.verify()
        h.close()
        assert problems == []
