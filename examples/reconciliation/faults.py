"""The accidents that the server can be told to have, and the clock that can be turned."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# drop_before, NNN_before: no effect. NNN_after, lose_reply: the effect, but no word of it. delay: the effect, the
# answer late. delay_before: the effect late. hide: a search that finds nothing (an index that flaps).
_NAMED = ("drop_before", "lose_reply", "delay", "delay_before", "hide")
_STATUS = re.compile(r"([345][0-9]{2})_(before|after)")
_ALIASES = {"refuse_422": "422_before"}


@dataclass(slots=True)
class Fault:
    """One kind of accident for the requests of one route. It lets `after` requests pass, then meets `count` of them."""

    path: str
    fault: str
    method: str
    after: int
    count: int
    delay_s: float

    def status(self, when: Literal["before", "after"]) -> int | None:
        """The HTTP status to answer, if this fault answers one at that moment."""
        found = _STATUS.fullmatch(self.fault)
        return int(found[1]) if found and found[2] == when else None


class Clock:
    """The server's clock: real time, plus what it was turned by. Units: seconds."""

    def __init__(self) -> None:
        self._turned = 0.0
        self._moved = threading.Condition()
        self._stopped = False

    def now(self) -> float:
        with self._moved:
            return time.time() + self._turned

    def advance(self, seconds: float) -> None:
        with self._moved:
            self._turned += seconds
            self._moved.notify_all()

    def wait_until(self, moment: float) -> bool:
        """True when the clock shows `moment`, by itself or because it was turned; False if the server stops before."""
        with self._moved:
            while not self._stopped and (left := moment - time.time() - self._turned) > 0:
                self._moved.wait(left)
            return not self._stopped

    def stop(self) -> None:
        with self._moved:
            self._stopped = True
            self._moved.notify_all()


class Faults:
    """What will go wrong, by route. A path is a template (``/runs/{id}/close``) or one very path (``/runs/7/close``)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._lags: dict[str, float] = {}

    def set(self, spec: Mapping[str, Any]) -> None:
        """Add the fault that `spec` describes, and its lag. Raises: ValueError, and nothing was added."""
        unknown = spec.keys() - {"path", "fault", "method", "after", "count", "delay_s", "lag_s"}
        path = spec.get("path")
        if unknown or not isinstance(path, str):
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}" if unknown else "path is missing")
        name = _ALIASES.get(str(spec.get("fault", "")), str(spec.get("fault", "")))
        if name and name not in _NAMED and _STATUS.fullmatch(name) is None:
            raise ValueError(f"no such fault: {name}")
        fault = Fault(
            path=path,
            fault=name,
            method=str(spec.get("method", "GET" if name == "hide" else "")),
            after=int(spec.get("after", 0)),
            count=int(spec.get("count", 1)),
            delay_s=float(spec.get("delay_s", 0)),
        )
        with self._lock:
            if name:
                self._faults.append(fault)
            if "lag_s" in spec:
                self._lags[path] = float(spec["lag_s"])

    def take(self, method: str, template: str, path: str) -> Fault | None:
        """The fault that this request meets, counted down. A fault without a method meets writes only."""
        with self._lock:
            for fault in self._faults:
                meets = method == fault.method or (not fault.method and method != "GET")
                if not meets or fault.path not in (template, path) or fault.count <= 0:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.count -= 1
                return fault
        return None

    def lag(self, template: str) -> float:
        """For how many seconds a new record stays out of the search on this route."""
        with self._lock:
            return self._lags.get(template, 0.0)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self._lags.clear()
