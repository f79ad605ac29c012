"""What befalls the host: its wall clock is set, it is started anew, its database is replaced by a backup."""

from __future__ import annotations

from collections.abc import Iterator

from .invariants import persons_risk
from .owner import Hand
from .world import FAULT, Move, S, State

JUMP = 20 * S
"""How far a clock is set: farther than every window of a slice but `settle_within`."""


def befalls(hand: Hand, state: State) -> Iterator[Move]:
    """The moves of the host, as far as the slice has them and something is still to come of them."""
    if not any(hand.bound[FAULT[fault]] for fault in ("jump", "reboot", "restored")):
        return
    if not (any(True for _ in hand.turn(state)) or state.requests):
        return
    if state.rows:
        yield from _set(hand, state)
        yield from _started_anew(hand, state)
    yield from _backed_up(hand, state)


def _set(hand: Hand, state: State) -> Iterator[Move]:
    """The wall clock is set; after a boot only where the assumption fails that it is right then."""
    after = hand.spend(state, "jump")
    if after is None or (state.boots and "clock" not in hand.slice.broken):
        return
    for by in (JUMP, -JUMP):
        where = "forward" if by > 0 else "back"
        yield Move(f"the wall clock is set {where} by {abs(by) / S:g} s", after._replace(skew=state.skew + by))


def _started_anew(hand: Hand, state: State) -> Iterator[Move]:
    """Every process ends; what they have sent is on its way. The wall clock is right over it, unless that assumption fails."""
    after = hand.spend(state, "reboot")
    if after is None or (state.spent[FAULT["jump"]] and "clock" not in hand.slice.broken):
        return
    yield Move("the host is started anew", _all_dead(after)._replace(boots=state.boots + 1))


def _backed_up(hand: Hand, state: State) -> Iterator[Move]:
    """A backup is made; later it is restored, and the log knows less than was done. Nobody lives through that."""
    after = hand.spend(state, "restored")
    if after is None:
        return
    if state.backup is None:
        kept = tuple(hand.fold(state.rows, step.path, 0) for step in hand.slice.steps)
        yield Move("a backup is made", state._replace(backup=state.rows, kept=kept))
    elif len(state.rows) > len(state.backup) and not _excused(hand, state):
        # That it be sent is to be said anew; what has acted is known, so that it excuses nothing when it acts again.
        said = frozenset(word for word in state.said if word[1].startswith("fail") or word[1] == "acted")
        after = _all_dead(after)._replace(rows=state.backup, backup=None, kept=(), suspect=True, said=said)
        yield Move("the backup is restored, and accepted in suspect mode", hand.folded(after))


def _excused(hand: Hand, state: State) -> bool:
    """Whether something is on its way at a person's risk: a double of that would be told as the backup's."""
    return any(q.fate == "out" and persons_risk(hand.slice, state, q.step) for q in state.requests)


def _all_dead(state: State) -> State:
    for number in range(len(state.owners)):
        state = kill(state, number)
    return state._replace(asking=None)


def kill(state: State, number: int) -> State:
    """An owner ends: its threads with it; what it has sent is on its way."""
    owners = (*state.owners[:number], state.owners[number]._replace(alive=False), *state.owners[number + 1 :])
    requests = tuple(
        q._replace(held=False) if q.owner == number else q for q in state.requests if q.owner != number or q.fate == "out"
    )  # fmt: skip
    asking = None if state.asking is not None and state.asking.owner == number else state.asking
    return state._replace(owners=owners, requests=requests, asking=asking)
