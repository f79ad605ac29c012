"""Content and refs: the log holds refs, not content.

Up to 256 bytes of UTF-8 stand in the ref itself (``inline:…``); above that a ref is the sha256 of the content, which
lies in the database up to 1 MiB (written by the append that names it); above that in a folder, in an object store, or in a
team's database too (there before it).
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

from .errors import StoreDamaged
from .store.base import Blob, Store
from .store.folder import Folder

if TYPE_CHECKING:
    from .store.blobstore import BlobStore

INLINE_BYTES = 256
DATABASE_BYTES = 1 << 20
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


class Content:
    """The content of one store: what its database, its folder and its object store hold, behind one kind of ref."""

    def __init__(self, store: Store, folder: Folder, elsewhere: BlobStore | None = None) -> None:
        self._store = store
        self._folder = folder
        self._elsewhere = elsewhere
        self._known: set[bytes] = set()

    def put(self, text: str) -> tuple[str | bytes, Blob | None]:
        """Make a ref of a text, and what the append that names it must write with it (None: nothing).

        Durable: above 1 MiB it is on disk at return; a blob is when that append is. Nothing points to it before.
        Raises: StoreUnavailable when the folder or the object store cannot take it; nothing half-written has a name then.
        """
        if len(text) <= INLINE_BYTES and (text.isascii() or len(text.encode()) <= INLINE_BYTES):
            return "inline:" + text, None
        content = text.encode()
        digest = sha256(content).digest()
        if len(content) <= DATABASE_BYTES:
            return digest, Blob(digest, content)
        (self._elsewhere or self._folder).put(digest, content)
        return digest, None

    def get(self, ref: str | bytes | None) -> str:
        """The text of a ref, checked against its digest.

        Raises: StoreDamaged when it is missing or not what was written; StoreUnavailable when it cannot be read now.
        """
        if ref.__class__ is str and ref[:7] == "inline:":
            return ref[7:]
        if not isinstance(ref, bytes):
            raise StoreDamaged(f"{ref!r} is no ref", hint="doubtless verify", ref=ref)
        content: bytes | bytearray | None = self._store.blob(ref)
        where = ""
        if content is None:
            content = self._folder.get(ref)
        if content is None and self._elsewhere is not None:
            content, where = self._elsewhere.get(ref), f" in {self._elsewhere.where(ref)}"
        if content is None or sha256(content).digest() != ref:
            what = "missing" if content is None else "damaged"
            said = f"the content of {show_ref(ref)} is {what}{where}; nothing was run again"
            raise StoreDamaged(said, hint="doubtless verify", ref=show_ref(ref))
        return content.decode()

    def known(self, digest: bytes) -> bool:
        """True when the store holds content of this digest already, so that an append need not write it again."""
        if digest in self._known:
            return True
        if self._store.blob(digest) is None and not self._folder.holds(digest):
            return False
        self._known.add(digest)
        return True


def show_ref(ref: str | bytes | None) -> str | None:
    """A ref as people read it: ``inline:…`` or ``sha256:<hex>``."""
    return "sha256:" + ref.hex() if isinstance(ref, bytes) else ref


def parse_ref(text: str) -> str | bytes:
    """A ref as it was before `show_ref`. Raises StoreDamaged for what is none."""
    if _DIGEST.fullmatch(text):
        return bytes.fromhex(text[7:])
    elif text.startswith("inline:"):
        return text
    raise StoreDamaged(f"{text[:80]!r} is no ref", hint="a ref is inline:… or sha256:<hex>", ref=text[:80])
