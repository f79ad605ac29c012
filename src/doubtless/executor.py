"""One step: the loop over `protocol.decide`, written once as a generator.

`run_step` yields what it cannot do itself (call user code, wait) and is told what came of it; `drivers` has the sync and
async loops around it. Appending is done at once: `attempts` has what an attempt writes, `settling` what ends a step without one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, assert_never

from . import canonical
from .attempts import StoreRefusal, begin_call, begin_suspect, finish_call, unwritten
from .calls import Input, Reply, Request, Run, Runtime, StepLoop, Wait
from .effects import Policy, StepDefinition, tighten
from .errors import UsageError
from .events import READ, UNDO, Instant
from .fold import StepRecord
from .holders import take_key
from .lookback import look_back
from .outputs import replayed
from .protocol import AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, decide
from .repeats import settle_repeat
from .settling import ask, ask_unsent, not_wanted, settle_failed, settle_reused


def run_step(
    run: Run, definition: StepDefinition | None, path: str, given: Input | None, *, name: str = "", shares: bool = False
) -> StepLoop:  # fmt: skip
    """Bring the step at `path` to its end: returns its output, or raises StepFailed or Parking.

    `given` None settles what is in doubt before task code runs: it returns as soon as nothing is in doubt. `shares`: the
    driver waits for rows that share a commit (`Frame.flight`), before it calls and before it hands the output on.
    """
    return StepRun(run, definition, path, given, definition.name if definition is not None else name, shares).loop()


class StepRun:
    """A step on its way to its end; as `run_step`. `polls`: how often it has waited for others."""

    __slots__ = ("definition", "given", "name", "path", "polls", "run", "shares")

    def __init__(
        self, run: Run, definition: StepDefinition | None, path: str, given: Input | None, name: str, shares: bool
    ) -> None:  # fmt: skip
        self.run = run
        self.definition = definition
        self.path = path
        self.given = given
        self.name = name
        self.shares = shares
        self.polls = 0

    def loop(self) -> StepLoop:
        """Look at the log, decide, do it; again, until that is all."""
        run, log, definition, path, given = self.run, self.run.log, self.definition, self.path, self.given
        while True:
            run.check()
            seen = log.seq
            record = log.record(path)
            if record is None and path in log.settled:
                return None if given is None else replayed(run, definition, path, log.settled_at(path))
            if not log.sure:
                log.make_sure()
            if record is not None and record.undoes and not record.keys:
                record = None  # a compensation that could not begin before: all that there is of it are cases
            policy, lost = effective(run.runtime, definition, record)
            if log.undo_by is not None or path[0] == UNDO:
                policy = policy._replace(undo_by=log.deadline(path))
            if (yield from self._beforehand(policy, lost, record)):
                continue
            now = run.runtime.store.now()
            action = decide(policy, record, now)
            if isinstance(action, Call) and action.allow and log.held and path[0] != UNDO and record is not None:
                action = not_wanted(record)
            if (given is None or run.cancelled(path)) and (record is None or not (record.in_doubt or record.evidence)):
                if given is None:
                    return None
                raise run.park_cancelled()
            if definition is None and record is not None and isinstance(action, Call | LookBack):
                yield from ask(run, record, "the step is gone from the table", anew=record.answer is not None)
            elif isinstance(action, Call):
                done = yield from self._call(action, policy, record, now)
                if done is not None:
                    return done[0]
            else:
                yield from self._act(action, policy, record, now, seen)

    def _beforehand(
        self, policy: Policy, lost: tuple[str, ...], record: StepRecord | None
    ) -> Generator[Request, Reply, bool]:  # fmt: skip
        """What comes before a decision: the step's policy is lost, it repeats what was given up, or the log was restored.

        True: something came of it; decide by what the log says now.
        """
        run, definition, path, given = self.run, self.definition, self.path, self.given
        if record is not None and record.in_doubt and lost and not record.evidence and not record.answer:
            yield from ask(run, record, f"gone from the table since the intent: {', '.join(lost)}")
            return True
        if definition is None or policy.effect == READ:
            return False
        if record is None and given is not None:
            other = run.log.given_up_beside(path, self.name, given.digest)
            if other is not None:
                settle_repeat(run, definition, path, given, other)
                return True
        if run.suspect and (record is None or not record.suspect):
            said = record is not None and record.answer is not None  # it may have acted since the backup was made: void
            if said or (given is not None and (record is None or not record.settled)):
                turn = yield from self._key_turn(record)
                if turn is not None:
                    begin_suspect(run, definition, path, given, record, turn)
                return True
        return False

    def _key_turn(self, record: StepRecord | None) -> Generator[Request, Reply, int | None]:
        """The turn of its business key that a first attempt takes, 0 where it takes none.

        None: it waited for the holder, or the step is settled by what the holder did.
        """
        if record is not None or self.given is None or self.given.once is None:
            return 0
        assert self.definition is not None
        turn = yield from take_key(self.run, self.definition, self.path, self.given, self.polls)
        self.polls += 1
        return turn or None

    def _call(
        self, action: Call, policy: Policy, record: StepRecord | None, now: Instant
    ) -> Generator[Request, Reply, tuple[Any] | None]:  # fmt: skip
        """Make an attempt: its output in a tuple, or None, where what the log says now decides."""
        run, definition, path = self.run, self.definition, self.path
        if record is None and run.log.open and not policy.independent and run.blocked_by_doubt(path):  # rule 8
            yield Wait(now.wall + min(50_000 << self.polls, 1_000_000), "another step is in doubt", branches=True)
            self.polls = min(self.polls + 1, 10)
            return None
        assert definition is not None
        turn = yield from self._key_turn(record)
        if turn is None:
            return None
        frame = begin_call(run, definition, policy, path, self.given, record, action, now, turn, shares=self.shares)
        if frame is None:
            return None
        try:
            reply = yield frame
        except StoreRefusal as refusal:  # its row was not written, and nothing was called
            unwritten(run, definition, refusal)
            return None
        return None if reply is None else finish_call(frame, reply)  # None: it is too late for it, which is recorded

    def _act(
        self, action: LookBack | WaitUntil | AskHuman | Reuse | Fail, policy: Policy, record: StepRecord | None, now: Instant,
        seen: int,
    ) -> Generator[Request, Reply, None]:  # fmt: skip
        """Do what was decided, where that is no attempt."""
        run, definition = self.run, self.definition
        match action:
            case LookBack():
                assert definition is not None and record is not None
                yield from look_back(run, definition, policy, record)
            case WaitUntil():
                run.offer_late()
                yield Wait(action.at, f"{self.name} at {self.path}: {action.why}", seen=seen, since=now)
            case AskHuman() if record is None:
                assert definition is not None
                ask_unsent(run, definition, self.path, self.given, action.why)
            case AskHuman():
                assert record is not None
                yield from ask(run, record, action.why, anew=action.anew)
            case Reuse():
                assert record is not None
                settle_reused(run, record, action)
            case Fail():
                assert record is not None
                settle_failed(run, definition, record, action, self.given)
            case _:
                assert_never(action)


def due(run: Run, definition: StepDefinition, path: str) -> int | None:
    """When the step at `path` has something to do again; None: at once, or it has not begun."""
    record = run.log.record(path)
    if record is None:
        return None
    action = decide(effective(run.runtime, definition, record)[0], record, run.runtime.store.now())
    return action.at if isinstance(action, WaitUntil) else None


def effective(runtime: Runtime, definition: StepDefinition | None, record: StepRecord | None) -> tuple[Policy, tuple[str, ...]]:
    """The policy that decides: the definition's, of an open intent the stricter of both (rule 10)."""
    if record is None or record.policy_digest is None:
        if definition is None:
            raise UsageError("the step is gone from the table")
        return definition.effective, ()
    if definition is not None and record.policy_digest == definition.definition_hash:
        return definition.effective, ()
    frozen = canonical.decode(runtime.content.get(record.policy_digest))
    return tighten(frozen, definition, runtime.known())
