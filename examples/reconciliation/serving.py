"""A server that has accidents when it is told to: what the worlds of the examples have in common.

It prints one line of JSON with its port, and stops on SIGTERM, or when the pipe that is its standard input
closes: a test that is killed leaves no server behind. `/_control` makes it have accidents, turns its clock and
tells what was really done (see `faults` and `counting`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from .counting import Counted, Refused
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


class World:
    """One server's state: its clock, its faults, its books; and how it is told to have accidents."""

    def __init__(self, clock: Clock, books: Counted) -> None:
        self.clock = clock
        self.faults = Faults()
        self.kept = books

    def underway(self, route: Route, request: Request) -> AbstractContextManager[object]:
        """Entered before a request is worked on, and left when its effect is committed; may raise `Refused`."""
        return nullcontext()

    def set_fault(self, request: Request) -> Answer:
        spec = dict(request.body)
        try:
            if "key_window_s" in spec:
                self.kept.key_window_s = float(spec.pop("key_window_s"))
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
        return Answer(200, self.kept.counts())

    def wait(self, request: Request) -> Answer:
        search = request.search
        reached = self.kept.wait_for(search["kind"], int(search.get("count", "1")), float(search.get("timeout_s", "20")))
        return Answer(200, {"reached": reached})


class Route(NamedTuple):
    method: str
    path: str
    serve: Callable[[Any, Request], Answer]


CONTROL = (
    Route("POST", "/_control", World.set_fault),
    Route("POST", "/_control/clear", World.clear_faults),
    Route("POST", "/_control/advance", World.advance),
    Route("GET", "/_control/effects", World.effects),
    Route("GET", "/_control/wait", World.wait),
)


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
        found = self.server.find(self.command, url.path)
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
        world = self.server.world
        request = Request(number, search, body, key, world.faults.lag(route.path))
        fault = None
        if not route.path.startswith("/_control"):
            fault = world.faults.take(route.method, route.path, url.path)
            reference = str(body.get("reference") or search.get("reference") or key)
            world.kept.count_request(f"{route.method} {route.path}", reference, fault.fault if fault else "")
        self._answer(self._served(route, request, fault))

    def _served(self, route: Route, request: Request, fault: Fault | None) -> Answer | None:
        """The answer; None where the connection is to be closed without one."""
        world = self.server.world
        if fault is None:
            return _performed(world, route, request)
        if fault.fault == "drop_before":
            return None
        status = fault.status("before")
        if status is not None:
            return Answer(status, {"error": "refused" if status < 500 else "unavailable"})
        # Before the effect: whoever sees it counted may turn the clock at once, and has turned it past this moment then.
        until = world.clock.now() + fault.delay_s
        answer = _performed(world, route, request, until if fault.fault == "delay_before" else None)
        if answer is None:
            return None
        if fault.fault in ("delay", "lose_reply") and fault.delay_s:
            world.clock.wait_until(until)
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


def _performed(world: World, route: Route, request: Request, at: float | None = None) -> Answer | None:
    """The answer of the route's function, called when the clock shows `at`; None if the server stops before."""
    try:
        with world.underway(route, request):
            return route.serve(world, request) if at is None or world.clock.wait_until(at) else None
    except Refused as refused:
        return Answer(refused.status, {"error": refused.error})
    except (KeyError, TypeError, ValueError) as error:  # nothing was committed: an effect and its count are one transaction
        return Answer(400, {"error": repr(error)})


class Server(ThreadingHTTPServer):
    """Serves one world, on this machine only."""

    daemon_threads = True

    def __init__(self, world: World, routes: Sequence[Route], port: int = 0) -> None:
        self.world = world
        self._routes = (*routes, *CONTROL)
        super().__init__(("127.0.0.1", port), Handler)

    def find(self, method: str, path: str) -> tuple[Route, str] | None:
        """The route of a request, and the id in its path."""
        for route in self._routes:
            pattern = re.escape(route.path).replace(r"\{id\}", "([^/]+)")
            found = re.fullmatch(pattern, path)
            if found and route.method == method:
                return route, found[1] if found.groups() else ""
        return None


def _stop_with_parent(stop: Callable[[], None]) -> None:
    """Stop when standard input is a pipe and closes: whoever held its other end is dead, or done."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=watch, daemon=True).start()


def serve(world: World, routes: Sequence[Route], port: int = 0) -> int:
    """Serve until SIGTERM, or until whoever holds the other end of standard input has gone. Returns an exit code."""
    server = Server(world, routes, port)

    def stop() -> None:
        world.clock.stop()
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
        world.kept.close()
    return 0
