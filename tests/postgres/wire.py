"""What stands between a store and its server: a proxy that cuts connections, and one that pools transactions."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress


class Message:
    """One message of PostgreSQL's protocol; `kind` is empty for the first one of a connection."""

    def __init__(self, kind: bytes, body: bytes) -> None:
        self.kind = kind
        self.body = body

    def whole(self) -> bytes:
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body


def read_message(source: socket.socket, *, first: bool = False) -> Message | None:
    """The next message; None at the end."""
    kind = b"" if first else _exactly(source, 1)
    size = _exactly(source, 4) if kind is not None else None
    if kind is None or size is None:
        return None
    body = _exactly(source, struct.unpack("!I", size)[0] - 4)
    return None if body is None else Message(kind, body)


def read_query(source: socket.socket) -> list[Message]:
    """The next messages that belong together: a simple query, what is prepared or run up to its end, or something else alone."""
    read: list[Message] = []
    while (message := read_message(source)) is not None:
        read.append(message)
        if message.kind not in (b"P", b"B", b"D", b"E", b"C"):
            break
    return read


def runs(query: list[Message], text: bytes) -> bool:
    """Whether this runs a statement that contains the text, by its words or by the name under which it was prepared."""
    return any(message.kind in (b"E", b"Q") for message in query) and any(text in message.body for message in query)


def whole(query: list[Message]) -> bytes:
    return b"".join(message.whole() for message in query)


def _exactly(source: socket.socket, size: int) -> bytes | None:
    got = b""
    while len(got) < size:
        try:
            piece = source.recv(size - len(got))
        except OSError:
            return None
        if not piece:
            return None
        got += piece
    return got


class Listening:
    """A port whose connections are each served by a thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.sockets: list[socket.socket] = [self._socket]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets.append(client)
            self._start(self.serve, client)

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def to_server(self, port: int) -> socket.socket:
        server = socket.create_connection(("127.0.0.1", port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets.append(server)
        return server

    def close(self) -> None:
        for one in list(self.sockets):
            cut(one)
        for thread in self._threads:
            thread.join(10)


def cut(one: socket.socket) -> None:
    """End a connection at once."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class Cutter(Listening):
    """Forwards to a server, and cuts the connection where it is told to: in the query whose text contains `at`.

    `before`: nothing of it reaches the server. `during`: the server has it, and the client is gone before the answer. `after`:
    the server has committed, and the answer is lost. `late`: as `before` for the client, and the server gets it when `send` is
    called.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.at = b"\0nothing"
        self.when = ""
        self.times = 0
        self.cuts = 0
        self.held: list[tuple[socket.socket, bytes]] = []

    def order(self, when: str, at: str, times: int = 1) -> None:
        """Cut the next so many queries that contain a text."""
        self.when, self.at, self.times = when, at.encode(), times

    def serve(self, client: socket.socket) -> None:
        server = self.to_server(self._port)
        first = read_message(client, first=True)
        if first is None:
            return
        server.sendall(first.whole())
        swallow = threading.Event()
        self._start(self._answers, server, client, swallow)
        while query := read_query(client):
            if self.times and runs(query, self.at):
                self.times -= 1
                self.cuts += 1
                self._cut(client, server, whole(query), swallow)
                return
            with suppress(OSError):
                server.sendall(whole(query))
        cut(server)

    def _cut(self, client: socket.socket, server: socket.socket, sent: bytes, swallow: threading.Event) -> None:
        if self.when == "before":
            cut(server)
            cut(client)
        elif self.when == "late":
            self.held.append((server, sent))
            swallow.set()
            cut(client)
        elif self.when == "during":
            swallow.set()
            server.sendall(sent)
            cut(client)
        else:
            swallow.set()
            server.sendall(sent)
            self.answered.wait(30)
            cut(client)

    answered: threading.Event = threading.Event()

    def _answers(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        while (message := read_message(server)) is not None:
            if swallow.is_set():
                if message.kind == b"Z":
                    self.answered.set()
                continue
            with suppress(OSError):
                client.sendall(message.whole())
        if not swallow.is_set():
            cut(client)

    def send(self) -> None:
        """Let the server have what was held back; returns when it has answered."""
        self.answered.clear()
        for server, sent in self.held:
            server.sendall(sent)
            assert self.answered.wait(30)
        self.held.clear()


class Relay(Listening):
    """Hands everything through, until `farewell`: a server's last word to its clients, after which their connections are gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[socket.socket] = []
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        server = self.to_server(self._port)
        self._clients.append(client)
        self._start(self._pump, server, client)
        self._pump(client, server)

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while said := one.recv(65536):
                other.sendall(said)

    def farewell(self) -> None:
        """As a server says it that ends because another session has crashed."""
        said = b"SWARNING\0VWARNING\0C57P02\0Mterminating connection because of crash of another server process\0\0"
        for client in self._clients:
            with suppress(OSError):
                client.sendall(b"N" + struct.pack("!I", len(said) + 4) + said)
                client.shutdown(socket.SHUT_RDWR)
        self._clients.clear()


class Pooler(Listening):
    """A transaction pooler: a client has a server's connection for one transaction only, and another one for the next."""

    def __init__(self, port: int, startup: bytes, size: int = 2) -> None:
        self._pool: list[socket.socket] = []
        self._free = threading.Condition()
        self._hello = b""
        self.transactions: list[int] = []
        super().__init__()
        for _ in range(size):
            server = self.to_server(port)
            server.sendall(Message(b"", startup).whole())
            hello = []
            while (message := read_message(server)) is not None:
                hello.append(message.whole())
                if message.kind == b"Z":
                    break
            self._hello = b"".join(hello)
            self._pool.append(server)

    def serve(self, client: socket.socket) -> None:
        if read_message(client, first=True) is None:
            return
        client.sendall(self._hello)
        while (message := read_message(client)) is not None:
            if message.kind == b"X":
                return
            with self._free:
                while not self._pool:
                    self._free.wait()
                server = self._pool.pop(0)
            self.transactions.append(server.getsockname()[1])
            last = self._transaction(client, server, message)
            with self._free:
                self._pool.append(server)  # the next one gets another
                self._free.notify()
            client.sendall(last)  # only now: before, its next transaction could find the pool without this one

    def _transaction(self, client: socket.socket, server: socket.socket, message: Message) -> bytes:
        """Run one transaction; what is still to be sent of its answer."""
        current: Message | None = message
        while current is not None:
            server.sendall(current.whole())
            while current.kind not in (b"S", b"Q"):
                current = read_message(client)
                assert current is not None
                server.sendall(current.whole())
            while (answer := read_message(server)) is not None and answer.kind != b"Z":
                client.sendall(answer.whole())
            if answer is None or answer.body == b"I":
                return b"" if answer is None else answer.whole()
            client.sendall(answer.whole())
            current = read_message(client)
        return b""
