"""Who is alive: one lock file per owner process beside the database, and a registry for the threads of one process.

The operating system drops the lock when the process dies, however it dies. A paused process keeps it: it is
alive, and may still send. The file's name is the owner that a task's head row names.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .. import host

Randomness = Callable[[int], bytes]


class Who(NamedTuple):
    """What an owner's file says of its process. `started`: microseconds of the store's clock."""

    pid: int
    host: str
    program: str
    started: int


class Owner:
    """This process as an owner beside one database: its lock file, made at the first claim, and what it has claimed.

    One per process and database, whatever the number of stores and threads. `tasks` maps a claimed task to its epoch.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.tasks: dict[str, int] = {}
        self.lock = host.lock()
        self.id: str | None = None
        self._descriptor = -1
        self._claiming = 0

    @contextmanager
    def claiming(self, now: int, randomness: Randomness) -> Iterator[str]:
        """Hold a lock file while a claim is made; its name. Made at the first claim, and anew when it was removed."""
        with self.lock:
            if self.id is not None and not _same_file(self._descriptor, os.path.join(self.folder, self.id)):
                self._drop()
            if self.id is None:
                os.makedirs(self.folder, exist_ok=True)
                sweep(self.folder)
                self.id = self._create(now, randomness)
            self._claiming += 1
        try:
            yield self.id
        finally:
            with self.lock:
                self._claiming -= 1

    def _create(self, now: int, randomness: Randomness) -> str:
        who = json.dumps({"pid": host.pid(), "host": host.name(), "program": sys.argv[0], "started": now})
        while True:
            name = f"{host.pid()}-{randomness(6).hex()}"
            path = os.path.join(self.folder, name)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(descriptor, path):  # not swept away between the open and the lock
                    os.write(descriptor, who.encode())
                    self._descriptor = descriptor
                    return name
            except BlockingIOError:  # somebody was looking at the new file; another name costs nothing
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def hold_as(self, names: set[str], claims: Sequence[tuple[str, int]]) -> bool:
        """`hold`, where this process still has the lock file of these names; False: it has not, and nothing was entered."""
        with self.lock:
            name = self.id or ""
            lives = names == {name} and _same_file(self._descriptor, os.path.join(self.folder, name))
            if lives:
                self.tasks.update(claims)
            return lives

    def hold(self, task_id: str, epoch: int) -> None:
        """Enter a claim, before its commit: no other thread may find the head row ours and the registry empty."""
        with self.lock:
            self.tasks[task_id] = epoch

    def let_go(self, task_id: str, epoch: int) -> None:
        """Forget a claim, unless a newer one has taken its place."""
        with self.lock:
            if self.tasks.get(task_id) == epoch:
                del self.tasks[task_id]

    def close(self) -> None:
        """Remove the lock file, unless a thread still has a task: then only the process's end drops the lock."""
        with self.lock:
            if not self.tasks and not self._claiming:
                self._drop()

    def _drop(self) -> None:
        if self.id is None:
            return
        path = os.path.join(self.folder, self.id)
        if _same_file(self._descriptor, path):
            os.unlink(path)
        os.close(self._descriptor)
        self.id, self._descriptor = None, -1

    def forsake(self) -> None:
        """In a forked child: the lock and the claims are the parent's alone. A copy kept open would outlive it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.id, self._descriptor = None, -1
        self._claiming = 0
        self.lock = host.lock()
        self.tasks.clear()


_OWNERS: dict[str, Owner] = {}


def owner_of_process(folder: str) -> Owner:
    """This process's one `Owner` beside a database (the real path of its owners' folder)."""
    return _OWNERS.setdefault(folder, Owner(folder))


def _forsake_all() -> None:
    for owner in _OWNERS.values():
        owner.forsake()


def _close_all() -> None:
    for owner in _OWNERS.values():
        owner.close()


os.register_at_fork(after_in_child=_forsake_all)
atexit.register(_close_all)


def alive(folder: str, owner: str | None) -> bool:
    """True while the owner's process holds its lock. Dead: its file is missing or can be locked; nothing else is."""
    if not owner or "/" in owner:
        return False
    try:
        descriptor = os.open(os.path.join(folder, owner), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look at once do not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(folder: str) -> None:
    """Remove the files of dead owners."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(descriptor, path):
                os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def living(folder: str) -> list[str]:
    """The owners beside a database whose processes live."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if alive(folder, name))


def describe(folder: str, owner: str) -> Who:
    """Who an owner is; what its file does not tell is empty."""
    try:
        with open(os.path.join(folder, owner), encoding="utf-8") as file:
            said = json.load(file)
        return Who(int(said["pid"]), said["host"], said["program"], int(said["started"]))
    except (OSError, ValueError, KeyError):
        number = owner.partition("-")[0]
        return Who(int(number) if number.isdigit() else 0, "", "", 0)


def how_to_end(who: Who) -> str:
    """The command that ends an owner's process; a stopped one must be woken or killed."""
    if who.host and who.host != host.name():
        return f"end it where it runs: kill {who.pid} on host {who.host}"
    try:
        with open(f"/proc/{who.pid}/stat", encoding="utf-8", errors="replace") as file:
            stopped = file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        stopped = False
    if stopped:
        return f"it is stopped: let it go on with `kill -CONT {who.pid}` or end it with `kill -KILL {who.pid}`"
    return f"wait for it, or end it with `kill {who.pid}`; if it is stopped, `kill -CONT {who.pid}` or `kill -KILL {who.pid}`"


def _same_file(descriptor: int, path: str) -> bool:
    try:
        found, ours = os.stat(path), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
