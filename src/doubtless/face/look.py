"""Looking: what the log tells, and whether it is sound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..durations import parse_duration
from ..errors import StoreDamaged, StoreSuspect, UnknownCase
from ..fold import Moves
from ..store.base import Head, Problem
from .base import Face

if TYPE_CHECKING:
    from ..facts import Fact
    from ..inbox import Case, Inbox
    from ..litter import Litter
    from ..store.blobstore import BlobStore
    from ..timeline import TaskView


class Looking(Face):
    """What can be seen of an app's tasks without running any."""

    def tasks(self, *, status: str | Iterable[str] = ()) -> list[Head]:
        """The tasks' head rows, oldest first; of some statuses."""
        return self.store.heads(status=[status] if isinstance(status, str) else list(status))

    def show(self, task_id: str) -> TaskView:
        """Everything that the log tells of a task. Raises UnknownTask."""
        from ..timeline import view

        return view(self.reading, self._known(task_id))

    def facts(self, task_id: str, *, output_bytes: int = 4096) -> list[Fact]:
        """What happened in a task, from its log alone: its steps in order, each with its status in neutral words.

        Meaning: for building a model's context when its history is gone or cut; the log is the only truth. At any time:
        while the task runs, waits, or has ended. Raises UnknownTask.
        """
        from ..facts import facts_of

        self._known(task_id)
        return facts_of(self.reading, task_id, output_bytes)

    def content(self, ref: str) -> Any:
        """What a ref points to, as JSON: an output that a model was shown shortened, or an agent's earlier facts.

        Raises: UsageError for what is no ref, StoreDamaged for content that is missing.
        """
        from ..facts import read_content

        return read_content(self.reading, ref)

    def inbox(self) -> Inbox:
        """What waits for a person: open cases with their evidence, and doubts that nobody is settling."""
        from ..inbox import read_inbox

        return read_inbox(self.reading, self._settle_within)

    def case(self, case_id: str) -> Case:
        """One case as it is now. Raises UnknownCase."""
        from ..inbox import read_case

        row = self.store.case(case_id)
        if row is None:
            raise UnknownCase(f"there is no case {case_id}", hint="doubtless inbox lists the open ones", case=case_id)
        return read_case(self.reading, row)

    def verify(self, *, content: bool = False) -> list[Problem]:
        """Check every chain, gap, ref, projection and the mark, and how each step moved; read only. Empty: nothing found.

        Meaning: that all content is there is checked always, also in an object store; `content`: what lies there is read whole.
        """
        elsewhere = self._content_elsewhere()
        if elsewhere is None:
            found = self.store.verify()
        else:
            from ..litter import Held, damaged

            found = self.store.verify(Held(elsewhere))
            found += damaged(elsewhere) if content else []
        for head in [] if found else self.store.heads():  # of a damaged log, the damage is what has to be told
            found += self._moves(head.task_id)
        return found

    def _moves(self, task_id: str) -> list[Problem]:
        moves, found = Moves(), []
        try:
            for row in self.store.rows(task_id):
                found += [
                    Problem(task_id, row.event_seq, f"the step at {path} moves from {before or 'nothing'} to {after}")
                    for path, before, after in moves.add(row)
                ]
        except StoreDamaged as error:  # the last row of a task that still runs: nothing is chained to it yet
            found.append(Problem(task_id, None, error.message))
        return found

    def _content_elsewhere(self) -> BlobStore | None:
        try:
            return self._elsewhere(self.store)
        except (StoreDamaged, StoreSuspect):  # what is wrong with it, `verify` tells
            return None

    def gc(self, *, older_than: str | int | float = "P1D", dry_run: bool = False) -> list[Litter]:
        """Delete content above 1 MiB that no event, snapshot or spilled result names and that is older than the longest writer.

        Meaning: content is put before its event; what a crash left between the two is litter. One entry for each place:
        the folder beside the database, and the object store. `dry_run` deletes nothing.
        Raises: UsageError for an age under an hour, StoreRefused in suspect mode, StoreUnavailable.
        """
        from ..litter import gc

        elsewhere = self._elsewhere(self.store)
        places: list[BlobStore] = [self.store.folder, *([] if elsewhere is None else [elsewhere])]
        return gc(self.store, places, parse_duration(older_than), dry_run=dry_run)
