"""Litter: content that lies in a folder or an object store and that nothing in the log names; finding and removing it.

Content is put before the event that names it. Whoever died in between, or was refused, leaves it behind. What is young may belong
to a writer who has not come to its event yet: it is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .durations import show_duration
from .errors import StoreRefused, UsageError
from .store.base import Problem, Store
from .store.blobstore import BlobStore, Stored, whole

LEAST_US = 3_600 * 1_000_000
"""`older_than` is never less: a writer that finds its content there counts on it, and clocks differ."""


class Litter(NamedTuple):
    """What `gc` found. Shapes: `place` is where it looked; `stored` and `bytes_stored` all that lies there; `found` the litter.

    `removed`: how many of `found` are deleted now: none of a dry run, nor what was put again meanwhile.
    """

    place: str
    stored: int
    bytes_stored: int
    found: tuple[Stored, ...]
    removed: int

    @property
    def bytes_found(self) -> int:
        """The bytes of the litter."""
        return sum(one.size for one in self.found)


def gc(store: Store, places: Sequence[BlobStore], older_than_us: int, *, dry_run: bool) -> list[Litter]:
    """Find what nothing names and is older than the longest writer; delete it unless it is a dry run.

    Raises: UsageError for an age under an hour, StoreRefused in suspect mode: the log may have lost what names content.
    """
    if older_than_us < LEAST_US:
        raise UsageError(
            f"content younger than {show_duration(LEAST_US)} may belong to a writer that has not come to its event yet",
            hint="--older-than P1D is the default",
        )
    if store.info().suspect:
        raise StoreRefused(
            "the store is in suspect mode: what its log has lost may name content that nothing else names; nothing was deleted",
            hint="end it first: doubtless recover --end --by NAME --why TEXT",
        )
    before = store.now().wall - older_than_us
    return [_sweep(store, place, before, dry_run=dry_run) for place in places]


def _sweep(store: Store, place: BlobStore, before: int, *, dry_run: bool) -> Litter:
    old, count, size = {}, 0, 0
    for one in place.stored():
        count, size = count + 1, size + one.size
        if one.modified < before:
            old[one.digest] = one
    left = store.unnamed(set(old)) if old else set()  # after the listing: what an event names by now is not among them
    found = tuple(old[digest] for digest in sorted(left))
    removed = 0 if dry_run else sum(place.drop(one.digest, before) for one in found)
    return Litter(place.place, count, size, found, removed)


def damaged(place: BlobStore) -> list[Problem]:
    """Read all content of a place, in pieces, and say what is not what was put."""
    return [
        Problem(place.where(one.digest), None, f"the content of sha256:{one.digest.hex()} is damaged")
        for one in place.stored()
        if not whole(place, one.digest)
    ]


class Held:
    """Which content a place holds: listed once at the first question; what is not in the list is asked for by itself."""

    def __init__(self, place: BlobStore) -> None:
        self._place = place
        self._listed: set[bytes] | None = None

    def __call__(self, digest: bytes) -> bool:
        if self._listed is None:
            self._listed = {one.digest for one in self._place.stored()}
        return digest in self._listed or self._place.holds(digest)
