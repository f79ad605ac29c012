"""What the tests of sessions share: apps on one store, a host double that is killed, and the effects counted outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guests_child import lines
from tests import nursery

from doubtless import Doubtless, DoubtlessError
from doubtless.testing import FakeClock

PATIENCE = 20.0
"""Real seconds that a test waits for another thread or process before it fails."""


class Ground:
    """One store and one other side in a folder; `app()` is the program started anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock: FakeClock | None = None
        self.apps: list[Doubtless] = []

    def app(self, **options: Any) -> Doubtless:
        if self.clock is None:  # it goes on where the clock of a process that was killed has stopped
            self.clock = FakeClock(start=datetime.now(UTC).isoformat())
        app = Doubtless(f"sqlite:///{self.folder / 'guests.db'}", namespace="tests", clock=self.clock, **options)
        self.apps.append(app)
        return app

    def effects(self, name: str = "") -> list[str]:
        """What the other side really did, without the keys."""
        return [line.rpartition(" ")[0] for line in lines(str(self.folder / "effects")) if line.startswith(name)]

    def kill_host(self, point: str) -> bool:
        """Start a host in a process of its own, and kill it where it stands; False: it has left without coming there."""
        program = Path(__file__).parent / "guests_child.py"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with nursery.Popen(
            [sys.executable, str(program), point], cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdout is not None
            try:
                reached = host.stdout.readline().strip()
                assert reached == point or (point.isdecimal() and reached == "left"), f"the host said {reached!r}"
            finally:
                host.kill()
        return reached == point

    def end(self) -> None:
        if self.apps and self.apps[0]._store is not None:
            assert self.apps[0].verify() == []
        for app in self.apps:
            app.close()


def raised(call: Callable[..., Any], *args: Any, **kwargs: Any) -> BaseException | None:
    """What the call raises."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return error
    return None


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Call in so many threads at one moment; what each returned or raised."""
    gate = threading.Barrier(count)
    results: list[Any] = [None] * count

    def work(number: int) -> None:
        gate.wait()
        try:
            results[number] = call(number)
        except DoubtlessError as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results
