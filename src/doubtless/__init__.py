"""Doubtless: durable, retry-safe steps for agents. Every doubt gets settled.

A write is sent again only when it is known not to have landed, when its key makes a second send harmless, or
when its step or a person has said so. Where the other side can be asked, it is asked first.
"""

from typing import TYPE_CHECKING, Any

from .app import Doubtless
from .binding import injected
from .drivers import record_handle
from .errors import (
    Abort,
    AlreadySettled,
    AnswerRefused,
    BudgetUsedUp,
    CaseChanged,
    Conflict,
    Denied,
    Diverged,
    DoubtlessError,
    EventRefused,
    Expired,
    InputDiffers,
    Late,
    NeedsHuman,
    NotCanonical,
    OutsideTask,
    Refused,
    StepFailed,
    StepTableError,
    StoreDamaged,
    StoreError,
    StoreRefused,
    StoreSuspect,
    StoreUnavailable,
    TaskBusy,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UnknownCase,
    UnknownStep,
    UnknownTask,
    UsageError,
)
from .events import Effect, Instant
from .outcomes import Absent, AlreadyUndone, Found, NoEffect, NotSent, NotUndoable, Pending, Rejected, Several, Unclear, Unknown
from .secrets import Secret
from .steps import Step, Task

if TYPE_CHECKING:
    from .agentview import State
    from .answers import Abandon, Answer, Compensate, Deny, DidNotHappen, Fail, Happened, LetStand, Noted, Retry
    from .choices import Finish, StepCall, Turn
    from .facts import Fact
    from .guests import SessionCall
    from .inbox import Case
    from .sessions import Session

__version__ = "0.1.0"

__all__ = [
    "Abandon",
    "Abort",
    "Absent",
    "AlreadySettled",
    "AlreadyUndone",
    "Answer",
    "AnswerRefused",
    "BudgetUsedUp",
    "Case",
    "CaseChanged",
    "Compensate",
    "Conflict",
    "Denied",
    "Deny",
    "DidNotHappen",
    "Diverged",
    "Doubtless",
    "DoubtlessError",
    "Effect",
    "EventRefused",
    "Expired",
    "Fact",
    "Fail",
    "Finish",
    "Found",
    "Happened",
    "InputDiffers",
    "Instant",
    "Late",
    "LetStand",
    "NeedsHuman",
    "NoEffect",
    "NotCanonical",
    "NotSent",
    "NotUndoable",
    "Noted",
    "OutsideTask",
    "Pending",
    "Refused",
    "Rejected",
    "Retry",
    "Secret",
    "Session",
    "SessionCall",
    "Several",
    "State",
    "Step",
    "StepCall",
    "StepFailed",
    "StepTableError",
    "StoreDamaged",
    "StoreError",
    "StoreRefused",
    "StoreSuspect",
    "StoreUnavailable",
    "Task",
    "TaskBusy",
    "TaskFailed",
    "TaskFrozen",
    "TaskWaiting",
    "Turn",
    "Unclear",
    "Unknown",
    "UnknownCase",
    "UnknownStep",
    "UnknownTask",
    "UsageError",
    "injected",
    "record_handle",
]

_LATER = {
    "Fact": "facts", "Finish": "choices", "Session": "sessions", "SessionCall": "guests", "State": "agentview",
    "StepCall": "choices", "Turn": "choices",
    "Abandon": "answers", "Answer": "answers", "Case": "inbox", "Compensate": "answers", "Deny": "answers",
    "DidNotHappen": "answers", "Fail": "answers", "Happened": "answers", "LetStand": "answers", "Noted": "answers",
    "Retry": "answers",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what only agents, sessions and people's answers need when it is first asked for: the import should be light."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"doubtless.{_LATER[name]}"), name)
    raise AttributeError(f"module 'doubtless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
