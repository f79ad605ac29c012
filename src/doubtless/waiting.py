"""Waiting in a task: `app.sleep` and `app.wait_for`, durable, in place or parked.

What is waited for is a step in the log (`$sleep` with its time, `$wait_for` with its case) before anything waits, so that
a crash, a park or another process changes nothing about it. A wait is a loop that glances at the log and the store's
clock; it parks its pass only when every branch of it that is under way waits so, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .calls import Input, StepLoop, Wait
from .drivers import drive
from .durations import parse_duration
from .effects import StepDefinition
from .errors import Moved, StaleEpoch, StoreError, UsageError
from .events import CaseKind, Effect, Instant, Kind, StepStatus, draft, elapsed_most
from .inputs import prepare
from .log import Settled
from .outcomes import unstorable
from .outputs import replayed
from .passes import Park, Pass, current_aio_task
from .questions import WAIT_FOR, expiry_rows, moment, question_of, type_name
from .recorded import Recorded, call_own, in_task_code, own_step, runtime_here
from .recording import tell_cases
from .schemas import describe

if TYPE_CHECKING:
    from datetime import datetime, timedelta

PAUSE, LONGEST_PAUSE = 10_000, 250_000
"""Microseconds of real time after which a wait that cannot park yet looks again: the first time, and later on."""

SLACK = 500_000
"""Microseconds by which the two clocks may differ before a time to wake is reckoned anew."""


class InTask(Recorded):
    """What task code asks of the app instead of the machine: recorded, so that a replay sees the same."""

    def sleep(self, duration: str | float | timedelta) -> Any:
        """Wait that long, durably; in an async task ``await app.sleep(…)``.

        Meaning: the time to wake is recorded when this is called; a crash, a park and a deploy with another duration do
        not change it. With ``run(wait=False)``, or a shorter duration, the task parks (`TaskWaiting.until`) and a
        worker resumes it when the time has come.
        Shapes: ``"PT10M"``, a number of seconds, a `timedelta`. Units: the store's clock.
        Raises: OutsideTask, UsageError before anything is written.
        """
        us = parse_duration(duration, zero=True)
        scope = in_task_code("app.sleep()")
        text = duration if isinstance(duration, str) else f"PT{us // 1_000_000}.{us % 1_000_000:06}S"
        asleep = call_own(_sleep(), "app.sleep()", duration=text)
        run, path = scope.run, f"{scope.prefix}{scope.count}"
        until, since = asleep["until"], Instant(*asleep["since"])

        def glance() -> Ahead | None:
            now = run.runtime.store.now()
            left = until - since.wall - elapsed_most(since, now)
            return None if left <= 0 else Ahead(reckoned(until, left, now), f"asleep until {moment(until):%Y-%m-%dT%H:%M:%SZ}")

        standing = Standing(run, path, glance)
        if run.loop is None:
            return standing.wait()
        run.undriven[path] = "$sleep"
        return standing.await_()

    def wait_for(
        self, name: str, *, schema: Any = None, deadline: str | float | timedelta | datetime | None = None, about: Any = None
    ) -> Any:
        """Wait for an answer from outside, durably, and return it; in an async task ``await app.wait_for(…)``.

        Meaning: opens a case of kind ``question`` in the inbox. It is answered once: by a person (`settle` with `Answer`
        or `Deny`) or by `send_event` under this name; an event that came before the wait is taken at once, the first
        one first. With a `deadline` a run waits in place for it (``wait=False``: TaskWaiting); without one nothing but
        an answer can move the task on, and `run` raises NeedsHuman.
        Shapes: `schema` is the type of the answer (``bool``, a Literal, a dataclass, a TypedDict, a pydantic model);
        None takes any JSON. `deadline` is a duration from now, ``"P1D"``, or an aware datetime. `about` is what the
        person is shown and the answer is bound to: other code that asks about something else is `Diverged`.
        Units: the deadline counts on the store's clock and needs no process; at that moment an answer is late.
        Raises: Denied (by whom, why), Expired; both are StepFailed and the same on replay. OutsideTask, UsageError before
        anything is written.
        """
        scope = in_task_code("app.wait_for()")
        run, asked = scope.run, Asked(name, schema, deadline, about)
        definition = asked.definition()
        given = prepare(run.runtime, definition, {"name": name, "about": about})
        path = scope.place(WAIT_FOR)
        settled = run.enter(definition, path, given) or open_question(run, path, given, asked)

        def answer() -> Any:
            return replayed(run, definition, path, settled or run.log.settled_at(path))

        standing = Standing(run, path, lambda: None if settled else glance_at(run, path))
        if run.loop is None:
            standing.wait()
            return answer()
        run.undriven[path] = WAIT_FOR
        return standing.await_(answer)


@cache
def _sleep() -> StepDefinition:
    def sleep(duration: str) -> dict[str, Any]:
        now = runtime_here().store.now()
        until = now.wall + parse_duration(duration, zero=True)
        return {"wake_at": moment(until), "until": until, "since": list(now)}

    return own_step("$sleep", sleep, volatile=("duration",))  # a deploy that words it differently has not diverged


# ---------------------------------------------------------------- a wait


class Ahead(NamedTuple):
    """What a wait waits for: a time of the store's clock, or (None) nothing but an answer; and why, in words."""

    until: int | None
    why: str


def reckoned(until: int, left: int, now: Instant) -> int:
    """The time to look again: the recorded one, unless a clock that was set makes it another."""
    at = now.wall + left
    return until if abs(until - at) < SLACK else at


class Standing:
    """One wait of one branch. `glance` says what is ahead, or None when it is over."""

    __slots__ = ("ahead", "glance", "path", "run")

    def __init__(self, run: Pass, path: str, glance: Callable[[], Ahead | None]) -> None:
        self.run = run
        self.path = path
        self.glance = glance
        self.ahead: Ahead | None = None

    def wait(self) -> None:
        """Wait in this thread."""
        try:
            drive(self.run, self._loop())
        finally:
            self._leave()

    async def await_(self, answer: Callable[[], Any] = lambda: None) -> Any:
        """Wait on the event loop, then give the answer."""
        from .adrivers import adrive

        run, here = self.run, current_aio_task()
        run.undriven.pop(self.path, None)
        branch = here if here is not run.root.aio_task else None
        if branch is not None:
            run.branches.add(branch)
            run.waiters.add(branch)
        try:
            await adrive(run, self._loop())
            return answer()
        finally:
            self._leave()
            if branch is not None:
                run.branches.discard(branch)
                run.waiters.discard(branch)

    def _loop(self) -> StepLoop:
        run, pause = self.run, 0 if self.run.loop is not None else PAUSE
        while True:
            if run.abandoned or run.over:
                run.check()
            seen = run.log.seq
            self.ahead = self.glance()
            if run.log.cancel is not None:
                raise run.park_cancelled()
            run.check()  # after the glance: a pass that parks already is due by the time that it has seen
            if self.ahead is None:
                return
            until, why = self.ahead
            if until is not None and run.may_wait(until):
                with run.lock:
                    run.waits.pop(self.path, None)
                    run.driving.add(self.path)
                yield Wait(until, why, seen=seen)
                continue
            park = run.all_wait(self.path, Park(why, until, human=until is None))
            if park is not None and pause:
                raise run.park(park.why, until=park.until, human=park.human)
            yield Wait(pause, why, beside=True)  # on an event loop once at least: branches that were just made begin
            pause = min(max(2 * pause, PAUSE), LONGEST_PAUSE)

    def _leave(self) -> None:
        run = self.run
        with run.lock:
            run.waits.pop(self.path, None)
            run.driving.discard(self.path)
        if self.ahead is not None and self.ahead.until is not None:
            run.wake_by(self.ahead.until)  # whoever has parked the pass: it is due then at the latest


# ---------------------------------------------------------------- a question


class Asked(NamedTuple):
    """A question as the code words it."""

    name: str
    schema: Any
    deadline: str | float | timedelta | datetime | None
    about: Any

    def definition(self) -> StepDefinition:
        """The step that it is. Raises UsageError for what cannot be asked; nothing is written."""
        from .storable import faults_of

        known = isinstance(self.name, str) and 1 <= len(self.name) <= 200
        fault = unstorable(self.name) if known else "is a text of 1 to 200 characters"
        if fault is not None:
            raise UsageError(f"app.wait_for(): the name {fault}; nothing was written", hint="app.wait_for('approve')")
        faults = faults_of(self.schema, place="the answer", verb="send", every_member=True) if self.schema is not None else []
        if faults:
            raise UsageError(f"app.wait_for({self.name!r}): {'; '.join(faults)}; nothing was written")
        self.due(0)
        try:
            return _question(self.schema)
        except TypeError:  # an annotation that cannot be hashed
            return _question.__wrapped__(self.schema)

    def due(self, now: int) -> int | None:
        """The deadline of a question that is opened now (microseconds)."""
        from datetime import UTC, datetime

        if self.deadline is None:
            return None
        if not isinstance(self.deadline, datetime):
            return now + parse_duration(self.deadline)
        if self.deadline.tzinfo is None:
            raise UsageError("app.wait_for(): the deadline has no time zone; nothing was written", hint="datetime(…, tzinfo=UTC)")
        since = self.deadline - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


@lru_cache(maxsize=256)
def _question(schema: Any) -> StepDefinition:
    return own_step(WAIT_FOR, lambda name, about: None, returns=schema)


def open_question(run: Pass, path: str, given: Input, asked: Asked) -> Settled | None:
    """Open the question, unless it is open; or take the event that has come already. What settles it, if it is settled."""
    log, runtime = run.log, run.runtime
    try:
        while True:
            with log.lock:  # no other branch takes the same event
                if path in log.settled:
                    return log.settled_at(path)
                if path in log.open:
                    return None
                now = runtime.store.now()
                ref, blob = runtime.content.put(given.text)
                row = draft(
                    run.task_id, Kind.CASE_OPENED, now, step_seq=log.next_step_seq(), path=path, step_name=WAIT_FOR,
                    status=StepStatus.STARTED, effect_class=Effect.READ, input_hash=given.digest, input_ref=ref,
                    data=_worded(asked, now.wall), epoch=log.epoch,
                )  # fmt: skip
                event = log.first_event(asked.name)
                if event is not None:
                    taken = {"event": event.event_seq}
                    row = draft(
                        run.task_id, Kind.STEP_SETTLED, now, step_seq=row.step_seq, path=path, step_name=WAIT_FOR,
                        status=StepStatus.DONE, effect_class=Effect.READ, input_hash=given.digest, input_ref=ref,
                        output_ref=event.output_ref, data=taken, epoch=log.epoch,
                    )  # fmt: skip
                try:
                    log.append(row, blobs=() if blob is None else (blob,))
                except Moved:
                    continue  # an event may just have come
            tell_cases(run, path, CaseKind.QUESTION)
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def _worded(asked: Asked, now: int) -> dict[str, Any]:
    due = asked.due(now)
    by = "" if due is None else f", until {moment(due):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "kind": CaseKind.QUESTION, "why": f"the task waits for {asked.name!r}{by}", "name": asked.name, "deadline": due,
        "schema": {} if asked.schema is None else describe(asked.schema), "type": type_name(asked.schema),
    }  # fmt: skip


def glance_at(run: Pass, path: str) -> Ahead | None:
    """How an open question stands: None when it is settled; past its deadline that is recorded here."""
    log = run.log
    while True:
        with log.lock:
            if path in log.settled:
                return None
            question = question_of(log.open[path][0])
        now = run.runtime.store.now()
        why = f"waits for {question.name!r}"
        left = question.left(now)
        if left is None or question.deadline is None:
            return Ahead(None, why)
        if left > 0:
            return Ahead(reckoned(question.deadline, left, now), why)
        try:
            log.append(*expiry_rows(question, now, log.epoch))
        except Moved:
            continue  # the last answer came in time
