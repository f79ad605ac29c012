"""The program of the golden logs: steps of every kind, and a task whose code is a script that it is given.

It is today's code for logs of any release: what it declares may only be added to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from doubtless import (
    Abandon,
    Abort,
    Answer,
    Doubtless,
    Fail,
    Finish,
    Happened,
    LetStand,
    Noted,
    StepCall,
    StepFailed,
    Turn,
    Unclear,
    injected,
    record_handle,
)
from doubtless.inbox import Case


class World:
    """The other side: its effects by key, what it does next to a step of a name, and how often it was called."""

    def __init__(self, effects: dict[str, Any] | None = None) -> None:
        self.effects: dict[str, Any] = dict(effects or {})
        self.next: dict[str, list[BaseException | str]] = {}
        self.calls: Counter[str] = Counter()

    def trouble(self, name: str, *what: BaseException | str) -> None:
        """What the next calls of a step meet: an exception instead of an effect; ``lost`` is an effect without a reply."""
        self.next.setdefault(name, []).extend(what)

    def do(self, name: str, what: Any, key: str) -> dict[str, Any]:
        """Have an effect, once for each key; its receipt."""
        self.calls[name] += 1
        met = self.next[name].pop(0) if self.next.get(name) else None
        if isinstance(met, BaseException):
            raise met
        self.effects.setdefault(key, {"name": name, "what": what, "number": len(self.effects) + 1})
        if met == "lost":
            raise ConnectionResetError("the reply was lost")
        receipt: dict[str, Any] = self.effects[key]
        return receipt


def build(world: World) -> tuple[Doubtless, Any]:
    """The app, without a store, and its scripted task."""
    app = Doubtless(None)

    def find(idempotency_key: str) -> Any:
        return world.effects.get(idempotency_key)

    def ask_in_vain(idempotency_key: str) -> Any:
        return world.effects.get(idempotency_key) or Unclear("its index lags")

    @app.step(effect="read", attempts=2)
    def load(what: str) -> dict[str, Any]:
        world.calls["load"] += 1
        if world.next.get("load"):
            met = world.next["load"].pop(0)
            raise met if isinstance(met, BaseException) else ConnectionResetError(met)
        return {"loaded": what, "lines": ["x" * 100] * 5}  # too long for a row: content of its own

    @app.step(effect="non_idem_write")
    def withdraw(result: dict[str, Any], idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("withdraw", result["what"], idempotency_key)

    @app.step(effect="non_idem_write", query=find, compensate=withdraw, compensate_deadline="PT10M", absent_after="PT1M", on_absent="retry")
    def create(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("create", what, idempotency_key)

    @app.step(effect="idem_write", volatile="at", retry_rejected=True)
    def put(what: str, at: str = "", idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("put", what, idempotency_key)

    @app.step(effect="non_idem_write", attempts=2)
    def chat(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("chat", what, idempotency_key)

    @app.step(effect="non_idem_write", query=ask_in_vain, query_attempts=2)
    def order(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
        record_handle(f"order-of-{what}")
        return world.do("order", what, idempotency_key)

    @app.step(effect="non_idem_write", once="refund:{what}", once_window="P1D")
    def refund(what: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return world.do("refund", what, idempotency_key)

    @app.step(effect="non_idem_write")
    def odd(what: str, idempotency_key: str = injected()) -> Any:
        world.do("odd", what, idempotency_key)
        return object()

    def play(script: list[Any]) -> list[Any]:
        return [perform(*op) for op in script]

    ops: dict[str, Callable[..., Any]] = {
        name: app.steps[name] for name in ("load", "create", "put", "chat", "order", "refund", "odd", "withdraw")
    }

    def perform(name: str, *args: Any) -> Any:
        match name:
            case "try":
                try:
                    return perform(*args[0])
                except StepFailed as error:
                    return [error.kind, error.reason]
            case "abort":
                raise Abort(args[0])
            case "raise":
                raise KeyError(args[0])
            case "parallel":
                return app.map(play, args, concurrency=1)  # one after the other: the order of rows is the same each time
            case "child":
                return work(script=args[0])
            case "at":
                return str(app.now())[:10]
            case "uuid":
                return str(app.uuid())
            case "random":
                return app.random() < 1
            case "changed" | "sleep" | "wait_for":
                return getattr(app, name)(*args)
            case _:
                return ops[name](*args)

    @app.task
    def work(script: list[Any]) -> list[Any]:
        return play(script)

    @app.task(on_failure="hold")
    def careful(script: list[Any]) -> list[Any]:
        return play(script)

    def choose(state: Any) -> Turn | Finish:
        world.calls["choose"] += 1
        plan: list[Any] = json.loads(state.goal)
        done = len(state.turns)
        if done >= len(plan):
            return Finish({"turns": done})
        calls = [StepCall(name, {"what": what}, f"call-{done}-{i}") for i, (name, what) in enumerate(plan[done])]
        return Turn(calls, memo={"turn": done})

    app.agent("helper", choose=choose, steps=["load", "create", "put", "chat"], snapshot_every=None, concurrency=1)
    return app, work


def answer(case: Case) -> Any:
    """What a person answers to each kind of case, so that its task comes to an end."""
    match case.kind:
        case "doubt" | "compensation":
            return Happened({"by": "hand", "what": "x"}) if case.step != "order" else Abandon()
        case "code_error" | "diverged":
            return Fail()
        case "hold":
            return LetStand()
        case "contradiction":
            return Noted()
        case "question" if "fork" in case.evidence:
            return Answer("reuse" if "reuse" in case.evidence["fork"]["answers"] else "run")
        case _:
            return Answer("given")
