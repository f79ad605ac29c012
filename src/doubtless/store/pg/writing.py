"""The half of the PostgreSQL store that appends: by itself, or in a statement that many share. Each write is one statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ...events import STORE_TASK, Event, Instant, Kind, row_hash, seal
from ..base import Blob, Claim
from ..projections import key_held, not_open, recovered
from ..reading import Reading
from ..refusals import frozen, moved, stale, unknown
from ..tickets import Ticket, is_plain
from .appending import Appending, Direct, values_of
from .batches import Batches, Begun, Several
from .clock import ServerClock
from .leases import Leases, describe
from .link import Link, Refusal, Row, Statement
from .mark import Mark, MarkFile
from .opening import Gate
from .rows import blob_arrays, changes_json, event_of, params_of, rows_json, suspect_json
from .sharing import Sharing


class Writing(Reading):
    """How rows are appended. Thread-safe; what it works with is made by `postgres.PostgresStore`."""

    _link: Link
    _gate: Gate
    _leases: Leases
    _clock: ServerClock
    _mark: MarkFile
    _sharing: Sharing
    _batches: Batches
    _append: Appending
    _direct: Direct
    _local: Callable[[], Instant]
    now: Callable[[], Instant]

    def _begin(self, tickets: Sequence[Begun]) -> dict[str, Claim]:
        raise NotImplementedError

    def _wants_time(self, boot: int) -> bool:
        raise NotImplementedError

    def append(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), keep_owner: bool = False
    ) -> None:
        """Append sealed rows of one task by its owner; all or none, durable at return (`base.Store.append`)."""
        event = events[0]
        if is_plain(events):
            if not self._sharing.turn.acquire(False):  # somebody is on the way: share the next commit with who else waits
                self.landed(self._sharing.put(event, guard, blobs))
                return
            try:
                self._append_one(event, guard, blobs)
            finally:
                self._sharing.turn.release()
            return
        if not self._may_append(events):
            return
        changes, release = changes_json(events)
        release = release and not keep_owner
        rows = rows_json(events)
        args = (event.task_id, True, event.epoch, rows, changes, guard, *blob_arrays(blobs), release)
        self._write_rows(events, self._queries["append_rows"], args, guard)
        self._rests(events)
        if release:
            self._given_back(events[-1])

    def _given_back(self, last: Event) -> None:
        """Note that a row was written with which the owner gives its task back."""
        assert last.epoch is not None
        self._leases.let_go(last.task_id, last.epoch)
        self._chains(last)

    def submit(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), digest: bytes | None = None
    ) -> Ticket | Several | None:
        """Put sealed rows down for the next commit that is shared (`base.Store.submit`)."""
        event = events[0]
        if not self._leases.owns(event.task_id, event.epoch):
            return None
        if is_plain(events):
            return self._sharing.put(event, guard, blobs)
        several = Several(events, guard, blobs, digest)
        self._batches.several.append(several)
        return several

    def flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> int:
        """Commit what was put down, or the oldest rows of it (`base.Store.flush`). What came of each row says `landed`."""
        if self._sharing.waiting or self._batches.waiting:
            with self._sharing.turn:
                self._commit(most, gone)
        return 0 if self._batches.waiting else len(self._sharing.waiting)

    def _commit(self, most: int | None = None, gone: Callable[[], None] | None = None) -> None:
        try:
            self._batches.commit(most)
        finally:
            self._sharing.commit(most, gone)

    def landed(self, ticket: Ticket | Several | Begun) -> Claim | None:
        """Return when what a ticket stands for is durable; raise what its method would (`base.Store.landed`)."""
        if not ticket.done:
            with self._sharing.turn:
                if not ticket.done:
                    self._commit()
        if ticket.error is not None:
            raise ticket.error
        alone = ticket.alone or not ticket.done
        if isinstance(ticket, Begun):
            return self._begin([ticket]).get(ticket.task_id) if alone else ticket.claim
        if isinstance(ticket, Ticket):
            if alone:
                self._append_one(ticket.event, ticket.guard, ticket.blobs)
        elif alone:
            self.append(ticket.events, guard=ticket.guard, blobs=ticket.blobs)
        elif ticket.release:
            self._given_back(ticket.events[-1])
        return None

    def _append_one(self, event: Event, guard: str | None, blobs: Sequence[Blob]) -> None:
        """Append a row that changes no projection, by itself."""
        if not self._may_append([event]):
            return
        if blobs:
            args = (*params_of(event), guard, *blob_arrays(blobs))
            self._write_rows([event], self._queries["append"], args, guard)
        else:
            timed = self._wants_time(event.boot_at)
            self._write_rows([event], self._append if timed else self._direct, values_of(event, guard), guard, timed=timed)

    def _may_append(self, events: Sequence[Event]) -> bool:
        """Whether this process has the claim of these rows; False: it lost it, and they stand. Raises: StaleEpoch (I4)."""
        event = events[0]
        if self._leases.owns(event.task_id, event.epoch):
            return True
        if not self._same(events):
            self._refuse(event, "DBLST", owned=True)
        return False

    def _write_rows(
        self, events: Sequence[Event], sql: str | Statement, args: Sequence[object], guard: str | None, *, timed: bool = True
    ) -> None:
        """Write sealed rows, or find that they stand; sent again as they are where their fate is not known.

        `timed`: the statement tells the server's time.
        """
        sent = self._local() if timed else None

        def made(rows: list[Row]) -> bool:
            if sent is not None:
                self._clock.take(rows[0][0], sent)
            return True

        try:
            self._link.write("append", sql, args, lambda: True if self._same(events) else None, made)
        except Refusal as refusal:
            if not self._same(events):
                self._refuse(events[0], refusal.code, refusal.said, owned=True, guard=guard)
        self._gate.newest = events[-1]

    def add(self, task_id: str, drafts: Sequence[Event], *, expect: int | None = None, blobs: Sequence[Blob] = ()) -> list[Event]:
        """Append drafts without an epoch: a person's answer, cancel, freeze, evidence (`base.Store.add`)."""
        while True:
            last = self.last(task_id)
            if last is None and task_id != STORE_TASK:
                raise unknown(task_id)
            written = seal(drafts, *((0, None) if last is None else (last.event_seq, row_hash(last))))
            if expect is not None and written[0].event_seq != expect + 1:
                raise moved(written[0]._replace(event_seq=expect + 1), written[0].event_seq - 1)
            if self._add(written, changes_json(written, tail=True)[0], blobs):
                return written

    def _add(self, written: list[Event], changes: str, blobs: Sequence[Blob] = ()) -> bool:
        """Write rows that need no epoch; False: something else stands at their place."""
        args = (written[0].task_id, False, None, rows_json(written), changes, None, *blob_arrays(blobs), False)

        def stands() -> bool | None:
            return True if self._same(written) else None

        try:
            self._link.write("add", self._queries["append_rows"], args, stands, lambda rows: True)
        except Refusal as refusal:
            if self._same(written):
                return True
            if refusal.code == "DBLMV":
                return False
            self._refuse(written[0], refusal.code, refusal.said, owned=False)
        return True

    def end_suspect(self, *, by: str, why: str) -> None:
        """End suspect mode: a person vouches that nothing was sent of which the log knows nothing."""
        row = recovered(self.now(), suspect=False, by=by, why=why)
        while True:
            last = self.last(STORE_TASK)
            written = seal([row], *((0, None) if last is None else (last.event_seq, row_hash(last))))
            if self._add(written, suspect_json(written[0], suspect=False)):
                break
        self._look_again()

    def _look_again(self) -> None:
        """Have the store looked at anew, as a connection is opened."""
        self._gate.meta = None
        self._chained.clear()

    def _standing(self, events: Sequence[Event]) -> set[tuple[str, int]]:
        """The places at which these very rows stand in the log, compared whole."""
        asked = ([event.task_id for event in events], [event.event_seq for event in events])
        found = set(map(event_of, self._link.all(self._queries["rows_standing"], asked)))
        return {(event.task_id, event.event_seq) for event in events if event in found}

    def _wrote(self, event: Event) -> None:
        self._gate.newest = event

    def _rests(self, events: Sequence[Event]) -> None:
        """Rows were written in one commit: the mark names the last one after which its task may rest."""
        self._gate.newest = events[-1]
        marked = [event for event in events if event.kind in _MARKED]
        if marked:
            self._seen(marked[-1])

    def _same(self, events: Sequence[Event]) -> bool:
        """True when these very rows stand in the log: compared whole, at their places."""
        rows = self.rows(events[0].task_id, after=events[0].event_seq - 1)
        return rows[: len(events)] == list(events)

    def _refuse(self, event: Event, code: str, said: str = "", *, owned: bool, guard: str | None = None) -> NoReturn:
        """Say why a row was not written. `owned`: its writer was to be the task's owner."""
        if owned:
            head = self.head(event.task_id)
            if head is None:
                raise unknown(event.task_id)
            if code == "DBLST" or head.epoch != event.epoch or not self._leases.owns(event.task_id, event.epoch):
                if event.epoch is not None:
                    self._leases.let_go(event.task_id, event.epoch)
                raise stale(event, head, describe(head.owner).pid if head.owner else 0)
        if code == "DBLFZ" and guard is not None:
            found = self._link.one(self._queries["frozen_step"], (guard,))
            if found is not None:
                raise frozen(guard, *found)
        if code == "DBLKH" and (holder := self.key(said)) is not None:
            raise key_held(holder, event.task_id)
        if code == "DBLAS":
            raise not_open(said, self.case(said))
        last = self.last(event.task_id)
        raise moved(event, 0 if last is None else last.event_seq)

    def _seen(self, event: Event) -> None:
        """Let the mark name an event that is committed."""
        meta, server = self._gate.meta, self._gate.server
        if meta is not None and server is not None:
            mark = Mark(meta.store_id, server.system, server.timeline, event.task_id, event.event_seq, row_hash(event))
            self._mark.raise_to(mark)


_MARKED = frozenset({Kind.TASK_PARKED, Kind.TASK_ENDED, Kind.TASK_CLAIMED})
