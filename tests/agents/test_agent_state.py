"""The state of an agent is a pure fold over its turns; what a snapshot holds of it changes nothing."""

from __future__ import annotations

import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.agentstate import EMPTY, KEEP, AgentState, CallResult, TurnRecord, fold, from_json, to_json

costs = st.one_of(st.integers(0, 1000), st.floats(0, 100, allow_nan=False))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
results = st.builds(
    CallResult, st.sampled_from(["done", "refused", "not_applied", "failed", "uncertain"]), st.none() | texts, st.none() | texts
)
turns = st.builds(
    TurnRecord,
    texts,
    st.lists(results, max_size=3).map(tuple),
    costs,
    st.lists(st.tuples(st.sampled_from(["pay", "send"]), st.sampled_from(["aa", "bb"])), max_size=2).map(tuple),
)


@given(st.lists(turns, max_size=70), st.data())
def test_the_fold_from_zero_equals_the_fold_from_any_snapshot_and_the_tail(history: list[TurnRecord], data: st.DataObject) -> None:
    whole = reduce(fold, history, EMPTY)
    cut = data.draw(st.integers(0, len(history)))
    snapshot = json.dumps(to_json(reduce(fold, history[:cut], EMPTY)))
    assert reduce(fold, history[cut:], from_json(json.loads(snapshot))) == whole
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole


@given(st.lists(turns, max_size=70))
def test_the_state_holds_a_bounded_last_part_and_counts_all(history: list[TurnRecord]) -> None:
    state = reduce(fold, history, EMPTY)
    assert state.turns == tuple(history[-KEEP:])
    assert (state.choices, state.facts) == (len(history), sum(len(turn.results) for turn in history))
    assert state.place == sum(2 if turn.results else 1 for turn in history)
    assert set(state.standing) == {one for turn in history for one in turn.standing}


def test_what_is_no_state_is_refused_so_that_it_is_built_anew() -> None:
    good = to_json(fold(EMPTY, TurnRecord("inline:{}", (CallResult("done", "inline:1"),), 2)))
    assert isinstance(from_json(good), AgentState)
    for key, wrong in [
        ("form", 2), ("choices", -1), ("choices", 7), ("choices", True), ("place", "1"), ("cost", "1"), ("turns", None), ("turns", [{}]),
        ("turns", [{**good["turns"][0], "results": [["done"]]}]), ("standing", [["pay"]]), ("standing", [[1, 2]]),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            from_json({**good, key: wrong})
    for other in (None, [], "", 3, {}):
        with pytest.raises(ValueError):
            from_json(other)
