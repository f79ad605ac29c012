"""One run of a crash test: a harness that numbers what the run comes by, lets one trouble happen, and counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ..answers import AnyAnswer, DidNotHappen, Happened
from ..errors import DoubtlessError, NeedsHuman, TaskBusy, TaskFailed, TaskWaiting
from ..events import UNDO, CaseKind, Effect, Event, StepStatus
from ..outcomes import classify_returned
from ..store import open_store
from ..timeline import settled_by
from .fakes import Fakes, Landing
from .faults import Faults, What, When
from .harness import NAMESPACE, Harness
from .life import Killed, MortalStore

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..calls import Frame
    from ..inbox import Case
    from ..steps import Task
    from ..store.base import Store
    from ..store.sqlite import SqliteStore
    from ..timeline import StepView
    from .standins import StandIns
    from .world import CountingWorld

ROUNDS = 60
"""So often a run is started again before it counts as one that never ends."""
STANDSTILL = 3600
"""Seconds for which a stopped owner stands still."""

COMMITS = ("accept", "begin", "claim", "release", "add", "notified", "put_snapshot", "spill", "drop_spilled")
"""The store's methods, beside `append`, that are one commit each."""


class Arrival(NamedTuple):
    """A point that a run came by: in words, and of a call which step's."""

    words: str
    step: str
    when: When
    what: Literal["commit", "effect", "query"]


class Trouble(NamedTuple):
    """What happens in one run. `at`: at which of its points, from 1; `lags`: which step's look-back, by how many
    microseconds; `then`: killed again, at the first look-back after that."""

    words: str
    at: int
    does: Literal["kill", "lose", "stop"]
    lags: tuple[str, int] | None = None
    then: When | None = None


class StepFound(NamedTuple):
    """One place of one run. `doubt`: what settled it, of a step that was in doubt; `people`: questions about it."""

    name: str
    effect: str
    calls: int
    effects: int
    doubt: str | None
    people: int


class Found(NamedTuple):
    """What came of one run. `stuck`: why it did not end; `counted`: the world's effects by kind."""

    end: str
    stuck: str
    reached: bool
    arrivals: list[Arrival]
    steps: list[StepFound]
    wrong: list[str]
    counted: Counter[str]


class Points(Faults):
    """Numbers the points that a run comes by, and lets its one trouble happen."""

    def __init__(self, trouble: Trouble | None, die: Callable[[str], Killed], stand_still: Callable[[], None]) -> None:
        super().__init__()
        self.trouble, self.arrivals = trouble, list[Arrival]()
        self._die, self._stand_still = die, stand_still
        self._then = None if trouble is None else trouble.then
        self._number = threading.Lock()

    @property
    def reached(self) -> bool:
        return self.trouble is None or len(self.arrivals) >= self.trouble.at

    def reach(self, step: str, when: When, what: What) -> None:
        if what in ("effect", "query"):
            called = "call" if what == "effect" else "look-back"
            self.come_by(Arrival(f"{when} the {called} of {step}", step, when, what))

    def come_by(self, point: Arrival) -> None:
        """A point is reached: nothing happens, or what was ordered."""
        with self._number:
            self.arrivals.append(point)
            trouble, number = self.trouble, len(self.arrivals)
            again = trouble is not None and number > trouble.at and point.what == "query" and point.when == self._then
            if again:
                self._then = None
        if again:
            raise self._die(f"the process died {point.words}")
        if trouble is None or number != trouble.at:
            return
        if trouble.does == "kill":
            raise self._die(f"the process died {point.words}")
        if trouble.does == "stop":
            self._stand_still()
        elif point.what == "effect" and point.when == "after":
            raise ConnectionResetError("the reply was lost")


class CountedStore(MortalStore):
    """A mortal store with a point before and after each commit."""

    def __init__(
        self, store: SqliteStore, at_append: Callable[[When, Sequence[Event]], None], come_by: Callable[[Arrival], None]
    ) -> None:  # fmt: skip
        super().__init__(store, at_append)
        self._come_by = come_by

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name not in COMMITS:
            return value

        def commit(*args: Any, **kwargs: Any) -> Any:
            self._come_by(Arrival(f"before the commit of {name}", "", "before", "commit"))
            result = value(*args, **kwargs)
            self._come_by(Arrival(f"after the commit of {name}", "", "after", "commit"))
            return result

        return commit

    def _at_begin(self, when: When) -> None:
        self._come_by(Arrival(f"{when} the commit of begin", "", when, "commit"))


class WatchedFakes(Fakes):
    """Fakes that can answer look-backs by what has landed at the very place."""

    known: frozenset[str] = frozenset()

    def _ask(self, frame: Frame, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        if frame.name in self.known:
            here = [one.value for one in self.landings if (one.task_id, one.path) == (frame.run.task_id, frame.path)]
            fn, kwargs = (lambda: here[-1] if here else None), {}
        return super()._ask(frame, fn, kwargs)

    def raised_at(self, task_id: str, path: str) -> bool:
        """Whether a call there raised by itself: what it did before, nobody has counted."""
        return (task_id, path) in self._raised


class Trial(Harness):
    """A harness for one run with one trouble. The app's own hooks stay silent: nobody is paged by a test."""

    def __init__(self, app: Doubtless, folder: str, stand_ins: StandIns, trouble: Trouble | None) -> None:
        super().__init__(app, folder)
        self._faults = self._points = Points(trouble, self._die, self._stand_still)
        self._fakes = self._watched = WatchedFakes(self.clock, self._points)
        self._quiet = (app._case_hooks, app._wake_hooks, app._authorize)
        with app._lock:
            app._invoke, app._case_hooks, app._wake_hooks, app._authorize = self._fakes.invoke, [], [], None
        self._task_id = ""
        self._asked: Counter[tuple[str, str | None]] = Counter()
        self._wrong: list[str] = []
        try:
            stand_ins.put(self)
            if trouble is not None and trouble.lags is not None:
                self._fakes.lag(self._find(trouble.lags[0]), trouble.lags[1] / 1e6)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if not self._closed:
            self.app._case_hooks, self.app._wake_hooks, self.app._authorize = self._quiet
        super().close()

    def know(self, step: str) -> None:
        """Answer the step's look-backs by what has landed."""
        self._watched.known |= {step}

    def _open(self, url: str, **options: Any) -> Store:
        options |= {"namespace": NAMESPACE, "read_only": False, "hooks": None}
        return cast("Store", CountedStore(cast("SqliteStore", open_store(url, **options)), self._at_append, self._points.come_by))

    def _at_append(self, when: When, events: Sequence[Event]) -> None:
        last = events[-1]
        of = f" of {last.step_name}" if last.step_name and last.path is not None else ""
        self._points.come_by(Arrival(f"{when} the commit of {last.kind}{of}", "", when, "commit"))

    def _stand_still(self) -> None:
        """The owner is stopped in the middle of its call: a second run comes, and an hour goes by."""
        came: list[str] = []

        def second() -> None:
            try:
                self.app.resume(self._task_id, wait=False)
                came.append("ran it")
            except TaskBusy:
                came.append("busy")
            except BaseException as error:  # noqa: BLE001  whatever it is: it was not told that there is an owner
                came.append(f"raised {type(error).__name__}")

        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        thread.join(10)
        if came != ["busy"]:
            self._wrong.append(f"a second run beside a stopped owner {came[0] if came else 'hangs'}")
        self.clock.advance(STANDSTILL)

    # ------------------------------------------------------------ to its end

    def carry_out(self, task: Task[..., Any], task_id: str, params: Mapping[str, Any], world: CountingWorld | None) -> Found:
        """Run it until it ends or stands, started again after each kill; then look at what there is."""
        self._task_id = task_id
        end, stuck = self._to_the_end(task, params)
        counted = Counter[str]() if world is None else Counter(str(one["kind"]) for one in world.all())
        try:
            steps = self._look()
        except Exception as error:  # noqa: BLE001  a store that cannot be read is what was to be found
            self._wrong.append(f"the log cannot be read afterwards: {type(error).__name__}: {error}")
            steps = []
        return Found(end, stuck, self._points.reached, list(self._points.arrivals), steps, self._wrong, counted)

    def _to_the_end(self, task: Task[..., Any], params: Mapping[str, Any]) -> tuple[str, str]:
        for _ in range(ROUNDS):
            try:
                self.app.run(task, task_id=self._task_id, **params)
                return "done", ""
            except Killed:
                continue
            except TaskFailed:
                return self.app.show(self._task_id).status, ""
            except NeedsHuman:
                try:
                    left = self._answer()
                except Killed:
                    continue
                if left:
                    return "needs_human", left
            except TaskWaiting as waiting:
                return "waiting", self._same(waiting.message)
            except DoubtlessError as error:
                return f"raises {type(error).__name__}", self._same(error.message)
        return "endless", f"started {ROUNDS} times, it has not ended"

    def _same(self, text: str) -> str:
        """What is said of a task, without its id: so that the same of two runs is one thing."""
        return text.replace(f"task {self._task_id}", "the task").replace(self._task_id, "…")

    def _answer(self) -> str:
        """Answer as somebody who sees what was counted; why it cannot go on, if nothing could be answered."""
        left, answered = "it needs a person, and asks nothing", 0
        for case in self.app.inbox().cases:
            given = self._given(case)
            if given is None:
                left = self._same(f"{case.kind}{f' about {case.step}' if case.step else ''}: {case.why}")
                continue
            answered += 1
            self._asked[case.task_id, case.path] += 1
            self.app.settle(case.id, given, by="crashtest", why="by what was counted", shown=case.hash)
        return left if not answered else ""

    def _given(self, case: Case) -> AnyAnswer | None:
        if case.kind == CaseKind.CONTRADICTION:
            from ..answers import Noted

            return Noted()
        if case.kind not in (CaseKind.DOUBT, CaseKind.COMPENSATION) or case.path is None:
            return None
        made = self._landed(case.task_id, case.path, case.step)
        if made:
            return Happened(made[-1].value)
        return None if self._watched.raised_at(case.task_id, case.path) else DidNotHappen(then="retry")

    # ------------------------------------------------------------ what there is

    def _landed(self, task_id: str, path: str, step: str | None) -> list[Landing]:
        place = (task_id, path, step)
        return [one for one in self._fakes.landings if (one.task_id, one.path, one.step) == place and self._is_effect(one)]

    def _is_effect(self, one: Landing) -> bool:
        """A reply object that says "refused" is none."""
        definition = self._find(one.step)
        said = classify_returned(
            one.value, single_request=definition.single_request, classify=definition.classify, uncertain_before=False,
            handle_recorded=False,
        )  # fmt: skip
        return said is None or said.kind == "unknown"

    def _look(self) -> list[StepFound]:
        steps = []
        for head in self.app.tasks():
            for step in self.app.show(head.task_id).steps:
                if step.name.startswith("$") or step.child is not None:
                    continue
                steps.append(self._step(head.task_id, step))
        try:
            self.assert_quiet()
        except AssertionError as silent:
            self._wrong.append(self._same(str(silent)))
        self._wrong += [f"verify: {problem}" for problem in self.app.verify()]
        return steps

    def _step(self, task_id: str, step: StepView) -> StepFound:
        landed = self._landed(task_id, step.path, step.name)
        effects, where = len(landed), f"{step.name} at {step.path}"
        if step.effect == Effect.IDEM_WRITE:
            effects = len({one.key for one in landed})
        people = self._asked[task_id, step.path]
        if step.effect == Effect.READ:
            return StepFound(step.name, step.effect, step.calls, effects, None, people)
        if effects > 1:
            self._wrong.append(f"{where}: {effects} effects")
        if step.status == StepStatus.NOT_APPLIED and landed:
            self._wrong.append(f"{where}: not applied, says the log, and it was made")
        by = self._settled_by(task_id, step)
        found = by == "the look-back found it"
        if found and not landed and not self._watched.raised_at(task_id, step.path) and UNDO not in step.path:
            self._wrong.append(f"{where}: its look-back found something that this task has not made")
        in_doubt = people or found or any(one.outcome not in ("done", "rejected", "not_sent") for one in step.attempts)
        return StepFound(step.name, step.effect, step.calls, effects, _settled(step, by) if in_doubt else None, people)

    def _settled_by(self, task_id: str, step: StepView) -> str | None:
        """What settled the step; of one that was undone later, what had settled it before."""
        if step.status != StepStatus.COMPENSATED:
            return step.settled_by
        return settled_by([row for row in self.app.store.rows(task_id, path=step.path) if row.status != StepStatus.COMPENSATED])


def _settled(step: StepView, by: str | None) -> str:
    if by is None:
        return f"open: {step.status}"
    by = "a person" if by.startswith("a person") else by
    return by if step.status in (StepStatus.DONE, StepStatus.COMPENSATED, by) else f"{step.status}: {by}"
