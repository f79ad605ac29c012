"""What an attempt came to: not_sent, rejected or unknown; and what a look-back answered.

The default is unknown: an exception says nothing about a whole function (the POST may have landed before the GET was
refused). `not_sent` and `rejected` exist only where the step says so itself, or where it declares that its body makes one
request (`single_request`); then the table of `clients.py` applies.

Nothing here raises on what user code or a foreign server handed over: it is judged, and in doubt it is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from .durations import parse_duration
from .errors import UsageError

if TYPE_CHECKING:
    from .clients import Verdict

Wait = float | str | timedelta | None
"""``30`` (seconds), ``"PT30S"``, ``"30"`` or a `timedelta`; None: the step's own backoff."""

_DETAIL_LIMIT = 500
_CODE_LIMIT = 100
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
# The common outputs, so that an ordinary step pays one set look-up here.
_PLAIN = frozenset({dict, list, tuple, str, bytes, int, float, bool, type(None)})


# What a step raises or returns, and what a `classify` callback returns.


class Signal(Exception):
    """The base of what a step says about its own attempt; raise or return `NotSent`, `Rejected` or `Unknown`."""


class NotSent(Signal):
    """Say that nothing left this machine: the call may be made again, with the same key.

    Units: `retry_after` is how long to wait first: seconds, an ISO 8601 duration (``"PT30S"``) or a `timedelta`. What
    cannot be read as one is ignored: losing the signal over its wait would turn a certainty into a doubt.
    """

    def __init__(self, reason: str = "", *, retry_after: Wait = None) -> None:
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(reason)


class Rejected(Signal):
    """Say that the other side answered, and that its answer means: no effect. `code` is the other side's own."""

    def __init__(self, code: str | int = "", detail: object = None, *, retry_after: Wait = None) -> None:
        self.code = code
        self.detail = detail
        self.retry_after = retry_after
        super().__init__(code, detail)


class Unknown(Signal):
    """Say that the write may have landed, or may still land."""

    def __init__(self, reason: str = "", detail: object = None) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason, detail)


class AlreadyUndone(Exception):
    """Raised or returned by a compensation: the effect is undone already, which counts as done."""

    def __init__(self, detail: object = None) -> None:
        self.detail = detail
        super().__init__(detail)


class NotUndoable(Exception):
    """Raised or returned by a compensation: the effect cannot be undone any more; a person hears of it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


# What a `query` answers. Plain slotted classes: no import cost, and two kinds of answer are never equal.


class _Answer:
    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Answer) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # they hold what the query returned: dicts and lists

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.__match_args__, self._values(), strict=True))
        return f"{type(self).__name__}({shown})"


class Found(_Answer):
    """The effect is there, and `output` is the step's output."""

    __slots__ = ("output",)
    __match_args__ = ("output",)

    def __init__(self, output: Any) -> None:
        self.output = output


class Several(_Answer):
    """More than one thing fits; a person says which. Match by the key or handle that you put there, not by likeness."""

    __slots__ = ("items",)
    __match_args__ = ("items",)

    def __init__(self, items: Any) -> None:
        self.items = items


class Pending(_Answer):
    """The other side works on it still; look again after `look_again` (as `retry_after` of `NotSent`; None: by backoff)."""

    __slots__ = ("look_again", "note")
    __match_args__ = ("look_again", "note")

    def __init__(self, look_again: Wait = None, note: str = "") -> None:
        self.look_again = look_again
        self.note = note

    @property
    def look_again_us(self) -> int | None:
        """The wait in microseconds, None if there is none or it cannot be read."""
        return wait_us(self.look_again)


class Absent(_Answer):
    """The other side does not know it. That alone proves nothing: see `absent_after`."""

    __slots__ = ()


class Unclear(_Answer):
    """The look-back settled nothing, and `why`; it is made again."""

    __slots__ = ("why",)
    __match_args__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class NoEffect(_Answer):
    """The other side knows the request, and it finally failed there without effect, and `why`."""

    __slots__ = ("why",)
    __match_args__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


# Classifying an attempt.


class Outcome(NamedTuple):
    """The classified result of an attempt that gave no usable output.

    Shapes: ``Outcome("rejected", "422", "HTTPStatusError: Client error …", None)``. `code` is the other side's code, or the
    name of the exception's type. `detail` is at most 500 characters. `retry_after_us` is a wait that the other side or
    the step asked for, in microseconds from the end of the attempt, whatever the kind.
    """

    kind: Literal["not_sent", "rejected", "unknown"]
    code: str
    detail: str
    retry_after_us: int | None


Classify = Callable[[Any], object]
Mask = Callable[[str], str]


def classify_raised(
    exc: BaseException,
    *,
    single_request: bool,
    classify: Classify | None,
    uncertain_before: bool,
    handle_recorded: bool,
    mask: Mask | None = None,
) -> Outcome:
    """Say what an attempt came to that raised `exc`.

    Meaning: the step's own signal counts first, then `classify`, then (with `single_request`) the table; all else is
    unknown. What is no `Exception` (cancellation, Ctrl-C) is unknown and `classify` is not asked. `uncertain_before`: an
    attempt under the same key is unknown and not cleared; a rejection is then unknown, it may be the first one's echo
    (409 "already exists"). `handle_recorded`: something was sent, so only unknown is left.
    Shapes: `mask` takes known secrets out of texts; it runs before they are cut, since half a secret is not recognised.
    Raises: only what is no `Exception`, from inside `classify` (Ctrl-C); the attempt then stays without an outcome.
    """
    signal = _signal(exc)
    if signal is None and classify is not None and isinstance(exc, Exception):
        signal = _asked(classify, exc)
    if signal is not None:
        return _finish(*_of_signal(signal), uncertain_before, handle_recorded, mask)
    from .clients import judge  # here and below: loaded when the first call gives no output

    verdict = _for_whole_step(_judged(judge, exc), single_request)
    return _finish(verdict, text_of(exc), uncertain_before, handle_recorded, mask)


def classify_returned(
    value: object,
    *,
    single_request: bool,
    classify: Classify | None,
    uncertain_before: bool,
    handle_recorded: bool,
    mask: Mask | None = None,
) -> Outcome | None:
    """Say what an attempt came to that returned `value`; None if `value` is an ordinary output.

    Meaning: as `classify_raised`. A returned signal or exception counts as raised. A reply object of a known client is
    judged by its status and is never an output: its content was not looked at. `classify` is asked about outputs too, for
    systems that refuse inside a 200; if it raises, the outcome is unknown.
    """
    if classify is None and type(value) in _PLAIN:
        return None
    if isinstance(value, BaseException) or _signal(value) is not None:
        return classify_raised(
            _signal(value) or value,  # type: ignore[arg-type]  # one of the two is an exception
            single_request=single_request,
            classify=classify,
            uncertain_before=uncertain_before,
            handle_recorded=handle_recorded,
            mask=mask,
        )
    signal = _asked(classify, value) if classify is not None else None
    if signal is not None:
        return _finish(*_of_signal(signal), uncertain_before, handle_recorded, mask)
    from .clients import is_response, judge_response

    if not is_response(value):
        return None
    verdict = _judged(judge_response, value)
    text = f"{_type_name(value)} with status {verdict.code or '?'}"
    if not (verdict.code.isdigit() and int(verdict.code) >= 400):
        text += (
            ": the step returned a response object instead of its content; return response.json() or what you need of it,"
            " after response.raise_for_status()"
        )
    return _finish(_for_whole_step(verdict, single_request), text, uncertain_before, handle_recorded, mask)


def _signal(value: object) -> Signal | None:
    """`value` as a signal; the bare class counts as well, as it does after ``raise``."""
    if isinstance(value, Signal):
        return value
    if isinstance(value, type) and value in (NotSent, Rejected, Unknown):
        made: Signal = value()
        return made
    return None


def _asked(classify: Classify, subject: object) -> Signal | None:
    """Ask the step's `classify`; None if it has no opinion. What it may not say, and its own failure, are unknown."""
    try:
        said = classify(subject)
    except Exception as failure:  # noqa: BLE001 - whatever it raises, the attempt has to get an outcome
        return Unknown("ClassifyFailed", f"classify raised {text_of(failure)}; it was asked about {_type_name(subject)}")
    signal = _signal(said)
    if said is None or signal is not None:
        return signal
    if hasattr(said, "__await__") and hasattr(said, "close"):
        said.close()
    allowed = "NotSent, Rejected, Unknown or None"
    return Unknown("ClassifyFailed", f"classify returned {_type_name(said)}, not {allowed}, about {_type_name(subject)}")


def _of_signal(signal: Signal) -> tuple[Verdict, str]:
    """Read with defaults: a subclass may have an `__init__` of its own."""
    from .clients import Verdict

    wait = getattr(signal, "retry_after", None)
    wait_read = wait_us(wait)
    note = "its retry_after cannot be read as a wait" if wait is not None and wait_read is None else ""
    reason, detail = _text(getattr(signal, "reason", "")), _text(getattr(signal, "detail", None))
    if isinstance(signal, NotSent):
        return Verdict("not_sent", "NotSent", note, wait_read), reason
    if isinstance(signal, Rejected):
        return Verdict("rejected", _text(getattr(signal, "code", "")) or "Rejected", note, wait_read), detail
    return Verdict("unknown", "Unknown"), ": ".join(part for part in (reason, detail) if part)


def _judged(by: Callable[[Any], Verdict], subject: object) -> Verdict:
    """The table's verdict; unknown if a foreign object does not even let itself be read."""
    try:
        return by(subject)
    except Exception as failure:  # noqa: BLE001 - an attribute of a foreign class may raise anything
        from .clients import Verdict

        return Verdict("unknown", type(subject).__name__, f"could not be read: {type(failure).__name__}")


def _for_whole_step(verdict: Verdict, single_request: bool) -> Verdict:
    """One request's verdict is the step's only if the step is that one request."""
    if single_request or verdict.kind == "unknown":
        return verdict
    return verdict._replace(kind="unknown", note=f"{verdict.kind} if the step declared single_request=True")


def _finish(verdict: Verdict, text: str, uncertain_before: bool, handle_recorded: bool, mask: Mask | None) -> Outcome:
    kind, note = verdict.kind, verdict.note
    if kind == "rejected" and uncertain_before:
        kind, note = "unknown", "rejected while an earlier attempt under this key is unknown: it may be that one's echo"
    if kind != "unknown" and handle_recorded:
        kind, note = "unknown", f"{verdict.kind}, but the step had recorded a handle: something was sent"
    code = verdict.code or "Unknown"
    if mask is not None:
        code, text = mask(code), mask(text)
    code, text = storable(code), storable(text)
    if note:
        text = f"{text[: _DETAIL_LIMIT - len(note) - 3]} [{note}]" if text else note
    return Outcome(kind, code[:_CODE_LIMIT], text[:_DETAIL_LIMIT], verdict.retry_after_us)


# Reading a look-back.


def read_answer(value: object) -> Found | Several | Pending | Absent | Unclear | NoEffect:
    """Say what a query's return value means; what is not plainly an answer is `Unclear`.

    Meaning: None is absent. A non-empty mapping, a dataclass or a pydantic model is found. The six answers are
    themselves. Anything else is unclear: an empty search result must not read as success.
    """
    if value is None:
        return Absent()
    held = value.output if isinstance(value, Found) else value
    if hasattr(held, "__await__"):
        if hasattr(held, "close"):
            held.close()
        return Unclear(f"the query returned {_type_name(held)} that was not awaited; await it, or make the query async")
    from .clients import is_response

    if is_response(held):
        return Unclear(f"the query returned {_type_name(held)} instead of its content; return Found(response.json()) or None")
    if isinstance(value, (Found, Several, Pending, Absent, Unclear, NoEffect)):
        return value
    if isinstance(value, Mapping):
        return Found(value) if value else Unclear("the query returned an empty mapping; say Absent() or Found(x)")
    if not isinstance(value, type) and (hasattr(type(value), "__dataclass_fields__") or _is_model(value)):
        return Found(value)
    return Unclear(f"the query returned {_type_name(value)}; say Found(x) if x is what this step made, None if there is none")


def _is_model(value: object) -> bool:
    """A pydantic model, told by what only such a class has."""
    return hasattr(type(value), "model_fields") and callable(getattr(type(value), "model_dump", None))


# Texts and waits.


def wait_us(wait: Wait) -> int | None:
    """Read a wait as microseconds; None for none, and for what is no wait (of a thousand years at most)."""
    if wait is None:
        return None
    if isinstance(wait, str) and _SECONDS.fullmatch(wait.strip()):
        wait = float(wait)  # a Retry-After header handed on as it came
    try:
        return parse_duration(wait, zero=True)
    except UsageError:
        return None


def _type_name(value: object) -> str:
    """The type with its client: ``httpx.Response``, ``dict``. Never the value: it may hold what nobody should read."""
    module = str(type(value).__module__).partition(".")[0]
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


def text_of(exc: BaseException) -> str:
    """The exception's type and message, whatever its `__str__` does."""
    name = type(exc).__name__
    try:
        message = str(exc)
    except Exception:  # noqa: BLE001 - a foreign __str__
        message = "(its message cannot be read)"
    return f"{name}: {message}" if message else name


def _text(value: object) -> str:
    """What a signal carries, as text: strings as they are, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except Exception:  # noqa: BLE001 - a foreign __str__, a cycle
        return _type_name(value)


def unstorable(text: object) -> str | None:
    """Why a person's text cannot be written down as it is, or None: it is refused then, not changed."""
    if not isinstance(text, str):
        return f"has to be a text, not {type(text).__name__}"
    return None if storable(text) == text else "holds a character that is no text (a lone surrogate or NUL)"


def storable(text: str) -> str:
    """Without what a log row cannot hold: lone surrogates (canonical JSON refuses them) and NUL (PostgreSQL does)."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
