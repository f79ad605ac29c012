"""Business keys: the template that a step declares as ``once="refund:{order_id}:{line}"``, and the key of one call.

The key is a name of the effect itself, shared by all steps, tasks and agents of a store. So a value must always be
spelled in the same way: text as it is, whole numbers, dates, decimals; whatever has more spellings than one is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from .errors import UsageError

LONGEST: Final = 500
"""Characters that a key may have: it is an index entry and a line that a person reads."""


class Template(NamedTuple):
    """A template as written, and its parts: each a literal text and the param that follows it, or None at the end."""

    text: str
    parts: tuple[tuple[str, str | None], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The params that it names, in their order."""
        return tuple(name for _, name in self.parts if name is not None)

    def key(self, params: Mapping[str, Any], step: str) -> str:
        """The key of a call with these params. Raises: UsageError for a value without one spelling; nothing is written."""
        found = []
        for literal, name in self.parts:
            found.append(literal)
            if name is not None:
                found.append(spelled(params.get(name), step, name))
        key = "".join(found)
        if len(key) > LONGEST:
            raise UsageError(
                f"step {step}: its business key has {len(key)} characters, {LONGEST} are allowed; nothing was written",
                hint="name params that identify the effect, not texts",
                step=step,
            )
        return key


def parse(text: str) -> tuple[Template, list[str]]:
    """Read a template; the faults are half-sentences, and what is faulty is left out."""
    from string import Formatter

    parts: list[tuple[str, str | None]] = []
    faults: list[str] = []
    try:
        found = list(Formatter().parse(text))
    except ValueError as error:
        return Template(text, ((text, None),)), [f"is {text!r}, which is no template: {error}"]
    for literal, name, spec, conversion in found:
        if name is None:
            parts.append((literal, None))
        elif spec or conversion:
            faults.append(f"names {{{name}}} with a format: say {{{name}}}; a key has one spelling")
        elif not name.isidentifier():
            faults.append(f"names {{{name}}}, which is no parameter of its own: attributes and items are not looked into")
        else:
            parts.append((literal, name))
    return Template(text, tuple(parts)), faults


def unfit_fields(template: Template, accepts: Collection[str], hidden: Mapping[str, Collection[str]]) -> list[str]:
    """Faults of the fields: those that are no params, and those that are hidden (volatile, secret), as half-sentences."""
    faults = []
    for name in dict.fromkeys(template.fields):
        if name not in accepts:
            faults.append(f"names {name!r}, which is no parameter of it")
        for option, names in hidden.items():
            if name in names:
                faults.append(f"names {name!r}, which is {option}: a key holds what identifies the effect, in plain text")
    return faults


def spelled(value: Any, step: str, name: str) -> str:
    """The one spelling of a value. Raises: UsageError."""
    kind = type(value)
    if kind is str:
        text: str = value
        if "\0" not in text:  # which PostgreSQL cannot hold
            return text
    if kind is int and value.bit_length() < LONGEST * 3:
        return str(value)
    if kind.__module__ in ("datetime", "decimal", "_decimal", "_pydatetime", "_pydecimal"):
        from datetime import date
        from decimal import Decimal

        if kind is date:
            return str(value.isoformat())
        if kind is Decimal and value.is_finite() and abs(value.adjusted()) < LONGEST:
            text = format(value, "f")
            text = text.rstrip("0").rstrip(".") if "." in text else text
            return "0" if value == 0 else text
    raise UsageError(
        f"step {step}: its business key takes {name}, which is {_described(value)}; nothing was written",
        hint="a key is made of texts, whole numbers, dates and decimals: pass one of them as a param of its own",
        step=step,
        param=name,
    )


def _described(value: Any) -> str:
    """What came, by its type and never by its content."""
    name = type(value).__name__
    if name in ("int", "Decimal"):
        return f"a {name} that is too long or no number"
    return "None" if value is None else "a text with a NUL in it" if name == "str" else f"a {name}"
