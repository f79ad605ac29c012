"""The program under test: one app, declared anew in every process, whose step in the middle has the class, the
policy and the look-back that a scenario says. Around it stand a read and an idem_write, so that what must not be
called again, and what must not begin while a write is in doubt, shows in the world's counts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from doubtless import Doubtless, Several, Task, injected

from .clock import TurnedClock


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What a process needs to know to be this program. Durations are those of the step table.

    `query`: ``found`` says what it found in words, ``list`` hands on the search's bare list, None: no look-back.
    `loss`, in this process, once: ``timeout`` the client gives up, ``overrun`` the step's own timeout passes; both when
    the request stands at the world's barrier. `die`: killed when the step is recorded. `store`: another one than a file.
    """

    folder: str
    port: int
    office: str
    effect: str
    query: str | None = None
    absent_after: str | None = None
    on_absent: str | None = None
    key_window: str | None = None
    timeout: str = "PT10S"
    settle_within: str = "PT1H"
    asynchronous: bool = False
    loss: str = ""
    die: bool = False
    store: str = ""

    @property
    def clock(self) -> TurnedClock:
        return TurnedClock(Path(self.folder) / "clock")

    @property
    def url(self) -> str:
        return self.store or f"sqlite:///{self.folder}/store.db"

    def dump(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def but(self, **changes: Any) -> Scenario:
        """The same with some changes."""
        return dataclasses.replace(self, **changes)


class Client:
    """How the program talks to its office: plain HTTP requests, no retries, no timeout unless the scenario has one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = scenario.clock
        self.loss = scenario.loss

    def call(self, method: str, place: str, body: dict[str, Any] | None = None, key: str = "", *, loses: bool = False) -> Any:
        connection = HTTPConnection("127.0.0.1", self.scenario.port)
        headers = {"Idempotency-Key": key} if key else {}
        connection.request(method, f"/{self.scenario.office}/{place}", None if body is None else json.dumps(body), headers)
        if loses and self.loss:
            self.lose(connection)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status >= 400:
            raise OSError(f"{response.status}: {answer}")
        return answer

    def lose(self, connection: HTTPConnection) -> None:
        """The client's or the step's timeout passes, at the very moment when the request stands at the barrier."""
        loss, self.loss = self.loss, ""
        while not self.call("GET", "control/wait?count=1")["reached"]:
            pass
        if loss == "timeout":
            connection.sock.settimeout(0.01)
        else:
            self.clock.turn(1.0, overrun=True)

    def read(self, reference: str) -> Any:
        return self.call("GET", "facts?" + urlencode({"reference": reference}), loses=True)

    def write(self, method: str, reference: str, key: str) -> Any:
        return self.call(method, "effects", {"reference": reference}, key, loses=True)

    def find(self, key: str) -> Any:
        return self.call("GET", "effects?" + urlencode({"key": key}))["items"]


def build(scenario: Scenario, hooks: Callable[[str], None] | None = None) -> tuple[Doubtless, Task[..., Any]]:
    """The app and its task, as every process of this scenario declares them."""
    app = Doubtless(scenario.url, clock=scenario.clock, namespace="crash", hooks=hooks)
    client = Client(scenario)

    def find(idempotency_key: str) -> Any:
        items = client.find(idempotency_key)
        if scenario.query == "list":
            return items
        return Several(items) if len(items) > 1 else items[0] if items else None

    options: dict[str, Any] = {
        "effect": scenario.effect, "timeout": scenario.timeout, "absent_after": scenario.absent_after,
        "on_absent": scenario.on_absent, "key_window": scenario.key_window, "settle_within": scenario.settle_within,
        "query": None if scenario.query is None else find,
    }  # fmt: skip

    def fact(reference: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.read(reference)
        return answer

    def make(reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        answer: dict[str, Any] = client.write("PUT" if scenario.effect == "idem_write" else "POST", reference, idempotency_key)
        return answer

    async def fact_async(reference: str) -> dict[str, Any]:
        return await asyncio.to_thread(fact, reference)

    async def make_async(reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return await asyncio.to_thread(make, reference, idempotency_key)

    read = scenario.effect == "read"
    bodies: dict[bool, Any] = {False: fact if read else make, True: fact_async if read else make_async}
    act: Any = app.step(name="act", **options)(bodies[scenario.asynchronous])

    @app.step(effect="read")
    def survey(reference: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.call("GET", "facts?" + urlencode({"reference": reference}))
        return answer

    @app.step(effect="idem_write")
    def close(reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        answer: dict[str, Any] = client.call("PUT", "effects", {"reference": reference}, idempotency_key)
        return answer

    def begun(reference: str) -> None:
        """Not a step: the world counts how often task code runs."""
        client.call("GET", "facts?" + urlencode({"reference": f"{reference}/code"}))

    def recorded() -> None:
        if scenario.die:
            os.kill(os.getpid(), signal.SIGKILL)

    if scenario.asynchronous:

        @app.task(name="work")
        async def work_async(reference: str) -> dict[str, Any]:
            begun(reference)
            await survey.acall(reference=f"{reference}/survey")
            made = await act(reference=reference)
            recorded()
            return {"made": made, "closed": await close.acall(reference=f"{reference}/close")}

        return app, work_async

    @app.task
    def work(reference: str) -> dict[str, Any]:
        begun(reference)
        survey(reference=f"{reference}/survey")
        made = act(reference=reference)
        recorded()
        return {"made": made, "closed": close(reference=f"{reference}/close")}

    return app, work
