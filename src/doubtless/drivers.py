"""The sync and async drivers: loops around `executor.run_step` that call user code, wait, and time.

User code is called in `invoke` and nowhere else.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from . import forks, host
from .binding import is_async
from .calls import PLAIN, Frame, Input, Invoke, Overran, Raised, Reply, Request, Returned, Run, RunChild, StepLoop, Wait, current
from .canonical import encode
from .effects import StepDefinition
from .errors import DoubtlessError, Moved, OutsideTask, Parking, StaleEpoch, StoreError, UsageError
from .events import Effect, Kind, StepStatus, draft, elapsed_most
from .executor import begin_call, finish_call, may_call, run_step
from .outcomes import NotSent
from .protocol import FIRST

if TYPE_CHECKING:
    import asyncio


def invoke(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The one place where user code is called; `doubtless.testing` goes between it and the drivers."""
    return fn(**kwargs)


def drive_step(run: Run, definition: StepDefinition, path: str, given: Input) -> Any:
    """Run the step at `path` in this thread; where nothing is logged and no step is open, straight to its call."""
    if not run.log.open and not run.suspect and given.once is None and run.log.undo_by is None:
        try:
            request = begin_call(run, definition, definition.effective, path, given, None, FIRST, run.runtime.store.now())
            done = None if request is None else finish_call(request.frame, call_here(run, request))
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


def call_here(run: Run, request: Invoke) -> Reply:
    """Call in this thread, visible to the supervisor while it lasts."""
    frame = request.frame
    frame.deadline = run.runtime.monotonic() + request.timeout_us / 1e6
    with run.lock:
        try:
            run.check()
        except Parking as parking:  # a signal came between the attempt's row and its call: rule 7
            return Raised(parking, entered=False)
        frame.entered = True
        run.frames.add(frame)
    token = current.set(frame)
    reply = called(request)
    current.reset(token)
    with run.lock:
        frame.done = True
        run.frames.discard(frame)
        given_up = frame.overrun
    if given_up:
        run.late(frame, reply)
        raise run.park("the call overran its timeout and was settled without this thread")
    return reply


def called(request: Invoke) -> Returned | Raised:
    """Call a sync function; whatever it raises is its outcome. Only the process that began the call comes back."""
    before = forks.times
    try:
        value = request.frame.run.runtime.invoke(request.fn, request.kwargs)
        if type(value) not in PLAIN and hasattr(value, "__await__"):
            if hasattr(value, "close"):
                value.close()
            raise UsageError(f"{request.frame.name} returned an awaitable in a sync call", hint="declare it with async def")
        reply: Returned | Raised = Returned(value)
    except BaseException as error:  # noqa: BLE001
        reply = Raised(error)
    if forks.times != before:
        forks.end_child(request.frame.name, reply.error if isinstance(reply, Raised) else None)
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


async def adrive(run: Run, loop: StepLoop) -> Any:
    """The async driver: async calls on the event loop; sync ones of `acall` in a thread of their own."""
    reply: Any = None
    frame: Frame | None = None
    go_on: Callable[[Any], Request] = loop.send
    try:
        while True:
            request, go_on = go_on(reply), loop.send
            if isinstance(request, Wait):
                await await_time(run, request)
                reply = None
            elif isinstance(request, RunChild):
                assert run.runtime.run_child is not None
                reply = await run.runtime.run_child.arun_to_end(run, request)
            else:
                frame = request.frame
                if frame.flight is not None:
                    interrupted, error = await land(run, frame)
                    if error is not None:  # nothing was written, nothing is called
                        reply, go_on = interrupted or error, loop.throw
                        continue
                    if interrupted is not None:
                        reply = Raised(interrupted, entered=False)
                        continue
                    if not may_call(frame):
                        reply = None
                        continue
                try:
                    if is_async(request.fn):
                        reply = await call_async(run, request)
                    else:
                        reply = await call_seated(run, request)
                except GeneratorExit as gone:  # its event loop is torn down: nothing can be awaited any more
                    reply = torn_down(run, request.frame, gone)
    except StopIteration as end:
        if frame is None or frame.flight is None:
            return end.value
        return await _landed_result(run, frame, reply, end.value)
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


async def land(run: Run, frame: Frame) -> tuple[BaseException | None, DoubtlessError | None]:
    """Wait until a row that shares a commit is durable: what interrupted the wait, and what the row was refused as.

    However the wait ends, what came of the row is known then.
    """
    from .turns import turn_of

    interrupted: BaseException | None = None
    flight, frame.flight = frame.flight, None
    assert flight is not None
    try:
        await turn_of(run.runtime.store).end()
    except BaseException as error:  # noqa: BLE001 - the run is cancelled, or its loop is torn down: the commit is made now
        interrupted = error
    try:
        run.log.landed(flight)
    except DoubtlessError as error:
        return interrupted, error
    return interrupted, None


async def _landed_result(run: Run, frame: Frame, reply: Reply, value: Any) -> Any:
    """The output, once the row that settles its step is durable."""
    interrupted, error = await land(run, frame)
    if error is not None:  # rule 6: it is recorded all the same, by itself
        frame.shares = False
        try:
            done = finish_call(frame, reply)
        except (StoreError, StaleEpoch) as failed:
            raise run.broken(failed) from failed
        assert done is not None
        value = done[0]
    if interrupted is not None:
        from asyncio import CancelledError, current_task

        here = current_task()
        if not isinstance(interrupted, CancelledError) or here is None:
            raise interrupted
        here.uncancel()
        here.cancel()  # the step is done: the task is cancelled where it waits next
    return value


async def await_time(run: Run, request: Wait) -> None:
    """`wait` without blocking the event loop."""
    run.check()
    if request.beside:
        from asyncio import sleep

        await sleep(request.until / 1e6)
        run.log.refresh()
        return
    if not run.may_wait(request.until):
        raise run.park(request.why, until=request.until)
    store = run.runtime.store
    begun, seen = request.since or store.now(), run.log.seq if request.seen is None else request.seen
    while True:
        left = request.until - begun.wall - elapsed_most(begun, store.now())
        if left <= 0 or run.log.refresh() or run.log.seq != seen:
            return
        await run.runtime.apause(left / 1e6)
        run.check()  # another branch may have parked the run


GRACE = 0.5
"""Seconds that a cancelled async call has to end before it counts as still running."""


async def call_seated(run: Run, request: Invoke) -> Reply:
    """Call a sync function in a thread, once one of the loop's seats is free; a call that is given up gives its seat back.

    Waiting for a seat is no part of the call's timeout. After it, it is looked again whether the call may still be made.
    """
    from .turns import seats

    free, frame = seats(), request.frame
    waited = free.locked()
    try:
        await free.acquire()
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  rule 7: the function was not entered
        return Raised(error, entered=False)
    try:
        if waited:
            try:
                run.check()
            except Parking as parking:
                return Raised(parking, entered=False)
            if frame.what == "call" and frame.policy.effect != Effect.READ and not may_call(frame):
                return None  # it is too late for it, which is recorded
        return await call_async(run, request)
    finally:
        free.release()


async def call_async(run: Run, request: Invoke) -> Reply:
    """Call as an `asyncio.Task` of its own, or a sync function in a thread; give up at its timeout."""
    import asyncio

    frame, context = request.frame, contextvars.copy_context()
    context.run(current.set, frame)
    threaded = not is_async(request.fn)
    call: asyncio.Future[Returned | Raised]
    if threaded:
        call = in_thread(request, context)
    else:
        call = asyncio.get_running_loop().create_task(awaited(request), context=context)
    interrupted: BaseException | None = None
    try:
        await asyncio.wait({call}, timeout=request.timeout_us / 1e6)
        if call.done():
            return _reply(call)
    except BaseException as error:  # the run itself is cancelled: rule 7
        if isinstance(error, GeneratorExit):
            raise
        interrupted = error
    reply = await give_up(call, frame, threaded)
    if interrupted is not None:
        if isinstance(reply, Returned):
            run.late(frame, reply)  # it came through all the same: evidence
        return Raised(interrupted, running=reply is None and frame.entered, entered=frame.entered)
    if isinstance(reply, Returned):
        return reply
    return Overran(running=reply is None) if frame.entered else Raised(NotSent("its turn did not come within its timeout"))


def torn_down(run: Run, frame: Frame, gone: GeneratorExit) -> Raised:
    """What a call came to whose event loop is gone; a thread of it goes on."""
    with run.lock:
        running = frame.entered and not frame.done
        if running and not frame.definition.is_async:
            frame.overrun = True
            run.left_behind(frame)
    return Raised(gone, running=running, entered=frame.entered)


async def give_up(call: asyncio.Future[Returned | Raised], frame: Frame, threaded: bool) -> Returned | Raised | None:
    """Cancel a call that overran; None: it goes on, and what comes of it is late news. One that has ended counts."""
    import asyncio

    run = frame.run
    if threaded:
        with run.lock:
            frame.overrun = not frame.done
            if frame.overrun and frame.entered:
                run.left_behind(frame)
        while not frame.overrun and not call.done():  # its result is on the way
            try:
                await asyncio.wait({call})
            except asyncio.CancelledError:
                pass
        return None if frame.overrun else _reply(call)
    call.cancel()
    try:
        await asyncio.wait({call}, timeout=GRACE)
    except asyncio.CancelledError:
        pass  # cancelled twice: do not wait for it
    if call.done():
        return _reply(call)
    frame.overrun = True
    run.left_behind(frame)
    call.add_done_callback(lambda ended: run.late(frame, _reply(ended)))
    return None


async def awaited(request: Invoke) -> Returned | Raised:
    """Call an async function; whatever it raises is its outcome, also what an `asyncio.Task` would let through its loop."""
    request.frame.entered = True
    before = forks.times
    try:
        value = request.frame.run.runtime.invoke(request.fn, request.kwargs)
        reply: Returned | Raised = Returned(await value if isinstance(value, Awaitable) else value)
    except BaseException as error:  # noqa: BLE001
        reply = Raised(error)
    if forks.times != before:
        forks.end_child(request.frame.name, reply.error if isinstance(reply, Raised) else None)
    return reply


def _reply(call: asyncio.Future[Returned | Raised]) -> Returned | Raised:
    """What a call that has ended came to; one that was cancelled before it began has no result of its own."""
    import asyncio

    try:
        return call.result()
    except asyncio.CancelledError as error:
        return Raised(error, entered=False)


def in_thread(request: Invoke, context: contextvars.Context) -> asyncio.Future[Returned | Raised]:
    """Run a sync call in a daemon thread: a hung one must not hold up the end of the process."""
    import asyncio

    frame, loop = request.frame, asyncio.get_running_loop()
    future: asyncio.Future[Returned | Raised] = loop.create_future()

    def work() -> None:
        with frame.run.lock:
            if frame.overrun:  # given up before it began
                return
            frame.entered = True
        reply = context.run(called, request)
        with frame.run.lock:
            frame.done = True
            late = frame.overrun
        if late:
            frame.run.late(frame, reply)
        else:
            try:
                loop.call_soon_threadsafe(_set, future, reply)
            except RuntimeError:  # the loop is closed: nobody waits any more
                frame.run.late(frame, reply)

    host.thread(target=work, name=f"doubtless-{frame.name}", daemon=True).start()
    return future


def _set(future: asyncio.Future[Returned | Raised], reply: Returned | Raised) -> None:
    if not future.done():
        future.set_result(reply)


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
