"""A business key's template: what it may name, and the one spelling of each value."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest

from doubtless.errors import UsageError
from doubtless.once import LONGEST, parse, unfit_fields


def key(text: str, **params: Any) -> str:
    template, faults = parse(text)
    assert faults == []
    return template.key(params, "pay")


class Colour(enum.StrEnum):
    RED = "red"


class Number(int):
    pass


@pytest.mark.parametrize(
    ("value", "spelling"),
    [
        ("o1", "o1"),
        ("", ""),
        (" O\n1 \u00e9", " O\n1 \u00e9"),
        ("{x}", "{x}"),
        (0, "0"),
        (-7, "-7"),
        (10**30, "1" + "0" * 30),
        (dt.date(2026, 11, 28), "2026-11-28"),
        (Decimal("1.50"), "1.5"),
        (Decimal("1.5"), "1.5"),
        (Decimal("100"), "100"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.00"), "0"),
        (Decimal("1e-3"), "0.001"),
        (Decimal("12345678901234567890123456789012345.10"), "12345678901234567890123456789012345.1"),
    ],
)
def test_each_value_has_one_spelling(value: Any, spelling: str) -> None:
    assert key("k:{v}!", v=value) == f"k:{spelling}!"


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1.5, b"x", [1], {"a": 1}, Colour.RED, Number(3), uuid.UUID(int=1), dt.datetime(2026, 11, 28), dt.time(9),
        Decimal("NaN"), Decimal("Infinity"), Decimal("1E+999999"), Decimal("1E-999999"), 10**5000, object(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_with_more_than_one_spelling_or_none_is_refused_and_not_shown(value: Any) -> None:
    with pytest.raises(UsageError, match=r"step pay: its business key takes v, which is .*; nothing was written") as caught:
        key("k:{v}", v=value)
    assert "0x" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_key_is_as_long_as_a_line_at_most() -> None:
    assert len(key("{v}", v="x" * LONGEST)) == LONGEST
    with pytest.raises(UsageError, match="501 characters"):
        key("{v}", v="x" * (LONGEST + 1))


def test_braces_that_are_doubled_are_text_and_a_field_may_come_twice() -> None:
    assert key("{{a}}{b}-{b}", b=1) == "{a}1-1"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{a", "is no template"),
        ("a}", "is no template"),
        ("{}", "names {}, which is no parameter of its own"),
        ("{0}", "no parameter of its own"),
        ("{a.b}", "no parameter of its own: attributes and items are not looked into"),
        ("{a[0]}", "no parameter of its own"),
        ("{a!r}", "names {a} with a format"),
        ("{a:>8}", "names {a} with a format"),
    ],
)
def test_a_template_names_params_and_nothing_else(text: str, fault: str) -> None:
    template, faults = parse(text)
    assert len(faults) == 1 and fault in faults[0]
    assert template.text == text


def test_a_field_that_is_no_param_or_is_hidden_is_a_fault() -> None:
    template, _ = parse("{a}:{b}:{c}:{a}:{d}")
    assert [f.split(":")[0] for f in unfit_fields(template, {"b", "c", "d"}, {"volatile": {"b"}, "secret": {"c"}})] == [
        "names 'a', which is no parameter of it",
        "names 'b', which is volatile",
        "names 'c', which is secret",
    ]
