"""Listening to what wakes workers: one connection, on which other processes say that a task has something to do."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

import psycopg

from ... import host
from ...errors import StoreError
from .link import Connection, connect, shut
from .place import Place, url_without_password

AGAIN = (0.5, 1.0, 2.0, 5.0)
"""Seconds before a lost connection is opened again; the last one for all that follow."""


class Listener:
    """A thread that calls `wake` when the database says so, and after each time that it could not have heard it.

    Meaning: LISTEN needs a session of its own, so that behind a transaction pooler nothing is ever heard: then the store's
    URL names the server itself in ``direct``. Whoever waits for it looks by itself every so often.
    """

    def __init__(self, place: Place, wake: Callable[[], None]) -> None:
        self.heard = 0
        self.listening = host.event()  # while a connection listens
        self._place = place
        self._wake = wake
        self._ended = host.event()
        self._reader, self._writer = os.pipe()
        self._thread: threading.Thread | None = None

    def start(self) -> Listener:
        """Begin, in a thread of its own."""
        self._thread = host.thread(target=self._run, name="doubtless-listener", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, and close the connection."""
        if self._ended.is_set():
            return
        self._ended.set()
        os.write(self._writer, b".")
        if self._thread is not None:
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _run(self) -> None:
        failed = 0
        while not self._ended.is_set():
            try:
                connection = self._open()
            except (StoreError, psycopg.Error):
                self._ended.wait(AGAIN[min(failed, len(AGAIN) - 1)])
                failed += 1
                continue
            failed = 0
            try:
                self.listening.set()
                self._wake()  # of what was said before nobody has heard
                self._hear(connection)
            except (psycopg.Error, OSError):
                self._ended.wait(AGAIN[0])
            finally:
                self.listening.clear()
                shut(connection)

    def _open(self) -> Connection:
        direct = self._place.direct
        connection = connect(direct, url_without_password(direct)) if direct else connect(self._place.conninfo, self._place.shown)
        try:
            connection.execute(f'LISTEN "doubtless_{self._place.schema}"'.encode())
        except BaseException:
            shut(connection)
            raise
        return connection

    def _hear(self, connection: Connection) -> None:
        while not self._ended.is_set():
            ready, _, _ = select.select([connection.fileno(), self._reader], [], [])
            if self._reader in ready:
                return
            if list(connection.notifies(timeout=0)):
                self.heard += 1
                self._wake()
