"""The statements of rows that share a commit, sent by libpq itself in one call, during which the interpreter is free.

As `appending` does, they are prepared where no pooler is between.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg import pq
from psycopg.errors import error_from_result

from ..tickets import Ticket
from .arrays import Arranged, arrays
from .link import Row, Session
from .rows import shared_row

_pack = struct.Struct("!q").pack
_unpack = struct.Struct("!q").unpack
_TYPES = (114, 20, 16, 1001, 1001)  # json, bigint, boolean, bytea[], bytea[]
_BINARY = (1,) * len(_TYPES)
_DUPLICATE = "42P05"


class Rows(NamedTuple):
    """Rows of many tasks; and the content that they name, as two arrays.

    `guarded`: the freeze of some step would refuse one of them. `timed`: the store's clock is asked, too. `gone`: called right
    before they are sent (`base.Store.flush`).
    """

    tickets: Sequence[Ticket]
    guarded: bool
    timed: bool
    digests: Sequence[bytes] | None
    contents: Sequence[bytes] | None
    gone: Callable[[], None] | None

    def values(self) -> list[bytes | None]:
        """As the function takes them. Raises: UnicodeEncodeError for what is no text."""
        rows = ",".join([shared_row(ticket.event, ticket.guard) for ticket in self.tickets])
        guarded = b"\1" if self.guarded else b"\0"
        return [f"[{rows}]".encode(), _pack(len(self.tickets)), guarded, _array(self.digests), _array(self.contents)]


class Batch:
    """The function, which leaves out what is refused, writes content and tells the server's time; and the statement that writes
    the same rows by itself where none of that is wanted, and no place is taken while it runs. Unprepared the function costs less.

    Its name holds its text's digest: whoever else has prepared one of this name has prepared this one.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._sql = queries["append_shared"].encode()
        self._name = b"append_shared_1_" + sha256(self._sql).hexdigest()[:32].encode()
        direct, unfrozen, places = (queries[f"append_shared_direct{end}"] for end in ("", "_unfrozen", "_places"))
        self.direct = Arranged("append_shared_1", f"{direct}\n{places}")
        self.guarded = Arranged("append_shared_1", f"{direct}\n{unfrozen}\n{places}")

    def run(self, session: Session, args: Any, *, prepared: bool) -> list[Row]:
        """Run it: the store's clock, where it was asked, and which rows were written; None: all. Raises: psycopg.Error."""
        given: Rows = args
        if prepared and not given.timed and given.digests is None:
            found = self._run_direct(session, given)
            if found is not None:
                return found
        server, values = session.pgconn, given.values()
        if prepared and self._name not in session.prepared:
            self._prepare(session)
        if given.gone is not None:
            given.gone()
        if prepared:
            result = server.exec_prepared(self._name, values, _BINARY, 1)  # type: ignore[arg-type]  # None is NULL
        else:
            result = server.exec_params(self._sql, values, _TYPES, _BINARY, 1)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise error_from_result(result, encoding="utf-8")
        now, places = result.get_value(0, 0), result.get_value(0, 1)
        assert now is not None
        return [(_unpack(bytes(now))[0], None if places is None else json.loads(bytes(places)))]

    def _run_direct(self, session: Session, given: Rows) -> list[Row] | None:
        values = arrays([ticket.sent for ticket in given.tickets])
        statement = self.guarded if given.guarded else self.direct
        statement.prepare(session)
        if given.gone is not None:
            given.gone()
        result = statement.run(session, values)
        if result is None:
            return None
        written = result.ntuples
        return [(None, None if written == len(given.tickets) else [_place(result, row) for row in range(written)])]

    def _prepare(self, session: Session) -> None:
        result = session.pgconn.prepare(self._name, self._sql, _TYPES)
        if result.status != pq.ExecStatus.COMMAND_OK:
            error = error_from_result(result, encoding="utf-8")
            if error.sqlstate != _DUPLICATE:
                raise error
        session.prepared.add(self._name)


def _place(result: Any, row: int) -> tuple[int, str]:
    return _unpack(result.get_value(row, 1))[0], result.get_value(row, 0).decode()


def _array(values: Sequence[bytes] | None) -> bytes | None:
    """A bytea[] in binary: one dimension, counted from 1."""
    if values is None:
        return None
    parts: list[Any] = [struct.pack("!iiIii", 1, 0, 17, len(values), 1)]
    for value in values:
        parts += (struct.pack("!i", len(value)), value)
    return b"".join(parts)
