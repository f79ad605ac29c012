"""Cases from the field about keys that do not dedupe, or dedupe too much (group D), and logs that are the only truth (I)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from people_ground import Clock, Desk, MakeApp, answer, land, land_and_lose_the_reply

from doubtless import Doubtless, NeedsHuman, TaskFailed, injected
from doubtless.answers import DidNotHappen, Happened
from doubtless.canonical import encode, parse
from doubtless.errors import NotCanonical, UsageError
from doubtless.outcomes import Rejected

MakeDesk = Callable[..., Desk]


class Keyed:
    """An app whose write takes any order; `send` gives the key and the input hash under which a new task sends it."""

    def __init__(self, app: Doubtless, volatile: tuple[str, ...] = ()) -> None:
        self.app = app

        @app.step(effect="idem_write", volatile=volatile)
        def put(order: Any, note: Any = None, idempotency_key: str = injected()) -> dict[str, Any]:
            return {"key": idempotency_key}

        @app.task
        def put_it(order: Any) -> Any:
            return put(**self.params)["key"]

        self.task = put_it
        self.params: dict[str, Any] = {}

    def send(self, task_id: str, **params: Any) -> tuple[str, bytes | None]:
        self.params = params
        key = self.app.run(self.task, task_id, order=None)
        return key, next(row.input_hash for row in self.app.store.rows(task_id) if row.kind == "StepIntended")


@pytest.fixture
def keyed(app: Doubtless) -> Keyed:
    return Keyed(app)


# ---------------------------------------------------------------- what a key is made of


def test_a_resend_uses_the_stored_params_and_key_and_not_those_that_the_code_derives_anew(make_app: MakeApp) -> None:
    """C32: timestamps and nonces that change at each reading are volatile: never in the key, and sent as first stored."""
    app = make_app()
    sent: list[tuple[Any, str]] = []
    now = ["10:00"]

    @app.step(effect="idem_write", volatile="requested_at")
    def pay(order: str, requested_at: str, idempotency_key: str = injected()) -> dict[str, Any]:
        sent.append((requested_at, idempotency_key))
        if len(sent) == 1:
            now[0] = "10:05"
            raise KeyboardInterrupt
        return {"id": 1}

    @app.task
    def settle_order() -> Any:
        return pay(order="o1", requested_at=now[0])

    with pytest.raises(KeyboardInterrupt):
        app.run(settle_order, "t1")
    assert app.run(settle_order, "t1") == {"id": 1}
    assert [when for when, _ in sent] == ["10:00", "10:00"]
    assert len({key for _, key in sent}) == 1


def test_a_free_text_that_is_worded_anew_is_not_what_is_sent(make_app: MakeApp) -> None:
    """C34: model-written text beside business fields: the intent's wording goes out; another amount would be a divergence."""
    app = make_app()
    sent: list[dict[str, Any]] = []
    wording = ["goodwill"]

    @app.step(effect="idem_write", volatile="reason")
    def transfer(amount: int, reason: str, idempotency_key: str = injected()) -> dict[str, Any]:
        sent.append({"amount": amount, "reason": reason, "key": idempotency_key})
        if len(sent) == 1:
            wording[0] = "as a gesture of goodwill"
            raise KeyboardInterrupt
        return {"id": 1}

    @app.task
    def refund() -> Any:
        return transfer(amount=7, reason=wording[0])

    with pytest.raises(KeyboardInterrupt):
        app.run(refund, "t1")
    app.run(refund, "t1")
    assert sent[0] == sent[1]


def test_params_that_changed_while_a_write_is_in_doubt_stop_the_task_and_neither_is_sent(make_app: MakeApp) -> None:
    """C36: 100 is uncertain, the code now says 120: the old intent is settled first, then the drift is shown; never both."""
    app = make_app()
    sent: list[int] = []
    amount = [100]

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> dict[str, Any]:
        sent.append(amount)
        raise ConnectionResetError("lost")

    @app.task
    def settle_order() -> Any:
        return pay(amount=amount[0])

    with pytest.raises(NeedsHuman):
        app.run(settle_order, "t1")
    amount[0] = 120
    with pytest.raises(NeedsHuman):
        app.run(settle_order, "t1")
    (doubt,) = app.inbox().cases
    assert (doubt.kind, doubt.evidence["params"]) == ("doubt", {"amount": 100})
    answer(app, doubt, Happened({"id": 1}))
    with pytest.raises(NeedsHuman, match=r"params\.amount = 100.*120"):
        app.run(settle_order, "t1")
    (drift,) = app.inbox().cases
    assert (drift.kind, drift.evidence["logged"], drift.evidence["asked"]) == ("diverged", 100, 120)
    assert sent == [100]


def test_a_shared_part_and_equal_copies_of_it_are_the_same_input(keyed: Keyed) -> None:
    """C37: what counts is the value, not whether two places hold one object."""
    part = {"sku": "a", "n": 1}
    shared = keyed.send("t1", order={"first": part, "second": part})
    copies = keyed.send("t2", order={"first": dict(part), "second": {"n": 1, "sku": "a"}})
    assert shared[1] == copies[1]
    assert encode([part, part]) == encode([dict(part), dict(part)])


def test_two_interpreters_with_other_hash_seeds_send_under_the_same_key(tmp_path: Path) -> None:
    """C38: no set order, no repr, no pickle: a task that another process resumes has its key."""
    program = """
import sys; sys.path.insert(0, sys.argv[1])
from people_ground import Clock; from doubtless import Doubtless; from test_cases_keys import Keyed
from decimal import Decimal
app = Doubtless(f"sqlite:///{sys.argv[2]}", clock=Clock(), namespace="keys")
print(Keyed(app).send("t1", order={k: Decimal("1.10") for k in ("b", "a", "c")}, note=[{"z": 1, "y": None}]))
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / f"{seed}.db")],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("0", "1", "4711")
    }  # fmt: skip
    assert len(said) == 1


@pytest.mark.parametrize("value", [{1, 2}, frozenset("ab"), object, object(), Keyed, lambda: 0, b"".__class__])
def test_what_has_no_stable_form_has_no_form(keyed: Keyed, value: Any) -> None:
    """C38: a TypeError-like refusal that names the place; there is no fallback to repr or pickle."""
    with pytest.raises(NotCanonical, match="note"):
        encode({"note": value})
    with pytest.raises(NeedsHuman, match="note"):
        keyed.send("t1", order=1, note=value)


def permuted(value: Any) -> Any:
    """The same value with the keys of every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: permuted(value[key]) for key in reversed(value)}
    return [permuted(part) for part in value] if isinstance(value, list) else value


def test_the_order_of_keys_at_any_depth_makes_no_second_call(keyed: Keyed) -> None:
    """C39: permuted arguments are the same arguments; a duplicate key in JSON text is refused, not resolved."""
    order = {"b": [{"y": 1, "x": {"d": 4, "c": 3}}], "a": 2}
    assert list(permuted(order)) == ["a", "b"]
    assert keyed.send("t1", order=order)[1] == keyed.send("t2", order=permuted(order))[1]
    with pytest.raises(UsageError, match="twice"):
        parse('{"amount": 1, "amount": 2}')


SAME = [(0.0, -0.0), (0, -0.0), (1, 1.0), (1e3, 1000), ((1, 2), [1, 2])]
DISTINCT = [
    0, 1, True, False, None, "", "1", "true", b"1", Decimal("1.0"), Decimal("1.00"), 1.5, "1.5", Decimal("1.5"), [], {}, [None],
    {"a": None}, {"a": 1}, date(2026, 1, 1), "2026-01-01", datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), str(UUID(int=1)),
    [1, [2]], [[1], 2],
]  # fmt: skip


@pytest.mark.parametrize("one, other", SAME)
def test_values_that_are_equal_are_one_input(keyed: Keyed, one: Any, other: Any) -> None:
    """C41: -0.0 is 0, 1.0 is 1, a tuple is a list."""
    assert keyed.send("t1", order=one)[1] == keyed.send("t2", order=other)[1]


def test_values_that_differ_never_share_a_key(keyed: Keyed) -> None:
    """C41: types are tagged: 1, True, "1", b"1", None and a missing value are all different things."""
    texts = [encode({"order": value}) for value in DISTINCT] + [encode({})]
    assert len(set(texts)) == len(texts)
    hashes = [keyed.send(f"t{number}", order=value)[1] for number, value in enumerate(DISTINCT)]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), Decimal("NaN"), Decimal("Infinity")])
def test_what_is_no_number_is_refused_for_a_write(keyed: Keyed, value: Any) -> None:
    """C41: NaN neither matches nor misses; it does not get in."""
    with pytest.raises(NeedsHuman, match="order"):
        keyed.send("t1", order=value)
    assert not any(row.path for row in keyed.app.store.rows("t1"))


def test_each_row_names_the_form_that_it_is_written_in_and_the_form_is_pinned(keyed: Keyed) -> None:
    """C42: numbers, key order and escapes in one form with a version, golden values, whatever JSON library is about."""
    from doubtless.events import FORMAT

    golden = {"\U0001f600": 1e-7, "\ufb01": 1e21, "é": 1e16, "a": 0.1}
    assert encode(golden) == '{"a":0.1,"é":1e+16,"\U0001f600":1e-7,"\ufb01":1e+21}'
    assert json.loads(encode(golden)) == golden
    keyed.send("t1", order=golden)
    assert {row.format for row in keyed.app.store.rows("t1")} == {FORMAT}


def test_a_row_of_a_newer_format_is_refused_and_not_guessed_at(keyed: Keyed) -> None:
    """C42: an old version stays readable; a newer one says so, and the log is not touched."""
    from doubtless.errors import StoreRefused
    from doubtless.events import FORMAT, upcast

    keyed.send("t1", order=1)
    row = list(keyed.app.store.rows("t1")[0])
    row[-2] = FORMAT + 1
    with pytest.raises(StoreRefused, match="upgrade doubtless"):
        upcast(row)


def test_a_second_attempt_sends_byte_by_byte_what_the_first_one_sent(make_app: MakeApp) -> None:
    """C44: the server compares params under one key; a deploy that adds a field with a default does not change what goes out."""
    app = make_app()
    bodies: list[bytes] = []

    @app.step(effect="idem_write", timeout="PT5S")
    def pay(order: Any, idempotency_key: str = injected()) -> dict[str, Any]:
        bodies.append(json.dumps(order).encode())
        if len(bodies) == 1:
            raise KeyboardInterrupt
        return {"id": 1}

    order = {"z": [1.0, 2], "a": {"k": "ü", "j": None}}

    @app.task
    def settle_order() -> Any:
        return pay(order=dict(order))

    with pytest.raises(KeyboardInterrupt):
        app.run(settle_order, "t1")
    app.run(settle_order, "t1")
    assert bodies[0] == bodies[1]


def test_a_server_that_says_the_key_was_used_with_other_params_ends_with_a_person_and_no_new_key(app: Doubtless) -> None:
    """C44: a key mismatch after an unknown attempt is a doubt; no second key is ever minted for it."""
    keys: list[str] = []

    @app.step(effect="idem_write", attempts=3, single_request=True, timeout="PT5S")
    def pay(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise TimeoutError("lost")
        request = httpx.Request("POST", "http://x")
        raise httpx.HTTPStatusError(
            "key was used with other params", request=request, response=httpx.Response(400, request=request)
        )

    @app.task
    def settle_order() -> Any:
        return pay(order="o1")

    with pytest.raises(NeedsHuman):
        app.run(settle_order, "t1")
    assert len(set(keys)) == 1
    (case,) = app.inbox().cases
    assert {attempt["outcome"] for attempt in case.evidence["attempts"]} == {"unknown"}


def test_only_a_definite_refusal_gives_a_new_key_and_an_unknown_outcome_never_does(app: Doubtless) -> None:
    """C46: the job failed for good: a new try needs a new generation, durable after the refusal; a doubt keeps its key."""
    keys: list[str] = []

    @app.step(effect="idem_write", attempts=4, retry_rejected=True, timeout="PT5S")
    def submit(job: str, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise TimeoutError("lost")
        if len(keys) == 2:
            return {"id": 1}
        raise AssertionError("a third send")

    @app.step(effect="idem_write", attempts=4, retry_rejected=True, timeout="PT5S")
    def resubmit(job: str, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) == 3:
            raise Rejected("failed", "out of memory")
        return {"id": 2}

    @app.task
    def work() -> Any:
        return [submit(job="j")["id"], resubmit(job="j")["id"]]

    assert app.run(work, "t1") == [1, 2]
    assert keys[0] == keys[1]
    assert len({keys[1], keys[2], keys[3]}) == 3
    rows = [(row.kind, row.idempotency_key) for row in app.store.rows("t1") if row.path == "2" and row.kind != "HandleRecorded"]
    assert [kind for kind, _ in rows] == ["StepIntended", "AttemptEnded", "AttemptStarted", "StepSettled"]
    assert rows[2][1] is not None


@pytest.mark.parametrize("later, again", [("PT23H", True), ("PT23H59M", False), ("PT25H", False)])
def test_a_key_protects_only_inside_its_window_less_a_margin(app: Doubtless, clock: Clock, later: str, again: bool) -> None:
    """C48: the worker is back 25 h later, the other side forgets after 24: past the window it is a fresh request, so a person."""
    keys: list[str] = []

    @app.step(effect="idem_write", key_window="PT24H", settle_within="P2D", timeout="PT5S")
    def charge(amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise KeyboardInterrupt
        return {"id": 1}

    @app.task
    def pay() -> Any:
        return charge(amount=5)

    with pytest.raises(KeyboardInterrupt):
        app.run(pay, "t1")
    clock.advance(later)
    if again:
        assert app.run(pay, "t1") == {"id": 1}
        assert len(set(keys)) == 1
    else:
        with pytest.raises(NeedsHuman):
            app.run(pay, "t1")
    assert len(keys) == 1 + again


def test_an_owner_that_is_gone_leaves_a_doubt_and_never_permission_to_run_it_again(
    make_desk: MakeDesk, child: Any, clock: Clock
) -> None:
    """C49: neither blocked for ever nor free to run: after the death, early or late, the write is in doubt."""
    desk = make_desk()
    assert child("die_in_the_call", "order-1").killed()
    clock.advance("P30D")
    case = desk.doubt()
    assert (desk.calls, case.evidence["attempts"][0]["code"]) == (0, "owner_died")


@pytest.mark.parametrize("other", ["Rechnung  7", "Rechnung\n7", "rechnung 7", "Rechnu\u006e\u0067 7\u200b", "Re\u0301chnung 7"])
def test_texts_that_only_look_alike_are_different_inputs_and_identity_comes_from_the_place(make_app: MakeApp, other: str) -> None:
    """C51: no folding of white space or Unicode forms: the same task id with it is refused, another id is another task."""
    from doubtless.errors import InputDiffers

    desk = Desk(make_app(), land, land)

    @desk.app.task
    def hook(text: str) -> str:
        return desk.pay(order=text, amount=1)["id"]

    assert desk.app.run(hook, "delivery-7", text="Rechnung 7") == "payment-1"
    assert desk.app.run(hook, "delivery-7", text="Rechnung 7") == "payment-1"
    with pytest.raises(InputDiffers):
        desk.app.run(hook, "delivery-7", text=other)
    assert desk.payments == 1


def test_two_deliveries_of_one_hook_are_one_task_when_they_bear_its_id(make_desk: MakeDesk) -> None:
    """C51: identity is the delivery's id, whatever else is in its text."""
    desk = make_desk()
    assert {desk.run("delivery-7") for _ in range(3)} == {"payment-1"}
    assert desk.payments == 1


# ---------------------------------------------------------------- A, I: the key and the log


def test_the_attempts_of_one_intent_share_its_key_and_their_number_is_a_column(app: Doubtless) -> None:
    """C10: an attempt number inside the key would make each retry a new request to the server."""
    keys: list[str] = []

    @app.step(effect="idem_write", attempts=4, timeout="PT5S")
    def put(value: int, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if len(keys) < 4:
            raise ConnectionResetError("lost")
        return {"id": 1}

    @app.task
    def work() -> Any:
        return put(value=1)

    app.run(work, "t1")
    assert len(keys) == 4
    assert len(set(keys)) == 1
    rows = app.store.rows("t1")
    assert [row.attempt for row in rows if row.kind in ("StepIntended", "AttemptStarted")] == [1, 2, 3, 4]


def test_the_same_call_twice_in_one_task_has_two_keys_and_in_another_task_two_more(app: Doubtless) -> None:
    """C10: identity is the place in the task, so that a loop over equal rows is as many effects as rows."""
    keys: list[str] = []

    @app.step(effect="idem_write")
    def put(value: int, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        return {"id": 1}

    @app.task
    def work() -> None:
        for _ in range(3):
            put(value=1)

    app.run(work, "t1")
    app.run(work, "t2")
    app.run(work, "t2")
    assert (len(keys), len(set(keys))) == (6, 6)


def test_what_is_shown_is_folded_from_the_log_and_nothing_else_knows_better(make_desk: MakeDesk, make_app: MakeApp) -> None:
    """C97: a result that the log has is shown by whoever looks; a call that the log has not was never made."""
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    other = make_app()
    shown, elsewhere = desk.app.show("order-1"), other.show("order-1")
    assert shown == elsewhere
    answer(other, other.case(case.id), Happened({"id": "payment-1"}))
    assert desk.step().output == {"id": "payment-1"}
    assert other.verify() == []


def test_an_outer_restart_of_a_task_that_has_ended_is_refused_by_the_log(make_desk: MakeDesk) -> None:
    """C108: a platform may start it again as often as it likes: only the log grants work."""
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    answer(desk.app, desk.doubt(), DidNotHappen("fail", even_now=True))
    for _ in range(3):
        with pytest.raises(TaskFailed):
            desk.run()
    assert desk.calls == 1
    assert sum(row.kind == "TaskEnded" for row in desk.rows()) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_whatever_tears_a_write_apart_leaves_it_in_doubt_and_is_raised_on(
    make_desk: MakeDesk, error: type[BaseException]
) -> None:
    """C93: `except Exception` would have missed these: the attempt has its outcome in the log before they go on."""
    desk = make_desk()

    def tear(do: Callable[[], Any]) -> Any:
        do()
        raise error

    desk.goes = [tear]
    with pytest.raises(NeedsHuman if issubclass(error, Exception) else error):
        desk.run()
    ended = next(row for row in desk.rows() if row.kind == "AttemptEnded")
    assert json.loads(ended.error or "")["kind"] == "unknown"
    assert desk.doubt().kind == "doubt"
    assert (desk.calls, desk.payments) == (1, 1)
