"""What will happen to a step in each kind of trouble: derived from its policy by the table below, which is data.

`THEN` says for every trouble which deeds follow, in order, each under the facts that it needs; the first deed that
ends the matter is the last one. Nothing here asks `protocol.decide`: a test plays every trouble through it and
compares, so that neither can change without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple, assert_never

from .durations import SECOND, show_duration
from .effects import StepDefinition
from .errors import StepFailure
from .events import Effect, StepStatus


class Trouble(StrEnum):
    """What can happen to a call, or be answered about it."""

    KILLED = "killed"
    TIMED_OUT = "timed_out"
    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    USED_UP = "used_up"
    KEY_OVER = "key_over"
    RESTORED = "restored"
    ABSENT = "absent"
    ABSENT_KEY_OVER = "absent_key_over"
    ABSENT_RESTORED = "absent_restored"
    ABSENT_HANDLE = "absent_handle"
    SEVERAL = "several"
    PENDING = "pending"
    UNCLEAR = "unclear"
    NO_EFFECT = "no_effect"


# ---------------------------------------------------------------- deeds


class Calls(NamedTuple):
    """The step is called again, at most that often (None: as often as the trouble comes, since it leaves no row behind).

    Meaning: `each`: before each further call the looks before it have to repeat.
    Units: `within_us`: a call starts less than that after the first one; None: whenever that is.
    """

    times: int | None
    key: Literal["none", "same", "next"]
    within_us: int | None = None
    each: bool = False


class Looks(NamedTuple):
    """The other system is asked, at most that often; None: until it says something else."""

    times: int | None = 1


class AwaitsProof(NamedTuple):
    """An absence counts at the second of two looks: both start that long after the last possible send, and so far apart."""

    after_us: int
    apart_us: int


class AwaitsQuiet(NamedTuple):
    """The answer counts in a look that starts that long after the last possible send."""

    after_us: int


class Settles(NamedTuple):
    """The step ends without a person: `kind` is what the task's code sees of it as a `StepFailed`; None: its output."""

    status: StepStatus
    kind: StepFailure | None


class Asks(NamedTuple):
    """A case is opened: only a person moves it on. `fresh_look`: each later run of the task asks the other system first."""

    fresh_look: bool


Deed = Calls | Looks | AwaitsProof | AwaitsQuiet | Settles | Asks


class Foresight(NamedTuple):
    """What follows a trouble, deed by deed, until the matter is ended or waits for somebody else."""

    trouble: Trouble
    then: tuple[Deed, ...]

    @property
    def sentence(self) -> str:
        """The deeds in words."""
        return "; then ".join(in_words(deed) for deed in self.then)

    @property
    def asks(self) -> bool:
        """Whether it ends with a person."""
        return isinstance(self.then[-1], Asks)


# ---------------------------------------------------------------- the table

Row = tuple[str, str]
"""Facts that must hold (``!``: must not), and the deed that follows."""

_ENDS = frozenset({"done", "exhausted", "rejected", "absent", "ask", "ask_known", "look_on", "call_on"})

_DOUBT: tuple[Row, ...] = (("resends again", "call"), ("query", "look"), ("query", "done"), ("", "ask"))  # the query finds it
_ASK_FIRST: tuple[Row, ...] = (("read", "exhausted"), ("query", "look"), ("query", "done"), ("", "ask"))
_ABSENCE: tuple[Row, ...] = (  # asked about without a further call before
    ("", "look"),
    ("!proof", "ask"),
    ("", "prove"),
    ("!retry_absent", "absent"),
    ("again", "call_each"),
    ("", "ask_known"),
)

THEN: Mapping[Trouble, tuple[Row, ...]] = {
    Trouble.KILLED: (("read", "call_on"), *_DOUBT),
    Trouble.TIMED_OUT: (("read again", "call"), ("read", "exhausted"), *_DOUBT),
    Trouble.NOT_SENT: (("again", "call_freely"), ("", "exhausted")),
    Trouble.REJECTED: (("!retry_rejected", "rejected"), ("again", "call_next"), ("", "exhausted")),
    Trouble.USED_UP: _ASK_FIRST,
    Trouble.KEY_OVER: _ASK_FIRST,
    Trouble.RESTORED: _ASK_FIRST,
    Trouble.ABSENT: (
        ("resends again", "call"),
        ("", "look"),
        ("!proof", "ask"),
        ("", "prove"),
        ("!retry_absent", "absent"),
        ("again !resends", "call_each"),
        ("", "ask_known"),
    ),
    Trouble.ABSENT_KEY_OVER: _ABSENCE,
    Trouble.ABSENT_RESTORED: _ABSENCE,
    Trouble.ABSENT_HANDLE: (("resends again", "call"), ("", "look_unclear"), ("", "ask")),
    Trouble.SEVERAL: (("resends again", "call"), ("", "look"), ("", "ask")),
    Trouble.PENDING: (("resends again", "call"), ("", "look_on")),
    Trouble.UNCLEAR: (("resends again", "call"), ("", "look_unclear"), ("", "ask")),
    Trouble.NO_EFFECT: (
        ("resends again", "call"),
        ("", "look"),
        ("", "quiet"),
        ("!retry_rejected", "rejected"),
        ("again !resends", "call_next_each"),
        ("", "exhausted"),
    ),
}

ARISES: Mapping[Trouble, str] = {
    Trouble.KEY_OVER: "resends window",
    Trouble.RESTORED: "!read",
    Trouble.ABSENT: "query",
    Trouble.ABSENT_KEY_OVER: "query resends window",
    Trouble.ABSENT_RESTORED: "query",
    Trouble.ABSENT_HANDLE: "query",
    Trouble.SEVERAL: "query",
    Trouble.PENDING: "query",
    Trouble.UNCLEAR: "query",
    Trouble.NO_EFFECT: "query",
}
"""The facts under which a trouble can arise at all; the others always can."""


def _calls(*, next_key: bool = False, each: bool = False, freely: bool = False) -> Callable[[StepDefinition], Deed]:
    def deed(step: StepDefinition) -> Deed:
        key: Literal["none", "same", "next"] = "none" if not step.takes_key else "next" if next_key else "same"
        within = None if freely or next_key or each else resend_within(step)
        return Calls(step.attempts - 1, key, within, each)

    return deed


def _fails(kind: StepFailure) -> Callable[[StepDefinition], Deed]:
    return lambda step: Settles(StepStatus.FAILED if step.effect == Effect.READ else StepStatus.NOT_APPLIED, kind)


def _quiet(step: StepDefinition) -> Deed:
    return AwaitsQuiet(step.timeout_us if step.absent_after_us is None else step.absent_after_us)


def _proof(step: StepDefinition) -> Deed:
    after = step.absent_after_us or 0
    return AwaitsProof(after, max(SECOND, after // 4))


DEEDS: Mapping[str, Callable[[StepDefinition], Deed]] = {
    "call": _calls(),
    "call_on": lambda step: Calls(None, "none"),
    "call_freely": _calls(freely=True),
    "call_each": _calls(each=True),
    "call_next": _calls(next_key=True),
    "call_next_each": _calls(next_key=True, each=True),
    "look": lambda step: Looks(1),
    "look_unclear": lambda step: Looks(step.query_attempts),
    "look_on": lambda step: Looks(None),
    "prove": _proof,
    "quiet": _quiet,
    "done": lambda step: Settles(StepStatus.DONE, None),
    "exhausted": _fails("exhausted"),
    "rejected": _fails("rejected"),
    "absent": _fails("not_applied"),
    "ask": lambda step: Asks(step.query is not None),
    "ask_known": lambda step: Asks(False),
}


# ---------------------------------------------------------------- reading it


def resend_within(step: StepDefinition) -> int | None:
    """How long after the first call an idem_write may still be sent again; None: for ever (or it is another class).

    Units: microseconds; zero or less: never. A call has to end, with a margin, while the other side knows the key (rule 11).
    """
    if step.effect != Effect.IDEM_WRITE or step.key_window_us is None:
        return None
    return step.key_window_us - step.timeout_us - max(5 * SECOND, step.key_window_us // 100)


def facts(step: StepDefinition) -> frozenset[str]:
    """What the table asks about a step."""
    room = resend_within(step)
    soonest = step.backoff_us * 75 // 100  # the shortest backoff before a second call
    held = {
        "read": step.effect == Effect.READ,
        "idem": step.effect == Effect.IDEM_WRITE,
        "again": step.attempts > 1,
        "resends": step.effect == Effect.IDEM_WRITE and (room is None or room > soonest),
        "window": step.key_window_us is not None,
        "query": step.query is not None,
        "proof": step.absent_after_us is not None,
        "retry_absent": step.on_absent == "retry",
        "retry_rejected": step.retry_rejected,
        "key": step.takes_key,
        "classify": step.classify is not None,
        "single_request": step.single_request,
        "compensate": step.compensate is not None,
        "undo_by": step.compensate_deadline_us is not None,
        "handle": step.query_by == "handle",
        "likeness": step.query_by == "likeness",
        "once": step.once is not None,
        "once_window": step.once_window_us is not None,
    }
    return frozenset(fact for fact, holds in held.items() if holds)


def holds(needs: str, known: frozenset[str]) -> bool:
    """Whether these facts hold: ``"query !proof"``."""
    return all((need[1:] not in known) if need[0] == "!" else (need in known) for need in needs.split())


def foresee(step: StepDefinition) -> tuple[Foresight, ...]:
    """What will happen to this step in each trouble that can arise for it."""
    known = facts(step)
    return tuple(Foresight(trouble, _then(step, trouble, known)) for trouble in Trouble if holds(ARISES.get(trouble, ""), known))


def _then(step: StepDefinition, trouble: Trouble, known: frozenset[str]) -> tuple[Deed, ...]:
    deeds: list[Deed] = []
    for needs, name in THEN[trouble]:
        if holds(needs, known):
            deeds.append(DEEDS[name](step))
            if name in _ENDS:
                break
    return tuple(deeds)


# ---------------------------------------------------------------- words

LABELS: Mapping[Trouble, str] = {
    Trouble.KILLED: "killed inside the call",
    Trouble.TIMED_OUT: "timed out",
    Trouble.NOT_SENT: "not sent",
    Trouble.REJECTED: "rejected by the other side",
    Trouble.USED_UP: "budget used up in doubt",
    Trouble.KEY_OVER: "in doubt after key_window",
    Trouble.RESTORED: "backup restored",
    Trouble.ABSENT: "look-back: absent",
    Trouble.ABSENT_KEY_OVER: "absent, after key_window",
    Trouble.ABSENT_RESTORED: "absent, backup restored",
    Trouble.ABSENT_HANDLE: "absent, handle recorded",
    Trouble.SEVERAL: "look-back: several",
    Trouble.PENDING: "look-back: pending",
    Trouble.UNCLEAR: "look-back: unclear, raises",
    Trouble.NO_EFFECT: "look-back: no effect",
}

_UNDER = {"none": "", "same": " with the same key", "next": " under the key's next generation"}


def in_words(deed: Deed) -> str:
    """One deed as half a sentence; no two deeds read alike."""
    match deed:
        case Calls(times, key, within, each):
            if times is None:
                return "calls again as if it had not been called"
            often = "once more" if times == 1 else f"up to {times} more times"
            window = "" if within is None else f", starting less than {show_duration(within)} after the first call"
            return f"calls again{_UNDER[key]}, {often}{window}{', each only after such a look' if each else ''}"
        case Looks(None):
            return "looks back again and again until the answer is another"
        case Looks(times):
            return "looks back" if times == 1 else f"looks back up to {times} times"
        case AwaitsProof(after, apart):
            return (
                f"takes it as proof when two looks, at least {show_duration(apart)} apart, both started {show_duration(after)}"
                " after the last possible send"
            )
        case AwaitsQuiet(after):
            return f"takes it as final in a look that started {show_duration(after)} after the last possible send"
        case Settles(status, None):
            return f"settles as {status} with what was found"
        case Settles(status, kind):
            case_of = "; a case, if the task's code does not catch it" if kind == "exhausted" else ""
            return f"settles as {status} ({kind}{case_of})"
        case Asks(fresh):
            return "asks a person" + ("; each later run looks back once more first" if fresh else "")
        case _:
            assert_never(deed)


def deed_as_json(deed: Deed) -> dict[str, Any]:
    """One deed as plain JSON: ``{"does": "calls", "times": 2, "key": "same", …}``."""
    return {"does": _SPELLED[type(deed)], **deed._asdict()}


_SPELLED: Mapping[type[Any], str] = {
    Calls: "calls", Looks: "looks", AwaitsProof: "awaits_proof", AwaitsQuiet: "awaits_quiet", Settles: "settles", Asks: "asks",
}  # fmt: skip
