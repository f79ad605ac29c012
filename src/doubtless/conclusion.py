"""How a run of a task ends: the TaskEnded or TaskParked row, and the case of what a person must see."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .calls import Frame, Runtime
from .canonical import encode
from .effects import StepDefinition
from .endings import Ending
from .errors import Abort, DoubtlessError, Moved, NotCanonical, Parking, StepFailed
from .events import UNDO, CaseKind, Effect, Event, Instant, Kind, StepStatus, TaskStatus, draft, dump
from .fold import StepRecord
from .keeping import keep_trying
from .log import TaskLog
from .obligations import obligations, standing
from .outcomes import AlreadyUndone, NotUndoable, storable, text_of
from .passes import Park, Pass
from .questions import dropped_rows, is_question, question_of
from .recording import unsent_rows
from .snapshots import Plan
from .store.base import Blob
from .undo_tasks import open_children

OnFailure = Literal["compensate", "hold"]


class TaskCode(NamedTuple):
    """A task's function and what is known about it."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    definition: StepDefinition
    """The signature's half of a definition: binds params, gives them and the output their types."""
    plan: Plan | None = None
    """How often a snapshot is made; None: never."""
    on_failure: OnFailure = "compensate"
    """What becomes of its effects when it fails for good: they are undone, or it waits for a person (`hold`)."""


class Concluding:
    """The half of a run that writes its end down; `tasks.TaskRun` makes the passes that it concludes."""

    task_id: str
    log: TaskLog
    runtime: Runtime
    code: TaskCode
    last: Pass
    trouble: DoubtlessError | None
    concluded: bool
    interrupted: BaseException | None
    drained: bool
    last_row: Event | None = None
    """The row that this run has ended the task with."""
    repeats = True
    """Whether another pass may follow at once; of a session its host decides."""
    goes_on: bool = False
    """Another pass follows: the task was cancelled, or has failed, and what it did is settled and undone."""
    zombies: set[Frame]
    zombie_lock: threading.Lock

    def give_back(self) -> None:
        """Stop being the owner without a row, now or when the last call that was left behind has ended."""
        with self.zombie_lock:
            self.concluded = True
            if not self.zombies:
                self.runtime.store.release(self.task_id, self.log.epoch)

    def conclude(self, ending: Ending) -> None:
        """Write down how the run ended: a TaskEnded or TaskParked row, and the case of what a person must see."""
        ending, this = as_undone(self.task_id, ending), self.last
        error = ending.error
        cut = self.drained or self.interrupted is not None or not isinstance(error, Exception | Parking | None)
        self.repeats = self.repeats and not cut
        if self.trouble is not None:
            raise self.trouble  # the store failed under this run: what it could not take now, it cannot take here
        if this.parked is not None and this.parked.broken_off and isinstance(error, StepFailed | Abort):
            this.parked = None  # what was broken off by its failure would be so again on each replay: it ends with the task
        if self.log.held:
            self.conclude_held(this, error)
        elif this.parked is not None and this.parked.diverged is not None:
            self.open_case(this, CaseKind.DIVERGED, this.parked.diverged.evidence(), this.parked.why)
        elif this.parked is not None:
            self.write_parked(this.parked)
        elif isinstance(error, StepFailed | Abort) and not (isinstance(error, StepFailed) and error.kind == "exhausted"):
            if self.keep_doubts(this, error):
                return
            diverged = this.leftover(failing=True)
            if diverged is not None:
                self.open_case(this, CaseKind.DIVERGED, diverged.evidence(), diverged.message)
            else:
                self.fail(self.shown(failure_of(error)), this)
        elif error is not None and not isinstance(error, Exception):
            self.write_parked(Park(f"interrupted: {type(error).__name__}"))
        elif error is not None:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), text_of(error))
        else:
            self.finish(ending.value, this)

    def finish(self, value: Any, this: Pass) -> None:
        """The code returned: the task is done, unless logged steps were not called, or called ones are not settled."""
        if self.keep_doubts(this, None):
            return
        if this.undriven:
            self.open_undriven(this)
            return
        diverged = this.leftover()
        if diverged is not None:
            self.open_case(this, CaseKind.DIVERGED, diverged.evidence(), diverged.message)
            return
        try:
            ended, blobs = self.done_row(value)
        except NotCanonical as error:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), str(error))
            return
        self.append(ended, blobs=blobs)

    def done_row(self, value: Any) -> tuple[Event, Sequence[Blob]]:
        """The row that says that the task is done, with its output, and what that needs beside it. Raises: NotCanonical."""
        text = self.runtime.vault.mask(encode(value, where="the task's output"))
        ref, blob = self.runtime.content.put(text)
        ended = draft(
            self.task_id, Kind.TASK_ENDED, self.runtime.store.now(), step_name=self.code.name, status=TaskStatus.DONE,
            output_ref=ref, epoch=self.log.epoch,
        )  # fmt: skip
        return ended, () if blob is None else (blob,)

    def plainly_done(self, ending: Ending) -> bool:
        """Whether nothing stands against the end of a task whose code has returned, so that `finish` writes one row alone."""
        this, log = self.last, self.log
        stopped = self.drained or self.interrupted is not None or self.trouble is not None or bool(self.zombies)
        left = log.open or log.settled or log.cases or this.undriven
        return not (ending.error or stopped or left or log.held or this.parked or UNDO in self.task_id)

    def fail(self, failure: dict[str, Any], this: Pass) -> None:
        """The task fails for good. What it has to undo is undone from here on, or waits for a person; without any it ends."""
        self.settle_unsent(failure)
        rows = self.log.store.rows(self.task_id)
        owed = [one.entry() for one in obligations(self.runtime, rows)]
        if not owed and not open_children(this):
            self.end_badly(failure, rows)
        elif owed and self.code.on_failure == "hold":
            why = f"the task {ended_as(failure)} ({failure['kind']}) and {len(owed)} of its effects stand"
            self.open_case(this, CaseKind.HOLD, {"failure": failure, "obligations": owed}, why)
        else:
            self.begin_to_undo(failure, len(owed))

    def settle_unsent(self, failure: Mapping[str, Any]) -> None:
        """Settle the writes that would have been tried again and have no effect so far: nothing sends them any more."""
        doubts = {record.path for record in self.unsettled()}
        for record in self.log.open_records():
            if record.effect == Effect.READ or record.undoes or record.settled or record.path in doubts:
                continue
            while record.path in self.log.open:
                rows = unsent_rows(self.last, record, ended_as(failure))
                try:
                    keep_trying(self.last, lambda: self.log.append(*rows))  # noqa: B023
                except Moved:
                    continue

    def begin_to_undo(self, failure: dict[str, Any], count: int) -> None:
        """Make the failure durable before anything is undone: from here on no run executes the task's code again."""
        data = {"failure": failure, "wake_at": None, "why": f"{in_short(failure)}; undoing {count} of its effects"[:300]}
        parked = draft(
            self.task_id, Kind.TASK_PARKED, self.runtime.store.now(), step_name=self.code.name, status=TaskStatus.COMPENSATING,
            data=data, epoch=self.log.epoch,
        )  # fmt: skip
        self.append(parked, goes_on=True)

    def end_badly(self, failure: dict[str, Any], rows: Sequence[Event]) -> None:
        """Write the end of a task that did not succeed, with what stands of it (never called while something is open)."""
        stands = standing(self.runtime, rows)
        owed = obligations(self.runtime, rows)
        undone = [one for one in owed if one.record.status == StepStatus.COMPENSATED]
        status, why = ended_as(failure), in_short(failure)
        if owed and len(undone) == len(owed) and not any(one.get("may") for one in stands):  # what was abandoned may stand
            status, why = TaskStatus.COMPENSATED, f"{why}; {len(undone)} of its effects were undone"
        now = self.runtime.store.now()
        data: dict[str, Any] = {"why": why[:300]}
        if stands:
            data["stands"] = stands
        self.append(
            draft(
                self.task_id,
                Kind.TASK_ENDED,
                now,
                step_name=self.code.name,
                status=status,
                error=dump(failure),
                data=data,
                epoch=self.log.epoch,
            )  # fmt: skip
        )

    def unsettled(self) -> list[StepRecord]:
        """The writes of which nobody knows yet what they did: while there is one, the task does not end (I6)."""
        records = [r for r in self.log.open_records() if r.effect != Effect.READ and not r.settled and not r.undoes]
        return [r for r in records if r.in_doubt or r.in_flight is not None or r.evidence is not None]

    def keep_doubts(self, this: Pass, error: BaseException | None) -> bool:
        """Park for a person instead of ending while a write is in doubt, each with its case; False: none is.

        `error`: what the task ends with, or what settling raised.
        """
        records = self.unsettled()
        if not records:
            return False
        said = "" if error is None else f"; {text_of(error)}"
        why = f"the task does not end while a write is in doubt: {records[0].name} at {records[0].path}{said}"
        now, before = self.runtime.store.now(), set(self.log.cases)
        rows = [
            draft(
                self.task_id, Kind.CASE_OPENED, now, step_seq=record.step_seq, path=record.path, step_name=record.name,
                status=StepStatus.NEEDS_HUMAN, epoch=self.log.epoch,
                data=self.shown({"kind": CaseKind.DOUBT, "why": f"{record.name} at {record.path} is in doubt{said}"[:1000]}),
            )
            for record in records
            if record.doubt_case is None
        ]  # fmt: skip
        self.write_parked(Park(why, human=True), *rows)
        for case in self.log.cases.keys() - before:
            self.runtime.case_opened(case)
        return True

    def open_undriven(self, this: Pass) -> None:
        """The code returned, and has called a step that it never awaited: it would be lost without a word."""
        path, name = next(iter(this.undriven.items()))
        logged = path in self.log.settled or path in self.log.open
        message = f"step {name} at place {path} was called but not awaited; " + (
            "what the log holds of it was not asked for" if logged else "nothing was sent"
        )
        data = {"error": "NotAwaited", "message": message, "step": name, "path": path}
        self.open_case(this, CaseKind.CODE_ERROR, data, message)

    def conclude_held(self, this: Pass, error: BaseException | None) -> None:
        """The task has failed, was cancelled, or waits in a `hold` case: its code is not run, and doubts come first."""
        if this.parked is not None and this.parked.cancelled:
            self.log.load()
            self.goes_on = True
        elif this.parked is not None:
            self.write_parked(this.parked)
        elif error is not None and not isinstance(error, Exception):
            self.write_parked(Park(f"interrupted: {type(error).__name__}"))
        elif self.keep_doubts(this, error):
            return
        elif self.log.failing is not None:
            self.conclude_undone(this, error, self.log.failing.details["failure"])
        elif self.log.let_stand is not None:
            data = self.log.hold_row.details if self.log.hold_row is not None else {}
            self.end_badly(data.get("failure", {"kind": "failed"}), self.log.store.rows(self.task_id))
        elif any(case.kind == CaseKind.HOLD for case in self.log.cases.values()):
            self.write_parked(Park("the task failed; what it did stands until a person decides", human=True))
        elif self.log.fail_answer is not None:
            data = self.log.fail_answer.details
            self.fail(
                {"kind": "failed", "code": "failed_by_person", "detail": data.get("why", ""), "by": data.get("by", "")}, this
            )
        else:
            data = self.log.cancel.details if self.log.cancel is not None else {}
            self.fail({"kind": "cancelled", "code": "", "detail": data.get("why", ""), "by": data.get("by", "")}, this)

    def conclude_undone(self, this: Pass, error: BaseException | None, failure: dict[str, Any]) -> None:
        """What was to be undone is undone or let stand; or something is still open, and the task is not at its end."""
        rows = self.log.store.rows(self.task_id)
        if error is not None:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), text_of(error))
        elif all(one.settled for one in obligations(self.runtime, rows)) and not open_children(this):
            self.end_badly(failure, rows)
        else:  # the wish to undo came while this pass settled doubts
            self.log.load()
            self.goes_on = True

    def shown(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the code itself has worded, as it may be stored: without known secrets, and as text that is text."""
        shown: dict[str, Any] = json.loads(self.runtime.vault.mask(dump(data)), object_hook=_storable)
        return shown

    def code_error(self, error: BaseException) -> dict[str, Any]:
        """What a person needs to see of an exception that is no outcome of a step."""
        text = "".join(traceback.format_exception(error))
        name = type(error).__name__
        message = text_of(error).removeprefix(f"{name}: ")
        data: dict[str, Any] = {"error": name, "message": self.runtime.vault.mask(message)[:1000]}
        data["traceback"] = self.runtime.vault.mask(text)[-4000:]
        if isinstance(error, StepFailed):
            data |= {"step": error.step, "path": error.path, "failure": error.kind}
        return data

    def open_case(self, this: Pass, kind: CaseKind, data: Mapping[str, Any], why: str) -> None:
        """Open a task-level case and park, in one transaction; a case that says the same stays as it is."""
        said = self.shown({**data, "kind": kind, "why": why[:1000]})
        same = [c for c in self.log.cases.values() if c.path is None and c.kind == kind and _same(c.row.details, said)]
        if same:
            self.write_parked(Park(why, human=True), keep=kind)
            return
        opened = draft(self.task_id, Kind.CASE_OPENED, self.runtime.store.now(), data=said, epoch=self.log.epoch)
        before = set(self.log.cases)
        self.write_parked(Park(why, human=True), opened)
        for case in self.log.cases.keys() - before:
            self.runtime.case_opened(case)

    def write_parked(self, park: Park, *first: Event, keep: CaseKind | None = None) -> None:
        """Park the task; with nothing new to say, only give the claim back.

        What was answered while the pass came to its end has woken nobody: then another pass follows, or the task is ready.
        """
        asked = any(row.kind == Kind.CASE_OPENED for row in first)
        asleep = not asked and (park.human or park.until is not None or park.frozen is not None)
        if asleep and self.log.news != self.last.news:
            if self.repeats and not first:
                self.log.load()
                self.goes_on = True
                return
            park, asleep = Park(park.why), False
        park = park._replace(why=self.shown({"why": park.why})["why"])
        status = TaskStatus.NEEDS_HUMAN if park.human else TaskStatus.WAITING if park.until or park.frozen else TaskStatus.READY
        if self.log.failing is not None and not park.human:
            status = TaskStatus.COMPENSATING
        head = self.log.store.head(self.task_id)
        same = head is not None and (head.status, head.wake_at, head.why) == (status, park.until, park.why[:300])
        if same and not first:
            self.give_back()
            return
        now = self.runtime.store.now()
        parked = draft(
            self.task_id, Kind.TASK_PARKED, now, step_name=self.code.name, status=status,
            data={"wake_at": park.until, "why": park.why[:300]} | ({"awaits": park.awaits} if park.awaits else {}),
            epoch=self.log.epoch,
        )  # fmt: skip
        try:
            self.append(*first, parked, keep=keep, unless_news=asleep)
        except Moved:
            self.write_parked(park, *first, keep=keep)

    def append(
        self, *drafts: Event, blobs: Any = (), keep: CaseKind | None = None, goes_on: bool = False, unless_news: bool = False
    ) -> None:
        """Append the run's last rows; what the machine got past closes its cases in the same transaction.

        `unless_news`: raises Moved where others have added something that would have woken the task.
        `goes_on`: another pass follows, and the task keeps its owner. So it does when the task was cancelled before the row
        that says that it is done.
        """
        went_on, ended = drafts[-1].status != TaskStatus.READY, drafts[-1].kind == Kind.TASK_ENDED
        with self.zombie_lock:
            while True:
                now = self.runtime.store.now()
                closing = [
                    draft(
                        self.task_id,
                        Kind.CASE_SETTLED,
                        now,
                        epoch=self.log.epoch,
                        data={"case_id": case, "answer": "settled", "by": "doubtless", "why": "the task went on"},
                    )  # fmt: skip
                    for case, opened in self.log.cases.items()
                    if went_on
                    and opened.path is None
                    and (opened.kind in (CaseKind.CODE_ERROR, CaseKind.DIVERGED) or (ended and opened.kind == CaseKind.QUESTION))
                    and opened.kind != keep
                ]
                if drafts[-1].status == TaskStatus.DONE and self.log.cancel is not None:
                    goes_on = True
                    break
                if ended or self.log.failing is not None or drafts[-1].status == TaskStatus.COMPENSATING:
                    for opened in self.log.cases.values():  # nobody waits for these any more
                        if is_question(opened.row):
                            closing += dropped_rows(question_of(opened.row), now, self.log.epoch)
                if ended:
                    closing += self.unasked(now)
                keep_owner = goes_on or bool(self.zombies)
                try:
                    keep_trying(self.last, lambda: self.log.append(*closing, *drafts, blobs=blobs, keep_owner=keep_owner))  # noqa: B023
                    break
                except Moved:
                    if unless_news and self.log.news != self.last.news:
                        raise
            self.concluded = not goes_on
            if ended and not goes_on:
                self.last_row = drafts[-1]
        if goes_on:
            self.log.load()
            self.goes_on = True

    def unasked(self, now: Instant) -> list[Event]:
        """Close the questions for an output that no code is there to take any more."""
        data = {"answer": "settled", "by": "doubtless", "why": "the task has ended; nobody asks for this output any more"}
        return [
            draft(
                self.task_id, Kind.CASE_SETTLED, now, step_seq=opened.row.step_seq, path=opened.path,
                step_name=opened.row.step_name, epoch=self.log.epoch, data={"case_id": case, **data},
            )
            for case, opened in self.log.cases.items()
            if opened.kind == CaseKind.OUTPUT
        ]  # fmt: skip


def _same(logged: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    keys = ("error", "message", "path", "field", "logged", "asked", "failure", "obligations")
    return all(logged.get(k) == now.get(k) for k in keys)


def _storable(said: dict[str, Any]) -> dict[str, Any]:
    """What a dict says, as a row can hold it; text at any depth."""
    return {storable(name): _storable_in(value) for name, value in said.items()}


def _storable_in(value: Any) -> Any:
    if isinstance(value, list):
        return [_storable_in(each) for each in value]
    return storable(value) if isinstance(value, str) else value


def ended_as(failure: Mapping[str, Any]) -> TaskStatus:
    """How a task ends that did not succeed, where what it did was not all undone."""
    return TaskStatus.CANCELLED if failure["kind"] == "cancelled" else TaskStatus.FAILED


def in_short(failure: Mapping[str, Any]) -> str:
    """A failure on one line."""
    by_person = failure.get("code") == "failed_by_person"
    if failure["kind"] in ("cancelled", "undo") or by_person:
        by = f" by {failure['by']}" if failure.get("by") else " by a person" if by_person else ""
        word = "failed" if by_person else "cancelled" if failure["kind"] == "cancelled" else "to be undone"
        return f"{word}{by}" + (f": {failure['detail']}" if failure.get("detail") else "")
    return f"failed: {failure.get('step') or failure['kind']}: {failure.get('code') or failure.get('detail') or failure['kind']}"


def as_undone(task_id: str, ending: Ending) -> Ending:
    """How the code of a compensating task ended, where it said `AlreadyUndone` or `NotUndoable` itself."""
    if not task_id.rpartition("/")[2].startswith(UNDO):
        return ending
    said = ending.value if ending.error is None else ending.error
    if isinstance(said, AlreadyUndone):
        return Ending({"already_undone": said.detail})
    return Ending(error=Abort(said.reason)) if isinstance(said, NotUndoable) else ending


def failure_of(error: StepFailed | Abort) -> dict[str, Any]:
    """The failure as the TaskEnded row keeps it."""
    if isinstance(error, Abort):
        return {"kind": "abort", "detail": error.reason}
    return {"kind": error.kind, "code": error.reason, "detail": error.detail, "step": error.step, "path": error.path}
