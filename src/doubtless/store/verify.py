"""Verify: does the log hold together, and do its refs, its projections and its mark fit it? Reads only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import apsw

from ..errors import StoreDamaged, StoreError
from ..events import STORE_TASK, Event, Kind, row_hash, upcast
from ..snapshots import Snapshot, as_folded, fault_of
from .base import CaseRow, KeyRow, Problem
from .blobstore import whole
from .folder import Folder
from .link import Link
from .opening import Place, misfit, open_database
from .place import missing_pages
from .projections import Folded, FoldedHead
from .schema import meta, queries
from .spill import Spill
from .wal import lost_commits

Holds = Callable[[bytes], bool]
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Beside(NamedTuple):
    """Where content lies that the database does not hold."""

    folder: Folder
    elsewhere: Holds | None

    def holds(self, digest: bytes) -> bool:
        """True when it is there, unchecked."""
        return self.folder.holds(digest) or (self.elsewhere is not None and self.elsewhere(digest))


class Source(Protocol):
    """One consistent view of a store's database, read by the names of its queries; rows of the log come as the log has them."""

    def read(self, name: str, args: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]: ...

    @property
    def suspect(self) -> bool: ...


class SqliteSource:
    """A connection in a transaction that reads."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def read(self, name: str, args: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        return self.connection.execute(queries()[name], args)

    @property
    def suspect(self) -> bool:
        return meta(self.connection).suspect


def verify(place: Place, folder: Folder, spill: Spill, holds: Holds | None = None) -> list[Problem]:
    """Check the file, every chain, gap and ref, every projection, the spilled results and the mark.

    Meaning: one consistent view of the log; what is written meanwhile is not seen. Works on a suspect store too.
    `holds`: whether content lies elsewhere than in the database and the folder.
    A change to the last row of a task that still runs is seen only once a later row or head is chained to it.
    """
    problems: list[Problem] = []
    content = Beside(folder, holds)
    short = missing_pages(place.path)
    if short:
        problems.append(Problem(place.path, None, short))
    mark = place.mark.read()  # before the meta row, which is never behind it
    link = Link(place.path, lambda: open_database(place, read_only=True), read_only=True)
    try:
        with link.lock:
            connection = link.ready().connection
            connection.execute("BEGIN")
            source = SqliteSource(connection)
            for check in (lambda: _file(connection), lambda: _triggers(connection), *checks_of(source, content)):
                try:
                    problems.extend(check())
                except (apsw.Error, ValueError, TypeError, KeyError, AttributeError) as error:
                    problems.append(Problem(place.path, None, f"it cannot be read whole: {error}"))
                except StoreError as error:
                    problems.append(Problem(place.path, None, error.message))
            lost = lost_commits(place.path)
            if lost:
                problems.append(Problem(place.path, None, lost))
            problems.extend(_mark(place, misfit(mark, meta(connection))))
    except StoreError as error:
        problems.append(Problem(place.path, None, error.message))
    except apsw.Error as error:
        problems.append(Problem(place.path, None, f"it cannot be read whole: {error}"))
    finally:
        link.close()
    problems.extend(damaged_spills(spill))
    return problems


def damaged_spills(spill: Spill) -> Iterator[Problem]:
    """The spilled results that cannot be read any more."""
    return (Problem(name, None, "the spilled result is damaged") for name in spill.names() if spill.read(name) is None)


def checks_of(source: Source, content: Beside) -> tuple[Callable[[], Iterable[Problem]], ...]:
    """The checks that every store passes: the log with its refs and projections, the snapshots, the content."""
    return (lambda: _log(source, content), lambda: _snapshots(source), lambda: _contents(source, content))


def _file(connection: apsw.Connection) -> Iterator[Problem]:
    for (said,) in connection.execute("PRAGMA integrity_check"):
        if said != "ok":
            yield Problem(connection.filename, None, f"SQLite finds it damaged: {said}")


def _triggers(connection: apsw.Connection) -> Iterator[Problem]:
    stand = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")}
    for name in re.findall(r"CREATE TRIGGER (\w+)", queries()["schema"]):
        if name not in stand:
            yield Problem(connection.filename, None, f"the trigger {name} is gone: the log was not protected")


def _mark(place: Place, why: str) -> Iterator[Problem]:
    if why:
        yield Problem(place.mark.path, None, f"the database does not fit its mark: {why}")
    if place.mark.fault:
        yield Problem(place.mark.path, None, f"the last write of the mark failed: {place.mark.fault}")


def _log(source: Source, content: Beside) -> Iterator[Problem]:
    """Walk the whole log once: gaps, chains, refs; then compare the projections with their fold (I9)."""
    folded = Folded()
    task, seq, digest = "", 0, b""
    of_store = (0, b"")
    tails = {row[0]: row[-2:] for row in source.read("tails")}

    @lru_cache(1 << 16)  # the same policies again and again, and in one view of the log it is there or not
    def held(digest: bytes) -> bool:
        return bool(list(source.read("has_blob", (digest,)))) or content.holds(digest)

    for row in source.read("all_rows"):
        event = upcast(row)
        if event.task_id != task:
            task, seq, digest = event.task_id, 0, b""
        if event.event_seq != seq + 1:
            yield Problem(task, seq + 1, f"rows {seq + 1} to {event.event_seq - 1} are missing")
        elif (event.prev_hash or b"") != digest:
            yield Problem(task, seq, f"row {seq} is not what it was when row {event.event_seq} was written")
        seq, digest = event.event_seq, row_hash(event)
        folded.ends[task] = seq
        if seq == tails.get(task, (0, b""))[0] and digest != tails[task][1]:
            folded.unlike.add(task)
        try:
            yield from _refs(event, held)
            folded.add(event, digest)
        except (KeyError, ValueError, TypeError, AttributeError, StoreDamaged) as error:
            yield Problem(task, seq, f"row {seq} cannot be folded: {error!r}")
        if task == STORE_TASK:
            of_store = (seq, digest)
    yield from _store_tail(source, of_store)
    yield from _heads(source, folded)
    yield from _projections(source, folded)


def _store_tail(source: Source, link: tuple[int, bytes]) -> Iterator[Problem]:
    """The last row of the store's own task, which has no head."""
    noted = next(iter(source.read("tail", (STORE_TASK,))), (0, b""))
    if tuple(noted) != link:
        yield Problem(STORE_TASK, noted[0], f"row {noted[0]} is not what it was, or missing")


def _refs(event: Event, held: Holds) -> Iterator[Problem]:
    for name, digest in refs(event):
        if not held(digest):
            yield Problem(event.task_id, event.event_seq, f"the content of its {name} is missing (sha256:{digest.hex()})")


def refs(event: Event) -> Iterator[tuple[str, bytes]]:
    """The digests of all content that a row names; in `data`, values ``sha256:…`` of keys that end with ``_ref``."""
    for name, value in (("input_ref", event.input_ref), ("output_ref", event.output_ref), ("policy", event.data)):
        if isinstance(value, bytes):
            yield name, value
    if event.kind == Kind.STEP_INTENDED and isinstance(event.data, str):
        yield "policy", bytes.fromhex(event.details["policy"])
    if isinstance(event.data, str) and '_ref":"sha256:' in event.data:
        for name, value in json.loads(event.data).items():
            if name.endswith("_ref") and isinstance(value, str) and value.startswith("sha256:"):
                yield name, bytes.fromhex(value[7:])


def _heads(source: Source, folded: Folded) -> Iterator[Problem]:
    stored = {row[0]: FoldedHead._make(row[1:]) for row in source.read("tails")}
    for task in sorted(stored.keys() | folded.heads.keys()):
        head, log = stored.get(task), folded.heads.get(task)
        if head is None or log is None:
            yield Problem(task, None, "the log has the task, the heads do not" if head is None else "the head has no log")
        elif head.tail_seq > folded.ends[task]:
            yield Problem(task, head.tail_seq, f"row {head.tail_seq}, which changed the head, is missing")
        elif task in folded.unlike:
            yield Problem(task, head.tail_seq, f"row {head.tail_seq} is not what it was when it changed the head")
        else:
            for name, says, fold in zip(FoldedHead._fields, head, log, strict=True):
                if says != fold and not name.startswith("tail"):
                    yield Problem(task, log.tail_seq, f"the head's {name} is {says!r}, the log says {fold!r}")


def _projections(source: Source, folded: Folded) -> Iterator[Problem]:
    cases = {row[0]: CaseRow._make(row)._replace(notified_at=None) for row in source.read("cases_all")}
    for case in sorted(cases.keys() | folded.cases.keys()):
        if cases.get(case) != folded.cases.get(case):
            yield Problem("cases", None, f"case {case} is {cases.get(case)}, the log says {folded.cases.get(case)}")
    frozen = dict(source.read("frozen"))
    if frozen != folded.freezes:
        yield Problem("freezes", None, f"frozen are {frozen}, the log says {folded.freezes}")
    keys = {row[0]: KeyRow._make(row) for row in source.read("keys")}
    for once in sorted(keys.keys() | folded.keys.keys()):
        if keys.get(once) != folded.keys.get(once):
            yield Problem("keys", None, f"business key {once!r} is {keys.get(once)}, the log says {folded.keys.get(once)}")
    if source.suspect != folded.suspect:
        yield Problem("meta", None, f"suspect is {source.suspect}, the log says {folded.suspect}")


def _snapshots(source: Source) -> Iterator[Problem]:
    """Compare each snapshot with the fold of its task's log up to its place (I9); one that is ignored is said too."""
    for stored in source.read("snapshots"):
        snapshot = Snapshot._make(stored)
        task, seq = snapshot.task_id, snapshot.event_seq
        row = next(iter(source.read("rows_at", (task, json.dumps([seq])))), None)
        fault = fault_of(snapshot, None if row is None else upcast(row))
        if fault is None and not as_folded(snapshot, [upcast(one) for one in source.read("rows", (task, 0))]):
            fault = "it does not hold what the log says"
        if fault is not None:
            what = f"the snapshot of task {task} at row {seq} is ignored: {fault}; the log has everything"
            yield Problem("snapshots", seq, what)


def _contents(source: Source, content: Beside) -> Iterator[Problem]:
    for digest, held in source.read("blobs"):
        if sha256(held).digest() != digest:
            yield Problem("blobs", None, f"the content of sha256:{digest.hex()} is damaged")
    for digest in content.folder.digests():
        if not whole(content.folder, digest):
            yield Problem(content.folder.where(digest), None, f"the content of sha256:{digest.hex()} is damaged")


def unsettled_intents(events: list[Event]) -> list[Event]:
    """The intents whose steps have no settling row among these rows: what may have been sent and is not known."""
    settled = {(event.task_id, event.path) for event in events if event.kind == Kind.STEP_SETTLED}
    return [event for event in events if event.kind == Kind.STEP_INTENDED and (event.task_id, event.path) not in settled]


def unnamed(digests: set[bytes], place: Place, spill: Spill) -> set[bytes]:
    """Those of these digests that no event, snapshot or spilled result of this log names."""
    link = Link(place.path, lambda: open_database(place, read_only=True), read_only=True)
    try:
        with link.lock:
            left = still_unnamed(digests, link.ready().execute(queries()["naming"]))
    finally:
        link.close()
    return unspilled(left, spill)


def unspilled(left: set[bytes], spill: Spill) -> set[bytes]:
    """Those of these digests that no spilled result names."""
    for name in spill.names():
        with open(name, encoding="utf-8", errors="replace") as file:
            left = still_unnamed(left, [(file.read(),)])
    return left


def still_unnamed(digests: set[bytes], naming: Iterable[Sequence[Any]]) -> set[bytes]:
    """Those of these digests that none of these rows names. Whatever reads like a digest names one: better kept than missed."""
    left = set(digests)
    for row in naming:
        for value in row:
            if isinstance(value, bytes):
                left.discard(value)
            elif isinstance(value, str):
                left.difference_update(map(bytes.fromhex, _DIGEST.findall(value)))
    return left
