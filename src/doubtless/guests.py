"""What a session's guest has asked for: which call is which step, what is met again, what is refused, what is acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import host
from .calls import Input
from .drift import first_difference
from .errors import Diverged, NeedsHuman, Refused, SessionRefused, TaskFrozen, TaskWaiting, UsageError
from .events import CaseKind, Effect, Instant
from .fold import StepRecord, fold_steps
from .log import Settled
from .standing import Left, call_text, read_history, told

if TYPE_CHECKING:
    from .effects import StepDefinition
    from .errors import DoubtlessError
    from .openings import Opening
    from .visits import Visit

UNSURE = "may have happened; it is being checked. Do not repeat it"
"""How an open doubt is told to a model, never as a failure."""


CALL_AGAIN = "the same call again, later, goes on with it"
"""What to do about a call that has not got its answer yet."""


class SessionCall(NamedTuple):
    """One call of an opening. `replayed`: it was recorded in an earlier opening, and this is its result.

    `answered`: the host has got its result, or its failure; what has none yet is asked for again, or waits for a person.
    """

    call_id: str | None
    step: str
    path: str
    replayed: bool
    answered: bool


class GuestCall:
    """A call of this opening: what it asks for, and the place of its step. `logged`: the log may hold something of it."""

    __slots__ = ("answered", "call_id", "definition", "given", "logged", "path", "refused", "replayed")

    def __init__(self, call_id: str | None, definition: StepDefinition, given: Input) -> None:
        self.call_id = call_id
        self.definition = definition
        self.given = given
        self.path = ""
        self.replayed = self.answered = self.logged = False
        self.refused: Refused | None = None

    def asks_for(self, name: str, digest: bytes | None) -> bool:
        """Whether it is of that step with those params."""
        return (name, digest) == (self.definition.name, self.given.digest)


class Guests:
    """The calls of one opening of a session, and what the openings before have left. Thread-safe."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.session = opening.task_id
        self.history = read_history(opening.runtime.store.rows(self.session))
        self.lock = host.lock()
        self.calls: list[GuestCall] = []
        self.closed = False
        self._last = self.history.last
        self._by_id: dict[str, GuestCall] = {}
        self._met: set[str] = set()
        self._named: set[str] = set()
        self._left = {left.path for left in self.history.left}

    # ------------------------------------------------------------ which step a call is

    def known(self, definition: StepDefinition, given: Input, call_id: str | None) -> GuestCall | None:
        """The call of this id, when this opening has it already. Raises Diverged, Refused."""
        self.opening.log.refresh()  # what a person has settled, or stopped, meanwhile
        with self.lock:
            self._check()
            call = None if call_id is None else self._by_id.get(call_id)
            if call is None and call_id is not None and call_id in self.history.ids:
                raise self._used(call_id, definition)
        return None if call is None else self._again(call, definition, given)

    def _again(self, call: GuestCall, definition: StepDefinition, given: Input) -> GuestCall:
        """A call whose id is met again: the same one, if it asks for the same."""
        if not call.asks_for(definition.name, given.digest):
            raise self._diverged(call, definition, given)
        if call.refused is not None:
            raise call.refused
        call.logged = True
        return call

    def take(self, definition: StepDefinition, given: Input, call_id: str | None) -> GuestCall:
        """A call that is new to this opening: what an earlier one has left, or a place of its own. Raises Refused."""
        write = definition.effect != Effect.READ
        doubtful = None if definition.independent else self.in_doubt()
        left = {path: self.record(path) for path in sorted(self._left - self._met, key=int)} if write else {}
        with self.lock:
            self._check()
            if call_id is not None and call_id in self._by_id:  # another thread was faster with it
                return self._again(self._by_id[call_id], definition, given)
            call = GuestCall(call_id, definition, given)
            met = next((p for p, r in left.items() if p not in self._met and call.asks_for(r.name, r.input_hash)), None)
            if met is not None:
                call.path, call.replayed, call.logged = met, left[met].settled, True
                self._met.add(met)
            elif doubtful is not None:
                raise self.unsettled(doubtful, None)
            else:
                stands = [r for p, r in left.items() if p not in self._met and Left(r).stands]
                if stands and not self._named:
                    self._named.update(record.path for record in stands)
                    call.refused = self._refused(call, stands)
                else:
                    self._last += 1
                    call.path = str(self._last)
            if call_id is not None:
                self._by_id[call_id] = call
            if call.refused is not None:
                raise call.refused
            self.calls.append(call)
        return call

    def _check(self) -> None:
        if self.closed:
            raise UsageError(f"session {self.session} is not open; nothing was sent", hint="call inside its with block")
        self.check_stopped()

    def check_stopped(self) -> None:
        """Raise Refused when a person has cancelled the session, or it is being undone."""
        if self.opening.log.held or self.opening.log.cancel is not None:
            raise self._stopped()

    def record(self, path: str) -> StepRecord:
        """The record of a step that the log holds, as it stands now."""
        return fold_steps(self.opening.runtime.store.rows(self.session, path=path))[path]

    def recorded(self, call: GuestCall) -> Settled | None:
        """What the log holds of a call that it knows already, when that is settled."""
        if not call.logged:
            return None
        rows = self.opening.runtime.store.rows(self.session, path=call.path)
        record = fold_steps(rows).get(call.path)
        if record is None or not record.settled:
            return None
        return Settled(record.name, record.input_hash, record.status, record.output_ref, record.error)

    def unread(self) -> bool:
        """Whether a write has been asked for whose result the host may not have."""
        return any(call.definition.effect != Effect.READ for call in self.calls)

    def in_doubt(self) -> StepRecord | None:
        """A step in doubt that nobody is settling now: nothing new begins before it is settled (rule 8)."""
        return next(iter(self.opening.doubtful()), None)

    def left_in_doubt(self, path: str) -> bool:
        """Whether that place is an earlier opening's: what this one may do depends on what comes of it."""
        return path in self._left

    def acknowledged(self, answered: list[GuestCall]) -> tuple[set[str], set[str]]:
        """The places and ids whose results the host has: of its calls, and of what earlier openings left what it was told.

        What is proven without effect has to be told to nobody.
        """
        paths = {call.path for call in answered}
        for path in self._left - self._met:
            record = self.record(path)
            if record.settled and (path in self._named or not Left(record).stands):
                paths.add(path)
        return paths, {call.call_id for call in answered if call.call_id is not None}

    # ------------------------------------------------------------ what the host is told

    def _stopped(self) -> SessionRefused:
        return SessionRefused(
            f"session {self.session} is being ended: nothing new begins, and nothing was sent",
            hint=f"doubtless show {self.session}",
            text="Nothing was sent: the work on this conversation was stopped by a person.",
            task=self.session,
            step="",
        )

    def _used(self, call_id: str, definition: StepDefinition) -> Refused:
        return SessionRefused(
            f"session {self.session}: the call id {call_id!r} was used and acknowledged before; nothing was sent",
            hint="ids are unique in a session: give each call a new one",
            text=f"{definition.name} was not carried out: the call carried an id that an earlier call has had. "
            "If it is wanted, ask for it again.",
            task=self.session,
            step=definition.name,
        )

    def _diverged(self, call: GuestCall, definition: StepDefinition, given: Input) -> Diverged:
        if call.definition.name != definition.name:
            field, logged, asked = "step", call.definition.name, definition.name
        else:
            hidden = definition.volatile | definition.secret
            field, logged, asked = first_difference(call.given.text, given.text, hidden)
        message = (
            f"session {self.session}: the call id {call.call_id!r} has {field} = {logged!r} in this opening, "
            f"and is asked with {asked!r}; nothing was written"
        )
        return Diverged(message, path=call.path, field=field, logged=logged, asked=asked)

    def _refused(self, call: GuestCall, stands: list[StepRecord]) -> Refused:
        runtime, name = self.opening.runtime, call.definition.name
        lines = "\n".join(f"- {told(runtime, record)}" for record in stands)
        text = (
            f"{name} was not carried out. Before the conversation was interrupted, this had been asked for, and its result was "
            f"not seen:\n{lines}\nDo not repeat what was carried out. If {name} is still wanted besides that, ask for it again."
        )
        noun = "a write of the last opening stands" if len(stands) == 1 else f"{len(stands)} writes of the last opening stand"
        named = ", ".join(f"{record.name} at {record.path}" for record in stands)
        return SessionRefused(
            f"session {self.session}: {noun} unacknowledged ({named}); {name} was not sent",
            hint="give text_for_model to the model; asked again, under a new call id, it goes through",
            text=text,
            task=self.session,
            step=name,
            stands=[record.path for record in stands],
        )

    def unsettled(self, record: StepRecord, asked: GuestCall | None, visit: Visit | None = None) -> DoubtlessError:
        """A doubt that cannot be settled now, as the host is told; `asked`: the call that asked for that very step."""
        runtime, log = self.opening.runtime, self.opening.log
        call = call_text(runtime, record)
        text = f"{call} {UNSURE}."
        if record.settled:
            text = f"{call} was carried out; a person is asked for its result. Do not repeat it."
        elif asked is None:
            text = f"Nothing new was sent: the earlier call {call} {UNSURE}; what depends on it has to wait."
        asks = (CaseKind.DOUBT, CaseKind.OUTPUT)
        case = next((c for c, opened in log.cases.items() if opened.path == record.path and opened.kind in asks), None)
        what = f"session {self.session}: {record.name} at {record.path}"
        if case is not None:
            needs = NeedsHuman(
                f"{what} needs a person; nothing new was sent", cases=[case], hint=f"doubtless inbox {case}", task=self.session
            )
            needs.text_for_model = text
            return needs
        parked = None if visit is None else visit.parked
        until = None if parked is None or parked.until is None else Instant(parked.until, 0)
        said = f"{what} is in doubt, and is being settled; nothing new was sent"
        waits = TaskWaiting(said, until=until, hint=CALL_AGAIN, task=self.session)
        waits.text_for_model = text
        return waits

    def parked(self, call: GuestCall, visit: Visit) -> DoubtlessError:
        """How a call stands that has parked."""
        opening, name, park = self.opening, call.definition.name, visit.parked
        if opening.trouble is not None:
            return opening.trouble
        if park is not None and park.cancelled:
            return self._stopped()
        if park is not None and park.frozen is not None:
            frozen = TaskFrozen(
                f"session {self.session} stands before {park.frozen}, which is frozen; it was not called",
                hint=f"doubtless thaw {park.frozen}",
                task=self.session,
                step=park.frozen,
            )
            frozen.text_for_model = f"{name} was not sent: it is switched off for the moment."
            return frozen
        record = opening.log.record(call.path)
        asked: GuestCall | None = call
        if record is None and (other := self.in_doubt()) is not None:
            record, asked = other, None
        settled_without_output = record is None and any(case.path == call.path for case in opening.log.cases.values())
        if settled_without_output:
            record = self.record(call.path)
        if record is not None and (record.in_doubt or settled_without_output):
            return self.unsettled(record, asked, visit)
        why = "" if park is None else park.why
        until = None if park is None or park.until is None else Instant(park.until, 0)
        said = f"session {self.session}: {name} was not carried out yet: {why}"
        waits = TaskWaiting(said, until=until, hint=CALL_AGAIN, task=self.session)
        waits.text_for_model = f"{name} has not been carried out yet."
        return waits
