"""The sync driver: a loop around `executor.run_step` that calls user code, waits, and is timed by a supervisor.

User code is called in `invoke` and nowhere else; `adrivers` has the loop for an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import forks
from .attempts import begin_call, finish_call
from .calls import PLAIN, Frame, Input, Raised, Reply, Returned, Run, RunChild, StepLoop, Wait, current
from .canonical import encode
from .effects import StepDefinition
from .errors import Moved, OutsideTask, Parking, StaleEpoch, StoreError, UsageError
from .events import Kind, StepStatus, draft, elapsed_most
from .executor import run_step
from .protocol import FIRST

if TYPE_CHECKING:
    pass


def invoke(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The one place where user code is called; `doubtless.testing` goes between it and the drivers."""
    return fn(**kwargs)


def drive_step(run: Run, definition: StepDefinition, path: str, given: Input) -> Any:
    """Run the step at `path` in this thread; where nothing is logged and no step is open, straight to its call."""
    if not run.log.open and not run.suspect and given.once is None and run.log.undo_by is None:
        try:
            frame = begin_call(run, definition, definition.effective, path, given, None, FIRST, run.runtime.store.now())
            done = None if frame is None else finish_call(frame, call_here(run, frame))
        except (StoreError, StaleEpoch) as error:
            raise run.broken(error) from error
        if done is not None:
            return done[0]
    return drive(run, run_step(run, definition, path, given))


def drive(run: Run, loop: StepLoop) -> Any:
    """The sync driver: calls run in this thread; a supervisor may take an overrun call away from it."""
    reply: Reply = None
    try:
        while True:
            request = loop.send(reply)
            if isinstance(request, Wait):
                wait(run, request)
                reply = None
            elif isinstance(request, RunChild):
                assert run.runtime.run_child is not None
                reply = run.runtime.run_child.run_to_end(run, request)
            else:
                reply = call_here(run, request)
    except StopIteration as end:
        return end.value
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def call_here(run: Run, frame: Frame) -> Reply:
    """Call in this thread, visible to the supervisor while it lasts."""
    frame.deadline = run.runtime.monotonic() + frame.policy.timeout_us / 1e6
    with run.lock:
        try:
            run.check()
        except Parking as parking:  # a signal came between the attempt's row and its call: rule 7
            return Raised(parking, entered=False)
        frame.entered = True
        run.frames.add(frame)
    token = current.set(frame)
    reply = called(frame)
    current.reset(token)
    with run.lock:
        frame.done = True
        run.frames.discard(frame)
        given_up = frame.overrun
    if given_up:
        run.late(frame, reply)
        raise run.park("the call overran its timeout and was settled without this thread")
    return reply


def called(frame: Frame) -> Returned | Raised:
    """Call a sync function; whatever it raises is its outcome. Only the process that began the call comes back."""
    before = forks.times
    try:
        value = frame.run.runtime.invoke(frame.fn, frame.kwargs)
        if type(value) not in PLAIN and hasattr(value, "__await__"):
            if hasattr(value, "close"):
                value.close()
            raise UsageError(f"{frame.name} returned an awaitable in a sync call", hint="declare it with async def")
        reply: Returned | Raised = Returned(value)
    except BaseException as error:  # noqa: BLE001
        reply = Raised(error)
    if forks.times != before:
        forks.end_child(frame.name, reply.error if isinstance(reply, Raised) else None)
    return reply


def wait(run: Run, request: Wait) -> None:
    """Wait in place until the time or until the log moves; or park until then.

    The wait is a length of time, over as soon as either clock says so: a wall clock that is set back does not stretch it.
    """
    run.check()
    if request.beside:
        run.stop.wait(request.until / 1e6)
        run.log.refresh()
        return
    if request.branches and run.loop is not None:  # in this thread nothing of it goes on before this call has returned
        if request.aside is not None and request.later is not None:
            raise run.step_aside(request.aside, request.why, until=request.later)
        raise run.park(request.why, until=request.later, awaits=request.awaits)
    if not run.may_wait(request.until):
        raise run.park(request.why, until=request.until)
    store = run.runtime.store
    begun, seen = request.since or store.now(), run.log.seq if request.seen is None else request.seen
    while not run.stop.is_set():
        left = request.until - begun.wall - elapsed_most(begun, store.now())
        if left <= 0 or run.log.refresh() or run.log.seq != seen:
            return
        run.runtime.pause(left / 1e6, run.stop)
    run.check()


def record_handle(handle: Any) -> None:
    """Record, durably and at once, the other system's id of what this step is creating (rule 9).

    Meaning: called inside a step, before its reply is looked at; the query gets it as `handle` and `handles`.
    After it, an absence is no proof and the attempt can no longer be `not_sent` or `rejected`.
    Shapes: any JSON value with a canonical form, ``"sheet-4711"``.
    Raises: OutsideTask when no step is running in this context.
    """
    frame = current.get()
    if not isinstance(frame, Frame) or frame.what != "call":
        raise OutsideTask("record_handle() was called outside a step", hint="call it in the step's function, in its own thread")
    run = frame.run
    text = run.runtime.vault.mask(encode(handle, where="handle"))
    row = draft(
        run.task_id, Kind.HANDLE_RECORDED, run.runtime.store.now(), step_seq=frame.step_seq, path=frame.path,
        step_name=frame.name, status=StepStatus.UNCERTAIN, attempt=frame.attempt, epoch=run.log.epoch,
        data='{"handle":' + text + "}",
    )  # fmt: skip
    while True:
        try:
            run.log.append(row)
            return
        except Moved:
            continue
        except StaleEpoch:  # evidence needs no epoch
            run.runtime.store.add(run.task_id, [row])
            return
