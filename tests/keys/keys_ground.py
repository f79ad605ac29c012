"""What the tests of business keys share: an app whose refunds have a key, and another side that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doubtless import Doubtless, NotSent, Refused, Rejected, injected
from doubtless.testing import CountingWorld, Harness


class Refunds:
    """Tasks that refund, in several ways, under one key; `options` are of the step ``refund``."""

    def __init__(self, **options: Any) -> None:
        self.world = world = CountingWorld()
        self.app = app = Doubtless()
        self.inside: Callable[[], None] = lambda: None
        self.seen: list[Any] = []

        @app.step(**{"effect": "non_idem_write", "once": "refund:{order}:{line}", **options})
        def refund(order: str, line: int, amount: int = 5, idempotency_key: str = injected()) -> dict[str, Any]:
            self.inside()
            return world.do("refund", order=order, line=line, amount=amount, key=idempotency_key)

        @app.step(effect="non_idem_write", once="refund:{order}:{line}")
        def credit(order: str, line: int, amount: int = 5) -> dict[str, Any]:
            return world.do("credit", order=order, line=line, amount=amount)

        @app.step(effect="non_idem_write")
        def mail(to: str) -> dict[str, Any]:
            return world.do("mail", to=to)

        @app.task
        def one(order: str = "o1", line: int = 1, amount: int = 5) -> dict[str, Any]:
            return refund(order=order, line=line, amount=amount)

        @app.task
        def other(order: str = "o1", line: int = 1) -> dict[str, Any]:
            return credit(order=order, line=line)

        @app.task
        def both(order: str = "o1") -> list[Any]:
            return [refund(order=order, line=1), refund(order=order, line=1)]

        @app.task
        def careful(order: str = "o1", line: int = 1, amount: int = 7) -> list[Any]:
            try:
                found: Any = refund(order=order, line=line, amount=amount)
            except Refused as refused:
                found = [refused.kind, refused.reason, refused.holder, refused.text_for_model, refused.path]
            self.seen.append(found)
            return [found, mail(to="anna")]

        self.refund, self.credit, self.mail = refund, credit, mail
        self.one, self.other, self.both, self.careful = one, other, both, careful

    @property
    def key(self) -> tuple[str, int, str]:
        """Who has ``refund:o1:1``: the task, its turn, and how it stands."""
        row = self.app.store.key("refund:o1:1")
        assert row is not None
        return (row.task_id, row.turn, row.state)


def refuse() -> None:
    raise Rejected("422")


def offline() -> None:
    raise NotSent("no route")


def lose() -> None:
    raise ConnectionResetError("gone")


Start = Callable[..., tuple[Refunds, Harness]]
"""Starts the ground with other options of the step ``refund`` (the fixture `start`)."""
