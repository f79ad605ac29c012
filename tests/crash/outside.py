"""The test's side of the world: its process, and the offices in it. Also how any child process is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def environment() -> dict[str, str]:
    """What a child needs to import what this process imports."""
    package_root = Path(__file__).parents[len(__package__.split("."))]
    places = [str(package_root), *(place or os.getcwd() for place in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def spawn(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A child process that is told and asked by lines; it ends with its input, so with this process."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())


class World:
    """The server process; `office` opens a test's own share of it."""

    def __init__(self, database: Path) -> None:
        self._process = spawn("world", "--db", str(database))
        assert self._process.stdout is not None
        self.port: int = json.loads(self._process.stdout.readline())["port"]
        self._opened = 0

    def office(self, clock: Path) -> Office:
        """An office that nobody else uses, with its clock."""
        self._opened += 1
        return Office(self.port, f"o{self._opened}", clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


class Office:
    """A test's hold on its office: what goes wrong there, who is held, what was counted."""

    def __init__(self, port: int, name: str, clock: Path) -> None:
        self.port, self.name = port, name
        self.control("open", clock=str(clock))

    def control(self, what: str, **spec: Any) -> dict[str, Any]:
        """One request to the control plane."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=40)
        connection.request("POST", f"/{self.name}/control/{what}", json.dumps(spec))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def set(self, **spec: Any) -> None:
        """Change what goes wrong: ``look=``, ``lag_us=``, ``key_window_us=``."""
        self.control("set", **spec)

    def hold(self, reference: str, where: str, count: int = 1) -> None:
        """The next requests for this reference stand ``before`` or ``after`` their effect until `release`."""
        self.control("set", reference=reference, hold=where, count=count)

    def lose(self, reference: str, how: str, count: int = 1) -> None:
        """The next replies for this reference are lost: ``reply``, ``500 after``, ``503 before``."""
        self.control("set", reference=reference, lose=how, count=count)

    def refuse(self, reference: str, word: str) -> None:
        """Every write for this reference is refused with this word; ``already done``: a colleague has done it."""
        self.control("set", reference=reference, refuse=word)

    def wait_held(self, sender: subprocess.Popen[str]) -> None:
        """A request has come to the barrier. Fails when its sender died, or none comes in 30 s."""
        deadline = time.monotonic() + 30.0
        while not self.control("wait?count=1")["reached"]:
            assert sender.poll() is None, "the sender died before its request came"
            assert time.monotonic() < deadline, "no request came to the barrier"

    def release(self, how: str = "go") -> None:
        """Whoever is held goes on (``go``), or its connection is closed at once (``drop``)."""
        assert self.control("release", how=how)["released"], "nobody was held"

    def effects(self, reference: str | None = None) -> Any:
        """What was really done: the numbers of the effects, of one reference or by reference."""
        counted = self.control("counts")["effects"]
        return counted if reference is None else counted.get(reference, [])

    def made_at(self, reference: str) -> list[int]:
        """When the effects were really made, on the shared clock."""
        found: list[int] = self.control("counts")["made_at"].get(reference, [])
        return found

    def n(self, reference: str) -> int:
        """How often the effect was really made."""
        return len(self.effects(reference))

    def busy(self) -> bool:
        """Whether a request is being served, or held."""
        return bool(self.control("counts")["serving"])

    def requests(self, what: str, reference: str = "") -> list[str]:
        """The keys of the requests that came: ``write``, ``read``, or ``look`` (whatever the reference)."""
        found: list[str] = self.control("counts")["requests"].get(what, {}).get(reference, [])
        return found
