"""The two rows of a write are made without `events.draft`, which costs more than it does: they are what it would make."""

from __future__ import annotations

from typing import Any

import pytest

from doubtless.events import Effect, Instant, Kind, StepStatus, done_row, draft, intent_row

NOW, EPOCH = Instant(1_700_000_000_000_000, 42), 7
COMMON: dict[str, Any] = {"step_seq": 3, "path": "3", "step_name": "pay", "epoch": EPOCH}
ERROR = '{"kind":"unknown"}'


@pytest.mark.parametrize("effect", [Effect.IDEM_WRITE, Effect.NON_IDEM_WRITE])
@pytest.mark.parametrize("data", [b"p" * 32, '{"once":"a"}'])
def test_an_intent_is_what_a_draft_makes(effect: Effect, data: str | bytes) -> None:
    row = intent_row("t", NOW, 3, "3", "pay", effect, b"k" * 32, b"i" * 32, "inline:{}", data, EPOCH, ERROR)
    assert row == draft(
        "t", Kind.STEP_INTENDED, NOW, status=StepStatus.UNCERTAIN, attempt=1, effect_class=effect, idempotency_key=b"k" * 32,
        input_hash=b"i" * 32, input_ref="inline:{}", data=data, started_at=NOW.wall, error=ERROR, **COMMON,
    )  # fmt: skip


@pytest.mark.parametrize("since", [None, NOW.wall - 5])
def test_the_row_that_settles_a_step_is_what_a_draft_makes(since: int | None) -> None:
    assert done_row("t", NOW, 3, "3", "pay", 2, b"o" * 32, ERROR, EPOCH, since) == draft(
        "t", Kind.STEP_SETTLED, NOW, status=StepStatus.DONE, attempt=2, effect_class=None if since is None else Effect.READ,
        output_ref=b"o" * 32, error=ERROR, started_at=since, finished_at=NOW.wall, **COMMON,
    )  # fmt: skip
