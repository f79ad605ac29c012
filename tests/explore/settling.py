"""How a doubt ends: what the other side may answer, what a person may say, and the rows that settle a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from doubtless.events import CaseKind, Effect, Instant, Kind, StepStatus, dump
from doubtless.fold import Look, StepRecord
from doubtless.protocol import Fail, Reuse, counts

from .rows import Rows
from .world import Asking, Move, State, policy_now

PERSON = ("happened", "did_not_happen retry", "did_not_happen fail", "even_now retry", "even_now fail", "abandon")


class Settling(Rows):
    """The owner's look-backs and settlements, and a person's answers."""

    def look(self, state: State, owner: int, index: int) -> list[Move]:
        """Ask the other system; every answer that it may give is a move."""
        record = state.records[index]
        assert record is not None
        moves = []
        for answer, fault in self.answers(state, index):
            after = self.spend(state, "looks", fault)
            if after is None:
                continue
            moves.append(self.record_look(after, owner, index, answer, state.at))
            slowly = self.spend(after, "slow")
            if slowly is not None:
                asking = Asking(owner, index, state.now, answer, len(state.rows), state.at)
                words = f"owner {owner + 1} asks about step {self.slice.steps[index].path}; the answer, {answer}, is on its way"
                moves.append(Move(words, slowly._replace(asking=asking)))
        return moves

    def answer_comes(self, state: State, asking: Asking) -> Move:
        """A slow answer is there: recorded, unless the log holds something newer than what was asked about."""
        after = state._replace(asking=None)
        if len(state.rows) != asking.rows:
            return Move("the answer comes, and the log has moved: it is not recorded", after)
        return self.record_look(after, asking.owner, asking.step, asking.answer, asking.asked)

    def record_look(self, state: State, owner: int, index: int, answer: str, started: Instant) -> Move:
        """Write down what the other side answered; `found` settles the step in the same append."""
        record = state.records[index]
        assert record is not None
        number = record.attempts[-1].number
        seen = Look(0, answer, "", started, state.at, state.owners[owner].epoch, number, None)
        data: dict[str, Any] = {"answer": answer}
        if self.look_counts(state, index, record, seen):
            data["counts"] = True
        row = self.row(
            state, index, owner, Kind.LOOKED_BACK, status=record.status, data=data, attempt=number,
            started_at=started.wall, finished_at=state.at.wall,
        )  # fmt: skip
        rows = [row]
        if answer == "found":
            done = self.row(state, index, owner, Kind.STEP_SETTLED, status=StepStatus.DONE, attempt=number, output_ref="inline:1")
            rows += [done, *self.undone(state, index, owner), *self.closing(state, index, owner)]
        counted = ", which counts" if "counts" in data else ""
        words = f"owner {owner + 1} looks back for step {self.slice.steps[index].path}: {answer}{counted}"
        return Move(words, self.append(state, owner, *rows))

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
