"""Running: tasks started, resumed and worked on; an id is one task with one input."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast, overload

from ..blobs import INLINE_BYTES
from ..canonical import decode, encode, input_hash
from ..children import root_of
from ..durations import parse_duration
from ..errors import DoesNotFit, DoubtlessError, InputDiffers, StoreError, StoreUnavailable, TaskBusy, UsageError
from ..events import TERMINAL, Event, Kind, TaskStatus, draft
from ..questions import moment
from ..standing import SESSION
from ..steps import Task
from ..tasks import loop_half
from .base import Face

if TYPE_CHECKING:
    from ..app import Doubtless
    from ..store.base import Blob, Claim, Head
    from ..worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NewTask(NamedTuple):
    """A task that is to be recorded: its first row, what that needs beside it, and its input as text."""

    first: Event
    blobs: Sequence[Blob]
    text: str


class Running(Face):
    """How an app's tasks are started and go on."""

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
        found = self._found(task, args, params)
        if not isinstance(found, NewTask):
            return self._runs.run(found.task_id, wait)
        begun = self.runtime.store.begin(found.first, found.blobs)
        return self._runs.run(self._begun(found, begun), wait, begun=begun)

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
        found = self._found(task, args, params, look=False)
        if not isinstance(found, NewTask):
            return await self._runs.arun(found.task_id, wait)
        try:
            begun = await loop_half().begin_on_loop(self.runtime.store, found.first, found.blobs, self._runs.give_back)
        except StoreError as error:
            unsure = isinstance(error, StoreUnavailable) and error.context.get("written") is None
            if unsure or self.runtime.store.head(found.first.task_id) is None:
                raise
            begun = None  # nothing was written, and nothing has to be where the task exists
        return await self._runs.arun(self._begun(found, begun), wait, begun=begun)

    @overload
    def start(self, task: Task[P, Any], task_id: str, /, *args: P.args, **params: P.kwargs) -> str: ...
    @overload
    def start(
        self, task: Task[..., Any], task_id: str, /, *, queue: str = ..., priority: int = ...,
        not_before: str | float | timedelta | datetime | None = ..., **params: Any,
    ) -> str: ...  # fmt: skip
    @overload
    def start(self, task: Task[..., Any], /, *, task_id: str, **params: Any) -> str: ...
    def start(self, task: Any, /, *args: Any, **params: Any) -> str:
        """Record the task, durably, and return its id; a worker or `resume` runs it.

        Meaning: `queue` (``"default"``) says which workers take it; of two tasks that are due a worker takes the one with the
        smaller `priority` (0) first, then the older one; none takes it before `not_before`, a duration from now (``"PT10M"``)
        or an aware datetime. They are for workers and engines: `run` and `resume` of this id run it at once. A task that
        exists keeps what it was started with.
        Units: `not_before` counts on the store's clock; `priority` is a whole number from -1000 to 1000.
        Durable: the task, at return. Raises: InputDiffers, UsageError.
        """
        place = place_of(params)
        head = self._accept(task, args, params, place)
        self._woken((head.task_id,))
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
            if head.status == TaskStatus.READY and head.wake_at is not None and head.wake_at > self.store.now().wall:
                result[head.task_id] = f"task_waiting: not before {moment(head.wake_at):%Y-%m-%dT%H:%M:%SZ}"
                continue
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

    def worker(self, *, concurrency: int = 4, queues: Iterable[str] | None = None) -> Worker:
        """A worker in this process for what `start` records; use it as a context manager.

        Meaning: runs at most `concurrency` tasks at once, of these `queues` (None: of all). A task that waits takes no place.
        """
        from ..worker import Worker

        self._validate()
        if isinstance(queues, str):
            raise UsageError(f"queues={queues!r} is one text, not several names", hint=f"queues=[{queues!r}]")
        worker = Worker(cast("Doubtless", self), concurrency=concurrency, queues=queues)
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

    def _accept(
        self, task: Any, args: tuple[Any, ...], params: dict[str, Any], place: Callable[[int], dict[str, Any]] | None = None
    ) -> Head:
        """Record the task, unless it exists; its head."""
        found = self._found(task, args, params, place)
        if isinstance(found, NewTask):
            first = found.first
            head = self.runtime.store.accept(first, found.blobs) or self._known(first.task_id)
            return self._same_input(head, task.name, first.input_hash, found.text)
        return found

    def _begun(self, found: NewTask, begun: Claim | None) -> str:
        """The id of a task that was to be begun; where somebody else was faster, it has to be the same one."""
        first = found.first
        if begun is None:
            self._same_input(self._known(first.task_id), first.step_name or "", first.input_hash, found.text)
        return first.task_id

    def _found(
        self,
        task: Any,
        args: tuple[Any, ...],
        params: dict[str, Any],
        place: Callable[[int], dict[str, Any]] | None = None,
        *,
        look: bool = True,
    ) -> Head | NewTask:
        """The head of a task that exists with this input; or what is to be recorded of one that does not.

        `look` False: whether there is one is left to the commit that would begin it, where its input is small.
        """
        if "task_id" in params:
            task_id = params.pop("task_id")
        else:
            task_id, args = (args[0], args[1:]) if args else (None, args)
        check_task_id(task_id)
        if not isinstance(task, Task) or self._tasks.get(task.name) is not task:
            raise UsageError(f"{task!r} is no task of this app", hint="declare it with @app.task")
        runtime, definition = self.runtime, task.code.definition
        text = encode(definition.binder.bind(args, params), where=f"task {task.name}")
        runtime.vault.refuse_known(text, task.name)
        digest = input_hash(runtime.namespace, text)
        misfit: DoesNotFit | None = None
        try:
            definition.restore_params(decode(text))
        except DoesNotFit as error:
            misfit = error
        if look or misfit is not None or len(text) > INLINE_BYTES:
            head = runtime.store.head(task_id)
            if head is not None:
                return self._same_input(head, task.name, digest, text)
        if misfit is not None:  # what its code could not be given is refused, not accepted
            raise misfit.within(f"{task.name}.") from misfit.__cause__
        ref, blob = runtime.content.put(text)
        now = runtime.store.now()
        first = draft(
            task_id, Kind.TASK_ACCEPTED, now, step_name=task.name, status=TaskStatus.READY, input_hash=digest, input_ref=ref,
            data=(place(now.wall) if place is not None else None) or None,
        )  # fmt: skip
        return NewTask(first, () if blob is None else (blob,), text)

    def _same_input(self, head: Head, name: str, digest: bytes | None, text: str) -> Head:
        if head.task_name != name or head.input_hash != digest:
            raise self._input_differs(head, name, text)
        return head

    def _input_differs(self, head: Head, name: str, text: str) -> InputDiffers:
        from ..drift import first_difference

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


def place_of(params: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Take `queue`, `priority` and `not_before` out of a call of `start`: what the first row says of them, at a time.

    Raises UsageError for what they cannot be, before anything is written.
    """
    queue, priority = params.pop("queue", QUEUE), params.pop("priority", 0)
    not_before = params.pop("not_before", None)
    check_queue(queue)
    if type(priority) is not int or not -1000 <= priority <= 1000:
        raise UsageError(f"priority={priority!r} is no whole number from -1000 to 1000; nothing was written")
    after_us, at = None, None
    if isinstance(not_before, datetime):
        if not_before.tzinfo is None:
            raise UsageError("not_before has no time zone; nothing was written", hint="datetime(…, tzinfo=UTC)")
        since = not_before - datetime(1970, 1, 1, tzinfo=UTC)
        at = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
    elif not_before is not None:
        after_us = parse_duration(not_before, zero=True)

    def said(now: int) -> dict[str, Any]:
        when = at if after_us is None else now + after_us
        told = {"queue": queue, "priority": priority, "not_before": when}
        return {name: value for name, value in told.items() if value not in (QUEUE, 0, None)}

    return said


QUEUE = "default"
"""The queue of a task that was started without one."""


def check_queue(queue: object) -> None:
    """Refuse what is no queue's name: 1 to 100 printable characters without commas and spaces."""
    if not isinstance(queue, str) or not 1 <= len(queue) <= 100 or not queue.isprintable() or set(queue) & {",", " "}:
        raise UsageError(
            f"queue {queue!r}: a queue's name has 1 to 100 printable characters, no comma, no space; nothing was written"
        )


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
