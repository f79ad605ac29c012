"""Start the server as a process of its own, tell it what to break, and ask it what was really done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from . import client


class Outside:
    """The other side while a test or the demo runs: a process with its own database.

    Durable: an effect is counted in the same transaction that makes it. The process ends with the `with`
    block, and by itself when this process dies.
    """

    server = f"{__package__}.server"
    start: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(self, database: Path, *, key_window_s: float | None = None) -> None:
        command = [sys.executable, "-m", self.server, "--db", str(database)]
        if key_window_s is not None:
            command += ["--key-window", str(key_window_s)]
        self._process = self.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError("the server did not start; its message stands above")
        self.pid = self._process.pid
        self.url = f"http://127.0.0.1:{json.loads(line)['port']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """The server has ended, and nothing of it is left but its database."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # somebody stopped it with SIGSTOP
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def kill(self) -> None:
        """The server died by SIGKILL; `stop` still cleans up."""
        self._process.kill()
        self._process.wait()

    def fault(self, path: str, fault: str, **more: Any) -> None:
        """The next requests to `path` meet `fault`. Shapes: ``fault("/approvals", "lose_reply", delay_s=30)``."""
        self._control("POST", "/_control", {"path": path, "fault": fault, **more})

    def lag(self, path: str, seconds: float) -> None:
        """The search at `path` shows a record only `seconds` after it was made, on the server's clock."""
        self._control("POST", "/_control", {"path": path, "lag_s": seconds})

    def key_window(self, seconds: float) -> None:
        """The server remembers a closing's key for `seconds`."""
        self._control("POST", "/_control", {"key_window_s": seconds})

    def clear(self) -> None:
        """No fault and no lag is left."""
        self._control("POST", "/_control/clear", {})

    def advance(self, seconds: float) -> None:
        """The server's clock shows `seconds` more."""
        self._control("POST", "/_control/advance", {"seconds": seconds})

    def process(self, approval: str) -> None:
        """A person processes `approval`."""
        self._control("POST", f"/approvals/{approval}/process", {})

    def reverse(self, approval: str) -> None:
        """A person takes back by hand what was processed."""
        self._control("POST", f"/approvals/{approval}/reverse", {})

    def wait_for(self, kind: str, count: int = 1, *, timeout_s: float = 20) -> bool:
        """Whether `count` effects of `kind` are there, as soon as they are."""
        path = f"/_control/wait?kind={kind}&count={count}&timeout_s={timeout_s}"
        return bool(self._control("GET", path, None, timeout=timeout_s + 5)["reached"])

    def counts(self) -> dict[str, Any]:
        """What was really done, and how many requests came (see `counting.Counted.counts`)."""
        return dict(self._control("GET", "/_control/effects", None))

    def effects(self, kind: str) -> int:
        """How many effects of `kind` were real."""
        return int(self.counts()["effects"].get(kind, {"count": 0})["count"])

    def most_per_subject(self, kind: str) -> int:
        """How often the one thing was done that was done most often: 1 is right, 2 is the accident."""
        counted = self.counts()["effects"].get(kind, {"by_subject": {}})["by_subject"]
        return max(counted.values(), default=0)

    def order(self, kind: str) -> list[str]:
        """The subjects of the effects of `kind`, in the order in which they were made."""
        return [subject for name, subject in self.counts()["order"] if name == kind]

    def requests(self, route: str) -> int:
        """How many requests came to a route. Shapes: ``requests("POST /approvals")``."""
        return int(self.counts()["requests"]["by_route"].get(route, 0))

    def _control(self, method: str, path: str, body: dict[str, Any] | None, *, timeout: float = 10) -> Any:
        return client.call(self.url, method, path, body, timeout=timeout)


def environment(**more: str) -> dict[str, str]:
    """The environment for a child process that imports from the same places as this one."""
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return {**os.environ, "PYTHONPATH": places, **more}
