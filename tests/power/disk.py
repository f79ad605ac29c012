"""The model of a disk: what may be on it when the power goes, after any operation.

What a completed sync covers is there. Of what was written since, each 512-byte sector holds any of the contents that it
had since the sync, the size is any of the sizes, and what was never written of a longer file is zeros. Of the names that
were made, moved and removed in a directory since its sync any may be missing; a rename is one change. Nothing else is
assumed: no order between files, none between the sectors of a file.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from .recorder import Op, Recorder

SECTOR = 512
TORN_WHOLE = 64
"""Up to so many sectors a write is torn at each of them; a larger one at as many places, spread over it."""


class Way(NamedTuple):
    """How much of a file's pending operations is on the disk: how many of them by default, of single sectors, of the size."""

    default: int
    size: int
    sectors: Mapping[int, int] = {}


class Inode:
    """A file: what is surely on the disk, and the writes and truncations since its last sync."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.now = bytearray(content)
        self.pending: list[Op] = []
        self.sizes = [len(content)]

    def take(self, op: Op) -> None:
        apply(self.now, op)
        self.pending.append(op)
        self.sizes.append(len(self.now))

    def sync(self) -> None:
        if self.pending:
            self.durable = bytes(self.now)
            self.pending, self.sizes = [], [len(self.durable)]

    @property
    def all(self) -> Way:
        return Way(len(self.pending), len(self.pending))

    def content(self, way: Way) -> bytes:
        """What the disk holds of the file when so much of it was written."""
        image = self._image(way.default)
        size = self.sizes[way.size]
        for sector, version in way.sectors.items():
            at = sector * SECTOR
            if at < size:
                there = self._image(version)[at : at + SECTOR]
                if len(image) < at + SECTOR:
                    image.extend(bytes(at + SECTOR - len(image)))
                image[at : at + SECTOR] = there.ljust(SECTOR, b"\0")
        del image[size:]
        image.extend(bytes(size - len(image)))
        return bytes(image)

    def _image(self, version: int) -> bytearray:
        if version == len(self.pending):
            return bytearray(self.now)
        image = bytearray(self.durable)
        for op in self.pending[:version]:
            apply(image, op)
        return image

    # ------------------------------------------------------------ ways

    def dropped(self, number: int) -> Iterator[Way]:
        """The ways in which the one operation is missing, and what was written over it in the same sectors."""
        last = len(self.pending)
        sectors = dict.fromkeys(self._touched(number), number)
        yield Way(last, last, sectors)
        if self.sizes[number + 1] != self.sizes[number]:
            yield Way(last, number, {})

    def alone(self, number: int) -> Way:
        """The way in which of all that is pending only this one operation is there."""
        return Way(0, len(self.pending), dict.fromkeys(self._touched(number), number + 1))

    def torn(self) -> Iterator[Way]:
        """The ways in which the last operation is there up to a sector, or from a sector on."""
        last = len(self.pending)
        touched = list(self._touched(last - 1))
        step = max(1, len(touched) // TORN_WHOLE)
        for cut in range(step, len(touched), step):
            yield Way(last, last, dict.fromkeys(touched[cut:], last - 1))
            yield Way(last, last, dict.fromkeys(touched[:cut], last - 1))

    def anyhow(self, chance: random.Random) -> Way:
        """Any way: each sector that a pending operation touches holds any of what it held."""
        last = len(self.pending)
        touched = sorted({sector for number in range(last) for sector in self._touched(number)})
        if len(touched) > TORN_WHOLE:
            touched = chance.sample(touched, TORN_WHOLE)
        size = last if chance.random() < 0.6 else chance.randint(0, last)
        return Way(chance.choice([0, last]), size, {sector: chance.randint(0, last) for sector in touched})

    def _touched(self, number: int) -> range:
        op = self.pending[number]
        if op.kind == "truncate":
            low, high = sorted(self.sizes[number : number + 2])
            return range(low // SECTOR, -(-high // SECTOR))
        return range(op.at // SECTOR, -(-(op.at + len(op.data)) // SECTOR))


def apply(content: bytearray, op: Op) -> None:
    """Do an operation to a file's content."""
    if op.kind == "truncate":
        del content[op.at :]
        content.extend(bytes(op.at - len(content)))
    else:
        if len(content) < op.at:
            content.extend(bytes(op.at - len(content)))
        content[op.at : op.at + len(op.data)] = op.data


class Directory:
    """A directory's names: those that are surely there (of a file its number, of a directory None), and the changes since."""

    def __init__(self) -> None:
        self.durable: dict[str, int | None] = {}
        self.pending: list[tuple[str, str, int | None]] = []  # (name, "" or the name that it had, file); file -1: removed

    def names(self, kept: list[bool]) -> dict[str, int | None]:
        names = dict(self.durable)
        for (name, before, file), keep in zip(self.pending, kept, strict=True):
            if keep:
                names.pop(before or name, None)
                if file != -1:
                    names[name] = file
        return names

    def sync(self) -> None:
        self.durable, self.pending = self.names([True] * len(self.pending)), []


class State(NamedTuple):
    """What a disk may hold: files by path, and empty directories. `how` says in which way it came about."""

    how: str
    files: Mapping[str, bytes]
    folders: frozenset[str]

    def digest(self) -> bytes:
        """The same for states of equal content."""
        hashed = sha256()
        for path in sorted(self.files):
            hashed.update(f"{path}\0{len(self.files[path])}\0".encode())
            hashed.update(self.files[path])
        hashed.update("\0".join(sorted(self.folders)).encode())
        return hashed.digest()

    def lay_out(self, folder: str) -> None:
        """Write the state into an empty folder."""
        for path in sorted(self.folders):
            os.makedirs(os.path.join(folder, path), exist_ok=True)
        for path, content in self.files.items():
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            with open(os.path.join(folder, path), "wb") as file:
                file.write(content)


class Disk:
    """A disk on which recorded operations are done one by one, and which may lose its power after each."""

    def __init__(self, recorder: Recorder) -> None:
        self.files = {recorder.base_files[path]: Inode(content) for path, content in recorder.base.items()}
        self.folders: dict[str, Directory] = {".": Directory()}
        for path in recorder.base_folders:
            self.folders[path] = Directory()
            self._folder(path).durable[os.path.basename(path)] = None
        for path, number in recorder.base_files.items():
            self._folder(path).durable[os.path.basename(path)] = number
        self._now: dict[str, int] = dict(recorder.base_files)

    def _folder(self, path: str) -> Directory:
        return self.folders[os.path.dirname(path) or "."]

    def do(self, op: Op) -> None:
        """Take one operation."""
        name = os.path.basename(op.path)
        match op.kind:
            case "write" | "truncate":
                self.files[op.file].take(op)
            case "sync":
                self.files[op.file].sync()
            case "syncdir":
                self.folders[op.path].sync()
            case "create":
                self.files[op.file] = Inode()
                self._now[op.path] = op.file
                self._folder(op.path).pending.append((name, "", op.file))
            case "mkdir":
                self.folders[op.path] = Directory()
                self._folder(op.path).pending.append((name, "", None))
            case "unlink":
                self._now.pop(op.path, None)
                self._folder(op.path).pending.append((name, "", -1))
            case "rename":
                assert os.path.dirname(op.path) == os.path.dirname(op.to), "the model knows renames inside one directory"
                number = self._now[op.to] = self._now.pop(op.path)
                self._folder(op.path).pending.append((os.path.basename(op.to), name, number))

    # ------------------------------------------------------------ what may be left

    def all(self) -> State:
        """Everything was written in time."""
        return self._state("everything", {}, {})

    def states(self, chance: random.Random, draws: int, *, singly: bool) -> Iterator[State]:
        """The states in which the disk may be left now: nothing pending, all of it, each part of it alone or missing,
        the last write torn, and so many drawn at random."""
        files = {number: inode for number, inode in self.files.items() if inode.pending}
        folders = {path: folder for path, folder in self.folders.items() if folder.pending}
        nothing = {number: Way(0, 0) for number in files}
        no_names = {path: [False] * len(folder.pending) for path, folder in folders.items()}
        yield self.all()
        yield self._state("only what was synced", nothing, no_names)
        yield self._state("names, but no content that was not synced", nothing, {})
        yield self._state("content, but no names that were not synced", {}, no_names)
        yield self._state("sizes, but no content that was not synced", {n: Way(0, len(i.pending)) for n, i in files.items()}, {})
        if singly:
            yield from self._singly(files, folders)
        for draw in range(draws):
            ways = {number: inode.anyhow(chance) for number, inode in files.items()}
            kept = {path: [chance.random() < 0.5 for _ in folder.pending] for path, folder in folders.items()}
            yield self._state(f"draw {draw}", ways, kept if chance.random() < 0.7 else {})

    def _singly(self, files: dict[int, Inode], folders: dict[str, Directory]) -> Iterator[State]:
        for number in files if len(files) > 1 else ():
            others = {other: Way(0, 0) for other in files if other != number}
            yield self._state(f"of what was not synced only file {number} is there", others, {})
            yield self._state(f"of what was not synced only file {number} is missing", {number: Way(0, 0)}, {})
        for number, inode in files.items():
            for place in range(len(inode.pending)):
                for way in inode.dropped(place):
                    yield self._state(f"write {place} of file {number} is missing", {number: way}, {})
                yield self._state(f"of file {number} only write {place} is there", {number: inode.alone(place)}, {})
            for way in inode.torn():
                yield self._state(f"the last write of file {number} is torn", {number: way}, {})
        for path, folder in folders.items():
            for place in range(len(folder.pending)):
                kept = [place != other for other in range(len(folder.pending))]
                yield self._state(f"name {place} of {path} is missing", {}, {path: kept})

    def _state(self, how: str, ways: Mapping[int, Way], kept: Mapping[str, list[bool]]) -> State:
        found: dict[str, bytes] = {}
        standing: set[str] = set()
        waiting = ["."]
        while waiting:
            place = waiting.pop()
            folder = self.folders[place]
            for name, number in folder.names(kept.get(place, [True] * len(folder.pending))).items():
                path = name if place == "." else f"{place}/{name}"
                if number is None:
                    standing.add(path)
                    waiting.append(path)
                else:
                    inode = self.files[number]
                    found[path] = inode.content(ways.get(number, inode.all))
        return State(how, found, frozenset(standing))
