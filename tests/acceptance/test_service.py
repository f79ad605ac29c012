"""The service example: a real uvicorn process over HTTP, killed in the middle, restarted, drained; counted at the office."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples.reconciliation import generate
from examples.reconciliation.outside import Outside, environment
from tests import nursery

ANA = {"X-Forwarded-User": "ana@example.com"}
LONG_S = 3600.0


class Service:
    """The service as a process of its own, with the store and the files of one test."""

    def __init__(self, folder: Path, office: Outside) -> None:
        self.folder = folder
        self.environ = environment(DOUBTLESS_STORE=f"sqlite:///{folder / 'service.db'}", RECON_SERVER=office.url)
        self.said = folder / "service.log"
        self.process: subprocess.Popen[str] | None = None

    def up(self) -> None:
        command = [sys.executable, "-m", "examples.service", "--files", str(self.folder)]
        with self.said.open("a") as log:
            self.process = nursery.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        port = json.loads(self.process.stdout.readline())["port"]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def down(self, how: Callable[[subprocess.Popen[str]], None]) -> None:
        """End it by `kill` or `terminate`, if it is up."""
        if self.process is None:
            return
        self.http.close()
        how(self.process)
        self.process.communicate(timeout=20)
        self.process = None

    def kill(self) -> None:
        self.down(subprocess.Popen.kill)

    def start(self, task_id: str = "recon-1", **more: str) -> httpx.Response:
        body = {"id": task_id, "day": str(generate.DAY), "statement": "statement.csv", "orders": "orders.csv"} | more
        return self.http.post("/reconciliations", json=body)

    def task(self, until: Callable[[dict[str, Any]], object], task_id: str = "recon-1") -> dict[str, Any]:
        """The task, as soon as it is as `until` says; each look is a request, and there is an end to them."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            shown = self.http.get(f"/tasks/{task_id}").raise_for_status().json()
            if until(shown):
                return dict(shown)
        raise AssertionError(f"{shown}\n{self.said.read_text()}")

    def until_said(self, text: str) -> None:
        """Return as soon as its log holds `text`."""
        end = time.monotonic() + 20
        while text not in self.said.read_text():
            assert time.monotonic() < end, self.said.read_text()


def done(task: dict[str, Any]) -> bool:
    return task["status"] == "done"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Outside]:
    with Outside(tmp_path / "office.db") as started:
        yield started


@pytest.fixture
def service(tmp_path: Path, office: Outside) -> Iterator[Service]:
    made = generate.write(tmp_path, 1)
    assert len(made.truth) == 12
    service = Service(tmp_path, office)
    service.up()
    yield service
    service.kill()


def one_of_each(office: Outside) -> bool:
    return (
        (office.effects("sheet"), office.most_per_subject("sheet")) == (12, 1)
        and office.effects("approval") == office.effects("message") == office.effects("closing") == 1
    )


def test_a_request_starts_a_task_once_and_the_same_id_with_other_input_is_a_conflict(service: Service, office: Outside) -> None:
    started = service.start()
    assert (started.status_code, started.json(), started.headers["location"]) == (202, {"id": "recon-1"}, "/tasks/recon-1")
    shown = service.task(done)
    assert len(shown["steps"]) == 3 + 12 + 3
    assert {step["status"] for step in shown["steps"]} == {"done"}
    assert len(shown["output"]["sheets"]) == 12
    assert service.start().status_code == 202
    assert service.task(done)["output"] == shown["output"]
    other = service.start(day="2026-11-27")
    assert other.status_code == 409
    assert other.json()["error"] == "input_differs"
    assert "day" in other.json()["message"]
    assert one_of_each(office)


def test_killed_while_the_approvals_reply_is_lost_it_loses_nothing_and_submits_one(service: Service, office: Outside) -> None:
    office.fault("/approvals", "lose_reply", delay_s=LONG_S)
    service.start()
    assert office.wait_for("approval")
    assert service.task(lambda task: True)["status"] == "running"
    service.kill()
    office.advance(LONG_S)
    service.up()
    shown = service.task(done)
    [approval] = [step for step in shown["steps"] if step["step"] == "submit_approval"]
    assert (approval["calls"], approval["settled_by"]) == (1, "the look-back found it")
    assert one_of_each(office)
    assert office.requests("POST /approvals") == 1


def test_of_two_processes_on_one_store_the_other_takes_over_what_a_killed_one_was_doing(
    service: Service, office: Outside
) -> None:
    office.fault("/approvals", "lose_reply", delay_s=LONG_S)
    service.start()
    assert office.wait_for("approval")
    other = Service(service.folder, office)
    other.up()
    try:
        assert other.task(lambda task: True)["status"] == "running", "it leaves alone what its neighbour does"
        service.kill()
        office.advance(LONG_S)
        shown = other.task(done)
        [approval] = [step for step in shown["steps"] if step["step"] == "submit_approval"]
        assert (approval["calls"], approval["settled_by"]) == (1, "the look-back found it")
    finally:
        other.kill()
    assert one_of_each(office)
    assert office.requests("POST /approvals") == 1


def test_what_was_accepted_is_run_also_when_the_process_dies_right_after(service: Service, office: Outside) -> None:
    office.fault("/adjustments", "delay_before", delay_s=LONG_S)  # it has come nowhere when it dies
    assert service.start().status_code == 202
    service.kill()
    office.clear()
    office.advance(LONG_S)
    service.up()
    service.task(lambda task: done(task) or task["status"] == "waiting")
    assert office.wait_for("sheet")
    assert office.most_per_subject("sheet") == 1


def test_told_to_stop_it_finishes_the_step_that_runs_and_the_next_process_does_the_rest(service: Service, office: Outside) -> None:
    office.fault("/approvals", "delay", delay_s=LONG_S)
    service.start()
    assert office.wait_for("approval")
    process = service.process
    assert process is not None
    process.terminate()
    service.until_said("draining")
    assert process.poll() is None, "the call is in flight: it waits for it"
    office.advance(LONG_S)
    service.down(lambda stopped: None)
    assert "drained" in service.said.read_text()
    service.up()
    shown = service.task(done)
    [approval] = [step for step in shown["steps"] if step["step"] == "submit_approval"]
    assert (approval["calls"], approval["settled_by"]) == (1, "its reply"), "nothing was in doubt"
    assert one_of_each(office)


def test_a_case_is_answered_once_by_somebody_who_saw_it_as_it_is(service: Service, office: Outside) -> None:
    office.fault("/chat/messages", "lose_reply")
    service.start()
    [case] = service.task(lambda task: task["cases"])["cases"]
    assert service.http.get("/cases").json() == {"cases": [case]}
    assert case["step"] == "notify"
    place = f"/cases/{case['id']}"
    answer = {"answer": "happened", "output": {"id": "seen", "run": "r"}, "why": "it stands in the chat", "shown": case["shown"]}
    assert service.http.post(place, json=answer).status_code == 401
    assert service.http.post(place, json=answer | {"shown": "0" * 64}, headers=ANA).status_code == 409
    assert service.http.post(place, json=answer | {"answer": "let_stand"}, headers=ANA).status_code == 422
    settled = service.http.post(place, json=answer, headers=ANA)
    assert settled.json() == {"case": case["id"], "task": "recon-1", "answer": "happened", "by": "ana@example.com"}
    again = service.http.post(place, json=answer, headers={"X-Forwarded-User": "bo@example.com"})
    assert (again.status_code, again.json()["error"]) == (409, "already_settled")
    assert "ana@example.com" in again.json()["message"]
    service.task(done)
    assert one_of_each(office)
    assert f"case {case['id']} waits for a person" in service.said.read_text()


def test_a_webhook_that_is_delivered_twice_and_to_two_processes_is_one_event(service: Service, office: Outside) -> None:
    service.start(when="released")
    [case] = service.task(lambda task: task["cases"])["cases"]
    assert (case["kind"], case["evidence"]["about"]) == ("question", {"day": str(generate.DAY)})
    delivery = {"name": "released", "event_id": "bank-77", "payload": {"statement": "S-9"}}
    assert service.http.post("/tasks/recon-1/events", json=delivery | {"payload": 5}).status_code == 422
    service.kill()  # nobody waits in memory: the wait is in the log
    service.up()
    first = service.http.post("/tasks/recon-1/events", json=delivery)
    service.kill()
    service.up()
    again = service.http.post("/tasks/recon-1/events", json=delivery)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json() == {"task": "recon-1", "name": "released", "event_id": "bank-77"}
    shown = service.task(done)
    assert len(shown["output"]["sheets"]) == 12
    assert one_of_each(office)
    other = service.http.post("/tasks/recon-1/events", json=delivery | {"event_id": "bank-78"})
    assert (other.status_code, other.json()["error"]) == (422, "event_refused")
    assert service.http.post("/tasks/nobody/events", json=delivery).status_code == 404


def test_a_task_that_is_cancelled_while_it_writes_settles_that_and_takes_back_what_it_did(
    service: Service, office: Outside
) -> None:
    office.fault("/chat/messages", "delay", delay_s=LONG_S)
    service.start()
    assert office.wait_for("message")
    place = "/tasks/recon-1/cancel"
    assert service.http.post(place, json={"why": "wrong ledger"}).status_code == 401
    asked = service.http.post(place, json={"why": "wrong ledger"}, headers=ANA)
    assert (asked.status_code, asked.json()) == (202, {"id": "recon-1", "status": "running"})
    office.advance(LONG_S)
    shown = service.task(lambda task: task["status"] == "compensated")
    [told] = [step for step in shown["steps"] if step["step"] == "notify"]
    assert (told["status"], told["settled_by"]) == ("done", "its reply"), "what ran was settled first"
    assert office.order("sheet_withdrawal") == office.order("sheet")[::-1]
    assert (office.effects("approval_withdrawal"), office.effects("closing")) == (1, 0)
    assert service.http.post(place, json={"why": "again"}, headers=ANA).json() == {"id": "recon-1", "status": "compensated"}
    assert service.http.post("/tasks/nobody/cancel", json={"why": "x"}, headers=ANA).status_code == 404


def test_a_task_that_waits_for_a_person_is_cancelled_at_once_and_its_question_is_closed(service: Service, office: Outside) -> None:
    service.start(when="released")
    service.task(lambda task: task["cases"])
    asked = service.http.post("/tasks/recon-1/cancel", json={"why": "not this month"}, headers=ANA)
    assert asked.status_code == 202
    shown = service.task(lambda task: task["status"] == "cancelled")
    assert shown["cases"] == []
    assert office.counts()["requests"]["count"] == 0


def test_what_makes_no_sense_is_refused_and_starts_nothing(service: Service, office: Outside) -> None:
    post = service.http.post
    assert post("/reconciliations", content=b"{").status_code == 400
    assert post("/reconciliations", json=["recon-1"]).status_code == 400
    assert service.start(day="").status_code == 422
    assert service.start("a/b").status_code == 422
    for name in ("../statement.csv", "nowhere.csv", "/etc/hostname", ".."):
        assert service.start(statement=name).status_code == 422, name
    assert service.http.get("/tasks/recon-1").status_code == 404
    assert post("/cases/recon-1:7", json={"answer": "abandon", "why": "x", "shown": "y"}, headers=ANA).status_code == 404
    assert post("/cases/recon-1:7", json={"answer": "sure", "why": "x", "shown": "y"}, headers=ANA).status_code == 422
    assert service.http.get("/cases").json() == {"cases": []}
    assert office.counts()["requests"]["count"] == 0


def test_a_store_that_is_refused_keeps_the_service_from_starting(tmp_path: Path, office: Outside) -> None:
    (tmp_path / "service.db").write_text("this is no database\n" * 100)
    environ = environment(DOUBTLESS_STORE=f"sqlite:///{tmp_path / 'service.db'}", RECON_SERVER=office.url)
    command = [sys.executable, "-m", "examples.service"]
    ended = nursery.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    assert "StoreRefused" in ended.stderr
