"""The PostgreSQL store: one database for many machines; leases say who is alive. Each write is one statement (`base.Store`)."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

from .. import host
from ..changes import placing
from ..errors import TaskBusy
from ..events import TERMINAL, Event, Instant, Kind, TaskStatus, draft, elapsed_most, row_hash, seal
from ..snapshots import Snapshot
from . import reading
from .base import Blob, Claim, Due, Head, Outline, Problem, StoreInfo, Wanted
from .beginning import beginning, begun_head, refuse_no_task
from .folder import Folder, Hooks
from .owners import Randomness, how_to_end
from .pg.appending import Appending, Direct
from .pg.batches import Batches, Begun, begun_values, tasks_json
from .pg.clock import ServerClock
from .pg.content import DatabaseContent
from .pg.heads import Beginnings, Given
from .pg.leases import Asked, Leases, describe
from .pg.link import Link, Refusal, Row
from .pg.mark import MarkFile
from .pg.opening import Gate
from .pg.place import Place, name_of, place_of
from .pg.rows import blob_arrays, changes_json, event_of, ref_in, rows_json
from .pg.schema import queries
from .pg.sharing import Sharing
from .pg.writing import Writing
from .projections import show_time
from .refusals import moved, unknown
from .spill import Spill

_AFTER, _UP_TO = "event_seq > $2\n", "  AND event_seq <= $2::bigint + $3::bigint\n"


class PostgresStore(Writing):
    """A store in the tables of one PostgreSQL schema. Thread-safe; opened at first use, made by `migrate`.

    `clock` is this machine's. The store's clock is the server's, unless `own_clock`: then the given one is the store's (a
    test's, which is turned by hand). `state`: the directory of this machine's mark and of spilled results. `heartbeat`
    False: no thread renews the leases.
    """

    _link: Link
    far = True

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], Instant],
        state: str,
        namespace: bytes | None = None,
        own_clock: bool = False,
        hooks: Hooks = None,
        read_only: bool = False,
        folder: Folder | None = None,
        heartbeat: bool = True,
        randomness: Randomness = os.urandom,
    ) -> None:
        self.place = place_of(url)
        self._queries = queries(self.place.schema)
        self._randomness = randomness
        self._hooks = hooks
        self._local = clock
        beside = beside_of(self.place, state)
        self._mark = mark_of(self.place, state, hooks)
        self._gate = Gate(self.place, self._mark, namespace=namespace, read_only=read_only)
        self._link = self._connections(self.place.connections, hooks, read_only=read_only)
        self._beats = self._connections(1, None, read_only=read_only)  # what the steps do keeps no heartbeat waiting
        self._clock = ServerClock(clock, self._ask_time)
        self.now = clock if own_clock else self._clock.now
        self._own_clock = own_clock
        self._leases = Leases(self._renew, clock, self.place.lease_us, randomness, beats=heartbeat)
        self._asked: deque[Asked] = deque()
        self._spill = Spill(os.path.join(beside, "spill"), hooks)
        self.folder = folder or DatabaseContent(self._link, self._queries, os.path.join(beside, "blobs"), hooks)
        self._append, self._direct = Appending(self._queries), Direct(self._queries)
        self._sharing = Sharing(
            self._link, self._queries, clock=clock, timed=self._wants_time, took=self._clock.take, standing=self._standing,
            newest=self._wrote,
        )  # fmt: skip
        self._beginnings = Beginnings(self._queries)
        self._batches = Batches(
            self._link, self._queries, clock=clock, took=self._clock.take, standing=self._standing, newest=self._rests,
            begin=self._begin,
        )  # fmt: skip
        self._chained = {}

    def _connections(self, limit: int, hooks: Hooks, *, read_only: bool) -> Link:
        return Link(self.place.conninfo, self.place.shown, self._gate.admit, limit=limit, hooks=hooks, read_only=read_only)

    @property
    def leases(self) -> Leases:
        """This process's claims."""
        return self._leases

    def info(self) -> StoreInfo:
        """Say what the store is; opens it. Raises: StoreRefused where it is not migrated, StoreSuspect, StoreUnavailable."""
        meta = self._gate.meta
        if meta is None:
            self._link.renew()
            meta = self._gate.meta
            assert meta is not None
        return StoreInfo(self.place.shown, meta.namespace, meta.suspect, self._gate.version.number, meta.blobs)

    # ------------------------------------------------------------ the clock

    def _at(self) -> int | None:
        """The time that a statement takes for now; None: the server's own."""
        return self._local().wall if self._own_clock else None

    def _wants_time(self, boot: int) -> bool:
        return not self._own_clock and self._clock.wants_time(boot)

    def _ask_time(self) -> None:
        sent = self._local()
        row = self._link.one(self._queries["clock"])
        assert row is not None
        self._clock.take(row[0], sent)

    # ------------------------------------------------------------ tasks and their owners

    def accept(self, accepted: Event, blobs: Sequence[Blob] = (), *, taken: Sequence[Event] = ()) -> Head | None:
        """Write the task's first row and its head, durably. None: done; a head: the id exists, nothing written.

        Shapes: of the row, `step_name` is the task's name, `input_hash` its input's, `status` ready unless it says more.
        """
        refuse_no_task(accepted)
        event, *_ = events = seal([accepted, *taken], 0, None)
        status = accepted.status or TaskStatus.READY
        args = (
            event.task_id, event.step_name, str(status), event.input_hash, event.at.wall, row_hash(events[-1]), rows_json(events),
            *blob_arrays(blobs), *placing(event),
        )  # fmt: skip

        def stands() -> bool | None:
            return True if self._same(events) else None

        try:
            if self._link.write("accept", self._queries["accept"], args, stands, lambda rows: bool(rows[0][0])):
                self._seen(events[-1])
                self._chains(events[-1])
                return None
        except Refusal:
            pass
        return self.head(event.task_id)

    def begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Claim | None:
        """`accept` and `claim` in one statement (`base.Store.begin`)."""
        ticket = self._beginning(accepted, blobs)
        try:
            return self._begin([ticket]).get(accepted.task_id)
        except BaseException:  # also one that breaks in after the commit: nobody is told of a claim, so its lease ends
            self._leases.let_go(accepted.task_id, ticket.epoch)
            raise

    def submit_begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Begun:
        """Put a task down that is to be begun, for the next commit (`base.Store.submit_begin`)."""
        ticket = self._beginning(accepted, blobs)
        self._batches.begun.append(ticket)
        return ticket

    def _beginning(self, accepted: Event, blobs: Sequence[Blob]) -> Begun:
        begun = beginning(accepted, owner=self._leases.owner(), epoch=self._new_epoch(), now=self.now())
        return Begun(begun, blobs)

    def _begin(self, tickets: Sequence[Begun]) -> dict[str, Claim]:
        """Begin tasks in one statement; the claims of those whose ids were free."""
        self.info()
        sent, granted, owner = self._local(), self._leases.grant, self._leases.owner()
        contents = [blob for ticket in tickets for blob in ticket.blobs]
        blobs, at = blob_arrays(contents), self._at()
        given = Given(
            [ticket.task_id for ticket in tickets], 2 * len(tickets),
            None if contents else partial(begun_values, tickets, owner, granted, at),
            lambda: (*tasks_json(tickets), owner, granted, at, *blobs),
        )  # fmt: skip
        epochs = {ticket.epoch for ticket in tickets}

        def stand() -> Row | None:
            heads = [Head._make(row) for row in self._link.all(self._queries["taken"], (owner, list(epochs)))]
            return ([head.task_id for head in heads], None, None) if heads else None

        try:
            begun, store_id, suspect = self._link.write("accept", self._beginnings, given, stand, lambda rows: rows[0])
        except Refusal:  # it has rows, and no head
            if len(tickets) > 1:
                raise
            first = tickets[0].begun.accepted
            last = self.last(first.task_id)
            raise moved(first, 0 if last is None else last.event_seq) from None
        claims = {}
        for ticket in tickets:
            if ticket.task_id in begun:
                claims[ticket.task_id] = Claim(begun_head(ticket.begun, owner), ticket.epoch, False, ticket.begun)
                self._leases.hold(ticket.task_id, ticket.epoch, sent, granted)
                self._keep(ticket.task_id, (ticket.begun.claimed.event_seq, ticket.begun.digest))
        if store_id is not None and not self._gate.again(store_id, suspect):  # as `claim` sees it
            self._chained.clear()
            try:
                self.info()
            except BaseException:
                for claim in claims.values():
                    self.release(claim.head.task_id, claim.epoch)
                raise
        if claims:
            self._seen(next(ticket.begun.claimed for ticket in reversed(tickets) if ticket.task_id in claims))
        return claims

    def claim(self, task_id: str) -> Claim:
        """Make this process the owner, with a new random epoch and a lease; a takeover of a dead owner's task writes a row.

        A task that has ended is claimed without a row, whoever owned it: terminal events are final (I3).
        Raises: TaskBusy (who, since when, until when), UnknownTask.
        """
        epoch = self._new_epoch()
        owner = self._leases.owner()
        while True:
            found = self._link.one(self._queries["claimed"], (task_id, self._at()))
            if found is None:
                raise unknown(task_id)
            *columns, since, until, now, store_id, suspect = found
            if not self._gate.again(store_id, suspect):  # a person has gone on with it, or ended suspect mode, elsewhere
                self._chained.clear()
                self.info()
                continue
            head = Head._make(columns)
            if head.owner is not None and until > now:
                raise self._busy(head, head.owner, since, until)
            rows: list[Event] = []
            takeover = head.owner is not None and head.status not in TERMINAL
            if takeover:
                rows = self._taken(head, owner, epoch, until)
            try:
                return self._claim(head, owner, epoch, rows)
            except Refusal:
                continue  # somebody was faster: look again

    def _new_epoch(self) -> int:
        return int.from_bytes(self._randomness(8)) >> 2 or 1

    def due(self, wanted: Wanted, *, limit: int, now: int) -> Due:
        """What there is to run for a worker with `limit` free places; what nobody has is claimed (`base.Store.due`)."""
        doubtful = self._doubtful(wanted)
        try:
            came = [(before, head) for before in doubtful for head in self._come_through(before)]
            limit = max(0, limit - len(came))
            epochs = [self._new_epoch() for _ in range(limit)]
            asked = Asked(self._leases.owner(), wanted.queues, epochs, self._local(), self._leases.grant, set())
            names, idle = list(wanted.names), list(wanted.idle)
            queues = None if wanted.queues is None else list(wanted.queues)
            args = (names, queues, idle, limit, asked.owner, epochs, asked.granted, self._at())

            def stand() -> list[Row] | None:
                if asked not in doubtful:
                    doubtful.append(asked)
                return self._link.all(self._queries["taken"], (asked.owner, epochs)) or None

            rows = self._link.write("claim", self._queries["due"], args, stand, lambda rows: rows)
            # Only now, when nothing can fail any more: what is held is renewed, and nobody would run it.
            due = Due([self._handed(before, head) for before, head in came], [])
            for head in map(Head._make, rows):
                if head.owner == asked.owner and head.epoch in epochs:
                    due.claims.append(self._handed(asked, head))
                else:
                    due.heads.append(head)
        finally:
            self._asked.extend(doubtful)
        due.claims.sort(key=lambda claim: (claim.head.priority, claim.head.created_at, claim.head.task_id))
        return due

    def _handed(self, asked: Asked, head: Head) -> Claim:
        assert head.epoch is not None
        asked.handed.add((head.task_id, head.epoch))
        self._leases.hold(head.task_id, head.epoch, asked.sent, asked.granted)
        return Claim(head, head.epoch, False)

    def _doubtful(self, wanted: Wanted) -> list[Asked]:
        """What was asked for in these queues, and sent again; taken out, so that no two threads hand on the same claim."""
        found: list[Asked] = []
        others: list[Asked] = []
        for _ in range(len(self._asked)):
            with contextlib.suppress(IndexError):  # another thread has taken it out
                asked = self._asked.popleft()
                late = elapsed_most(asked.sent, self._local()) > asked.granted  # by then its leases are over
                if not late and asked.owner == self._leases.owner():  # the child of a fork has not asked for it
                    (found if asked.queues == wanted.queues else others).append(asked)
        self._asked.extend(others)
        return found

    def _come_through(self, asked: Asked) -> list[Head]:
        """The claims of a statement that was sent again, and has come through since: nobody else would know of them."""
        heads = map(Head._make, self._link.all(self._queries["taken"], (asked.owner, asked.epochs)))
        return [head for head in heads if (head.task_id, head.epoch) not in asked.handed]

    def next_due(self, now: int) -> int | None:
        """The next time after `now` at which a task that nobody has is due; None: there is none."""
        row = self._link.one(self._queries["next_due"], (now,))
        return None if row is None else row[0]

    def strangers(self, wanted: Wanted, *, limit: int = 100) -> list[Head]:
        """Tasks in these queues that nobody has and whose names are not among those that are wanted."""
        queues = None if wanted.queues is None else list(wanted.queues)
        rows = self._link.all(self._queries["strangers"], (list(wanted.names), queues, limit))
        return [Head._make(row) for row in rows]

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when a task is given something to do, by whichever process; what ends that (`base.Store.listen`)."""
        from .pg.listening import Listener

        return Listener(self.place, wake).start().stop

    def _taken(self, head: Head, owner: str, epoch: int, until: int) -> list[Event]:
        """The row of a takeover: what was in flight is in doubt from here on; its last send was before the lease's end."""
        data = {"owner": owner, "was": head.owner, "lease_until": until}
        row = draft(head.task_id, Kind.TASK_CLAIMED, self.now(), status=TaskStatus.RUNNING, epoch=epoch, data=data)
        last = self.last(head.task_id)
        assert last is not None
        return seal([row], last.event_seq, row_hash(last))

    def _claim(self, head: Head, owner: str, epoch: int, rows: list[Event]) -> Claim:
        sent, granted = self._local(), self._leases.grant
        args = (head.task_id, head.epoch, owner, epoch, granted, self._at(), rows_json(rows), changes_json(rows)[0])

        def stands() -> bool | None:
            now = self.head(head.task_id)
            return True if now is not None and now.epoch == epoch else None

        try:
            self._link.write("claim", self._queries["claim"], args, stands, lambda made: True)
        except Refusal:
            if not stands():  # it was sent again, and the first one has come through meanwhile
                raise
        self._leases.hold(head.task_id, epoch, sent, granted)
        head = head._replace(owner=owner, epoch=epoch)
        if rows:
            self._seen(rows[0])
            head = head._replace(
                status=str(TaskStatus.RUNNING), wake_at=None, why=None, awaits=None, updated_at=rows[0].at.wall
            )
        return Claim(head, epoch, bool(rows))

    def _busy(self, head: Head, owner: str, since: int | None, until: int) -> TaskBusy:
        who = describe(owner)
        ours = who.pid == host.pid() and who.host == describe(self._leases.owner()).host
        place = "this process" if ours else f"process {who.pid} ({who.program or 'unknown program'} on {who.host})"
        since = since or head.updated_at
        ends = f"dead, it is taken over when its lease ends ({show_time(until)})"
        return TaskBusy(
            f"task {head.task_id} is run by {place} since {show_time(since)}",
            hint="a thread of it has the task; wait for that run" if ours else f"{how_to_end(who)}; {ends}",
            task=head.task_id,
            pid=who.pid,
            host=who.host,
            program=who.program,
            owner=owner,
            since=since,
            until=until,
        )

    def release(self, task_id: str, epoch: int) -> None:
        """Give the task up without a row; nothing happens when the epoch is not the current one."""
        self._link.write("release", self._queries["release"], (task_id, epoch), lambda: None, lambda rows: True)
        self._leases.let_go(task_id, epoch)

    def owner_alive(self, owner: str | None) -> bool:
        """True while a lease of the owner that a head row names lasts."""
        return bool(owner) and self._link.one(self._queries["owner_alive"], (owner, self._at())) is not None

    def _renew(self, claims: Sequence[tuple[str, int, int]]) -> set[tuple[str, int]]:
        tasks, epochs, granted = (list(column) for column in zip(*claims, strict=True))
        args = (tasks, epochs, granted, self._at())
        return self._beats.write(
            "renew", self._queries["renew_leases"], args, lambda: None, lambda rows: {(task, epoch) for task, epoch in rows}
        )

    # ------------------------------------------------------------ caches and notes

    _event = staticmethod(event_of)

    def _pieces(self, name: str, task_id: str, after: int, seq: int = 0) -> Iterator[list[Row]]:
        """The rows of a query after a place, piece by piece (`Reading._pieces`); after the first, bounded by their places.

        A planner that does not know how long this log is would read all that is left for each piece, and sort it.
        """
        query = whole = self._queries[name]
        bounded = whole.replace(_AFTER, _AFTER + _UP_TO)
        while True:
            piece = self._link.all(query, (task_id, after, reading.PIECE))
            yield piece
            full = len(piece) == reading.PIECE
            if (not full and query is whole) or (piece and (not isinstance(piece[-1][seq], int) or piece[-1][seq] <= after)):
                return
            query = bounded if full else whole  # a bounded piece that is short: the end, or rows are gone
            after = piece[-1][seq] if piece else after

    def outline(self, task_id: str, *, after: int = 0) -> Iterator[Outline]:
        """The rows in order, with the columns that replay needs; after a place with `after` (`base.Store.outline`)."""
        for piece in self._pieces("outline", task_id, after):
            for row in piece:
                plain = row if row[5] is None or row[5][:7] == "inline:" else (*row[:5], ref_in(row[5]), *row[6:])
                yield cast("Outline", plain)

    def notified(self, case_id: str) -> None:
        """Note that the hooks have taken this open case (`base.Store.notified`)."""
        self._write_again("notified", "notified", (case_id, self.now().wall))

    def put_snapshot(self, snapshot: Snapshot, *, before: int | None = None) -> None:
        """Keep a snapshot, and of the task's others only the one at `before` (`base.Store.put_snapshot`)."""
        self._write_again("snapshot", "put_snapshot", (*snapshot, before))

    def drop_snapshots(self, task_id: str | None = None) -> int:
        """Delete a task's snapshots, or all of them (None); how many there were. Changes nothing but speed."""
        return len(self._write_again("snapshot", "drop_snapshots", (task_id,)))

    def _write_again(self, what: str, query: str, args: Sequence[object]) -> list[Row]:
        """Run a statement that may as well run twice."""
        return self._link.write(what, self._queries[query], args, lambda: None, lambda rows: rows)

    # ------------------------------------------------------------ beside the database

    def spill(self, event: Event, blobs: Sequence[Blob] = ()) -> str:
        """Keep a result that cannot be appended in a synced file of this machine (rule 6); its name."""
        for blob in blobs:
            (self.folder.local if isinstance(self.folder, DatabaseContent) else self.folder).put(blob.digest, blob.content)
        return self._spill.put(event, self.now().wall)

    def spilled(self, task_id: str) -> list[tuple[str, Event]]:
        """The task's results that this machine has spilled, oldest first, by name."""
        return self._spill.of_task(task_id)

    def drop_spilled(self, name: str) -> None:
        """Remove a spilled result once it stands in the log."""
        self._spill.drop(name)

    def place_blobs(self, place: str) -> str:
        """Write down where content above 1 MiB lies, unless a place is written down; the one that stands."""
        self._write_again("place_blobs", "place_blobs", (place,))
        self._look_again()
        return self.info().blobs or place

    def unnamed(self, digests: set[bytes]) -> set[bytes]:
        """Those of these digests that no event, no snapshot and no result spilled on this machine names."""
        from .pg.verify import unnamed

        return unnamed(digests, self.place, self._spill)

    def verify(self, holds: Callable[[bytes], bool] | None = None) -> list[Problem]:
        """Check every chain, gap, ref, projection and this machine's mark; read only (`pg.verify`)."""
        from .pg.verify import verify

        return verify(self.place, self._mark, self.folder, self._spill, holds)

    def close(self) -> None:
        """Close the connections that nobody uses. Claims that a thread still has are kept, and renewed."""
        self._link.close()
        self._beats.close()


def beside_of(place: Place, state: str) -> str:
    """The directory of what this machine keeps about a store."""
    return os.path.join(os.path.abspath(place.mark or os.path.join(state, "doubtless")), name_of(place))


def mark_of(place: Place, state: str, hooks: Hooks = None) -> MarkFile:
    """This machine's mark of a store."""
    return MarkFile(os.path.join(beside_of(place, state), "mark"), hooks)
