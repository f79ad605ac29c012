"""What a person may say to a case, which kinds of case take it, and what it does."""

from __future__ import annotations

from typing import Any, NamedTuple

from .events import CaseKind


class Happened(NamedTuple):
    """It happened: the step is done, with this output."""

    output: Any = None


class DidNotHappen(NamedTuple):
    """It did not happen. `then`: ``retry`` sends it again, ``fail`` gives it up. `even_now`: without waiting, at your risk."""

    then: str
    even_now: bool = False


class Abandon(NamedTuple):
    """Nobody will find out: the step is settled as failed, and its effect may stand."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class Retry(NamedTuple):
    """Run the task's code again (the fix is deployed); a step whose budget is used up gets one more attempt."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class Fail(NamedTuple):
    """Fail the task for good."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class Compensate(NamedTuple):
    """Undo the effects of a failed task, the latest first."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class LetStand(NamedTuple):
    """Let the effects of a failed task stand; the task ends failed and lists them."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class Noted(NamedTuple):
    """The contradiction is seen; what has to be done about it is done elsewhere."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


class Answer(NamedTuple):
    """The value that was asked for."""

    value: Any


class Deny(NamedTuple):
    """There is no such value: the step fails as abandoned."""

    def __bool__(self) -> bool:
        return True  # an answer, though it holds nothing


AnyAnswer = Happened | DidNotHappen | Abandon | Retry | Fail | Compensate | LetStand | Noted | Answer | Deny

TAKES: dict[str, tuple[type[Any], ...]] = {
    CaseKind.DOUBT: (Happened, DidNotHappen, Abandon),
    CaseKind.CODE_ERROR: (Retry, Fail),
    CaseKind.DIVERGED: (Retry, Fail),
    CaseKind.COMPENSATION: (Happened, DidNotHappen, Abandon),
    CaseKind.HOLD: (Compensate, LetStand),
    CaseKind.CONTRADICTION: (Noted,),
    CaseKind.OUTPUT: (Answer, Deny),
    CaseKind.QUESTION: (Answer, Deny),
}
"""Which answers a case of each kind takes."""

SPELLED: dict[type[Any], str] = {
    Happened: "happened", DidNotHappen: "did_not_happen", Abandon: "abandon", Retry: "retry", Fail: "fail",
    Compensate: "compensate", LetStand: "let_stand", Noted: "noted", Answer: "answer", Deny: "deny",
}  # fmt: skip
"""How an answer is spelled on the command line and in the log."""

DOES: dict[type[Any], str] = {
    Happened: "the step is done with the output you give; the task goes on with it",
    DidNotHappen: (
        "recorded now; acts when nothing can land any more and after a fresh look: then retry sends it again (not in a task that"
        " is ending), fail gives it up"
    ),
    Abandon: "the step is settled as failed and may stand; the task sees StepFailed('abandoned')",
    Retry: "the task's code runs again; a step whose attempts are used up gets one more",
    Fail: "the task fails for good; effects that have to be undone are listed",
    Compensate: "the listed effects are undone, the latest first",
    LetStand: "the task ends failed; the listed effects stand",
    Noted: "the case is closed; nothing else changes",
    Answer: "the task goes on with this value as the step's output",
    Deny: "the task sees StepFailed('abandoned'); the effect stands",
}
"""What each answer would do: shown with every case."""

DOES_AT_THE_END: dict[type[Any], str] = {
    Happened: "the step is done with the output you give; the task is cancelled: it is undone or stands, as the task is declared",
    DidNotHappen: (
        "recorded now; acts when nothing can land any more and after a fresh look; the task is cancelled:"
        " whatever is to follow, it is not sent again"
    ),
    Abandon: "the step is settled as failed and may stand; the task is cancelled, and its end lists it",
}
"""What an answer about a write of a cancelled task does."""

DOES_THERE: dict[type[Any], str] = {
    Answer: "the task goes on with this value",
    Deny: "the task sees Denied, with your name and why; what it does then is its own code's",
}
"""What an answer to a question of `app.wait_for` does."""

UNDOES: dict[type[Any], str] = {
    Happened: "the effect is undone, by hand or as you found it, with the output you give as the evidence",
    DidNotHappen: (
        "it was not undone. Recorded now; acts when nothing can land any more and after a fresh look: then retry undoes it,"
        " also after its deadline, and fail lets the effect stand: the end lists it"
    ),
    Abandon: "nobody will find out: the effect may stand, and the end lists it",
}
"""What an answer about a compensation does."""
