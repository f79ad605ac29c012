"""The harness: gives an app a store and a clock of its own, and lets a test order what goes wrong."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast

from ..errors import UnknownStep, UsageError
from ..events import TERMINAL, Effect, Event, Kind, TaskStatus
from ..fold import fold_steps
from ..store import open_store
from ..worker import still_frozen
from .clock import START, FakeClock
from .fakes import Fakes
from .faults import Faults, What, When
from .life import Killed, MortalStore

if TYPE_CHECKING:
    from datetime import timedelta

    from ..answers import AnyAnswer
    from ..app import Doubtless
    from ..effects import StepDefinition
    from ..inbox import Case, Inbox
    from ..steps import Step
    from ..store.base import Store
    from ..store.sqlite import SqliteStore

NAMESPACE = b"doubtless.testing"
"""Fixed, so that keys, and the jitter that is drawn from them, are the same in each run of a test."""

_ROWS: dict[str, What] = {
    Kind.STEP_INTENDED: "intent", Kind.ATTEMPT_STARTED: "intent", Kind.ATTEMPT_ENDED: "record", Kind.STEP_SETTLED: "record",
}  # fmt: skip


def harness(app: Doubtless, tmp_path: str | os.PathLike[str], *, auto_advance: bool = True, start: str = START) -> Harness:
    """Give `app` a fresh store in `tmp_path` and a `FakeClock`, until the harness is closed.

    Shapes: use it as a context manager, or call `close`: the app then has its own store and clock again. `start` is
    the time at which the clock stands, ``"2026-11-28T09:00:00+00:00"``. `auto_advance`: waits of a run move the clock.
    Meaning: the app runs as it does in production, on a real SQLite file; only what a test orders is different.
    """
    return Harness(app, tmp_path, auto_advance=auto_advance, start=start)


class Harness:
    """An app under test. A step is named by itself or by its name.

    Meaning: `run` and `arun` are the app's own, and the app itself can be used as well. What is ordered (`kill`,
    `fail`, `lose_reply`) happens once each unless it says `times`, after `skip` arrivals that pass; at one point in the
    order in which it was ordered. Orders, fakes and counts outlive a kill and a restart. Thread-safe.
    Raises: AssertionError when the `with` block ends and something that was ordered never happened.
    """

    def __init__(
        self, app: Doubtless, tmp_path: str | os.PathLike[str], *, auto_advance: bool = True, start: str = START
    ) -> None:
        self.app = app
        self.clock = FakeClock(start=start, auto_advance=auto_advance)
        self.run = app.run
        self.arun = app.arun
        self._faults = Faults()
        self._fakes = Fakes(self.clock, self._faults)
        self._closed = False
        self.url = f"sqlite:///{_fresh(os.path.realpath(tmp_path))}"
        self._excepthook = threading.excepthook
        with app._lock:
            self._own = (app._url, app._clock, app._open, app._invoke, app._randomness, app._store, app._runtime)
            app._url, app._clock, app._open, app._invoke = self.url, self.clock, self._open, self._fakes.invoke
            app._randomness = random.Random(NAMESPACE).randbytes  # app.uuid() and app.random() too are the same in each run
            app._store = app._runtime = None
        threading.excepthook = self._thread_died

    def _open(self, url: str, **options: Any) -> Store:
        options |= {"namespace": options.get("namespace") or NAMESPACE, "read_only": False}
        return cast("Store", MortalStore(cast("SqliteStore", open_store(url, **options)), self._at_append))

    def _thread_died(self, args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, Killed):  # a thread of a killed process ends without a word
            self._excepthook(args)

    def close(self) -> None:
        """Cut off whatever still runs, and give the app its own store and clock back. The files stay."""
        app = self.app
        if self._closed:
            return
        self._closed = True
        self._die("the harness was closed")
        with app._lock:
            app._url, app._clock, app._open, app._invoke, app._randomness, app._store, app._runtime = self._own
        if threading.excepthook == self._thread_died:
            threading.excepthook = self._excepthook

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        unreached = self._faults.unreached()
        if kind is None and unreached:
            raise AssertionError(f"ordered, and never happened: {'; '.join(unreached)}")

    # ------------------------------------------------------------ in place of the code under test

    def replace(self, step: Step[..., Any] | str, fake: Callable[..., Any]) -> None:
        """Call `fake` instead of the step's function, in the same way: its params by name, `idempotency_key` too.

        Raises: UsageError when the fake cannot be called so; a fake of an async step may be sync, not the reverse.
        """
        self._fakes.replace(self._find(step), fake)

    def replace_query(self, step: Step[..., Any] | str, fake: Callable[..., Any]) -> None:
        """Ask `fake` instead of the step's `query`; it gets by name what it declares of what queries are offered.

        Raises: UsageError for a step without a query: with one, its policy would be another one.
        """
        self._fakes.replace_query(self._find(step), fake)

    def lag(self, step: Step[..., Any] | str, duration: str | float | timedelta) -> None:
        """Let the step's query find nothing until that long after the call: an index that lags, on this clock."""
        self._fakes.lag(self._find(step), duration)

    # ------------------------------------------------------------ what goes wrong

    def kill(
        self, step: Step[..., Any] | str, *, before: What | None = None, after: What | None = None, times: int = 1, skip: int = 0
    ) -> None:
        """Let the process die there: `run` raises `Killed`, nothing more is recorded, `run` again is the restart.

        Shapes: `before` or `after` one of ``intent`` (the row that an attempt of a write has before it begins), ``effect``
        (the call of the function, when it returns), ``record`` (the row that says what came of the call), ``query`` (a
        look-back). So ``after="intent"``: nothing was sent; ``after="effect"``: it landed, and nobody knows.
        """
        definition = self._find(step)
        if (before is None) == (after is None):
            raise UsageError("kill() needs one point: before=… or after=…", hint='after="effect"')
        when: Literal["before", "after"] = "before" if after is None else "after"
        what = before or after
        if what not in ("intent", "effect", "record", "query"):
            raise UsageError(f"kill() knows no point {what!r}", hint="intent, effect, record or query")
        if what == "intent" and definition.effect == Effect.READ:
            raise UsageError(f"step {definition.name} is a read: it has no intent", hint='before="effect"')
        if what == "query" and definition.query is None:
            raise UsageError(f"step {definition.name} has no query", hint="intent, effect or record")
        label = f"kill({definition.name}, {when}={what!r})"

        def act() -> NoReturn:
            raise self._die(f"the process died {when} the {what} of {definition.name}")

        self._faults.order(definition.name, (when, what), label, act, times=times, skip=skip)

    def lose_reply(self, step: Step[..., Any] | str, *, times: int = 1, skip: int = 0) -> None:
        """Let the effect happen and its reply be lost: the call raises ConnectionResetError, its outcome is unknown."""

        def act() -> NoReturn:
            raise ConnectionResetError("the reply was lost")

        name = self._find(step).name
        self._faults.order(name, ("after", "effect"), f"lose_reply({name})", act, times=times, skip=skip)

    def fail(
        self, step: Step[..., Any] | str, error: BaseException | type[BaseException], *, times: int = 1, skip: int = 0
    ) -> None:
        """Raise `error` instead of calling the function: ``Rejected("422")``, ``NotSent()``, ``TimeoutError``."""

        def act() -> NoReturn:
            raise error() if isinstance(error, type) else error.with_traceback(None)

        name = self._find(step).name
        self._faults.order(name, ("before", "effect"), f"fail({name})", act, times=times, skip=skip)

    def restart(self) -> None:
        """Let the process end here, without a word to anybody, and a new one begin at the next use of the app.

        Meaning: as `kill`, between two calls; a run in another thread of the old process ends with `Killed`.
        """
        self._die("the process was restarted")

    def _die(self, why: str) -> Killed:
        app = self.app
        with app._lock:
            store, app._store, app._runtime = app._store, None, None
            for worker in app._runs.workers:
                worker._stop.set()
                worker._wake.set()
            app._runs.workers.clear()
            if isinstance(store, MortalStore):
                store.die(why)
        return Killed(why)

    def _at_append(self, when: When, events: Sequence[Event]) -> None:
        for event in events:
            what = _ROWS.get(event.kind)
            if what is not None and event.step_name is not None:
                self._faults.reach(event.step_name, when, what)

    # ------------------------------------------------------------ time

    def advance(self, duration: str | float | timedelta) -> None:
        """Turn the clock: ``"PT2M"``, or a number of seconds. Workers look for what is due then."""
        self.clock.advance(duration)
        self.app._runs.wake_workers()

    # ------------------------------------------------------------ looking

    def calls(self, step: Step[..., Any] | str) -> int:
        """How often a call of the step began: of its function, of the fake in its place, or of a `fail` in their place."""
        return self._fakes.calls[self._find(step).name]

    def effects(self, step: Step[..., Any] | str) -> int:
        """How often its function, or the fake in its place, ran to its end: also where the reply was then lost.

        Meaning: a function that raises is not counted, whatever it did before; a `CountingWorld` knows that.
        """
        return self._fakes.effects[self._find(step).name]

    def looks(self, step: Step[..., Any] | str) -> int:
        """How often the step's query was asked."""
        return self._fakes.looks[self._find(step).name]

    def inbox(self) -> Inbox:
        """What waits for a person."""
        return self.app.inbox()

    def settle_all(
        self, answer: AnyAnswer | Callable[[Case], AnyAnswer | None], *, by: str = "test", why: str = "settled by the test"
    ) -> list[Case]:
        """Answer every open case, as shown now; with a function, each case by what it returns (None: leave it open)."""
        settled: list[Case] = []
        for case in self.app.inbox().cases:
            given = answer(case) if callable(answer) else answer
            if given is not None:
                self.app.settle(case.id, given, by=by, why=why, shown=case.hash)
                settled.append(case)
        return settled

    def assert_quiet(self) -> None:
        """Every write that is in doubt has a case, or a time at which somebody looks again (I6).

        Meaning: of a task that stands before what is frozen, that is its thaw; past `settle_within` the inbox lists it.
        Raises: AssertionError that names each one that has neither.
        """
        store = self.app.store
        about = {(row.task_id, row.path) for row in store.cases()}
        silent: list[str] = []
        for head in store.heads(status=[status for status in TaskStatus if status not in TERMINAL]):
            if head.wake_at is not None or (head.owner is not None and store.owner_alive(head.owner)):
                continue
            if head.why and still_frozen(head.why, store.frozen()):
                continue
            for record in fold_steps(store.rows(head.task_id)).values():
                if record.settled or record.effect == Effect.READ or (head.task_id, record.path) in about:
                    continue
                if record.gravest == "unknown" or record.in_flight is not None:
                    silent.append(f"task {head.task_id}: {record.name} at {record.path}")
        if silent:
            raise AssertionError(f"in doubt, without a case and without a time to look again: {'; '.join(silent)}")

    def _find(self, step: Step[..., Any] | str) -> StepDefinition:
        table = self.app._table
        name = step if isinstance(step, str) else step.name
        if name not in table:
            self.app.check()  # functions that are compensations have their names from then on
        definition = table[name]
        if not isinstance(step, str) and self.app.steps.get(name) is not step:
            raise UnknownStep(f"{step!r} is another app's step", hint=f"this app has one of the same name: {name!r}", step=name)
        return definition


def _fresh(folder: str) -> str:
    """A file that nobody has used yet."""
    number = 1
    while os.path.lexists(path := os.path.join(folder, f"doubtless-{number}.db")):
        number += 1
    return path
