"""Durations: ISO 8601 texts in, integer microseconds inside, words for people out.

Calendar durations are refused: nobody can say how long P1M is without a calendar, and a window or a deadline
that is a different one each month is not one that can be tested.
"""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import NoReturn

from .errors import UsageError

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LONGEST = 365_000 * DAY
"""A thousand years: sums of a time and a duration stay far inside 64 bits."""

_UNITS = {"weeks": 7 * DAY, "days": DAY, "hours": HOUR, "minutes": MINUTE, "seconds": SECOND}
_NUMBER = r"[0-9]{1,18}(?:[.,][0-9]{1,18})?"
_ISO = re.compile(
    rf"(?P<sign>[+-]?)P(?:(?P<years>{_NUMBER})Y)?(?:(?P<months>{_NUMBER})M)?(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?P<time>T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?"
)
_LOOSE = rf"({_NUMBER})\s*([A-Za-z]*)"
_LOOSE_UNITS = {"": "S", "s": "S", "sec": "S", "second": "S", "m": "M", "min": "M", "minute": "M", "h": "H", "hr": "H",
                "hour": "H", "d": "D", "day": "D", "w": "W", "week": "W"}  # fmt: skip


class BadDuration(UsageError):
    """A duration cannot be read, is a calendar one, or is not positive; the message says what to write."""

    code = "bad_duration"


def parse_duration(text: str | float | timedelta, *, zero: bool = False) -> int:
    """Read a duration as microseconds.

    Shapes: ``"PT10M"``, ``"PT0.5S"``, ``"P1DT2H"``, ``"P2W"``; a bare number is seconds; a `timedelta`.
    Units: microseconds, rounded to the nearest one. Zero is refused unless `zero` says that it has a meaning.
    Raises: `BadDuration`.
    """
    match text:
        case bool():
            raise BadDuration(f"{text} is not a duration", hint="say PT10M, a number of seconds, or a timedelta")
        case str():
            us = _parse_iso(text)
        case timedelta():
            us = text // timedelta(microseconds=1)
        case int():
            us = text * SECOND
        case float():
            us = _parse_seconds(text)
        case _:
            raise BadDuration(
                f"a duration cannot be a {type(text).__name__}", hint="say PT10M, a number of seconds, or a timedelta"
            )
    return _checked(text, us, zero)


def _checked(text: object, us: int, zero: bool) -> int:
    if us < 0:
        raise BadDuration(f"{_short(text)} is negative", hint="a duration has no sign")
    if us == 0 and not zero:
        raise BadDuration(f"{_short(text)} is no time at all", hint="say a duration longer than zero")
    if us > LONGEST:
        raise BadDuration(f"{_short(text)} is longer than a thousand years", hint="leave it out if it is to be for ever")
    return us


def _parse_seconds(seconds: float) -> int:
    if not isfinite(seconds):
        raise BadDuration(f"{seconds} is not a duration", hint="say a finite number of seconds")
    return round(seconds * SECOND) if isfinite(seconds * SECOND) else int(seconds)


def _parse_iso(text: str) -> int:
    found = _ISO.fullmatch(text.strip())
    if found is None or found["time"] == "T":
        _refuse_text(text)
    parts = {unit: found[unit] for unit in ("years", "months", *_UNITS) if found[unit] is not None}
    if not parts:
        _refuse_text(text)
    if "years" in parts or "months" in parts:
        _refuse_calendar(text, parts, found["time"] or "")
    *earlier, _last = parts.values()
    if any("." in number or "," in number for number in earlier):
        raise BadDuration(f"{text}: only the last number may have a fraction", hint="say PT90M for an hour and a half")
    us = sum(_scaled(number, _UNITS[unit]) for unit, number in parts.items())
    return -us if found["sign"] == "-" else us


def _scaled(number: str, unit: int) -> int:
    """`number` times `unit`, in integers: a float would lose microseconds of long durations."""
    whole, _, fraction = number.replace(",", ".").partition(".")
    scale: int = 10 ** len(fraction)
    return (int(whole + fraction) * unit + scale // 2) // scale


def _refuse_calendar(text: str, parts: dict[str, str], time: str) -> NoReturn:
    days = sum(
        _scaled(parts.get(unit, "0"), length) for unit, length in (("years", 365), ("months", 30), ("weeks", 7), ("days", 1))
    )
    what = "a calendar year" if "years" in parts else "a calendar month"
    hint = f"say P{days}D{time}" if days else "say it in days"
    if list(parts) == ["months"]:
        hint += f", or PT{parts['months']}M for minutes"
    raise BadDuration(f"{text} is counted by {what}, whose length differs", hint=hint)


def _refuse_text(text: str) -> NoReturn:
    hint = "say it as ISO 8601: PT30S, PT10M, PT2H, P1D"
    if _ISO.fullmatch(text.strip().upper()):
        hint = f"say {text.strip().upper()}"
    elif loose := re.fullmatch(_LOOSE, text.strip()):
        number, word = loose[1], loose[2].lower()
        letter = _LOOSE_UNITS.get(word) or _LOOSE_UNITS.get(word.removesuffix("s"))
        if letter:
            hint = f"say {'P' if letter in 'DW' else 'PT'}{number}{letter}"
    raise BadDuration(f"{_short(text)!r} is not a duration", hint=hint)


def _short(value: object) -> str:
    """Long digits and long texts would drown the message; an int of more than 4300 digits cannot even be shown."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of {value.bit_length()} bits"
    text = str(value)
    return f"{text[:40]}…" if len(text) > 40 else text


def show_duration(us: int) -> str:
    """Say a duration for people, nothing rounded away: ``10 min``, ``1 h 30 min``, ``2 s``, ``250 ms``."""
    if us < 0:
        return f"-{show_duration(-us)}"
    if us == 0:
        return "0 s"
    if us < 1_000:
        return f"{us} µs"
    if us < SECOND:
        return f"{_plain(us, 1_000)} ms"
    words: list[str] = []
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        count, us = divmod(us, unit)
        if count:
            words.append(f"{count} {name}")
    if us:
        words.append(f"{_plain(us, SECOND)} s")
    return " ".join(words)


def _plain(us: int, unit: int) -> str:
    """`us` in `unit`s as a decimal without trailing zeros."""
    whole, rest = divmod(us, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")
