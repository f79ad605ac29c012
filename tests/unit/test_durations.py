"""Durations: read without loss, refused with what to write instead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.durations import LONGEST, BadDuration, parse_duration, show_duration
from doubtless.errors import UsageError

S = 1_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("PT10M", 600 * S),
        ("PT0.5S", 500_000),
        ("PT0,5S", 500_000),
        ("PT1.5H", 5400 * S),
        ("P1DT2H", 26 * 3600 * S),
        ("P2W", 14 * 86400 * S),
        ("P1W2D", 9 * 86400 * S),
        ("PT1H30M15S", 5415 * S),
        ("+PT1S", S),
        (" PT1S ", S),
        ("PT0.000001S", 1),
        ("PT9007199254.740993S", 9007199254740993),
        (30, 30 * S),
        (0.25, 250_000),
        (timedelta(minutes=2, microseconds=3), 120 * S + 3),
    ],
)
def test_a_duration_is_read_to_the_microsecond(text: Any, us: int) -> None:
    assert parse_duration(text) == us


def test_a_fraction_finer_than_a_microsecond_is_rounded_to_the_nearest() -> None:
    assert parse_duration("PT0.0000014S") == 1
    assert parse_duration("PT0.0000015S") == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("P1M", "P1M is counted by a calendar month, whose length differs (say P30D, or PT1M for minutes)"),
        ("P10M", "say P300D, or PT10M for minutes"),
        ("P1Y", "P1Y is counted by a calendar year, whose length differs (say P365D)"),
        ("P1Y6M", "say P545D"),
        ("P1Y2W3D", "say P382D"),
        ("P0.01M", "a calendar month"),
        ("P1MT5S", "say P30DT5S"),
    ],
)
def test_calendar_durations_are_refused_with_the_days_to_say_instead(text: str, says: str) -> None:
    with pytest.raises(BadDuration) as caught:
        parse_duration(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10m", "say PT10M"),
        ("10 min", "say PT10M"),
        ("2 hours", "say PT2H"),
        ("3d", "say P3D"),
        ("30", "say PT30S"),
        ("pt10m", "say PT10M"),
        ("soon", "'soon' is not a duration (say it as ISO 8601"),
        ("", "'' is not a duration"),
        ("P", "'P' is not a duration"),
        ("PT", "'PT' is not a duration"),
        ("P1DT", "'P1DT' is not a duration"),
        ("P1H", "'P1H' is not a duration"),
        ("PT1S1M", "'PT1S1M' is not a duration"),
        ("PT١٠M", "is not a duration"),
        ("PT10M\nPT10M", "is not a duration"),
        ("PT1.5H30M", "only the last number may have a fraction"),
        ("x" * 500, "x" * 40 + "…"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str, says: str) -> None:
    with pytest.raises(BadDuration) as caught:
        parse_duration(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["-PT5M", -1, -0.5, timedelta(seconds=-1), pytest.param(-(10**5000), id="huge")])
def test_a_negative_duration_is_refused(text: Any) -> None:
    for zero in (False, True):
        with pytest.raises(BadDuration, match="is negative"):
            parse_duration(text, zero=zero)


@pytest.mark.parametrize("text", ["PT0S", "P0D", 0, 0.0, 1e-9, timedelta(0)])
def test_zero_is_refused_unless_it_has_a_meaning(text: Any) -> None:
    with pytest.raises(BadDuration, match="no time at all"):
        parse_duration(text)
    assert parse_duration(text, zero=True) == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    with pytest.raises(BadDuration, match="is not a duration"):
        parse_duration(number)


@pytest.mark.parametrize("value", [True, False, None, [], b"PT1S", 1j])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(BadDuration):
        parse_duration(value)


@pytest.mark.parametrize("value", ["P365001D", "P999999999999999999D", pytest.param(10**5000, id="huge"), 1e300])
def test_more_than_a_thousand_years_is_refused_in_a_short_line(value: Any) -> None:
    with pytest.raises(BadDuration, match="longer than a thousand years") as caught:
        parse_duration(value)
    assert len(str(caught.value)) < 200
    assert parse_duration("P365000D") == LONGEST


def test_a_bad_duration_is_a_usage_error_with_its_own_code() -> None:
    assert issubclass(BadDuration, UsageError)
    assert BadDuration.code == "bad_duration"


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (0, "0 s"),
        (1, "1 µs"),
        (1_500, "1.5 ms"),
        (250_000, "250 ms"),
        (S, "1 s"),
        (2 * S, "2 s"),
        (1_500_000, "1.5 s"),
        (60 * S, "1 min"),
        (600 * S, "10 min"),
        (5400 * S, "1 h 30 min"),
        (26 * 3600 * S, "1 d 2 h"),
        (14 * 86400 * S, "14 d"),
        (60 * S + 1, "1 min 0.000001 s"),
        (-2 * S, "-2 s"),
    ],
)
def test_durations_are_shown_in_words(us: int, words: str) -> None:
    assert show_duration(us) == words


_SHOWN = {"d": 86400 * S, "h": 3600 * S, "min": 60 * S, "s": S, "ms": 1000, "µs": 1}


@given(st.integers(min_value=1, max_value=LONGEST))
def test_what_is_shown_says_all_of_it(us: int) -> None:
    from fractions import Fraction

    words = show_duration(us).split()
    assert sum(Fraction(number) * _SHOWN[unit] for number, unit in zip(words[::2], words[1::2], strict=True)) == us


@given(st.integers(min_value=1, max_value=LONGEST))
def test_a_timedelta_and_its_iso_form_are_the_same_duration(us: int) -> None:
    whole, rest = divmod(us, S)
    assert parse_duration(f"PT{whole}.{rest:06d}S") == parse_duration(timedelta(microseconds=us)) == us
