"""An S3-compatible server in a process of its own, and a proxy before it that fails as object stores and networks do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BUCKET = "content"
SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_server() -> Iterator[int]:
    """Moto's server on a free port, with one empty bucket; its port."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PYTHONWARNINGS": ""}
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        make_bucket(port, BUCKET)
        yield port
    finally:
        server.terminate()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One plain request to the server, past the proxy."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"}
        connection.request(method, path, body, signed)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def make_bucket(port: int, name: str) -> None:
    status, said = ask(port, "PUT", f"/{name}")
    assert status == 200, said


class Proxy:
    """Stands between the library and the server. `mode` says how it fails; `log` holds method and path of what came.

    Modes: through · refused · lost (forwarded, and the connection closed instead of an answer) · cut (half an answer) ·
    hangs (no answer until `release`) · unavailable (503) · read_only (403 for PUT and POST) · other (other bytes) ·
    gone (404 for the object).
    """

    def __init__(self, port: int) -> None:
        self.mode = "through"
        self.log: list[tuple[str, str]] = []
        self.release = threading.Event()
        self.after: Any = None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.log.append((self.command, self.path))
                mode = proxy.mode
                if mode == "hangs":
                    proxy.release.wait(30)
                    mode = "refused"
                if mode == "refused":
                    self.hang_up()
                elif mode == "unavailable":
                    self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
                elif mode == "read_only" and self.command in ("PUT", "POST"):
                    self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
                elif mode == "gone" and "sha256" in self.path:
                    self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                else:
                    self.forward(body, mode)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def forward(self, body: bytes, mode: str) -> None:
                connection = HTTPConnection("127.0.0.1", port)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
                connection.request(self.command, self.path, body, headers)
                reply = connection.getresponse()
                data = reply.read()
                connection.close()
                if proxy.after is not None:
                    proxy.after(self.command, self.path)
                if mode == "lost":
                    self.hang_up()
                    return
                if mode == "other" and self.command == "GET" and "sha256" in self.path:
                    data = bytes([data[0] ^ 1]) + data[1:]
                self.send_response_only(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if mode == "cut" and data:
                    self.wfile.write(data[: len(data) // 2])
                    self.hang_up()
                elif mode == "cut":
                    self.hang_up()
                else:
                    self.wfile.write(data)

            def answer(self, status: int, data: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def hang_up(self) -> None:
                self.close_connection = True
                self.wfile.flush()
                try:
                    self.connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:
                pass  # whoever gave up waiting has hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def sent(self, *methods: str) -> list[tuple[str, str]]:
        """What came by these methods."""
        return [one for one in self.log if one[0] in methods]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def url_of(proxy: Proxy, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}&region=us-east-1"


def objects(port: int, prefix: str) -> list[str]:
    """The names of the objects that the server has under a prefix, past the proxy."""
    import re

    _, said = ask(port, "GET", f"/{BUCKET}?list-type=2&prefix={prefix}")
    return re.findall(r"<Key>([^<]+)</Key>", said.decode())


class Log:
    """Where one log is: its URL, and the directory of what this machine keeps beside it."""

    def __init__(self, folder: Path, server: Any = None) -> None:
        self.folder = folder
        self.postgres = server is not None
        if server is None:
            self.url = f"sqlite:///{folder}/recon.db"
            self.beside, prefix = folder, "recon.db."
        else:
            from doubtless.store.pg.migrate import migrate
            from doubtless.store.pg.place import place_of
            from doubtless.store.postgres import beside_of

            self.url = server.url(mark=str(folder / "mark"), connections="4")
            migrate(self.url, state=str(folder), namespace=b"blobs")
            self.beside, prefix = Path(beside_of(place_of(self.url), "")), ""
        self.spill = self.beside / f"{prefix}spill"
        self.blobs = self.beside / f"{prefix}blobs"

    def spilled(self) -> list[Path]:
        """The results that this machine keeps because the log did not take them."""
        return sorted(self.spill.glob("*.json"))


def forget_claims(store: Any) -> None:
    """As if every thread with a task were gone, and no release had come."""
    (store._leases.held if hasattr(store, "_leases") else store._owner.tasks).clear()


def path_of(url: str) -> str:
    return urlsplit(url).path
