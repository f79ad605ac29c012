"""Beside the built-in worker: what somebody else's scheduler needs to run an app's tasks (docs/engines.md)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from ..errors import StoreError
from ..events import TERMINAL
from .base import Face

if TYPE_CHECKING:
    from ..advancing import Advance
    from ..app import Doubtless


class Hosting(Face):
    """How an engine runs tasks: it is told what wakes them, advances them, and looks for what it was not told."""

    def on_wake(self, hook: Callable[[str], object]) -> Callable[[str], object]:
        """Call `hook(task_id)` when this app gives a task something to do: started, an answer, an event, a cancel, a thaw.

        Meaning: after the commit, in the thread that did it; of a child that was answered with the child's id, which
        `advance` takes too. Not for a time that is reached: `advance` says when. A call is lost with its process, and an
        error of it changes nothing (it is printed): `due` finds what was lost.
        """
        self._wake_hooks.append(hook)
        return hook

    def advance(self, task_id: str) -> Advance:
        """Run a task if it has something to do now, without waiting in place; how it stands, and when to come again.

        Meaning: does no harm, however often and from however many processes it is called; what is not due, or is being run,
        is not touched. Never raises for what the task stands before: a person, a time, another owner, a store that is away.
        Of a child task its root is run. What `resume` asks for by hand, a retry of code that failed, it does not.
        Units: `again` in seconds from now, on the store's clock.
        Durable: as `resume`.
        Raises: UnknownTask (the id is in no log that this app sees), StepTableError.
        """
        from ..advancing import advance

        return advance(cast("Doubtless", self), task_id)

    def due(self) -> list[str]:
        """The ids of all tasks that have something to do now and that nobody runs: for a sweep, every so often.

        Meaning: what `advance` would run; oldest first. Tasks whose code this app does not know, and what is frozen, are
        left out. Raises: StoreError.
        """
        from ..advancing import due

        return list(due(cast("Doubtless", self)))

    def _pass_on(self, task_id: str) -> None:
        """Tell the hooks of a task that was run here by a person's order and has not come to its end."""
        if self._wake_hooks:
            try:
                head = self.store.head(task_id)
            except StoreError:
                return  # the sweep finds it
            if head is not None and head.status not in TERMINAL:
                self._woken((task_id,))

    def _woken(self, task_ids: Iterable[str]) -> None:
        """Tell this process's workers and the hooks that these tasks have something to do."""
        self._runs.wake_workers()
        if not self._wake_hooks:
            return
        for task_id in task_ids:
            for hook in self._wake_hooks:
                try:
                    hook(task_id)
                except Exception as error:  # noqa: BLE001  what woke the task is committed: the sweep finds it
                    said = self._vault.mask(f"{type(error).__name__}: {error}")
                    print(f"doubtless: on_wake hook failed for {task_id}: {said}", file=sys.stderr)
