"""The error tree: what happened to the user's write, and what to type next.

Every error has a stable ``code`` (a slug), a ``hint`` (what to do next) and a ``context`` (a dict of
plain values). Families: usage (raised before anything is written), conflict (somebody else won), store,
step, in doubt, diverged. Two classes are `BaseException`s that only unwind a run: `Parking` and `Diverged`
inside task code, so that ``except Exception`` in a task cannot swallow them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from .events import Instant

StepFailure = Literal["rejected", "not_applied", "exhausted", "abandoned", "child"]


class DoubtlessError(Exception):
    """The base of everything that Doubtless raises on purpose.

    Shapes: ``str(error)`` is one line: the message, then the hint.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **context: Any) -> None:
        self.message = message
        self.hint = hint
        self.context = context
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# ---------------------------------------------------------------- usage: before anything is written


class UsageError(DoubtlessError):
    """The call cannot be carried out as written; nothing was written or sent."""

    code = "usage"


class StepTableError(UsageError):
    """The step table has faults; `faults` lists every one of them, one line each."""

    code = "step_table"

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        noun = "fault" if len(self.faults) == 1 else "faults"
        super().__init__(f"the step table has {len(self.faults)} {noun}:\n{lines}", faults=list(self.faults))


class NotCanonical(UsageError):
    """A value has no canonical form (NaN, a set, a lone surrogate, an unknown type); `where` is its place."""

    code = "not_canonical"


class DoesNotFit(UsageError):
    """A value does not fit its annotation.

    Shapes: `where` is the place below the value (``"[3].amount"``; ``""`` for the value itself), `expected` the annotation
    as written (``"int"``), `got` what came, by its type and never by its content (``"str"``).
    """

    code = "does_not_fit"

    def __init__(self, where: str, expected: str, got: str) -> None:
        self.where = where
        self.expected = expected
        self.got = got
        super().__init__(f"{where or 'the value'}: expected {expected}, got {got}", where=where, expected=expected, got=got)

    def __reduce__(self) -> tuple[Any, ...]:
        return (DoesNotFit, (self.where, self.expected, self.got))

    def within(self, place: str) -> DoesNotFit:
        """The same misfit, seen from further out: ``within("output")`` makes ``[3].amount`` to ``output[3].amount``."""
        return DoesNotFit(place + self.where, self.expected, self.got).with_traceback(self.__traceback__)


class OutsideTask(UsageError):
    """A step was called outside a task, inside another step, or from a stray thread or `asyncio.Task`."""

    code = "outside_task"


class InputDiffers(UsageError):
    """The task id exists already, with another task or other params. One id is one task."""

    code = "input_differs"


class UnknownTask(UsageError):
    """The store holds no task of this id, or the app no task function of this name."""

    code = "unknown_task"


class UnknownStep(UsageError):
    """The step table holds no step of this name."""

    code = "unknown_step"


class UnknownCase(UsageError):
    """The store holds no case of this id."""

    code = "unknown_case"


class AnswerRefused(UsageError):
    """This answer cannot be taken: of another kind of case, by somebody not authorised, or malformed."""

    code = "answer_refused"


class EventRefused(UsageError):
    """This event cannot be taken: its task has ended or is a session, its id had another payload, or it does not fit."""

    code = "event_refused"


# ---------------------------------------------------------------- conflict: somebody else won


class Conflict(DoubtlessError):
    """Somebody else got there first; nothing of this call was written."""

    code = "conflict"


class TaskBusy(Conflict):
    """Another owner, alive, runs this task."""

    code = "task_busy"


class StaleEpoch(Conflict):
    """The task has another owner now; this one must stop. An append by an old epoch is refused (I4)."""

    code = "stale_epoch"


class Moved(Conflict):
    """The log has a newer event than the one that was expected: fold, decide again."""

    code = "moved"


class Frozen(Conflict):
    """New attempts of this step's writes are frozen."""

    code = "frozen"


class AlreadySettled(Conflict):
    """The case has its answer already; the message says by whom and when."""

    code = "already_settled"


class Late(Conflict):
    """The question had expired when this answer or event came: it was not taken, and nothing was written."""

    code = "late"


class CaseChanged(Conflict):
    """New evidence came after the case was shown: look at it again before you answer."""

    code = "case_changed"


class KeyHeld(Conflict):
    """Another step has this business key; whoever decides again sees what became of that step."""

    code = "key_held"


# ---------------------------------------------------------------- store


class StoreError(DoubtlessError):
    """The store cannot be used; what was acknowledged is safe, what was not is not recorded."""

    code = "store"


class StoreRefused(StoreError):
    """The store is refused at start, with the reason; nothing was changed in it."""

    code = "store_refused"


class StoreSuspect(StoreRefused):
    """The log stops short of its high-water mark, or has none: restored from a backup, or copied."""

    code = "store_suspect"


class StoreDamaged(StoreError):
    """What was read back is not what was written: a chain, a ref or a row does not fit."""

    code = "store_damaged"


class StoreUnavailable(StoreError):
    """An append failed or its fate is unknown (disk full, I/O error, lock held too long)."""

    code = "store_unavailable"


# ---------------------------------------------------------------- step and task outcomes


class StepFailed(DoubtlessError):
    """A step failed for good. The same on the first run and on replay; never the client's own exception.

    Shapes: `kind` is ``rejected | not_applied | exhausted | abandoned | child``; `reason` is the other
    side's code or the exception's type name (``"422"``, ``"ConnectError"``); `detail` is text or JSON.
    """

    code = "step_failed"

    def __init__(self, kind: StepFailure, reason: str = "", detail: Any = None, *, step: str = "", path: str = "") -> None:
        self.kind: StepFailure = kind
        self.reason = reason
        self.detail = detail
        self.step = step
        self.path = path
        what = f"step {step} at {path} " if step else "the step "
        why = f": {reason}" if reason else ""
        more = f": {detail}" if detail not in (None, "") else ""
        super().__init__(f"{what}failed for good ({kind}{why}{more})", step=step, path=path, kind=kind, reason=reason)

    @property
    def text_for_model(self) -> str:
        """What a model may be told: what is known of the effect, and never to try again what is uncertain."""
        what, why = self.step or "the call", f" ({said})" if (said := self._said()) else ""
        match self.kind:
            case "rejected":
                return f"{what} was refused by the other side{why}. It was not carried out."
            case "not_applied":
                return f"{what} was not carried out{why}."
            case "exhausted":
                return f"{what} could not be carried out{why}; all attempts for it are used up. It had no effect."
            case "abandoned":
                return f"{what} may have been carried out; nobody could find out{why}. Do not repeat it."
            case "child":
                return f"{what} did not succeed{why}. What it did is being taken care of; do not repeat it."

    def _said(self) -> str:
        detail = "" if self.detail in (None, "") else str(self.detail)
        return detail if self.reason and detail.startswith(self.reason) else ": ".join(p for p in (self.reason, detail) if p)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_step_failed, (self.kind, self.reason, self.detail, self.step, self.path))


def _rebuild_step_failed(kind: StepFailure, reason: str, detail: Any, step: str, path: str) -> StepFailed:
    return step_failed({"kind": kind, "code": reason, "detail": detail}, step=step, path=path)


class Denied(StepFailed):
    """A question of the task (`app.wait_for`) was denied; by whom, and why.

    Shapes: a StepFailed of kind ``rejected`` with the reason ``denied``: uncaught, it fails the task for good.
    """

    code = "denied"

    def __init__(self, name: str, *, by: str = "", why: str = "", path: str = "") -> None:
        super().__init__("rejected", "denied", {"name": name, "by": by, "why": why}, step="$wait_for", path=path)
        self.name, self.by, self.why = name, by, why
        self.message = f"the question {name!r} at {path} was denied by {by}" + (f": {why}" if why else "")


class Expired(StepFailed):
    """Nobody has answered a question of the task (`app.wait_for`) by its deadline.

    Shapes: a StepFailed of kind ``not_applied`` with the reason ``expired``: uncaught, it fails the task for good.
    Units: `deadline` is microseconds of the store's clock.
    """

    code = "expired"

    def __init__(self, name: str, *, deadline: int = 0, path: str = "") -> None:
        super().__init__("not_applied", "expired", {"name": name, "deadline": deadline}, step="$wait_for", path=path)
        self.name, self.deadline = name, deadline
        self.message = f"nobody answered the question {name!r} at {path} by its deadline"


class Refused(StepFailed):
    """The write was not begun: what it would do has been done, or may have been, by another step. Nothing was sent.

    Meaning: a `StepFailed` of kind ``rejected``; the same on the first run and on replay.
    Shapes: `holder` says who has it, ``{"once": "refund:o1:1", "task": "t1", "path": "3", "step": "refund", "status": "done"}``;
    `text_for_model` is what a model may be told.
    """

    code = "refused"

    def __init__(self, detail: str, *, holder: Mapping[str, Any], step: str = "", path: str = "") -> None:
        super().__init__("rejected", "refused", detail, step=step, path=path)
        self.holder = dict(holder)
        self.context["holder"] = self.holder
        self.hint = f"doubtless show {holder.get('task', '')}".rstrip()
        self.message = f"step {step} at {path} was refused, nothing was sent: {detail}"

    @property
    def text_for_model(self) -> str:
        """What stands, in neutral words: it is no failure that a second try would mend."""
        return f"Not done, and nothing was sent: {self.detail}. Do not repeat it; what stands is as described."

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_refused, (self.detail, self.holder, self.step, self.path))


def _rebuild_refused(detail: str, holder: Mapping[str, Any], step: str, path: str) -> Refused:
    return Refused(detail, holder=holder, step=step, path=path)


class SessionRefused(Refused):
    """A call of a session that was not sent; nothing of it is recorded.

    Shapes: `holder` is ``{"task": "thread-42", "stands": ["3", "4"]}``, the places of what stands.
    """

    def __init__(self, message: str, *, text: str, hint: str, task: str, step: str, stands: Sequence[str] = ()) -> None:
        super().__init__(message, holder={"task": task, "stands": list(stands)}, step=step)
        self.message = message
        self.hint = hint
        self._text = text

    @property
    def text_for_model(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"text": self._text, "hint": self.hint, "task": self.holder["task"], "step": self.step}
        return (_rebuild_session_refused, (self.message, {**fields, "stands": self.holder["stands"]}))


def _rebuild_session_refused(message: str, fields: Mapping[str, Any]) -> SessionRefused:
    return SessionRefused(message, **fields)


def step_failed(error: Mapping[str, Any], *, step: str, path: str) -> StepFailed:
    """What task code sees of a step that failed for good, from the `error` of the row that settled it."""
    if "holder" in error:
        return Refused(error.get("detail", ""), holder=error["holder"], step=step, path=path)
    detail = error.get("detail", "")
    if step == "$wait_for" and isinstance(detail, Mapping):
        if error.get("code") == "denied":
            return Denied(detail["name"], by=detail["by"], why=detail["why"], path=path)
        if error.get("code") == "expired":
            return Expired(detail["name"], deadline=detail["deadline"], path=path)
    return StepFailed(error.get("kind", "not_applied"), error.get("code", ""), error.get("detail", ""), step=step, path=path)


class BudgetUsedUp(DoubtlessError):
    """An agent has made its last choice, or spent what it may; its task parks with a case for a person."""

    code = "budget_used_up"


class Abort(DoubtlessError):
    """Raised by task code: the task fails for good, for a reason of the business. What it did is compensated."""

    code = "abort"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the task was aborted: {reason}")


class TaskFailed(DoubtlessError):
    """The task ended `failed`, `compensated` or `cancelled`; the same when it is run again."""

    code = "task_failed"

    def __init__(self, message: str, *, status: str, hint: str = "", **context: Any) -> None:
        self.status = status
        super().__init__(message, hint=hint, status=status, **context)


class TaskWaiting(DoubtlessError):
    """The task waits for a time (to look again, to call again); `until` is on the store's clock."""

    code = "task_waiting"

    text_for_model: str = "What was asked for has no result yet; it is being settled. Do not repeat it."
    """What a model may be told of it, never as a failure."""

    def __init__(self, message: str, *, until: Instant | None, hint: str = "", **context: Any) -> None:
        self.until = until
        super().__init__(message, hint=hint, **context)


class NeedsHuman(DoubtlessError):
    """Only a person can move the task on; `cases` are the ids of its open cases."""

    code = "needs_human"

    text_for_model: str = "What was asked for may have happened; a person is checking it. Do not repeat it."
    """What a model may be told of it, never as a failure."""

    def __init__(self, message: str, *, cases: Sequence[str], hint: str = "", **context: Any) -> None:
        self.cases = tuple(cases)
        super().__init__(message, hint=hint, cases=list(cases), **context)


class TaskFrozen(DoubtlessError):
    """The task stands before a write that is frozen; thaw it and resume."""

    code = "task_frozen"

    text_for_model: str = "What was asked for was not sent: it is switched off for the moment."
    """What a model may be told of it, never as a failure."""


# ---------------------------------------------------------------- unwinding: never an Exception


class Parking(BaseException):
    """Unwinds task code while its run parks. Not an `Exception`: ``except Exception`` must not swallow it."""


class Diverged(Parking):
    """The code asks for another step, or other params, than the log holds at this place.

    Shapes: `path` (``"3"``), `field` (the first that differs, ``"params.amount"``), `logged`, `asked`; `more` is what its
    case shows beside that: all differences, what to type.
    """

    code: ClassVar[str] = "diverged"

    def __init__(self, message: str, *, path: str, field: str, logged: Any, asked: Any) -> None:
        self.message = message
        self.path = path
        self.field = field
        self.logged = logged
        self.asked = asked
        self.more: dict[str, Any] = {}
        super().__init__(message)

    def evidence(self) -> Mapping[str, Any]:
        """What a case shows of it."""
        first = {"path": self.path, "field": self.field, "logged": self.logged, "asked": self.asked, "message": self.message}
        return {**self.more, **first}
