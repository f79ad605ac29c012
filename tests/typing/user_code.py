"""User code as the docs show it, checked by mypy --strict (`make types`): it is never run.

`assert_type` says what must be inferred; each ``type: ignore`` with a code marks what must be an error (strict mode
reports an ignore that nothing needs).
"""

from collections.abc import Coroutine
from typing import Any, TypedDict, assert_type

from pydantic import BaseModel

from doubtless import (
    DidNotHappen,
    Doubtless,
    Fact,
    Finish,
    Found,
    Happened,
    NeedsHuman,
    Pending,
    Refused,
    Session,
    SessionCall,
    State,
    StepCall,
    StepFailed,
    TaskFrozen,
    TaskWaiting,
    Turn,
    injected,
    record_handle,
)


class Sheet(BaseModel):
    id: str
    amount: int


class Receipt(TypedDict):
    number: str


app = Doubtless("sqlite:///typed.db")


def find_adjustment(idempotency_key: str) -> Sheet | None:
    return None


def find_payment(idempotency_key: str, handles: list[str]) -> Found | Pending | None:
    return Pending("PT10S")


@app.step(effect="read")
def match_orders(day: str) -> list[dict[str, Any]]:
    return [{"day": day}]


@app.step(effect="non_idem_write", query=find_adjustment, compensate="withdraw_adjustment", compensate_deadline="PT10M",
          volatile=("requested_at",))  # fmt: skip
def create_adjustment(difference: dict[str, Any], requested_at: str, idempotency_key: str = injected()) -> Sheet:
    record_handle("sheet-1")
    return Sheet(id=idempotency_key, amount=1)


@app.step(effect="idem_write", key_window="PT24H", query=find_payment)
async def pay(order: str, amount: int, idempotency_key: str = injected()) -> Receipt:
    return {"number": order}


@app.step(effect="non_idem_write")
def withdraw_adjustment(result: Sheet) -> bool:
    return True


@app.task
def reconcile(day: str) -> list[Sheet]:
    differences = match_orders(day=day)
    assert_type(differences, list[dict[str, Any]])
    sheets = [create_adjustment(difference=d, requested_at="now") for d in differences]
    assert_type(sheets, list[Sheet])
    create_adjustment(difference=1, requested_at="now")  # type: ignore[arg-type]
    create_adjustment(requested_at="now")  # type: ignore[call-arg]
    match_orders(days=day)  # type: ignore[call-arg]
    return sheets


@app.task(name="pay-all")
async def pay_all(orders: list[str]) -> int:
    receipt = await pay(order=orders[0], amount=5)
    assert_type(receipt, Receipt)
    again = await pay.acall(order=orders[0], amount=5)
    assert_type(again, Receipt)
    matched = await match_orders.acall(day="2026-11-28")
    assert_type(matched, list[dict[str, Any]])
    payment = assert_type(pay(order="o", amount=1), Coroutine[Any, Any, Receipt])
    await payment
    return len(orders)


def main() -> None:
    assert_type(app.run(reconcile, "recon-1", day="2026-11-28"), list[Sheet])
    assert_type(app.run(pay_all, "pay-1", orders=["a"]), int)
    assert_type(app.run(reconcile, "recon-1", wait=False, day="2026-11-28"), list[Sheet])
    assert_type(app.run(pay_all, "pay-1", wait="PT1M", orders=["a"]), int)
    assert_type(app.run(reconcile, task_id="recon-1", day="2026-11-28"), list[Sheet])
    assert_type(app.run(pay_all, task_id="pay-1", orders=["a"]), int)
    app.run(reconcile, "recon-1", day=5)  # type: ignore[call-overload]
    app.run(reconcile, "recon-1")  # type: ignore[call-overload]
    assert_type(app.start(reconcile, "recon-1", day="2026-11-28"), str)
    assert_type(app.start(reconcile, "recon-1", day="2026-11-28", queue="mail", priority=-1, not_before="PT1M"), str)
    assert_type(match_orders.fn(day="d"), list[dict[str, Any]])
    case = app.case("recon-1:7")
    app.settle(case.id, Happened({"id": "s"}), by="kim", why="seen in the ERP", shown=case.hash)
    app.settle(case.id, DidNotHappen("retry"), by="kim", why="not there", shown=case.hash)
    app.step(effect="write")  # type: ignore[arg-type]


def host() -> None:
    with app.session("thread-42", wait="PT1M") as session:
        assert_type(session, Session)
        assert_type(session.call(match_orders, day="2026-11-28"), list[dict[str, Any]])
        assert_type(session.call(match_orders, day="2026-11-28", call_id="toolu_1"), list[dict[str, Any]])
        session.call(match_orders, days="2026-11-28")  # type: ignore[call-overload]
        by_name = session.call("match_orders", day="2026-11-28", call_id="toolu_2")
        assert_type(by_name, Any)
        assert_type(session.replayed("toolu_2"), bool)
        assert_type(session.calls, tuple[SessionCall, ...])
        session.finish({"matched": len(by_name)})


async def ahost() -> str:
    async with app.session("thread-42") as session:
        try:
            assert_type(await session.acall(pay, order="o", amount=1), Receipt)
            assert_type(await session.acall(pay, order="o", amount=1, call_id="toolu_1"), Receipt)
            assert_type(await session.acall(match_orders, day="2026-11-28"), list[dict[str, Any]])
        except (Refused, StepFailed, NeedsHuman, TaskWaiting, TaskFrozen) as told:
            return assert_type(told.text_for_model, str)
    return ""


async def amain() -> None:
    assert_type(await app.arun(pay_all, "pay-1", orders=["a"]), int)
    assert_type(await app.arun(reconcile, "recon-1", day="2026-11-28"), list[Sheet])
    assert_type(await app.arun(pay_all, task_id="pay-1", wait=False, orders=["a"]), int)


@app.task
def side_by_side(day: str) -> int:
    sheets = app.map(lambda d: create_adjustment(difference=d, requested_at="now"), match_orders(day=day), concurrency=2)
    assert_type(sheets, list[Sheet])
    children = app.parallel(lambda: reconcile(day=day), lambda: reconcile(day=day))
    assert_type(children, list[list[Sheet]])
    reconcile(days=day)  # type: ignore[call-arg]
    return len(sheets)


@app.task
async def aside(day: str) -> int:
    receipts = await app.parallel(lambda: pay(order="o1", amount=1), lambda: pay(order="o2", amount=2))
    assert_type(receipts, list[Receipt])
    paid = await pay_all(orders=[day])
    assert_type(paid, int)
    sheets = await reconcile.acall(day=day)
    assert_type(sheets, list[Sheet])
    return paid


def my_model(state: State) -> Turn | Finish:
    assert_type(state.turns, list[dict[str, Any]])
    if state.choices == 0:
        return Turn([StepCall("pay", {"order": "o", "amount": 1}, "toolu_1")], memo={"text": "hm"})
    return Finish({"cost": state.cost, "tools": len(state.tools)})


async def my_async_model(state: State) -> Turn | Finish:
    return my_model(state)


def an_agent() -> None:
    agent = app.agent("clerk", choose=my_model, steps=[pay, "match_orders"], snapshot_every=20, max_choices=50, max_cost=2.5)
    app.run(agent, "clerk-1", goal="pay")
    app.run(agent, task_id="clerk-1", wait="PT1M", goal={"pay": ["o1"]})
    app.start(app.agent("aclerk", choose=my_async_model, steps=[pay], bind={"pay": {"order": "o"}}), "clerk-2", goal="pay")
    assert_type(app.tools([pay, "match_orders"]), list[dict[str, Any]])
    for fact in app.facts("clerk-1"):
        assert_type(fact, Fact)
        assert_type(fact.status, str)
    app.agent("wrong", choose=lambda state: "pay", steps=[pay])  # type: ignore[arg-type]


def forks_and_marks() -> None:
    fork = app.fork("recon-1", at=4, task_id="recon-2", idem_write="run", non_idem_write="reuse")
    assert_type(fork.id, str)
    for one in fork.stands:
        assert_type(one.step, str)
    assert_type(app.changed("look-twice"), bool)
    app.fork("recon-1")  # type: ignore[call-arg]
    app.fork("recon-1", at=4, idem_write="maybe")  # type: ignore[arg-type]
