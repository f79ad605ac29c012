"""A task handed to somebody else's scheduler: whether there is anything to do for it now, and when to come again.

Whoever schedules (a queue, a durable timer, cron) calls `advance` for a task's id, ever so often and at the same time. It
runs what is due, leaves alone what is not, and its answer says in one form when to come again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .children import root_of
from .errors import DoubtlessError, StoreError
from .events import TERMINAL, TaskStatus
from .standing import is_idle
from .worker import still_frozen

if TYPE_CHECKING:
    from .app import Doubtless
    from .store.base import Head, Store

SOON = 1.0
"""Seconds until a task is taken up again that has run and has something to do still: its run was interrupted or drained."""
BUSY = 15.0
"""Seconds until a task is looked at again that somebody else runs: its owner sees to it, unless it dies."""
TROUBLE = 15.0
"""Seconds until a task is tried again whose store could not be used."""
STRANGE = 60.0
"""Seconds until a task is looked at again whose code this process does not know: a deploy may be under way."""


class Advance(NamedTuple):
    """How a task stands after `app.advance`.

    Shapes: `ran`: its code was run just now; False: there was nothing to do, or somebody else is at it. `again`: seconds
    after which somebody should advance it again; None: it has ended, or waits for something that `on_wake` tells of.
    `why`: one line for a person. `trouble`: the store could not be used; nothing is known of the task.
    """

    task_id: str
    status: str
    ran: bool
    again: float | None
    why: str
    trouble: bool = False

    @property
    def ended(self) -> bool:
        """Whether the task has ended: nobody needs to advance it again."""
        return self.status in TERMINAL


class _Look(NamedTuple):
    """What a head row says: due now, or how many seconds until it is looked at again (None: until something wakes it)."""

    due: bool
    again: float | None
    why: str


def advance(app: Doubtless, task_id: str) -> Advance:
    """Run a task if it has something to do now; how it stands then. Raises: UnknownTask, StepTableError."""
    root = root_of(task_id)
    try:
        app._validate()
        heads = [app._known(each) for each in dict.fromkeys((root, task_id))]
        looks = [look(app, head, app.store.now().wall) for head in heads if head.status not in TERMINAL]
        if heads[0].status in TERMINAL or not any(each.due for each in looks):
            return _advance(root, heads[0], looks, ran=False)
        if not _free(app, heads[0]):
            return Advance(root, heads[0].status, False, looks[0].again, looks[0].why)
        try:
            app._runs.run(root, False, one_of_many=True)
        except StoreError:
            raise
        except DoubtlessError:
            pass  # parked, failed or busy: the head row says so
        head = app._known(root)
        looks = [] if head.status in TERMINAL else [look(app, head, app.store.now().wall)]
        return _advance(root, head, looks, ran=True)
    except StoreError as error:
        return Advance(root, "", False, TROUBLE, str(error), trouble=True)


def _advance(root: str, head: Head, looks: list[_Look], *, ran: bool) -> Advance:
    times = [SOON if each.due else each.again for each in looks]
    again = min((each for each in times if each is not None), default=None)
    why = looks[0].why if looks else head.why or ""
    return Advance(root, head.status, ran, again, why)


def _free(app: Doubtless, root: Head) -> bool:
    """Whether the task to run for what is due can be run here: nobody has it, and its code is known."""
    return app.knows(root.task_name) and not app.store.owner_alive(root.owner)


def look(app: Doubtless, head: Head, now: int) -> _Look:
    """What there is to do at this moment (microseconds of the store's clock) for a task that has not ended."""
    store, why = app.store, head.why or head.status
    if is_idle(head):
        return _Look(False, None, "a session waits for its host")
    if head.owner is not None and store.owner_alive(head.owner):
        return _Look(False, BUSY, f"it is being run by {head.owner}")
    if not app.knows(head.task_name):
        return _Look(False, STRANGE, f"its code, {head.task_name}, is not in this app")
    if head.why and head.why.startswith("frozen: ") and still_frozen(head.why, store.frozen()):
        return _Look(False, None, why)
    if head.awaits is not None and key_moved(store, head.awaits):
        return _Look(True, 0.0, why)
    if head.wake_at is not None:
        return _Look(head.wake_at <= now, max(0, head.wake_at - now) / 1e6, why)
    return _Look(head.status != TaskStatus.NEEDS_HUMAN, None, why)


def key_moved(store: Store, once: str) -> bool:
    """Whether the business key that a task waits for is no longer on its way."""
    key = store.key(once)
    return key is not None and key.state != "open"


def due(app: Doubtless) -> Iterator[str]:
    """The ids of the tasks that have something to do now and that nobody runs; of a child too: it is advanced by its root."""
    store = app.store
    live = [status for status in TaskStatus if status not in TERMINAL]
    now = store.now().wall
    for head in store.heads(status=live, due=now):
        if look(app, head, now).due:
            root = head if root_of(head.task_id) == head.task_id else store.head(root_of(head.task_id))
            if root is not None and root.status not in TERMINAL and _free(app, root):
                yield head.task_id


def woken_by_thaw(store: Store, before: Collection[str]) -> list[str]:
    """The ids of the tasks that stood before what was frozen, and no longer is."""
    now = store.frozen()
    waiting = store.heads(status=(TaskStatus.WAITING, TaskStatus.COMPENSATING))
    return [head.task_id for head in waiting if head.why and still_frozen(head.why, before) and not still_frozen(head.why, now)]
