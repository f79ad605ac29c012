"""How amounts are written: the currency decides, so that ``1,234`` and ``1.234`` are never a guess."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple


class Notation(NamedTuple):
    """The thousands separator, the decimal separator and the number of decimals of one currency."""

    thousands: str
    point: str
    decimals: int


NOTATIONS: dict[str, Notation] = {
    "CNY": Notation(",", ".", 2),
    "EUR": Notation(".", ",", 2),
    "GBP": Notation(",", ".", 2),
    "JPY": Notation(",", ".", 0),
    "USD": Notation(",", ".", 2),
}

_LONGEST = 15  # digits before the point; longer is a slip of the keyboard, not an amount


def _pattern(notation: Notation) -> re.Pattern[str]:
    thousands, point = re.escape(notation.thousands), re.escape(notation.point)
    grouped_or_plain = rf"(?:[0-9]{{1,3}}(?:{thousands}[0-9]{{3}})+|[0-9]{{1,{_LONGEST}}})"
    fraction = rf"(?:{point}[0-9]{{{notation.decimals}}})?" if notation.decimals else ""
    return re.compile(rf"-?{grouped_or_plain}{fraction}")


_PATTERNS = {currency: _pattern(notation) for currency, notation in NOTATIONS.items()}


def parse_amount(text: str, currency: str) -> Decimal:
    """Return the exact amount that `text` means in `currency`.

    Shapes: ``parse_amount("1.234,50", "EUR") == parse_amount("1,234.50", "USD") == Decimal("1234.50")``.
    Raises: ValueError, with what was expected; ``"1,234.50"`` in EUR is refused, not read as 1.2345.
    """
    notation = NOTATIONS[currency]
    if _PATTERNS[currency].fullmatch(text) is None:
        raise ValueError(f"not an amount in {currency}, which is written like {write_amount(_sample(notation), currency)}")
    return Decimal(text.replace(notation.thousands, "").replace(notation.point, "."))


def write_amount(amount: Decimal, currency: str, *, grouped: bool = True) -> str:
    """Return `amount` as people of `currency` write it: ``1.234,50`` for euros."""
    notation = NOTATIONS[currency]
    english = f"{amount:,.{notation.decimals}f}" if grouped else f"{amount:.{notation.decimals}f}"
    swap = {",": notation.thousands, ".": notation.point}
    return "".join(swap.get(sign, sign) for sign in english)


def plain(amount: Decimal, currency: str) -> str:
    """Return `amount` as machines exchange it: ``"1234.50"``, with the currency's decimals."""
    return f"{amount:.{NOTATIONS[currency].decimals}f}"


def _sample(notation: Notation) -> Decimal:
    return Decimal("1234.50") if notation.decimals else Decimal(1234)
