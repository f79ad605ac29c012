"""Cases from the field about lost replies and retries below the executor (group C), over real clients and a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import urllib3
from people_ground import Clock, answer
from wire import Wire

from doubtless import Doubtless, NeedsHuman, StepFailed, TaskWaiting, Unknown, injected, record_handle
from doubtless.answers import Happened
from doubtless.outcomes import Absent, Found, Pending, Rejected, Unclear


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Wire() as running:
        yield running


# ---------------------------------------------------------------- clients as a step uses them

Post = Callable[[str], Any]


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    """What a client holds open, closed at the end."""
    with ExitStack() as stack:
        yield stack


def by_httpx(open_: ExitStack) -> Post:
    client = open_.enter_context(httpx.Client(timeout=5))

    def post(url: str) -> Any:
        response = client.post(url, json={})
        response.raise_for_status()
        return response.json()

    return post


def by_requests(open_: ExitStack) -> Post:
    session = open_.enter_context(requests.Session())

    def post(url: str) -> Any:
        response = session.post(url, json={}, timeout=5, allow_redirects=False)
        response.raise_for_status()
        return response.json()

    return post


def by_urllib3(open_: ExitStack) -> Post:
    pool = open_.enter_context(urllib3.PoolManager(retries=False, timeout=5.0))

    def post(url: str) -> Any:
        response = pool.request("POST", url, json={}, redirect=False)
        if response.status >= 400:
            return response  # a reply of a known client is judged by its status, and is never an output
        return response.json()

    return post


def by_urllib(open_: ExitStack) -> Post:
    def post(url: str) -> Any:
        with urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"), timeout=5) as response:
            return json.load(response)

    return post


def by_http_client(open_: ExitStack) -> Post:
    kept: list[http.client.HTTPConnection] = []

    def post(url: str) -> Any:
        host, _, path = url.removeprefix("http://").partition("/")
        if not kept:
            kept.append(http.client.HTTPConnection(host, timeout=5))
            open_.callback(kept[0].close)
        kept[0].request("POST", "/" + path, body=b"{}")
        response = kept[0].getresponse()
        content = response.read()
        return response if response.status >= 400 else json.loads(content)

    return post


CLIENTS = {"httpx": by_httpx, "requests": by_requests, "urllib3": by_urllib3, "urllib": by_urllib, "http.client": by_http_client}


class Caller:
    """An app whose write makes one request; the task makes one call for each way in which it is to go."""

    def __init__(self, app: Doubtless, wire: Wire, post: Callable[[str], Any], **policy: Any) -> None:
        self.app = app
        self.wire = wire
        policy = {"effect": "non_idem_write", "single_request": True, "timeout": "PT20S", "backoff": "PT1S", **policy}

        @app.step(**policy)
        def send(how: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return post(wire.url(how))  # type: ignore[no-any-return]

        @app.task
        def send_all(ways: list[str]) -> list[int]:
            return [send(how=how)["id"] for how in ways]

        self.task = send_all

    def run(self, *ways: str) -> Any:
        return self.app.run(self.task, "s1", ways=list(ways))

    def attempts(self) -> list[list[tuple[str | None, str]]]:
        return [[(a.outcome, a.code) for a in step.attempts] for step in self.app.show("s1").steps]


@pytest.mark.parametrize("drop", ["close", "reset"])
@pytest.mark.parametrize("name", CLIENTS)
def test_one_attempt_is_one_request_on_the_wire_also_over_a_connection_that_was_kept(
    app: Doubtless, wire: Wire, open_: ExitStack, name: str, drop: str
) -> None:
    """C22, C23: the server performs, then drops a keep-alive connection; no client posts again, and neither do we."""
    caller = Caller(app, wire, CLIENTS[name](open_))
    with pytest.raises(NeedsHuman):
        caller.run("ok", drop)
    assert wire.requests == wire.effects == ["ok", drop]
    first, second = app.show("s1").steps
    assert (first.status, second.status, second.calls) == ("done", "needs_human", 1)
    assert second.attempts[0].outcome == "unknown"
    with pytest.raises(NeedsHuman):
        caller.run("ok", drop)
    assert wire.requests == ["ok", drop]


@pytest.mark.parametrize("drop", ["close", "reset"])
def test_one_attempt_is_one_request_on_the_wire_with_aiohttp_too(app: Doubtless, wire: Wire, drop: str) -> None:
    """C22: the async client, in an async step, over one kept connection."""

    @app.step(effect="non_idem_write", single_request=True, timeout="PT20S")
    async def send(how: str) -> dict[str, Any]:
        async with session[0].post(wire.url(how), json={}) as response:
            response.raise_for_status()
            return await response.json()  # type: ignore[no-any-return]

    session: list[aiohttp.ClientSession] = []

    @app.task
    async def send_both() -> list[int]:
        async with aiohttp.ClientSession() as opened:
            session[:] = [opened]
            return [(await send(how="ok"))["id"], (await send(how=drop))["id"]]

    with pytest.raises(NeedsHuman):
        asyncio.run(app.arun(send_both, "s1"))
    assert wire.requests == wire.effects == ["ok", drop]


def test_a_lost_reply_is_looked_up_by_its_key_and_not_sent_again(app: Doubtless, wire: Wire, open_: ExitStack) -> None:
    """C23: reset by peer on a POST that had worked; the look-back asks for the key, and that settles it."""
    asked: list[str] = []

    def find(idempotency_key: str) -> dict[str, Any] | None:
        asked.append(idempotency_key)
        return {"id": 1} if wire.effects else None

    caller = Caller(app, wire, by_httpx(open_), query=find)
    assert caller.run("reset") == [1]
    assert (wire.requests, wire.effects) == (["reset"], ["reset"])
    assert asked == list(app.show("s1").steps[0].keys)


@pytest.mark.parametrize("status", ["503", "500", "504", "408"])
def test_a_server_error_after_the_commit_is_a_doubt_of_a_non_idem_write(
    app: Doubtless, wire: Wire, open_: ExitStack, status: str
) -> None:
    """C24: no loop over all methods: the class decides, and a key that never left the machine protects nothing."""
    caller = Caller(app, wire, by_httpx(open_))
    with pytest.raises(NeedsHuman):
        caller.run(f"landed-{status}")
    assert len(wire.requests) == 1
    assert caller.attempts() == [[("unknown", status)]]


def test_an_idem_write_is_sent_again_after_a_server_error_under_the_same_key(
    app: Doubtless, wire: Wire, open_: ExitStack
) -> None:
    """C24: with a declared key the same trouble is a resend; each of its attempts is one request."""
    caller = Caller(app, wire, by_httpx(open_), effect="idem_write", attempts=3)
    with pytest.raises(NeedsHuman):
        caller.run("landed-503")
    assert len(wire.requests) == 3
    assert len(app.show("s1").steps[0].keys) == 1


def test_a_refused_name_a_clean_refusal_and_a_lost_reply_are_three_different_things(
    app: Doubtless, wire: Wire, open_: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C25: DNS failure: nothing left; 422: the other side said no; a drop: nobody knows. None of them is just "failed"."""
    seen: list[StepFailed] = []
    post = by_httpx(open_)

    def no_such_host(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def send_it(how: str) -> Any:
        if how != "dns":
            return post(wire.url(how))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", no_such_host)
            with httpx.Client() as fresh:
                return fresh.post("http://nobody.invalid/", json={})

    @app.step(effect="non_idem_write", single_request=True, attempts=2)
    def send(how: str) -> dict[str, Any]:
        return send_it(how)  # type: ignore[no-any-return]

    @app.task
    def three() -> None:
        for how in ("422", "dns", "close"):
            try:
                send(how=how)
            except StepFailed as error:
                seen.append(error)

    with pytest.raises(NeedsHuman):
        app.run(three, "s1")
    outcomes = {step.params["how"]: [a.outcome for a in step.attempts] for step in app.show("s1").steps}
    assert outcomes == {"422": ["rejected"], "dns": ["not_sent", "not_sent"], "close": ["unknown"]}
    assert [(error.kind, error.reason) for error in seen] == [("rejected", "422"), ("exhausted", "ConnectError")]
    assert wire.requests == ["422", "close"]
    assert wire.effects == ["close"]


def test_a_tool_that_drops_is_not_replayed_and_a_tool_that_answers_an_error_is_not_called_again(app: Doubtless) -> None:
    """C26: a drop after the execution is a doubt; an error inside a reply is a reply. Nothing but the table raises a class."""
    calls: list[str] = []

    @app.step(effect="non_idem_write")
    def tool(name: str) -> dict[str, Any]:
        calls.append(name)
        if name == "drops":
            raise ConnectionResetError("session closed")
        return {"isError": True, "content": "no such account", "annotations": {"idempotentHint": True}}

    @app.task
    def use(name: str) -> Any:
        return tool(name=name)

    assert app.run(use, "error", name="errs")["isError"] is True
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.run(use, "drop", name="drops")
    assert calls == ["errs", "drops"]


# ---------------------------------------------------------------- echoes of one's own first attempt


class Remembering:
    """A service that is slow behind an edge which gives up on it, and refuses what it has already."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.made: dict[str, int] = {}
        self.calls = 0

    def create(self, marker: str, late: float = 0) -> dict[str, Any]:
        """The first call lands `late` seconds after the edge has said 503; a later one is told 409."""
        self.calls += 1
        if marker in self.made:
            raise Rejected("409", "already exists")
        self.made[marker] = self.clock.now().wall + int(late * 1e6)
        raise httpx.HTTPStatusError(
            "503",
            request=httpx.Request("POST", "http://x"),
            response=httpx.Response(503, request=httpx.Request("POST", "http://x")),
        )

    def find(self, marker: str) -> dict[str, Any] | None:
        landed = self.made.get(marker)
        return None if landed is None or landed > self.clock.now().wall else {"id": marker}


def test_a_conflict_with_ones_own_first_attempt_is_confirmed_by_a_look_back(app: Doubtless, clock: Clock) -> None:
    """C27: 503 from the edge, then 409 from the origin: a candidate success, done once the look-back sees our marker."""
    service = Remembering(clock)

    @app.step(effect="idem_write", query=lambda idempotency_key: service.find(idempotency_key), attempts=2, single_request=True)
    def create(name: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return service.create(idempotency_key, late=0)

    @app.task
    def make() -> Any:
        return create(name="n")["id"]

    assert app.run(make, "m1") == app.show("m1").steps[0].keys[0]
    assert [(a.outcome, a.code) for a in app.show("m1").steps[0].attempts] == [("unknown", "503"), ("unknown", "409")]
    assert len(service.made) == 1


def test_a_conflict_without_a_marker_to_look_for_is_a_case(app: Doubtless, clock: Clock) -> None:
    """C27: without a query nobody can tell whose object it is; the second attempt's 409 is no failure of the step."""
    service = Remembering(clock)

    @app.step(effect="idem_write", attempts=2, single_request=True, idempotent_by="the name is unique")
    def create(name: str) -> dict[str, Any]:
        return service.create(name)

    @app.task
    def make() -> Any:
        return create(name="n")["id"]

    with pytest.raises(NeedsHuman):
        app.run(make, "m1")
    (case,) = app.inbox().cases
    assert [attempt["code"] for attempt in case.evidence["attempts"]] == ["503", "409"]
    answer(app, case, Happened({"id": "n"}))
    assert app.run(make, "m1") == "n"


def test_an_upload_that_times_out_at_the_gateway_is_found_later_and_never_sent_twice(app: Doubtless, clock: Clock) -> None:
    """C29: 504 while the submission goes on for 40 s; the look-back by our key finds it after that, with the handle."""
    lands_at = [0]
    uploads = [0]

    def find(idempotency_key: str) -> Any:
        return {"id": "sub-1", "handle": "h-9"} if uploads[0] and clock.now().wall >= lands_at[0] else Absent()

    @app.step(effect="non_idem_write", query=find, absent_after="PT2M", on_absent="retry", timeout="PT5S")
    def upload(text: str, idempotency_key: str = injected()) -> dict[str, Any]:
        uploads[0] += 1
        lands_at[0] = clock.now().wall + 40_000_000
        raise Unknown("504", "gateway timeout")

    @app.task
    def submit() -> Any:
        return upload(text="draft")["handle"]

    assert app.run(submit, "u1") == "h-9"
    assert uploads == [1]
    looks = [row.details["answer"] for row in app.store.rows("u1") if row.kind == "LookedBack"]
    assert looks[0] == "absent"  # the first look is at once, and proves nothing
    assert looks[-1] == "found"


def test_a_key_in_use_is_neither_success_nor_failure_nor_a_reason_for_a_new_key(app: Doubtless, clock: Clock) -> None:
    """C30: the server holds the key for 20 s and says 409 meanwhile: back off, same key, until its answer comes."""
    began: list[int] = []
    keys: list[str] = []

    @app.step(effect="idem_write", single_request=True, attempts=10, backoff="PT5S", timeout="PT5S")
    def charge(amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
        keys.append(idempotency_key)
        if not began:
            began.append(clock.now().wall)
            raise TimeoutError("no answer")
        if clock.now().wall < began[0] + 20_000_000:
            raise httpx.HTTPStatusError(
                "key in use", request=httpx.Request("POST", "http://x"),
                response=httpx.Response(409, request=httpx.Request("POST", "http://x")),
            )  # fmt: skip
        return {"id": "charge-1"}

    @app.task
    def pay() -> Any:
        return charge(amount=5)["id"]

    assert app.run(pay, "c1") == "charge-1"
    assert len(set(keys)) == 1
    outcomes = [a.outcome for a in app.show("c1").steps[0].attempts]
    assert outcomes == ["unknown"] * (len(outcomes) - 1) + ["done"]


def test_a_conflict_alone_is_unknown_and_no_rejection(app: Doubtless, wire: Wire, open_: ExitStack) -> None:
    """C30: 409 on the very first attempt says nothing about the effect either."""
    caller = Caller(app, wire, by_requests(open_), query=lambda: Unclear("no search"), query_attempts=1)
    with pytest.raises(NeedsHuman):
        caller.run("409")
    assert caller.attempts() == [[("unknown", "409")]]
    assert len(wire.requests) == 1


# ---------------------------------------------------------------- E: handles that come before the end


class Provisioning:
    """A reply carries a handle; then the polling in the step runs out while the other side still works."""

    def __init__(self, app: Doubtless, *states: Any, attempts: int = 3) -> None:
        self.app = app
        self.created = 0
        self.asked: list[Any] = []
        self.states = list(states)

        def poll(handle: str, handles: list[str]) -> Any:
            self.asked.append((handle, handles))
            return self.states.pop(0) if len(self.states) > 1 else self.states[0]

        @app.step(effect="non_idem_write", query=poll, absent_after="PT1M", on_absent="retry", timeout="PT5S", attempts=attempts)
        def create(name: str) -> dict[str, Any]:
            self.created += 1
            record_handle(f"vm-{self.created}")
            raise TimeoutError("still provisioning")

        @app.task
        def make() -> Any:
            return create(name="n")["ip"]

        self.task = make

    def run(self, **options: Any) -> Any:
        return self.app.run(self.task, task_id="p1", **options)


def test_a_handle_is_durable_at_once_and_polled_by_whoever_comes_next(app: Doubtless) -> None:
    """C54: create times out while provisioning; the next run asks for the handle and makes no second one."""
    vm = Provisioning(app, Pending(look_again="PT30S"), Pending(look_again="PT30S"), Found({"ip": "10.0.0.7"}))
    with pytest.raises(TaskWaiting):
        vm.run(wait=False)
    assert app.show("p1").steps[0].handles == ("vm-1",)
    assert vm.run() == "10.0.0.7"
    assert vm.created == 1
    assert set(map(str, vm.asked)) == {"('vm-1', ['vm-1'])"}


def test_a_handle_that_the_search_does_not_know_proves_no_absence(app: Doubtless, clock: Clock) -> None:
    """C54: once a handle is recorded, absent is unclear; it is never sent again on its strength."""
    vm = Provisioning(app, Absent())
    for _ in range(4):  # each claim looks again, long after an absence would be proof without the handle
        with pytest.raises(NeedsHuman):
            vm.run()
        clock.advance("PT2M")
    assert vm.created == 1
    (case,) = app.inbox().cases
    assert case.evidence["handles"] == ["vm-1"]
    assert not any(row.details.get("counts") for row in app.store.rows("p1") if row.kind == "LookedBack")


def test_a_poll_that_runs_out_is_a_waiting_task_and_no_failure(app: Doubtless) -> None:
    """C61: the waiter gives up, the job runs on: the task is parked with its handle, and nothing starts a second job."""
    vm = Provisioning(app, Pending(look_again="PT10M"))
    for _ in range(3):
        with pytest.raises(TaskWaiting):
            vm.run(wait="PT5M")
        view = app.show("p1")
        assert (view.status, view.steps[0].status) == ("waiting", "uncertain")
    with pytest.raises(TaskWaiting):
        vm.run(wait="PT2H")  # past settle_within: a case is open, and the looking goes on
    assert app.show("p1").steps[0].status == "needs_human"
    assert len(app.inbox().cases) == 1
    assert vm.created == 1
