"""What more than one row takes in SQLite, as a piece that can share a commit: a task begins, or rows change more than the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import apsw

from ..events import Event, Kind, row_hash
from .applying import apply, lets_go
from .base import Beginning, Blob, Claim
from .beginning import beginning, begun_head, refuse_no_task
from .schema import queries
from .tickets import Waits
from .together import NotTogether, Together
from .transaction import bump, head_of, insert, insert_owned, note_tail, put_blobs, same

if TYPE_CHECKING:
    from .sqlite import SqliteStore


class Work(Waits, ABC):
    """What more than one row takes, waiting for a commit that it shares: all of it is done, or nothing.

    `together`: the same for the usual case, so that it can be written with others. `counts`: whether it is a claim, a park or an
    end; `count`: what the mark is raised to then (0: it stays). `result`: what it gives; None: there was nothing to do.
    """

    __slots__ = ("count", "counts", "result", "store", "together")

    def __init__(self, store: SqliteStore, counts: bool) -> None:
        super().__init__()
        self.store = store
        self.counts = counts
        self.count = 0
        self.result: Any = None
        self.together: Together | None = None

    @abstractmethod
    def body(self, cursor: apsw.Cursor) -> Any:
        """Do it, in a transaction, once more when what it did was taken back; its result."""

    @abstractmethod
    def stands(self, cursor: apsw.Cursor) -> Any:
        """Look up, after an error of the driver, whether it was done: its result, or None."""

    @abstractmethod
    def written(self) -> Any:
        """Take in that it was written with others, in a transaction that is still open; its result."""

    @abstractmethod
    def after(self, durable: bool) -> None:
        """Take in whether it is durable, once that is known."""

    def do(self, cursor: apsw.Cursor) -> Any:
        """Do it in a transaction of its own."""
        self.result = self.body(cursor)
        count_all(cursor, [self])
        return self.result


def count_all(cursor: apsw.Cursor, works: Sequence[Work]) -> int:
    """Count the claims, parks and ends of one transaction; what the mark is raised to when it is committed (0: it stays)."""
    counting = [work for work in works if work.counts and work.error is None and work.result is not None]  # None: it was there
    count = bump(cursor) if counting else 0
    for work in counting:
        work.count = count
    return count


class Begins(Work):
    """A task that is accepted and claimed at once; None as its result: it exists."""

    __slots__ = ("accepted", "begun", "blobs", "claim", "epoch", "now")

    what = "accept"

    def __init__(self, store: SqliteStore, accepted: Event, blobs: Sequence[Blob]) -> None:
        super().__init__(store, True)
        self.accepted = accepted
        self.blobs = blobs
        self.now = store.now()
        store.info()
        self.epoch = store._new_epoch()
        self.begun: Beginning | None = None
        self.claim: Claim | None = None  # what it gives where it is written with others
        owner = store._owner.id
        if owner is None or blobs:
            refuse_no_task(accepted)
        else:
            begun = beginning(accepted, owner=owner, epoch=self.epoch, now=self.now)
            head = begun_head(begun, owner)
            self.claim = Claim(head, self.epoch, False, begun)
            self.together = Together(begun[:2], (*head, begun.digest, self.now.wall), None)

    def body(self, cursor: apsw.Cursor) -> Claim | None:
        task_id, owner = self.accepted.task_id, self.store._owner
        if head_of(cursor, task_id) is not None:  # done a second time, it may be what the first time has come to
            return self.stands(cursor)
        put_blobs(cursor, self.blobs)
        with owner.claiming(self.now.wall, self.store._randomness) as name:
            owner.hold(task_id, self.epoch)
        begun = beginning(self.accepted, owner=name, epoch=self.epoch, now=self.now)
        insert(cursor, begun[:2], self.store.path)
        head = begun_head(begun, name)
        cursor.execute(queries()["begin_head"], (*head, begun.digest, self.now.wall))
        self.begun = begun
        return Claim(head, self.epoch, False, begun)

    def stands(self, cursor: apsw.Cursor) -> Claim | None:
        head = head_of(cursor, self.accepted.task_id)
        if head is not None and head.epoch == self.epoch and head.owner == self.store._owner.id:
            return Claim(head, self.epoch, False, self.begun)
        self.begun = None  # it was taken back
        return None

    def written(self) -> Claim:
        assert self.claim is not None
        self.begun = self.claim.begun
        return self.claim

    def after(self, durable: bool) -> None:
        if not durable or self.begun is None:
            self.store._owner.let_go(self.accepted.task_id, self.epoch)
        else:
            self.store._keep(self.accepted.task_id, (self.begun.claimed.event_seq, self.begun.digest))
            self.store._counted(self.count)


def hold_all(works: Sequence[Work]) -> None:
    """Enter the claims of the tasks that begin together, before their commit. Raises: NotTogether: their owner is gone."""
    begun = [work for work in works if type(work) is Begins and work.claim is not None]
    if begun:
        names = {work.claim.head.owner or "" for work in begun if work.claim is not None}
        if not begun[0].store._owner.hold_as(names, [(work.accepted.task_id, work.epoch) for work in begun]):
            raise NotTogether


class Appends(Work):
    """Sealed rows of one task, by its owner, with what they change beside the log."""

    __slots__ = ("blobs", "digest", "events", "guard", "keep_owner", "released")

    def __init__(
        self, store: SqliteStore, events: Sequence[Event], guard: str | None, blobs: Sequence[Blob], *, keep_owner: bool = False,
        digest: bytes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store, any(event.kind in _COUNTED for event in events))
        self.events = events
        self.guard = guard
        self.blobs = blobs
        self.keep_owner = keep_owner
        self.digest = digest or row_hash(events[-1])
        self.released = False
        if len(events) == 1 and guard is None and not blobs and not keep_owner:
            head = lets_go(events[0], self.digest)
            if head is not None:
                self.together = Together(events, None, head)

    def body(self, cursor: apsw.Cursor) -> bool:
        events, first = self.events, self.events[0]
        put_blobs(cursor, self.blobs)
        if not insert_owned(cursor, events, self.guard, self.store._owner, self.store.path):
            return True
        releasing = [apply(cursor, event) for event in events]  # every row is applied, whatever the first one says
        if any(releasing) and not self.keep_owner:
            cursor.execute(queries()["release"], (first.task_id, first.epoch))
            self.released = True
        if self.counts and len(events) > 1:
            note_tail(cursor, events[-1])
        return True

    def stands(self, cursor: apsw.Cursor) -> bool | None:
        return True if same(cursor, self.events) else None

    def written(self) -> bool:
        self.released = True
        return True

    def after(self, durable: bool) -> None:
        last = self.events[-1]
        if durable and self.released and last.epoch is not None:
            self.store._owner.let_go(last.task_id, last.epoch)
            self.store._keep(last.task_id, (last.event_seq, self.digest))
        if durable and self.count:
            self.store._counted(self.count)


_COUNTED = frozenset({Kind.TASK_PARKED.value, Kind.TASK_ENDED.value})
