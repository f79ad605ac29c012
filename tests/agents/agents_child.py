"""A program that kills itself at each write point in turn: ``agents_child.py sync|async``, in an empty folder.

For each point n it forks a process that runs the agent and is killed (SIGKILL) at its n-th write point, then one that
resumes it; what both did stands in files. The last line that it prints is what it found, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents_ground import call, turn

from doubtless import Doubtless, Finish, State, injected
from doubtless.testing import FakeClock

TASK = "books"
GOAL = "close the books"


def note(where: str, /, **what: Any) -> None:
    """A line that is there for good, whatever becomes of this process."""
    file = os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(what) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


def noted(name: str) -> list[dict[str, Any]]:
    file = Path(name)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def model(state: State) -> Any:
    """Words its notes differently in each process, as a model does."""
    wording = f"as process {os.getpid()} words it"
    note("asked", turn=state.choices, process=os.getpid())
    match state.choices:
        case 0:
            return turn(call("look", day="monday"), memo=wording)
        case 1:
            return turn(
                call("pay", "a", order="o1", note=wording), call("pay", "b", order="o2", note=wording),
                call("pay", "refused", order="o9", note=wording, idempotency_key="mine"),
            )  # fmt: skip
        case 2:
            return turn(call("send", "c", to="anna", note=wording))
        case _:
            return Finish([[fact["call_id"], fact["status"]] for fact in state.facts])


def build(is_async: bool, die_at: int) -> tuple[Doubtless, Any]:
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        reached += point.partition(":")[0] in ("accept", "claim", "append", "snapshot")
        if reached == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    app = Doubtless("sqlite:///agent.db", clock=FakeClock(), namespace="tests", hooks=hook)

    def find(idempotency_key: str) -> dict[str, Any] | None:
        return next((one for one in noted("effects") if one["key"] == idempotency_key), None)

    @app.step(effect="read")
    def look(day: str) -> list[int]:
        return [1, 2]

    write: dict[str, Any] = {"effect": "non_idem_write", "query": find, "absent_after": "PT1S", "on_absent": "retry"}

    @app.step(**write)
    def pay(order: str, note: str, idempotency_key: str = injected()) -> dict[str, Any]:
        record("pay", order, idempotency_key)
        return {"paid": order, "key": idempotency_key}

    @app.step(**write)
    def send(to: str, note: str, idempotency_key: str = injected()) -> dict[str, Any]:
        record("send", to, idempotency_key)
        return {"sent": to, "key": idempotency_key}

    async def amodel(state: State) -> Any:
        return model(state)

    return app, app.agent("clerk", choose=amodel if is_async else model, steps=[look, pay, send], snapshot_every=2)


def record(name: str, what: str, key: str) -> None:
    note("effects", name=name, what=what, key=key)


def in_child(work: Any) -> int:
    """Run it in a process of its own; its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(is_async: bool, die_at: int, name: str = "") -> None:
    app, agent = build(is_async, die_at)
    if name:
        note("recorded", choices=choices(app))  # before anything goes on
    output = app.run(agent, TASK, goal=GOAL)
    if name:
        note(name, output=output, choices=choices(app), problems=len(app.verify()))


def choices(app: Doubtless) -> int:
    if not any(head.task_id == TASK for head in app.tasks()):
        return 0
    return sum(step.name == "$choose" and step.status == "done" for step in app.show(TASK).steps)


def one(is_async: bool, die_at: int, folder: str) -> dict[str, Any] | None:
    """Kill at this point and resume; None: the run had no such point."""
    os.mkdir(folder)
    os.chdir(folder)
    try:
        status = in_child(lambda: run(is_async, die_at))
        if not os.WIFSIGNALED(status):
            assert status == 0
            return None
        before = len(noted("asked"))
        assert in_child(lambda: run(is_async, 0, "end")) == 0
        effects = sorted((effect["name"], effect["what"]) for effect in noted("effects"))
        end, recorded = noted("end")[0], noted("recorded")[0]["choices"]
        asked = [one["turn"] for one in noted("asked")[before:]]
        return {**end, "effects": effects, "recorded": recorded, "asked_after": asked}
    finally:
        os.chdir("..")


def main() -> None:
    is_async, found = sys.argv[1] == "async", []
    first, stride = int(sys.argv[2]), int(sys.argv[3])
    build(is_async, 0)[0].tools(["look"])  # what is imported late is imported before the forks
    die_at = first
    while (result := one(is_async, die_at, f"at-{die_at}")) is not None:
        found.append(result)
        die_at += stride
    print(json.dumps(found))


if __name__ == "__main__":
    main()
