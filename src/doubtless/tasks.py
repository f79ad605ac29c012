"""A run of a task: it holds the claim, makes passes over the task's code until it ends or parks, and writes that down.

A pass executes task code once, from the top; finished steps are answered from the log. A second pass follows when a
call overran its timeout.
"""

from __future__ import annotations

import contextvars
import json
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import canonical
from .calls import Frame, Runtime, current
from .canonical import encode
from .drivers import adrive, drive
from .effects import StepDefinition
from .errors import Abort, DoubtlessError, Moved, NotCanonical, Parking, StepFailed
from .events import CaseKind, Effect, Event, Kind, StepStatus, TaskStatus, draft, dump
from .executor import run_step, timed_out
from .fold import StepRecord, fold_steps
from .keeping import keep_trying
from .log import TaskLog
from .lookback import record_overrun_look
from .outcomes import Outcome, text_of
from .passes import Ending, Park, Pass, unwrapped
from .recording import record_outcome

if TYPE_CHECKING:
    pass


class TaskCode(NamedTuple):
    """A task's function and what is known about it."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    definition: StepDefinition
    """The signature's half of a definition: binds params, gives them and the output their types."""


PULSE = 0.5
"""Seconds after which a supervisor looks up: of two signals at once, an interpreter may let the first one's waiter sleep."""


GOODBYE = 2.0
"""Seconds for which a run that was interrupted lets its pass record what it has just done."""


class TaskRun:
    """One claim of a task: makes passes over its code until it ends or parks, then writes that down."""

    def __init__(
        self, runtime: Runtime, log: TaskLog, code: TaskCode, params: Mapping[str, Any], *, wait_limit: int | None
    ) -> None:
        self.runtime = runtime
        self.log = log
        self.task_id = log.task_id
        self.code = code
        self.params = params
        self.wait_limit = wait_limit
        self.zombies: set[Frame] = set()
        self.concluded = False
        self.trouble: DoubtlessError | None = None
        self.interrupted: BaseException | None = None
        self.suspect = runtime.store.info().suspect
        self.last = Pass(self)
        self.drained = False
        self._zombie_lock = threading.Lock()
        self._turn = threading.RLock()  # a signal's handler may drain while this very thread begins a pass

    # ------------------------------------------------------------ a pass

    def arguments(self) -> dict[str, Any]:
        """The task's params, decoded anew for each pass and typed by its annotations."""
        params: dict[str, Any] = canonical.decode(encode(self.params))
        self.code.definition.restore_params(params)
        return params

    def doubts(self, this: Pass) -> list[tuple[StepDefinition | None, str, str]]:
        """The steps to settle before task code runs, in the order of first arrival."""
        found = [r for r in self.log.open_records() if r.in_doubt or (r.evidence is not None and not r.settled)]
        return [(self.runtime.find(r.name), r.path, r.name) for r in found]

    def work(self, this: Pass) -> Ending:
        """One pass in this thread: settle what is in doubt, then run the task's code."""
        this.thread = threading.get_ident()
        token = current.set(this)
        try:
            parks: list[Park] = []
            for definition, path, name in self.doubts(this):
                try:
                    drive(this, run_step(this, definition, path, None, name=name))
                except Parking:
                    if not this.set_aside(parks):
                        raise
            if parks:
                raise this.park_for(parks)
            if self.log.held:
                return Ending()
            return Ending(self.code.fn(**self.arguments()))
        except BaseException as error:  # noqa: BLE001
            return Ending(error=unwrapped(error))
        finally:
            current.reset(token)

    async def awork(self, this: Pass) -> Ending:
        """The same on the event loop, in the caller's asyncio.Task."""
        import asyncio

        this.thread = threading.get_ident()
        this.aio_task, this.loop = asyncio.current_task(), asyncio.get_running_loop()
        token = current.set(this)
        ending = Ending()
        try:
            await self.settle_doubts(this)
            if not self.log.held:
                ending = Ending(await self.code.fn(**self.arguments()))
        except BaseException as error:  # noqa: BLE001
            ending = Ending(error=unwrapped(error))
        try:
            current.reset(token)
        except ValueError:
            pass  # its event loop is gone, and with it its context
        ending = await self.branches_ended(this, ending)
        ending = await self.settle_branches(this, ending)
        this.over = True
        return ending

    async def settle_branches(self, this: Pass, ending: Ending) -> Ending:
        """Settle what branches have left in doubt: those that the first to park, or to fail, kept from their cases."""
        doubts, aside = len(self.doubts(this)), list[Park]()
        failed = isinstance(ending.error, StepFailed | Abort) and doubts > 0
        if not failed and not (isinstance(ending.error, Parking | None) and doubts > 1):
            return ending
        if not this.set_aside(aside):
            return ending
        try:
            await self.settle_doubts(this)
        except BaseException as error:  # noqa: BLE001
            return Ending(error=error)
        park = aside[0]
        if failed and (park.human or park.until is not None or park.frozen is not None):
            this.parked = park  # another branch stands before something else
        return ending

    async def settle_doubts(self, this: Pass) -> None:
        """Settle what is in doubt, each as far as it can be; park if that leaves something."""
        parks: list[Park] = []
        for definition, path, name in self.doubts(this):
            try:
                await adrive(this, run_step(this, definition, path, None, name=name))
            except Parking:
                if not this.set_aside(parks):
                    raise
        if parks:
            raise this.park_for(parks)

    async def branches_ended(self, this: Pass, ending: Ending) -> Ending:
        """Let the steps that other branches have in flight be finished and recorded; when cancelled, cancel them too."""
        import asyncio

        while this.branches and not isinstance(ending.error, GeneratorExit):
            if isinstance(ending.error, asyncio.CancelledError):
                for branch in this.branches:
                    branch.cancel()
            try:
                await asyncio.wait(set(this.branches))
            except BaseException as error:  # noqa: BLE001
                ending = Ending(error=error)
        return ending if this.interrupted is None else Ending(error=this.interrupted)

    # ------------------------------------------------------------ the supervisor

    def supervise(self) -> Ending:
        """Run passes in threads of their own until one ends; settle calls that overrun; let Ctrl-C through."""
        try:
            while True:
                with self._turn:
                    if self.interrupted is not None:
                        return Ending(error=self.interrupted)
                    this = self.last = Pass(self)
                    if self.drained:
                        this.park("drained: this process stops")
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run, args=(self._runner, this), name=f"doubtless:{self.task_id}", daemon=True
                )
                thread.start()
                while not this.done.wait(min(self.next_look(this), PULSE)):
                    if self.take_over(this):
                        break
                else:
                    return this.ending or Ending(error=self.interrupted or Parking("interrupted"))
                self.log.load()
        except BaseException as caught:  # Ctrl-C, a signal's exception: rule 7; or the store failed  # noqa: BLE001
            error = what_interrupted(caught)
            if isinstance(error, DoubtlessError):
                self.trouble = error
            self.interrupt(error)
            if not self.last.abandoned:
                self.last.done.wait(GOODBYE)
            return Ending(error=error)

    def _runner(self, this: Pass) -> None:
        try:
            if self.code.is_async:
                import asyncio

                asyncio.run(self._arunner(this))
            else:
                this.ending = self.work(this)
        except BaseException as error:  # noqa: BLE001
            this.ending = this.ending or Ending(error=error)
        finally:
            this.done.set()

    async def _arunner(self, this: Pass) -> None:
        this.ending = await self.awork(this)
        this.done.set()  # before the event loop is closed: a call that cannot be cancelled would hold that up

    def next_look(self, this: Pass) -> float:
        """Seconds until the supervisor has to look: a call that starts later cannot overrun before."""
        frame = this.frame
        if frame is None or self.code.is_async:
            return self.shortest_timeout
        return max(0.001, frame.deadline - self.runtime.monotonic())

    shortest_timeout = 1.0

    def take_over(self, this: Pass) -> bool:
        """If the current call has overrun its timeout, record that and give the pass up; True when done."""
        with this.lock:
            frame = this.frame
            if frame is None or self.code.is_async or frame.done or frame.overrun or self.runtime.monotonic() < frame.deadline:
                return False
            self._abandon(this, frame)
        self._record(frame, timed_out(frame.definition.timeout_us))
        return True

    def interrupt(self, error: BaseException) -> None:
        """A signal or a cancellation came while a pass runs in another thread: what it has in flight is in doubt."""
        with self._turn:
            self.interrupted = error
            this = self.last
        with this.lock:
            frame = this.frame
            this.park(f"interrupted: {type(error).__name__}")
            this.stop.set()
            if frame is not None and not frame.done and not frame.overrun:
                self._abandon(this, frame)
            else:
                frame = None
        if frame is not None:
            self._record(frame, Outcome("unknown", type(error).__name__, "interrupted while the call ran", None))
        elif this.loop is not None and this.aio_task is not None:
            try:
                this.loop.call_soon_threadsafe(this.aio_task.cancel)
            except RuntimeError:
                pass  # its event loop is closed: nothing is in flight there

    def _abandon(self, this: Pass, frame: Frame) -> None:
        """Take the running call away from its pass, whose lock is held: from here on its result is late news."""
        frame.overrun = this.abandoned = True
        this.stop.set()
        self.leave_behind(frame)

    def _record(self, frame: Frame, outcome: Outcome) -> None:
        try:
            if frame.what == "call":
                record_outcome(frame, outcome, running=True)
            else:
                record_overrun_look(frame, outcome)
        except Moved:
            pass  # somebody recorded something newer; the next pass folds it

    def drain(self) -> None:
        """Park at the next step; the one that runs is finished and recorded first."""
        with self._turn:
            self.drained = True
            self.last.park("drained: this process stops")
            self.last.stop.set()

    def leave_behind(self, frame: Frame) -> None:
        """A call goes on although nobody waits for it; of a write: the task stays owned until it has ended."""
        if frame.what == "call" and frame.definition.effect != Effect.READ:
            with self._zombie_lock:
                self.zombies.add(frame)

    def zombie_ended(self, frame: Frame) -> None:
        """A call that was left behind has ended; the last one frees a task that is parked."""
        with self._zombie_lock:
            self.zombies.discard(frame)
            if self.concluded and not self.zombies:
                self.runtime.store.release(self.task_id, self.log.epoch)

    def give_back(self) -> None:
        """Stop being the owner without a row, now or when the last call that was left behind has ended."""
        with self._zombie_lock:
            self.concluded = True
            if not self.zombies:
                self.runtime.store.release(self.task_id, self.log.epoch)

    # ------------------------------------------------------------ the end

    def conclude(self, ending: Ending) -> None:
        """Write down how the run ended: a TaskEnded or TaskParked row, and the case of what a person must see."""
        error, this = ending.error, self.last
        if self.trouble is not None:
            raise self.trouble  # the store failed under this run: what it could not take now, it cannot take here
        if self.log.held:
            self.conclude_held(this, error)
        elif this.parked is not None and this.parked.diverged is not None:
            self.open_case(this, CaseKind.DIVERGED, this.parked.diverged.evidence(), this.parked.why)
        elif this.parked is not None:
            self.write_parked(this.parked)
        elif isinstance(error, StepFailed | Abort) and not (isinstance(error, StepFailed) and error.kind == "exhausted"):
            if self.keep_doubts(this, error):
                return
            diverged = this.leftover()
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
            text = self.runtime.vault.mask(encode(value, where="the task's output"))
        except NotCanonical as error:
            self.open_case(this, CaseKind.CODE_ERROR, self.code_error(error), str(error))
            return
        ref, blob = self.runtime.content.put(text)
        now = self.runtime.store.now()
        ended = draft(
            self.task_id,
            Kind.TASK_ENDED,
            now,
            step_name=self.code.name,
            status=TaskStatus.DONE,
            output_ref=ref,
            epoch=self.log.epoch,
        )
        self.append(ended, blobs=() if blob is None else (blob,))

    def fail(self, failure: dict[str, Any], this: Pass) -> None:
        """The task fails for good. What it has to undo is listed and waits for a person; without any it is failed."""
        owed = obligations(self.runtime, self.log.store.rows(self.task_id))
        if owed:
            why = f"the task failed ({failure['kind']}) and {len(owed)} of its effects stand"
            self.open_case(this, CaseKind.HOLD, {"failure": failure, "obligations": owed}, why)
            return
        self.end_failed(failure, [])

    def end_failed(self, failure: dict[str, Any], stands: list[dict[str, Any]]) -> None:
        """Write the failed end, with what stands."""
        now = self.runtime.store.now()
        why = (
            f"failed: {failure.get('step') or failure['kind']}: {failure.get('code') or failure.get('detail') or failure['kind']}"
        )
        data: dict[str, Any] = {"why": why[:300]}
        if stands:
            data["stands"] = stands
        self.append(
            draft(
                self.task_id,
                Kind.TASK_ENDED,
                now,
                step_name=self.code.name,
                status=TaskStatus.FAILED,
                error=dump(failure),
                data=data,
                epoch=self.log.epoch,
            )  # fmt: skip
        )

    def unsettled(self) -> list[StepRecord]:
        """The writes of which nobody knows yet what they did: while there is one, the task does not end (I6)."""
        records = [r for r in self.log.open_records() if r.effect != Effect.READ and not r.settled]
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
        """A person has failed the task, or it waits in a `hold` case: its code is not run, and doubts come first."""
        if this.parked is not None:
            self.write_parked(this.parked)
        elif error is not None and not isinstance(error, Exception):
            self.write_parked(Park(f"interrupted: {type(error).__name__}"))
        elif self.keep_doubts(this, error):
            return
        elif self.log.let_stand is not None:
            data = self.log.hold_row.details if self.log.hold_row is not None else {}
            self.end_failed(data.get("failure", {"kind": "failed"}), data.get("obligations", []))
        elif any(case.kind == CaseKind.HOLD for case in self.log.cases.values()):
            self.write_parked(Park("the task failed; what it did stands until a person decides", human=True))
        else:
            answer = self.log.fail_answer
            data = answer.details if answer is not None else {}
            self.fail(
                {"kind": "failed", "code": "failed_by_person", "detail": data.get("why", ""), "by": data.get("by", "")}, this
            )

    def shown(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the code itself has worded, as it may be stored: without known secrets, and as text that is text."""
        text = self.runtime.vault.mask(dump(data)).encode("utf-8", "backslashreplace").decode()
        shown: dict[str, Any] = json.loads(text)
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
        same = [c for c in self.log.cases.values() if c.path is None and c.kind == kind and _same(c.row.details, data)]
        if same:
            self.write_parked(Park(why, human=True), keep=kind)
            return
        now = self.runtime.store.now()
        opened = draft(
            self.task_id, Kind.CASE_OPENED, now, data=self.shown({**data, "kind": kind, "why": why[:1000]}), epoch=self.log.epoch
        )  # fmt: skip
        before = set(self.log.cases)
        self.write_parked(Park(why, human=True), opened)
        for case in self.log.cases.keys() - before:
            self.runtime.case_opened(case)

    def write_parked(self, park: Park, *first: Event, keep: CaseKind | None = None) -> None:
        """Park the task; with nothing new to say, only give the claim back."""
        park = park._replace(why=self.shown({"why": park.why})["why"])
        status = TaskStatus.NEEDS_HUMAN if park.human else TaskStatus.WAITING if park.until or park.frozen else TaskStatus.READY
        head = self.log.store.head(self.task_id)
        same = head is not None and (head.status, head.wake_at, head.why) == (status, park.until, park.why[:300])
        if same and not first:
            self.give_back()
            return
        now = self.runtime.store.now()
        parked = draft(
            self.task_id, Kind.TASK_PARKED, now, step_name=self.code.name, status=status,
            data={"wake_at": park.until, "why": park.why[:300]}, epoch=self.log.epoch,
        )  # fmt: skip
        self.append(*first, parked, keep=keep)

    def append(self, *drafts: Event, blobs: Any = (), keep: CaseKind | None = None) -> None:
        """Append the run's last rows; what the machine got past closes its cases in the same transaction."""
        went_on = drafts[-1].status != TaskStatus.READY
        with self._zombie_lock:
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
                    and opened.kind in (CaseKind.CODE_ERROR, CaseKind.DIVERGED)
                    and opened.kind != keep
                ]
                try:
                    keep_trying(self.last, lambda: self.log.append(*closing, *drafts, blobs=blobs, keep_owner=bool(self.zombies)))  # noqa: B023
                    break
                except Moved:
                    continue
            self.concluded = True


def what_interrupted(error: BaseException) -> BaseException:
    """What broke into a wait: a second signal at that moment shows as an error of the wait's own lock."""
    seen: BaseException | None = error
    while isinstance(seen, Exception):
        seen = seen.__context__
    return error if seen is None else seen


def _same(logged: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    keys = ("error", "message", "path", "field", "logged", "asked", "failure", "obligations")
    return all(logged.get(k) == now.get(k) for k in keys)


def failure_of(error: StepFailed | Abort) -> dict[str, Any]:
    """The failure as the TaskEnded row keeps it."""
    if isinstance(error, Abort):
        return {"kind": "abort", "detail": error.reason}
    return {"kind": error.kind, "code": error.reason, "detail": error.detail, "step": error.step, "path": error.path}


def obligations(runtime: Runtime, rows: list[Event]) -> list[dict[str, Any]]:
    """The done steps with a registered compensation, the latest first: what a failed task has to undo."""
    done_at = {r.path: r.event_seq for r in rows if r.kind == Kind.STEP_SETTLED and r.status == StepStatus.DONE}
    owed: list[tuple[int, dict[str, Any]]] = []
    for path, record in fold_steps(rows).items():
        if record.status != StepStatus.DONE or record.effect == Effect.READ or record.policy_digest is None:
            continue
        policy = canonical.decode(runtime.content.get(record.policy_digest))
        if policy.get("compensate"):
            owed.append((done_at[path], {"path": path, "step": record.name, "compensate": policy["compensate"]}))
    return [entry for _, entry in sorted(owed, key=lambda pair: -pair[0])]
