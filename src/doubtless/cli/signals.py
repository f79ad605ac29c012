"""Ctrl-C and SIGTERM while a task runs: the run records what is in flight, then the command says what became of it."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..errors import DoubtlessError
from ..events import TERMINAL, Effect
from .exits import HANGUP, INTERRUPTED, TERMINATED, Interrupted
from .typed import typed

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..timeline import StepView, TaskView

CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP}


class Terminated(BaseException):
    """A signal asked this process to end. Like KeyboardInterrupt: no ``except Exception`` swallows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


@contextmanager
def guarded() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into one exception in the main thread, which `app.run` records and raises on.

    Meaning: only the first one does. The next ones only say that it is being recorded: an exception in the middle of that
    would leave less in the log. SIGKILL is always safe. A signal that was ignored stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    nudges: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if seen and nudges:
            nudges.pop()
        elif seen:
            os.write(2, b"doubtless: recording what is in flight; kill -KILL %d ends it at once, and is safe.\n" % os.getpid())
        else:
            seen.append(number)
            raise Terminated(number)

    before: dict[int, Any] = {}
    for number in CODES:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_nudge, args=(reader, seen, nudges), name="doubtless-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(waker)
        os.close(writer)
        for number, handler in () if seen else before.items():  # once seen, they stay: the command still has to say what it met
            signal.signal(number, handler)


def _nudge(reader: int, seen: list[int], nudges: list[int]) -> None:
    """Wake the main thread until it has seen a signal: one that comes in the instant before a wait leaves it asleep.

    Python runs handlers in the main thread, between two of its instructions; a wait that began just after the signal would
    end with the step's timeout, and Ctrl-C with it.
    """
    main = threading.main_thread().ident
    try:
        while came := os.read(reader, 1):  # ends when the other end is closed
            while came[0] in CODES and not seen and not select.select([reader], [], [], 0.05)[0]:
                nudges.append(came[0])
                signal.pthread_kill(main or 0, came[0])
    finally:
        os.close(reader)


# ---------------------------------------------------------------- what became of it


def interrupted(app: Doubtless, number: int, target: str, task_id: str | None, since: int = 0) -> Interrupted:
    """What a signal stopped, as the log has it now: which write is in doubt, and the command that goes on.

    Without `task_id` it is about the tasks that this process has run `since` (a time of the store's clock).
    """
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    code = CODES[number]
    again = typed("resume", target, task_id) if task_id is not None else typed("resume", target) + " --all"
    try:
        views = _stopped(app, task_id, since)
    except DoubtlessError as error:
        said = f"{name}; the store does not say what was in flight ({error.message}): it counts as in doubt"
        return Interrupted(said, exit_code=code, hint=again, task=task_id)
    if task_id is not None and not views:
        return Interrupted(f"{name} before task {task_id} was recorded; nothing was sent", exit_code=code, task=task_id)
    words = [said for view in views if (said := _told(view))]
    doubts = [{"task": view.id, "path": step.path, "step": step.name} for view in views for step in view.steps if in_doubt(step)]
    if not words:
        words = ["no write was in flight, nothing is in doubt"]
    if task_id is not None and views[0].status in TERMINAL:
        words, again = [f"task {task_id} had just ended {views[0].status}"], ""
    return Interrupted(f"{name}; {'; '.join(words)}", exit_code=code, hint=again, task=task_id, in_doubt=doubts)


def _stopped(app: Doubtless, task_id: str | None, since: int) -> list[TaskView]:
    """The task, or the tasks that this process has just left behind."""
    if task_id is not None:
        head = app.store.head(task_id)
        return [] if head is None else [app.show(task_id)]
    ours = f"{os.getpid()}-"
    left = [h for h in app.tasks() if h.status not in TERMINAL]
    parked = [h for h in left if Terminated.__name__ in (h.why or "") and h.updated_at >= since]
    return [app.show(h.task_id) for h in left if (h.owner or "").startswith(ours) or h in parked]


def in_doubt(step: StepView) -> bool:
    """Whether a step is a write of which an attempt may have landed."""
    if step.effect == Effect.READ or step.status not in ("uncertain", "needs_human") or not step.attempts:
        return False
    return step.attempts[-1].outcome in (None, "unknown")


def being_called(step: StepView) -> bool:
    """Whether the signal came while the step was being called."""
    return step.attempts[-1].outcome is None or step.attempts[-1].code == Terminated.__name__


def _told(view: TaskView) -> str:
    called = [step for step in view.steps if in_doubt(step) and being_called(step)]
    before = [step for step in view.steps if in_doubt(step) and not being_called(step)]
    words = []
    if called:
        was, it, that_is = ("was", "it", "that is") if len(called) == 1 else ("were", "they", "those are")
        words.append(
            f"{_each(called)} {was} being called: {it} may have landed; {that_is} recorded, and settled before anything is sent"
        )
    if before:
        words.append(f"{_each(before)} {'is' if len(before) == 1 else 'are'} in doubt as before")
    return f"task {view.id}: {'; '.join(words)}" if words else ""


def _each(steps: list[StepView]) -> str:
    return ", ".join(f"{step.name} at {step.path} (attempt {step.attempts[-1].number})" for step in steps)
