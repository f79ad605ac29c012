"""What every store reads in the same way: one named query each. A store says how a row of its log is decoded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, cast

from ..events import COLUMNS, TERMINAL, Event, TaskStatus, row_hash, upcast
from ..snapshots import Snapshot, fault_of, is_well_formed
from .base import CaseRow, Head, KeyRow, Outline
from .chain import KEPT, START, Linked, as_events, as_head, check_last, check_pairs, follow, followed, links_of
from .refusals import unknown

Row = tuple[Any, ...]

PIECE = 500
"""How many rows of a long log are read at once."""

EVENT_SEQ = COLUMNS.index("event_seq")


class Source(Protocol):
    """A connection, or several, that runs one query at a time."""

    def all(self, sql: str, args: Sequence[Any] = ()) -> list[Row]: ...

    def one(self, sql: str, args: Sequence[Any] = ()) -> Row | None: ...


class Reading:
    """The half of a store that reads. `_queries` are its dialect's, by the names that all dialects have."""

    _link: Source
    _queries: dict[str, str]
    _chained: dict[str, tuple[int, bytes]]  # how far this process knows each task's rows to chain
    _event = staticmethod(upcast)

    def rows(self, task_id: str, *, path: str | None = None, after: int = 0) -> list[Event]:
        """The task's rows in order; of one step with `path`; after a place with `after`. Whole, their chain is checked."""
        if path is not None:
            self._assure(task_id)
            return self._events("rows_of_step", (task_id, after, path))
        tail = None if after else self._tail(task_id)
        rows = self._events("rows", (task_id, after))
        if not after:
            follow(task_id, links_of(rows), START, tail)
        return rows

    def next_rows(self, task_id: str, *, after: int = 0) -> Iterator[Event]:
        """The task's rows in order, read in pieces, as they are needed (`base.Store.next_rows`)."""
        if after:
            return self._next_rows(task_id, after)
        return followed(task_id, self._next_rows(task_id, 0), self._tail(task_id))

    def _next_rows(self, task_id: str, after: int) -> Iterator[Event]:
        for piece in self._pieces("next_rows", task_id, after, EVENT_SEQ):
            yield from as_events(piece, self._event)

    def _pieces(self, name: str, task_id: str, after: int, seq: int = 0) -> Iterator[list[Row]]:
        """The rows of a query after a place, piece by piece: a long log is never in memory whole. `seq`: the place's column."""
        while True:
            piece = self._link.all(self._queries[name], (task_id, after, PIECE))
            yield piece
            if len(piece) < PIECE or not isinstance(piece[-1][seq], int) or piece[-1][seq] <= after:
                return  # the end; or a damaged file, which would be read round and round
            after = piece[-1][seq]

    def _events(self, name: str, args: Sequence[Any]) -> list[Event]:
        return as_events(self._link.all(self._queries[name], args), self._event)

    def check_chain(self, task_id: str, *, after: int = 0, digest: bytes = b"", used: Sequence[int] = ()) -> None:
        """Check that the task's rows chain, from a place on (`base.Store.check_chain`)."""
        known = self._chained.get(task_id, START)
        link = max(known, (after, digest))
        wanted = {seq for seq in used if known[0] < seq < after}
        if wanted:
            check_pairs(self.rows_at(task_id, sorted(wanted | {seq + 1 for seq in wanted})), wanted)
        tail = self._tail(task_id)
        self._keep(task_id, follow(task_id, self._links(task_id, link[0]), link, tail))

    def _links(self, task_id: str, after: int) -> Iterable[Linked]:
        """What `follow` looks at, of a task's rows after a place."""
        return links_of(self._next_rows(task_id, after))

    def _assure(self, task_id: str) -> None:
        """Before some rows of a task are believed, its chain is checked once in this process."""
        if task_id not in self._chained:
            self.check_chain(task_id)

    def _tail(self, task_id: str) -> tuple[int, bytes] | None:
        """The row that was noted as the task's last; read before the rows, which are never behind it."""
        row = self._link.one(self._queries["tail"], (task_id,))
        return None if row is None else (row[0], row[1])

    def _chains(self, last: Event) -> None:
        """Remember that this process has written the task's rows up to this one."""
        self._keep(last.task_id, (last.event_seq, row_hash(last)))

    def _keep(self, task_id: str, link: tuple[int, bytes]) -> None:
        if len(self._chained) >= KEPT:
            self._chained.clear()
        self._chained[task_id] = link

    def rows_at(self, task_id: str, seqs: Sequence[int]) -> list[Event]:
        """The task's rows at these places, in order; a place without a row is left out."""
        return self._events("rows_at", (task_id, json.dumps(list(seqs))))

    def rows_of(self, task_id: str, kinds: Sequence[str]) -> list[Event]:
        """The task's rows of these kinds, in order."""
        self._assure(task_id)
        return self._events("rows_of_kinds", (task_id, json.dumps(list(kinds))))

    def outline(self, task_id: str, *, after: int = 0) -> Iterator[Outline]:
        """The rows in order, with the columns that replay needs; after a place with `after` (`base.Store.outline`)."""
        rows = chain.from_iterable(self._pieces("outline", task_id, after))
        return cast("Iterator[Outline]", rows)  # plain tuples: naming 20,000 of them costs a quarter of a resume

    def first(self, task_id: str) -> Event:
        """The task's first row, its TaskAccepted. Raises: UnknownTask."""
        rows = self._events("first", (task_id,))
        if not rows:
            raise unknown(task_id)
        follow(task_id, links_of(rows), START, None)
        return rows[0]

    def last(self, task_id: str) -> Event | None:
        """The task's last row."""
        tail = self._tail(task_id)
        rows = self._events("last", (task_id,))
        if not rows:
            return None
        check_last(rows[0], tail)
        return rows[0]

    def head(self, task_id: str) -> Head | None:
        """The task's head row, or None."""
        row = self._link.one(self._queries["head"], (task_id,))
        return None if row is None else as_head(row)

    def heads(self, *, status: Sequence[str] = (), due: int | None = None, limit: int | None = None) -> list[Head]:
        """Heads, oldest first; of some statuses; `due`: only those that have something to do by then (`base.Store.heads`)."""
        most = -1 if limit is None else limit
        if due is not None:
            statuses = [each for each in status or TaskStatus if each not in TERMINAL]
            rows = self._link.all(self._queries["heads_due"], (most, json.dumps(statuses), due))
        elif status:
            rows = self._link.all(self._queries["heads_of"], (most, json.dumps(list(status))))
        else:
            rows = self._link.all(self._queries["heads"], (most,))
        return [as_head(row) for row in rows]

    def owner_alive(self, owner: str | None) -> bool:
        """True while the owner that a head row names is alive (`base.Store.owner_alive`)."""
        raise NotImplementedError

    def owned(self, head: Head) -> tuple[Head, bool]:
        """A head and whether its owner lives, as they belong together (`base.Store.owned`)."""
        while True:
            alive = self.owner_alive(head.owner)
            now = None if alive or head.owner is None else self.head(head.task_id)
            if now is None or (now.owner, now.epoch) == (head.owner, head.epoch):
                return head, alive
            head = now

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
        if row is None:
            return None
        return bytes(row[0]) if isinstance(row[0], bytes | memoryview) else b""  # what is no content has no content's digest

    def usable_snapshot(self, task_id: str, *, below: int | None = None) -> Snapshot | None:
        """The task's newest snapshot (below a place) that fits its log, or None (`base.Store.usable_snapshot`)."""
        while (found := self._link.one(self._queries["snapshot"], (task_id, below))) is not None:
            snapshot = Snapshot._make(found)
            if not is_well_formed(snapshot):  # nor is its place, below which one could look on
                return None
            rows = self.rows_at(task_id, [snapshot.event_seq])
            if fault_of(snapshot, rows[0] if rows else None) is None:
                return snapshot
            below = snapshot.event_seq
        return None
