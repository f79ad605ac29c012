"""The async driver: a loop around `executor.run_step` on an event loop, where many tasks run side by side.

Loaded when the first async task runs: with asyncio it is most of what an import would cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .acalls import land, make_call, torn_down
from .attempts import StoreRefusal, begin_call, finish_call, unwritten
from .calls import Frame, Input, Reply, Request, Run, RunChild, StepLoop, Wait
from .effects import StepDefinition
from .errors import DoubtlessError, StaleEpoch, StoreError
from .events import Event, elapsed_most
from .executor import due, run_step
from .outputs import replayed
from .protocol import FIRST
from .turns import turn_of

if TYPE_CHECKING:
    from .passes import Pass
    from .store.base import Blob, Claim, Store


def go_on_loop(run: Pass) -> None:
    """Let a pass run in the event loop of this thread."""
    turn = turn_of(run.runtime.store)
    run.loop, run.turn, run.here, run.adrive_step = turn.loop, turn, turn.here, adrive_step


async def begin_on_loop(
    store: Store, accepted: Event, blobs: Sequence[Blob], give_back: Callable[[Claim], None]
) -> Claim | None:
    """`Store.begin`, in a commit that the loop's tasks share. Interrupted, what it has begun is given back, and stands ready.

    `give_back`: raises nothing of the store, also where that does not take it now.
    """
    ticket = store.submit_begin(accepted, blobs)
    begun: Claim | None
    try:
        await turn_of(store).end(ticket)
        begun = store.landed(ticket)
    except DoubtlessError:
        raise
    except BaseException:  # also a signal that breaks in where the claim is taken in
        with suppress(DoubtlessError):  # it was not begun, or nobody knows: the caller is told what has interrupted it
            begun = store.landed(ticket)
            if begun is not None:
                give_back(begun)
        raise
    return begun


async def adrive_step(run: Pass, definition: StepDefinition, path: str, given: Input, met: bool) -> Any:
    """Run the step at a place that was given, on the event loop, in the asyncio.Task of its scope.

    `met`: what the log holds there was looked at; otherwise it is first, when the call is awaited, and may be the answer.
    Where nothing is logged and no step is open, it goes straight to its call. One coroutine, because all of them are resumed
    whenever the step goes on.
    """
    log = run.log
    if not met:
        run.check()
        run.undriven.pop(path, None)  # not before: what begins only after the task's code has ended is never driven
        settled = run.enter(definition, path, given)
        if settled is not None:
            return replayed(run, definition, path, settled)
    here = run.here()
    branch = here if here is not run.root.aio_task else None
    if branch is not None:
        run.branches.add(branch)
    run.driving.add(path)
    try:
        if not log.open and not run.suspect and given.once is None and log.undo_by is None:
            now = run.runtime.store.now()
            frame = begin_call(run, definition, definition.effective, path, given, None, FIRST, now, shares=True)
            if frame is not None:
                try:
                    reply = await make_call(run, frame)
                except StoreRefusal as refusal:  # its row was not written, and nothing was called
                    unwritten(run, definition, refusal)
                    reply = None
                except GeneratorExit as gone:
                    reply = torn_down(run, frame, gone)
                if reply is not None:
                    done = finish_call(frame, reply)
                    if done is not None:
                        return done[0] if is_told(frame) else await _landed_result(run, frame, reply, done[0])
        return await adrive(run, run_step(run, definition, path, given, shares=True))
    except (StoreError, StaleEpoch) as error:
        parking = run.broken(error)
        raise broken_in_on(run, definition, path, branch, parking) from error
    except BaseException as error:  # noqa: BLE001
        raise broken_in_on(run, definition, path, branch, error)  # noqa: B904 - most often it is the same
    finally:
        run.driving.discard(path)
        if branch is not None:
            run.branches.discard(branch)


def broken_in_on(
    run: Pass, definition: StepDefinition, path: str, branch: asyncio.Task[Any] | None, error: BaseException
) -> BaseException:  # fmt: skip
    """What to raise for what came out of a step on the event loop: rule 7, where it was broken in on."""
    if isinstance(error, asyncio.CancelledError):
        run.break_off(definition.name, path, due(run, definition, path))
    elif branch is not None and isinstance(error, KeyboardInterrupt | SystemExit):
        run.interrupted = error  # an asyncio.Task would let it through its event loop, past the run
        parking = run.park(f"interrupted: {type(error).__name__}")
        parking.__cause__ = error
        return parking
    return error


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
                frame = request
                try:
                    reply = await make_call(run, frame)
                except GeneratorExit as gone:
                    reply = torn_down(run, frame, gone)
                except BaseException as error:  # noqa: BLE001 - nothing was written, nothing is called
                    reply, go_on = error, loop.throw
    except StopIteration as end:
        if frame is None or is_told(frame):
            return end.value
        return await _landed_result(run, frame, reply, end.value)
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def is_told(frame: Frame) -> bool:
    """Whether nothing is left to wait for, or to tell, before the output of the call is handed on."""
    return frame.flight is None and frame.interrupted is None


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
        here = asyncio.current_task()
        if not isinstance(interrupted, asyncio.CancelledError) or here is None:
            raise interrupted
        here.uncancel()
        here.cancel()  # the step is done: the task is cancelled where it waits next
    return value


async def await_time(run: Run, request: Wait) -> None:
    """`wait` without blocking the event loop."""
    run.check()
    if request.beside:
        await asyncio.sleep(request.until / 1e6)
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
