"""The canonical form: one text per value, the same in every process, and the digests over it.

``c14n:1`` is JSON after the manner of RFC 8785: keys in the order of their UTF-16 code units, no white space, as few
escapes as JSON allows, numbers as ECMAScript writes them. It goes beyond RFC 8785 in three points:

- an int of any size is written exactly; a float of 2**53 and more always has an exponent (``9.007199254740992e+15``), so
  that it comes back as a float and never meets the int of the same digits;
- what JSON has no word for is an object with one key that begins with ``$`` (the table in `encode`);
- a dict that has such a key itself is wrapped as ``{"$map": {…}}``, so that nobody's data can pass for a tag.

What has no form is refused (`NotCanonical`); nothing is ever stored by `repr`, `str` or pickle.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
from binascii import a2b_base64
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring
from json.scanner import make_scanner
from typing import Any, Final, NoReturn, cast

from .canonical_plain import plain
from .canonical_writer import CHUNK, Writer
from .errors import NotCanonical, UsageError

FORMAT: Final = "c14n:1"
"""The name of this form; stored with each row, so that an older form stays readable."""

# ---------------------------------------------------------------- encode


def encode(value: object, *, where: str = "value") -> str:
    """Write a value in its canonical form.

    Meaning: equal values have equal text, whatever the order of their keys, the sharing of their parts, the spelling of
    a number (``1`` and ``1.0``) or the zone in which an instant is given; a bool is not a number, None is not missing.
    Text is never normalised: two Unicode spellings are two values. Nor is the exponent of a Decimal: ``Decimal("1.0")``
    and ``Decimal("1.00")`` differ, because another system may be shown those digits.

    Shapes: None, bool, int, float, str, list or tuple, dict with str keys, and

    - ``{"$decimal":"1.00"}``, ``{"$bytes":"AAE="}`` (also bytearray), ``{"$uuid":"…"}``
    - ``{"$date":"2026-11-28"}``, ``{"$time":"10:00:00"}``, ``{"$timedelta":1500000}`` (microseconds)
    - ``{"$datetime":"2026-11-28T10:00:00Z"}`` for an instant, ``{"$datetime_naive":"2026-11-28T10:00:00"}`` without zone
    - ``{"$enum":…}`` holds the member's value, ``{"$object":{…}}`` the fields of a dataclass or pydantic model

    Raises: `NotCanonical`, which names the place (``params.lines[3].amount``, beginning with `where`) and never shows the
    value: NaN, infinity, a lone surrogate, a key that is not a str, a set, a cycle, more than 200 levels, another type.

    Source: RFC 8785; ECMA-262, Number::toString.
    """
    text = plain(value)
    if text is not None:
        return text
    writer = Writer(where)
    try:
        writer.write(value)
    except RecursionError:
        writer.refuse("nested deeper than the call stack still allows", "flatten the value")
    return "".join(writer.out)


# ---------------------------------------------------------------- decode


def decode(text: str, start: int = 0) -> Any:
    """Read a canonical text back, from a place in it on.

    Shapes: numbers, dates and the other scalars have their types again; an enum is its value, a dataclass or model a dict,
    a tuple a list. What an annotation says beyond that, `restore.restorer` gives back.

    Raises: `NotCanonical` for text that `encode` did not write (where that shows at no cost; this is no validator).
    """
    try:
        try:
            tree, end = _scan(text, start)
        except ValueError:  # an int with more digits than the interpreter reads by itself, or no JSON
            tree, end = _scan_any_size(text, start)
        if end != len(text):
            raise ValueError("more text after the value")
        # A quote inside a string is escaped: these characters are the beginning of a tag, and nothing else.
        return _revive(tree) if '{"$' in text else tree
    except (ArithmeticError, AttributeError, KeyError, RecursionError, StopIteration, TypeError, ValueError) as error:
        hint = f"it was damaged, or written in another form than {FORMAT}"
        raise NotCanonical(f"this text is not in canonical form: {type(error).__name__}: {error}", hint=hint) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _int_of_any_size(digits: str) -> int:
    if len(digits) <= CHUNK:
        return int(digits)
    number = 0
    for chunk in re.findall(f"[0-9]{{1,{CHUNK}}}", digits):
        number = number * 10 ** len(chunk) + int(chunk)
    return -number if digits.startswith("-") else number


_scan: Final = make_scanner(cast(Any, json.JSONDecoder(parse_constant=_no_constant)))
_scan_any_size: Final = make_scanner(cast(Any, json.JSONDecoder(parse_constant=_no_constant, parse_int=_int_of_any_size)))


def _revive(node: Any) -> Any:
    # From the top down: what is inside "$map" and "$object" is somebody's dict, whatever its keys look like.
    if type(node) is list:
        return [_revive(item) for item in node]
    if type(node) is not dict:
        return node
    if len(node) == 1:
        ((tag, content),) = node.items()
        if tag[:1] == "$":
            return _REVIVERS[tag](content)
    return _revive_members(node)


def _revive_members(node: dict[str, Any]) -> dict[str, Any]:
    return {key: _revive(item) for key, item in node.items()}


def _revive_decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def _revive_uuid(text: str) -> Any:
    from uuid import UUID

    return UUID(text)


_REVIVERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$bytes": a2b_base64,
    "$date": dt.date.fromisoformat,
    "$datetime": dt.datetime.fromisoformat,
    "$datetime_naive": dt.datetime.fromisoformat,
    "$decimal": _revive_decimal,
    "$enum": _revive,
    "$map": _revive_members,
    "$object": _revive_members,
    "$time": dt.time.fromisoformat,
    "$timedelta": lambda microseconds: dt.timedelta(microseconds=microseconds),
    "$uuid": _revive_uuid,
}

# ---------------------------------------------------------------- parse


def parse(text: str, *, where: str = "input") -> Any:
    """Read JSON that a person typed: plain data, in which ``{"$date": …}`` is a dict like any other.

    Raises: `UsageError` with line and column: no JSON, a key written twice in one object, NaN, Infinity, a number too
    large for a float, a lone surrogate. Nothing is guessed.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _unreadable(text, error.pos, where, error.msg) from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply", hint="flatten the value") from None
    keys: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        fault = _fault_of(token, keys)
        if fault:
            raise _unreadable(text, token.start(), where, fault)
    return value


def _unreadable(text: str, at: int, where: str, what: str) -> UsageError:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return UsageError(f"{where}: line {line}, column {column}: {what}", hint="write it as strict JSON", line=line, column=column)


_DECODER: Final = json.JSONDecoder(parse_int=_int_of_any_size)  # it takes NaN and repeated keys: `_fault_of` finds them
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

# A string and the colon that makes it a key, a brace, or a bare word. The text has been read as JSON before.
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}]|[^\s{}\[\]:,"]+')


def _fault_of(token: re.Match[str], keys: list[set[str]]) -> str | None:
    word = token.group()
    if word == "{":
        keys.append(set())
    elif word == "}":
        keys.pop()
    elif quoted := token.group(1):
        string: str = json.loads(quoted)
        if _SURROGATE.search(string):
            return "a lone surrogate is no text"
        if token.group(2):
            if string in keys[-1]:
                return f"the key {quoted} is written twice in one object"
            keys[-1].add(string)
    elif word in ("NaN", "Infinity", "-Infinity"):
        return f"{word} is no JSON"
    elif word[-1].isdigit() and not word.lstrip("-").isdigit() and math.isinf(float(word)):
        return "the number is too large for a float; write it as text"
    return None


# ---------------------------------------------------------------- digests


def input_hash(namespace: bytes, text: str) -> bytes:
    """Digest a canonical text, salted by the store's namespace: 32 bytes.

    Meaning: it tells whether two params are the same; who does not know the namespace cannot try out likely params on it.
    """
    digest = _keyed(namespace, b"doubtless.input1").copy()
    digest.update(text.encode())
    return digest.digest()


def idempotency_key(namespace: bytes, task_id: str, path: str, step_name: str, text: str, generation: int) -> bytes:
    """Make the key of one intent: 32 bytes, the same whenever the same step is at the same place with the same params.

    Meaning: a keyed digest over the canonical array of a version tag, the ids, the generation and the params (`text`:
    without volatile and secret ones). It holds no data of a person that could be read or tried out.
    """
    place = f"{_quoted(task_id)},{encode_basestring(path)},{_quoted(step_name)}"
    digest = _keyed(namespace, b"doubtless.key.1").copy()
    digest.update(f"{_KEY_HEAD}{place},{generation},{text}]".encode())
    return digest.digest()


_KEY_HEAD: Final = f'["key:1","{FORMAT}",'
_quoted = lru_cache(maxsize=256)(encode_basestring)
"""Task ids and step names come again and again."""


@lru_cache(maxsize=16)
def _keyed(namespace: bytes, purpose: bytes) -> hashlib.blake2b:
    """A keyed digest of nothing yet: copying it costs half of making it."""
    key = namespace if len(namespace) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.sha256(namespace).digest()
    return hashlib.blake2b(digest_size=32, key=key, person=purpose)


def content_hash(data: bytes) -> bytes:
    """Digest stored content: SHA-256, 32 bytes; what a ``sha256:`` ref names."""
    return hashlib.sha256(data).digest()
