"""What a model is shown of its task: the last turns and what became of their calls, bounded, in neutral words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import canonical
from .agentstate import AgentState, CallResult, TurnRecord
from .blobs import Content, parse_ref

UNCERTAIN = "may have happened; being checked; do not repeat it"
"""What the model is told of a write of which nobody knows yet: never that it failed, never to try again."""


class Bounds(NamedTuple):
    """How much a model is shown: turns, bytes of them together, and bytes of one output."""

    turns: int
    total: int
    output: int


class State:
    """What `choose` is given: the goal, the tools, and a bounded last part of what was chosen and what happened.

    Shapes: `turns` are ``{"turn": 3, "memo": …, "calls": [{"call_id", "step", "params"}]}``, the latest last; `facts`
    what became of their calls: ``{"turn", "call_id", "step", "params", "status", "output"}``, with `status` ``done``,
    ``refused``, ``not_applied``, ``failed`` or ``uncertain``, and ``text`` instead of ``output`` where there is none. An
    output that is too large is the beginning of its JSON text, with ``"shortened": {"bytes": n, "ref": "sha256:…"}``.
    `earlier` is None, or ``{"turns": n, "facts": n, "ref": "facts:…"}`` for what is not shown; `app.content` reads refs.
    `choices` and `cost` count the whole task. `tools` is what `app.tools` gives.
    Meaning: made anew for each choice, from the log alone; changing it changes nothing.
    """

    __slots__ = ("_tools", "choices", "cost", "earlier", "facts", "goal", "turns")

    def __init__(
        self, goal: Any, turns: list[dict[str, Any]], facts: list[dict[str, Any]], earlier: dict[str, Any] | None, choices: int,
        cost: int | float, tools: Callable[[], list[dict[str, Any]]],
    ) -> None:  # fmt: skip
        self.goal = goal
        self.turns = turns
        self.facts = facts
        self.earlier = earlier
        self.choices = choices
        self.cost = cost
        self._tools = tools

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The steps that may be called, each with its name, description and the JSON Schema of its params."""
        return self._tools()

    def __repr__(self) -> str:
        return f"<state: {self.choices} choices, {len(self.facts)} facts shown>"


class Viewer:
    """Shows one task's state to its model; keeps the texts of the turns that it shows."""

    def __init__(
        self, content: Content, task_id: str, goal: Any, bounds: Bounds, tools: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self._content = content
        self._task_id = task_id
        self._goal = goal
        self._bounds = bounds
        self._tools = tools
        self._texts: dict[int, str] = {}

    def show(self, state: AgentState) -> State:
        """The state as the model is given it: the last turn always, those before it while they fit."""
        shown: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        texts: dict[int, str] = {}
        room, first = self._bounds.total, state.choices - len(state.turns) + 1
        for number in range(state.choices, max(first, state.choices - self._bounds.turns + 1) - 1, -1):
            text = self._texts.get(number) or canonical.encode(self._turn(number, state.turns[number - first]))
            room -= len(text)
            if shown and room < 0:
                break
            texts[number] = text
            turn, facts = canonical.decode(text)
            shown.append((turn, facts))
        self._texts = texts
        shown.reverse()
        facts = [fact for _, facts in shown for fact in facts]
        goal = canonical.decode(canonical.encode(self._goal))
        return State(
            goal, [turn for turn, _ in shown], facts, self._earlier(state, len(shown), len(facts)), state.choices, state.cost,
            self._tools,
        )  # fmt: skip

    def _earlier(self, state: AgentState, turns: int, facts: int) -> dict[str, Any] | None:
        hidden = state.choices - turns
        if not hidden:
            return None
        return {"turns": hidden, "facts": state.facts - facts, "ref": f"facts:{self._task_id}:1-{hidden}"}

    def _turn(self, number: int, record: TurnRecord) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        choice = canonical.decode(self._content.get(parse_ref(record.choice)))
        calls = [{"call_id": call["call_id"], "step": call["name"], "params": call["params"]} for call in choice["calls"]]
        facts = [
            {"turn": number, **call, **told(self._content, result, one.get("refused"), self._bounds.output)}
            for call, one, result in zip(calls, choice["calls"], record.results, strict=True)
        ]
        return {"turn": number, "memo": choice["memo"], "calls": calls}, facts


def told(content: Content, result: CallResult, refused: str | None, limit: int) -> dict[str, Any]:
    """One result as the model reads it: its status, and its output or what there is to say instead."""
    fact: dict[str, Any] = {"status": result.status}
    if result.ref is not None:
        fact |= shown_output(content, result.ref, limit)
    text = refused or result.text
    if text is not None:
        fact["text"] = text
    return fact


def shown_output(content: Content, ref: str, limit: int) -> dict[str, Any]:
    """An output as JSON; of a large one the beginning of its text, its size and its ref."""
    from .inbox import jsonable

    text = content.get(parse_ref(ref))
    if len(text) <= limit:
        return {"output": jsonable(canonical.decode(text))}
    return {"output": text[:limit], "shortened": {"bytes": len(text.encode()), "ref": ref}}
