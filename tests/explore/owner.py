"""The owner's hand: it does what the real `decide` says, row by row, as the executor does.

Small on purpose: which row goes with which action, and nothing of *when*. The planted bugs of `plants.py` are
subclasses of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from doubtless.events import CaseKind, Effect, Event, Kind, StepStatus, dump
from doubtless.fold import StepRecord
from doubtless.protocol import Action, AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, decide, time_left

from .rows import Stale
from .settling import Settling, unchecked
from .world import Move, Request, State, Violation, policy_now


class Hand(Settling):
    """What an owner does in a slice. Methods return moves: what may come of one action."""

    # ------------------------------------------------------------ deciding

    def turn(self, state: State) -> Iterator[int]:
        """The steps that the task's code may be at, given what is settled (rule 8: nothing new beside a doubt)."""
        undoing = any(r is not None and step.undoes is not None for step, r in zip(self.slice.steps, state.records, strict=True))
        waits = False
        for index, step in enumerate(self.slice.steps):
            record = state.records[index]
            if record is not None and record.settled:
                continue
            if step.undoes is not None:
                if self.to_undo(state, step.undoes):
                    yield index
            elif not waits and (record is not None or not (undoing or self.beside_a_doubt(state))):
                yield index
                waits = not self.slice.parallel

    def beside_a_doubt(self, state: State) -> bool:
        """Rule 8: whether another step is in doubt, so that no new intent may be written."""
        return any(record is not None and record.in_doubt for record in state.records)

    def to_undo(self, state: State, origin: int) -> bool:
        """Whether a step is to be undone now: the task has failed after it, and what was in doubt is settled."""
        forward = [r for step, r in zip(self.slice.steps, state.records, strict=True) if step.undoes is None]
        record = state.records[origin]
        return record is not None and record.status == StepStatus.DONE and all(r is None or r.settled for r in forward)

    def decide(self, state: State, index: int) -> Action:
        return decide(policy_now(self.slice, state, index), state.records[index], state.at)

    def act(self, state: State, owner: int, index: int, action: Action) -> list[Move]:
        """What comes of it when this owner does what was decided for this step; nothing when it waits or is parked."""
        who, path = f"owner {owner + 1}", f"step {self.slice.steps[index].path}"
        record = state.records[index]
        match action:
            case Call():
                return [self.begin(state, owner, index, action)]
            case LookBack():
                return self.look(state, owner, index)
            case WaitUntil():
                return []
            case AskHuman() if record is None:
                return [
                    Move(f"{who}: too late for {path}: intent and case, no call", self.ask_unsent(state, owner, index, action))
                ]
            case AskHuman():
                assert record is not None
                if record.doubt_case is not None and not action.anew:
                    return []
                opened = self.row(
                    state, index, owner, Kind.CASE_OPENED, status=StepStatus.NEEDS_HUMAN, data=self.case(index, action.why)
                )
                return [Move(f"{who} opens a case about {path}: {action.why}", self.append(state, owner, opened))]
            case Reuse(attempt=None):
                return []
            case Reuse():
                return [self.reuse(state, owner, index, action)]
            case Fail(settled=True):
                return []
            case Fail():
                return [self.fail(state, owner, index, action)]

    def count_as_sent(self, state: State, owner: int, index: int) -> Move | None:
        """Of a restored log: a write counts as sent since now, unless its rows say so themselves; None: that is so.

        What a person had said about it is void: it may have acted since the backup.
        """
        record = state.records[index]
        if not state.suspect or (record is not None and (record.suspect or record.settled)):
            return None
        if record is not None and record.in_doubt and record.answer is None:
            return None
        error = dump({"kind": "unknown", "code": "suspect", "detail": ""})
        if record is None:
            row = self.intent(state, owner, index, self.key(index, 0), error)
        else:
            row = self.row(
                state, index, owner, Kind.ATTEMPT_STARTED, status=StepStatus.UNCERTAIN, attempt=len(record.attempts) + 1,
                started_at=state.at.wall, error=error,
            )  # fmt: skip
        words = f"owner {owner + 1} has a restored log: step {self.slice.steps[index].path} counts as sent"
        return Move(words, self.append(state, owner, row))

    # ------------------------------------------------------------ calling

    def begin(self, state: State, owner: int, index: int, action: Call) -> Move:
        """Make the attempt durable (I1), then have the call; what it sends, and when, is the world's."""
        before, record = state, state.records[index]
        if record is None:
            key = self.key(index, 0)
            rows = [self.intent(state, owner, index, key)]
        else:
            key, rows = self.next_attempt(state, owner, index, action, record)
        state = self.append(state, owner, *rows)
        sent = self.key_to_send(state, owner, index, key)
        call = Request(index, action.attempt, sent, owner, state.now, self.freed(record, action))
        state = state._replace(requests=(*state.requests, call), said=state.said | self.words_said(before, index, action))
        what = "the intent" if record is None else f"the row of attempt {action.attempt}"
        words = f"owner {owner + 1} writes {what} of step {self.slice.steps[index].path} and enters the call"
        wrong = None
        undo_by = policy_now(self.slice, before, index).undo_by
        if undo_by is not None and not action.allow and not time_left(policy_now(self.slice, before, index), state.at):
            wrong = Violation("I7", "a compensation begins after its deadline")
        return Move(words, state, wrong)

    def freed(self, record: StepRecord | None, action: Call) -> bool:
        """Whether a person said that this very attempt may be sent at once, at that person's risk."""
        return action.allow and record is not None and record.answer is not None and record.answer.even_now

    def words_said(self, state: State, index: int, action: Call) -> frozenset[tuple[int, str]]:
        """What a person takes upon themselves with this attempt; nothing by an answer that has acted before a restoration."""
        record = state.records[index]
        if not action.allow or record is None or record.answer is None:
            return frozenset()
        if state.suspect and not record.suspect and (index, "acted") in state.said:
            return frozenset()
        return frozenset({(index, "even_now" if record.answer.even_now else "retry")}) | unchecked(index, record)

    def key_to_send(self, state: State, owner: int, index: int, key: bytes) -> bytes:
        return key

    def intent(self, state: State, owner: int, index: int, key: bytes, error: str | None = None) -> Event:
        effect = self.slice.steps[index].policy.effect
        return self.row(
            state, index, owner, Kind.STEP_INTENDED, status=StepStatus.UNCERTAIN, attempt=1, effect_class=effect,
            idempotency_key=key, input_hash=b"i" * 32, input_ref="inline:{}", started_at=state.at.wall, data=b"p" * 32, error=error,
        )  # fmt: skip

    def next_attempt(self, state: State, owner: int, index: int, action: Call, record: StepRecord) -> tuple[bytes, list[Event]]:
        rows: list[Event] = []
        if action.allow:
            data = {"why": "did_not_happen", "by": "ann"}
            rows.append(self.row(state, index, owner, Kind.RETRY_ALLOWED, status=StepStatus.UNCERTAIN, data=data))
        new = self.key(index, record.generation + 1) if action.next_generation else None
        rows.append(
            self.row(
                state,
                index,
                owner,
                Kind.ATTEMPT_STARTED,
                status=StepStatus.UNCERTAIN,
                attempt=action.attempt,
                idempotency_key=new,
                started_at=state.at.wall,
            )  # fmt: skip
        )
        return new or record.keys[-1], rows

    def ask_unsent(self, state: State, owner: int, index: int, action: AskHuman) -> State:
        error = dump({"kind": "not_sent", "code": "deadline", "detail": action.why})
        ended = self.row(state, index, owner, Kind.ATTEMPT_ENDED, status=StepStatus.UNCERTAIN, attempt=1, error=error)
        opened = self.row(state, index, owner, Kind.CASE_OPENED, status=StepStatus.NEEDS_HUMAN, data=self.case(index, action.why))
        return self.append(state, owner, self.intent(state, owner, index, self.key(index, 0)), ended, opened)

    def outcome(self, state: State, call: Request, kind: str, *, code: str = "", running: bool = False) -> State:
        """Record what came of a call that gave no output."""
        row = self.row(
            state, call.step, call.owner, Kind.ATTEMPT_ENDED, status=StepStatus.UNCERTAIN, attempt=call.attempt,
            error=dump({"kind": kind, "code": code or kind, "detail": ""}), data={"running": True} if running else None,
        )  # fmt: skip
        record = state.records[call.step]
        if record is not None and record.settled:  # a person was faster
            return state
        return self.append(state, call.owner, row)

    def result(self, state: State, call: Request) -> State:
        """Record that a call returned: done; where that is no more to say, evidence (rule 12)."""
        record = state.records[call.step]
        if call.overran or (record is not None and record.settled):
            return self.late(state, call, "late_result")
        rows = [
            self.row(
                state,
                call.step,
                call.owner,
                Kind.STEP_SETTLED,
                status=StepStatus.DONE,
                attempt=call.attempt,
                output_ref="inline:1",
            )
        ]
        try:
            return self.append(
                state, call.owner, *rows, *self.undone(state, call.step, call.owner), *self.closing(state, call.step, call.owner)
            )
        except Stale:
            return self.late(state, call, "late_result")

    def late(self, state: State, call: Request, what: str) -> State:
        row = self.row(
            state, call.step, None, Kind.EVIDENCE_STORED, attempt=call.attempt, data={"what": what},
            output_ref="inline:1" if what == "late_result" else None,
        )  # fmt: skip
        rows, record = [row._replace(epoch=state.owners[call.owner].epoch)], state.records[call.step]
        if what == "late_result" and record is not None and record.settled:
            contradicts = record.status in (StepStatus.NOT_APPLIED, StepStatus.FAILED) or (
                record.effect == Effect.NON_IDEM_WRITE and any(a.number > call.attempt for a in record.attempts)
            )
            if contradicts:
                data = {"kind": CaseKind.CONTRADICTION, "why": "a late success"}
                rows.append(self.row(state, call.step, None, Kind.CASE_OPENED, data=data))
        return self.append(state, None, *rows)
