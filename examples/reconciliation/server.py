"""The other side, as a real server in a process of its own: ERP, approvals, chat, and closing a run.

    python -m examples.reconciliation.server --db office.db

It prints one line of JSON with its port, and stops on SIGTERM, or when the pipe that is its standard input
closes: a test that is killed leaves no server behind. `/_control` makes it have accidents, turns its clock and
tells what was really done (see `faults` and `books`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from .books import Books, Refused
from .faults import Clock, Fault, Faults


class Request(NamedTuple):
    """What a route's function needs of a request."""

    id: str
    search: Mapping[str, str]
    body: Mapping[str, Any]
    key: str
    lag_s: float


class Answer(NamedTuple):
    status: int
    body: Mapping[str, Any]
    replayed: bool = False


class Office:
    """The state of the server: its books, its clock, its faults."""

    def __init__(self, path: Path, key_window_s: float | None = None) -> None:
        self.clock = Clock()
        self.faults = Faults()
        self.books = Books(path, self.clock, key_window_s)

    def create_sheet(self, request: Request) -> Answer:
        return Answer(201, self.books.create_sheet(request.body))

    def find_sheets(self, request: Request) -> Answer:
        return Answer(200, {"items": self.books.find_sheets(_asked(request), request.lag_s)})

    def withdraw_sheet(self, request: Request) -> Answer:
        return Answer(200, self.books.withdraw_sheet(_number(request.id, "A-")))

    def submit_approval(self, request: Request) -> Answer:
        return Answer(201, self.books.submit_approval(request.body))

    def find_approvals(self, request: Request) -> Answer:
        return Answer(200, {"items": self.books.find_approvals(_asked(request), request.lag_s)})

    def withdraw_approval(self, request: Request) -> Answer:
        return Answer(200, self.books.withdraw_approval(_number(request.id, "P-")))

    def process_approval(self, request: Request) -> Answer:
        return Answer(200, self.books.process_approval(_number(request.id, "P-")))

    def post_message(self, request: Request) -> Answer:
        return Answer(201, self.books.post_message(request.body))

    def find_messages(self, request: Request) -> Answer:
        raise Refused(403, "people read this chat; programs may only write to it")

    def close_run(self, request: Request) -> Answer:
        if not request.key:
            raise Refused(400, "the header Idempotency-Key is missing")
        closing = self.books.close_run(request.id, request.key, request.body)
        return Answer(200, closing.body, closing.replayed)

    def set_fault(self, request: Request) -> Answer:
        spec = dict(request.body)
        try:
            if "key_window_s" in spec:
                self.books.key_window_s = float(spec.pop("key_window_s"))
            if spec:
                self.faults.set(spec)
        except (TypeError, ValueError) as error:
            raise Refused(400, str(error)) from error
        return Answer(200, {"set": True})

    def clear_faults(self, request: Request) -> Answer:
        self.faults.clear()
        return Answer(200, {"cleared": True})

    def advance(self, request: Request) -> Answer:
        self.clock.advance(float(request.body["seconds"]))
        return Answer(200, {"now": self.clock.now()})

    def effects(self, request: Request) -> Answer:
        return Answer(200, self.books.counts())

    def wait(self, request: Request) -> Answer:
        search = request.search
        reached = self.books.wait_for(search["kind"], int(search.get("count", "1")), float(search.get("timeout_s", "20")))
        return Answer(200, {"reached": reached})


class Route(NamedTuple):
    method: str
    path: str
    serve: Callable[[Office, Request], Answer]


ROUTES = (
    Route("POST", "/adjustments", Office.create_sheet),
    Route("GET", "/adjustments", Office.find_sheets),
    Route("POST", "/adjustments/{id}/withdraw", Office.withdraw_sheet),
    Route("POST", "/approvals", Office.submit_approval),
    Route("GET", "/approvals", Office.find_approvals),
    Route("POST", "/approvals/{id}/withdraw", Office.withdraw_approval),
    Route("POST", "/approvals/{id}/process", Office.process_approval),
    Route("POST", "/chat/messages", Office.post_message),
    Route("GET", "/chat/messages", Office.find_messages),
    Route("PUT", "/runs/{id}/close", Office.close_run),
    Route("POST", "/_control", Office.set_fault),
    Route("POST", "/_control/clear", Office.clear_faults),
    Route("POST", "/_control/advance", Office.advance),
    Route("GET", "/_control/effects", Office.effects),
    Route("GET", "/_control/wait", Office.wait),
)


def _find(method: str, path: str) -> tuple[Route, str] | None:
    for route in ROUTES:
        pattern = re.escape(route.path).replace(r"\{id\}", "([^/]+)")
        found = re.fullmatch(pattern, path)
        if found and route.method == method:
            return route, found[1] if found.groups() else ""
    return None


def _asked(request: Request) -> str:
    reference = request.search.get("reference", "")
    if not reference:  # answering with everything would hand somebody else's sheet to a caller with an empty key
        raise Refused(400, "reference is missing")
    return reference


def _number(text: str, prefix: str) -> int:
    digits = text.removeprefix(prefix)
    if not (text.startswith(prefix) and digits.isascii() and digits.isdigit()):
        raise Refused(404, f"no such id: {text}")
    return int(digits)


def _json(data: bytes) -> object:
    try:
        return json.loads(data or b"{}")
    except ValueError:
        return None


class Handler(BaseHTTPRequestHandler):
    """One request: its fault before, its effect, its fault after, its answer."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the counts are the log."""

    def _handle(self) -> None:
        url = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = _find(self.command, url.path)
        if found is None:
            self._answer(Answer(404, {"error": "no such place"}))
            return
        route, number = found
        body = _json(data)
        if not isinstance(body, dict):
            self._answer(Answer(400, {"error": "the body is not a JSON object"}))
            return
        search = {name: values[-1] for name, values in parse_qs(url.query).items()}
        key = self.headers.get("Idempotency-Key", "")
        office = self.server.office
        request = Request(number, search, body, key, office.faults.lag(route.path))
        fault = None
        if not route.path.startswith("/_control"):
            fault = office.faults.take(route.method, route.path, url.path)
            reference = str(body.get("reference") or search.get("reference") or key)
            office.books.count_request(f"{route.method} {route.path}", reference, fault.fault if fault else "")
        self._answer(self._served(route, request, fault))

    def _served(self, route: Route, request: Request, fault: Fault | None) -> Answer | None:
        """The answer; None where the connection is to be closed without one."""
        office = self.server.office
        if fault is None:
            return _performed(office, route, request)
        if fault.fault == "drop_before":
            return None
        status = fault.status("before")
        if status is not None:
            return Answer(status, {"error": "refused" if status < 500 else "unavailable"})
        # Before the effect: whoever sees it counted may turn the clock at once, and has turned it past this moment then.
        until = office.clock.now() + fault.delay_s
        if fault.fault == "delay_before" and not office.clock.wait_until(until):
            return None
        answer = _performed(office, route, request)
        if fault.fault in ("delay", "lose_reply") and fault.delay_s:
            office.clock.wait_until(until)
        if fault.fault == "lose_reply":
            return None
        if fault.fault == "hide":
            return Answer(200, {"items": []})
        status = fault.status("after")
        return answer if status is None else Answer(status, {"error": "something broke"})

    def _answer(self, answer: Answer | None) -> None:
        self.close_connection = True
        if answer is None:
            return
        data = json.dumps(answer.body).encode()
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            if 300 <= answer.status < 400:
                self.send_header("Location", self.path)
            if answer.replayed:
                self.send_header("Idempotency-Replayed", "true")
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has gone; what was done is counted
            pass


def _performed(office: Office, route: Route, request: Request) -> Answer:
    try:
        return route.serve(office, request)
    except Refused as refused:
        return Answer(refused.status, {"error": refused.error})
    except (KeyError, TypeError, ValueError) as error:  # nothing was committed: an effect and its count are one transaction
        return Answer(400, {"error": repr(error)})


class Server(ThreadingHTTPServer):
    """Serves one office, on this machine only."""

    daemon_threads = True

    def __init__(self, office: Office, port: int = 0) -> None:
        self.office = office
        super().__init__(("127.0.0.1", port), Handler)


def _stop_with_parent(stop: Callable[[], None]) -> None:
    """Stop when standard input is a pipe and closes: whoever held its other end is dead, or done."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=watch, daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="the other side of the reconciliation: ERP, approvals, chat")
    parser.add_argument("--db", type=Path, required=True, help="its SQLite file; made if need be")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--key-window", type=float, default=None, metavar="SECONDS", help="how long a closing's key is remembered"
    )
    chosen = parser.parse_args(argv)
    server = Server(Office(chosen.db, chosen.key_window), chosen.port)

    def stop() -> None:
        server.office.clock.stop()
        server.shutdown()

    # shutdown() waits for the loop below, so a handler that runs on the loop's own thread must not call it
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop, daemon=True).start())
    _stop_with_parent(stop)
    print(json.dumps({"port": server.server_port, "pid": os.getpid()}), flush=True)
    try:
        server.serve_forever(poll_interval=0.05)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        server.office.books.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
