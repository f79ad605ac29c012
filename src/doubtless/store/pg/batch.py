"""The statement of rows that share a commit, sent by libpq itself in one call, during which the interpreter is free.

As `appending` does, it is prepared where no pooler is between.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg import pq
from psycopg.errors import error_from_result

from .link import Row, Session

_pack = struct.Struct("!q").pack
_unpack = struct.Struct("!q").unpack
_TYPES = (114, 20, 16, 1001, 1001)  # json, bigint, boolean, bytea[], bytea[]
_BINARY = (1,) * len(_TYPES)
_DUPLICATE = "42P05"


class Rows(NamedTuple):
    """Rows of many tasks, each as its text (`rows.shared_row`); and the content that they name, as two arrays.

    `guarded`: the freeze of some step would refuse one of them. `gone`: called right before they are sent (`base.Store.flush`).
    """

    rows: Sequence[str]
    guarded: bool
    digests: Sequence[bytes] | None
    contents: Sequence[bytes] | None
    gone: Callable[[], None] | None

    def values(self) -> list[bytes | None]:
        """As the statement takes them. Raises: UnicodeEncodeError for what is no text."""
        sent, guarded = f"[{','.join(self.rows)}]".encode(), b"\1" if self.guarded else b"\0"
        return [sent, _pack(len(self.rows)), guarded, _array(self.digests), _array(self.contents)]


class Batch:
    """The statement. Its name holds its text's digest: whoever else has prepared one of this name has prepared this one."""

    def __init__(self, sql: str) -> None:
        self._sql = sql.encode()
        self._name = b"append_shared_1_" + sha256(self._sql).hexdigest()[:32].encode()

    def run(self, session: Session, args: Any, *, prepared: bool) -> list[Row]:
        """Run it: the store's clock, and which rows were written; None: all. Raises: psycopg.Error."""
        given: Rows = args
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

    def _prepare(self, session: Session) -> None:
        result = session.pgconn.prepare(self._name, self._sql, _TYPES)
        if result.status != pq.ExecStatus.COMMAND_OK:
            error = error_from_result(result, encoding="utf-8")
            if error.sqlstate != _DUPLICATE:
                raise error
        session.prepared.add(self._name)


def _array(values: Sequence[bytes] | None) -> bytes | None:
    """A bytea[] in binary: one dimension, counted from 1."""
    if values is None:
        return None
    parts: list[Any] = [struct.pack("!iiIii", 1, 0, 17, len(values), 1)]
    for value in values:
        parts += (struct.pack("!i", len(value)), value)
    return b"".join(parts)
