"""What other processes of these tests do: ``people_child.py URL DEED ARGUMENTS…``, a line per deed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from people_ground import Clock, Desk

from doubtless import Doubtless
from doubtless.answers import Abandon, Happened
from doubtless.errors import DoubtlessError


def say(*words: object) -> None:
    print(*words, flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def settle(app: Doubtless, case_id: str, shown: str, by: str) -> None:
    """Answer a case at a common start."""
    app.case(case_id)
    say("ready")
    sys.stdin.readline()
    try:
        app.settle(case_id, Abandon(), by=by, why="I looked", shown=shown)
        say("taken")
    except DoubtlessError as error:
        say(error.code, error.message)


def die_in_the_call(app: Doubtless, task_id: str) -> None:
    """Be killed inside the payment, after it landed."""

    def land_and_die(do: Callable[[], object]) -> None:
        do()
        die()

    Desk(app, land_and_die).run(task_id)


def die_in_the_hook(app: Doubtless, task_id: str) -> None:
    """Be killed between the commit of a case and its hook."""

    def lose(do: Callable[[], object]) -> None:
        raise ConnectionResetError("the reply was lost")

    desk = Desk(app, lose)
    app.on_case(lambda case: die())
    desk.run(task_id)


def freeze(app: Doubtless, step: str) -> None:
    """Freeze a step without having the app's code."""
    app.freeze(step, why="the bank asks us to stop", by="bob")
    say("frozen")


def result_is_lost_with_the_process(app: Doubtless, task_id: str) -> None:
    """Get a result for which there is no room anywhere, and be killed with it."""
    desk = Desk(app)
    app.store._link.pages()  # type: ignore[attr-defined]

    def fill(do: Callable[[], object]) -> object:
        reply = do()
        for name in ("add", "append", "spill"):
            setattr(app.store, name, full)
        return reply

    desk.goes = [fill]
    try:
        desk.run(task_id)
    except DoubtlessError as error:
        say(desk.calls, error.message)
    die()


def full(*_: object, **__: object) -> None:
    from doubtless.errors import StoreUnavailable

    raise StoreUnavailable("the disk is full", written=False)


def happened(app: Doubtless, case_id: str, shown: str) -> None:
    """Say that it happened, as the CLI in another process does."""
    app.settle(case_id, Happened({"id": "payment-1"}), by="bob", why="I looked", shown=shown)
    say("taken")


DEEDS: dict[str, Callable[..., None]] = {
    deed.__name__: deed for deed in (settle, die_in_the_call, die_in_the_hook, freeze, result_is_lost_with_the_process, happened)
}

if __name__ == "__main__":
    _, url, deed, *rest = sys.argv
    DEEDS[deed](Doubtless(url, clock=Clock(), namespace="people", store_patience=1), *rest)
