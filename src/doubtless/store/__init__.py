"""Stores: the log's home. `open_store` picks one by its URL; nothing is opened or created before its first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..clocks import SystemClock
from ..errors import StoreRefused
from ..events import Instant

if TYPE_CHECKING:
    from .base import Store
    from .folder import Hooks
    from .recover import Recovery


POSTGRES = ("postgresql", "postgres")


def open_store(
    url: str,
    *,
    clock: Callable[[], Instant],
    namespace: bytes | None = None,
    read_only: bool = False,
    hooks: Hooks = None,
    state: str = "",
) -> Store:
    """Make the store of a URL: ``sqlite:///recon.db`` (beside the working directory), ``sqlite:////var/lib/recon.db``,
    ``postgresql://user@host/database``.

    `state`: the directory in which this machine keeps what must lie outside a database that others share.
    Raises: StoreRefused for a scheme, a platform or a path on which no log can be kept.
    """
    if url.partition("://")[0] in POSTGRES:
        return _open_postgres(url, clock, namespace, read_only=read_only, hooks=hooks, state=state)
    path = path_of(url)
    if sys.platform == "win32":
        raise StoreRefused("SQLite stores are not offered on Windows: the locks of owners are not tested there", hint="use WSL 2")
    from .sqlite import SqliteStore

    return SqliteStore(path, clock=clock, namespace=namespace, read_only=read_only, hooks=hooks)


def _open_postgres(
    url: str, clock: Callable[[], Instant], namespace: bytes | None, *, read_only: bool, hooks: Hooks, state: str
) -> Store:
    try:
        from .postgres import PostgresStore
    except ImportError as error:
        raise _no_driver(error) from error
    own_clock = not isinstance(getattr(clock, "__self__", None), SystemClock)  # a clock to turn is the store's clock too
    return PostgresStore(
        url, clock=clock, state=state, namespace=namespace, own_clock=own_clock, hooks=hooks, read_only=read_only
    )


def _no_driver(error: ImportError) -> StoreRefused:
    return StoreRefused(f"PostgreSQL stores need a driver: {error}", hint="pip install 'doubtless[postgres]'")


def migrate_store(url: str, *, state: str, namespace: bytes | None = None) -> tuple[int, int]:
    """Make or renew the tables of a PostgreSQL store; the schema before (0: none) and after (`pg.migrate`).

    Raises: StoreRefused for a SQLite store, which is made at its first use.
    """
    if url.partition("://")[0] not in POSTGRES:
        raise StoreRefused(f"{path_of(url)} needs no migration: a SQLite store is made at its first use", hint="just run a task")
    try:
        from .pg.migrate import migrate
    except ImportError as error:
        raise _no_driver(error) from error
    return migrate(url, state=state, namespace=namespace)


def recover_store(url: str, *, clock: Callable[[], Instant], state: str, accept: bool, by: str = "", why: str = "") -> Recovery:
    """Say why a store is refused, or go on with it in suspect mode (`recover.recover`, `pg.recover.recover`)."""
    if url.partition("://")[0] in POSTGRES:
        try:
            from .pg.recover import recover as recover_postgres
        except ImportError as error:
            raise _no_driver(error) from error
        return recover_postgres(url, clock=clock, state=state, accept=accept, by=by, why=why)
    from .recover import recover

    return recover(path_of(url), clock=clock, accept=accept, by=by, why=why)


def where_is(url: str) -> str:
    """The store as people are told of it: its file, or its URL without a password."""
    if url.partition("://")[0] not in POSTGRES:
        return os.path.realpath(path_of(url))
    from .pg.place import url_without_password

    return url_without_password(url)


def path_of(url: str) -> str:
    """The file that a SQLite URL names."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        file = url.removeprefix("sqlite:").lstrip("/") or "recon.db"
        raise StoreRefused(f"{url!r} is no store's URL", hint=f"write sqlite:///{file}")
    if scheme != "sqlite":
        raise StoreRefused(f"there is no store for {scheme}:// URLs", hint="write sqlite:///recon.db, or postgresql://host/db")
    if not rest.startswith("/") or "?" in rest:
        raise StoreRefused(f"{url!r} is no store's URL", hint="write sqlite:///recon.db, or sqlite:////var/lib/recon.db")
    return rest[1:]
