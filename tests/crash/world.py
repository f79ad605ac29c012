"""The outside world: a real server in a process of its own that counts the effects that it really performed.

    python -m crash.world --db world.db

It prints one line of JSON with its port and ends when its standard input closes, so with its parent. An effect and
its count are one row, committed before the reply. Each test has an office of its own in it: a name in front of every path.

    POST /o/effects    makes an effect, every time          GET /o/facts      a read
    PUT  /o/effects    makes one for each Idempotency-Key    GET /o/effects    the look-back, by key
    /o/control         what goes wrong, who is held where, and what was counted
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from .clock import TurnedClock

SCHEMA = """
CREATE TABLE effects (id INTEGER PRIMARY KEY, office TEXT NOT NULL, number INTEGER NOT NULL, reference TEXT NOT NULL,
                      key TEXT NOT NULL, made_at INTEGER NOT NULL, UNIQUE (office, number));
CREATE TABLE requests (id INTEGER PRIMARY KEY, office TEXT NOT NULL, what TEXT NOT NULL, reference TEXT NOT NULL,
                       key TEXT NOT NULL);
"""


class Held(NamedTuple):
    """A request that stands at a barrier until it is let go, with or without its effect or reply."""

    reference: str
    where: str
    gone: threading.Event
    how: list[str]


class Office:
    """One test's share of the world: its clock, its accidents, and who is held."""

    def __init__(self, name: str, books: Books, clock: TurnedClock) -> None:
        self.name, self.books, self.clock = name, books, clock
        self.look = "honest"  # or raising, several, empty
        self.lag_us = 0
        self.key_window_us: int | None = None
        self.moved = threading.Condition()
        self.holds: Counter[tuple[str, str]] = Counter()  # (reference, where) -> how many more
        self.losses: Counter[tuple[str, str]] = Counter()  # (reference, how) -> how many more
        self.refusals: dict[str, str] = {}  # reference -> with which word; ``already done``: a colleague has done it
        self.held: list[Held] = []
        self.arrived: Counter[str] = Counter()  # where -> how many have ever been held there
        self.serving = 0  # requests that are being served now

    def set(self, spec: dict[str, Any]) -> None:
        """Change what goes wrong from now on."""
        with self.moved:
            self.look = spec.get("look", self.look)
            self.lag_us = spec.get("lag_us", self.lag_us)
            self.key_window_us = spec.get("key_window_us", self.key_window_us)
            if "hold" in spec:
                self.holds[spec["reference"], spec["hold"]] += spec.get("count", 1)
            if "lose" in spec:
                self.losses[spec["reference"], spec["lose"]] += spec.get("count", 1)
            if "refuse" in spec:
                self.refusals[spec["reference"]] = spec["refuse"]

    def stop_at(self, where: str, reference: str) -> str:
        """Stand here if a hold says so, until it is released; how: ``go`` (or no hold) or ``drop``."""
        with self.moved:
            if self.holds[reference, where] <= 0:
                return "go"
            self.holds[reference, where] -= 1
            held = Held(reference, where, threading.Event(), ["go"])
            self.held.append(held)
            self.arrived[where] += 1
            self.moved.notify_all()
        held.gone.wait()
        return held.how[0]

    def left(self, reference: str) -> int:
        """How many more requests for this reference will be held."""
        with self.moved:
            return sum(count for (held, _), count in self.holds.items() if held == reference)

    def land(self, timeout: float) -> int:
        """Let everybody go who is held, and return when they have had their effect and reply; how many there were."""
        there = self.release("go")
        with self.moved:
            assert self.moved.wait_for(lambda: not self.serving, timeout), "a request that was let go is not served"
        return there

    def refusal(self, reference: str) -> str | None:
        """The word that refuses this request, or None. What is ``already done``, a colleague has done once."""
        word = self.refusals.get(reference)
        if word == "already done" and not self.counts()["effects"].get(reference):
            self.perform(reference, "colleague", remembers=False)
        return word

    def release(self, how: str) -> int:
        """Let everybody go who is held; how many there were."""
        with self.moved:
            held, self.held = self.held, []
        for request in held:
            request.how[0] = how
            request.gone.set()
        return len(held)

    @contextmanager
    def serves(self) -> Iterator[None]:
        """Count the requests that are being served."""
        with self.moved:
            self.serving += 1
        try:
            yield
        finally:
            with self.moved:
                self.serving -= 1
                self.moved.notify_all()

    def wait_held(self, count: int, timeout: float) -> bool:
        """Whether so many requests have been held since the office was opened, as soon as they are."""
        with self.moved:
            return self.moved.wait_for(lambda: self.arrived.total() >= count, timeout)

    def loses(self, reference: str, how: str) -> bool:
        """Whether this reply is to be lost that way; counted down."""
        with self.moved:
            if self.losses[reference, how] <= 0:
                return False
            self.losses[reference, how] -= 1
            return True

    def perform(self, reference: str, key: str, *, remembers: bool) -> dict[str, Any]:
        """Make an effect; where keys are remembered, once for each inside the window. The search finds it by its key."""
        now = self.clock.now().wall
        with self.books.transaction() as books:
            if remembers:
                after = -1 if self.key_window_us is None else now - self.key_window_us
                query = "SELECT number, reference FROM effects WHERE office = ? AND key = ? AND made_at > ? ORDER BY id"
                known = books.execute(query, (self.name, key, after)).fetchone()
                if known is not None:
                    return {"id": known[0], "reference": known[1]}
            (last,) = books.execute("SELECT coalesce(max(number), 0) FROM effects WHERE office = ?", (self.name,)).fetchone()
            row = (self.name, last + 1, reference, key, now)
            books.execute("INSERT INTO effects (office, number, reference, key, made_at) VALUES (?, ?, ?, ?, ?)", row)
        return {"id": last + 1, "reference": reference}

    def find(self, key: str) -> list[dict[str, Any]]:
        """What the search shows for a key: after the lag, and as the look-back's kind has it."""
        until = self.clock.now().wall - self.lag_us
        query = "SELECT number, reference FROM effects WHERE office = ? AND key = ? AND made_at <= ? ORDER BY id"
        rows = self.books.all(query, (self.name, key, until))
        found = [{"id": number, "reference": reference} for number, reference in rows]
        if self.look == "several":
            return [*found, {"id": 901, "reference": "somebody's"}, {"id": 902, "reference": "somebody else's"}]
        return [] if self.look == "empty" else found

    def counts(self) -> dict[str, Any]:
        """What was really done, by reference, and what was asked for."""
        effects: dict[str, list[int]] = {}
        made_at: dict[str, list[int]] = {}
        query = "SELECT number, reference, made_at FROM effects WHERE office = ? ORDER BY id"
        for number, reference, at in self.books.all(query, (self.name,)):
            effects.setdefault(reference, []).append(number)
            made_at.setdefault(reference, []).append(at)
        requests: dict[str, dict[str, list[str]]] = {}
        for what, reference, key in self.books.all("SELECT what, reference, key FROM requests WHERE office = ?", (self.name,)):
            requests.setdefault(what, {}).setdefault(reference, []).append(key)
        return {"effects": effects, "made_at": made_at, "requests": requests, "serving": self.serving}


class Books:
    """The world's own database: one connection, one writer at a time, each commit synced."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.executescript(SCHEMA)
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed, durably, or taken back."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def all(self, query: str, args: tuple[Any, ...]) -> list[Any]:
        """All rows of a query."""
        with self._lock:
            return self._connection.execute(query, args).fetchall()


class Handler(BaseHTTPRequestHandler):
    """One request: counted, held, performed, held again, answered or not."""

    server: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _, name, *rest = url.path.split("/")
        search = {k: v[-1] for k, v in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body: dict[str, Any] = json.loads(self.rfile.read(length) or b"{}")
        if rest and rest[0] == "control":
            self.answer(200, self.control(name, rest[1:], search, body))
            return
        office = self.server.offices[name]
        key = self.headers.get("Idempotency-Key", "")
        match self.command, rest:
            case "POST" | "PUT", ["effects"]:
                reference, remembers = body["reference"], self.command == "PUT"
                self.serve(office, "write", reference, key, lambda: office.perform(reference, key, remembers=remembers))
            case "GET", ["facts"]:
                reference = search["reference"]
                self.serve(office, "read", reference, "", lambda: {"reference": reference, "fact": len(reference)})
            case "GET", ["effects"]:
                self.server.count(office, "look", "", search["key"])
                if office.look == "raising":
                    self.answer(500, {"error": "the search is broken"})
                else:
                    self.answer(200, {"items": office.find(search["key"])})
            case _:
                self.answer(404, {"error": "no such place"})

    do_POST = do_PUT = do_GET

    def serve(self, office: Office, what: str, reference: str, key: str, perform: Callable[[], dict[str, Any]]) -> None:
        """Count the request, stand where it is held, do it, and answer unless the reply is to be lost."""
        with office.serves():
            self.serve_here(office, what, reference, key, perform)

    def serve_here(self, office: Office, what: str, reference: str, key: str, perform: Callable[[], dict[str, Any]]) -> None:
        self.server.count(office, what, reference, key)
        if office.stop_at("before", reference) == "drop":
            return
        if office.loses(reference, "503 before"):
            self.answer(503, {"error": "unavailable"})
            return
        refusal = office.refusal(reference) if what == "write" else None
        if refusal is not None:
            self.answer(409, {"error": refusal})
            return
        made = perform()
        if office.stop_at("after", reference) == "drop" or office.loses(reference, "reply"):
            return
        if office.loses(reference, "500 after"):
            self.answer(500, {"error": "something broke"})
            return
        self.answer(200, made)

    def control(self, name: str, rest: list[str], search: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """The control plane: open an office, set what goes wrong, wait for who is held, release, count."""
        match rest:
            case ["open"]:
                self.server.offices[name] = Office(name, self.server.books, TurnedClock(Path(body["clock"])))
                return {}
            case ["set"]:
                self.server.offices[name].set(body)
                return {}
            case ["wait"]:
                return {"reached": self.server.offices[name].wait_held(int(search["count"]), 1.0)}
            case ["left"]:
                return {"left": self.server.offices[name].left(body["reference"])}
            case ["land"]:
                return {"landed": self.server.offices[name].land(10.0)}
            case ["release"]:
                return {"released": self.server.offices[name].release(body["how"])}
            case _:
                return self.server.offices[name].counts()

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client is dead; what was done is counted

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the counts are the log."""


class Server(ThreadingHTTPServer):
    """All offices, on this machine only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, books: Books) -> None:
        self.books = books
        self.offices: dict[str, Office] = {}
        super().__init__(("127.0.0.1", 0), Handler)

    def count(self, office: Office, what: str, reference: str, key: str) -> None:
        """Note a request, durably, before anything is done for it."""
        with self.books.transaction() as books:
            row = (office.name, what, reference, key)
            books.execute("INSERT INTO requests (office, what, reference, key) VALUES (?, ?, ?, ?)", row)


def main() -> None:
    parser = argparse.ArgumentParser(description="the counting world of the crash tests")
    parser.add_argument("--db", type=Path, required=True)
    server = Server(Books(parser.parse_args().db))
    print(json.dumps({"port": server.server_port}), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while os.read(sys.stdin.fileno(), 1024):
        pass  # until whoever started this is gone


if __name__ == "__main__":
    main()
