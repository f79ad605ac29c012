"""What stands between one process and PostgreSQL: it cuts, delays, holds and refuses connections when it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from contextlib import suppress

from tests.postgres.wire import Listening, Message, cut, read_message, read_query, runs, whole

APPENDS = (b"append_1", b"append_rows_1", b"append_shared_1")
REFUSED = {b"DBLST": "appends of an old epoch refused", b"DBLMV": "appends refused whose place was taken"}
LOOKED = 0.6
"""Seconds after which the server gets a query that came `late`: its client has looked for it by then, or is about to."""


class Weather(Listening):
    """A port of one process's own. `seen`: what happened here, by kind."""

    def __init__(self, port: int) -> None:
        self.seen: Counter[str] = Counter()
        self._to = port
        self._orders: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._refused_until = self._stalled_until = self._delayed_until = 0.0
        self._delay = 0.0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        super().__init__()

    # ------------------------------------------------------------ what it is told

    def cut_next(self, how: str, what: str, times: int) -> None:
        """Cut the connections of the next queries: of appends (`append`) or of whatever comes (`any`)."""
        with self._lock:
            self._orders += [(how, what)] * times

    def cut_all(self) -> None:
        for client, server in list(self._pairs):
            self.seen["connections cut"] += 1
            cut(client)
            cut(server)

    def refuse(self, seconds: float) -> None:
        self._refused_until = time.monotonic() + seconds

    def stall(self, seconds: float) -> None:
        """Let nothing pass, in either direction, and keep all connections."""
        self._stalled_until = time.monotonic() + seconds

    def delay(self, seconds: float, by: float) -> None:
        self._delay, self._delayed_until = by, time.monotonic() + seconds

    def calm(self) -> None:
        with self._lock:
            self._orders.clear()
        self._refused_until = self._stalled_until = self._delayed_until = 0.0

    # ------------------------------------------------------------ what passes

    def serve(self, client: socket.socket) -> None:
        if time.monotonic() < self._refused_until:
            self.seen["connections refused"] += 1
            cut(client)
            return
        try:
            server = self.to_server(self._to)
        except OSError:  # PostgreSQL is away
            cut(client)
            return
        pair = (client, server)
        self._pairs.append(pair)
        swallow = threading.Event()
        try:
            first = read_message(client, first=True)
            if first is None:
                return
            server.sendall(first.whole())
            self._start(self._answers, server, client, swallow)
            while query := read_query(client):
                self._hold("queries delayed")
                how = self._ordered(query)
                if how:
                    self._cut(how, client, server, whole(query), swallow)
                    return
                server.sendall(whole(query))
        except OSError:
            cut(client)
        finally:
            with suppress(ValueError):
                self._pairs.remove(pair)
            if not swallow.is_set():
                cut(server)

    def _hold(self, name: str) -> None:
        now = time.monotonic()
        if now < self._stalled_until:
            self.seen[f"{name.split()[0]} held"] += 1
            while (left := self._stalled_until - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
        elif now < self._delayed_until:
            self.seen[name] += 1
            time.sleep(self._delay)

    def _ordered(self, query: list[Message]) -> str:
        if not self._orders:
            return ""
        appends = any(runs(query, text) for text in APPENDS)
        with self._lock:
            for number, (how, what) in enumerate(self._orders):
                if what == "any" or appends:
                    del self._orders[number]
                    self.seen[f"cut {how}{' an append' if appends else ''}"] += 1
                    return how
        return ""

    def _cut(self, how: str, client: socket.socket, server: socket.socket, sent: bytes, swallow: threading.Event) -> None:
        if how == "before":
            cut(client)
            return
        swallow.set()
        if how == "after":
            server.sendall(sent)  # the answer is awaited by `_answers`, which cuts then
            return
        cut(client)
        if how == "late":
            time.sleep(LOOKED)
        with suppress(OSError):
            server.sendall(sent)

    def _count_refused(self, message: Message) -> None:
        for code, name in REFUSED.items():
            if code in message.body:
                self.seen[name] += 1

    def _answers(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        try:
            while (message := read_message(server)) is not None:
                if message.kind == b"E":
                    self._count_refused(message)
                if message.kind == b"Z":
                    if swallow.is_set():
                        break
                    self._hold("answers delayed")
                if not swallow.is_set():
                    client.sendall(message.whole())
        except OSError:
            pass
        cut(client)
        cut(server)
