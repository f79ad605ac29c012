"""A task that is begun: recorded and claimed in one transaction, with the rows of both and a head that has an owner at once."""

from __future__ import annotations

from functools import lru_cache

from ..changes import placing
from ..errors import DoubtlessError, StoreUnavailable, UsageError
from ..events import Event, Instant, Kind, TaskStatus, draft, dump, row_hash, seal
from .base import Beginning, Claim, Head, Store


def refuse_no_task(accepted: Event) -> None:
    """Refuse what cannot be a task's first row. Raises: UsageError."""
    if accepted.input_hash is None or not accepted.step_name or accepted.task_id.startswith("$"):
        raise UsageError(f"task {accepted.task_id!r} needs a name, an input hash, and an id that does not begin with $")


def beginning(accepted: Event, *, owner: str, epoch: int, now: Instant) -> Beginning:
    """The first two rows of a task whose run begins with it, sealed: what a claim and its first append would write."""
    refuse_no_task(accepted)
    claimed = draft(
        accepted.task_id, Kind.TASK_CLAIMED, now, status=TaskStatus.RUNNING, epoch=epoch, data=_said_of(owner)
    )  # fmt: skip
    first, second = seal([accepted, claimed], 0, None)
    return Beginning(first, second, row_hash(second))


@lru_cache(maxsize=16)
def _said_of(owner: str) -> str:
    """The same text for all tasks of one owner."""
    return dump({"owner": owner})


def begun_head(begun: Beginning, owner: str) -> Head:
    """The head of a task that was begun."""
    first, second = begun.accepted, begun.claimed
    queue, priority, _ = placing(first)
    assert first.input_hash is not None and first.step_name is not None
    return Head(
        first.task_id, first.step_name, str(TaskStatus.RUNNING), first.input_hash, owner, second.epoch, None, first.wall,
        second.wall, None, None, queue, priority,
    )  # fmt: skip


def hand_back(store: Store, claim: Claim) -> None:
    """Give up a claim of which nothing has come; a task that it has begun stands ready, as its log says then.

    May be repeated, as `Store.release` may. Raises: StoreUnavailable.
    """
    begun = claim.begun
    if begun is not None:
        task = begun.accepted
        parked = draft(
            task.task_id, Kind.TASK_PARKED, store.now(), step_name=task.step_name, status=TaskStatus.READY, epoch=claim.epoch,
            data={"wake_at": None, "why": "interrupted before its code ran"},
        )  # fmt: skip
        try:
            store.append(seal([parked], begun.claimed.event_seq, begun.digest))
            return
        except StoreUnavailable:
            raise  # it is offered again
        except DoubtlessError:  # somebody has added something, which the next run finds; or has the task by now
            pass
    store.release(claim.head.task_id, claim.epoch)
