"""The other side, in this process: a system that does what it is asked, and counts how often."""

from __future__ import annotations

import threading
from typing import Any

from ..outcomes import Several


class CountingWorld:
    """A foreign system of a test: it keeps every effect that ever happened, so that "at most once" is a number.

    Meaning: `do` adds one effect each time it is called, as a system without keys does; with `honours_keys` a key that
    it has seen gives the first effect again. It outlives `Harness.kill`, as other people's systems do. Thread-safe.
    Shapes: an effect is ``{"id": "sheet-1", "kind": "sheet", "key": "3f…", …}`` with the data that it was given.
    """

    def __init__(self, *, honours_keys: bool = False) -> None:
        self._honours_keys = honours_keys
        self._lock = threading.Lock()
        self._effects: list[dict[str, Any]] = []

    def do(self, kind: str, /, *, key: str | None = None, **data: Any) -> dict[str, Any]:
        """Make an effect happen, and return it: the reply of the other system."""
        with self._lock:
            if self._honours_keys and key is not None:
                for effect in self._effects:
                    if effect["key"] == key and effect["kind"] == kind:
                        return dict(effect)
            number = sum(effect["kind"] == kind for effect in self._effects) + 1
            effect = {**data, "id": f"{kind}-{number}", "kind": kind, "key": key}
            self._effects.append(effect)
            return dict(effect)

    def clear(self) -> None:
        """Forget everything: the world as it was before the first effect."""
        with self._lock:
            self._effects.clear()

    def find(self, idempotency_key: str) -> dict[str, Any] | Several | None:
        """What happened under this key: usable as it stands as a step's `query`. None: nothing; more than one: Several."""
        found = [effect for effect in self.all() if effect["key"] == idempotency_key]
        if len(found) > 1:
            return Several(found)
        return found[0] if found else None

    def get(self, reference: str) -> dict[str, Any] | None:
        """The effect of this reference, its ``id``, or None."""
        return next((effect for effect in self.all() if effect["id"] == reference), None)

    def all(self, kind: str | None = None, /, **data: Any) -> list[dict[str, Any]]:
        """All effects in the order in which they happened; of one kind, or with these data."""
        with self._lock:
            return [
                dict(effect)
                for effect in self._effects
                if kind in (None, effect["kind"]) and all(effect.get(name) == value for name, value in data.items())
            ]

    def count(self, kind: str | None = None, /, **data: Any) -> int:
        """How many effects there are: of one kind, or with these data."""
        return len(self.all(kind, **data))

    def doubled(self) -> dict[str, int]:
        """The keys under which more happened than one effect, with how many. Empty: no write landed twice."""
        counts: dict[str, int] = {}
        for effect in self.all():
            if effect["key"] is not None:
                counts[effect["key"]] = counts.get(effect["key"], 0) + 1
        return {key: count for key, count in counts.items() if count > 1}
