"""What a PostgreSQL store's URL says: the database, and how this program works with it."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ...durations import parse_duration
from ...errors import StoreRefused, UsageError

LEASE = "PT30S"
CONNECTIONS = 8

LONGEST_LEASE = 86_400_000_000
"""Microseconds: for so long nobody takes over what a dead owner has left."""

MOST_CONNECTIONS = 1000


class Place(NamedTuple):
    """A store's place. `url` is as it was given; `conninfo` is what the driver gets.

    `schema`: the database schema that holds the tables. `mark`: the folder of the mark; empty: the state directory's.
    `lease_us`: how long a claim lasts without a heartbeat. `direct`: the URL for what a pooler cannot do (LISTEN).
    `failover`: ``synchronous`` when whoever runs the server says that its failovers lose no acknowledged commit.
    """

    url: str
    conninfo: str
    shown: str
    schema: str
    mark: str
    lease_us: int
    direct: str
    connections: int
    failover: str


def place_of(url: str) -> Place:
    """Read a store's URL: ``postgresql://user@host/database?schema=doubtless&lease=PT30S``. Raises: StoreRefused."""
    parts = urlsplit(url)
    own: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in own:
            raise StoreRefused(f"{url_without_password(url)} says {name} twice", hint="leave one of them out")
        if name in ("schema", "mark", "lease", "direct", "connections", "failover"):
            own[name] = value
        else:
            others.append((name, value))
    schema = own.get("schema", "doubtless")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", schema):
        raise StoreRefused(f"{schema!r} is no schema's name", hint="lower-case letters, digits and _, as in ?schema=doubtless")
    try:
        lease = parse_duration(own.get("lease", LEASE))
        connections = int(own.get("connections", CONNECTIONS))
    except (UsageError, ValueError) as error:
        raise StoreRefused(f"{url_without_password(url)}: {error}", hint="as in ?lease=PT30S&connections=8") from error
    if not (1_000_000 <= lease <= LONGEST_LEASE and 1 <= connections <= MOST_CONNECTIONS):
        said = f"a lease lasts from a second to a day, and a process has from 1 to {MOST_CONNECTIONS:,} connections"
        raise StoreRefused(f"{url_without_password(url)}: {said}", hint="as in ?lease=PT30S&connections=8")
    if own.get("failover", "") not in ("", "synchronous"):
        raise StoreRefused(f"failover={own['failover']} says nothing", hint="?failover=synchronous, or leave it out")
    conninfo = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(others, quote_via=quote), ""))
    shown = url_without_password(urlunsplit((parts.scheme, parts.netloc, parts.path, parts.query, "")))
    return Place(
        url, conninfo, shown, schema, own.get("mark", ""), lease, own.get("direct", ""), connections, own.get("failover", "")
    )


def url_without_password(url: str) -> str:
    """The URL as it may be shown: what a person can type again, but for the password."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    shown = [pair for pair in parse_qsl(parts.query) if pair[0] not in ("password", "sslpassword", "direct")]
    query = urlencode(shown, quote_via=quote, safe="/")
    return urlunsplit((parts.scheme, name + at + host, parts.path, query, ""))


def name_of(place: Place) -> str:
    """A file name for what is kept about this store on this machine."""
    parts = urlsplit(place.conninfo)
    host = parts.netloc.rpartition("@")[2]
    sockets = dict(parse_qsl(parts.query)).get("host", "")
    said = f"{host}|{sockets}|{parts.path}|{place.schema}"
    readable = re.sub(r"[^a-zA-Z0-9.-]+", "-", f"{host}{parts.path}").strip("-")[:60]
    return f"{readable}-{place.schema}-{sha256(said.encode()).hexdigest()[:12]}"
