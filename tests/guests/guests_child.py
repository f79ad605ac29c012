"""A host double in a process of its own: ``guests_child.py POINT``, in the folder of its store.

It opens a session, asks for one payment, saves the answer, and leaves. At POINT it says so and stands for ever: whoever
started it kills it there. POINT may be a number: it asks for two payments and a notice, and stands at that write point. The other side is a file that only grows: one line for each effect.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from doubtless import Doubtless, Step, injected

POINTS = ("before intent", "after intent", "after effect", "after record", "after return", "after saving")
ORDER: dict[str, Any] = {"order": "o1", "amount": 500}


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


def stand(place: str) -> None:
    say(place)
    threading.Event().wait()


def append_line(file: str, text: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (text + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().splitlines()
    except FileNotFoundError:
        return []


def payments(app: Doubtless, folder: str, inside: Any = lambda: None) -> tuple[Step[..., Any], Step[..., Any]]:
    """The two writes of every host here: `pay`, and `notify`, another one. Both can be asked for by their key."""
    file = os.path.join(folder, "effects")

    def find(idempotency_key: str) -> dict[str, str] | None:
        return {"key": idempotency_key} if any(idempotency_key in line for line in lines(file)) else None

    @app.step(effect="non_idem_write", query=find, absent_after="PT2S", on_absent="retry")
    def pay(order: str, amount: int, idempotency_key: str = injected()) -> dict[str, str]:
        append_line(file, f"pay {order} {amount} {idempotency_key}")
        inside()
        return {"key": idempotency_key}

    @app.step(effect="non_idem_write", query=find, absent_after="PT2S", on_absent="retry")
    def notify(whom: str, idempotency_key: str = injected()) -> dict[str, str]:
        append_line(file, f"notify {whom} {idempotency_key}")
        return {"key": idempotency_key}

    return pay, notify


class Host:
    """The program: which commit it is at, and where it stands."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.asking = self.intended = self.paid = False
        self.left = int(point) if point.isdecimal() else -1
        self.app = Doubtless("sqlite:///guests.db", namespace="tests", hooks=self.write_point)
        self.pay, self.notify = payments(self.app, ".", self.after_effect)

    def reached(self, place: str) -> None:
        if place == self.point:
            stand(place)

    def write_point(self, name: str) -> None:
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                stand(self.point)
            return
        if not self.asking:
            return
        if name == "append:before" and not self.intended:
            self.reached("before intent")
        elif name == "append:after" and not self.intended:
            self.intended = True
            self.reached("after intent")
        elif name == "append:after" and self.paid:
            self.asking = False
            self.reached("after record")

    def after_effect(self) -> None:
        self.reached("after effect")
        self.paid = True

    def turn(self) -> None:
        with self.app.session("thread-42") as session:
            self.asking = True
            receipt = session.call(self.pay, **ORDER, call_id="toolu_1")
            self.reached("after return")
            append_line("saved", json.dumps({"toolu_1": receipt}))
            self.reached("after saving")
        say("left")

    def long_turn(self) -> None:
        with self.app.session("thread-42") as session:
            for number in (1, 2):
                session.call(self.pay, **ORDER, call_id=f"toolu_{number}")
            session.call(self.notify, whom="anna", call_id="toolu_3")
        say("left")


if __name__ == "__main__":
    host = Host(sys.argv[1])
    (host.long_turn if host.left >= 0 else host.turn)()
