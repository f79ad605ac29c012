"""Exit codes: what a script may rely on. One table, from which the help is made."""

from __future__ import annotations

from ..errors import (
    Abort,
    Conflict,
    DoubtlessError,
    Frozen,
    NeedsHuman,
    StepFailed,
    StoreError,
    TaskFailed,
    TaskFrozen,
    TaskWaiting,
    UsageError,
)

OK = 0
FAILED = 1
USAGE = 2
NEEDS_HUMAN = 3
WAITING = 4
CONFLICT = 5
STORE = 6
FROZEN = 7
UNEXPECTED = 70
HANGUP = 129
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

MEANING: dict[int, str] = {
    OK: "done; of a command that looks: looked; of a worker: drained after a signal",
    FAILED: "the task failed (or was cancelled or compensated); crashtest found something wrong",
    USAGE: "the command cannot be carried out as written; nothing was written or sent",
    NEEDS_HUMAN: "only a person can move the task on: doubtless inbox",
    WAITING: "the task waits for a time, or for somebody to resume it",
    CONFLICT: "somebody else was first: the task has an owner, the case its answer or new evidence",
    STORE: "the store cannot be used as it is, or verify found problems",
    FROZEN: "the task stands before a write that is frozen",
    UNEXPECTED: "something that nobody expected; --debug shows where",
    HANGUP: "ended by SIGHUP (a worker: by a second signal); what was in flight is recorded",
    INTERRUPTED: "ended by Ctrl-C (a worker: by a second signal); what was in flight is recorded",
    PIPE_CLOSED: "whoever read the output closed it",
    TERMINATED: "ended by SIGTERM (a worker: by a second signal); what was in flight is recorded",
}
"""What each code says: `doubtless --help` prints this table."""

_CODES: tuple[tuple[type[DoubtlessError], int], ...] = (
    (Frozen, FROZEN),  # a Conflict, too: the narrower class first
    (TaskFrozen, FROZEN),
    (TaskFailed, FAILED),
    (StepFailed, FAILED),
    (Abort, FAILED),
    (NeedsHuman, NEEDS_HUMAN),
    (TaskWaiting, WAITING),
    (UsageError, USAGE),
    (Conflict, CONFLICT),
    (StoreError, STORE),
)


class Interrupted(DoubtlessError):
    """A signal ended the command; the message says what became of the write that was in flight."""

    code = "interrupted"

    def __init__(self, message: str, *, exit_code: int, hint: str = "", **context: object) -> None:
        self.exit_code = exit_code
        super().__init__(message, hint=hint, **context)


class Unexpected(DoubtlessError):
    """Something happened that the command has no word for."""

    code = "unexpected"


def exit_code(error: DoubtlessError) -> int:
    """The exit code of an error."""
    if isinstance(error, Interrupted):
        return error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNEXPECTED)
