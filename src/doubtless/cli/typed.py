"""Commands as a person types them, and times as a person reads them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime


def typed(command: str, *arguments: object, store: str | None = None, **options: str) -> str:
    """The command line of one command, its arguments quoted for a shell: ``typed("show", "r 1")`` is ``doubtless show 'r 1'``.

    `store` is given only where the command needs it said (`Invocation.store`). Arguments that are None are left out.
    The values of `options` stand as they are: they are what a person has to fill in, as in ``by="NAME"``.
    """
    head = ["doubtless", command, *(["--store", store] if store is not None else [])]
    values = [str(value) for value in arguments if value is not None]
    more = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value) if part]
    if any(value.startswith("-") for value in values):  # an id that looks like an option stands behind all of them
        return " ".join([shlex.join(head), *more, "--", shlex.join(values)])
    return " ".join([shlex.join([*head, *values]), *more])


def moment(us: int) -> datetime:
    """A stored time (microseconds) as local time."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).astimezone().replace(microsecond=us % 1_000_000)


def offset(when: datetime) -> str:
    """A local time's distance from UTC: ``UTC+08:00``."""
    return f"UTC{when.isoformat()[-6:]}"


def show_time(us: int) -> str:
    """A stored time in full: ``2026-11-28 14:02:11 UTC+08:00``."""
    when = moment(us)
    return f"{when:%Y-%m-%d %H:%M:%S} {offset(when)}"


def utc(us: int) -> str:
    """A stored time for machines: RFC 3339 in UTC, with microseconds."""
    when = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000, tzinfo=None)
    return f"{when.isoformat(timespec='microseconds')}Z"
