"""Commands as a person types them, and times as a person reads them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime


def typed(command: str, *arguments: object, store: str | None = None, **options: str) -> str:
    """The command line of one command, quoted for a shell: ``typed("show", "r 1")`` is ``doubtless show 'r 1'``.

    `store` is given only where the command needs it said (`loading.said`). Arguments that are None are left out.
    """
    parts = ["doubtless", command]
    if store is not None:
        parts += ["--store", store]
    values = [str(value) for value in arguments if value is not None]
    if any(value.startswith("-") for value in values):
        parts.append("--")
    parts += values
    line = shlex.join(parts)
    return " ".join([line, *(f"--{name} {value}" for name, value in options.items())])


def moment(us: int) -> datetime:
    """A stored time as local time."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).astimezone().replace(microsecond=us % 1_000_000)


def show_time(us: int) -> str:
    """A stored time in full, with its offset once: ``2026-11-28 14:02:11 +08:00``."""
    return moment(us).isoformat(sep=" ", timespec="seconds").replace("+", " +")


def utc(us: int | None) -> str | None:
    """A stored time for machines: RFC 3339 in UTC, with microseconds."""
    if us is None:
        return None
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000, tzinfo=None).isoformat(
        timespec="microseconds"
    ) + "Z"  # fmt: skip
