"""Between the executor and user code: counts calls, calls fakes, and lets ordered faults happen around them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..binding import KEY, OFFERED, is_async, select, signature_of
from ..calls import Frame, current
from ..drivers import invoke
from ..durations import parse_duration
from ..errors import UsageError
from ..inputs import callback_params
from ..outcomes import NotSent, Rejected
from .life import MortalStore

if TYPE_CHECKING:
    from datetime import timedelta

    from ..effects import StepDefinition
    from .clock import FakeClock
    from .faults import Faults, When

Function = Callable[..., Any]


class Landing(NamedTuple):
    """A call of a step's function, or of its fake, that ran to its end: at which place, under which key, and what it gave."""

    task_id: str
    path: str
    step: str
    key: str | None
    value: Any


class Fakes:
    """What stands in place of the steps' functions and queries, and how often each was called."""

    def __init__(self, clock: FakeClock, faults: Faults) -> None:
        self.calls: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        self.landings: list[Landing] = []
        self._clock = clock
        self._faults = faults
        self._lock = threading.Lock()
        self._functions: dict[str, Function] = {}
        self._queries: dict[str, Function] = {}
        self._lags: dict[str, int] = {}
        self._landed: dict[tuple[str, str], int] = {}  # when a place's first effect was seen to happen
        self._raised: dict[tuple[str, str], int] = {}  # when its last call ended of which nobody can say that

    # ------------------------------------------------------------ what stands in place of what

    def replace(self, step: StepDefinition, fake: Function) -> None:
        """Put `fake` in place of the step's function. Raises UsageError when it cannot be called as that one is."""
        _refuse_async(step.name, fake, step.is_async)
        by_position = step.binder.positional_only
        by_name = [name for name in (*step.binder.names, *step.binder.injected) if name not in by_position]
        try:
            signature_of(fake).bind(*by_position, **dict.fromkeys(by_name))
        except TypeError as error:
            raise UsageError(
                f"the fake for {step.name} cannot be called as the step is: {error}",
                hint=f"it is given {', '.join((*by_position, *by_name)) or 'nothing'}",
            ) from None
        with self._lock:
            self._functions[step.name] = fake

    def replace_query(self, step: StepDefinition, fake: Function) -> None:
        """Put `fake` in place of the step's query. Raises UsageError when it asks for what queries are not offered."""
        if step.query is None:
            raise UsageError(f"step {step.name} has no query: with one, something else would be tested than what runs")
        _refuse_async(f"the query of {step.name}", fake, step.query_is_async)
        faults = select(fake).faults((*step.binder.names, *OFFERED))
        if faults:
            raise UsageError(f"the fake query for {step.name} {'; '.join(faults)}")
        with self._lock:
            self._queries[step.name] = fake

    def lag(self, step: StepDefinition, duration: str | float | timedelta) -> None:
        """Let the step's query find nothing until so long after a call."""
        if step.query is None:
            raise UsageError(f"step {step.name} has no query that could lag")
        with self._lock:
            self._lags[step.name] = parse_duration(duration, zero=True)

    # ------------------------------------------------------------ calling

    def invoke(self, fn: Function, kwargs: dict[str, Any]) -> Any:
        """Call user code, or what stands in its place (`drivers.invoke`)."""
        frame = current.get()
        assert isinstance(frame, Frame)
        return self._ask(frame, fn, kwargs) if frame.what == "query" else self._call(frame, fn, kwargs)

    def _call(self, frame: Frame, fn: Function, kwargs: dict[str, Any]) -> Any:
        _refuse_dead(frame)
        with self._lock:
            self.calls[frame.name] += 1
            fake = self._functions.get(frame.name)
        self._reach(frame, "before")
        if fake is not None:
            fn = partial(fake, *fn.args) if isinstance(fn, partial) and frame.definition.binder.positional_only else fake
        if frame.definition.is_async:
            return self._acall(frame, fn, kwargs)
        try:
            value = invoke(fn, kwargs)
        except BaseException as error:
            self._note_raised(frame, error)
            raise
        self._note_landed(frame, kwargs, value)
        return value

    async def _acall(self, frame: Frame, fn: Function, kwargs: dict[str, Any]) -> Any:
        try:
            value = invoke(fn, kwargs)
            if isinstance(value, Awaitable):
                value = await value
        except BaseException as error:
            self._note_raised(frame, error)
            raise
        self._note_landed(frame, kwargs, value)
        return value

    def _note_raised(self, frame: Frame, error: BaseException) -> None:
        if isinstance(error, Rejected | NotSent):
            return  # the step says itself that there was no effect
        with self._lock:
            self._raised[frame.run.task_id, frame.path] = self._clock.now().wall

    def _note_landed(self, frame: Frame, kwargs: dict[str, Any], value: Any) -> None:
        with self._lock:
            self.landings.append(Landing(frame.run.task_id, frame.path, frame.name, kwargs.get(KEY), value))
            self.effects[frame.name] += 1
            self._landed.setdefault((frame.run.task_id, frame.path), self._clock.now().wall)
        self._reach(frame, "after")

    def _reach(self, frame: Frame, when: When) -> None:
        """Let what was ordered happen, unless the call's own process has died meanwhile."""
        _refuse_dead(frame)
        self._faults.reach(frame.name, when, "query" if frame.what == "query" else "effect")

    # ------------------------------------------------------------ asking

    def _ask(self, frame: Frame, fn: Function, kwargs: dict[str, Any]) -> Any:
        _refuse_dead(frame)
        with self._lock:
            self.looks[frame.name] += 1
            fake = self._queries.get(frame.name)
        self._reach(frame, "before")
        if fake is not None:
            record = frame.run.log.record(frame.path)
            assert record is not None
            fn, kwargs = fake, select(fake)(callback_params(frame.run.runtime, frame.definition, record))
        if self._hidden(frame):
            fn, kwargs = _nothing, {}
        if is_async(fn):
            return self._aask(frame, fn, kwargs)
        answer = invoke(fn, kwargs)
        self._reach(frame, "after")
        return answer

    async def _aask(self, frame: Frame, fn: Function, kwargs: dict[str, Any]) -> Any:
        answer = await invoke(fn, kwargs)
        self._reach(frame, "after")
        return answer

    def _hidden(self, frame: Frame) -> bool:
        place = (frame.run.task_id, frame.path)
        with self._lock:
            lag, since = self._lags.get(frame.name, 0), self._landed.get(place, self._raised.get(place))
            return since is not None and self._clock.now().wall - since < lag


def _refuse_dead(frame: Frame) -> None:
    """A thread of a dead process goes no further. Raises Killed."""
    store = frame.run.runtime.store
    if isinstance(store, MortalStore):
        store.check()


def _nothing() -> None:
    """What an index answers that has not caught up."""


def _refuse_async(what: str, fake: Function, may: bool) -> None:
    if not callable(fake):
        raise UsageError(f"the fake for {what} is {fake!r}: say a function")
    if is_async(fake) and not may:
        raise UsageError(f"the fake for {what} is async and what it stands for is not", hint="write it with def")
