"""Business keys: one effect for one name of it, whoever asks (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubtless import Doubtless, Refused
from doubtless.testing import CountingWorld, Harness, harness


class Refunds:
    """An app whose refunds have a business key, and the other side, which has no keys at all."""

    def __init__(self, **options: Any) -> None:
        self.world = CountingWorld()
        self.app = app = Doubtless()

        @app.step(effect="non_idem_write", once="refund:{order}:{line}", **options)
        def refund(order: str, line: int, amount: int = 5) -> dict[str, Any]:
            return self.world.do("refund", order=order, line=line, amount=amount)

        @app.step(effect="non_idem_write", once="refund:{order}:{line}")
        def credit(order: str, line: int, amount: int = 5) -> dict[str, Any]:
            return self.world.do("credit", order=order, line=line, amount=amount)

        @app.task
        def one(order: str, line: int, amount: int = 5) -> dict[str, Any]:
            return refund(order=order, line=line, amount=amount)

        @app.task
        def other(order: str, line: int, amount: int = 5) -> dict[str, Any]:
            return credit(order=order, line=line, amount=amount)

        @app.task
        def both(order: str) -> list[Any]:
            return [refund(order=order, line=1), refund(order=order, line=1)]

        @app.task
        def careful(order: str, line: int, amount: int) -> list[Any]:
            try:
                return [refund(order=order, line=line, amount=amount)]
            except Refused as refused:
                return ["refused", refused.holder, refused.text_for_model]

        self.refund, self.credit, self.one, self.other, self.both, self.careful = refund, credit, one, other, both, careful


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[tuple[Refunds, Harness]]:
    refunds = Refunds()
    with harness(refunds.app, tmp_path) as h:
        yield refunds, h
        assert refunds.app.verify() == []


def test_the_same_step_and_params_give_the_output_of_the_task_that_did_it(ground: tuple[Refunds, Harness]) -> None:
    refunds, h = ground
    first = h.run(refunds.one, "a", order="o1", line=1)
    assert h.run(refunds.one, "b", order="o1", line=1) == first
    assert refunds.world.count() == 1
    (step,) = refunds.app.show("b").steps
    assert (step.status, step.effect, step.attempts, step.keys) == ("done", "non_idem_write", (), ())
    assert "task a" in str(step.settled_by) and "task a" in step.story[-1].what
    assert refunds.app.store.rows("b", path="1")[-1].details == {"from": "a", "path": "1", "key": "refund:o1:1"}


def test_two_steps_of_one_task_with_one_key_have_one_effect(ground: tuple[Refunds, Harness]) -> None:
    refunds, h = ground
    first, second = h.run(refunds.both, "a", order="o1")
    assert first == second
    assert refunds.world.count() == 1


def test_a_second_partial_refund_with_its_own_template_value_passes(ground: tuple[Refunds, Harness]) -> None:
    refunds, h = ground
    assert h.run(refunds.one, "a", order="o1", line=1)["id"] == "refund-1"
    assert h.run(refunds.one, "b", order="o1", line=2)["id"] == "refund-2"
    assert refunds.world.count() == 2


def test_other_params_under_a_held_key_are_refused_before_anything_is_sent(ground: tuple[Refunds, Harness]) -> None:
    refunds, h = ground
    h.run(refunds.one, "a", order="o1", line=1)
    said = h.run(refunds.careful, "b", order="o1", line=1, amount=7)
    assert said[:2] == ["refused", {"once": "refund:o1:1", "task": "a", "path": "1", "step": "refund", "status": "done"}]
    assert "refund at 1 of task a" in said[2]
    assert [(s.status, s.attempts) for s in refunds.app.show("b").steps] == [("not_applied", ())]
    assert refunds.world.count() == 1
