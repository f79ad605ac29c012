"""Everything that may happen next: the owner acts, the world answers, lags or forgets, somebody dies, time goes on."""

from __future__ import annotations

from collections.abc import Iterator

from doubtless.events import Kind
from doubtless.protocol import AskHuman, LookBack, WaitUntil, decide, time_left

from .host import befalls, kill
from .invariants import at_landing, at_sending, at_waiting, between
from .owner import Hand
from .rows import Stale
from .world import FAULT, Move, Owner, Request, Slice, State, Violation, policy_now, truly


class World:
    """The moves of one slice. `cut`: how often a bound of the slice, not the protocol, ended a path."""

    def __init__(self, explored: Slice, hand: type[Hand] = Hand) -> None:
        self.slice = explored
        self.hand = hand(explored)
        self.broken = explored.broken
        self.lags = tuple(step.lag_us * (3 if {"absent_after", "key_window"} & self.broken else 1) for step in explored.steps)

    def moves(self, state: State) -> Iterator[Move]:
        """What may happen next, each with the first invariant that it breaks."""
        acting, parked, wrong = self._deciding(state)
        if wrong is not None:
            yield Move("nobody is settling it", state, wrong)
            return
        found = [*acting, *self._calls(state), *self._owners(state, parked), *self._people(state), *befalls(self.hand, state)]
        found += self._time(state, bool(acting) and state.asking is None)
        for move in found:
            yield move if move.violation is not None else move._replace(violation=between(self.slice, state, move.state))

    # ------------------------------------------------------------ the newest owner decides

    def _deciding(self, state: State) -> tuple[list[Move], bool, Violation | None]:
        """The owner's next moves; whether it is parked for a person; whether a doubt is silent (I6)."""
        owner = len(state.owners) - 1
        if not state.owners[owner].alive:
            return [], False, None
        if state.asking is not None:
            return [self.hand.answer_comes(state, state.asking)], False, None
        acting: list[Move] = []
        waits = []
        for index in self.hand.turn(state):
            counted = self.hand.count_as_sent(state, owner, index)
            if counted is not None:
                acting.append(counted)
                continue
            action = self.hand.decide(state, index)
            waits.append(action)
            wrong = at_waiting(self.slice, state, index, action)
            if wrong is not None:
                return [], False, wrong
            acting += self.hand.act(state, owner, index, action)
        parked = bool(waits) and not acting and all(isinstance(action, AskHuman) for action in waits)
        return acting, parked, None

    # ------------------------------------------------------------ calls and requests

    def _calls(self, state: State) -> Iterator[Move]:
        for number, call in enumerate(state.requests):
            owner = state.owners[call.owner]
            mine = f"attempt {call.attempt} of step {self.slice.steps[call.step].path}"
            if call.held and owner.alive:
                yield from self._held(state, number, call, mine)
            if call.fate == "out" and call.sent_at is not None and state.now < call.sent_at + self.lags[call.step]:
                after = state if call.held else self.hand.spend(state, "late")
                if after is not None:
                    yield self._land(after, number, call, mine)
                refused = self.hand.spend(state, "rejected", None if call.held else "late")
                if refused is not None:
                    refused = refused._replace(refused=state.refused | {call.step})
                    yield Move(f"the other side refuses {mine}", put(refused, number, call._replace(fate="refused")))

    def _held(self, state: State, number: int, call: Request, mine: str) -> Iterator[Move]:
        """What the owner's thread, which has the call, may do next; a woken stale owner's appends are refused (I4)."""
        over = state.now >= call.started + policy_now(self.slice, state, call.step).timeout_us
        stale = call.owner != len(state.owners) - 1
        hand = self.hand
        if call.sent_at is None and (self._may_send(call, over) and (not stale or "pause" in self.broken)):
            yield self._send(state, number, call, mine)
        if call.fate in ("landed", "echo"):
            yield Move(f"{mine} returns, and its result is recorded", hand.result(drop(state, number), call))
        named = hand.spend(state, "handle") if call.sent_at is not None and not stale else None
        if named is not None and not self._is_settled(state, call):
            row = hand.row(named, call.step, call.owner, Kind.HANDLE_RECORDED, attempt=call.attempt, data={"handle": "h"})
            yield Move(f"{mine} records a handle", hand.append(named, call.owner, row))
        if call.overran:
            yield Move(f"{mine}: its thread ends without a result", hand.late(drop(state, number), call, "late_error"))
            return
        outcomes = [("lost", "unknown", "no reply")]
        if call.sent_at is None:
            outcomes.append(("not_sent", "not_sent", "nothing left this machine"))
        for fault, kind, words in outcomes:
            after = hand.spend(state, fault)
            if after is not None:
                yield from self._ended(after, number, call, kind, f"{mine}: {words}")
        if call.fate == "refused":
            yield from self._ended(state, number, call, "rejected", f"{mine} is answered: rejected")
        after = hand.spend(state, "overrun") if over else None
        if after is not None and not stale:
            running = hand.outcome(put(after, number, call._replace(overran=True)), call, "unknown", code="timeout", running=True)
            yield Move(f"{mine} overruns its timeout: unknown, its thread runs on", running)

    def _is_settled(self, state: State, call: Request) -> bool:
        record = state.records[call.step]
        return record is not None and record.settled

    def _may_send(self, call: Request, over: bool) -> bool:
        """Within its timeout; later only where no key's window depends on it, or the assumption about pauses fails."""
        keyed = self.slice.steps[call.step].dedupes and self.slice.steps[call.step].policy.key_window_us is not None
        return not over or not keyed or "pause" in self.broken

    def _ended(self, state: State, number: int, call: Request, kind: str, words: str) -> Iterator[Move]:
        after = put(state, number, call._replace(held=False)) if call.fate == "out" else drop(state, number)
        try:
            yield Move(f"{words}; recorded as {kind}", self.hand.outcome(after, call, kind))
        except Stale:
            yield Move(f"{words}; the stale owner's row is refused", after)

    def _send(self, state: State, number: int, call: Request, mine: str) -> Move:
        policy = policy_now(self.slice, state, call.step)
        if (
            policy.undo_by is not None
            and not call.overran
            and not self.allowed(state, call)
            and not self.still_in_time(state, call)
        ):
            after = self.hand.outcome(drop(state, number), call, "not_sent", code="deadline")
            return Move(f"{mine}: its deadline is over right before the call: not sent", after)
        first = state.first_sent
        if not any(key == call.key for key, _ in first):
            first = (*first, (call.key, state.now))
        after = put(state._replace(first_sent=first), number, call._replace(sent_at=state.now, fate="out"))
        kept = state.kept[call.step] if state.kept else None
        if kept is not None and kept.answer is not None and call.attempt > len(kept.attempts):
            after = after._replace(said=after.said | {(call.step, "acted")})  # what the backup holds of it is used up
        return Move(f"{mine} is sent", after, at_sending(self.slice, state, number, self.lags, self.broken))

    def still_in_time(self, state: State, call: Request) -> bool:
        return time_left(policy_now(self.slice, state, call.step), state.at) > 0

    def allowed(self, state: State, call: Request) -> bool:
        """Whether a person's permission acts with this attempt: it may be sent after the deadline, too."""
        return any(r.kind == Kind.RETRY_ALLOWED and r.path == self.slice.steps[call.step].path for r in state.rows)

    def _land(self, state: State, number: int, call: Request, mine: str) -> Move:
        step = self.slice.steps[call.step]
        assert call.sent_at is not None
        first = next(at for key, at in state.first_sent if key == call.key)
        remembered = step.policy.key_window_us is None or state.now < first + step.policy.key_window_us
        known = any(key == call.key for key, _ in state.effects[call.step])
        late = "" if call.held else ", late"
        if step.dedupes and known and remembered:
            return Move(
                f"{mine} arrives{late}: the key is known, no second effect", put(state, number, call._replace(fate="echo"))
            )
        landed = (call.key, call.sent_at + self.lags[call.step])
        effects = (*state.effects[: call.step], (*state.effects[call.step], landed), *state.effects[call.step + 1 :])
        after = put(state._replace(effects=effects), number, call._replace(fate="landed"))
        return Move(f"{mine} LANDS{late}", after, at_landing(self.slice, after, call.step, self.broken))

    # ------------------------------------------------------------ owners, people, time

    def _owners(self, state: State, parked: bool) -> Iterator[Move]:
        last = len(state.owners) - 1
        unfinished = any(True for _ in self.hand.turn(state))
        begun = bool(state.rows) or state.suspect
        for number, owner in enumerate(state.owners):
            after = self.hand.spend(state, "crash") if owner.alive and begun else None
            if after is not None and (unfinished or any(q.held for q in state.requests)):
                yield Move(f"owner {number + 1} dies", kill(after, number))
        if len(state.owners) < self.hand.bound[FAULT["owners"]] and unfinished and begun:
            busy = any(q.held and q.owner == last for q in state.requests)
            if not state.owners[last].alive or (parked and not busy):
                yield Move(f"owner {last + 2} takes the task over", self._claim(kill(state, last)))
            else:
                after = self.hand.spend(state, "stopped")
                if after is not None:
                    kept = tuple(q for q in after.requests if q.fate != "none" or "pause" in self.broken)
                    after = self._claim(after._replace(requests=kept))
                    yield Move(f"owner {last + 1} is stopped; owner {last + 2} takes the task over", after)
        yield from self._woken(state, last)

    def _woken(self, state: State, last: int) -> Iterator[Move]:
        """A stopped owner that is woken decides by its old claim; its append is refused, and it ends."""
        for number, owner in enumerate(state.owners[:last]):
            if not owner.alive or any(q.held and q.owner == number for q in state.requests):
                continue
            for index in self.hand.turn(state):
                record = self.hand.fold(state.rows, self.slice.steps[index].path, owner.epoch)
                action = decide(policy_now(self.slice, state, index), record, state.at)
                if isinstance(action, WaitUntil | LookBack):
                    continue
                try:
                    for move in self.hand.act(state, number, index, action):
                        yield move._replace(words=f"woken: {move.words}")
                except Stale:
                    pass
            yield Move(f"owner {number + 1} is woken, its append is refused: it ends", kill(state, number))

    def _claim(self, state: State) -> State:
        return self.hand.folded(state._replace(asking=None, owners=(*state.owners, Owner(state.owners[-1].epoch + 1))))

    def _people(self, state: State) -> Iterator[Move]:
        for index, record in enumerate(state.records):
            if record is not None and record.doubt_case is not None:
                yield from self.hand.person(state, index)

    def _time(self, state: State, busy: bool) -> list[Move]:
        """Time goes on to the next instant at which something changes; while the owner could act, only in a pause."""
        late = [
            q for q in state.requests
            if q.held and not q.overran and q.owner == len(state.owners) - 1 and state.owners[q.owner].alive
            and state.now >= q.started + policy_now(self.slice, state, q.step).timeout_us
        ]  # fmt: skip
        at = self._next_instant(state)
        if (
            state.asking is not None
            and state.now >= state.asking.started + policy_now(self.slice, state, state.asking.step).timeout_us
        ):
            return []
        after = None if at is None else self.hand.spend(state, "ticks", "pause" if busy or late else None)
        if at is None or after is None:
            return []
        kept = tuple(q for q in after.requests if q.held or (q.fate == "out" and at < (q.sent_at or 0) + self.lags[q.step]))
        return [Move(f"{(at - state.now) / 1e6:g} s go by", after._replace(now=at, requests=kept))]

    def _next_instant(self, state: State) -> int | None:
        instants: list[int] = []
        if state.asking is not None:  # a look-back ends within its timeout, or is given up
            instants.append(state.asking.started + policy_now(self.slice, state, state.asking.step).timeout_us)
        elif state.owners[-1].alive:
            for index in self.hand.turn(state):
                record = state.records[index]
                action = self.hand.decide(state, index)
                if isinstance(action, WaitUntil) and (record is None or record.in_flight is None):
                    instants.append(state.true(action.at))
        for call in state.requests:
            policy = policy_now(self.slice, state, call.step)
            if call.held and not call.overran:
                instants.append(call.started + policy.timeout_us)
            if call.fate == "out" and call.sent_at is not None:
                instants.append(call.sent_at + self.lags[call.step])
            if policy.undo_by is not None:
                instants.append(truly(policy.undo_by.since) + policy.undo_by.within_us)
        for index, step in enumerate(self.slice.steps):
            record = state.records[index]
            unsettled = record is None or not record.settled
            if unsettled:
                instants += [seen for _, seen in state.effects[index]]
            if step.dedupes and step.policy.key_window_us is not None:
                if any(q.step == index for q in state.requests) or (unsettled and state.effects[index]):
                    instants += [at + step.policy.key_window_us for _, at in state.first_sent]
        return min((at for at in instants if at > state.now), default=None)


def put(state: State, number: int, call: Request) -> State:
    return state._replace(requests=(*state.requests[:number], call, *state.requests[number + 1 :]))


def drop(state: State, number: int) -> State:
    return state._replace(requests=(*state.requests[:number], *state.requests[number + 1 :]))
