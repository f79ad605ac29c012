"""The matrix: how each situation is brought about, and what is noted of it. The same for every peer.

In every cell a task pays once and then reads. Where its process died, or ended with anything but `done` or a question to a
person, the same program is started again, as a supervisor would do, up to `RUNS` runs in all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HERE = Path(__file__).parent
RUNS = 3
LEASE = 5.0
"""Seconds: what a peer is told wherever it wants to know how long a call may take, or how long a lease lasts."""
LAG = 12.0
"""Seconds that the gateway's search lags in situation H."""
WINDOW = 2.0
"""Seconds that the gateway remembers a key in situation K."""
PATIENCE = 45.0
"""Seconds after which a process that still waits is ended; it said `waiting`."""

LIVING: set[subprocess.Popen[str]] = set()
"""Every process of a program under test that has not been waited for, for whoever ends the bench early: one may be stopped."""


class Gateway:
    """The counting gateway, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(HERE / "gateway.py"), "--db", str(folder / "gateway.db")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{json.loads(self._process.stdout.readline())['port']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def control(self, cell: str, *rest: str, **body: Any) -> dict[str, Any]:
        """Say what goes wrong in a cell, wait for who stands there, let go, count."""
        request = urllib.request.Request("/".join([self.url, "control", cell, *rest]), json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer


class Peer(NamedTuple):
    """Somebody in the matrix, ready to run."""

    name: str
    adapter: Path
    python: str
    look_back: bool
    postgres: str | None = None


class Said(NamedTuple):
    """What one process of the program said, in the end."""

    owner: str
    word: str
    text: str


class Result(NamedTuple):
    """What came of one cell."""

    effects: int
    requests: int
    said: list[Said]
    word: str
    stuck: bool
    seconds: float


class Stage:
    """One cell being played: its gateway settings, its folder, its processes."""

    def __init__(self, peer: Peer, gateway: Gateway, cell: str, folder: Path, verbose: bool = False) -> None:
        self.peer, self.gateway, self.cell, self.folder, self.verbose = peer, gateway, cell, folder, verbose
        self.spec: dict[str, Any] = {"look": False, "keys": False, "window": None, "lag": 0.0, "timeout": 60.0}
        self.said: list[Said] = []
        self.living: list[subprocess.Popen[str]] = []

    def set(self, **how: Any) -> None:
        self.gateway.control(self.cell, "set", **how)

    def release(self, how: str) -> None:
        self.gateway.control(self.cell, "release", how=how)

    def reached(self, where: str, count: int = 1, timeout: float = PATIENCE) -> bool:
        """Whether that many requests came to a place."""
        return bool(self.gateway.control(self.cell, "wait", where=where, count=count, timeout=timeout)["reached"])

    def must_reach(self, where: str) -> None:
        if not self.reached(where):
            raise RuntimeError(f"no request ever came to {where!r}: {self.end(self.living[-1], 'one', kill=True)}")

    def spawn(self, owner: str = "one") -> subprocess.Popen[str]:
        """A process of the peer's program; a restart of one has its name."""
        told = self.spec | {"folder": str(self.folder), "owner": owner, "lease": LEASE, "patience": PATIENCE}
        told |= {"url": f"{self.gateway.url}/{self.cell}", "postgres": self.peer.postgres}
        command = [self.peer.python, str(HERE / "child.py"), str(self.peer.adapter), json.dumps(told)]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DOUBTLESS_STORE")}
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=self.folder,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        self.living.append(child)
        LIVING.add(child)
        return child

    def kill(self, child: subprocess.Popen[str]) -> None:
        """It is dead by SIGKILL: it said nothing."""
        child.kill()
        child.communicate()
        self.living.remove(child)
        LIVING.discard(child)
        self.said.append(Said("one", "killed", ""))

    def end(self, child: subprocess.Popen[str], owner: str, *, kill: bool = False) -> Said:
        """Wait for its end; what it said."""
        if kill:
            child.kill()
        try:
            text, _ = child.communicate(timeout=PATIENCE + 10)
        except subprocess.TimeoutExpired:
            child.kill()
            text, _ = child.communicate()
        self.living.remove(child)
        LIVING.discard(child)
        if self.verbose:
            print(f"--- {self.peer.name} {self.cell} {owner}\n{text}")
        last = text.strip().splitlines()[-1:] or [""]
        try:
            answer = json.loads(last[0])
            said = Said(owner, answer["word"], " ".join(answer["said"].split()))
        except (ValueError, KeyError, TypeError):
            said = Said(owner, "nothing", " ".join(text.split())[-300:])
        self.said.append(said)
        return said

    def again(self, runs: int = RUNS - 1) -> None:
        """Start the program again until it is done, asks a person, or has been started often enough."""
        for _ in range(runs):
            if self.said[-1].word in ("done", "asks"):
                return
            if self.said[-1].word in ("waiting", "busy", "refuses"):
                time.sleep(LEASE + 0.5)  # whatever lease or staleness the peer was told is over
            self.end(self.spawn(), "one")


# ---------------------------------------------------------------- the situations


def killed_before_the_effect(stage: Stage) -> None:
    stage.set(hold={"payment": 1})
    first = stage.spawn()
    stage.must_reach("payment")
    stage.kill(first)
    stage.release("drop")
    stage.again()


def killed_after_the_effect(stage: Stage) -> None:
    stage.set(hold={"reply": 1})
    first = stage.spawn()
    stage.must_reach("reply")
    stage.kill(first)
    stage.release("drop")
    if stage.spec["window"] == WINDOW:
        time.sleep(WINDOW + 0.5)
    stage.again()


def killed_after_the_record(stage: Stage) -> None:
    stage.set(hold={"after": 1})
    first = stage.spawn()
    stage.must_reach("after")
    stage.kill(first)
    stage.release("drop")
    stage.again()


def timed_out(stage: Stage) -> None:
    stage.set(hold={"reply": 1})
    stage.spec["timeout"] = 1.0
    stage.end(stage.spawn(), "one")
    stage.release("drop")
    stage.again()


def two_at_once(stage: Stage, after: float = 0.0) -> None:
    """The first one's payment stands before its effect when the second process starts, `after` seconds later. Without an
    `after` it does not stand there for longer than a lease, but for the time that the second one needs to start."""
    stage.set(hold={"payment": 1})
    first = stage.spawn()
    stage.must_reach("payment")
    time.sleep(after)
    second = stage.spawn("two")
    give_it_time(stage, second, "payment", 2 * LEASE if after else LEASE - 2.0)
    stage.release("go")
    both_end(stage, first, second)


def slow_owner(stage: Stage) -> None:
    two_at_once(stage, after=LEASE + 1.5)


def stopped_owner(stage: Stage) -> None:
    """The first one is stopped right before it sends; a second one comes; then the first one is woken."""
    stage.set(hold={"before": 1})
    first = stage.spawn()
    stage.must_reach("before")
    os.kill(first.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED)
    stage.release("go")
    time.sleep(LEASE + 1.5)
    second = stage.spawn("two")
    give_it_time(stage, second, "reply", 2 * LEASE)
    if second.poll() is None and stage.reached("reply", 1, 0.1):
        stage.reached("after", 1, 2.0)
    os.kill(first.pid, signal.SIGCONT)
    both_end(stage, first, second)


def give_it_time(stage: Stage, second: subprocess.Popen[str], where: str, seconds: float) -> None:
    """Until the second process sends too, or has ended, or has plainly decided to wait: `seconds` after it began its task."""
    while second.poll() is None and not stage.reached("ready", 2, 0.2):
        pass  # it still imports
    count = 2 if where == "payment" else 1
    until = time.monotonic() + seconds
    while time.monotonic() < until and second.poll() is None and not stage.reached(where, count, 0.1):
        pass


def both_end(stage: Stage, first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
    stage.end(second, "two")
    if stage.end(first, "one").word != "done":
        stage.again()


class Situation(NamedTuple):
    """One column of the matrix."""

    letter: str
    title: str
    play: Callable[[Stage], None]
    look: bool = False
    """With a look-back, by those who have such a thing."""
    only: bool = False
    """Only by those: without one it would be another situation again."""
    keys: bool = False
    window: float | None = None
    lag: float = 0.0


SITUATIONS = [
    Situation("A", "killed inside the step, before the effect", killed_before_the_effect),
    Situation("B", "killed right after the effect, before anything was recorded", killed_after_the_effect),
    Situation("C", "killed after the record, in the next step", killed_after_the_record),
    Situation("D", "the write landed, the call timed out", timed_out),
    Situation("E", "two processes run the same task at once", two_at_once),
    Situation("F", "as B; the gateway honours keys, window open", killed_after_the_effect, keys=True, window=3600.0),
    Situation("GA", "as A, with a look-back registered", killed_before_the_effect, look=True, only=True),
    Situation("GB", "as B, with a look-back registered", killed_after_the_effect, look=True, only=True),
    Situation("GD", "as D, with a look-back registered", timed_out, look=True, only=True),
    Situation("H", "as GD, and the gateway's search lags", timed_out, look=True, only=True, lag=LAG),
    Situation("I", "a slow live owner, slower than the lease; a second process comes", slow_owner, look=True),
    Situation("J", "the owner is stopped (SIGSTOP), another comes, the first is woken", stopped_owner, look=True),
    Situation("K", "as B; the gateway honours keys, window over", killed_after_the_effect, keys=True, window=WINDOW),
]  # fmt: skip


def play(peer: Peer, situation: Situation, gateway: Gateway, folder: Path, *, verbose: bool = False) -> Result:
    """Bring a situation about for a peer, and note what came of it."""
    cell = f"{peer.name}-{situation.letter}".replace(" ", "-").replace("/", "-")
    begun = time.monotonic()
    stage = Stage(peer, gateway, cell, Path(tempfile.mkdtemp(prefix=f"{cell}-", dir=folder)), verbose)
    stage.spec |= {"look": situation.look and peer.look_back, "lag": situation.lag}
    stage.spec |= {"keys": situation.keys, "window": situation.window}
    stage.set(lag=situation.lag, key_window=situation.window)
    try:
        situation.play(stage)
    finally:
        for child in stage.living:
            child.kill()  # SIGKILL ends a stopped process too
            child.communicate()
            LIVING.discard(child)
        stage.release("drop")
    counted = gateway.control(cell)
    word = stage.said[-1].word
    stuck = word in ("waiting", "busy", "nothing")
    return Result(counted["effects"], counted["requests"], stage.said, word, stuck, time.monotonic() - begun)
