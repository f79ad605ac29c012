"""An agent's state: a pure fold over its turns, small enough for a snapshot.

A turn is a recorded choice and what became of its calls. The state holds the last turns by ref only: what the model is
shown of them is read when it is asked (`agentview`), so that the state grows neither with the history nor with outputs.

    state = fold(state, turn)            from EMPTY, for every turn; or from a snapshot, for the turns after it
    from_json(to_json(state)) == state
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

KEEP: Final = 50
"""So many of the last turns are held; the model is shown at most these."""

FORM: Final = 1
"""The form of `to_json`; `from_json` refuses another one."""


class CallResult(NamedTuple):
    """What became of one call, as the model is told.

    Shapes: `status` is ``done``, ``refused``, ``not_applied``, ``failed`` or ``uncertain``; `ref` the output's, as text;
    `text` says what has no output (of a refused call the choice itself says it).
    """

    status: str
    ref: str | None = None
    text: str | None = None


class TurnRecord(NamedTuple):
    """One turn: the ref of its recorded choice, a result for each of its calls in their order, and what it cost.

    `standing`: writes of this turn that may have happened and that nobody could find out about: step, input hash in hex.
    """

    choice: str
    results: tuple[CallResult, ...] = ()
    cost: int | float = 0
    standing: tuple[tuple[str, str], ...] = ()


class AgentState(NamedTuple):
    """The fold of an agent's turns.

    Shapes: `choices` and `facts` count all turns and calls so far; `place` the places of the task's top level that they
    used (a choice one, its calls together another one); `turns` are the last `KEEP`; `standing` as in `TurnRecord`.
    """

    choices: int = 0
    facts: int = 0
    place: int = 0
    cost: int | float = 0
    turns: tuple[TurnRecord, ...] = ()
    standing: tuple[tuple[str, str], ...] = ()


EMPTY: Final = AgentState()


def fold(state: AgentState, turn: TurnRecord) -> AgentState:
    """The state after one more turn."""
    return AgentState(
        choices=state.choices + 1,
        facts=state.facts + len(turn.results),
        place=state.place + (2 if turn.results else 1),
        cost=state.cost + turn.cost,
        turns=(*state.turns, turn)[-KEEP:],
        standing=state.standing + tuple(one for one in turn.standing if one not in state.standing),
    )


def to_json(state: AgentState) -> dict[str, Any]:
    """The state as plain JSON values."""
    return {
        "form": FORM,
        "choices": state.choices,
        "facts": state.facts,
        "place": state.place,
        "cost": state.cost,
        "turns": [
            {"choice": turn.choice, "results": [list(r) for r in turn.results], "cost": turn.cost,
             "standing": [list(one) for one in turn.standing]}
            for turn in state.turns
        ],
        "standing": [list(one) for one in state.standing],
    }  # fmt: skip


def from_json(data: Any) -> AgentState:
    """`to_json` read back. Raises ValueError for anything else: a cache that is not sound is built anew."""
    try:
        if data["form"] != FORM:
            raise ValueError(f"an agent state of form {data['form']!r}; this version reads {FORM}")
        turns = tuple(
            TurnRecord(_text(t["choice"]), tuple(_result(r) for r in t["results"]), _cost(t["cost"]), _pairs(t["standing"]))
            for t in data["turns"]
        )
        state = AgentState(
            _count(data["choices"]), _count(data["facts"]), _count(data["place"]), _cost(data["cost"]), turns,
            _pairs(data["standing"]),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no agent state: {error!r}") from error
    if len(turns) != min(state.choices, KEEP):
        raise ValueError(f"an agent state of {state.choices} choices that holds {len(turns)} turns")
    return state


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _cost(value: Any) -> int | float:
    if type(value) not in (int, float) or not value >= 0:
        raise ValueError(f"{value!r} is no cost")
    return value  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _result(value: Any) -> CallResult:
    status, ref, text = value
    return CallResult(_text(status), None if ref is None else _text(ref), None if text is None else _text(text))


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((_text(step), _text(digest)) for step, digest in value)
