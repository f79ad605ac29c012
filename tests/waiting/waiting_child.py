"""The program of the child processes: ``program.py sleeper``, or ``program.py rounds STRIDE``, which sweeps.

It notifies, asks, and goes on, three times; the answers come from the same program. In a sweep a process kills itself at one
write point (before or after a commit, counted over everything that it writes), for one point after the other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from doubtless import AlreadySettled, Answer, Doubtless, DoubtlessError, injected
from doubtless.questions import is_question
from doubtless.testing import FakeClock

ROUNDS = 3
START, LATER = "2026-11-28T09:00:00+00:00", "2026-11-28T09:10:00+00:00"


class Program:
    """The app and its tasks. `effects`: a file with a line for each thing that really happened."""

    def __init__(self, *, kill_at: int = 0, clock: Any = None, url: str = "sqlite:///tasks.db") -> None:
        self.points = 0
        self.kill_at = kill_at
        self.app = Doubtless(url, namespace="tests", clock=clock, hooks=self.point)
        app = self.app

        def find(idempotency_key: str) -> dict[str, str] | None:
            return {"key": idempotency_key} if any(line.endswith(idempotency_key) for line in lines()) else None

        @app.step(effect="non_idem_write", query=find, absent_after="PT1S", on_absent="retry")
        def notify(number: int, idempotency_key: str = injected()) -> dict[str, str]:
            write(f"notify {number} {idempotency_key}")
            return {"key": idempotency_key}

        @app.task
        def rounds() -> list[Any]:
            answers = []
            for number in range(ROUNDS):
                notify(number=number)
                answers.append(app.wait_for("reply", schema=int))
            return answers

        @app.task
        async def arounds() -> list[Any]:
            answers = []
            for number in range(ROUNDS):
                notify(number=number)
                answers.append(await app.wait_for("reply", schema=int))
            return answers

        @app.task
        def sleeper() -> str:
            notify(number=0)
            app.sleep("PT1H")
            return "woke"

        self.tasks = {"rounds": rounds, "arounds": arounds, "sleeper": sleeper}

    def point(self, name: str) -> None:
        self.points += 1
        if self.points == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def play(self, name: str) -> list[Any]:
        """The whole play, from wherever it stands: an event, a person, and again an event answer."""
        app = self.app
        for number in range(ROUNDS + 1):
            try:
                done: list[Any] = app.run(self.tasks[name], "t")
                return done
            except DoubtlessError as error:
                if error.code != "needs_human":
                    raise
            at = sum(is_question(row) for row in app.store.rows("t")) - 1
            if at == 1:
                case = app.inbox().cases[0]
                try:
                    app.settle(case.id, Answer(at), by="anna", why="ok", shown=case.hash)
                except AlreadySettled:
                    pass
            else:
                app.send_event("t", "reply", at, event_id=f"e{at}")
        raise AssertionError("it does not end")


def write(text: str) -> None:
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


def in_a_process(folder: str, name: str, kill_at: int, start: str) -> int:
    """Play in a process of its own; its status, as `os.waitpid` gives it."""
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        program = Program(kill_at=kill_at, clock=FakeClock(start=start))
        with open("result", "w", encoding="utf-8") as file:
            json.dump([program.play(name), program.points], file)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def sweep(name: str, stride: int) -> None:
    """Play undisturbed, then killed at one write point after the other, and to its end by another process."""
    os.mkdir("0")
    assert in_a_process("0", name, 0, START) == 0
    with open("0/result", encoding="utf-8") as file:
        points = json.load(file)[1]
    for kill_at in range(1, points + 1, stride):
        os.mkdir(str(kill_at))
        assert in_a_process(str(kill_at), name, kill_at, START) == signal.SIGKILL, kill_at
        assert in_a_process(str(kill_at), name, 0, LATER) == 0, kill_at
    print(points)


if __name__ == "__main__":
    if sys.argv[1] == "sleeper":
        program = Program()
        program.app.run(program.tasks["sleeper"], "t")
    else:
        sweep(sys.argv[1], int(sys.argv[2]))
