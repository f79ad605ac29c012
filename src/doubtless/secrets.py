"""Secrets: resolvers that are stored instead of values, resolved at each send, and masked in what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .errors import UsageError

MASK = "***"
SHORTEST = 4
"""Values shorter than this many characters are not looked for: they would mask ordinary text."""


class Secret:
    """A reference to a secret value, ``Secret("env:STRIPE_KEY")``; `resolve` of the app's vault finds the value.

    Meaning: the reference is stored in the intent, never the value; at each send it is resolved anew, so a
    rotated credential changes neither the key nor the params.
    """

    __slots__ = ("ref",)

    def __init__(self, ref: str) -> None:
        scheme, colon, name = ref.partition(":") if isinstance(ref, str) else ("", "", "")
        if not (scheme and colon and name):
            raise UsageError(f"Secret({ref!r}) names no resolver", hint="write Secret('env:NAME') or Secret('file:PATH')")
        self.ref = ref

    def stored(self) -> dict[str, str]:
        """The stored form."""
        return {"$secret": self.ref}

    def __repr__(self) -> str:
        return f"Secret({self.ref!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.ref == self.ref

    def __hash__(self) -> int:
        return hash(self.ref)


JSON_DEPTH = 3
"""How many JSON texts inside each other a value is looked for in: a reply's text, quoted in an error, in the log's JSON."""


def written_forms(value: str) -> set[str]:
    """How a value may be written where it is echoed: as it is, in a repr, in a URL, and each of these in JSON."""
    from urllib.parse import quote, quote_plus

    forms = found = {value, repr(value)[1:-1], ascii(value)[1:-1], quote(value), quote(value, safe=""), quote_plus(value)}
    for _ in range(JSON_DEPTH):
        forms = {json.dumps(form, ensure_ascii=plain)[1:-1] for form in forms for plain in (False, True)}
        found = found | forms
    return found


class Vault:
    """Resolves secrets by scheme and remembers the values, so that they can be kept out of the log."""

    def __init__(self, resolvers: Mapping[str, Callable[[str], str | None]]) -> None:
        self.resolvers = dict(resolvers)
        self._known: tuple[str, ...] = ()
        self.empty = True

    def resolve(self, stored: Mapping[str, Any]) -> str:
        """The value behind a stored secret. Raises UsageError when it cannot be had: nothing was sent."""
        ref = str(stored.get("$secret", ""))
        scheme, _, name = ref.partition(":")
        resolver = self.resolvers.get(scheme)
        if resolver is None:
            known = ", ".join(sorted(self.resolvers)) or "none"
            raise UsageError(f"no resolver for the secret {ref}", hint=f"known are: {known}; Doubtless(secrets={{…}}) adds one")
        value = resolver(name)
        if value is None:
            raise UsageError(f"the secret {ref} has no value here", hint="set it in the environment of this process")
        self.remember(value)
        return value

    def remember(self, value: str) -> None:
        """Keep this value out of everything that is recorded from now on."""
        if len(value) >= SHORTEST and value not in self._known:
            self.empty = False
            self._known = tuple(sorted({*self._known, *written_forms(value)}, key=len, reverse=True))

    def mask(self, text: str) -> str:
        """The text with every known secret value replaced."""
        for value in self._known:  # the longest first: a form inside another one would leave its rest
            text = text.replace(value, MASK)
        return text

    def refuse_known(self, text: str, where: str) -> None:
        """Refuse params that carry a known secret value in the open."""
        if any(value in text for value in self._known):
            raise UsageError(
                f"step {where}: a param holds the value of a known secret; nothing was written",
                hint="name the param in secret=(…) and pass Secret('env:NAME')",
                step=where,
            )
