"""Rows that share a commit as arrays of their columns, in PostgreSQL's binary form, and statements that take them.

Each row is put into bytes when it is put down, while another commit is on its way; a commit only joins them. Beside JSON it is
half of the work on both sides: no digest is spelled out, and nothing is parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from psycopg import pq
from psycopg.errors import error_from_result

from ...events import Event
from .link import Session
from .rows import ref_out
from .schema import NO_NUMBER, NUMBERS, WORDS, type_of

Elements = tuple[bytes, ...]
"""A row: its numbers, and each of its other columns, as elements of their arrays."""

_BIGINT, _BYTEA, _TEXT = 20, 17, 25
_ARRAYS = {_BIGINT: 1016, _BYTEA: 1001, _TEXT: 1009}
_ELEMENTS = (_BIGINT, *(_BYTEA if type_of(column) == "bytea" else _TEXT for column in WORDS))
_TYPES = tuple(_ARRAYS[kind] for kind in _ELEMENTS)
_OIDS = {"text": 25, "bigint": 20, "text[]": 1009, "bigint[]": 1016, "bytea[]": 1001}
_numbers = struct.Struct("!" + "iq" * len(NUMBERS)).pack
_length = struct.Struct("!i").pack
_head = struct.Struct("!iiIii").pack
_NULL = b"\xff\xff\xff\xff"
_DUPLICATE, _TAKEN = "42P05", "23505"


@lru_cache(4096)
def _known(text: str) -> bytes:
    """The element of a text that many rows have."""
    return _said(text.encode())


@lru_cache(4096)
def _policy(digest: bytes) -> bytes:
    return _ref(digest)


def _ref(ref: str | bytes) -> bytes:
    return _said(ref.encode() if type(ref) is str else str(ref_out(ref)).encode())


def _said(value: bytes) -> bytes:
    return _length(len(value)) + value


def elements(event: Event, guard: str | None) -> Elements:
    """A row, with the step whose freeze would refuse it. Raises: UnicodeEncodeError for what is no text.

    Written out, because it is made for each row of a batch.
    """
    (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, error, data, began, ended, boot,
        epoch, form, prev,
    ) = event  # fmt: skip
    return (
        _numbers(
            8, seq,
            8, NO_NUMBER if step is None else step,
            8, NO_NUMBER if attempt is None else attempt,
            8, NO_NUMBER if began is None else began,
            8, NO_NUMBER if ended is None else ended,
            8, boot,
            8, NO_NUMBER if epoch is None else epoch,
            8, form,
        ),
        _known(task),
        _NULL if path is None else _known(path),
        _NULL if name is None else _known(name),
        _known(kind),
        _NULL if status is None else _known(status),
        _NULL if effect is None else _known(effect),
        _NULL if key is None else _said(key),
        _NULL if digest is None else _said(digest),
        _NULL if given is None else _ref(given),
        _NULL if made is None else _ref(made),
        _NULL if error is None else _said(error.encode()),
        _NULL if data is None else _policy(data) if type(data) is bytes else _ref(data),
        _NULL if prev is None else _said(prev),
        _NULL if guard is None else _known(guard),
    )  # fmt: skip


def arrays(rows: Sequence[Elements]) -> list[bytes | None]:
    """The arrays of rows; of a column that none of them has, null."""
    count = len(rows)
    numbers, *words = zip(*rows, strict=True)
    values: list[bytes | None] = [_head(1, 0, _BIGINT, count * len(NUMBERS), 1) + b"".join(numbers)]
    for kind, column in zip(_ELEMENTS[1:], words, strict=True):
        values.append(None if column.count(_NULL) == count else _head(1, 1, kind, count, 1) + b"".join(column))
    return values


def numbers(values: Sequence[int | None]) -> bytes:
    """An array of numbers."""
    spelled = [8 if n % 2 == 0 else NO_NUMBER if (value := values[n // 2]) is None else value for n in range(2 * len(values))]
    return _head(1, 0, _BIGINT, len(values), 1) + struct.pack("!" + "iq" * len(values), *spelled)


def texts(values: Sequence[str | None]) -> bytes:
    """An array of texts. Raises: UnicodeEncodeError."""
    said = [_NULL if value is None else _said(value.encode()) for value in values]
    return _head(1, 1, _TEXT, len(said), 1) + b"".join(said)


def digests(values: Sequence[bytes]) -> bytes:
    """An array of digests."""
    return _head(1, 1, _BYTEA, len(values), 1) + b"".join(map(_said, values))


class Arranged:
    """A statement that takes the arrays of rows, and then more; prepared once on each connection.

    Its name holds its text's digest: whoever else has prepared one of this name has prepared this one.
    """

    def __init__(self, name: str, sql: str, more: Sequence[str] = ()) -> None:
        self._sql = sql.encode()
        self.name = name.encode() + b"_" + sha256(self._sql).hexdigest()[:32].encode()
        self._types = (*_TYPES, *(_OIDS[kind] for kind in more))
        self._formats = (1,) * len(self._types)

    def prepare(self, session: Session) -> None:
        """Prepare it, unless it is there. Raises: psycopg.Error."""
        if self.name in session.prepared:
            return
        result = session.pgconn.prepare(self.name, self._sql, self._types)
        if result.status != pq.ExecStatus.COMMAND_OK:
            error = error_from_result(result, encoding="utf-8")
            if error.sqlstate != _DUPLICATE:
                raise error
        session.prepared.add(self.name)

    def run(self, session: Session, values: Sequence[bytes | None]) -> pq.abc.PGresult | None:
        """Run it; None: a place was taken meanwhile, and nothing is written. Raises: psycopg.Error."""
        result = session.pgconn.exec_prepared(self.name, values, self._formats, 1)  # type: ignore[arg-type]  # None is NULL
        if result.status == pq.ExecStatus.TUPLES_OK:
            return result
        error = error_from_result(result, encoding="utf-8")
        if error.sqlstate == _TAKEN:
            return None
        raise error
