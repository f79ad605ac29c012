"""One opening of a session: the claim that a host, or whoever resumes, holds; its doubts, and how it is left.

Somebody else owns the loop: there is no code of a task to run. A resume settles doubts and leaves the session waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import host
from .calls import Runtime
from .canonical import encode
from .conclusion import TaskCode
from .declaring import define
from .endings import Ending
from .events import CaseKind, Event, Kind, TaskStatus, draft
from .fold import StepRecord
from .log import TaskLog
from .passes import Park
from .recording import closing_rows
from .standing import BETWEEN, SESSION, UNREAD, acknowledged_row, given_up_row, is_idle, without_effect
from .tasks import TaskRun
from .visits import Turns, Visit, interrupt


def _nobodys() -> None:
    """The code of a session: its host has it."""


def session_code() -> TaskCode:
    """What stands in a session's place where a task has its function."""
    definition, _ = define(SESSION, call=_nobodys, effect="read")
    assert definition is not None
    return TaskCode(SESSION, _nobodys, False, definition)


class Opening(TaskRun):
    """A claim of a session, by its host or by whoever resumes it."""

    repeats = False

    def __init__(
        self, runtime: Runtime, log: TaskLog, code: TaskCode, params: str, *, wait_limit: int | None
    ) -> None:
        super().__init__(runtime, log, code, params, wait_limit=wait_limit)
        self.wait: bool | str = True
        self.by_host = False  # opened by a host; else somebody resumes it
        self.turns = Turns()
        self.visits: set[Visit] = set()
        self.acknowledged: tuple[set[str], set[str]] | None = None  # paths and ids, once the host has left normally
        self.unread = False  # whether it was left with calls whose results the host may not have
        self.closing = ""  # why no call begins any more
        self.ended = False
        self._visiting = host.lock()

    # ------------------------------------------------------------ calls

    @contextmanager
    def visiting(self) -> Iterator[Visit]:
        """A visit of this opening; it parks with it."""
        visit = Visit(self)
        with self._visiting:
            self.visits.add(visit)
            if self.drained or self.closing:
                visit.park(self.closing or "this process stops")
        try:
            yield visit
        finally:
            with self._visiting:
                self.visits.discard(visit)

    def drain(self) -> None:
        """Begin nothing more; what runs is finished and recorded."""
        super().drain()
        self.hurry("this process stops")

    def hurry(self, why: str) -> None:
        """Let every call end: what it has in flight is finished and recorded, and nothing is waited for."""
        with self._visiting:
            self.closing = why
            for visit in self.visits:
                visit.park(why)
                visit.stop.set()

    def stay(self) -> None:
        """It is not left after all: calls may begin again."""
        with self._visiting:
            self.closing = ""

    def cut(self, error: BaseException) -> None:
        """Wait for no call any more: what is in flight is in doubt, and what comes of it late news."""
        with self._visiting:
            visits = list(self.visits)
        for visit in visits:
            interrupt(self, visit, error)

    def doubts_open(self) -> list[StepRecord]:
        """The steps that are in doubt, or of which late news has come, in the order of first arrival."""
        if not self.log.open or self.log.held:
            return []
        return [r for r in self.log.open_records() if r.in_doubt or (r.evidence is not None and not r.settled)]

    def doubtful(self) -> list[StepRecord]:
        """The steps whose doubt nobody is settling now, in the order of first arrival."""
        return [record for record in self.doubts_open() if not self.turns.taken(record.path)]

    # ------------------------------------------------------------ how it is left

    def conclude(self, ending: Ending) -> None:
        """Write down what the host has acknowledged, and leave the session to its next opening."""
        error = ending.error
        if self.ended:
            return
        if self.trouble is not None:
            raise self.trouble
        if self.log.held and self.by_host:
            self.leave_to_its_end()
        elif self.log.held:
            super().conclude(ending)
        elif self.last.parked is not None and not self.drained:
            self.write_parked(self.last.parked)  # of a resume: a doubt that it could not settle
        elif error is not None and not isinstance(error, Exception):
            self.write_parked(Park(f"interrupted: {type(error).__name__}"))
        else:
            self.leave(*self.acknowledgement())

    def acknowledgement(self) -> list[Event]:
        """The rows that a normal leaving writes: whose results the host has, and what it has gone on without."""
        if self.acknowledged is None:
            return []
        paths, ids = self.acknowledged
        given_up = without_effect(self.log)
        paths |= {record.path for record in given_up}
        rows: list[Event] = []
        for record in given_up:
            rows.append(given_up_row(self.task_id, self.log, record, self.runtime))
            rows += closing_rows(self.last, record, self.runtime.store.now(), "the host went on without it")
        if paths:
            rows.append(acknowledged_row(self.task_id, self.log, paths, ids, self.runtime))
        return rows

    def leave_to_its_end(self) -> None:
        """A person has stopped the session while its host had it: whoever resumes it undoes what there is to undo."""
        rows, head = self.acknowledgement(), self.log.store.head(self.task_id)
        if head is None or head.status != TaskStatus.COMPENSATING:
            self.write_parked(Park("it is being ended"), *rows)
            return
        if rows:
            self.log.append(*rows)
        self.give_back()

    def leave(self, *rows: Event) -> None:
        """Wait for the next opening; for a person, or for whoever goes on settling, where a doubt is left."""
        closed = {row.details["case_id"] for row in rows if row.kind == Kind.CASE_SETTLED}
        open_cases = [opened for case, opened in self.log.cases.items() if case not in closed]
        asked = [case for case in open_cases if case.kind in (CaseKind.DOUBT, CaseKind.OUTPUT)]
        if any(record.doubt_case is None for record in self.unsettled()):
            self.write_parked(Park("a doubt is being settled"), *rows)  # ready: a worker goes on with it
        elif asked:
            why = asked[0].row.details.get("why", "")
            self.write_parked(Park(why or "a person has to settle a doubt", human=True), *rows)
        else:
            self.idle(*rows)

    def idle(self, *rows: Event) -> None:
        """Nothing is left to do before the host opens the session again."""
        head = self.log.store.head(self.task_id)
        why = UNREAD if self.unread else BETWEEN
        if not rows and head is not None and is_idle(head) and head.why == why:
            self.give_back()
            return
        parked = draft(
            self.task_id, Kind.TASK_PARKED, self.runtime.store.now(), step_name=SESSION, status=TaskStatus.WAITING,
            data={"wake_at": None, "why": why}, epoch=self.log.epoch,
        )  # fmt: skip
        self.append(*rows, parked)

    def end(self, output: Any) -> None:
        """The host has finished the session: its task is done, with what it says is the output."""
        text = self.runtime.vault.mask(encode(output, where="the session's output"))
        ref, blob = self.runtime.content.put(text)
        ended = draft(
            self.task_id, Kind.TASK_ENDED, self.runtime.store.now(), step_name=SESSION, status=TaskStatus.DONE, output_ref=ref,
            epoch=self.log.epoch,
        )  # fmt: skip
        self.append(*self.acknowledgement(), ended, blobs=() if blob is None else (blob,))
        self.ended, self.goes_on = not self.goes_on, False  # not, where it was cancelled at this very moment
