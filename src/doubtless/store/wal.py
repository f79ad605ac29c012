"""The write-ahead log: SQLite reads it up to its first damaged frame, and takes what comes behind for never written.

A torn end is what a loss of power leaves, and was never acknowledged. But each commit is synced before the next one is
begun: where two commits in a row stand behind the place at which reading stops, the first of them was acknowledged and is
lost. In a row: of a sync that failed, later commits overwrite the frames, and its last ones may stand behind theirs.
Only the WAL's own file is read here: to close another descriptor of the database or its index would drop SQLite's locks.
Source: https://sqlite.org/fileformat2.html, section 4.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
LARGEST = 64 << 20
"""Bytes of a WAL that is looked through; SQLite copies it into the database at 4 MiB, unless somebody reads for long."""


class _Gap(NamedTuple):
    """A frame at which reading stops although commits stand behind it; `header`: of the WAL in which it was seen."""

    header: bytes
    read: int
    behind: int


def lost_commits(path: str) -> str:
    """Why the WAL beside a database is damaged, or an empty text.

    Others may write while it is read: a frame that was half there, with commits behind it, is whole when it is looked at again.
    """
    found = _look(path)
    while isinstance(found, _Gap):
        before, found = found, _look(path)
        if isinstance(found, _Gap) and found.header == before.header and found.read <= before.read:
            return f"its WAL is damaged at frame {found.read + 1}, and {found.behind} commits stand behind it"
    return found


def _look(path: str) -> str | _Gap:
    """Why the header is damaged, or an empty text; or what seems to be a gap."""
    try:
        with open(path + "-wal", "rb") as file:
            content = file.read(LARGEST + 1)
            file.seek(0)
            again = file.read(_HEADER)
    except OSError:
        return ""
    header = content[:_HEADER]
    if not _HEADER + _FRAME <= len(content) <= LARGEST or again != header:  # none yet; or it was begun anew meanwhile
        return ""
    summed = _Sum(header)
    if not summed.fits(header[:24], header[24:]):
        return "the header of its WAL is damaged, and frames stand behind it"
    read, behind = _frames(content, summed)
    return _Gap(header, read, behind) if behind > 1 else ""


class _Sum:
    """The running checksum over a WAL, in the order of bytes that its header says."""

    def __init__(self, header: bytes) -> None:
        self._order = ">" if header[3] & 1 else "<"
        self._magic = int.from_bytes(header[:4], "big") & ~1 == _MAGIC
        self._one = self._other = 0

    def fits(self, part: bytes, stored: bytes) -> bool:
        """Add a part, and say whether the sum is the stored one."""
        one, other = self._one, self._other
        words = iter(struct.unpack(f"{self._order}{len(part) // 4}I", part))
        for first, second in zip(words, words, strict=True):
            one = (one + first + other) & 0xFFFFFFFF
            other = (other + second + one) & 0xFFFFFFFF
        self._one, self._other = one, other
        return self._magic and struct.pack(">2I", one, other) == stored

    def go_on(self, stored: bytes) -> None:
        """Go on from a sum as it is stored, whatever it should be."""
        self._one, self._other = struct.unpack(">2I", stored)


def _frames(content: bytes, summed: _Sum) -> tuple[int, int]:
    """How many frames are whole, and how many commits of this WAL stand behind them, each chained to the one before it."""
    (page,) = struct.unpack_from(">I", content, 8)
    whole = row = behind = 0
    reading = True
    for at in range(_HEADER, len(content) - _FRAME - page + 1, _FRAME + page):
        frame = content[at : at + _FRAME]
        ours, commits = frame[8:16] == content[16:24], frame[4:8] != b"\0\0\0\0"
        chained = ours and summed.fits(frame[:8] + content[at + _FRAME : at + _FRAME + page], frame[16:])
        reading = reading and chained
        whole += reading
        if not chained:  # what follows may be chained to what this frame says of itself
            summed.go_on(frame[16:])
            row = int(ours and commits)
        elif not reading:
            row += commits
            behind = max(behind, row)
    return whole, behind
