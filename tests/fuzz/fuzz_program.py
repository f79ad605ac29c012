"""A program with a step and a task of every kind, and the other side of it, which counts what really happened."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from doubtless import Abort, Doubtless, Finish, NotSent, Rejected, State, StepCall, Turn, injected
from doubtless.testing import FakeClock

LAG = 20_000_000
"""How long the other side's search misses what it has done, in microseconds, when it lags: less than `absent_after`."""

LONG = "a long text, so that it does not stand in the row itself. " * 8


class Landed(NamedTuple):
    """One effect: what, for whom, under which key, when."""

    name: str
    order: str
    key: str
    at: int


class World:
    """The other side. `goes` says how the next writes go, then all is well: ``lost``, ``vanish``, ``reject``, ``unsent``, ``busy``."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.landed: list[Landed] = []
        self.goes: list[str] = []
        self.lags = False

    def do(self, name: str, order: str, key: str, *, remembers: bool = False) -> dict[str, Any]:
        with self._lock:
            go = self.goes.pop(0) if self.goes else "well"
            if go == "reject":
                raise Rejected("422")
            if go == "unsent":
                raise NotSent()
            if go == "vanish":
                raise ConnectionResetError("the request was lost")
            if not (remembers and any(one.key == key and one.name == name for one in self.landed)):
                self.landed.append(Landed(name, order, key, self._clock.now().wall))
            number = len(self.landed)
        if go == "lost":
            raise ConnectionResetError("the reply was lost")
        if go == "busy":
            raise TimeoutError("no reply")
        return {"id": f"{name}-{number}", "order": order, "note": LONG}

    def find(self, name: str, key: str) -> dict[str, Any] | None:
        now = self._clock.now().wall
        with self._lock:
            for number, one in enumerate(self.landed, 1):
                if one.name == name and one.key == key and not (self.lags and now - one.at < LAG):
                    return {"id": f"{name}-{number}", "order": one.order, "note": LONG}
        return None

    def under(self) -> Counter[tuple[str, str]]:
        """How often each thing happened under each key."""
        with self._lock:
            return Counter((one.name, one.key) for one in self.landed)


def choose(state: State) -> Turn | Finish:
    """A model with a script: it pays, notifies, and is done."""
    match state.choices:
        case 0:
            return Turn([StepCall("look", {"day": "monday"}, "c0")], memo={"seen": 0})
        case 1:
            return Turn([StepCall("pay", {"order": state.goal, "amount": 5}, "c1"), StepCall("look", {"day": "x" * 300}, "c2")])
        case 2:
            return Turn([StepCall("pay", {"order": state.goal, "policy": 1}, "c3"), StepCall("nothing", {}, "c4")])
        case 3:
            return Turn([StepCall("remit", {"order": state.goal}, "c5")])
        case _:
            return Finish({"paid": state.goal})


def declare(app: Doubtless, world: World, release: int = 0) -> None:
    """The steps and tasks. Each `release` looks different where a deploy may change a step: how it retries, how long it waits."""

    @app.step(effect="read", backoff="PT1S")
    def look(day: str) -> list[Any]:
        return [day, len(day), LONG if day.startswith("m") else "short"]

    def find_payment(idempotency_key: str) -> dict[str, Any] | None:
        return world.find("pay", idempotency_key)

    def find_refund(idempotency_key: str) -> dict[str, Any] | None:
        return world.find("refund", idempotency_key)

    @app.step(effect="non_idem_write", query=find_refund, absent_after="PT1M", on_absent="retry")
    def refund(order: str, result: dict[str, Any], idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("refund", order, idempotency_key)

    @app.step(
        effect="non_idem_write", query=find_payment, compensate=refund, compensate_deadline="PT1H",
        absent_after="PT1M" if release % 2 == 0 else "PT2M", on_absent="retry" if release % 3 else "fail", backoff="PT1S",
    )  # fmt: skip
    def pay(order: str, amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("pay", order, idempotency_key)

    @app.step(effect="idem_write", key_window="PT1H" if release % 2 == 0 else "PT30M", backoff="PT1S", retry_rejected=bool(release % 2))
    def remit(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("remit", order, idempotency_key, remembers=True)

    @app.step(effect="non_idem_write", settle_within="PT10M")
    def chat(order: str, text: str = "sent", idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("chat", order, idempotency_key)

    @app.step(effect="non_idem_write", once="book:{order}", query=lambda idempotency_key: world.find("book", idempotency_key), absent_after="PT1M")
    def book(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("book", order, idempotency_key)

    @app.task
    def buy(order: str) -> dict[str, Any]:
        look(day="monday")
        receipt = pay(order=order, amount=500)
        book(order=order)
        remit(order=order)
        return {"receipt": receipt["id"], "said": chat(order=order)["id"]}

    @app.task
    def give_up(order: str) -> None:
        pay(order=order, amount=1)
        remit(order=order)
        raise Abort("the books are closed")

    @app.task(on_failure="hold")
    def hold(order: str) -> None:
        pay(order=order, amount=2)
        raise Abort("held")

    @app.task
    def ask(order: str) -> Any:
        said = app.wait_for("approve", schema=bool, deadline="P1D", about={"order": order})
        return pay(order=order, amount=3)["id"] if said else "denied"

    @app.task
    def both(order: str) -> list[Any]:
        return app.parallel(lambda: pay(order=order, amount=4), lambda: remit(order=order), lambda: chat(order=order))

    @app.task
    def parent(order: str) -> Any:
        before = look(day="tuesday")
        return [before, give_up(order=order) if order.endswith("o3") else both(order=order)]

    @app.task
    def broken(order: str) -> Any:
        pay(order=order, amount=7)
        return {}[order]  # type: ignore[var-annotated]

    @app.task
    async def later(order: str) -> Any:
        await app.sleep("PT1M")
        await pay.acall(order=order, amount=8)
        return await remit.acall(order=order)

    app.agent("clerk", choose=choose, steps=["look", "pay", "remit"], snapshot_every=2)
    app.agent("trainee", choose=choose, steps=["look", "pay", "remit"], snapshot_every=2, max_choices=3)


TASKS: Sequence[str] = ("buy", "give_up", "hold", "ask", "both", "parent", "broken", "later")


def shown(app: Doubtless, task_id: str) -> Any:
    """What `show` says of a task that is of its log alone."""
    view = app.show(task_id)
    return (view.params, view.output, view.error, view.steps, view.stands, view.forked_from, view.unacknowledged)
