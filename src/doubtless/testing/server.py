"""A `CountingWorld` over HTTP: an other side for steps that speak it, and for processes that are really killed.

    with serving(world) as url:       # or: python -m doubtless.testing.server [PORT]
        httpx.post(f"{url}/sheet", json={"order": "A-17"}, headers={"Idempotency-Key": key})

    POST /<kind>            makes an effect of the JSON object, under the header Idempotency-Key; 201 with the effect
    GET  /find?key=<key>    what happened under the key: 200 with the effect, 404, or 300 with all of them
    GET  /effects[/<kind>]  200 with all effects, of that kind
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .world import CountingWorld


@contextmanager
def serving(world: CountingWorld, *, port: int = 0) -> Iterator[str]:
    """Serve the world on this machine while the block lasts; gives its URL. `port` 0: a free one."""
    server = make(world, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="counting-world", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make(world: CountingWorld, port: int) -> ThreadingHTTPServer:
    """The server, on 127.0.0.1 only."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kind = unquote(urlsplit(self.path).path.strip("/"))
            try:
                data = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            except ValueError:
                data = None
            if not kind or not isinstance(data, dict):
                self._reply(400, {"error": "POST /<kind> with a JSON object"})
                return
            key = self.headers.get("Idempotency-Key")
            rest = {name: value for name, value in data.items() if name not in ("kind", "key", "id")}
            self._reply(201, world.do(kind, key=key, **rest))

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            first, _, kind = parts.path.strip("/").partition("/")
            if first == "effects":
                self._reply(200, world.all(unquote(kind) or None))
                return
            keys = parse_qs(parts.query).get("key", [])
            if first != "find" or len(keys) != 1:
                self._reply(404, {"error": "GET /find?key=<key> or /effects[/<kind>]"})
                return
            found = [effect for effect in world.all() if effect["key"] == keys[0]]
            if len(found) == 1:
                self._reply(200, found[0])
            else:
                self._reply(300 if found else 404, found)

        def _reply(self, status: int, body: Any) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing of each request."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    with make(CountingWorld(), int(sys.argv[1]) if sys.argv[1:] else 0) as running:
        print(f"http://127.0.0.1:{running.server_address[1]}", flush=True)
        running.serve_forever()
