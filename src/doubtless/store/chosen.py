"""A folder of somebody's choice for content above 1 MiB: one that every host which uses the log has to see.

It is known by the folder of the log's own name in it, which is made when the place is written down in the log and at no other
time: where that is not there, the folder is another one, whatever its path says, and nothing is looked for in it or put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from .. import host
from ..errors import StoreRefused, StoreUnavailable
from .blobstore import BlobPlace, Stored
from .folder import Folder, sync_directory

HINT = 'mount that folder here under the same path; a log that several hosts use is best begun with blobs="s3://bucket/prefix"'


class ChosenFolder(Folder):
    """The folder of a `file://` place; each method looks first whether it is here at all (it may be mounted, and gone).

    `first`: the host that wrote the place down.
    """

    def __init__(self, path: str, first: str) -> None:
        super().__init__(path)
        self._first = first

    def put(self, digest: bytes, content: bytes) -> None:
        """Write content, as `Folder.put` does. Raises: StoreUnavailable, also where this host does not see the folder."""
        self._sure_it_is_here(f"content of {len(content)} bytes cannot be written to {self.file_of(digest)}")
        super().put(digest, content)

    def chunks(self, digest: bytes) -> Iterator[bytes] | None:
        """The content in pieces; None: the folder is here, and does not hold it. Raises: StoreUnavailable."""
        self._sure_it_is_here(f"content cannot be read from {self.file_of(digest)}")
        return super().chunks(digest)

    def holds(self, digest: bytes) -> bool:
        """True when a file of this digest stands. Raises: StoreUnavailable."""
        self._sure_it_is_here(f"it cannot be told whether {self.file_of(digest)} is there")
        return super().holds(digest)

    def stored(self) -> Iterator[Stored]:
        """All content in the folder. Raises: StoreUnavailable."""
        self._sure_it_is_here(f"{self.path} cannot be listed")
        return super().stored()

    def _sure_it_is_here(self, what: str) -> None:
        if not os.path.isdir(self.path):
            raise StoreUnavailable(f"{what}: {not_here(self.path, self._first)}; nothing was run again", hint=HINT, written=False)


def not_here(path: str, first: str) -> str:
    """Where the content lies, and that this host does not see it."""
    return f"the log's content above 1 MiB lies in the folder {path} of host {first}, which host {host.name()} does not see"


def folder_of(place: BlobPlace) -> str:
    """The log's own folder in the one that was chosen."""
    return os.path.join(place.where, place.tag)


def make(place: BlobPlace) -> None:
    """Make the log's own folder, synced, before its place is written down. Raises: StoreRefused when it cannot be made."""
    folder = folder_of(place)
    try:
        above = folder
        missing = []
        while not os.path.isdir(above):
            missing.append(os.path.dirname(above))
            above = os.path.dirname(above)
        os.makedirs(folder, exist_ok=True)
        for directory in missing:
            sync_directory(directory)
    except OSError as error:
        raise StoreRefused(
            f"blobs=: the folder {folder} cannot be made: {error.strerror}", hint="give a folder that this process may write to"
        ) from error


def unmake(place: BlobPlace) -> None:
    """Remove the log's own folder again: another process has written down another place meanwhile."""
    with suppress(OSError):
        os.rmdir(folder_of(place))


def refuse_elsewhere(place: BlobPlace, location: str) -> None:
    """Refuse at start what could not be read or put later. Raises: StoreRefused where this host does not see the folder."""
    if not os.path.isdir(folder_of(place)):
        raise StoreRefused(f"{location}: {not_here(folder_of(place), place.host)}; nothing was sent", hint=HINT)
