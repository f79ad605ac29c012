"""The outside: it takes requests, early and late, remembers keys, answers look-backs, and counts what happened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any, NamedTuple

from doubtless import Absent, AlreadyUndone, Found, NotSent, Pending, Rejected, Several, Unclear, record_handle
from doubtless.calls import Frame, current

from .kernel import SECOND, Kernel
from .scenario import KEY_WINDOW, SLOWER, TIMEOUT, Call, Write

Place = tuple[str, str]
"""Task id and path."""


class Effect(NamedTuple):
    """Something that happened outside. `number`: in the order of the whole world."""

    number: int
    place: Place
    name: str
    key: str | None
    at: int
    undoes: int | None


class World:
    """Counts effects by intent. It is never killed, and never wrong; only slow, silent or not asked."""

    def __init__(self, kernel: Kernel, *, deploys: bool = False) -> None:
        self.kernel = kernel
        self.deploys = deploys
        self.forgotten: set[str] = set()  # keys that the other side keeps for so long only
        self.effects: list[Effect] = []
        self.by_place: dict[Place, list[Effect]] = defaultdict(list)
        self.calls: Counter[Place] = Counter()
        self.looks: Counter[Place] = Counter()
        self.under_way: Counter[Place] = Counter()  # requests that may still land
        self.calling: dict[Place, list[Any]] = defaultdict(list)  # processes with a call that may still send
        self.keys: dict[str, Effect] = {}
        self.refused: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.found_undone: set[Place] = set()

    # ------------------------------------------------------------ requests

    def talk(self, write: Write, name: str, key: str | None, undoes: dict[str, Any] | None) -> Generator[float, None, Any]:
        """One call of a write's function, with the waits in between for its caller to make."""
        place = here()
        number = self.calls[place]
        self.calls[place] += 1
        call = write.calls[number] if number < len(write.calls) else Call()
        self.seen[f"call {call.how}"] += 1
        target = None if undoes is None else int(undoes["number"])
        if call.how in ("unsent", "refused", "busy", "raises"):
            yield call.seconds
            if call.how == "unsent":
                raise NotSent("no connection")
            if call.how == "raises":
                raise ValueError("a fault of the step")
            raise Rejected("429" if call.how == "busy" else "422", "no")
        if call.how == "slow":
            me = self.kernel.process
            self.calling[place].append(me)
            try:
                yield TIMEOUT + (call.after or 5.0)
            finally:
                self.calling[place].remove(me)
        if call.how == "handle":
            record_handle(f"handle of {place[1]}")
        landed: list[Effect] = []
        if call.how != "dropped":
            self.under_way[place] += 1
            delay = call.after if call.how == "late" else call.seconds / 2
            if call.how == "late":
                old = self.deploys and self.kernel.process.release == 0 and write.kind == "absent"
                delay = call.seconds + call.after * (SLOWER if old else 1.0)
            if self.kernel.process.release == 0 and key is not None:
                self.forgotten.add(key)
            self.kernel.at(
                self.kernel.now + round(delay * SECOND), lambda: landed.append(self._land(write, place, name, key, target))
            )
        yield call.seconds
        if call.how in ("lost", "dropped", "handle"):
            raise ConnectionResetError("the reply was lost")
        if call.how == "late":
            raise TimeoutError("no reply")
        if call.how == "hangs":
            yield TIMEOUT + 7
        return self.receipt(landed[0])

    def _land(self, write: Write, place: Place, name: str, key: str | None, undoes: int | None) -> Effect:
        self.under_way[place] -= 1
        known = self.keys.get(key or "")
        if write.kind in ("key", "window") and known is not None:
            if write.kind == "key" or key not in self.forgotten or self.kernel.now <= known.at + round(KEY_WINDOW * SECOND):
                self.seen["a key met again"] += 1
                return known
        effect = Effect(len(self.effects), place, name, key, self.kernel.now, undoes)
        self.effects.append(effect)
        self.by_place[place].append(effect)
        if key is not None:
            self.keys[key] = effect
        return effect

    def receipt(self, effect: Effect) -> dict[str, Any]:
        return {"number": effect.number, "of": effect.name}

    def read(self, calls: tuple[Call, ...]) -> Generator[float, None, Any]:
        """One call of a read's function."""
        place = here()
        number = self.calls[place]
        self.calls[place] += 1
        call = calls[number] if number < len(calls) else Call()
        self.seen[f"read {call.how}"] += 1
        yield call.seconds
        if call.how == "lost":
            raise ConnectionResetError("the reply was lost")
        if call.how == "raises":
            raise ValueError("a fault of the step")
        if call.how == "hangs":
            yield TIMEOUT + 7
        return {"seen": number}

    # ------------------------------------------------------------ being asked

    def look(self, write: Write) -> Generator[float, None, Any]:
        """One look-back: what the index shows by now."""
        place = here()
        number = self.looks[place]
        self.looks[place] += 1
        how = write.looks[number] if number < len(write.looks) else "true"
        self.seen[f"look {how}"] += 1
        if how == "slow":
            yield TIMEOUT / 2
        yield 0.05
        if how == "raises":
            raise ConnectionResetError("the index is away")
        if how == "unclear":
            return Unclear("half an answer")
        visible = [e for e in self.by_place[place] if e.at + round(write.lag * SECOND) <= self.kernel.now]
        if how == "pending":
            return Pending(look_again=20)
        if how == "several" and visible:
            return Several([self.receipt(visible[0]), {"number": -1, "of": "another"}])
        return Found(self.receipt(visible[0])) if visible else Absent()

    def refuse_undone(self, result: dict[str, Any], place: Place) -> None:
        """An office that knows what it has undone says so. Raises AlreadyUndone."""
        if any(e.undoes == result["number"] and e.place == place for e in self.effects):
            self.seen["already undone"] += 1
            self.found_undone.add(place)
            raise AlreadyUndone

    def may_land(self, place: Place) -> bool:
        """Whether a request of this intent may still land."""
        return self.under_way[place] > 0 or any(not process.dead for process in self.calling[place])


def here() -> Place:
    """The intent that this call or look-back is about."""
    frame = current.get()
    assert isinstance(frame, Frame)
    return (frame.run.task_id, frame.path)
