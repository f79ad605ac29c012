"""The owner's hand: it does what the real `decide` says, row by row, as the executor does.

Small on purpose: which row goes with which action, and nothing of *when*. The planted bugs of `plants.py` are
subclasses of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from doubtless import canonical
from doubtless.events import ASKING, CaseKind, Effect, Event, Kind, StepStatus, draft, dump, seal
from doubtless.fold import Look, StepRecord, fold_step
from doubtless.protocol import Action, AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, counts, decide, time_left

from .world import FAULT, NAMESPACE, TASK, Move, Request, Slice, State, Violation, policy_now

PERSON = ("happened", "did_not_happen retry", "did_not_happen fail", "even_now retry", "even_now fail", "abandon")


class Stale(Exception):
    """The append was refused: another claim has the task (I4)."""


class Hand:
    """What an owner does in a slice. Methods return moves: what may come of one action."""

    def __init__(self, explored: Slice) -> None:
        self.slice = explored
        self.bound = tuple(explored.may.get(fault, 0) for fault in FAULT)

    def spend(self, state: State, *faults: str | None) -> State | None:
        """The state with these faults spent; None where the slice's bound is reached."""
        spent = list(state.spent)
        for fault in faults:
            if fault is not None:
                spent[FAULT[fault]] += 1
                if spent[FAULT[fault]] > self.bound[FAULT[fault]]:
                    return None
        return state._replace(spent=tuple(spent))

    # ------------------------------------------------------------ the log

    def append(self, state: State, owner: int | None, *drafts: Event) -> State:
        """Append rows, in one transaction. Raises Stale for an old epoch; `owner` None: evidence and answers need none."""
        rows = state.rows
        if owner is not None:
            self.check_epoch(state, owner)
            mine = state.owners[owner]
            if not mine.announced:
                claimed = draft(TASK, Kind.TASK_CLAIMED, state.at, status="running", epoch=mine.epoch, data={"owner": str(owner)})
                drafts = (claimed, *drafts)
                owners = (*state.owners[:owner], mine._replace(announced=True), *state.owners[owner + 1 :])
                state = state._replace(owners=owners)
        sealed = seal(drafts, len(rows), b"h" * 32)
        return self.folded(state._replace(rows=(*rows, *sealed)))

    def check_epoch(self, state: State, owner: int) -> None:
        if state.owners[owner].epoch != state.owners[-1].epoch:
            raise Stale

    def folded(self, state: State) -> State:
        """The state with its records folded from its rows, as the newest claim sees them."""
        epoch = state.owners[-1].epoch
        return state._replace(records=tuple(self.fold(state.rows, step.path, epoch) for step in self.slice.steps))

    def fold(self, rows: tuple[Event, ...], path: str, epoch: int) -> StepRecord | None:
        return fold_step(rows, path, epoch)

    # ------------------------------------------------------------ deciding

    def turn(self, state: State) -> Iterator[int]:
        """The steps that the task's code may be at, given what is settled (rule 8: nothing new beside a doubt)."""
        waits = False
        for index, step in enumerate(self.slice.steps):
            record = state.records[index]
            if record is not None and record.settled:
                continue
            if step.undoes is not None:
                if self.to_undo(state.records[step.undoes]):
                    yield index
            elif not waits and (record is not None or not self.beside_a_doubt(state)):
                yield index
                waits = not self.slice.parallel

    def beside_a_doubt(self, state: State) -> bool:
        """Rule 8: whether another step is in doubt, so that no new intent may be written."""
        return any(record is not None and record.in_doubt for record in state.records)

    def to_undo(self, origin: StepRecord | None) -> bool:
        return origin is not None and origin.status == StepStatus.DONE

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

    def case(self, index: int, why: str) -> dict[str, Any]:
        return {"kind": CaseKind.DOUBT if self.slice.steps[index].undoes is None else CaseKind.COMPENSATION, "why": why}

    def row(self, state: State, index: int, owner: int | None, kind: Kind, **more: Any) -> Event:
        epoch = None if owner is None else state.owners[owner].epoch
        where = {"path": self.slice.steps[index].path, "step_name": f"step{index}", "step_seq": index + 1, "epoch": epoch}
        return draft(TASK, kind, state.at, **{**where, **more})

    def key(self, index: int, generation: int) -> bytes:
        return canonical.idempotency_key(NAMESPACE, TASK, self.slice.steps[index].path, f"step{index}", "{}", generation)

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
        state = state._replace(requests=(*state.requests, call), said=state.said | self.words_said(index, record, action))
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

    def words_said(self, index: int, record: StepRecord | None, action: Call) -> frozenset[tuple[int, str]]:
        if not action.allow or record is None or record.answer is None:
            return frozenset()
        return frozenset({(index, "even_now" if record.answer.even_now else "retry")}) | unchecked(index, record)

    def key_to_send(self, state: State, owner: int, index: int, key: bytes) -> bytes:
        return key

    def intent(self, state: State, owner: int, index: int, key: bytes) -> Event:
        effect = self.slice.steps[index].policy.effect
        return self.row(
            state, index, owner, Kind.STEP_INTENDED, status=StepStatus.UNCERTAIN, attempt=1, effect_class=effect,
            idempotency_key=key, input_hash=b"i" * 32, input_ref="inline:{}", started_at=state.now, data=b"p" * 32,
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
                started_at=state.now,
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

    # ------------------------------------------------------------ settling

    def look(self, state: State, owner: int, index: int) -> list[Move]:
        """Ask the other system; every answer that it may give is a move."""
        record = state.records[index]
        assert record is not None
        moves = []
        for answer, fault in self.answers(state, index):
            after = self.spend(state, "looks", fault)
            if after is None:
                continue
            at, number = state.at, record.attempts[-1].number
            seen = Look(0, answer, "", at, at, state.owners[owner].epoch, number, None)
            data: dict[str, Any] = {"answer": answer}
            if self.look_counts(state, index, record, seen):
                data["counts"] = True
            row = self.row(
                after, index, owner, Kind.LOOKED_BACK, status=record.status, data=data, attempt=number,
                started_at=at.wall, finished_at=at.wall,
            )  # fmt: skip
            rows = [row]
            if answer == "found":
                rows.append(
                    self.row(
                        after, index, owner, Kind.STEP_SETTLED, status=StepStatus.DONE, attempt=number, output_ref="inline:1"
                    )
                )
                rows += [*self.undone(after, index, owner), *self.closing(after, index, owner)]
            counted = ", which counts" if "counts" in data else ""
            words = f"owner {owner + 1} looks back for step {self.slice.steps[index].path}: {answer}{counted}"
            moves.append(Move(words, self.append(after, owner, *rows)))
        return moves

    def look_counts(self, state: State, index: int, record: StepRecord, seen: Look) -> bool:
        return counts(policy_now(self.slice, state, index), record, seen)

    def answers(self, state: State, index: int) -> Iterator[tuple[str, str | None]]:
        """What the other side may answer, and which fault that takes."""
        effects, now = state.effects[index], state.now
        on_its_way = any(q.step == index and q.fate == "out" for q in state.requests)
        if effects:
            yield "found", None
        if not any(seen <= now for _, seen in effects):
            yield "absent", "lag" if effects else None
            if on_its_way or effects:
                yield "pending", "pending"
        if index in state.refused and not effects:
            yield "no_effect", None
        yield "unclear", "unclear"
        yield "several", "several"

    def reuse(self, state: State, owner: int, index: int, action: Reuse) -> Move:
        """A late success settles the step; another unprotected attempt beside it is a contradiction."""
        record = state.records[index]
        assert record is not None and action.attempt is not None
        rows = [
            self.row(
                state, index, owner, Kind.STEP_SETTLED, status=StepStatus.DONE, attempt=action.attempt, output_ref="inline:1"
            )
        ]
        rows += [*self.undone(state, index, owner), *self.closing(state, index, owner)]
        if record.effect == Effect.NON_IDEM_WRITE and any(a.number > action.attempt for a in record.attempts):
            rows.append(self.row(state, index, owner, Kind.CASE_OPENED, data={"kind": CaseKind.CONTRADICTION, "why": "late"}))
        words = f"owner {owner + 1} settles step {self.slice.steps[index].path} by the late success of attempt {action.attempt}"
        return Move(words, self.append(state, owner, *rows))

    def fail(self, state: State, owner: int, index: int, action: Fail) -> Move:
        record = state.records[index]
        assert record is not None
        error = dump({"kind": action.kind, "code": action.code, "detail": ""})
        row = self.row(
            state, index, owner, Kind.STEP_SETTLED, status=StepStatus.NOT_APPLIED, attempt=len(record.attempts), error=error
        )
        words = f"owner {owner + 1} settles step {self.slice.steps[index].path} as not_applied ({action.kind}, {action.code})"
        told = state._replace(said=state.said | unchecked(index, record))
        return Move(words, self.append(told, owner, row, *self.closing(state, index, owner)))

    def closing(self, state: State, index: int, owner: int | None) -> list[Event]:
        """What the machine settles first closes the step's open doubt in the same transaction."""
        record = state.records[index]
        data = {"answer": "settled", "by": "doubtless", "why": ""}
        open_cases = [] if record is None else [case for case, kind in record.cases.items() if kind in ASKING]
        return [self.row(state, index, owner, Kind.CASE_SETTLED, data={**data, "case_id": case}) for case in open_cases]

    def undone(self, state: State, index: int, owner: int | None) -> list[Event]:
        """With a compensation that is done, what it undoes is compensated: one append."""
        origin = self.slice.steps[index].undoes
        return [] if origin is None else [self.row(state, origin, owner, Kind.STEP_SETTLED, status=StepStatus.COMPENSATED)]

    # ------------------------------------------------------------ a person

    def person(self, state: State, index: int) -> list[Move]:
        """Every answer that a person may give to an open case about this step."""
        record, after = state.records[index], self.spend(state, "answers")
        case = None if record is None else record.doubt_case
        if after is None or record is None or case is None:
            return []
        moves = []
        for said in PERSON:
            answer, _, then = said.partition(" ")
            if answer == "happened" and not state.effects[index]:
                continue
            data: dict[str, Any] = {
                "case_id": case,
                "answer": "did_not_happen" if then else answer,
                "by": "ann",
                "why": "",
                "wake": True,
            }
            if then:
                data |= {"then": then, "even_now": answer == "even_now"}
            rows = [self.row(after, index, None, Kind.CASE_SETTLED, data=data)]
            if answer == "happened":
                rows.append(
                    self.row(
                        after,
                        index,
                        None,
                        Kind.STEP_SETTLED,
                        status=StepStatus.DONE,
                        attempt=len(record.attempts),
                        output_ref="inline:1",
                    )
                )
                rows += self.undone(after, index, None)
            elif answer == "abandon":
                error = dump({"kind": "abandoned", "code": "abandoned", "detail": ""})
                rows.append(
                    self.row(
                        after, index, None, Kind.STEP_SETTLED, status=StepStatus.FAILED, attempt=len(record.attempts), error=error
                    )
                )
            told = after._replace(
                said=after.said | {(index, f"fail {answer}" if then == "fail" else answer if not then else "asked")}
            )
            moves.append(
                Move(f"a person answers about step {self.slice.steps[index].path}: {said}", self.append(told, None, *rows))
            )
        return moves


def unchecked(index: int, record: StepRecord) -> frozenset[tuple[int, str]]:
    """Whether an answer acts although the fresh look said nothing clear: then it is that person's word, and nothing else."""
    answer = record.answer
    fresh = [] if answer is None else [k for k in record.looks if k.seq > answer.seq]
    return frozenset({(index, "unchecked")}) if fresh and fresh[-1].answer == "unclear" else frozenset()
