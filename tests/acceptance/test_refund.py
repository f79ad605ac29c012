"""The refund example: its scenes with their counts, and the gateway's own rules, with a real gateway over HTTP."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from examples.reconciliation.outside import environment
from examples.refund import client, run
from examples.refund.agent import refunder
from examples.refund.app import Refunds, build
from examples.refund.model import Said, chatting
from examples.refund.outside import Till
from tests import nursery

from doubtless import DidNotHappen, Finish, NeedsHuman, State, StepCall, TaskFailed, TaskWaiting, Turn
from doubtless.testing import FakeClock

COUNTED = {
    "(a) refunds of the one line": 2,
    "(b) refunds": 2,
    "(b) refunds of any one line": 1,
    "(b) mails": 1,
    "(b) requests for a refund": 3,
    "(c) killed when the refund had landed": 1,
    "(c) refunds": 2,
    "(c) refunds of any one line": 1,
    "(c) mails": 1,
    "(c) requests for a refund": 2,
    "(d) refunds": 2,
    "(d) refunds of any one line": 1,
    "(d) mails": 1,
    "(e) refunds": 1,
    "(e) refunds cancelled": 1,
    "(e) requests for a refund": 2,
    "(e) mails": 0,
    "(f) answers that differ": 0,
    "(f) refunds": 2,
    "(f) refunds of any one line": 1,
    "(f) mails": 1,
    "(f) requests for a refund": 2,
    "(g) killed when both refunds had landed": 1,
    "(g) choices asked for before": 2,
    "(g) choices asked for after": 2,
    "(g) refunds": 2,
    "(g) refunds of any one line": 1,
    "(g) mails": 1,
    "(g) requests for a refund": 2,
}
LINE = re.compile(r"^  (\([a-z]\) .*?) +(\d+)  ok$", re.MULTILINE)
HOUR = 3600.0


def test_the_scenes_count_what_they_promise(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.refund.run"]
    ended = nursery.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {what: int(counted) for what, counted in LINE.findall(ended.stdout)} == COUNTED
    assert "OFF" not in ended.stdout
    assert re.search(r"process \d+ is dead; the gateway holds 1 refund", ended.stdout)
    assert ended.stdout.count("settled by") == 5, "every scene with Doubtless shows its timeline"
    assert list(tmp_path.iterdir()) == [], "it leaves nothing where it is started"


def test_a_scene_whose_count_is_off_makes_the_program_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "SCENES", (lambda folder: [run.Count("(x) refunds", 1, 2)],))
    assert run.main(["--keep", str(tmp_path)]) == 1
    monkeypatch.setattr(run, "SCENES", (lambda folder: [run.Count("(x) refunds", 1, 1)],))
    assert run.main(["--keep", str(tmp_path)]) == 0


# ---------------------------------------------------------------- the task


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Till]:
    with Till(tmp_path / "gateway.db") as started:
        started.capture("SO-1", {1: 5000, 2: 1200})
        yield started


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def refunds(tmp_path: Path, till: Till, clock: FakeClock) -> Iterator[Refunds]:
    made = build(f"sqlite:///{tmp_path / 'refunds.db'}", till.url, clock=clock)
    yield made
    made.app.close()


def one(refunds: Refunds, task_id: str = "r-1", *, wait: bool = True) -> dict[str, object]:
    claims = [{"line": 1, "amount": 2500}]
    return refunds.app.run(refunds.refund_order, task_id, wait=wait, order_id="SO-1", customer="ana", claims=claims)


def test_a_request_that_is_still_in_progress_is_neither_refused_nor_sent_under_another_key(
    till: Till, refunds: Refunds, clock: FakeClock
) -> None:
    till.fault("/refunds", "500_after")
    till.fault("/refunds", "409_before")  # as a gateway answers while it still works on the first request
    assert one(refunds) == {"refunds": ["R-1"], "total": 2500}
    assert till.effects("refund") == 1
    assert till.requests("POST /refunds") == 3
    [step] = [step for step in refunds.app.show("r-1").steps if step.name == "refund_line"]
    assert [attempt.outcome for attempt in step.attempts[:2]] == ["unknown", "unknown"]
    assert len(step.keys) == 1


def test_a_refund_that_nobody_can_find_is_not_sent_again_before_two_searches_prove_it(
    till: Till, refunds: Refunds, clock: FakeClock
) -> None:
    clock.auto_advance = False
    till.fault("/refunds", "drop_before")
    for passes in ("PT25H", "PT1M", "PT1M"):
        with pytest.raises(TaskWaiting):
            one(refunds, wait=False)
        assert till.requests("POST /refunds") == 1
        clock.advance(passes)
    assert one(refunds, wait=False) == {"refunds": ["R-1"], "total": 2500}
    assert till.requests("GET /refunds") == 2
    assert till.effects("refund") == 1


def test_the_mail_whose_reply_is_lost_waits_for_a_person(till: Till, refunds: Refunds) -> None:
    till.fault("/mails", "lose_reply")
    with pytest.raises(NeedsHuman):
        one(refunds)
    [case] = refunds.app.inbox().cases
    assert case.step == "notify_customer"
    assert (till.effects("mail"), till.requests("POST /mails")) == (1, 1)


def test_a_refund_that_was_paid_out_before_the_next_line_was_declined_cannot_be_cancelled_and_is_a_case(
    till: Till, refunds: Refunds
) -> None:
    till.fault("/mails", "drop_before")  # a person is asked about the mail; meanwhile the bank pays out
    with pytest.raises(NeedsHuman):
        one(refunds)
    till.pay_out("R-1")
    [doubt] = refunds.app.inbox().cases
    refunds.app.settle(doubt.id, DidNotHappen(then="fail"), by="kim", why="no mail went out", shown=doubt.hash)
    with pytest.raises(NeedsHuman):
        one(refunds)
    [case] = refunds.app.inbox().cases
    assert (case.kind, case.step) == ("compensation", "cancel_refund")
    assert "refund R-1 is with the customer's bank" in case.why
    assert (till.effects("cancellation"), till.effects("payout")) == (0, 1)


def test_an_order_of_which_nothing_is_claimed_is_aborted_and_nobody_is_mailed(till: Till, refunds: Refunds) -> None:
    with pytest.raises(TaskFailed, match="nothing is claimed"):
        refunds.app.run(refunds.refund_order, "r-1", order_id="SO-1", customer="ana", claims=[])
    assert till.counts()["requests"]["count"] == 1, "that was the shop's own: the payment"


def test_another_amount_for_a_line_that_was_refunded_is_refused_and_says_which_task_did_it(till: Till, refunds: Refunds) -> None:
    one(refunds)
    with pytest.raises(TaskFailed, match="refused"):
        claims = [{"line": 1, "amount": 100}]
        refunds.app.run(refunds.refund_order, "r-2", order_id="SO-1", customer="ana", claims=claims)
    assert "refund_line at 2 of task r-1" in str(refunds.app.show("r-2").steps[-1].error)
    assert (till.effects("refund"), till.requests("POST /refunds"), till.effects("mail")) == (1, 1, 1)


def test_one_claim_is_refunded_by_the_command_and_the_command_again_refunds_nothing(tmp_path: Path, till: Till) -> None:
    command = [sys.executable, "-m", "examples.refund", "--order", "SO-1", "--customer", "ana", "1=2500"]
    environ = environment(DOUBTLESS_STORE=f"sqlite:///{tmp_path / 'refunds.db'}", REFUND_GATEWAY=till.url)
    said = [nursery.run(command, env=environ, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said == ['{"refunds": ["R-1"], "total": 2500}\n'] * 2
    assert till.effects("refund") == 1


def test_a_model_is_told_what_the_gateway_declined_and_what_was_refunded_stands(till: Till, refunds: Refunds) -> None:
    claims = [{"line": 1, "amount": 2500}, {"line": 2, "amount": 1201}]
    goal = {"order_id": "SO-1", "customer": "ana", "claims": claims}
    output = refunds.app.run(refunder(refunds), "r-1", goal=goal)
    assert output["refunds"] == ["R-1"]
    [refused] = output["refused"]
    assert "1200 of line 2 are left to refund" in refused
    assert (till.effects("refund"), till.effects("mail")) == (1, 1)


def test_a_model_is_never_shown_the_key_and_a_call_that_sets_one_is_refused(till: Till, refunds: Refunds) -> None:
    told: list[list[str]] = []

    def cheeky(state: State) -> Turn | Finish:
        if state.choices == 0:
            [tool] = [tool for tool in state.tools if tool["name"] == "refund_line"]
            assert sorted(tool["parameters"]["properties"]) == ["amount", "line", "order_id"]
            return Turn([StepCall("refund_line", {"order_id": "SO-1", "line": 1, "amount": 5, "idempotency_key": "mine"})])
        told.append([fact["status"] for fact in state.facts])
        return Finish()

    refunds.app.run(refunder(refunds, cheeky), "r-1", goal="refund me")
    assert told == [["refused"]]
    assert till.requests("POST /refunds") == 0


def test_a_chat_model_is_told_what_became_of_its_calls_and_is_asked_again_when_it_answers_no_json(
    till: Till, refunds: Refunds
) -> None:
    def wants(name: str, **arguments: object) -> Said:
        return {"text": f"now {name}", "tool_calls": [{"id": f"toolu_{name}", "name": name, "arguments": json.dumps(arguments)}]}

    broken: Said = {"text": "hm", "tool_calls": [{"id": "t", "name": "refund_line", "arguments": '{"order_id": '}]}
    answers = [
        wants("find_order", order_id="SO-1"),
        broken,
        wants("refund_line", order_id="SO-1", line=2, amount=1201),
        {"text": "Nothing was refunded.", "tool_calls": []},
    ]
    heard: list[list[dict[str, Any]]] = []

    def complete(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Said:
        assert [tool["name"] for tool in tools] == ["find_order", "refund_line", "notify_customer"]
        heard.append(messages)
        return answers[len(heard) - 1]

    output = refunds.app.run(refunder(refunds, chatting(complete)), "r-1", goal="refund line 2 of SO-1")
    assert output == "Nothing was refunded."
    assert [len(messages) for messages in heard] == [2, 4, 4, 6]
    assert heard[1] == heard[2], "what was no answer left no trace in the conversation"
    *_, asked, result = heard[-1]
    assert asked["content"] == "now refund_line"
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"] == "toolu_refund_line"
    assert json.loads(result["content"])["status"] == "not_applied"
    assert (till.effects("refund"), till.requests("POST /refunds")) == (0, 1)


# ---------------------------------------------------------------- the gateway


def send(till: Till, *, key: str = "k", amount: int = 2500, line: int = 1, **more: float) -> client.Refund:
    return client.refund(till.url, order_id="SO-1", line=line, amount=amount, reference=key, key=key, **more)


def test_the_gateway_remembers_a_key_for_24_hours_and_not_longer(till: Till) -> None:
    first = send(till)
    till.advance(24 * HOUR - 60)
    assert send(till) == first
    with pytest.raises(HTTPError, match="422") as caught:
        send(till, amount=2400)
    caught.value.close()
    till.advance(60)
    assert send(till)["id"] != first["id"]
    assert till.effects("refund") == 2


def test_a_line_is_refunded_in_parts_and_not_beyond_what_was_paid(till: Till) -> None:
    send(till, key="k1", amount=3000)
    send(till, key="k2", amount=1500)
    with pytest.raises(client.Declined, match="amount_exceeds_line"):
        send(till, key="k3", amount=501)
    with pytest.raises(client.Declined, match="unknown_line"):
        send(till, key="k3", line=3)
    send(till, key="k3", amount=500)
    lines = client.find_order(till.url, "SO-1")["lines"]
    assert [(line["line"], line["refunded"]) for line in lines] == [(1, 5000), (2, 0)]


def test_two_requests_with_one_key_at_once_are_one_refund_and_a_409(till: Till) -> None:
    till.fault("/refunds", "delay_before", delay_s=HOUR)
    with pytest.raises(TimeoutError):
        send(till, timeout=0.2)
    while not till.requests("POST /refunds"):  # the client has gone, and what it sent may be read only now
        pass
    with pytest.raises(HTTPError, match="409") as caught:
        send(till)
    caught.value.close()
    assert till.effects("refund") == 0
    till.advance(HOUR)
    assert till.wait_for("refund")
    assert send(till)["id"] == "R-1"
    assert till.effects("refund") == 1


@pytest.mark.parametrize(("fault", "raised"), [("lose_reply", RemoteDisconnected), ("500_after", HTTPError)])
def test_a_refund_whose_answer_is_lost_is_found_by_order_and_reference(till: Till, fault: str, raised: type[Exception]) -> None:
    till.fault("/refunds", fault)
    with pytest.raises(raised) as caught:
        send(till)
    if isinstance(caught.value, HTTPError):
        caught.value.close()
    [found] = client.find_refunds(till.url, order_id="SO-1", reference="k")
    assert (found["id"], found["state"]) == ("R-1", "pending")
    assert client.find_refunds(till.url, order_id="SO-2", reference="k") == []
    assert client.find_refunds(till.url, order_id="SO-1", reference="other") == []


def test_a_refund_is_cancelled_once_and_not_after_it_was_paid_out(till: Till) -> None:
    first, second = send(till, key="k1"), send(till, key="k2")
    assert [client.cancel_refund(till.url, first["id"])["state"] for _ in range(2)] == ["cancelled"] * 2
    assert till.effects("cancellation") == 1
    till.pay_out(second["id"])
    with pytest.raises(client.Declined, match="already_paid"):
        client.cancel_refund(till.url, second["id"])
    assert till.effects("cancellation") == 1
