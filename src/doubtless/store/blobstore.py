"""Where content above 1 MiB lies: one interface for a folder and an object store, and the URLs that name them.

A store of content knows nothing of the log: it keeps bytes under the sha256 of what they are. Its place is written down in the
log before the first content goes there, so that whoever opens the log finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple, Protocol

from .. import host
from ..errors import StoreRefused

OPTIONS = ("endpoint", "region")
"""What the query of an ``s3://`` URL may say; how to reach the bucket, not which one it is."""


class Stored(NamedTuple):
    """One content that lies there. `modified`: wall-clock microseconds, of the clock of whoever keeps it."""

    digest: bytes
    size: int
    modified: int


class BlobStore(Protocol):
    """A place for content, by digest. Thread-safe. What cannot be reached raises StoreUnavailable: never None, never a guess."""

    place: str
    """The place as people name it."""

    def put(self, digest: bytes, content: bytes) -> None:
        """Keep content; durable at return. What is there already is kept when it is the same, and counts as new for `gc`.

        Raises: StoreUnavailable; nothing half-written has the name then.
        """

    def get(self, digest: bytes) -> bytes | bytearray | None:
        """Content by digest, unchecked; None when there is none. Raises: StoreUnavailable."""

    def chunks(self, digest: bytes) -> Iterator[bytes | memoryview] | None:
        """The same in pieces of a few MiB, so that it is never in memory whole."""

    def holds(self, digest: bytes) -> bool:
        """True when there is content of this digest, unchecked. Raises: StoreUnavailable."""

    def stored(self) -> Iterator[Stored]:
        """All content that lies there. Raises: StoreUnavailable."""

    def drop(self, digest: bytes, before: int) -> bool:
        """Delete content that was last put before a time of its keeper's clock; False: it is newer by now, or gone."""

    def where(self, digest: bytes) -> str:
        """Where content of this digest lies, or would, as people name it."""


class BlobPlace(NamedTuple):
    """A place for content, as a URL says it: ``s3://bucket/prefix`` or a folder.

    `tag`: the log's own part of it; `host`: of a folder, the host that wrote it down.
    """

    scheme: str
    where: str
    options: tuple[tuple[str, str], ...] = ()
    tag: str = ""
    host: str = ""

    def same(self, other: BlobPlace) -> bool:
        """True when both name one place, however it is reached."""
        return (self.scheme, self.where) == (other.scheme, other.where)

    def url(self) -> str:
        """The URL, without the log's own part."""
        from urllib.parse import urlencode

        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{self.where}{query}"

    def written(self) -> str:
        """The URL as it is written down in the log."""
        return f"{self.url()}#{self.tag}" + (f"@{self.host}" if self.host else "")


def parse_place(url: str) -> BlobPlace:
    """Read ``s3://bucket/prefix?endpoint=…&region=…``, ``file:///path`` or a path.

    Raises: StoreRefused for anything else, and for credentials in it: the URL is stored.
    """
    if "://" not in url:
        if not os.path.isabs(url):
            said = f"blobs={url!r} is no place for content"
            raise StoreRefused(said, hint='write blobs="s3://bucket/prefix" or an absolute path')
        return BlobPlace("file", os.path.normpath(url))
    from urllib.parse import parse_qsl, urlsplit

    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and os.path.isabs(parts.path) and not parts.query:
        tag, _, first = parts.fragment.partition("@")
        return BlobPlace("file", os.path.normpath(parts.path), (), tag, first)
    if parts.scheme != "s3" or not parts.netloc:
        raise StoreRefused(f"blobs={url!r} is no place for content", hint='write blobs="s3://bucket/prefix" or "file:///path"')
    options = tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    unknown = [name for name, _ in options if name not in OPTIONS]
    if "@" in parts.netloc or unknown:
        raise StoreRefused(
            f"blobs=: a bucket's URL takes {' and '.join(OPTIONS)}, and no credentials: it is stored with the log",
            hint="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role",
        )
    return BlobPlace("s3", f"{parts.netloc}/{parts.path.strip('/')}".rstrip("/"), options, parts.fragment)


def agreed(written: str, given: str | None, location: str) -> BlobPlace:
    """The place that the log has written down, reached as `given` says. Raises: StoreRefused when `given` is another one."""
    place = parse_place(written)
    if given is None:
        return place
    asked = parse_place(given)
    if not asked.same(place):
        raise StoreRefused(
            f"the log {location} has its large content in {place.url()}, not in {asked.url()}: it would not be found there",
            hint=f'blobs="{place.url()}", or no blobs at all: the log knows its place',
        )
    return place._replace(options=asked.options or place.options)


def whole(blobs: BlobStore, digest: bytes) -> bool:
    """True when the content of this digest is there and what was put; read in pieces, never held whole."""
    pieces = blobs.chunks(digest)
    if pieces is None:
        return False
    hashed = sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.digest() == digest


def refuse_unusable(place: BlobPlace, location: str) -> None:
    """Refuse at start what could not be used when the first large result comes. Raises: StoreRefused."""
    if place.scheme == "file":
        from .chosen import refuse_elsewhere

        refuse_elsewhere(place, location)
    else:
        refuse_without_obstore(place)


def refuse_without_obstore(place: BlobPlace) -> None:
    """Refuse a bucket that this installation cannot reach. Raises: StoreRefused."""
    from importlib.util import find_spec

    if find_spec("obstore") is None:
        raise StoreRefused(f"{place.url()} needs obstore, which is not installed", hint="pip install 'doubtless[s3]'")


def write_down(place: BlobPlace, tag: str, write: Callable[[str], str]) -> str:
    """Have the log write down a place, with a part of its own in it; what stands there: another process may be faster.

    Durable: a folder is made before the log names it. Raises: StoreRefused.
    """
    if place.scheme != "file":
        refuse_without_obstore(place)
        return write(place._replace(tag=tag).written())
    from .chosen import make, unmake

    place = place._replace(tag=tag, host=host.name())
    make(place)
    stands = write(place.written())
    if stands != place.written():
        unmake(place)
    return stands


def open_place(place: BlobPlace, now: Callable[[], int]) -> BlobStore:
    """The store of a place; nothing is asked of it before its first use. `now`: wall-clock microseconds."""
    if place.scheme == "file":
        from .chosen import ChosenFolder, folder_of

        return ChosenFolder(folder_of(place), place.host)
    from .bucket import Bucket

    bucket, _, prefix = place.where.partition("/")
    return Bucket(bucket, "/".join(part for part in (prefix, place.tag) if part), dict(place.options), now)
