"""The other side on a real socket: it does what it is asked, counts it, and loses its reply in the way that the path says."""

from __future__ import annotations

import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Wire:
    """A server of `POST /how` for one effect each. `requests` are those that came on the wire, `effects` those that stand."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.effects: list[str] = []
        self.lock = threading.Lock()
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                how = self.path.strip("/")
                with wire.lock:
                    wire.requests.append(how)
                wire.answer(self, how)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def url(self, how: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/{how}"

    def answer(self, handler: BaseHTTPRequestHandler, how: str) -> None:
        """``ok``; ``422`` and other statuses without effect; ``landed-503`` with it; ``close`` and ``reset`` after it."""
        landed, _, status = how.partition("-")
        if how in ("ok", "close", "reset") or landed == "landed":
            with self.lock:
                self.effects.append(how)
        if how == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how in ("close", "reset"):
            handler.close_connection = True
            handler.connection.close()
            return
        body = json.dumps({"id": len(self.effects)}).encode()
        handler.send_response(200 if how == "ok" else int(status or landed))
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
