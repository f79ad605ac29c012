"""A question of a task (`app.wait_for`): what its rows say, when it is over, and what an answer to it has to be.

Everybody who looks at a question (its task, a person who answers, a sender of events) reads it here, so that they
agree on whether it is over: its deadline counts on the store's clock and needs no process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .changes import case_id
from .errors import DoesNotFit, Late
from .events import CaseKind, Effect, Event, Instant, Kind, StepStatus, draft, dump, elapsed_most
from .schemas import misfit

if TYPE_CHECKING:
    from datetime import datetime

WAIT_FOR = "$wait_for"
"""The step that a question is."""

DENIED, EXPIRED = "denied", "expired"
"""The codes of its two failures, in the log and in `StepFailed.reason`."""


class Question(NamedTuple):
    """A question as its CaseOpened row has it. `deadline`: microseconds of the store's clock, or None."""

    case_id: str
    task_id: str
    path: str
    step_seq: int
    name: str
    deadline: int | None
    opened: Instant
    schema: dict[str, Any]
    type_name: str | None
    input_hash: bytes | None
    input_ref: str | bytes | None

    def left(self, now: Instant) -> int | None:
        """Microseconds until the deadline, by the cautious reading of the clocks (it ends sooner); None: there is none."""
        return None if self.deadline is None else self.deadline - self.opened.wall - elapsed_most(self.opened, now)

    def is_over(self, now: Instant) -> bool:
        """Whether its deadline has passed; at that very moment it has."""
        left = self.left(now)
        return left is not None and left <= 0

    def late(self) -> Late:
        """What somebody hears who answers after the deadline."""
        assert self.deadline is not None
        return Late(
            f"the question {self.name!r} of task {self.task_id} expired at {moment(self.deadline):%Y-%m-%dT%H:%M:%SZ}; "
            "what came now is late: it was not taken, and nothing was written",
            hint=f"doubtless show {self.task_id}",
            task=self.task_id,
            case=self.case_id,
            name=self.name,
        )

    def fault_of(self, tree: Any) -> str | None:
        """Why a decoded value is no answer to it; None when it is one, as far as this process can know."""
        fault = misfit(self.schema, tree)
        if fault is None and self.type_name is not None and (kind := _loaded(self.type_name)) is not None:
            from .restore import restorer

            restore = restorer(kind)
            try:
                if restore is not None:
                    restore(tree)
            except DoesNotFit as error:
                return error.message
        return fault


def moment(wall: int) -> datetime:
    """A time of the store's clock (microseconds) as an aware datetime in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(wall // 1_000_000, UTC).replace(microsecond=wall % 1_000_000)


def is_question(row: Event) -> bool:
    """Whether this row opened a question."""
    return row.kind == Kind.CASE_OPENED and row.step_name == WAIT_FOR and row.details["kind"] == CaseKind.QUESTION


def question_of(row: Event) -> Question:
    """The question that this CaseOpened row opened."""
    data = row.details
    return Question(
        case_id(row.task_id, row.event_seq), row.task_id, row.path or "", row.step_seq or 0, data["name"], data["deadline"],
        row.at, data["schema"], data["type"], row.input_hash, row.input_ref,
    )  # fmt: skip


def open_questions(rows: Iterable[Event]) -> list[Question]:
    """The questions among these rows that no row of them closes, in the order of the log."""
    found: dict[str, Question] = {}
    for row in rows:
        if is_question(row):
            question = question_of(row)
            found[question.case_id] = question
        elif row.kind == Kind.CASE_SETTLED:
            found.pop(row.details["case_id"], None)
    return list(found.values())


def type_name(kind: Any) -> str | None:
    """Where a class is found again, ``module:Class.Inner``; None for what is no class of a module."""
    if not isinstance(kind, type) or "<locals>" in kind.__qualname__:
        return None
    return f"{kind.__module__}:{kind.__qualname__}"


def _loaded(name: str) -> Any:
    """The class of this name, when its module is loaded here; nothing is imported for an answer's sake."""
    import sys

    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


# ---------------------------------------------------------------- how it ends


def closing_rows(
    question: Question, now: Instant, *, answer: str, by: str, why: str, epoch: int | None = None,
    output_ref: str | bytes | None = None, error: dict[str, Any] | None = None, event: int | None = None, **more: Any,
) -> list[Event]:  # fmt: skip
    """The rows that end a question, for one append: its case is settled, and with it the step that waits.

    `error` None: it is answered with `output_ref`. `event`: the EventReceived row that answered it.
    """
    where: dict[str, Any] = {
        "path": question.path, "step_name": WAIT_FOR, "step_seq": question.step_seq, "epoch": epoch,
    }  # fmt: skip
    data = {"case_id": question.case_id, "answer": answer, "by": by, "why": why, **more}
    closed = draft(question.task_id, Kind.CASE_SETTLED, now, data=data, **where)
    settled = draft(
        question.task_id, Kind.STEP_SETTLED, now, status=StepStatus.DONE if error is None else StepStatus.FAILED,
        effect_class=Effect.READ, input_hash=question.input_hash, input_ref=question.input_ref, output_ref=output_ref,
        error=None if error is None else dump(error), data=None if event is None else {"event": event}, **where,
    )  # fmt: skip
    return [closed, settled]


def denial(question: Question, by: str, why: str) -> dict[str, Any]:
    """The stored failure of a question that somebody has denied."""
    return {"kind": "rejected", "code": DENIED, "detail": {"name": question.name, "by": by, "why": why}}


def expiry_rows(question: Question, now: Instant, epoch: int | None) -> list[Event]:
    """The rows that record that nobody has answered by the deadline."""
    assert question.deadline is not None
    error = {"kind": "not_applied", "code": EXPIRED, "detail": {"name": question.name, "deadline": question.deadline}}
    return closing_rows(
        question, now, answer=EXPIRED, by="doubtless", why="nobody answered by its deadline", epoch=epoch, error=error
    )  # fmt: skip


def dropped_rows(question: Question, now: Instant, epoch: int | None) -> list[Event]:
    """The rows that close a question which its task, by ending, does not wait for any more."""
    error = {"kind": "abandoned", "code": "ended", "detail": "the task ended before it was answered"}
    return closing_rows(question, now, answer="settled", by="doubtless", why="the task ended", epoch=epoch, error=error)
