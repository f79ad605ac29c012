"""One call on an event loop: when its row is durable, in an asyncio.Task of its own or in a thread; given up at its timeout."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import Any

from . import forks, host
from .attempts import finish_call, may_call
from .binding import is_async
from .calls import Frame, Overran, Raised, Reply, Returned, Run, current
from .drivers import called
from .errors import DoubtlessError, Parking
from .events import Effect
from .outcomes import NotSent
from .turns import seats, turn_of


def make_call(run: Run, frame: Frame) -> Coroutine[Any, Any, Reply]:
    """Call, when the attempt's row is durable; None: it is too late for it, which is recorded.

    Raises: as what the row was refused, or what interrupted the wait for it; then nothing was written, and nothing is called.
    """
    if frame.definition.is_async if frame.what == "call" else is_async(frame.fn):
        return Call(run, frame).made()
    return call_seated(run, frame)


async def land(run: Run, frame: Frame) -> tuple[BaseException | None, DoubtlessError | None]:
    """Wait until a row that shares a commit is durable: what interrupted the wait, and what the row was refused as.

    However the wait ends, what came of the row is known then.
    """
    interrupted, frame.interrupted = frame.interrupted, None
    if frame.flight is None:
        return interrupted, None
    if interrupted is None and not frame.flight.ticket.done:
        try:
            await (run.turn or turn_of(run.runtime.store)).end(frame.flight.ticket)
        except BaseException as error:  # noqa: BLE001 - the run is cancelled, or its loop is torn down: the commit is made now
            interrupted = error
    refused, frame.flight = take_in(run, frame), None
    return interrupted, refused


def take_in(run: Run, frame: Frame) -> DoubtlessError | None:
    """Take in the row that was on its way, committed now if it is not yet; what it was refused as, and is if asked again."""
    assert frame.flight is not None
    try:
        run.log.landed(frame.flight)
    except DoubtlessError as error:
        return error
    frame.flight = None
    return None


GRACE = 0.5
"""Seconds that a cancelled async call has to end before it counts as still running."""


async def call_seated(run: Run, frame: Frame) -> Reply:
    """Call a sync function in a thread, once one of the loop's seats is free; a call that is given up gives its seat back.

    Waiting for a seat is no part of the call's timeout. After it, it is looked again whether the call may still be made.
    """
    if frame.flight is not None:
        interrupted, refused = await land(run, frame)
        if refused is not None:
            raise interrupted or refused
        if interrupted is not None:
            return Raised(interrupted, entered=False)
        frame.landed = True
        if not may_call(frame):
            return None
    free = seats()
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
        return await Call(run, frame, threaded=True).made()
    finally:
        free.release()


class Call:
    """One call on the event loop: as an `asyncio.Task` of its own, or of a sync function in a thread.

    Whoever waits for it is woken once. What comes before is called back by the loop: the call begins when its row has landed
    (`row_landed`), and its own task records what it returned (`work`), whose row has landed, too, when it is handed on
    (`output_landed`). Wherever something stands against that, whoever waits looks for himself.
    """

    __slots__ = ("call", "context", "frame", "loop", "reply", "run", "threaded", "turn", "waiter")

    def __init__(self, run: Run, frame: Frame, threaded: bool = False) -> None:
        self.run = run
        self.frame = frame
        self.threaded = threaded
        self.turn = run.turn or turn_of(run.runtime.store)
        self.loop = self.turn.loop
        self.waiter: asyncio.Future[None] = self.loop.create_future()
        self.call: asyncio.Future[Returned | Raised] | None = None
        self.reply: Returned | Raised | None = None

    async def made(self) -> Reply:
        """Make it, when the attempt's row is durable, and give it up at its timeout; as `make_call`."""
        run, frame, interrupted = self.run, self.frame, None
        try:
            if frame.flight is None:
                self.begin()
            else:
                self.context = contextvars.copy_context()
                self.turn.then(frame.flight.ticket, self.row_landed)
            await self.waiter
        except BaseException as error:  # noqa: BLE001 - the run itself is cancelled: rule 7
            interrupted = error
        call = self.call
        if call is None:
            return self.not_begun(interrupted)
        self.turn.times.forget(self.wake)
        if interrupted is None and call.done():
            return self.ended(call)
        if interrupted is not None and frame.finished is not None and frame.finished[0] is not None:
            frame.interrupted = interrupted  # its output stands: first it is handed on
            return self.ended(call)
        if isinstance(interrupted, GeneratorExit) or frame.finished is not None:
            assert interrupted is not None
            raise interrupted
        reply = await self.give_up(call)
        if interrupted is not None:
            if isinstance(reply, Returned):
                run.late(frame, reply)  # it came through all the same: evidence
            return Raised(interrupted, running=reply is None and frame.entered, entered=frame.entered)
        if isinstance(reply, Returned):
            return reply
        return Overran(running=reply is None) if frame.entered else Raised(NotSent("its turn did not come within its timeout"))

    def wake(self, why: object = None) -> None:
        """Wake whoever waits for it, unless that has happened; with what broke in on a commit, if something did."""
        if not self.waiter.done():
            if isinstance(why, BaseException):
                self.waiter.set_exception(why)
            else:
                self.waiter.set_result(None)

    def begin(self) -> None:
        self.call = self.in_thread() if self.threaded else self.loop.create_task(self.work())
        self.call.add_done_callback(self.wake)
        self.turn.times.watch(self.wake, self.frame.policy.timeout_us / 1e6)

    def row_landed(self, failed: BaseException | None) -> None:
        """Begin, if the attempt's row is durable and somebody still waits."""
        try:
            if failed is None and not self.waiter.done() and take_in(self.run, self.frame) is None:
                self.frame.landed = True
                if may_call(self.frame):
                    self.context.run(self.begin)
                    return
        except BaseException as error:  # noqa: BLE001
            failed = error
        self.wake(failed)

    def not_begun(self, interrupted: BaseException | None) -> Raised | None:
        """Why it was not made: interrupted before its row was durable, or too late, which is recorded."""
        if self.frame.flight is not None:
            error, self.frame.flight = take_in(self.run, self.frame), None
            if error is not None:
                raise interrupted or error
            if interrupted is not None:
                return Raised(interrupted, entered=False)
        if interrupted is not None:
            raise interrupted
        return None

    async def work(self) -> Returned | Raised:
        """Call an async function; whatever it raises is its outcome, also what an `asyncio.Task` would let through its loop.

        An output whose row shares a commit is recorded here, while somebody waits for it.
        """
        frame = self.frame
        token = current.set(frame)
        frame.entered = True
        if self.call is not None:
            self.call.remove_done_callback(self.wake)  # it is called here at once, and not when the loop sees that this is done
        before = forks.times
        try:
            value = frame.run.runtime.invoke(frame.fn, frame.kwargs)
            if type(value) is CoroutineType or isinstance(value, Awaitable):
                value = await value
            reply: Returned | Raised = Returned(value)
        except BaseException as error:  # noqa: BLE001
            reply = Raised(error)
        self.reply = reply
        if forks.times != before:
            forks.end_child(frame.name, reply.error if isinstance(reply, Raised) else None)
        try:
            if frame.shares and type(reply) is Returned and not self.waiter.done():
                current.reset(token)
                try:
                    frame.finished = finish_call(frame, reply), None
                except BaseException as error:  # noqa: BLE001 - it is for whoever waits
                    frame.finished = None, error
                if frame.flight is not None:
                    self.turn.then(frame.flight.ticket, self.output_landed)
                    return reply
            self.wake()
        except (RuntimeError, ValueError):  # its event loop is closed, or gone with its context: nobody waits any more
            pass
        return reply

    def output_landed(self, failed: BaseException | None) -> None:
        """Hand the output on; where its row was refused, whoever waits is told so again."""
        try:
            if failed is None and not self.waiter.done():
                take_in(self.run, self.frame)
        except BaseException as error:  # noqa: BLE001
            failed = error
        self.wake(failed)

    def in_thread(self) -> asyncio.Future[Returned | Raised]:
        """Run a sync call in a daemon thread: a hung one must not hold up the end of the process."""
        frame, loop, context = self.frame, self.loop, contextvars.copy_context()
        context.run(current.set, frame)
        future: asyncio.Future[Returned | Raised] = loop.create_future()

        def work() -> None:
            with frame.run.lock:
                if frame.overrun:  # given up before it began
                    return
                frame.entered = True
            self.reply = reply = context.run(called, frame)
            with frame.run.lock:  # a signal may break in on what tells the loop: `done` says that there is a reply
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

    async def give_up(self, call: asyncio.Future[Returned | Raised]) -> Returned | Raised | None:
        """Cancel a call that overran; None: it goes on, and what comes of it is late news. One that has ended counts."""
        run, frame = self.run, self.frame
        if self.threaded:
            with run.lock:
                frame.overrun = not frame.done
                if frame.overrun and frame.entered:
                    run.left_behind(frame)
            return None if frame.overrun else self.ended(call)
        call.cancel()
        try:
            await asyncio.wait({call}, timeout=GRACE)
        except asyncio.CancelledError:
            pass  # cancelled twice: do not wait for it
        if call.done():
            return self.ended(call)
        frame.overrun = True
        run.left_behind(frame)
        call.add_done_callback(lambda ended: run.late(frame, self.ended(ended)))
        return None

    def ended(self, call: asyncio.Future[Returned | Raised]) -> Returned | Raised:
        """What a call that has ended came to. One that was cancelled before it began has no result of its own.

        Of one that asked for its own cancellation its asyncio.Task knows no result, but it was made.
        """
        if self.reply is not None:
            return self.reply
        try:
            return call.result()
        except asyncio.CancelledError as error:
            return Raised(error, entered=False)


def torn_down(run: Run, frame: Frame, gone: GeneratorExit) -> Raised:
    """What a call came to whose event loop is gone: nothing can be awaited any more; a thread of it goes on.

    Raises: GeneratorExit, where the attempt's row was still on its way: it is in doubt.
    """
    if not frame.landed:
        raise gone
    with run.lock:
        running = frame.entered and not frame.done
        if running and not frame.definition.is_async:
            frame.overrun = True
            run.left_behind(frame)
    return Raised(gone, running=running, entered=frame.entered)


def _set(future: asyncio.Future[Returned | Raised], reply: Returned | Raised) -> None:
    if not future.done():
        future.set_result(reply)
