"""Sessions: somebody else owns the loop (an agent framework, an MCP client, a notebook) and asks for single calls."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from .calls import Input, current
from .endings import Ending
from .errors import OutsideTask, Parking, StepFailed, UsageError
from .guests import GuestCall, Guests, SessionCall
from .inputs import prepare
from .log import Settled
from .outcomes import unstorable
from .outputs import replayed
from .steps import Step
from .tasks import PULSE
from .visits import Unfinished, avisit_step, visit_step

if TYPE_CHECKING:
    from .app import Doubtless
    from .effects import StepDefinition
    from .openings import Opening

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Session:
    """A task whose loop somebody else owns: its host opens it, calls steps, and leaves it until the next time.

    Meaning: ``with app.session("thread-42") as session:`` (or ``async with``) claims it; calls may come from several
    threads or asyncio tasks. Leaving the block normally acknowledges its calls: the host has saved their results. After a
    crash or an exception the next opening meets again what was recorded: the same step and params get the result that is
    there, and the first other write is `Refused`, with a text that says what stands.
    Durable: every write has its row before it is called, and its result before `call` returns it.
    """

    def __init__(self, app: Doubtless, session_id: str, *, wait: bool | str = True) -> None:
        self.id = session_id
        self._app = app
        self._wait = wait
        self._opening: Opening | None = None
        self._guests: Guests | None = None

    # ------------------------------------------------------------ opening and leaving

    def __enter__(self) -> Self:
        opening, guests = self._claim()
        try:
            self._settle(opening, guests)
        except BaseException:
            self._leave(opening, guests, None)
            raise
        return self

    async def __aenter__(self) -> Self:
        opening, guests = self._claim()
        try:
            await self._asettle(opening, guests)
        except BaseException:
            self._leave(opening, guests, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opening is None:
            return  # it was finished inside the block
        opening, guests = self._parts()
        answered = self._close(opening, guests)
        try:
            for pending in opening.turns.pending():
                _wait(pending)
        except BaseException as interruption:
            answered = None  # interrupted while it was left: not normally
            opening.cut(interruption)
            for pending in opening.turns.pending():
                _wait(pending)
            raise
        finally:
            self._leave(opening, guests, answered if error is None else None)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opening is None:
            return
        opening, guests = self._parts()
        answered = self._close(opening, guests)
        interruption: BaseException | None = None
        while pending := opening.turns.pending():
            try:
                await _ended(pending[0])
            except BaseException as cancelled:  # they end by themselves, at their timeouts at the latest  # noqa: BLE001
                interruption = cancelled
                if isinstance(cancelled, GeneratorExit):
                    break
        self._leave(opening, guests, answered if error is None and interruption is None else None)
        if interruption is not None:
            raise interruption

    def _claim(self) -> tuple[Opening, Guests]:
        """Become the session's owner; a new one is recorded first."""
        if current.get() is not None:
            raise OutsideTask(
                f"session {self.id} was opened inside a task or a step; nothing was written",
                hint="a session is for code that Doubtless does not run; a task calls its steps itself",
            )
        if self._opening is not None:
            raise UsageError(f"session {self.id} is open already", hint="call app.session(…) again for the next opening")
        opening = self._app._open_session(self.id)
        try:
            opening.wait = self._wait
            self._guests = Guests(opening)
        except BaseException:
            self._app._runs.close(opening, Ending())
            raise
        self._opening = opening
        return opening, self._guests

    def _close(self, opening: Opening, guests: Guests) -> list[GuestCall] | None:
        """Take no more calls, and let those that still run end; the calls that have their answer by now."""
        with guests.lock:
            guests.closed = True
            answered = [call for call in guests.calls if call.answered]
        opening.hurry("its session is being left")
        return answered

    def _leave(self, opening: Opening, guests: Guests, answered: list[GuestCall] | None) -> None:
        """Give the session back; `answered`: the calls that are acknowledged, None when it is not left normally."""
        guests.closed = True
        try:
            if answered is not None:
                opening.acknowledged = guests.acknowledged(answered)
            else:
                opening.unread = guests.unread()
        finally:
            self._opening = None
            self._app._runs.close(opening, Ending())
        if answered is not None and opening.trouble is not None:
            raise opening.trouble  # the acknowledgement is not recorded: the host must not rely on it

    def finish(self, output: Any = None) -> None:
        """End the session: its calls are acknowledged and its task is `done`, durably at return.

        Meaning: called inside the block, when the host has saved its own state; no call may follow.
        Shapes: `output` has a canonical form; `doubtless show` shows it.
        Raises: UsageError while a call of it runs; NeedsHuman or TaskWaiting while a write is in doubt; NotCanonical.
        """
        opening, guests = self._parts()
        if opening.turns.pending():
            raise UsageError(f"session {self.id} cannot be finished while a call of it runs", hint="wait for its calls first")
        self._close(opening, guests)
        try:
            opening.log.refresh()
            guests.check_stopped()
            doubtful = opening.unsettled()
            if doubtful:
                raise guests.unsettled(doubtful[0], None)
            opening.acknowledged = guests.acknowledged([call for call in guests.calls if call.answered])
            opening.end(output)
            if not opening.ended:
                guests.check_stopped()
        except BaseException:
            opening.acknowledged, guests.closed = None, False
            opening.stay()
            raise
        self._opening = None
        self._app._runs.close(opening, Ending())

    # ------------------------------------------------------------ calling

    @overload
    def call(self, step: Step[P, R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def call(self, step: Step[..., R], /, *args: Any, call_id: str | None, **params: Any) -> R: ...
    @overload
    def call(self, step: str, /, *args: Any, call_id: str | None = None, **params: Any) -> Any: ...
    def call(self, step: Any, /, *args: Any, **params: Any) -> Any:
        """Run a step, or give the result that it has already; the same call for both.

        Meaning: `call_id` names the call within this opening: met again it gives its result. The step runs in a thread of
        its own, so that its timeout holds. Durable: the result is recorded before this returns.
        Raises: StepFailed, Refused, NeedsHuman, TaskWaiting, TaskFrozen, each with `text_for_model`; Diverged when this
        opening has the id with another step or other params; UnknownStep, UsageError before anything is written.
        """
        call_id = params.pop("call_id", None)
        definition, given = self._asked(step, args, params, call_id)
        if definition.is_async:
            raise UsageError(
                f"step {definition.name} is async; nothing was written", hint=f"await session.acall({definition.name}, …)"
            )
        opening, guests = self._parts()
        while True:
            call = guests.known(definition, given, call_id)
            if call is None:
                self._settle(opening, guests)
                call = guests.take(definition, given, call_id)
            busy = opening.turns.take(call.path)
            if busy is None:
                break
            _wait(busy)
        try:
            recorded = guests.recorded(call)
            if recorded is not None:
                return self._recorded(opening, call, recorded)
            value = visit_step(opening, definition, call.path, given)
            call.answered = True
            return value
        except Unfinished as parked:
            raise guests.parked(call, parked.visit) from None
        except StepFailed:
            call.answered = True
            raise
        finally:
            opening.turns.over(call.path)

    @overload
    def acall(self, step: Step[P, Coroutine[Any, Any, T]], /, *args: P.args, **params: P.kwargs) -> Coroutine[Any, Any, T]: ...
    @overload
    def acall(self, step: Step[P, R], /, *args: P.args, **params: P.kwargs) -> Coroutine[Any, Any, R]: ...
    @overload
    def acall(
        self, step: Step[..., Coroutine[Any, Any, T]], /, *args: Any, call_id: str | None, **params: Any
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def acall(self, step: Step[..., R], /, *args: Any, call_id: str | None, **params: Any) -> Coroutine[Any, Any, R]: ...
    @overload
    def acall(self, step: str, /, *args: Any, call_id: str | None = None, **params: Any) -> Coroutine[Any, Any, Any]: ...
    async def acall(self, step: Any, /, *args: Any, **params: Any) -> Any:
        """`call` for a host with an event loop: async steps run on it, sync ones in threads. The same rules and errors."""
        call_id = params.pop("call_id", None)
        definition, given = self._asked(step, args, params, call_id)
        opening, guests = self._parts()
        while True:
            call = guests.known(definition, given, call_id)
            if call is None:
                await self._asettle(opening, guests)
                call = guests.take(definition, given, call_id)
            busy = opening.turns.take(call.path)
            if busy is None:
                break
            await _ended(busy)
        try:
            recorded = guests.recorded(call)
            if recorded is not None:
                return self._recorded(opening, call, recorded)
            value = await avisit_step(opening, definition, call.path, given)
            call.answered = True
            return value
        except Unfinished as parked:
            raise guests.parked(call, parked.visit) from None
        except StepFailed:
            call.answered = True
            raise
        finally:
            opening.turns.over(call.path)

    @property
    def calls(self) -> tuple[SessionCall, ...]:
        """The calls of this opening (or of the last one) in the order in which they came; refused ones are none."""
        calls = [] if self._guests is None else list(self._guests.calls)
        return tuple(SessionCall(c.call_id, c.definition.name, c.path, c.replayed, c.answered) for c in calls)

    def replayed(self, call_id: str) -> bool:
        """Whether this call's write was recorded in an earlier opening, so that nothing was sent for it in this one."""
        return any(call.replayed for call in self.calls if call.call_id == call_id)

    # ------------------------------------------------------------ its parts

    def _asked(self, step: Any, args: tuple[Any, ...], params: dict[str, Any], call_id: object) -> tuple[StepDefinition, Input]:
        """What is asked for, bound and encoded. Raises OutsideTask, UnknownStep, UsageError: nothing is written yet."""
        if current.get() is not None:
            raise OutsideTask(
                f"session {self.id} was called inside a task or a step; nothing was written",
                hint="a session is for the host's own code; a task calls its steps itself",
            )
        if call_id is not None:
            fault = "is no text" if not isinstance(call_id, str) else "is empty" if not call_id else unstorable(call_id)
            if fault or len(str(call_id)) > 500:
                raise UsageError(f"call_id {fault or 'has more than 500 characters'}; nothing was written")
        opening, _ = self._parts()
        definition = self._app._step_named(step)
        return definition, prepare(opening.runtime, definition, definition.binder.bind(args, params))

    def _parts(self) -> tuple[Opening, Guests]:
        if self._opening is None or self._guests is None:
            raise UsageError(f"session {self.id} is not open; nothing was sent", hint="use it in a with block")
        return self._opening, self._guests

    def _recorded(self, opening: Opening, call: GuestCall, recorded: Settled) -> Any:
        """The result that the log holds, as it would have been given the first time."""
        with opening.visiting() as visit:
            try:
                value = replayed(visit, call.definition, call.path, recorded)
            except Parking:
                raise Unfinished(visit) from None
        call.answered = True
        return value

    def _settle(self, opening: Opening, guests: Guests) -> None:
        """Settle what is in doubt as far as it can be, before anything new begins."""
        for record in opening.doubts_open():
            busy = opening.turns.take(record.path)
            if busy is not None:
                if guests.left_in_doubt(record.path):
                    _wait(busy)
                continue
            try:
                visit_step(opening, opening.runtime.find(record.name), record.path, None, record.name)
            except Unfinished:
                pass  # who asks for what depends on it is told
            finally:
                opening.turns.over(record.path)

    async def _asettle(self, opening: Opening, guests: Guests) -> None:
        for record in opening.doubts_open():
            busy = opening.turns.take(record.path)
            if busy is not None:
                if guests.left_in_doubt(record.path):
                    await _ended(busy)
                continue
            try:
                await avisit_step(opening, opening.runtime.find(record.name), record.path, None, record.name)
            except Unfinished:
                pass
            finally:
                opening.turns.over(record.path)


def _wait(pending: Future[None]) -> None:
    """Wait until another's turn is over, and let Ctrl-C through."""
    while True:
        try:
            pending.result(PULSE)
            return
        except TimeoutError:
            continue


async def _ended(pending: Future[None]) -> None:
    """Wait until another's turn is over; a cancellation of this wait is none of the other's."""
    import asyncio

    await asyncio.shield(asyncio.wrap_future(pending))
