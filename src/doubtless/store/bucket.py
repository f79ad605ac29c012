"""Content above 1 MiB in an S3-compatible store, which all machines share; through obstore (extra ``[s3]``).

An object's name is its log's own prefix, then ``sha256/ab/cdef…``. It is sent whole or in parts, and stands whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import host
from ..errors import StoreUnavailable
from .blobstore import Stored

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

PART = 8 << 20
"""Bytes of one request: what is larger is sent and read in parts, each with its own timeout and retries."""
AT_ONCE = 2
"""Parts that are under way at once; so much memory a transfer takes beside the content itself."""
TIMEOUT = 30.0
"""Seconds that one request, of one part, may take."""
RETRY_FOR = 10.0
"""Seconds after which a request that fails is not sent again; who needs the content decides then."""
REFRESH_US = 600 * 1_000_000
"""Content that is there already and older than this is sent again, so that `gc` sees it as new."""

_used_by: int | None = None
"""The process that has used obstore first: its threads do not follow into a forked child."""


class Bucket:
    """The objects of one log in a bucket. Credentials come from the usual ``AWS_*`` environment, or the machine's role."""

    def __init__(self, bucket: str, prefix: str, options: Mapping[str, str], now: Callable[[], int]) -> None:
        self.place = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/sha256/" if prefix else "sha256/"
        self._options = options
        self._now = now
        self._store: S3Store | None = None
        self._lock = host.lock()

    def put(self, digest: bytes, content: bytes) -> None:
        """Keep content: put if absent, and what is there is read back and replaced when it is not the same."""
        with _said(f"content of {len(content)} bytes cannot be written to {self.where(digest)}", "nothing has its name"):
            obs, store, key = *self._ready(), self.key(digest)
            if len(content) <= PART:
                try:
                    obs.put(store, key, content, mode="create", use_multipart=False)
                    return
                except obs.exceptions.AlreadyExistsError:
                    pass
                except obs.exceptions.NotSupportedError:  # a store without If-None-Match: the name says what it holds
                    pass
            if not self._stands(obs, store, digest, len(content)):
                self._send(obs, store, key, content)

    def _stands(self, obs: Any, store: S3Store, digest: bytes, size: int) -> bool:
        """True when the very content is there, and young enough not to be taken for litter."""
        try:
            meta = obs.head(store, self.key(digest))
        except FileNotFoundError:
            return False
        if meta["size"] != size or not 0 <= self._now() - _micros(meta) + REFRESH_US // 2 < REFRESH_US:
            return False
        held = sha256()
        for piece in self._pieces(obs, store, digest, size):
            held.update(piece)
        return held.digest() == digest

    def _send(self, obs: Any, store: S3Store, key: str, content: bytes) -> None:
        if len(content) <= PART:
            obs.put(store, key, content, use_multipart=False)
        else:
            view = memoryview(content)
            parts = (view[at : at + PART] for at in range(0, len(content), PART))
            obs.put(store, key, parts, chunk_size=PART, max_concurrency=AT_ONCE)

    def get(self, digest: bytes) -> bytes | bytearray | None:
        """Content by digest, unchecked; None when there is none."""
        with _said(f"content cannot be read from {self.where(digest)}", "nothing was run again"):
            obs, store = self._ready()
            size = self._size(obs, store, digest)
        if size is None:
            return None
        content, at = bytearray(size), 0
        for piece in self._pieces(obs, store, digest, size):
            content[at : at + len(piece)] = piece
            at += len(piece)
        return content

    def chunks(self, digest: bytes) -> Iterator[bytes | memoryview] | None:
        """The content in pieces, read as they are asked for."""
        with _said(f"content cannot be read from {self.where(digest)}", "nothing was run again"):
            obs, store = self._ready()
            size = self._size(obs, store, digest)
            return None if size is None else self._pieces(obs, store, digest, size)

    def _pieces(self, obs: Any, store: S3Store, digest: bytes, size: int) -> Iterator[bytes | memoryview]:
        for at in range(0, size, PART):
            with _said(f"content cannot be read from {self.where(digest)}", "nothing was run again"):
                piece = obs.get_range(store, self.key(digest), start=at, end=min(at + PART, size))
            yield memoryview(piece)

    def _size(self, obs: Any, store: S3Store, digest: bytes) -> int | None:
        try:
            return int(obs.head(store, self.key(digest))["size"])
        except FileNotFoundError:
            self._refuse_no_bucket(obs, store, digest)
            return None

    def _refuse_no_bucket(self, obs: Any, store: S3Store, digest: bytes) -> None:
        """A bucket that is not there is no missing content: a wrong endpoint or account must not read as damage."""
        try:
            obs.get_range(store, self.key(digest), start=0, end=1)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise StoreUnavailable(
                    f"there is no bucket {self._bucket} where content is looked for; nothing was run again",
                    hint="check AWS_ENDPOINT_URL, AWS_REGION and the account, then resume",
                    written=False,
                ) from error

    def holds(self, digest: bytes) -> bool:
        """True when there is an object of this digest."""
        with _said(f"it cannot be told whether {self.where(digest)} is there", "nothing was run again"):
            obs, store = self._ready()
            return self._size(obs, store, digest) is not None

    def stored(self) -> Iterator[Stored]:
        """All objects of this log."""
        with _said(f"{self.place} cannot be listed", "nothing was changed"):
            obs, store = self._ready()
            for page in obs.list(store, prefix=self._prefix):
                for meta in page:
                    digest = _digest_of(meta["path"][len(self._prefix) :])
                    if digest is not None:
                        yield Stored(digest, meta["size"], _micros(meta))

    def drop(self, digest: bytes, before: int) -> bool:
        """Delete an object, unless it was put again since."""
        with _said(f"{self.where(digest)} cannot be deleted", "nothing that the log names was touched"):
            obs, store = self._ready()
            try:
                meta = obs.head(store, self.key(digest))
            except FileNotFoundError:
                return False
            if _micros(meta) >= before:
                return False
            obs.delete(store, self.key(digest))
            return True

    def key(self, digest: bytes) -> str:
        """The object's name in the bucket."""
        name = digest.hex()
        return f"{self._prefix}{name[:2]}/{name[2:]}"

    def where(self, digest: bytes) -> str:
        """Where content of this digest lies, or would."""
        return f"s3://{self._bucket}/{self.key(digest)}"

    def _ready(self) -> tuple[Any, S3Store]:
        global _used_by
        if _used_by not in (None, host.pid()):
            raise StoreUnavailable(
                f"{self.place} was used before this process was forked, and its connections do not follow into a child",
                hint="start children with spawn, or let the parent use the object store only after it has forked",
                written=False,
            )
        with self._lock:
            if self._store is None:
                self._store = self._open()
            _used_by = host.pid()
        import obstore

        return obstore, self._store

    def _open(self) -> S3Store:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise StoreUnavailable(
                f"{self.place} needs obstore, which is not installed", hint="pip install 'doubtless[s3]'", written=False
            ) from error
        endpoint = self._options.get("endpoint")
        config: S3Config = {"virtual_hosted_style_request": False, "conditional_put": "etag"}
        if endpoint:
            config["endpoint"] = endpoint
        if region := self._options.get("region"):
            config["region"] = region
        return S3Store(
            self._bucket,
            config=config,
            client_options={
                "timeout": timedelta(seconds=TIMEOUT), "connect_timeout": timedelta(seconds=min(5.0, TIMEOUT)),
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
            },
            retry_config={
                "max_retries": 4, "retry_timeout": timedelta(seconds=RETRY_FOR),
                "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
            },
        )  # fmt: skip


class _said:  # noqa: N801  used as a function
    """Turn what obstore raises into StoreUnavailable, with what was to be done and what has not happened."""

    def __init__(self, what: str, comfort: str) -> None:
        self._what, self._comfort = what, comfort

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, StoreUnavailable) or not isinstance(error, Exception):
            return
        reason = " ".join(str(error).partition("Debug source")[0].split())[:300]
        raise StoreUnavailable(
            f"{self._what} ({reason}); {self._comfort}", hint="mend the object store, or its rights, then resume", written=False
        ) from error


def _micros(meta: Any) -> int:
    return int(meta["last_modified"].timestamp() * 1_000_000)


def _digest_of(name: str) -> bytes | None:
    try:
        digest = bytes.fromhex(name.replace("/", "", 1))
    except ValueError:
        return None
    return digest if len(digest) == 32 else None
