"""The recorder: what a process asks of the files in one folder, in one order, with what it was told meanwhile.

SQLite's part is seen by a VFS (its writes, truncations, syncs, deletions, and the directories that it syncs), all
other files' by the functions of `os` and by `open`. What has been acknowledged to whoever runs, and what has happened
outside, stands between them as marks.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import apsw

DIRECTORY_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
_names = itertools.count(1)


class Op(NamedTuple):
    """One operation. Paths are relative to the folder; `file` is the number of a file, which a rename does not change.

    Kinds: ``create`` (path, file), ``mkdir`` (path), ``rename`` (path, to), ``unlink`` (path), ``write`` (file, at, data),
    ``truncate`` (file, at: the size), ``sync`` (file), ``syncdir`` (path), ``mark`` (fact).
    """

    kind: str
    path: str = ""
    file: int = 0
    at: int = 0
    data: bytes = b""
    to: str = ""
    fact: Any = None


class Recorder:
    """Records the operations on the files below one folder. `base`: what stood there when the recording began."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.ops: list[Op] = []
        self.lock = threading.RLock()
        self._open: dict[int, int | str] = {}  # descriptor -> file's number, or a directory's path
        self._numbers = itertools.count(1)
        self._files: dict[str, int] = {}
        self.base: dict[str, bytes] = {}
        self.base_folders: list[str] = []
        for place, folders, files in os.walk(self.folder):
            self.base_folders += [self.relative(os.path.join(place, name)) or "" for name in folders]
            for name in files:
                path = self.relative(os.path.join(place, name))
                assert path is not None
                with open(os.path.join(place, name), "rb") as file:
                    self.base[path] = file.read()
                self._files[path] = next(self._numbers)
        self.base_files = dict(self._files)

    def relative(self, path: Any) -> str | None:
        """The path below the folder; None for a file that is not watched. SQLite's shared memory is no file that lasts."""
        if isinstance(path, int) or path is None:
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full == self.folder:
            return "."
        if not full.startswith(self.folder + os.sep) or full.endswith("-shm"):
            return None
        return full[len(self.folder) + 1 :]

    def mark(self, fact: Any) -> None:
        """Note what somebody was told, or what has happened outside."""
        with self.lock:
            self.ops.append(Op("mark", fact=fact))

    def add(self, op: Op) -> None:
        self.ops.append(op)

    def number(self, path: str, existed: bool) -> int:
        """The file's number; a file that did not exist is created in the record."""
        if not existed:
            self._files[path] = next(self._numbers)
            self.add(Op("create", path, self._files[path]))
        return self._files[path]

    # ------------------------------------------------------------ in place of the functions of os

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record whatever this process does below the folder."""
        watch = _Watch(self)
        with ExitStack() as stack:
            for name in watch.NAMES:
                stack.enter_context(mock.patch.object(os, name, getattr(watch, name)))
            stack.enter_context(mock.patch.object(builtins, "open", watch.open_file))
            stack.enter_context(_sqlite_on(self))
            yield self


class _Watch:
    """The functions of `os` that change files, and `open`; each does the real thing and records it."""

    NAMES = (
        "open",
        "close",
        "write",
        "pwrite",
        "ftruncate",
        "fsync",
        "fdatasync",
        "rename",
        "replace",
        "unlink",
        "remove",
        "mkdir",
        "rmdir",
    )

    def __init__(self, recorder: Recorder) -> None:
        self.r = recorder
        self.real = {name: getattr(os, name) for name in self.NAMES}
        self.real_open = builtins.open
        self.rename_ = self.real["rename"]

    def open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        relative = self.r.relative(path)
        if relative is None:
            return int(self.real["open"](path, flags, *args, **options))
        with self.r.lock:
            existed = os.path.lexists(path)
            descriptor = int(self.real["open"](path, flags, *args, **options))
            if os.path.isdir(path):
                self.r._open[descriptor] = relative
            else:
                number = self.r.number(relative, existed)
                self.r._open[descriptor] = number
                if flags & os.O_TRUNC and existed:
                    self.r.add(Op("truncate", file=number))
            return descriptor

    def close(self, descriptor: int) -> None:
        with self.r.lock:
            self.r._open.pop(descriptor, None)
            self.real["close"](descriptor)

    def write(self, descriptor: int, data: bytes) -> int:
        number = self.r._open.get(descriptor)
        if not isinstance(number, int):
            return int(self.real["write"](descriptor, data))
        with self.r.lock:
            at = os.lseek(descriptor, 0, os.SEEK_CUR)
            written = int(self.real["write"](descriptor, data))
            self.r.add(Op("write", file=number, at=at, data=bytes(data[:written])))
            return written

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        with self.r.lock:
            written = int(self.real["pwrite"](descriptor, data, at))
            number = self.r._open.get(descriptor)
            if isinstance(number, int):
                self.r.add(Op("write", file=number, at=at, data=bytes(data[:written])))
            return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        with self.r.lock:
            self.real["ftruncate"](descriptor, size)
            number = self.r._open.get(descriptor)
            if isinstance(number, int):
                self.r.add(Op("truncate", file=number, at=size))

    def fsync(self, descriptor: int) -> None:
        with self.r.lock:
            self.real["fsync"](descriptor)
            known = self.r._open.get(descriptor)
            if known is not None:
                self.r.add(Op("sync", file=known) if isinstance(known, int) else Op("syncdir", known))

    fdatasync = fsync

    def rename(self, source: Any, to: Any, **options: Any) -> None:
        old, new = self.r.relative(source), self.r.relative(to)
        with self.r.lock:
            self.rename_(source, to, **options)
            if old is not None and new is not None:
                moved = {path: number for path, number in self.r._files.items() if path == old or path.startswith(old + "/")}
                for path, number in moved.items():
                    del self.r._files[path]
                    self.r._files[new + path[len(old) :]] = number
                self.r.add(Op("rename", old, to=new))

    replace = rename

    def unlink(self, path: Any, **options: Any) -> None:
        relative = self.r.relative(path)
        with self.r.lock:
            self.real["unlink"](path, **options)
            if relative is not None:
                self.r._files.pop(relative, None)
                self.r.add(Op("unlink", relative))

    remove = unlink

    def mkdir(self, path: Any, *args: Any, **options: Any) -> None:
        relative = self.r.relative(path)
        with self.r.lock:
            self.real["mkdir"](path, *args, **options)
            if relative is not None:
                self.r.add(Op("mkdir", relative))

    def rmdir(self, path: Any, **options: Any) -> None:
        relative = self.r.relative(path)
        with self.r.lock:
            self.real["rmdir"](path, **options)
            if relative is not None:
                self.r.add(Op("unlink", relative))

    def open_file(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        relative = self.r.relative(path)
        if relative is None or not set(mode) & set("wxa+"):
            return self.real_open(path, mode, *args, **options)
        assert "b" in mode and "a" not in mode, f"the recorder does not follow a file opened as {mode!r}"
        with self.r.lock:
            existed = os.path.lexists(path)
            file = self.real_open(path, mode, *args, buffering=0, **options)
            number = self.r.number(relative, existed)
            if "w" in mode and existed:
                self.r.add(Op("truncate", file=number))
            self.r._open[file.fileno()] = number
            return _File(self, file, number)


class _File:
    """A file object whose writes are recorded, without a buffer between."""

    def __init__(self, watch: _Watch, file: Any, number: int) -> None:
        self._watch, self._file, self._number = watch, file, number

    def write(self, data: bytes) -> int:
        with self._watch.r.lock:
            at, rest = self._file.tell(), data
            while rest:
                rest = rest[self._file.write(rest) :]
            self._watch.r.add(Op("write", file=self._number, at=at, data=bytes(data)))
            return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self._file.closed:
            self._watch.r._open.pop(self._file.fileno(), None)
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------- SQLite's own files


class RecordingVFS(apsw.VFS):
    """The system's VFS, recorded; the default one of this process while it stands. Shared memory goes to the system's."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        super().__init__(f"recording-{next(_names)}", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> RecordingFile:
        return RecordingFile(self.recorder, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        with self.recorder.lock:
            relative = self.recorder.relative(name)
            if relative is not None:
                self.recorder._files.pop(relative, None)
                self.recorder.add(Op("unlink", relative))
            super().xDelete(name, sync)  # it says itself when it syncs the directory


class RecordingFile(apsw.VFSFile):
    """One file of SQLite's, recorded."""

    def __init__(self, recorder: Recorder, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._recorder, relative = recorder, recorder.relative(path)
        with recorder.lock:
            existed = path is not None and os.path.lexists(path)
            super().__init__("unix", name, flags)
            self._number = 0 if relative is None else recorder.number(relative, existed)

    def xLock(self, level: int) -> None:
        try:
            super().xLock(level)
        except apsw.IOError:  # of a file that is open only to read; SQLite takes it as "not now", apsw would raise it later
            raise apsw.BusyError from None

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._recorder.lock:
            super().xWrite(data, offset)
            if self._number:
                self._recorder.add(Op("write", file=self._number, at=offset, data=bytes(data)))

    def xTruncate(self, size: int) -> None:
        with self._recorder.lock:
            super().xTruncate(size)
            if self._number:
                self._recorder.add(Op("truncate", file=self._number, at=size))

    def xSync(self, flags: int) -> None:
        with self._recorder.lock:
            before = len(self._recorder.ops)
            super().xSync(flags)
            if self._number:  # the file is synced first, then, of a new journal or WAL, its directory
                self._recorder.ops.insert(before, Op("sync", file=self._number))


@contextmanager
def _sqlite_on(recorder: Recorder) -> Iterator[None]:
    """Let SQLite's files be opened through the recorder, and its syncs of directories be seen."""
    before = apsw.vfs_names()[0]
    vfs = RecordingVFS(recorder)
    pointer = vfs.xGetSystemCall("openDirectory")
    assert pointer is not None
    real: Callable[..., int] = DIRECTORY_CALL(pointer)

    def opened(path: bytes, descriptor: Any) -> int:
        with recorder.lock:
            relative = recorder.relative(os.path.dirname(os.fsdecode(path)))
            if relative is not None:  # SQLite opens a directory for nothing else than to sync it
                recorder.add(Op("syncdir", relative))
            return real(path, descriptor)

    seen = DIRECTORY_CALL(opened)
    address = ctypes.cast(seen, ctypes.c_void_p).value
    assert address is not None
    vfs.xSetSystemCall("openDirectory", address)
    try:
        yield
    finally:
        vfs.xSetSystemCall("openDirectory", pointer)
        vfs.unregister()
        apsw.set_default_vfs(before)
