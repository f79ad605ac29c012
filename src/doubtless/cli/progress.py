"""Progress on a terminal while a task runs: new rows of its log, read now and then by a thread of its own.

Nothing calls back from the run, and nothing of this is there when stderr is not a terminal.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ..errors import DoubtlessError
from ..events import Event, Kind, StepStatus
from .reporting import plain

if TYPE_CHECKING:
    from ..app import Doubtless

INTERVAL = 0.15
"""Seconds between two looks: fast enough for an eye, and a single indexed query each."""


@contextmanager
def shown(app: Doubtless, task_id: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show what the task does while the block runs, where a terminal is there to show it on."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    progress = Progress(app, task_id, stream)
    progress.start()
    try:
        yield
    finally:
        progress.stop()


class Lines:
    """Rows of a log in, finished lines and one live line out. Runs of like steps share a line."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.live = ""
        self.since = 0
        self.steps = 0
        self._like: tuple[str, str] | None = None
        self._places: list[str] = []
        self._doubted: set[str] = set()

    def take(self, row: Event) -> None:
        """Take the task's next row into account."""
        step = f"{row.path} {row.step_name}" if row.path is not None else ""
        match row.kind:
            case Kind.STEP_INTENDED | Kind.ATTEMPT_STARTED:
                self._now(row, f"{step}: called" + (f", attempt {row.attempt}" if (row.attempt or 1) > 1 else ""))
            case Kind.ATTEMPT_ENDED:
                self._doubted.add(row.path or "")
                self._now(row, f"{step}: attempt {row.attempt} failed; settling it")
            case Kind.LOOKED_BACK:
                self._doubted.add(row.path or "")
                self._now(row, f"{step}: looked back: {row.details['answer']}")
            case Kind.STEP_SETTLED:
                self.steps += 1
                self._settle(row, step)
            case Kind.CASE_OPENED:
                self.close()
                case = f"case {row.task_id}:{row.event_seq}: {row.details.get('why', '')}"
                self.finished.append(f"  ! {step or 'the task'}: {case}")
            case Kind.TASK_CLAIMED:
                self._now(row, "taken over from a process that died")
            case Kind.TASK_PARKED | Kind.TASK_ENDED:
                self.live = ""
            case _:
                pass

    def _now(self, row: Event, live: str) -> None:
        self.live, self.since = live, row.at.wall

    def _settle(self, row: Event, step: str) -> None:
        self.live = ""
        how = str(row.status)
        if row.status == StepStatus.DONE and row.path in self._doubted:
            how = "done after a doubt"
        like = (row.step_name or "", how)
        if like != self._like:
            self.close()
            self._like = like
        self._places.append(row.path or "")

    def close(self) -> None:
        """Finish the line of like steps."""
        if self._like is not None and self._places:
            name, how = self._like
            first, last = self._places[0], self._places[-1]
            place = first if len(self._places) == 1 else f"{first}–{last}"
            many = "" if len(self._places) == 1 else f" ×{len(self._places)}"
            mark = "✓" if how.startswith("done") else "✗"
            self.finished.append(f"  {mark} {place} {name}{many}" + ("" if how == "done" else f": {how}"))
        self._like, self._places = None, []


class Progress:
    """The thread that looks, and what it has drawn."""

    def __init__(self, app: Doubtless, task_id: str, stream: TextIO) -> None:
        self.app = app
        self.task_id = task_id
        self.stream = stream
        self.lines = Lines()
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="doubtless-progress", daemon=True)

    def start(self) -> None:
        """Begin to look. What the log holds already is not told again."""
        rows = self.app.store.rows(self.task_id)
        if rows:
            self._seen = rows[-1].event_seq
            stand = sum(row.kind == Kind.STEP_SETTLED for row in rows)
            self.stream.write(f"  task {plain(self.task_id)} goes on; {stand} {'step stands' if stand == 1 else 'steps stand'}\n")
        self._thread.start()

    def stop(self) -> None:
        """Look once more, finish the last line, and leave nothing live behind."""
        self._stop.set()
        self._thread.join()
        self._look()
        self.lines.close()
        self.lines.live = ""
        self._draw()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._look()
            self._draw()

    def _look(self) -> None:
        try:
            for row in self.app.store.rows(self.task_id, after=self._seen):
                self._seen = row.event_seq
                self.lines.take(row)
        except DoubtlessError:
            pass  # the run itself meets it, and says so

    def _draw(self) -> None:
        import shutil

        from .sheet import shorten  # counts columns, not characters

        width = shutil.get_terminal_size().columns - 1
        out = "\r\x1b[K" + "".join(f"{shorten(plain(line), width)}\n" for line in self.lines.finished)
        self.lines.finished.clear()
        if self.lines.live:
            seconds = max(0, self.app.clock.now().wall - self.lines.since) // 1_000_000
            out += shorten(plain(f"  … {self.lines.live}" + (f"  {seconds} s" if seconds else "")), width)
        elif self.lines.steps and not self._stop.is_set():
            out += f"  … {self.lines.steps} steps"
        try:
            self.stream.write(out)
            self.stream.flush()
        except (OSError, ValueError):
            self._stop.set()  # the terminal is gone; the run is not
