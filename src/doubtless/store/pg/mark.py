"""The mark: what this machine has seen of a store, kept outside the database, so that a log that lost something shows.

A database that was restored from a backup, or a standby that took over without the newest commits, lacks the last event that
the mark names. One file for all processes of this machine that name the store by the same URL; the newest one is kept.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import NamedTuple

from ...errors import StoreRefused
from ..folder import Hooks, sync_directory, write_whole

_SIZE = 2048


class Mark(NamedTuple):
    """What the file says: which store, on which server and timeline, and the last event; `event_seq` 0: none yet."""

    store_id: bytes
    system: int
    timeline: int
    task_id: str
    event_seq: int
    row_hash: bytes


def encode(mark: Mark) -> bytes:
    """The mark as one line of fixed length, with its own checksum."""
    said = [
        "dbls-pg/1", mark.store_id.hex(), str(mark.system), mark.timeline, mark.event_seq, mark.row_hash.hex(), mark.task_id,
    ]  # fmt: skip
    body = json.dumps(said).ljust(_SIZE - 66)
    return f"{body} {sha256(body.encode()).hexdigest()}\n".encode()


def decode(content: bytes) -> Mark | str:
    """Read a mark back; a text says why it cannot be used."""
    body, checksum = content[: _SIZE - 66], content[_SIZE - 65 : -1].decode("ascii", "replace")
    if len(content) != _SIZE or sha256(body).hexdigest() != checksum:
        return "its checksum does not fit"
    version, store_id, system, timeline, seq, digest, task = json.loads(body)
    if version != "dbls-pg/1":
        return f"it has format {version}, which this version does not read"
    return Mark(bytes.fromhex(store_id), int(system), timeline, task, seq, bytes.fromhex(digest))


class MarkFile:
    """The mark's file. `fault`: why the last write of it failed, which `verify` reports."""

    def __init__(self, path: str, hooks: Hooks = None) -> None:
        self.path = path
        self.fault = ""
        self._hooks = hooks

    def read(self) -> Mark | str | None:
        """What the file says now; None when there is none; a text when it cannot be used."""
        found: Mark | str = ""
        for _ in range(5):  # another process may be writing it
            try:
                with open(self.path, "rb") as file:
                    found = decode(file.read(_SIZE + 1))
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                return f"it cannot be read: {error.strerror}"
            if isinstance(found, Mark):
                break
        return found

    def write(self, mark: Mark) -> None:
        """Write the whole mark, synced, its name too. Raises: StoreRefused when it cannot be kept here."""
        try:
            if os.path.exists(self.path):
                self._put(mark, sync=True)
                sync_directory(os.path.dirname(self.path))
            else:
                write_whole(self.path, encode(mark), self._hooks, "mark")
        except OSError as error:
            raise StoreRefused(
                f"the mark cannot be kept at {self.path}: {error.strerror}; without it a restored database would not be noticed",
                hint="give a directory that lasts: ?mark=/var/lib/doubtless, or set XDG_STATE_HOME",
            ) from error
        self.fault = ""

    def raise_to(self, mark: Mark) -> None:
        """Name a newer event, after its commit. Not synced; never makes a missing file; a failure raises nothing."""
        if self._hooks is not None:
            self._hooks("mark:write")
        try:
            self._put(mark, sync=False)
            self.fault = ""
        except OSError as error:
            self.fault = f"it cannot be written: {error.strerror}"
        if self._hooks is not None:
            self._hooks("mark:written")

    def _put(self, mark: Mark, *, sync: bool) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, encode(mark), 0)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
