"""The append that a step waits for: one row, one round trip, sent by libpq itself.

The driver's cursor, its adapters and its wait loop cost as much as what the server does. Where the answering server process is
the one that the connection was opened to (no pooler is between them), the statements are prepared, once on each connection.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256

from psycopg import pq
from psycopg.errors import error_from_result

from ...events import COLUMNS, Event
from .link import Row, Session
from .rows import ref_out
from .schema import APPENDED

_pack = struct.Struct("!q").pack
_unpack = struct.Struct("!q").unpack
_OIDS = {"text": 25, "bigint": 20, "bytea": 17, "bytea[]": 1001}
_DUPLICATE = "42P05"
_GUARD = len(COLUMNS)


class Prepared:
    """One statement. The name that it is prepared under holds its text's digest: whoever else has prepared one of this name
    has prepared this one."""

    def __init__(self, sql: str, count: int) -> None:
        self._sql = sql.encode()
        self._name = b"append_1_" + sha256(self._sql).hexdigest()[:32].encode()
        self._types = [_OIDS[kind] for kind in APPENDED[:count]]
        self._formats = [1] * count  # all of them binary

    def run(self, session: Session, args: Sequence[bytes | None], *, prepared: bool) -> pq.abc.PGresult:
        """Run it. Raises what the driver raises of a statement: psycopg.Error."""
        if prepared:
            if self._name not in session.prepared:
                self._prepare(session)
            result = session.pgconn.exec_prepared(self._name, args, self._formats, 1)  # type: ignore[arg-type]  # None is NULL
        else:
            result = session.pgconn.exec_params(self._sql, args, self._types, self._formats, 1)
        if result.status not in _DONE:
            raise error_from_result(result, encoding="utf-8")
        return result

    def _prepare(self, session: Session) -> None:
        result = session.pgconn.prepare(self._name, self._sql, self._types)
        if result.status != pq.ExecStatus.COMMAND_OK:
            error = error_from_result(result, encoding="utf-8")
            if error.sqlstate != _DUPLICATE:
                raise error
        session.prepared.add(self._name)


_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Appending:
    """The function, which writes a row or says why it does not, and tells the server's time."""

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._function = Prepared(queries["append"], len(APPENDED))

    def run(self, session: Session, args: Sequence[bytes | None], *, prepared: bool) -> list[Row]:
        """Run it: the store's clock. Raises psycopg.Error."""
        padded = [*args, *[None] * (len(APPENDED) - len(args))]  # no guard, and no content
        value = self._function.run(session, padded, prepared=prepared).get_value(0, 0)
        assert value is not None
        return [_unpack(value)]


class Direct(Appending):
    """The statements that write the same row by themselves where nothing speaks against it; where something does, the function.

    Unprepared they would cost more than the function, so that behind a pooler it is the function's.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        super().__init__(queries)
        self._plain = Prepared(queries["append_direct"], _GUARD)
        self._guarded = Prepared(f"{queries['append_direct']}\n{queries['append_direct_unfrozen']}", _GUARD + 1)

    def run(self, session: Session, args: Sequence[bytes | None], *, prepared: bool) -> list[Row]:
        """Run it: nothing, or the store's clock. Raises psycopg.Error."""
        if prepared:
            statement = self._plain if len(args) == _GUARD else self._guarded
            if statement.run(session, args, prepared=True).command_tuples:
                return []
        return super().run(session, args, prepared=prepared)


def values_of(event: Event, guard: str | None) -> list[bytes | None]:
    """A row without content beside it, as the statement takes it; with a guard that comes last."""
    (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, error, data, began, ended, boot,
        epoch, form, prev,
    ) = event  # fmt: skip
    values = [
        task.encode(),
        _pack(seq),
        None if step is None else _pack(step),
        None if path is None else path.encode(),
        None if name is None else name.encode(),
        kind.encode(),
        None if status is None else status.encode(),
        None if attempt is None else _pack(attempt),
        None if effect is None else effect.encode(),
        key,
        digest,
        None if given is None else _text(given),
        None if made is None else _text(made),
        None if error is None else error.encode(),
        None if data is None else _text(data),
        None if began is None else _pack(began),
        None if ended is None else _pack(ended),
        _pack(boot),
        None if epoch is None else _pack(epoch),
        _pack(form),
        prev,
    ]
    if guard is not None:
        values.append(guard.encode())
    return values


def _text(ref: str | bytes) -> bytes:
    return ref.encode() if type(ref) is str else str(ref_out(ref)).encode()
