"""The long road of `canonical.encode`: writes every value that has a canonical form, and names the place of one that has not.

One function per type; `_FORMS` is the table. Types that need an import (Decimal, UUID) or belong to others (pydantic) are
recognised without importing anything: whoever has made such a value has loaded its module.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from .errors import NotCanonical

DEPTH: Final = 200
"""Levels of containers that a value may have."""

CHUNK: Final = 600
"""Digits of an int that are converted at once; 640 is the lowest limit that an interpreter may set for that."""

_EXACT_FLOATS: Final = 2.0**53  # below it an integral float and an int of the same digits are the same number
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class Writer:
    """Writes any value that has a form; knows the place where it is, for the refusal."""

    __slots__ = ("open", "out", "root", "trail")

    def __init__(self, root: str) -> None:
        self.root = root
        self.out: list[str] = []
        self.trail: list[str | int] = []
        self.open: set[int] = set()

    def write(self, value: Any) -> None:
        kind = type(value)
        form = _FORMS.get(kind) or _form_of(kind)
        if form is None:
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            if isinstance(value, (set, frozenset)):
                self.refuse(f"a {name} has no order and so no canonical form", "pass a sorted list")
            self.refuse(f"a value of type {name} has no canonical form", "pass plain data, a dataclass or a pydantic model")
        form(self, value)

    def enter(self, container: object) -> None:
        if id(container) in self.open:
            self.refuse("the value contains itself", "pass a tree; refer to other parts by an id")
        if len(self.open) >= DEPTH:
            self.refuse(f"nested deeper than {DEPTH} levels", "flatten the value")
        self.open.add(id(container))

    def leave(self, container: object) -> None:
        self.open.discard(id(container))

    def array(self, owner: object, items: Iterable[object]) -> None:
        self.enter(owner)
        out = self.out
        separator = "["
        for index, item in enumerate(items):
            out.append(separator)
            separator = ","
            self.trail.append(index)
            self.write(item)
            self.trail.pop()
        out.append("]" if separator == "," else "[]")
        self.leave(owner)

    def members(self, owner: object, fields: Mapping[str, object]) -> None:
        self.enter(owner)
        out = self.out
        separator = "{"
        for key in sorted(fields) if all(map(str.isascii, fields)) else sorted(fields, key=_utf16):
            out.append(separator)
            separator = ","
            self.trail.append(key)
            _write_str(self, key)
            out.append(":")
            self.write(fields[key])
            self.trail.pop()
        out.append("}" if separator == "," else "{}")
        self.leave(owner)

    def refuse(self, what: str, hint: str) -> NoReturn:
        steps = [f"[{s}]" if type(s) is int else f".{s}" if str(s).isidentifier() else f"[{json.dumps(s)}]" for s in self.trail]
        if len(steps) > 12:
            steps[6:-3] = ["…"]
        place = self.root + "".join(steps)
        raise NotCanonical(f"{place}: {what}", hint=hint, where=place)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _write_str(writer: Writer, value: str) -> None:
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            writer.refuse("text with a lone surrogate has no canonical form", "decode it with errors='replace', or pass bytes")
    writer.out.append(encode_basestring(text))


def _write_int(writer: Writer, value: int) -> None:
    writer.out.append(_digits(int.__int__(value)))


def _digits(number: int) -> str:
    if number.bit_length() < 3 * CHUNK:
        return int.__repr__(number)
    chunks: list[str] = []
    rest = abs(number)
    while rest:
        rest, chunk = divmod(rest, 10**CHUNK)
        chunks.append(str(chunk).zfill(CHUNK))
    return ("-" if number < 0 else "") + "".join(reversed(chunks)).lstrip("0")


def _write_float(writer: Writer, value: float) -> None:
    number = float.__float__(value)
    if not math.isfinite(number):
        writer.refuse(f"{'NaN' if math.isnan(number) else 'infinity'} has no canonical form", "pass None or text")
    writer.out.append(_float_text(number))


def _float_text(number: float) -> str:
    size = abs(number)
    if size < _EXACT_FLOATS and number.is_integer():
        return str(int(number))  # -0.0 is 0
    if 1e-4 <= size < _EXACT_FLOATS:
        return repr(number)
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(size).partition("e")
    if not exponent:  # from 2**53 up to 1e16, which Python still writes out
        whole = mantissa.removesuffix(".0")
        digits = whole.rstrip("0")
        mantissa, exponent = (f"{digits[0]}.{digits[1:]}" if digits[1:] else digits), str(len(whole) - 1)
    if size >= _EXACT_FLOATS:
        return f"{sign}{mantissa}e+{int(exponent)}"
    if size >= 1e-6:  # ECMAScript turns to exponents later than Python
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{mantissa.replace('.', '')}"
    return f"{sign}{mantissa}e{int(exponent)}"


def _write_dict(writer: Writer, value: dict[Any, object]) -> None:
    for key in dict.keys(value):
        if not isinstance(key, str) or isinstance(key, Enum):
            writer.refuse(f"a dict key of type {type(key).__qualname__} has no canonical form", "make the keys str")
    fields = {str.__str__(key): item for key, item in dict.items(value)}
    if len(fields) != len(value):
        writer.refuse("two keys of a dict are the same text", "make the keys plain str")
    if any(key.startswith("$") for key in fields):
        writer.out.append('{"$map":')
        writer.members(value, fields)
        writer.out.append("}")
    else:
        writer.members(value, fields)


def _write_dataclass(writer: Writer, value: Any) -> None:
    from dataclasses import fields  # loaded already, by whoever wrote the class

    _write_fields(writer, value, [field.name for field in fields(value)])


def _write_pydantic(writer: Writer, value: Any) -> None:
    kind = type(value)
    if getattr(kind, "__pydantic_root_model__", False):
        return writer.write(value.root)
    for name, field in kind.__pydantic_fields__.items():
        if field.exclude:  # dropping it would make two different models equal; storing it is what its author forbids
            writer.trail.append(name)
            writer.refuse("a field excluded from serialisation cannot be stored", "pass the other fields, without the model")
    _write_fields(writer, value, [*kind.__pydantic_fields__, *(value.__pydantic_extra__ or ())])


def _write_fields(writer: Writer, value: object, names: list[str]) -> None:
    fields = {}
    for name in names:
        fields[name] = getattr(value, name, _NOT_SET)
        if fields[name] is _NOT_SET:
            writer.trail.append(name)
            writer.refuse("the field has no value", "set it before the object is passed on")
    writer.out.append('{"$object":')
    writer.members(value, fields)
    writer.out.append("}")


_NOT_SET: Final = object()


def _write_enum(writer: Writer, value: Enum) -> None:
    writer.out.append('{"$enum":')
    writer.write(value._value_)
    writer.out.append("}")


def _tagged(tag: str, text_of: Callable[[Any], str]) -> Callable[[Writer, Any], None]:
    def write(writer: Writer, value: Any) -> None:
        try:
            text = text_of(value)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            writer.refuse(f"this {type(value).__qualname__} has no canonical form: {error}", "pass text or plain data")
        writer.out.append(f'{{"${tag}":{text}}}')

    return write


def _decimal_text(value: Any) -> str:
    if not value.is_finite():
        raise ValueError("it is not finite")
    if value.is_zero():
        value = value.copy_abs()
    return f'"{sys.modules["decimal"].Decimal.__str__(value).upper()}"'  # the context of a thread may ask for a small "e"


_PARTS: Final[dict[type, tuple[str, ...]]] = {
    dt.datetime: ("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo"),
    dt.date: ("year", "month", "day"),
    dt.time: ("hour", "minute", "second", "microsecond", "tzinfo"),
    dt.timedelta: ("days", "seconds", "microseconds"),
}


def _exactly(value: Any, base: type) -> Any:
    """The value as an instance of its base class, unless it is more than that can say (nanoseconds, not-a-time)."""
    if type(value) is base:
        return value
    plain: Any = base(*[getattr(value, part) for part in _PARTS[base]])
    if hasattr(plain, "fold"):
        plain = plain.replace(fold=value.fold)
    is_all = value == plain  # not !=, which a subclass may have forgotten
    if not is_all:
        raise ValueError(f"a {base.__qualname__} does not hold all of it")
    return plain


def _instant_text(value: dt.datetime) -> str:
    return f'"{_exactly(value, dt.datetime).astimezone(dt.UTC).replace(tzinfo=None).isoformat()}Z"'


def _naive_text(value: dt.datetime) -> str:
    return f'"{_exactly(value, dt.datetime).replace(tzinfo=None).isoformat()}"'


_write_instant: Final = _tagged("datetime", _instant_text)
_write_naive: Final = _tagged("datetime_naive", _naive_text)


def _write_datetime(writer: Writer, value: dt.datetime) -> None:
    (_write_naive if value.utcoffset() is None else _write_instant)(writer, value)


def _time_text(value: dt.time) -> str:
    if value.tzinfo is not None:
        raise ValueError("a time of day with a zone is no instant")
    return f'"{_exactly(value, dt.time).isoformat()}"'


_write_decimal: Final = _tagged("decimal", _decimal_text)
_write_uuid: Final = _tagged("uuid", lambda value: f'"{sys.modules["uuid"].UUID.__str__(value)}"')

_FORMS: Final[dict[type, Callable[[Writer, Any], None]]] = {
    type(None): lambda writer, _: writer.out.append("null"),
    bool: lambda writer, value: writer.out.append("true" if value else "false"),
    str: _write_str,
    int: _write_int,
    float: _write_float,
    dict: _write_dict,
    list: lambda writer, value: writer.array(value, list.__iter__(value)),
    tuple: lambda writer, value: writer.array(value, tuple.__iter__(value)),
    bytes: _tagged("bytes", lambda value: f'"{b2a_base64(value, newline=False).decode()}"'),
    bytearray: _tagged("bytes", lambda value: f'"{b2a_base64(value, newline=False).decode()}"'),
    dt.datetime: _write_datetime,
    dt.date: _tagged("date", lambda value: f'"{_exactly(value, dt.date).isoformat()}"'),
    dt.time: _tagged("time", _time_text),
    dt.timedelta: _tagged("timedelta", lambda value: str(_exactly(value, dt.timedelta) // _MICROSECOND)),
}


def _form_of(kind: type) -> Callable[[Writer, Any], None] | None:
    """The form of a type that `_FORMS` does not name. Models come before bases: a dataclass may extend dict or str."""
    if issubclass(kind, Enum):
        return _write_enum
    if hasattr(kind, "__dataclass_fields__"):
        return _write_dataclass
    if hasattr(kind, "__pydantic_fields__"):
        return _write_pydantic
    # Who has made a Decimal or a UUID has loaded its module; nobody else pays for the import.
    for module, name, form in (("decimal", "Decimal", _write_decimal), ("uuid", "UUID", _write_uuid)):
        if module in sys.modules and issubclass(kind, getattr(sys.modules[module], name)):
            return form
    return next((form for base, form in _FORMS.items() if issubclass(kind, base)), None)
