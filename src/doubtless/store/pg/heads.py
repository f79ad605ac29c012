"""Heads of many tasks that are made or changed with their rows, in one statement.

Where it is prepared, and nothing is wanted that only the function does, the statement does it by itself. Otherwise, and where a
place or an id is taken, the function does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .arrays import Arranged
from .link import Row, Session

_HEADS = ("text[]", "bigint[]", "text[]", "text[]", "text[]", "bytea[]")
_BEGUN = ("text[]", "text[]", "text[]", "bytea[]", "bytea[]", "text[]", "bigint[]", "text", "bigint", "bigint")
_unpack = struct.Struct("!q").unpack


class Given(NamedTuple):
    """So many rows of these tasks.

    `values`: as the statement takes them, None: only the function may; `args`: as the function takes them.
    """

    tasks: Sequence[str]
    rows: int
    values: Callable[[], list[bytes | None]] | None
    args: Callable[[], Sequence[Any]]


class Heads:
    """Rows that change heads and nothing else. Answers the store's clock, where the function was asked, and the tasks refused."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self.direct = Arranged("append_heads_1", queries["append_heads_direct"], _HEADS)
        self._function = queries["append_heads"]

    def run(self, session: Session, args: Any, *, prepared: bool) -> list[Row]:
        """Run it. Raises: psycopg.Error."""
        given: Given = args
        if prepared and given.values is not None:
            values = given.values()
            self.direct.prepare(session)
            if (result := self.direct.run(session, values)) is not None:
                if result.ntuples == given.rows:
                    return [(None, [])]
                written = {result.get_value(row, 0) for row in range(result.ntuples)}
                return [(None, [task for task in given.tasks if task.encode() not in written])]
        return session.execute(self._function, given.args(), binary=True).fetchall()


class Beginnings:
    """Tasks with their first two rows. Answers which of them have begun, and whether the store is still what it was."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self.direct = Arranged("begin_1", queries["begin_direct"], _BEGUN)
        self._function = queries["begin"]

    def run(self, session: Session, args: Any, *, prepared: bool) -> list[Row]:
        """Run it. Raises: psycopg.Error."""
        given: Given = args
        if prepared and given.values is not None:
            values = given.values()
            self.direct.prepare(session)
            if (result := self.direct.run(session, values)) is not None:
                count, store_id, suspect = (result.get_value(0, column) for column in range(3))
                assert count is not None
                if _unpack(count)[0] == given.rows:
                    return [(list(given.tasks), store_id, suspect == b"\1")]
        # Also after the statement has begun some of them: the function finds these with their owner and epoch, and says so.
        return session.execute(self._function, given.args(), binary=True).fetchall()
