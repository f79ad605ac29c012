"""The short road of `canonical.encode`: values of plain types, which is nearly all of them; None for every other.

Small dicts are written here, in one walk that looks at the types as it goes: for what a step is usually called with the
standard library's encoder takes longer. It writes the large ones, and lists, once their types were looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring as quoted
from typing import Any, Final

from .canonical_writer import DEPTH

FEW: Final = 16
"""Of a dict with more members the standard library's encoder is faster."""

Layout = tuple[tuple[str, str], ...]
"""Names in the order of the canonical form, each with the text that stands before its value."""


class NotPlain(Exception):
    """This value has no short road."""


_NONE = (NotPlain, KeyError, RecursionError, TypeError, ValueError)
"""Why there is none. TypeError: keys of several types; ValueError: an int with more digits than the interpreter writes."""


def plain(value: object) -> str | None:
    """The canonical text of a value of plain types; None where only the long road knows it, or its refusal."""
    try:
        text = _of_dict(value, DEPTH) if type(value) is dict else _dumped(value, DEPTH)
    except _NONE:
        return None
    if '"$' not in text and (text.isascii() or not _BEYOND_PLAIN.search(text)):
        return text
    return None


def layout_of(names: Iterable[str]) -> Layout:
    """What `plain_fields` needs to know of the names of a signature's params."""
    ordered = sorted(names, key=lambda name: name.encode("utf-16-be"))
    return tuple((name, f"{',' if n else '{'}{quoted(name)}:") for n, name in enumerate(ordered))


def plain_fields(layout: Layout, values: Mapping[str, Any]) -> str | None:
    """The same text as `plain(values)`, of a dict whose keys are known; None, too, where it has others."""
    if len(values) != len(layout):
        return None
    text = ""
    try:
        for name, before in layout:
            value = values[name]
            kind = type(value)
            if kind is str:
                text = f"{text}{before}{quoted(value)}"
            elif kind is int:
                text = f"{text}{before}{value}"
            elif kind is dict:
                text = f"{text}{before}{_of_dict(value, DEPTH - 1)}"
            else:
                text = f"{text}{before}{_dumped(value, DEPTH - 1)}"
    except _NONE:
        return None
    if '"$' not in text and (text.isascii() or not _BEYOND_PLAIN.search(text)):
        return text + "}" if text else "{}"
    return None


# Surrogates are refused; characters outside the BMP may need another key order than that by code points.
_BEYOND_PLAIN: Final = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")


def _of_dict(value: Any, room: int) -> str:
    if len(value) > FEW or not room:
        return _dumped(value, room)
    text = ""
    for key in sorted(value):
        if type(key) is not str:
            raise NotPlain
        item = value[key]
        kind = type(item)
        if kind is str:
            text = f"{text},{quoted(key)}:{quoted(item)}"
        elif kind is int:
            text = f"{text},{quoted(key)}:{item}"
        elif kind is dict:
            text = f"{text},{quoted(key)}:{_of_dict(item, room - 1)}"
        else:
            text = f"{text},{quoted(key)}:{_dumped(item, room - 1)}"
    return f"{{{text[1:]}}}"


_WORDS: Final = {None: "null", True: "true", False: "false"}


def _dumped(value: object, room: int) -> str:
    if value is None or value is True or value is False:
        return _WORDS[value]
    if not _is_plain((value,), room):
        raise NotPlain
    return "".join(_dump(value, 0))


def _dumper() -> Callable[[Any, int], Iterable[str]]:
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        pure = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return lambda value, _: pure.encode(value)
    dump: Callable[[Any, int], Iterable[str]] = make(None, None, quoted, None, ":", ",", True, False, False)
    return dump


_dump: Final = _dumper()


def _is_plain(values: Iterable[object], room: int) -> bool:
    """Whether the standard library's encoder writes these values canonically (what only the text shows is asked later)."""
    for value in values:
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None:
            continue
        if kind is float:
            if not 1e-4 <= abs(value) < 1e15 or value.is_integer():  # type: ignore[arg-type, attr-defined]
                return False
        elif kind is dict:
            for key in value:  # type: ignore[attr-defined]
                if type(key) is not str:
                    return False
            if not room or not _is_plain(value.values(), room - 1):  # type: ignore[attr-defined]
                return False
        elif kind is list or kind is tuple:
            if not room or not _is_plain(value, room - 1):  # type: ignore[arg-type]
                return False
        else:
            return False
    return True
