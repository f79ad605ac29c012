"""The SQLite store: one file, WAL, every commit synced. Each method is one transaction (`base.Store`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

import apsw

from ..changes import names_key, placing
from ..events import STORE_TASK, TERMINAL, Event, Instant, Kind, TaskStatus, row_hash, seal, upcast
from ..snapshots import Snapshot
from .applying import apply, check_refusal
from .base import Blob, Claim, Due, Head, Problem, StoreInfo, Wanted
from .beginning import refuse_no_task
from .chain import Linked
from .folder import Folder, Hooks
from .link import Link, first
from .mark import MarkFile
from .opening import Place, open_database
from .owners import Randomness, alive, owner_of_process
from .place import file_system_of, refuse_bad_path, url_of
from .projections import recovered
from .reading import Reading
from .refusals import moved
from .schema import PLAIN, SCHEMA, queries
from .sharing import Sharing
from .spill import Spill
from .tickets import Ticket, is_plain
from .transaction import (
    bump,
    head_of,
    head_to_claim,
    insert,
    insert_taken,
    known,
    note_tail,
    put_blobs,
    same,
    sealed,
)
from .works import Appends, Begins, Work


class SqliteStore(Reading):
    """A store in one SQLite file, for all processes of one host. Thread-safe; opened and created at first use.

    Beside ``recon.db`` lie ``recon.db.mark``, ``recon.db.owners/``, ``recon.db.blobs/`` and ``recon.db.spill/``.
    `clock` is the store's clock. `hooks` is called at each write point by name (``append:before``, ``mark:write``).
    `read_only`: only look, also at a store that is refused as suspect.
    """

    _link: Link
    far = False
    leases = None  # an owner's lock lasts as long as its process

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], Instant],
        namespace: bytes | None = None,
        busy_timeout: float = 30.0,
        hooks: Hooks = None,
        read_only: bool = False,
        folder: Folder | None = None,
        file_system: Callable[[str], str] = file_system_of,
        randomness: Randomness = os.urandom,
    ) -> None:
        refuse_bad_path(path)
        self.path = os.path.realpath(path)
        self.folder = folder or Folder(self.path + ".blobs", hooks)
        self.now = clock  # the clock itself, without a method around it: it is asked twice for each step
        self._randomness = randomness
        self._hooks = hooks
        self._mark = MarkFile(self.path + ".mark", hooks)
        self._place = Place(self.path, self._mark, clock, randomness, namespace, busy_timeout, hooks, file_system)
        self._link = Link(self.path, lambda: open_database(self._place, read_only=read_only), hooks, read_only=read_only)
        self._owner = owner_of_process(self.path + ".owners")
        self._spill = Spill(self.path + ".spill", hooks)
        self._info: StoreInfo | None = None
        self._store_id = b""
        self._queries = queries()
        self._append, self._append_unfrozen = self._queries["append"], self._queries["append_unfrozen"]
        self._owned = self._owner.tasks
        self._sharing = Sharing(self._link, self._counted)
        self._raised = 0  # what this process has raised the mark to
        self._chained = {}

    def info(self) -> StoreInfo:
        """Say what the store is; opens it, and creates it where none ever was."""
        if self._info is None:
            row = self._link.one(self._queries["meta"])
            assert row is not None
            self._store_id = row[0]
            self._raised = 0
            self._info = StoreInfo(url_of(self.path), row[1], bool(row[3]), SCHEMA, row[5])
        return self._info

    def limit_pages(self, pages: int | None) -> None:
        """Let the file grow to so many pages and no more (None: no limit): a full disk, for a test or a quota."""
        self._link.limit_pages(pages)

    def pages(self) -> int:
        """How many pages the file has."""
        return self._link.pages()

    # ------------------------------------------------------------ tasks and their owners

    def accept(self, accepted: Event, blobs: Sequence[Blob] = (), *, taken: Sequence[Event] = ()) -> Head | None:
        """Write the task's first row and its head, durably. None: done; a head: the id exists, nothing written.

        Shapes: of the row, `step_name` is the task's name, `input_hash` its input's, `status` ready unless it says more.
        """
        events, row = _new_task(accepted, taken)
        event = events[0]

        def body(cursor: apsw.Cursor) -> list[Head]:
            found = head_of(cursor, event.task_id)
            if found is not None:
                return [found]
            put_blobs(cursor, blobs)
            insert(cursor, events, self.path)
            cursor.execute(self._queries["create_head"], row)
            if taken:
                note_tail(cursor, events[-1])
            return []

        found = self._link.write("accept", body, lambda cursor: [] if same(cursor, events) else None)
        if not found:
            self._chains(events[-1])
        return found[0] if found else None

    def begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Claim | None:
        """`accept` and `claim` in one transaction (`base.Store.begin`)."""
        begun: Claim | None = self._now(Begins(self, accepted, blobs))
        return begun

    def submit_begin(self, accepted: Event, blobs: Sequence[Blob] = ()) -> Work:
        """Put a task down that is to be begun, for the next commit (`base.Store.submit_begin`)."""
        return self._sharing.add(Begins(self, accepted, blobs))

    def _new_epoch(self) -> int:
        return int.from_bytes(self._randomness(8)) >> 2 or 1

    def _counted(self, count: int) -> None:
        """Raise the mark to what a commit has counted; a commit that many share raises it once."""
        if count > self._raised:
            if not self._store_id:  # else not: whoever commits for many holds the connection
                self.info()
            self._mark.raise_to(self._store_id, count)
            self._raised = count

    def claim(self, task_id: str) -> Claim:
        """Make this process the owner, with a new random epoch; a takeover of a dead owner's task writes a row.

        A task that has ended is claimed without a row, whoever owned it: terminal events are final (I3).
        Raises: TaskBusy (who, since when, how to end it), UnknownTask.
        """
        now = self.now()
        self.info()
        epoch = self._new_epoch()
        counted: list[int] = []
        with self._owner.claiming(now.wall, self._randomness) as owner:

            def body(cursor: apsw.Cursor) -> Claim:
                head = head_to_claim(cursor, task_id, self._owner)
                takeover = head.owner is not None and head.status not in TERMINAL
                cursor.execute(self._queries["claim"], (task_id, owner, epoch, now.wall))
                if takeover:
                    insert_taken(cursor, head, owner=owner, epoch=epoch, now=now, path=self.path)
                counted.append(bump(cursor))
                self._owner.hold(task_id, epoch)
                return Claim(known(cursor, task_id), epoch, takeover)

            try:
                claim = self._link.write("claim", body, lambda cursor: self._claimed(cursor, task_id, epoch))
            except BaseException:
                self._owner.let_go(task_id, epoch)
                raise
        self._counted(counted[0])
        return claim

    def _claimed(self, cursor: apsw.Cursor, task_id: str, epoch: int) -> Claim | None:
        """The claim of this epoch, when it stands."""
        head, row = head_of(cursor, task_id), first(cursor, self._queries["last"], (task_id,))
        if head is None or head.epoch != epoch or row is None:
            return None
        last = upcast(row)
        return Claim(head, epoch, last.kind == Kind.TASK_CLAIMED and last.epoch == epoch)

    def release(self, task_id: str, epoch: int) -> None:
        """Give the task up without a row; nothing happens when the epoch is not the current one."""

        def body(cursor: apsw.Cursor) -> bool:
            cursor.execute(self._queries["release"], (task_id, epoch))
            return True

        def stands(cursor: apsw.Cursor) -> bool | None:
            head = head_of(cursor, task_id)
            return True if head is None or head.epoch != epoch else None

        self._link.write("release", body, stands)
        self._owner.let_go(task_id, epoch)

    def due(self, wanted: Wanted, *, limit: int, now: int) -> Due:
        """What there is to run for a worker with `limit` free places (`base.Store.due`); each is claimed by itself."""
        names, queues, idle = _lists(wanted)
        free = self._link.all(self._queries["due_free"], (names, queues, idle, now, limit))
        others = self._link.all(self._queries["due_others"], (names, queues, now))
        heads = [Head._make(row) for row in (*free, *others)]
        return Due([], [head for head in heads if head.owner is None or not self.owner_alive(head.owner)])

    def next_due(self, now: int) -> int | None:
        """The next time after `now` at which a task that nobody has is due; None: there is none."""
        row = self._link.one(self._queries["next_due"], (now,))
        return None if row is None else row[0]

    def strangers(self, wanted: Wanted, *, limit: int = 100) -> list[Head]:
        """Tasks in these queues that nobody has and whose names are not among those that are wanted."""
        names, queues, _ = _lists(wanted)
        return [Head._make(row) for row in self._link.all(self._queries["strangers"], (names, queues, limit))]

    def listen(self, wake: Callable[[], None]) -> None:
        """None: a file tells nobody that another process has written to it."""

    def owner_alive(self, owner: str | None) -> bool:
        """True while the process that a head row names still holds its lock."""
        return alive(self._owner.folder, owner)

    # ------------------------------------------------------------ appending

    def _links(self, task_id: str, after: int) -> Iterable[Linked]:
        """As `Reading._links` says: the text that is hashed is put together by SQLite, in half the time."""
        for piece in self._pieces("links", task_id, after):
            for seq, before, text in piece:
                yield seq, before, sha256(text).digest()

    def append(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), keep_owner: bool = False
    ) -> None:
        """Append sealed rows of one task by its owner; all or none, durable at return (`base.Store.append`)."""
        event = events[0]
        plain = not blobs and len(events) == 1 and event.kind in PLAIN and (type(event.data) is not str or not names_key(event))
        if not plain or self._owned.get(event.task_id) != event.epoch:
            self._append_several(events, guard, blobs, keep_owner)
            return
        link, hooks = self._link, self._hooks
        if not link.lock.acquire(False):  # somebody is syncing: share the next commit with who else waits
            self.landed(self._sharing.put(event, guard))
            return
        try:
            cursor = link.cursor
            if cursor is None:
                cursor = link.writable("append")
            if hooks is not None:
                hooks("append:before")
            try:
                cursor.execute(self._append if guard is None else self._append_unfrozen, event)
                written = True
            except apsw.ConstraintError as error:
                check_refusal(error, self.path)
                written = False
            except apsw.Error as error:
                link.take_back()
                written = link.fate("append", error, lambda cursor: True if same(cursor, events) else None)
        finally:
            link.lock.release()
        if not written:  # say why; or write it, when the reason is gone meanwhile
            self._append_several(events, guard, blobs, keep_owner)
        elif hooks is not None:
            hooks("append:after")

    def submit(
        self, events: Sequence[Event], *, guard: str | None = None, blobs: Sequence[Blob] = (), digest: bytes | None = None
    ) -> Ticket | Work | None:
        """Put sealed rows down for the next commit that is shared (`base.Store.submit`)."""
        event = events[0]
        if self._owned.get(event.task_id) != event.epoch:
            return None
        if is_plain(events):
            return self._sharing.put(event, guard, blobs)
        return self._sharing.add(Appends(self, events, guard, blobs, digest=digest))

    def flush(self, most: int | None = None, gone: Callable[[], None] | None = None) -> int:
        """Commit what was put down, or the oldest of it (`base.Store.flush`). What came of each row says `landed`."""
        sharing = self._sharing
        if sharing.waiting or sharing.works:
            with self._link.lock:
                sharing.commit(most, gone)
        return 0 if sharing.works else len(sharing.waiting)

    def landed(self, ticket: Ticket | Work) -> Any:
        """Return when what a ticket stands for is durable; raise what its method would (`base.Store.landed`)."""
        if not ticket.done:
            with self._link.lock:
                if not ticket.done:
                    self._sharing.commit()
        if not isinstance(ticket, Ticket):
            return self._came_to(ticket)
        if ticket.error is not None:
            raise ticket.error
        if ticket.alone or not ticket.done:
            self._append_several([ticket.event], ticket.guard, ticket.blobs, False)
        return None

    def _came_to(self, work: Work) -> Any:
        if work.error is None and (work.alone or not work.done):
            return self._now(work)
        work.after(work.error is None)
        if work.error is not None:
            raise work.error
        return work.result

    def _now(self, work: Work) -> Any:
        """Do it in a transaction of its own."""
        try:
            result = self._link.write(work.what, work.do, work.stands)
            work.after(True)
        except BaseException:  # also one that breaks in after the commit: nobody is told of a claim, so nobody has it
            work.after(False)
            raise
        return result

    def _append_several(self, events: Sequence[Event], guard: str | None, blobs: Sequence[Blob], keep_owner: bool) -> None:
        self._now(Appends(self, events, guard, blobs, keep_owner=keep_owner))

    def add(self, task_id: str, drafts: Sequence[Event], *, expect: int | None = None, blobs: Sequence[Blob] = ()) -> list[Event]:
        """Append drafts without an epoch: a person's answer, cancel, freeze, evidence (`base.Store.add`)."""
        written: list[Event] = []

        def body(cursor: apsw.Cursor) -> list[Event]:
            if task_id != STORE_TASK:
                known(cursor, task_id)
            written[:] = sealed(cursor, task_id, drafts)
            if expect is not None and written[0].event_seq != expect + 1:
                raise moved(written[0]._replace(event_seq=expect + 1), written[0].event_seq - 1)
            put_blobs(cursor, blobs)
            insert(cursor, written, self.path)
            for event in written:
                apply(cursor, event)
            note_tail(cursor, written[-1])
            return written

        return self._link.write("add", body, lambda cursor: written if written and same(cursor, written) else None)

    def end_suspect(self, *, by: str, why: str) -> None:
        """End suspect mode: a person vouches that nothing was sent of which the log knows nothing."""
        row = recovered(self.now(), suspect=False, by=by, why=why)
        written: list[Event] = []

        def body(cursor: apsw.Cursor) -> bool:
            written[:] = sealed(cursor, STORE_TASK, [row])
            insert(cursor, written, self.path)
            cursor.execute(self._queries["set_suspect"], (0,))
            return True

        self._link.write("recover", body, lambda cursor: True if written and same(cursor, written) else None)
        self._info = None

    # ------------------------------------------------------------ caches and notes

    def notified(self, case_id: str) -> None:
        """Note that the hooks have taken this open case (`base.Store.notified`)."""
        now = self.now().wall

        def body(cursor: apsw.Cursor) -> bool:
            cursor.execute(self._queries["notified"], (case_id, now))
            return True

        self._link.write("notified", body, lambda cursor: None)

    def put_snapshot(self, snapshot: Snapshot, *, before: int | None = None) -> None:
        """Keep a snapshot, and of the task's others only the one at `before` (`base.Store.put_snapshot`)."""

        def body(cursor: apsw.Cursor) -> bool:
            cursor.execute(self._queries["prune_snapshots"], (snapshot.task_id, before))
            cursor.execute(self._queries["put_snapshot"], snapshot)
            return True

        self._link.write("snapshot", body, lambda cursor: None)

    def drop_snapshots(self, task_id: str | None = None) -> int:
        """Delete a task's snapshots, or all of them (None); how many there were. Changes nothing but speed."""

        def body(cursor: apsw.Cursor) -> int:
            cursor.execute(self._queries["drop_snapshots"], (task_id,))
            return cursor.connection.changes()

        return self._link.write("snapshot", body, lambda cursor: None)

    # ------------------------------------------------------------ beside the database

    def spill(self, event: Event, blobs: Sequence[Blob] = ()) -> str:
        """Keep a result that cannot be appended in a synced file beside the database (rule 6); its name."""
        for blob in blobs:
            self.folder.put(blob.digest, blob.content)
        return self._spill.put(event, self.now().wall)

    def spilled(self, task_id: str) -> list[tuple[str, Event]]:
        """The task's spilled results, oldest first, by name; damaged files are reported by `verify`, not here."""
        return self._spill.of_task(task_id)

    def drop_spilled(self, name: str) -> None:
        """Remove a spilled result once it stands in the log."""
        self._spill.drop(name)

    def place_blobs(self, place: str) -> str:
        """Write down where content above 1 MiB lies, unless a place is written down; the one that stands."""

        def body(cursor: apsw.Cursor) -> str:
            cursor.execute(self._queries["place_blobs"], (place,))
            row = first(cursor, self._queries["meta"])
            assert row is not None
            return str(row[5])

        self._info = self.info()._replace(blobs=self._link.write("place_blobs", body, lambda cursor: None))
        return self._info.blobs or place

    def unnamed(self, digests: set[bytes]) -> set[bytes]:
        """Those of these digests that no event, no snapshot and no spilled result names (`verify.unnamed`)."""
        from .verify import unnamed

        return unnamed(digests, self._place, self._spill)

    def verify(self, holds: Callable[[bytes], bool] | None = None) -> list[Problem]:
        """Check every chain, gap, ref, projection and the mark; read only (`verify.verify`)."""
        from .verify import verify

        return verify(self._place, self.folder, self._spill, holds)

    def close(self) -> None:
        """Close the connection and remove this process's lock file, unless a thread still has a task."""
        self._link.close()
        self._owner.close()


def _new_task(accepted: Event, taken: Sequence[Event]) -> tuple[list[Event], tuple[Any, ...]]:
    """The sealed rows of a task that is accepted, and its head's. Raises: UsageError for what cannot be one."""
    refuse_no_task(accepted)
    event, *_ = events = seal([accepted, *taken], 0, None)
    status = accepted.status or TaskStatus.READY
    return events, (event.task_id, event.step_name, status, event.input_hash, event.at.wall, row_hash(event), *placing(event))


def _lists(wanted: Wanted) -> tuple[str, str | None, str]:
    return json.dumps(wanted.names), None if wanted.queues is None else json.dumps(wanted.queues), json.dumps(wanted.idle)
