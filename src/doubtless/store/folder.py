"""Content above 1 MiB: one file per digest, written and synced before the event that names it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import BinaryIO

from .. import host
from ..errors import StoreUnavailable
from .blobstore import Stored

PIECE = 1 << 20
"""Bytes of one read."""

Hooks = Callable[[str], None] | None
"""Called with a name at each write point, so that a test can kill the process there; None costs nothing."""


class Folder:
    """Files named by the sha256 of what they hold: ``ab/cdef…``. A name that stands is whole."""

    def __init__(self, path: str, hooks: Hooks = None) -> None:
        self.path = self.place = path
        self._hooks = hooks
        self._sure: set[str] = set()  # folders whose own names are on the disk, as far as this process has seen to it

    def file_of(self, digest: bytes) -> str:
        """Where content of this digest lies, or would."""
        name = digest.hex()
        return os.path.join(self.path, name[:2], name[2:])

    def put(self, digest: bytes, content: bytes) -> None:
        """Write content; it and its name are on disk at return. The same content twice is one file.

        Raises: StoreUnavailable when it cannot be written; nothing half-written has a name then.
        """
        path = self.file_of(digest)
        try:
            above = names_above(os.path.dirname(path), self.path, self._sure)
            if self._renewed(path, content):
                for directory in (os.path.dirname(path), *above):  # whoever wrote it may have died between rename and sync
                    sync_directory(directory)
            else:
                write_whole(path, content, self._hooks, "blob", above)
            self._sure.update((os.path.dirname(path), self.path))
        except OSError as error:
            raise StoreUnavailable(
                f"content of {len(content)} bytes cannot be written to {path}: {error.strerror}",
                hint="free space (or raise the file size limit), then resume",
                written=False,
            ) from error

    def get(self, digest: bytes) -> bytes | None:
        """Content by digest, unchecked; None when there is none."""
        pieces = self.chunks(digest)
        return None if pieces is None else b"".join(pieces)

    def chunks(self, digest: bytes) -> Iterator[bytes] | None:
        """The same in pieces, read as they are asked for. Raises: StoreUnavailable."""
        try:
            file = open(self.file_of(digest), "rb")  # noqa: SIM115  closed when it is read through
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(digest, error) from error
        return self._pieces(file, digest)

    def _pieces(self, file: BinaryIO, digest: bytes) -> Iterator[bytes]:
        with file:
            try:
                while piece := file.read(PIECE):
                    yield piece
            except OSError as error:
                raise self._unreadable(digest, error) from error

    def _unreadable(self, digest: bytes, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"content cannot be read from {self.file_of(digest)}: {error.strerror}; nothing was run again",
            hint="make the folder readable, then resume",
            written=False,
        )

    def holds(self, digest: bytes) -> bool:
        """True when a file of this digest stands."""
        return os.path.exists(self.file_of(digest))

    def where(self, digest: bytes) -> str:
        """Where content of this digest lies, or would."""
        return self.file_of(digest)

    def stored(self) -> Iterator[Stored]:
        """All content in the folder."""
        for digest in self.digests():
            with suppress(FileNotFoundError):
                state = os.stat(self.file_of(digest))
                yield Stored(digest, state.st_size, state.st_mtime_ns // 1000)

    def drop(self, digest: bytes, before: int) -> bool:
        """Delete content that was last put before this time of the file system's clock; False: it is newer, or gone."""
        path = self.file_of(digest)
        with self._locked(fcntl.LOCK_EX):  # no writer finds it between the look and the end
            try:
                if os.stat(path).st_mtime_ns // 1000 >= before:
                    return False
                os.unlink(path)
            except FileNotFoundError:
                return False
        return True

    def _renewed(self, path: str, content: bytes) -> bool:
        """True when the file stands, holds this content, and is new again: `gc` must not take it before its event is written."""
        if not os.path.exists(path):
            return False
        with self._locked(fcntl.LOCK_SH):
            if not _is_file_of(path, content):
                return False
            os.utime(path)
            return True

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def digests(self) -> Iterator[bytes]:
        """The digests of all files that stand."""
        try:
            parts = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return
        for part in parts:
            for name in sorted(os.listdir(os.path.join(self.path, part))):
                try:
                    digest = bytes.fromhex(part + name)
                except ValueError:  # a file that was never finished
                    continue
                if len(digest) == len(sha256().digest()):
                    yield digest


def _is_file_of(path: str, content: bytes) -> bool:
    """True when the file stands and holds this content: a file that was cut or changed is written again."""
    if not os.path.exists(path) or os.path.getsize(path) != len(content):
        return False
    view, at = memoryview(content), 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            if view[at : at + len(piece)] != piece:
                return False
            at += len(piece)
    return at == len(content)


def names_above(folder: str, root: str, sure: set[str]) -> list[str]:
    """The directories in which the names of `folder`, and of `root` that holds it, are; without those that are sure.

    A folder that stands may have been made by a process that died before it had synced the name.
    """
    return [os.path.dirname(place) for place in dict.fromkeys((folder, root)) if place not in sure]


def write_whole(path: str, content: bytes, hooks: Hooks, what: str, above: Sequence[str] = ()) -> None:
    """Write a file so that its name stands for all of its content, synced, or does not stand at all.

    `above`: directories that hold names on its path which nobody has surely synced.
    """
    folder = os.path.dirname(path)
    new = _make_directories(folder)
    partial = f"{path}.{host.pid()}-{host.randomness(4).hex()}.part"
    if hooks is not None:
        hooks(what + ":write")
    try:
        with open(partial, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    for directory in dict.fromkeys((folder, *above, *new)):
        sync_directory(directory)
    if hooks is not None:
        hooks(what + ":written")


def _make_directories(folder: str) -> list[str]:
    """Make a directory and its parents; the parents in which a new name has to be synced."""
    new: list[str] = []
    while not os.path.isdir(folder):
        missing = folder
        while not os.path.isdir(os.path.dirname(missing)):
            missing = os.path.dirname(missing)
        try:
            os.mkdir(missing)
        except FileExistsError:
            if not os.path.isdir(missing):  # a file stands where the folder has to be
                raise
        new.append(os.path.dirname(missing))
    return new


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
