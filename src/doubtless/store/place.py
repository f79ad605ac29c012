"""Where a SQLite store lies: the places that are refused, and what a file's first bytes say before SQLite sees it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import apsw

from ..errors import StoreDamaged, StoreRefused
from .schema import APPLICATION_ID, SCHEMA

LEAST_SQLITE = (3, 51, 3)

REMOTE = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse", "fuseblk", "gfs", "gfs2", "glusterfs",
    "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf",
    "virtiofs", "vmhgfs",
})  # fmt: skip
"""File systems on which another host may write, or on which the locks of one process are not surely seen by the next."""


class Header(NamedTuple):
    """A database file's first 100 bytes, and its size in bytes."""

    size: int
    is_sqlite: bool
    page_size: int
    pages: int
    application_id: int
    schema: int


def url_of(path: str) -> str:
    """The URL that names a store's file on a command line."""
    return f"sqlite:///{path}"


def file_system_of(path: str) -> str:
    """The type of the file system that holds a path, from the kernel's list of mounts; empty when it cannot be told."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
        mounted = os.fsdecode(point)
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):  # a later mount on the same point covers the earlier one
            best, kind = mounted, after.split(" ")[0]
    return kind


def refuse_old_sqlite(version: str | None = None) -> None:
    """Refuse the SQLite versions that can corrupt a WAL database when two connections checkpoint and commit at once."""
    version = version or apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < LEAST_SQLITE:
        raise StoreRefused(
            f"SQLite {version} can corrupt a log that several processes write (the WAL-reset bug, fixed in 3.51.3)",
            hint="pip install 'apsw>=3.51.3'",
            version=version,
        )


def refuse_bad_path(path: str) -> None:
    """Refuse what is no durable file: an in-memory store, an empty path."""
    if path.strip() in ("", ":memory:") or path.startswith("file:") or "\0" in path:
        raise StoreRefused(
            f"{path!r} names no file: a log in memory is gone with its process, and every write would look never sent",
            hint="give the store a file, as in sqlite:///recon.db",
        )


def refuse_bad_place(path: str, file_system: Callable[[str], str], *, read_only: bool) -> None:
    """Refuse a place where the log cannot be kept, with the reason. `path` is the file's real path."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreRefused(f"{folder} is no directory, so there is no store at {path}", hint=f"mkdir -p {folder}")
    kind = file_system(folder)
    if kind in REMOTE or kind.startswith("fuse."):
        raise StoreRefused(
            f"{path} is on a network or shared file system ({kind}): SQLite's log and the locks of owners do not work there",
            hint="put the store on a local disk of the one host that runs its tasks",
            file_system=kind,
        )
    if not kind and sys.platform == "linux":
        raise StoreRefused(f"it cannot be told which file system holds {path}", hint="mount /proc, then run this again")
    if os.path.isdir(path):
        raise StoreRefused(f"{path} is a directory", hint="give the store a file of its own")
    if not read_only:
        _refuse_unwritable(path, folder)


def _refuse_unwritable(path: str, folder: str) -> None:
    effective = os.access in os.supports_effective_ids
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise StoreRefused(f"{path} is on a read-only file system", hint="put the store where it can be written")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise StoreRefused(f"the directory {folder} cannot be written", hint=f"chmod u+wx {folder}")
    if not os.path.exists(path):
        return
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=effective):
        raise StoreRefused(f"{path} is read-only", hint=f"chmod u+rw {path}")
    if os.stat(path).st_nlink > 1:  # by another name its WAL, its owners and its mark would not be found
        raise StoreRefused(f"{path} has several names (hard links)", hint="keep one name, remove the others")


def read_header(path: str) -> Header | None:
    """What the file's first bytes say; None when there is no file.

    Read through SQLite's own file layer: to open and close the file beside it would drop the locks of every
    connection that this process has on it, and another process could then remove a WAL that is in use.
    """
    if not os.path.exists(path):
        return None
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        head, size = file.xRead(100, 0), file.xFileSize()
    finally:
        file.xClose()
    head_ok = len(head) == 100 and head.startswith(b"SQLite format 3\0")
    page = int.from_bytes(head[16:18], "big")
    return Header(
        size, head_ok, 65536 if page == 1 else page, int.from_bytes(head[28:32], "big"), int.from_bytes(head[68:72], "big"),
        int.from_bytes(head[60:64], "big"),
    )  # fmt: skip


def refuse_foreign(path: str, header: Header, *, had_mark: bool) -> None:
    """Refuse a file that is no store, or a newer one, before SQLite touches it."""
    if not header.is_sqlite:
        if had_mark:
            raise StoreDamaged(
                f"{path} was a store, and its beginning is damaged",
                hint=f"restore a backup, then doubtless recover --accept --by NAME --why TEXT --store {url_of(path)}",
            )
        raise StoreRefused(f"{path} is not a database", hint="give the store a file of its own")
    if header.application_id not in (0, APPLICATION_ID):
        raise StoreRefused(f"{path} is another application's database", hint="give the store a file of its own")
    if header.application_id == APPLICATION_ID and header.schema > SCHEMA:
        raise StoreRefused(
            f"{path} has schema {header.schema}; this version reads up to {SCHEMA}",
            hint="upgrade doubtless; the store was not touched",
        )


def missing_pages(path: str) -> str:
    """Say what the file lacks of the length that its first page states; empty when nothing.

    SQLite fills a page that ends early with zeros and reads on; rows of the log would be gone without a word.
    Pages that the WAL holds may be missing: a process was killed while it copied them (SQLite does it again).
    """
    said = ""
    for _ in range(3):  # another process may be copying pages this very moment
        header = read_header(path)
        if header is None or not header.is_sqlite or not header.page_size:
            return ""
        whole, rest = divmod(header.size, header.page_size)
        if not rest and whole >= header.pages:
            return ""
        in_wal = _pages_in_wal(path + "-wal", header.page_size)
        lost = [page for page in range(whole + 1, header.pages + 1) if page not in in_wal]
        if not lost:
            return ""
        said = f"it ends after {header.size} bytes of {header.pages * header.page_size}: {len(lost)} pages are damaged or gone"
    return said


def _pages_in_wal(path: str, page_size: int) -> set[int]:
    """The pages of the frames that belong to the WAL's current run (its salt), up to the last commit."""
    pages: set[int] = set()
    seen: set[int] = set()
    try:
        with open(path, "rb") as file:
            salt = file.read(32)[16:24]
            while len(frame := file.read(24)) == 24 and frame[8:16] == salt and len(file.read(page_size)) == page_size:
                seen.add(int.from_bytes(frame[:4], "big"))
                if int.from_bytes(frame[4:8], "big"):
                    pages |= seen
    except FileNotFoundError:
        pass
    return pages
