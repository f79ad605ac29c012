"""What every store reads in the same way: one named query each. A store says how a row of its log is decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, cast

from ..events import Event, upcast
from ..snapshots import Snapshot, fault_of
from .base import CaseRow, Head, KeyRow, Outline
from .refusals import unknown

Row = tuple[Any, ...]


class Source(Protocol):
    """A connection, or several, that runs one query at a time."""

    def all(self, sql: str, args: Sequence[Any] = ()) -> list[Row]: ...

    def one(self, sql: str, args: Sequence[Any] = ()) -> Row | None: ...


class Reading:
    """The half of a store that reads. `_queries` are its dialect's, by the names that all dialects have."""

    _link: Source
    _queries: dict[str, str]
    _event = staticmethod(upcast)

    def rows(self, task_id: str, *, path: str | None = None, after: int = 0) -> list[Event]:
        """The task's rows in order; of one step with `path`; after a place with `after`."""
        event = self._event
        if path is None:
            return [event(row) for row in self._link.all(self._queries["rows"], (task_id, after))]
        return [event(row) for row in self._link.all(self._queries["rows_of_step"], (task_id, after, path))]

    def rows_at(self, task_id: str, seqs: Sequence[int]) -> list[Event]:
        """The task's rows at these places, in order; a place without a row is left out."""
        event = self._event
        return [event(row) for row in self._link.all(self._queries["rows_at"], (task_id, json.dumps(list(seqs))))]

    def rows_of(self, task_id: str, kinds: Sequence[str]) -> list[Event]:
        """The task's rows of these kinds, in order."""
        event = self._event
        rows = self._link.all(self._queries["rows_of_kinds"], (task_id, json.dumps(list(kinds))))
        return [event(row) for row in rows]

    def outline(self, task_id: str, *, after: int = 0) -> list[Outline]:
        """The rows in order, with the columns that replay needs; after a place with `after`."""
        rows = self._link.all(self._queries["outline"], (task_id, after))
        return cast("list[Outline]", rows)  # plain tuples: naming 20,000 of them costs a quarter of a resume

    def first(self, task_id: str) -> Event:
        """The task's first row, its TaskAccepted. Raises: UnknownTask."""
        row = self._link.one(self._queries["first"], (task_id,))
        if row is None:
            raise unknown(task_id)
        return self._event(row)

    def last(self, task_id: str) -> Event | None:
        """The task's last row."""
        row = self._link.one(self._queries["last"], (task_id,))
        return None if row is None else self._event(row)

    def head(self, task_id: str) -> Head | None:
        """The task's head row, or None."""
        row = self._link.one(self._queries["head"], (task_id,))
        return None if row is None else Head._make(row)

    def heads(self, *, status: Sequence[str] = (), due: int | None = None, limit: int | None = None) -> list[Head]:
        """Heads, oldest first; of some statuses; `due`: only those with no `wake_at` after this time (of needs_human: only
        those with one, which is not)."""
        args: tuple[object, ...] = (due, -1 if limit is None else limit)
        if status:
            rows = self._link.all(self._queries["heads_of"], (*args, json.dumps(list(status))))
        else:
            rows = self._link.all(self._queries["heads"], args)
        return [Head._make(row) for row in rows]

    def cases(self, *, task_id: str | None = None, settled: bool = False) -> list[CaseRow]:
        """Open cases, oldest first (`settled`: all of them)."""
        if task_id is not None:
            rows = self._link.all(self._queries["cases_of_task"], (task_id,))
        else:
            rows = self._link.all(self._queries["cases_all" if settled else "cases_open"])
        found = [CaseRow._make(row) for row in rows]
        return found if settled else [case for case in found if case.settled_seq is None]

    def case(self, case_id: str) -> CaseRow | None:
        """A case by its id, or None."""
        row = self._link.one(self._queries["case"], (case_id,))
        return None if row is None else CaseRow._make(row)

    def key(self, once: str) -> KeyRow | None:
        """Who has or had this business key last; None: nobody ever."""
        row = self._link.one(self._queries["key"], (once,))
        return None if row is None else KeyRow._make(row)

    def frozen(self) -> dict[str, str]:
        """What is frozen: step name (``*`` for every step) → why."""
        return dict(self._link.all(self._queries["frozen"]))

    def blob(self, digest: bytes) -> bytes | None:
        """Content that the database itself holds; None when it does not."""
        row = self._link.one(self._queries["blob"], (digest,))
        return None if row is None else bytes(row[0])

    def usable_snapshot(self, task_id: str, *, below: int | None = None) -> Snapshot | None:
        """The task's newest snapshot (below a place) that fits its log, or None (`base.Store.usable_snapshot`)."""
        while (found := self._link.one(self._queries["snapshot"], (task_id, below))) is not None:
            snapshot = Snapshot._make(found)
            rows = self.rows_at(task_id, [snapshot.event_seq])
            if fault_of(snapshot, rows[0] if rows else None) is None:
                return snapshot
            below = snapshot.event_seq
        return None
