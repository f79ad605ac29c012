"""The high-water mark: a small file beside the database that shows when the log stops short of it.

It is made and synced before the database, and written after the commit of each claim, park and end. A database
that was restored from a backup, or copied without it, does not fit its mark: then some writes may have been sent
of which the log knows nothing, and the store is refused until a person says `recover --accept`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import NamedTuple

from .. import host
from ..errors import StoreUnavailable
from .folder import Hooks, sync_directory

CREATING, READY = "creating", "ready"
NAMESPACE_BYTES = 64
_SIZE = 6 + 2 + 8 + 1 + 32 + 1 + 20 + 1 + 2 * NAMESPACE_BYTES + 1 + 64 + 1


class Mark(NamedTuple):
    """What the file says. `state`: ``creating`` until the database stands; then ``ready``.

    `generation` is the highest count of claims, parks and ends that was committed when it was written.
    The namespace is here too, so that the keys stay the same when a person goes on without the database.
    """

    state: str
    store_id: bytes
    generation: int
    namespace: bytes


class Unfit(NamedTuple):
    """A mark that cannot be read. `empty`: nothing was written into it yet, or nothing of it reached the disk."""

    why: str
    empty: bool


def encode(mark: Mark) -> bytes:
    """The mark as one line of fixed length, with its own checksum: readable by people, written by one pwrite."""
    text = f"dbls/1  {mark.state:<8} {mark.store_id.hex()} {mark.generation:020} {mark.namespace.hex():-<{2 * NAMESPACE_BYTES}} "
    return f"{text}{sha256(text.encode()).hexdigest()}\n".encode()


def decode(content: bytes) -> Mark | Unfit:
    """Read a mark back; never raises."""
    if not content.strip(b"\0"):  # zeros: its length was on the disk when the power went, what it says was not
        return Unfit("it is empty", True)
    text = content[:-65]
    if len(content) != _SIZE or content[-65:] != f"{sha256(text).hexdigest()}\n".encode():
        return Unfit("its checksum does not fit", False)
    version, state, store_id, generation, namespace = text.decode().split()
    if version != "dbls/1":
        return Unfit(f"it has format {version}, which this version does not read", False)
    return Mark(state, bytes.fromhex(store_id), int(generation), bytes.fromhex(namespace.rstrip("-")))


class MarkFile:
    """The mark beside one database. `fault`: why the last write of it failed, which `verify` reports."""

    def __init__(self, path: str, hooks: Hooks = None) -> None:
        self.path = path
        self.fault = ""
        self._hooks = hooks

    def read(self) -> Mark | Unfit | None:
        """What the file says now; None when there is none."""
        try:
            with open(self.path, "rb") as file:
                return decode(file.read(4096))
        except FileNotFoundError:
            return None
        except OSError as error:
            return Unfit(f"it cannot be read: {error.strerror}", False)

    @contextmanager
    def creating(self, timeout: float) -> Iterator[None]:
        """Hold the right to create the store (or to recover it): one process at a time, ended with the process."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = host.monotonic() + timeout
            while not _try_lock(descriptor):
                if host.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"another process has been creating the store for {timeout:g} s ({self.path} is locked)",
                        hint="end that process, then run this again",
                    )
                host.sleep(0.0005)
            yield
        finally:
            os.close(descriptor)

    def write(self, mark: Mark) -> None:
        """Write the whole mark, synced, its directory entry too: for creation and recovery."""
        self._point("mark:sync")
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            content = encode(mark)
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(os.path.dirname(self.path))
        self._point("mark:synced")

    def raise_to(self, store_id: bytes, generation: int) -> None:
        """Raise the generation after a commit; never lower it, never make a missing file, never another store's.

        Not synced: what the mark may lose with the power is its newest step, and a lower mark refuses nothing.
        Two processes that write at one moment may leave the lower of their two numbers; the next write mends it.
        A failure is kept in `fault` and raises nothing: the commit before it stands.
        """
        self._point("mark:write")
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self.fault = f"it cannot be opened: {error.strerror}"
            return
        try:
            now = decode(os.pread(descriptor, 4096, 0))
            if not isinstance(now, Mark) or now.store_id != store_id:
                self.fault = "it is not this store's any more"
            elif now.generation < generation:
                os.pwrite(descriptor, encode(now._replace(generation=generation)), 0)
                self.fault = ""
        except OSError as error:
            self.fault = f"it cannot be written: {error.strerror}"
        finally:
            os.close(descriptor)
        self._point("mark:written")

    def _point(self, name: str) -> None:
        if self._hooks is not None:
            self._hooks(name)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
