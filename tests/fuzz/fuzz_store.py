"""A store that holds something of every kind, copies of it, what reads give of it, and ways to damage its files."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from fuzz_program import LONG, TASKS, World, declare, shown

from doubtless import Doubtless, DoubtlessError
from doubtless.events import COLUMNS
from doubtless.testing import FakeClock, Killed, harness
from doubtless.testing.harness import NAMESPACE

NAME = "doubtless-1.db"
PAGE = 4096
START = "2026-11-28T15:00:00+00:00"
"""When a damaged copy is opened: hours after it was written."""


class Written(NamedTuple):
    """A store as it was written: its folder, its tasks, what reads give, the rows of its log, and what happened outside."""

    folder: Path
    tasks: list[str]
    reads: dict[str, Any]
    rows: list[Any]
    world: World
    happened: Counter[tuple[str, str]]

    def __repr__(self) -> str:
        return f"<the store in {self.folder}>"


def fill(folder: Path, *, checkpointed: bool) -> Written:
    """Make it. Not checkpointed, its rows are in the WAL, as a process that was killed leaves them."""
    app, work, kept, spare = Doubtless("sqlite:///elsewhere.db"), folder / "work", folder / "kept", folder / "spare"
    work.mkdir(parents=True)
    with harness(app, work) as ground:
        world = World(ground.clock)
        declare(app, world)
        _run_everything(app, ground, world)
        assert app.verify() == []
        if checkpointed:
            app.close()
        shutil.copytree(work, kept)
        app.close()
    shutil.copytree(kept, spare)
    with opened(spare, world) as copy:
        ids = [head.task_id for head in copy.tasks()]
        reads = {name: read(copy) for name, read in readings(ids)}
    return Written(kept, ids, reads, raw_rows(spare / NAME) or [], world, world.under())


def _run_everything(app: Doubtless, ground: Any, world: World) -> None:
    tasks = app.declared_tasks

    def go(name: str, order: str, *goes: str) -> None:
        world.goes[:] = goes
        task_id = f"{name}-{order}"
        try:
            app.run(tasks[name], task_id=task_id, wait=False, **{"goal" if name in ("clerk", "trainee") else "order": task_id})
        except (DoubtlessError, Killed):
            pass
        world.goes.clear()

    for name in TASKS:
        if name != "later":
            go(name, "o1")
    go("buy", "o2", "well", "well", "well", "lost")
    go("both", "o4", "lost", "reject")
    go("parent", "o3")
    go("clerk", "o5")
    go("trainee", "o8")
    ground.kill("pay", after="effect")
    go("buy", "o6")
    with app.session("thread-1") as session:
        session.call("pay", order="o7", amount=1, call_id="c1")
    app.send_event("ask-o1", "approve", True, event_id="e1")
    app.fork("buy-o1", at=2, task_id="forked")
    app.start(tasks["buy"], task_id="large", order="y" * 1_100_000)
    app.freeze("chat", why="an incident", by="ann")


@contextmanager
def opened(folder: Path, world: World) -> Iterator[Doubtless]:
    """The app of a copy, as a new process has it."""
    app = Doubtless(f"sqlite:///{folder / NAME}", clock=FakeClock(start=START), namespace=NAMESPACE)
    declare(app, world)
    try:
        yield app
    finally:
        app.close()


def readings(ids: list[str]) -> list[tuple[str, Callable[[Doubtless], Any]]]:
    """Every public read of what the log holds, by a name."""
    found: list[tuple[str, Callable[[Doubtless], Any]]] = []
    for one in ids:
        found.append((f"show {one}", lambda app, one=one: shown(app, one)))
        found.append((f"facts {one}", lambda app, one=one: app.facts(one)))
    return [*found, ("inbox", lambda app: [case[:8] for case in app.inbox().cases])]


def raw_rows(file: Path) -> list[Any] | None:
    """The log's rows by plain SQL, as literals; None where they cannot be read."""
    columns = ", ".join(f"quote({name})" for name in COLUMNS)
    try:
        db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)  # closing it leaves the WAL where it is
        try:
            return db.execute(f"SELECT {columns} FROM events ORDER BY task_id, event_seq").fetchall()
        finally:
            db.close()
    except (apsw.Error, ValueError):
        return None


# ---------------------------------------------------------------- damage


class Damage(NamedTuple):
    """What is done to a copy: `what` to the file `where`, at a part of its length, with a number."""

    what: str
    where: str
    at: float
    number: int


FILES = {"db": NAME, "wal": f"{NAME}-wal", "mark": f"{NAME}.mark"}


def do_damage(folder: Path, damage: Damage) -> None:
    """Damage a file; a file that is not there stays away."""
    what, where, part, number = damage
    if where == "row":
        _flip_in_a_row(folder / NAME, what, part, number)
        return
    path = folder / FILES[where] if where in FILES else _blob(folder)
    if path is None or not path.exists():
        return
    content = bytearray(path.read_bytes())
    if what == "foreign":
        path.unlink()
        db = apsw.Connection(str(path))
        db.execute("CREATE TABLE other (x)")
        db.close()
        return
    if what == "gone":
        path.unlink()
        return
    if not content:
        return
    at = int(part * len(content))
    page = at // PAGE * PAGE
    other = number * PAGE % len(content) // PAGE * PAGE
    match what:
        case "flip":
            content[at] ^= number % 255 + 1
        case "text":  # a byte where there is content: letters, digits
            while at < len(content) and not chr(content[at]).isalnum():
                at += 1
            if at < len(content):
                content[at] ^= number % 15 + 1
        case "cut":
            del content[at:]
        case "zero":
            content[page : page + PAGE] = bytes(len(content[page : page + PAGE]))
        case "swap":
            content[page : page + PAGE], content[other : other + PAGE] = content[other : other + PAGE], content[page : page + PAGE]
        case "double":
            content[page : page + PAGE] = content[other : other + PAGE]
        case "junk":
            content[page : page + PAGE] = (bytes([number % 256, 7, 130, 255]) * PAGE)[: len(content[page : page + PAGE])]
        case _:
            raise AssertionError(what)
    path.write_bytes(content)


def _blob(folder: Path) -> Path | None:
    files = sorted(path for path in (folder / f"{NAME}.blobs").rglob("*") if path.is_file())
    return files[0] if files else None


def _flip_in_a_row(file: Path, table: str, part: float, number: int) -> None:
    """Flip one byte of one cell, where its content lies in the file; the cell is found by its content."""
    db = apsw.Connection(str(file))
    try:
        cells = [
            bytes(cell) if isinstance(cell, bytes) else cell.encode()
            for row in db.execute(f"SELECT * FROM {table}")  # noqa: S608
            for cell in row
            if isinstance(cell, bytes | str) and len(cell) > 3
        ]
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.close()
    cell = cells[int(part * len(cells))]
    content = bytearray(file.read_bytes())
    places = _places(content, cell[:40])
    if places:
        at = places[number % len(places)] + number % min(len(cell), 40)
        content[at] ^= number // 7 % 15 + 1
        file.write_bytes(content)


def _places(content: bytearray, cell: bytes) -> list[int]:
    found, at = [], content.find(cell)
    while at >= 0:
        found.append(at)
        at = content.find(cell, at + 1)
    return found


def copy_of(written: Written, to: Path) -> Path:
    """A fresh copy of the store."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(written.folder, to)
    return to


def scratch() -> str | None:
    """Where throw-away databases are made: in memory, where the machine has that."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


assert len(LONG) > 256
