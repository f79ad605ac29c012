"""Content above 1 MiB where no `blobs` is given: in the database too, which all hosts share, before the row that names it.

A folder would be one host's (docs/decisions/0019-where-a-teams-content-lies.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import StoreUnavailable
from ..folder import Folder, Hooks
from .link import Link

LARGEST = 256 << 20
"""Bytes of one content. PostgreSQL takes less than 1 GiB in one value, and both sides hold it whole, several times over."""


class DatabaseContent(Folder):
    """What is too large for an append's own transaction, in the database all machines share.

    `local`: what this machine had to keep while the database took nothing.
    """

    def __init__(self, link: Link, queries: dict[str, str], path: str, hooks: Hooks) -> None:
        super().__init__(path, hooks)
        self.local = Folder(path, hooks)
        self._link = link
        self._queries = queries

    def put(self, digest: bytes, content: bytes) -> None:
        """Write content; it is committed at return. Raises: StoreUnavailable, also for what belongs into an object store."""
        if len(content) > LARGEST:
            raise StoreUnavailable(
                f"content of {len(content)} bytes is more than the database takes ({LARGEST})",
                hint='give the log an object store, blobs="s3://bucket/prefix" (what there is is found where it is), then resume',
                written=False,
            )
        self._link.write("blob", self._queries["put_blob"], (digest, content), lambda: None, lambda rows: True)

    def get(self, digest: bytes) -> bytes | None:
        """Content that this machine alone holds; the database's own is found by `Store.blob`."""
        row = self._link.one(self._queries["blob"], (digest,))
        return bytes(row[0]) if row is not None else self.local.get(digest)

    def holds(self, digest: bytes) -> bool:
        """True when the database or this machine holds it."""
        return self._link.one(self._queries["has_blob"], (digest,)) is not None or self.local.holds(digest)

    def digests(self) -> Iterator[bytes]:
        """What this machine alone holds."""
        return self.local.digests()
