"""The program of the child processes: ``program.py DEED TASK_ID [STOP]``, in the folder of its store.

It says each place that it reaches. At STOP it stands: inside the call for ever, elsewhere until its run is parking.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from doubtless import Doubtless, DoubtlessError, injected

PLACES = ("unsent", "intent", "call", "effect", "record")


class Terminated(BaseException):
    """SIGTERM, as the command turns it into an exception of the main thread."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def line(text: str) -> None:
    """One effect: a line that is there for good, whatever becomes of this process."""
    file = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (text + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


def lines() -> list[str]:
    try:
        with open("effects", encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


class Program:
    """The app, its tasks, and the place where it is told to stand."""

    def __init__(self, url: str = "sqlite:///tasks.db", *, stop: str = "", clock: Any = None) -> None:
        self.stop = stop
        self.app = Doubtless(url, namespace="tests", clock=clock, hooks=self.write_point if stop else None)
        self.intended = self.done = False
        self.declare()

    def write_point(self, point: str) -> None:
        """A commit of the run: the read's row, then the intent, then the result."""
        if threading.current_thread().name.startswith("doubtless:") or self.is_async:
            if point == "append:before" and self.ready and not self.intended and self.stop == PLACES[0]:
                self.stand(PLACES[0])
            if point == "append:after" and self.ready and not self.intended:
                self.intended = True
                if self.stop == "intent":
                    self.stand("intent")
            elif point == "append:after" and self.done and self.stop == "record":
                self.stand("record")

    ready = False
    is_async = False

    def stand(self, place: str) -> None:
        """Say where it is; go on when the run is parking."""
        self.stop = ""
        say(place)
        while not any(run.last.parked for run in self.app._runs._active):
            time.sleep(0.001)

    def inside(self, place: str) -> None:
        if self.stop == place:
            say(place)
            threading.Event().wait()

    async def ainside(self, place: str) -> None:
        if self.stop == place:
            say(place)
            await asyncio.Event().wait()

    def declare(self) -> None:
        app = self.app

        def find(idempotency_key: str) -> dict[str, str] | None:
            return {"key": idempotency_key} if idempotency_key in lines() else None

        @app.step(effect="read")
        def look() -> int:
            return 1

        write: dict[str, Any] = {
            "effect": "non_idem_write", "query": find, "absent_after": "PT1S", "on_absent": "retry", "timeout": "PT60S"
        }  # fmt: skip

        @app.step(**write)
        def pay(idempotency_key: str = injected()) -> dict[str, str]:
            self.inside("call")
            line(idempotency_key)
            self.inside("effect")
            self.done = True
            return {"key": idempotency_key}

        @app.step(**write)
        async def apay(idempotency_key: str = injected()) -> dict[str, str]:
            await self.ainside("call")
            line(idempotency_key)
            await self.ainside("effect")
            self.done = True
            return {"key": idempotency_key}

        @app.step(effect="read")
        def last() -> int:
            return 2

        @app.task
        def sync_task() -> int:
            look()
            self.ready = True
            pay()
            return last()

        @app.task
        async def async_task() -> int:
            self.is_async = True
            look()
            self.ready = True
            await apay()
            return last()

        self.sync_task, self.async_task = sync_task, async_task


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(signal.Signals(number).name)


def deed(name: str, task_id: str, program: Program) -> Any:
    app = program.app
    match name:
        case "run":
            return app.run(program.sync_task, task_id)
        case "run-async":
            return app.run(program.async_task, task_id)
        case "arun":

            async def main() -> Any:
                this = asyncio.current_task()
                assert this is not None
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
                return await app.arun(program.async_task, task_id)

            return asyncio.run(main())
        case "start":
            app.start(program.sync_task, task_id)
            say("started")
            return sys.stdin.readline()
        case "worker":
            with app.worker(concurrency=2):
                say("working")
                return sys.stdin.readline()
        case "resume-all":
            say("ready")
            sys.stdin.readline()
            return app.resume_all(wait=True)
        case _:
            raise AssertionError(name)


def main() -> None:
    name, task_id, *stop = sys.argv[1:]
    signal.signal(signal.SIGTERM, terminate)
    program = Program(os.environ.get("TASKS_URL", "sqlite:///tasks.db"), stop=stop[0] if stop else "")
    result: dict[str, Any]
    try:
        result = {"output": deed(name, task_id, program)}
    except DoubtlessError as error:
        result = {"raised": type(error).__name__, "message": str(error)}
    except BaseException as error:
        result = {"raised": type(error).__name__}
    say("result", json.dumps(result))


if __name__ == "__main__":
    main()
