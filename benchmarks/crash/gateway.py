"""The payment gateway of the crash bench: a server in a process of its own that counts what it really performed.

    python gateway.py --db gateway.db

It prints its port as JSON and ends when its standard input closes. An effect is one row, committed (synced) before the
reply. What goes wrong is told on its control plane; a request that is to be held stands still until it is let go.

    POST /<cell>/payments      makes a payment; where keys are honoured, one for each Idempotency-Key inside the window
    GET  /<cell>/payments      the look-back: payments of a reference, as old as the search index's lag or older
    GET  /<cell>/ready         a process begins its task; GET /<cell>/before: the call right before a payment; /<cell>/after: the
                               one after it. All are reads, to be held at
    POST /control/<cell>/...   set, wait, release;  GET /control/<cell>: what was counted
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SCHEMA = """
CREATE TABLE payments (id INTEGER PRIMARY KEY, cell TEXT NOT NULL, reference TEXT NOT NULL, key TEXT, made_at REAL NOT NULL);
CREATE TABLE requests (id INTEGER PRIMARY KEY, cell TEXT NOT NULL, key TEXT, at REAL NOT NULL);
"""


class Cell:
    """What goes wrong in one cell of the matrix, and who stands where."""

    def __init__(self) -> None:
        self.moved = threading.Condition()
        self.holds: Counter[str] = Counter()  # where -> how many more requests are to be held there
        self.held: list[list[str]] = []  # each: [where, how it is let go or ""]
        self.arrived: Counter[str] = Counter()
        self.lag = 0.0
        self.key_window: float | None = None  # None: keys are not looked at
        self.serving = 0

    def stand(self, where: str) -> str:
        """Stand here if that is wanted, until let go: ``go``, or ``drop`` (nothing more happens with this request)."""
        with self.moved:
            self.arrived[where] += 1
            self.moved.notify_all()
            if self.holds[where] <= 0:
                return "go"
            self.holds[where] -= 1
            place = [where, ""]
            self.held.append(place)
            self.moved.wait_for(lambda: place[1])
            return place[1]

    def release(self, how: str) -> None:
        """Let everybody go who is held."""
        with self.moved:
            for place in self.held:
                place[1] = how
            self.held.clear()
            self.moved.notify_all()

    def wait(self, where: str, count: int, timeout: float) -> bool:
        """Whether so many requests ever came there, as soon as they did."""
        with self.moved:
            return self.moved.wait_for(lambda: self.arrived[where] >= count, timeout)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        search = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match url.path.strip("/").split("/"):
            case ["control", cell, *rest]:
                self.answer(self.control(self.server.cells.setdefault(cell, Cell()), cell, rest, body))
            case [cell, "payments"] if self.command == "POST":
                self.pay(cell, body)
            case [cell, "payments"]:
                self.answer({"payments": self.server.find(cell, search["reference"])})
            case [cell, where]:
                if self.server.cells[cell].stand(where) == "go":
                    self.answer({"status": "settled"})
            case _:
                self.send_error(404)

    do_POST = do_GET  # noqa: N815

    def pay(self, name: str, body: dict[str, Any]) -> None:
        """Count the request, stand before the effect, perform it, stand after it, answer."""
        cell, key = self.server.cells[name], self.headers.get("Idempotency-Key")
        with cell.moved:
            cell.serving += 1
        try:
            self.server.write("INSERT INTO requests (cell, key, at) VALUES (?, ?, ?)", (name, key, time.time()))
            if cell.stand("payment") == "drop":
                return
            made = self.server.perform(name, body["reference"], key, cell.key_window)
            if cell.stand("reply") == "drop":
                return
            self.answer(made)
        finally:
            with cell.moved:
                cell.serving -= 1

    def control(self, cell: Cell, name: str, rest: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match rest:
            case ["set"]:
                cell.lag = body.get("lag", cell.lag)
                cell.key_window = body.get("key_window", cell.key_window)
                cell.holds.update(body.get("hold", {}))
                return {}
            case ["wait"]:
                return {"reached": cell.wait(body["where"], body["count"], body["timeout"])}
            case ["release"]:
                cell.release(body["how"])
                return {}
            case _:
                effects = self.server.read("SELECT id FROM payments WHERE cell = ?", (name,))
                requests = self.server.read("SELECT key FROM requests WHERE cell = ?", (name,))
                return {"effects": len(effects), "requests": len(requests), "serving": cell.serving}

    def answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # whoever asked is dead; what was done is counted

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the counts are the log."""


class Server(ThreadingHTTPServer):
    """All cells of a run, on this machine only."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.cells: dict[str, Cell] = {}
        self._lock = threading.Lock()
        self._books = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._books.executescript(SCHEMA)
        super().__init__(("127.0.0.1", 0), Handler)

    def write(self, statement: str, args: tuple[object, ...]) -> int:
        with self._lock:
            return self._books.execute(statement, args).lastrowid or 0

    def read(self, statement: str, args: tuple[object, ...]) -> list[Any]:
        with self._lock:
            return self._books.execute(statement, args).fetchall()

    def perform(self, cell: str, reference: str, key: str | None, window: float | None) -> dict[str, Any]:
        """Make the payment, or give the one that was made under this key inside the window."""
        with self._lock:
            now = time.time()
            if key is not None and window is not None:
                known = self._books.execute(
                    "SELECT id FROM payments WHERE cell = ? AND key = ? AND made_at > ?", (cell, key, now - window)
                ).fetchone()
                if known:
                    return {"id": known[0], "reference": reference}
            row = (cell, reference, key, now)
            made = self._books.execute("INSERT INTO payments (cell, reference, key, made_at) VALUES (?, ?, ?, ?)", row)
            return {"id": made.lastrowid, "reference": reference}

    def find(self, cell: str, reference: str) -> list[dict[str, Any]]:
        until = time.time() - self.cells[cell].lag
        statement = "SELECT id FROM payments WHERE cell = ? AND reference = ? AND made_at <= ?"
        return [{"id": row[0], "reference": reference} for row in self.read(statement, (cell, reference, until))]


def main() -> None:
    parser = argparse.ArgumentParser(description="the counting gateway of the crash bench")
    parser.add_argument("--db", required=True)
    server = Server(parser.parse_args().db)
    print(json.dumps({"port": server.server_port}), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while os.read(sys.stdin.fileno(), 1024):
        pass  # until whoever started this is gone


if __name__ == "__main__":
    main()
