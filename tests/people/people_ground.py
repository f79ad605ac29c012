"""What the people tests stand on: a clock that waits turn, and a payment whose other side does what a test says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pytest
from tests import nursery

from doubtless import Doubtless, NeedsHuman, injected
from doubtless.calls import Frame, Raised, Returned
from doubtless.events import Event
from doubtless.inbox import Case
from doubtless.latenews import store_late_news
from doubtless.testing import CountingWorld, FakeClock


class MakeApp(Protocol):
    def __call__(self, **options: object) -> Doubtless: ...


class Clock(FakeClock):
    """Waits inside a run turn it; they count for how long a run believes to have waited, too."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.waited

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        self.waited += seconds
        super().pause(seconds, stop)


def land_and_lose_the_reply(do: Callable[[], Any]) -> NoReturn:
    """The write lands; nobody here hears of it."""
    do()
    raise ConnectionResetError("the reply was lost")


def vanish(do: Callable[[], Any]) -> NoReturn:
    """The request is lost on its way; here it looks the same as a lost reply."""
    raise ConnectionResetError("the reply was lost")


def land(do: Callable[[], Any]) -> Any:
    """The write lands, and its reply comes."""
    return do()


class Desk:
    """An app with one write, `pay`, that has a task of its own. `goes` says how the next calls go; then they land."""

    def __init__(self, app: Doubtless, *goes: Callable[[Callable[[], Any]], Any], query: Any = None, **policy: Any) -> None:
        self.app = app
        self.world = CountingWorld()
        self.goes = list(goes)
        self.calls = 0
        self.notes: list[str] = []
        policy = {"effect": "non_idem_write", "timeout": "PT5S", "backoff": "PT1S", **policy}
        if query is not None:
            policy["query"] = query

        @app.step(**policy)
        def pay(order: str, amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
            self.calls += 1
            go = self.goes.pop(0) if self.goes else land
            return go(lambda: self.world.do("payment", key=idempotency_key, order=order, amount=amount))

        @app.task
        def settle_order(order: str) -> str:
            receipt = pay(order=order, amount=500)
            self.notes.append(receipt["id"])
            return receipt["id"]

        self.pay, self.task = pay, settle_order

    @property
    def payments(self) -> int:
        """How many payments the other side has really made."""
        return self.world.count("payment")

    def run(self, task_id: str = "order-1", **options: Any) -> Any:
        return self.app.run(self.task, task_id=task_id, order="o1", **options)

    def doubt(self, task_id: str = "order-1") -> Case:
        """Run into the case that only a person can settle."""
        with pytest.raises(NeedsHuman) as stopped:
            self.run(task_id)
        (case,) = stopped.value.cases
        return self.app.case(case)

    def needs_human(self, task_id: str = "order-1") -> tuple[str, ...]:
        """The open cases that the run stands at."""
        with pytest.raises(NeedsHuman) as stopped:
            self.run(task_id)
        return stopped.value.cases

    def rows(self, task_id: str = "order-1") -> list[Event]:
        return self.app.store.rows(task_id)

    def status(self, task_id: str = "order-1") -> str:
        return self.app.show(task_id).status

    def step(self, task_id: str = "order-1") -> Any:
        return self.app.show(task_id).steps[0]


def answer(app: Doubtless, case: Case, said: Any, **options: Any) -> Case:
    """Settle a case as it was shown."""
    return app.settle(case.id, said, **{"by": "ann", "why": "I looked", "shown": case.hash, **options})


def everything_on_disk(folder: Path) -> bytes:
    """All bytes of all files below a folder: database, WAL, mark, blobs, spill, owners."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


class Child:
    """Another process on the same store (`people_child.py`): it says a line per deed, and reads a line to go on."""

    def __init__(self, *args: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        script = str(Path(__file__).with_name("people_child.py"))
        self.process = nursery.Popen(
            [sys.executable, script, *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip

    def hear(self) -> str:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended without a word: {self.process.stderr.read()}"
        return line.strip()

    def say(self, line: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def killed(self) -> bool:
        """Wait for its end; True when a SIGKILL was it."""
        return self.process.wait(30) == -9

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def contradict(desk: Desk, output: dict[str, Any], task_id: str = "order-1") -> None:
    """Let attempt 1 of the payment, which was given up, come through after all."""
    _late(desk, task_id, Returned(output))


def late_error(desk: Desk, message: str, task_id: str = "order-1") -> None:
    """Let attempt 1 of the payment, which was given up, fail in the end."""
    _late(desk, task_id, Raised(ConnectionError(message)))


def _late(desk: Desk, task_id: str, reply: Returned | Raised) -> None:
    step = desk.pay.definition
    now = desk.app.store.now()
    frame = Frame(None, "call", "1", step, 1, 1, step.effective, None, None, now, step.fn, {})  # type: ignore[arg-type]
    epoch = next(row.epoch for row in desk.rows(task_id) if row.kind == "StepIntended")
    store_late_news(desk.app.runtime, task_id, epoch or 0, frame, reply)
