"""Doubtless: puts the parts together. The public face.

Only this module reads the environment and makes clocks and threads' owners; everything below is given them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from .binding import is_async, validate_task_signature
from .blobs import Content
from .branches import run_group
from .calls import Runtime
from .canonical import decode, encode, input_hash
from .children import Children, root_of
from .clocks import Clock, SystemClock
from .conclusion import OnFailure, TaskCode
from .declaring import define
from .drivers import invoke
from .durations import parse_duration
from .effects import StepDefinition
from .errors import (
    DoesNotFit,
    DoubtlessError,
    InputDiffers,
    StepTableError,
    TaskBusy,
    UnknownCase,
    UnknownStep,
    UnknownTask,
    UsageError,
)
from .events import STORE_TASK, TERMINAL, Effect, Kind, TaskStatus, draft
from .fold import Moves
from .runs import Runs
from .secrets import Vault
from .snapshots import Plan
from .standing import SESSION
from .steps import Step, Task, branch_of
from .store import open_store
from .store.base import Head, Problem, Store
from .table import StepTable
from .waiting import InTask

if TYPE_CHECKING:
    from datetime import timedelta

    from .agents import Agent
    from .agentview import State
    from .beyond import WritePolicy
    from .choices import Finish, Turn
    from .facts import Fact
    from .forking import Forked
    from .inbox import AnyAnswer, Authorize, Case, Inbox
    from .openings import Opening
    from .sending import Received
    from .sessions import Session
    from .timeline import TaskView
    from .worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

EffectName = Literal["read", "idem_write", "non_idem_write"] | Effect
Duration = "str | int | float | timedelta"

HINT_STORE = "Doubtless('sqlite:///agent.db') or export DOUBTLESS_STORE=sqlite:///agent.db"


def system_clock() -> Clock:
    """This machine's clocks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return SystemClock(boot)


def _read_secret_file(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


class Doubtless(InTask):
    """The steps and tasks of one application, and the store that their log lives in.

    Shapes: `url` is ``sqlite:///file.db`` (relative), ``sqlite:////abs/file.db``; None reads $DOUBTLESS_STORE at
    first use. `namespace` is set once per store and is part of every key (random unless given). `authorize(by,
    case, answer)` is asked before a person's answer is taken. `secrets` adds resolvers by scheme.
    `store_patience`: how long a result is offered again to a store that does not take it, before it is spilled.
    `read_only`: only look: also at a store that is refused as suspect, and never at one that would have to be created.
    Meaning: thread-safe; the store opens lazily, once per process.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | bytes | None = None,
        authorize: Authorize | None = None,
        secrets: Mapping[str, Callable[[str], str | None]] | None = None,
        store_patience: str | int | float = "PT30S",
        clock: Clock | None = None,
        hooks: Callable[[str], None] | None = None,
        read_only: bool = False,
    ) -> None:
        self._url = url
        self._read_only = read_only
        self._namespace = namespace.encode() if isinstance(namespace, str) else namespace
        self._authorize = authorize
        self._patience = parse_duration(store_patience) / 1e6
        self._clock = clock
        self._hooks = hooks
        self._vault = Vault({"env": os.environ.get, "file": _read_secret_file, **(secrets or {})})
        self._steps: dict[str, Step[..., Any]] = {}
        self._tasks: dict[str, Task[..., Any]] = {}
        self._table = StepTable(self._tasks)
        self._faults: list[str] = []
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._runtime: Runtime | None = None
        self._checked = False
        self._case_hooks: list[Callable[[Case], object]] = []
        self._runs = Runs(self)
        self._children = Children(self._runs)
        self._open: Callable[..., Store] = open_store  # these three are what `doubtless.testing` puts its own in place of
        self._invoke = invoke
        self._randomness: Callable[[int], bytes] = os.urandom

    # ------------------------------------------------------------ declaring

    def step(
        self,
        *,
        effect: EffectName,
        name: str | None = None,
        query: Callable[..., Any] | None = None,
        compensate: str | Callable[..., Any] | Step[..., Any] | Task[..., Any] | None = None,
        compensate_deadline: str | int | float | timedelta | None = None,
        volatile: str | Iterable[str] = (),
        secret: str | Iterable[str] = (),
        timeout: str | int | float | timedelta = "PT30S",
        attempts: int = 3,
        backoff: str | int | float | timedelta = "PT1S",
        retry_rejected: bool = False,
        key_window: str | int | float | timedelta | None = None,
        absent_after: str | int | float | timedelta | None = None,
        on_absent: Literal["fail", "retry"] | None = None,
        query_attempts: int = 5,
        settle_within: str | int | float | timedelta = "PT1H",
        single_request: bool = False,
        classify: Callable[..., Any] | None = None,
        idempotent_by: str | None = None,
        once: str | None = None,
        once_window: str | int | float | timedelta | None = None,
        independent: bool = False,
        cost: int | float | None = None,
        **unknown: Any,
    ) -> Callable[[Callable[P, R]], Step[P, R]]:
        """Declare a step. See docs/steps.md for each option; faults are collected and raised together at first use."""
        options: dict[str, Any] = {
            "effect": effect, "query": query, "compensate": compensate, "compensate_deadline": compensate_deadline,
            "volatile": volatile, "secret": secret, "timeout": timeout, "attempts": attempts, "backoff": backoff,
            "retry_rejected": retry_rejected, "key_window": key_window, "absent_after": absent_after, "on_absent": on_absent,
            "query_attempts": query_attempts, "settle_within": settle_within, "single_request": single_request,
            "classify": classify, "idempotent_by": idempotent_by, "once": once, "once_window": once_window,
            "independent": independent, "cost": cost,
        }  # fmt: skip
        options = {k: v for k, v in options.items() if v is not None} | unknown

        def declare(fn: Callable[P, R]) -> Step[P, R]:
            return self._declare(name, {**options, "call": fn}, fn)

        return declare

    def _declare(self, name: str | None, options: Mapping[str, Any], fn: Callable[P, R]) -> Step[P, R]:
        definition = self._table.add(name, options)
        if definition is None:  # a fault: the table says so at first use; the name stays callable for tools
            definition = broken_definition(str(name or getattr(fn, "__name__", "?")))
        step: Step[P, R] = Step(definition, fn)
        self._steps[definition.name] = step
        self._checked = False
        return step

    def add_steps(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Declare steps as data: name → options, with the function as ``call``. They are then in `app.steps`."""
        for name, options in table.items():
            self._declare(name, options, options.get("call", _nothing) if isinstance(options, Mapping) else _nothing)

    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, on_failure: OnFailure = "compensate", snapshot_every: int | None = None
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self, fn: Any = None, /, *, name: str | None = None, on_failure: OnFailure = "compensate",
        snapshot_every: int | None = None,
    ) -> Any:  # fmt: skip
        """Declare a task: a function whose steps are recorded, and which is resumed where it stopped.

        Meaning: a task that fails for good compensates what it did; with ``on_failure="hold"`` a person says whether. With
        `snapshot_every` a snapshot of its log is made each time so many steps were settled, so that a long task resumes
        sooner; deleting all snapshots changes nothing but speed.
        """
        if fn is None:
            return lambda f: self._declare_task(f, name, on_failure, snapshot_every)
        return self._declare_task(fn, name, on_failure, snapshot_every)

    def _adopt(self, task: Task[..., Any], faults: Iterable[str] = ()) -> None:
        """Take in a task that the library has made of somebody's code: an agent."""
        self._faults += faults
        if task.name in self._tasks:
            self._faults.append(f"task {task.name}: declared twice; give one of them another name")
        self._tasks[task.name] = task
        self._checked = False

    def _declare_task(
        self, fn: Callable[P, R], name: str | None, on_failure: OnFailure = "compensate", snapshot_every: int | None = None
    ) -> Task[P, R]:
        called = str(name or getattr(fn, "__name__", ""))
        self._faults += validate_task_signature(fn, called)
        if called.startswith("$"):
            self._faults.append(f"task {called}: names that begin with '$' are the library's own; choose another name")
        if snapshot_every is not None and (type(snapshot_every) is not int or snapshot_every < 1):
            self._faults.append(f"task {called}: snapshot_every is {snapshot_every!r}, and is a number of steps, 1 or more")
            snapshot_every = None
        if called in self._tasks:
            self._faults.append(f"task {called}: declared twice; give one of them another name")
        definition, _ = define(called, call=fn, effect=Effect.READ)  # a task's own faults were collected above
        if on_failure not in ("compensate", "hold"):
            self._faults.append(f"task {called}: on_failure is {on_failure!r}: say 'compensate' or 'hold'")
        plan = None if snapshot_every is None else Plan(snapshot_every)
        code = TaskCode(called, fn, is_async(fn), definition or broken_definition(called), plan, on_failure)
        task: Task[P, R] = Task(code, fn)
        self._tasks[called] = task
        self._checked = False
        return task

    def agent(
        self,
        name: str,
        *,
        choose: Callable[[State], Turn | Finish] | Callable[[State], Awaitable[Turn | Finish]],
        steps: Iterable[str | Step[..., Any]],
        bind: Mapping[str, Mapping[str, Any]] | None = None,
        on_failure: OnFailure = "compensate",
        snapshot_every: int | None = 20,
        max_choices: int | None = None,
        max_cost: int | float | None = None,
        cost: int | float | None = None,
        timeout: str | int | float | timedelta = "PT2M",
        attempts: int = 3,
        backoff: str | int | float | timedelta = "PT1S",
        concurrency: int = 8,
        last_turns: int = 20,
        last_bytes: int = 131_072,
        output_bytes: int = 4096,
    ) -> Agent:
        """Declare an agent: a task whose steps a model chooses; ``app.run(agent, "an-id", goal="…")`` starts or resumes it.

        Meaning: `choose(state)` gives a `Turn` or `Finish`, sync or async; each choice is recorded, and one that is
        recorded is never asked for again. It is called as a read: `timeout`, `attempts`, `backoff` hold for it, `cost` is
        the cost of one call. Before a choice beyond `max_choices` or `max_cost` the task parks with a case. `bind` gives
        steps params that the model neither sees nor sets, secrets above all.
        Shapes: `steps` are names or steps; the model is shown the `last_turns` (at most 50), `last_bytes` of them, and of
        one output `output_bytes`; up to `concurrency` calls of a turn run side by side.
        Raises: UsageError without pydantic; faults of the declaration come with the table's, at first use.
        """
        from .declare_agent import declare_agent

        return declare_agent(
            self, name, choose, steps, bind or {}, on_failure=on_failure, snapshot_every=snapshot_every, max_choices=max_choices,
            max_cost=max_cost, cost=cost, timeout=timeout, attempts=attempts, backoff=backoff, concurrency=concurrency,
            last_turns=last_turns, last_bytes=last_bytes, output_bytes=output_bytes,
        )  # fmt: skip

    def tools(
        self, steps: Iterable[str | Step[..., Any]], *, bind: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """The steps as a model is told of them: ``{"name", "description", "parameters": <JSON Schema>}`` of each.

        Meaning: without what no model may see or set: policy, injected and secret params, and those of `bind`.
        Raises: UsageError (pydantic is missing, an annotation has no JSON Schema), UnknownStep.
        """
        from .toolbox import Toolbox

        return Toolbox([self._table[name_of_step(step)] for step in steps], bind or {}).schemas

    @property
    def steps(self) -> Mapping[str, Any]:
        """The declared steps by name, callable in task code: ``app.steps["match_orders"](day=…)``."""
        return self._steps

    @property
    def declared_tasks(self) -> Mapping[str, Task[..., Any]]:
        """The declared tasks by name."""
        return self._tasks

    @property
    def definitions(self) -> list[StepDefinition]:
        """The step table's definitions in the order of declaration."""
        return [self._table[name] for name in self._table]

    def check(self) -> list[str]:
        """All faults of the step table and the tasks, one line each; empty when there is none. Raises nothing."""
        faults = [*self._table.check(), *self._faults]
        for task in list(self._tasks.values()):
            faults += task.faults(self._table.get)
        return faults

    def on_case(self, hook: Callable[[Case], object]) -> Callable[[Case], object]:
        """Call `hook(case)` for each case that opens: at least once, after its commit; errors of it change nothing."""
        self._case_hooks.append(hook)
        return hook

    # ------------------------------------------------------------ the parts

    @property
    def url(self) -> str:
        """Where the store is. Raises UsageError when nothing says so."""
        url = self._url or os.environ.get("DOUBTLESS_STORE")
        if not url:
            raise UsageError("no durable log: neither a store URL nor $DOUBTLESS_STORE is given", hint=HINT_STORE)
        return url

    @property
    def clock(self) -> Clock:
        """The clock that everything here uses."""
        if self._clock is None:
            self._clock = system_clock()
        return self._clock

    @property
    def store(self) -> Store:
        """The store, opened at first use. Raises StoreRefused with the reason."""
        with self._lock:
            if self._store is None:
                self._store = self._open(
                    self.url, clock=self.clock.now, namespace=self._namespace, read_only=self._read_only, hooks=self._hooks
                )  # fmt: skip
            return self._store

    @property
    def runtime(self) -> Runtime:
        """The parts that a run works with; the table is validated first. Raises StepTableError, StoreRefused."""
        with self._lock:
            self._validate()
            if self._runtime is None:
                store = self.store
                info = store.info()
                self._runtime = self._parts(store, info.namespace, self._case_opened)
                self._runtime.call_child, self._runtime.run_child = self._children.call, self._children
            return self._runtime

    def _validate(self) -> None:
        """Refuse a table with faults, before a store is opened or created for it. Raises StepTableError."""
        with self._lock:
            if not self._checked:
                faults = self.check()
                if faults:
                    raise StepTableError(faults)
                self._checked = True

    def _case_opened(self, case_id: str) -> None:
        if not self._case_hooks or self._runtime is None:
            return
        from .inbox import read_case

        store, failed = self._runtime.store, False
        for hook in self._case_hooks:
            try:
                row = store.case(case_id)
                if row is None:
                    return
                hook(read_case(self._runtime, row))
            except Exception as error:  # noqa: BLE001  a hook's error is not the task's, nor the next hook's
                import sys

                failed = True
                said = self._vault.mask(f"{type(error).__name__}: {error}")
                print(f"doubtless: on_case hook failed for {case_id}: {said}", file=sys.stderr)
        if not failed:
            store.notified(case_id)

    def notify(self) -> None:
        """Call the hooks for open cases that no hook has taken yet: what a crash right after a commit left unsaid."""
        runtime = self.runtime
        for row in runtime.store.cases():
            if row.notified_at is None:
                self._case_opened(row.case_id)

    # ------------------------------------------------------------ side by side

    @overload
    def parallel(  # type: ignore[overload-overlap]  # a coroutine is what the branch's function gives back
        self, *branches: Callable[[], Coroutine[Any, Any, T]] | Awaitable[T]
    ) -> Awaitable[list[T]]: ...
    @overload
    def parallel(self, *branches: Callable[[], T]) -> list[T]: ...
    def parallel(self, *branches: Any) -> Any:
        """Run branches of a task side by side and give their results in their order.

        Meaning: each branch has places of its own, so that steps keep them however the branches get on; called in task
        code only. All branches are waited for, then the first failure in branch order is raised.
        Shapes: functions without arguments; in an async task also coroutines, and the result is awaited.
        Raises: OutsideTask; what a branch raised.
        """
        return run_group("app.parallel", branches, max(1, len(branches)))

    @overload
    def map(  # type: ignore[overload-overlap]
        self, fn: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any], *, concurrency: int = 8
    ) -> Awaitable[list[T]]: ...
    @overload
    def map(self, fn: Callable[[Any], T], items: Iterable[Any], *, concurrency: int = 8) -> list[T]: ...
    def map(self, fn: Callable[..., Any], items: Iterable[Any], *, concurrency: int = 8) -> Any:
        """Call a step, or a function that calls steps, with each item, so many at once; results in the items' order.

        Meaning: as `parallel`, a branch for each item. In an async task a sync step runs in a thread of its own, and the
        result is awaited.
        """
        return run_group("app.map", [branch_of(fn, item) for item in items], concurrency)

    # ------------------------------------------------------------ somebody else's loop

    def session(self, session_id: str, /, *, wait: bool | str = True) -> Session:
        """The session of this id, to be opened with ``with`` or ``async with``: for calls whose loop somebody else owns.

        Meaning: one opening at a time; it is recorded as a task when it is opened first. `wait`: whether a call, and the
        opening, waits through times to look or call again (True, False, or how long each may); else it raises TaskWaiting.
        Raises: when it is opened: TaskBusy (it is open elsewhere), UsageError (it has ended), StepTableError, StoreError.
        """
        from .sessions import Session

        check_wait(wait)
        check_task_id(session_id)
        return Session(self, session_id, wait=wait)

    def _open_session(self, session_id: str) -> Opening:
        """Claim a session for its host; a new one is recorded first."""
        from .openings import Opening

        runtime = self.runtime
        head = runtime.store.head(session_id)
        if head is None:
            accepted = draft(
                session_id, Kind.TASK_ACCEPTED, runtime.store.now(), step_name=SESSION, status=TaskStatus.READY,
                input_hash=input_hash(runtime.namespace, encode({})), data={"session": True},
            )  # fmt: skip
            head = runtime.store.accept(accepted) or self._known(session_id)
        if head.task_name != SESSION:
            raise UsageError(
                f"task {session_id} exists and is no session but a task {head.task_name}; nothing was written",
                hint="one id is one task: give the session another id",
            )
        opening = self._runs.claim(session_id, limit=None)
        if opening is None:
            raise UsageError(f"session {session_id} has ended; nothing was written", hint=f"doubtless show {session_id}")
        assert isinstance(opening, Opening)
        opening.by_host = True
        return opening

    def _step_named(self, step: Any) -> StepDefinition:
        """The definition of a step of this app, given by itself or by its name. Raises UnknownStep, UsageError."""
        if isinstance(step, str):
            return self._table[step]
        if not isinstance(step, Step) or self._steps.get(step.name) is not step:
            raise UsageError(f"{step!r} is no step of this app; nothing was written", hint="declare it with @app.step")
        return step.definition

    # ------------------------------------------------------------ running

    @overload
    def run(self, task: Task[P, Coroutine[Any, Any, T]], task_id: str, /, *args: P.args, **params: P.kwargs) -> T: ...
    @overload
    def run(self, task: Task[P, R], task_id: str, /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def run(self, task: Task[..., Coroutine[Any, Any, T]], task_id: str, /, *, wait: bool | str, **params: Any) -> T: ...
    @overload
    def run(self, task: Task[..., R], task_id: str, /, *, wait: bool | str, **params: Any) -> R: ...
    @overload
    def run(self, task: Task[..., Coroutine[Any, Any, T]], /, *, task_id: str, wait: bool | str = ..., **params: Any) -> T: ...
    @overload
    def run(self, task: Task[..., R], /, *, task_id: str, wait: bool | str = ..., **params: Any) -> R: ...
    def run(self, task: Any, /, *args: Any, **params: Any) -> Any:
        """Start or resume the task of this id and return its output; the same call for both.

        Meaning: waits through times to look again; with ``wait=False`` or a duration it raises TaskWaiting instead.
        Durable: the task is recorded before its code runs; every finished step is.
        Raises: TaskWaiting, NeedsHuman, TaskFailed, TaskFrozen, TaskBusy (never waits for another owner),
        InputDiffers (the id exists with other input), StepTableError, StoreError.
        """
        wait = params.pop("wait", True)
        check_wait(wait)
        head = self._accept(task, args, params)
        return self._runs.run(head.task_id, wait)

    @overload
    async def arun(self, task: Task[P, Coroutine[Any, Any, T]], task_id: str, /, *args: P.args, **params: P.kwargs) -> T: ...
    @overload
    async def arun(self, task: Task[P, R], task_id: str, /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    async def arun(self, task: Task[..., Coroutine[Any, Any, T]], task_id: str, /, *, wait: bool | str, **params: Any) -> T: ...
    @overload
    async def arun(self, task: Task[..., R], task_id: str, /, *, wait: bool | str, **params: Any) -> R: ...
    @overload
    async def arun(
        self, task: Task[..., Coroutine[Any, Any, T]], /, *, task_id: str, wait: bool | str = ..., **params: Any
    ) -> T: ...
    @overload
    async def arun(self, task: Task[..., R], /, *, task_id: str, wait: bool | str = ..., **params: Any) -> R: ...
    async def arun(self, task: Any, /, *args: Any, **params: Any) -> Any:
        """`run` on the event loop: an async task runs in the calling asyncio.Task, a sync one in a thread."""
        wait = params.pop("wait", True)
        check_wait(wait)
        head = self._accept(task, args, params)
        return await self._runs.arun(head.task_id, wait)

    @overload
    def start(self, task: Task[P, Any], task_id: str, /, *args: P.args, **params: P.kwargs) -> str: ...
    @overload
    def start(self, task: Task[..., Any], /, *, task_id: str, **params: Any) -> str: ...
    def start(self, task: Any, /, *args: Any, **params: Any) -> str:
        """Record the task, durably, and return its id; a worker or `resume` runs it. Raises InputDiffers."""
        head = self._accept(task, args, params)
        self._runs.wake_workers()
        return head.task_id

    def resume(self, task_id: str, *, wait: bool | str = True, **rewind: Any) -> Any:
        """Go on with a task that exists: the same as `run` with its input. Does no harm, however often it is called.

        Meaning: of a child task its root is resumed, because a child is run by its parent; then the child's output is given.
        Raises: as `run`; UsageError for a place to go on from (``at=…``): a log is never rewound, `fork` makes a new task.
        """
        if rewind:
            raise refuse_rewind(task_id, rewind)
        check_wait(wait)
        self._validate()
        self._known(task_id)
        root = root_of(task_id)
        if root != task_id and self._runs.ended(root) is None:
            try:
                self._runs.run(root, wait)
            except DoubtlessError:
                if self._runs.ended(task_id) is None:
                    raise
        return self._runs.run(task_id, wait)

    def resume_all(self, *, wait: bool | str = False) -> dict[str, str]:
        """One pass over all tasks that have not ended; what became of each, by id. Never raises for one task."""
        check_wait(wait)
        self.notify()
        result: dict[str, str] = {}
        for head in self.store.heads(status=[s for s in TaskStatus if s not in TERMINAL]):
            if root_of(head.task_id) != head.task_id:
                continue  # a child is run by its parent
            if not self.knows(head.task_name):
                result[head.task_id] = f"unknown task {head.task_name}: its code is not in this app"
                continue
            try:
                self._runs.run(head.task_id, wait, one_of_many=True)
                result[head.task_id] = "done"
            except TaskBusy as error:
                result[head.task_id] = f"skipped: {error.message}"
            except DoubtlessError as error:
                result[head.task_id] = f"{error.code}: {error.message}"
        return result

    def changed(self, name: str) -> bool:
        """Say whether task code goes a new way here: True for a task that comes here first, False for one that went past.

        Meaning: a mark in changed code, in task code alone: ``if app.changed("two-approvals"): …`` else the old way. Where
        the log holds nothing at this place or behind it, the mark is recorded and is True, now and on each replay; where it
        holds something else, the task has gone past without the mark: False, and no place is taken. In a loop each turn is
        asked for itself. docs/change.md says how to take a mark out again.
        Durable: a recorded mark, at return.
        Raises: OutsideTask, UsageError, before anything is written.
        """
        from .marks import changed

        return changed(name)

    def fork(
        self,
        original: str,
        /,
        *,
        at: int,
        task_id: str | None = None,
        idem_write: WritePolicy = "ask",
        non_idem_write: WritePolicy = "ask",
    ) -> Forked:
        """Make a new task that goes another way from a step of this one; the original and its log stay as they are.

        Meaning: the code runs from the top; steps with `step_seq` below `at` are answered from the original's log, without
        any obligation to undo them. What a person or an event answered is not taken over: it is asked anew. Keys are the
        new task's. `idem_write`, `non_idem_write`: what a write does while effects of the original stand beyond `at`: ``ask``
        opens a question before it; ``reuse`` takes over what stands for the same step and params at the same place, and
        asks where nothing fits; ``run`` sends it again, a second effect, on purpose.
        Shapes: the new task's `task_id` is ``"<original>@<at>"`` unless given; the same call again is the same fork.
        `stands` lists what stands beyond `at`. `resume` runs it.
        Durable: the fork and all that it takes over, in one transaction, at return.
        Raises: UsageError when a step at or before `at` is in doubt or undone, or no such step is there; TaskBusy while the
        original is being run; UnknownTask; InputDiffers when `task_id` is another task's.
        """
        from .forking import default_id, make_fork

        self._validate()
        head = self._known(original)
        chosen = default_id(original, at) if task_id is None else task_id
        check_task_id(chosen)
        return make_fork(self.runtime, head, at, chosen, {Effect.IDEM_WRITE: idem_write, Effect.NON_IDEM_WRITE: non_idem_write})

    def worker(self, *, concurrency: int = 4) -> Worker:
        """A worker in this process for what `start` records; use it as a context manager."""
        from .worker import Worker

        self._validate()
        worker = Worker(self, concurrency=concurrency)
        self._runs.workers.append(worker)
        return worker

    def drain(self) -> None:
        """Let every run of this app park at its next step; running writes are finished first."""
        self._runs.drain()

    def pay_back(self) -> None:
        """Give back the tasks that a failing store did not let go when their runs ended; workers do it at each look."""
        self._runs.pay_back()

    def knows(self, task_name: str) -> bool:
        """Whether this app has the code of a task of this name."""
        return task_name in self._tasks or task_name == SESSION

    def _accept(self, task: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Head:
        if "task_id" in params:
            task_id = params.pop("task_id")
        else:
            task_id, args = (args[0], args[1:]) if args else (None, args)
        check_task_id(task_id)
        if not isinstance(task, Task) or self._tasks.get(task.name) is not task:
            raise UsageError(f"{task!r} is no task of this app", hint="declare it with @app.task")
        runtime = self.runtime
        text = encode(task.code.definition.binder.bind(args, params), where=f"task {task.name}")
        runtime.vault.refuse_known(text, task.name)
        digest = input_hash(runtime.namespace, text)
        head = runtime.store.head(task_id) or self._accept_new(runtime, task, task_id, text, digest)
        if head.task_name != task.name or head.input_hash != digest:
            raise self._input_differs(head, task.name, text)
        return head

    def _accept_new(self, runtime: Runtime, task: Task[..., Any], task_id: str, text: str, digest: bytes) -> Head:
        """Record a task that does not exist yet; its head, or that of somebody who was faster."""
        definition = task.code.definition
        try:
            definition.restore_params(decode(text))  # what its code could not be given is refused, not accepted
        except DoesNotFit as misfit:
            raise misfit.within(f"{task.name}.") from misfit.__cause__
        ref, blob = runtime.content.put(text)
        accepted = draft(
            task_id, Kind.TASK_ACCEPTED, runtime.store.now(), step_name=task.name, status=TaskStatus.READY, input_hash=digest,
            input_ref=ref,
        )  # fmt: skip
        return runtime.store.accept(accepted, () if blob is None else (blob,)) or self._known(task_id)

    def _input_differs(self, head: Head, name: str, text: str) -> InputDiffers:
        from .drift import first_difference

        if head.task_name != name:
            field, logged, asked = "task", head.task_name, name
        else:
            accepted = self.runtime.store.rows(head.task_id)[0]
            logged_text = self.runtime.content.get(accepted.input_ref) if accepted.input_ref is not None else "{}"
            field, logged, asked = first_difference(logged_text, text)
        return InputDiffers(
            f"task {head.task_id} exists with {field} = {logged!r}, not {asked!r}; nothing was written",
            hint=f"one id is one task: use another id, or the same input; doubtless show {head.task_id}",
            task=head.task_id,
            field=field,
        )

    def _known(self, task_id: str) -> Head:
        head = self.store.head(task_id)
        if head is None:
            raise UnknownTask(f"there is no task {task_id} in {self.url}", hint="doubtless tasks lists them", task=task_id)
        return head

    # ------------------------------------------------------------ looking

    def tasks(self, *, status: str | Iterable[str] = ()) -> list[Head]:
        """The tasks' head rows, oldest first; of some statuses."""
        return self.store.heads(status=[status] if isinstance(status, str) else list(status))

    def show(self, task_id: str) -> TaskView:
        """Everything that the log tells of a task. Raises UnknownTask."""
        from .timeline import view

        return view(self.reading, self._known(task_id))

    def facts(self, task_id: str, *, output_bytes: int = 4096) -> list[Fact]:
        """What happened in a task, from its log alone: its steps in order, each with its status in neutral words.

        Meaning: for building a model's context when its history is gone or cut; the log is the only truth. At any time:
        while the task runs, waits, or has ended. Raises UnknownTask.
        """
        from .facts import facts_of

        self._known(task_id)
        return facts_of(self.reading, task_id, output_bytes)

    def content(self, ref: str) -> Any:
        """What a ref points to, as JSON: an output that a model was shown shortened, or an agent's earlier facts.

        Raises: UsageError for what is no ref, StoreDamaged for content that is missing.
        """
        from .facts import read_content

        return read_content(self.reading, ref)

    def inbox(self) -> Inbox:
        """What waits for a person: open cases with their evidence, and doubts that nobody is settling."""
        from .inbox import read_inbox

        return read_inbox(self.reading, self._settle_within)

    def case(self, case_id: str) -> Case:
        """One case as it is now. Raises UnknownCase."""
        from .inbox import read_case

        row = self.store.case(case_id)
        if row is None:
            raise UnknownCase(f"there is no case {case_id}", hint="doubtless inbox lists the open ones", case=case_id)
        return read_case(self.reading, row)

    @property
    def reading(self) -> Runtime:
        """The parts for looking only: a table with faults does not stand in the way."""
        with self._lock:
            if self._runtime is not None:
                return self._runtime
            store = self.store
            return self._parts(store, store.info().namespace, lambda case: None)

    def _parts(self, store: Store, namespace: bytes, case_opened: Callable[[str], None]) -> Runtime:
        return Runtime(
            store=store,
            content=Content(store, store.folder),
            namespace=namespace,
            find=self._table.get,
            find_task=self._find_task,
            known=lambda: {*self._table, *self._tasks},
            vault=self._vault,
            monotonic=self.clock.monotonic,
            pause=self.clock.pause,
            apause=self.clock.apause,
            invoke=self._invoke,
            case_opened=case_opened,
            patience=self._patience,
            randomness=self._randomness,
        )

    def _find_task(self, name: str) -> StepDefinition | None:
        task = self._tasks.get(name)
        return None if task is None else task.code.definition

    def _settle_within(self, step: str) -> int:
        definition = self._table.get(step)
        return definition.settle_within_us if definition is not None else parse_duration("PT1H")

    def verify(self) -> list[Problem]:
        """Check every chain, gap, ref, projection and the mark, and how each step moved; read only. Empty: nothing found."""
        found = self.store.verify()
        for head in [] if found else self.store.heads():  # of a damaged log, the damage is what has to be told
            moves = Moves()
            for row in self.store.rows(head.task_id):
                found += [
                    Problem(head.task_id, row.event_seq, f"the step at {path} moves from {before or 'nothing'} to {after}")
                    for path, before, after in moves.add(row)
                ]
        return found

    # ------------------------------------------------------------ people

    def settle(self, case_id: str, answer: AnyAnswer, *, by: str, why: str, shown: str) -> Case:
        """Take a person's answer to a case, once; durable at return. Wakes the task; a worker or `resume` goes on.

        Shapes: `shown` is the case's `hash` (8 characters of it do): the answer is bound to what was shown.
        Raises: AlreadySettled (by whom, when), CaseChanged (look again), AnswerRefused, UnknownCase.
        """
        from .inbox import settle

        case = settle(self.reading, case_id, answer, by=by, why=why, shown=shown, authorize=self._authorize)
        self._runs.wake_workers()
        return case

    def send_event(self, task_id: str, name: str, payload: Any = None, *, event_id: str | None = None) -> Received:
        """Tell a task something from outside: what its ``app.wait_for(name)`` waits for, now or later. Durable at return.

        Meaning: an event answers the first open wait of its name; where none is open it is kept, and the next wait of
        that name takes it: in the order of the log, each once. The same `event_id` again changes nothing and returns
        the same, also after the task has ended; without one each call is an event of its own.
        Raises: Late (the wait has expired), EventRefused (the task has ended; the id is another event's; the payload
        does not fit), UnknownTask; then nothing is written.
        """
        from .sending import receive

        received = receive(self.reading, task_id, name, payload, self._randomness(16).hex() if event_id is None else event_id)
        self._runs.wake_workers()
        return received

    def compensate(self, task_id: str, *, by: str, why: str, wait: bool | str = True) -> str:
        """Undo what a task that is done did, the latest first; its status then: ``compensated``.

        Meaning: done is final but for this wish: the task goes on to `compensating` and to `compensated`, or to `failed`
        where a person lets something stand. Its code is not run again. Called again it goes on where it stopped.
        Durable: the wish is recorded before anything is undone; a crash loses neither it nor what was undone.
        Raises: UsageError when the task is not done or has nothing to undo; TaskFailed when something stands; else as `run`.
        """
        from .orders import order_undoing, see_through

        check_wait(wait)
        order_undoing(self.runtime, self._known(task_id), by, why)
        status = see_through(self._runs, self.store, task_id, wait)
        ended = self._runs.ended(task_id)
        if ended is not None and status != TaskStatus.COMPENSATED:
            self._runs.result(ended)
        return status

    def cancel(self, task_id: str, *, by: str, why: str, wait: bool | str = True) -> str:
        """Cancel a task: nothing new begins, what runs is settled first, then what it did is undone; its status then.

        Meaning: its children are cancelled first. Another owner sees it before its next step; a task that nobody owns comes
        to its end here: `cancelled`, or `compensated` where it had effects to undo. The first end wins: of a task that has
        ended the status is given, and nothing happens.
        Durable: the wish is recorded when this returns, or raises what the task stands before.
        Raises: UsageError, UnknownTask; else as `run`: NeedsHuman where a person has to settle something first.
        """
        from .orders import order_cancelling, see_through

        check_wait(wait)
        head = self._known(task_id)
        if head.status in TERMINAL:
            return head.status
        self._runs.tell(order_cancelling(self.runtime, task_id, by, why))
        self._runs.wake_workers()
        return see_through(self._runs, self.store, task_id, wait)

    def freeze(self, step: str | Step[..., Any] | None = None, *, why: str, by: str = "") -> None:
        """Stop new attempts of a step's writes now (None: of all); look-backs, reads and deadlines go on. Durable."""
        self._store_event(Kind.STORE_FROZEN, step, {"why": why, "by": by})

    def thaw(self, step: str | Step[..., Any] | None = None, *, why: str = "", by: str = "") -> None:
        """Let frozen writes go on. Durable; tasks that stood before it go on when they are resumed."""
        self._store_event(Kind.STORE_THAWED, step, {"why": why, "by": by})
        self._runs.wake_workers()

    def _store_event(self, kind: Kind, step: str | Step[..., Any] | None, data: dict[str, Any]) -> None:
        from .outcomes import unstorable

        for key, text in data.items():
            if (fault := unstorable(text)) is not None:
                raise UsageError(f"{key} {fault}; nothing was written")
        name = step.name if isinstance(step, Step) else step
        if name is not None and self._steps and name not in self._steps:
            raise UnknownStep(f"there is no step {name}", hint=f"there are: {', '.join(sorted(self._steps))}", step=name)
        store = self.store
        if kind == Kind.STORE_THAWED and (name or "*") not in store.frozen():
            raise UsageError(f"{name or 'every step'} is not frozen", hint=f"frozen are: {', '.join(store.frozen()) or 'none'}")
        store.add(STORE_TASK, [draft(STORE_TASK, kind, store.now(), step_name=name or "*", data=data)])

    def close(self) -> None:
        """Close the store; runs that are going on keep theirs. The app can be used again."""
        with self._lock:
            store, self._store, self._runtime = self._store, None, None
        if store is not None:
            store.close()


def check_task_id(task_id: object) -> None:
    """Refuse what is no task id: 200 printable characters, no ``/`` (children's), no leading ``$`` (the store's)."""
    fault = ""
    if not isinstance(task_id, str) or not task_id:
        fault = "a task needs an id, a text"
    elif len(task_id) > 200:
        fault = f"a task id has at most 200 characters; this one has {len(task_id)}: {task_id[:40]!r}…"
    elif not task_id.isprintable():
        fault = f"a task id is printable, without newlines or control characters: {task_id!r}"
    elif "/" in task_id or task_id.startswith("$"):
        fault = f"task id {task_id!r}: '/' is kept for child tasks and a leading '$' for the store"
    if fault:
        raise UsageError(fault, hint='give it one as in app.run(task, "recon-2026-11-28", …)')


def refuse_rewind(task_id: str, asked: Mapping[str, Any]) -> UsageError:
    """The error for going on from an earlier place of a task, or for an option that `resume` does not have."""
    if set(asked) - {"at"}:
        return UsageError(f"resume() takes no {', '.join(sorted(set(asked) - {'at'}))}; nothing was done")
    at = asked["at"]
    return UsageError(
        f"task {task_id} is not rewound: its log says what happened, and effects do not go away; nothing was done",
        hint=f'a fork goes another way from a step: app.fork("{task_id}", at={at}), '
        f"or doubtless fork MODULE:APP {task_id} --at {at}",
        task=task_id,
    )


def check_wait(wait: object) -> None:
    """Refuse a `wait` that is neither True nor False nor a duration, before anything is written."""
    if not isinstance(wait, bool):
        parse_duration(wait)  # type: ignore[arg-type]  # it refuses what is none


def name_of_step(step: object) -> str:
    """The name of a step that is given by itself or by its name."""
    name = step.name if isinstance(step, Step) else step
    if not isinstance(name, str):
        raise UsageError(f"{step!r} is no step", hint="say steps, or their names")
    return name


def _nothing() -> None:
    """What a step without a function holds until the table is refused."""


def broken_definition(name: str) -> StepDefinition:
    """A stand-in for a step whose declaration has faults; the table raises them before anything runs."""
    definition, _ = define(name, call=_nothing, effect="read")
    assert definition is not None
    return definition
