"""The protocol, explored: every slice of the short form holds, and what is taken away is found."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from doubtless.fold import Answer, Attempt, Look, StepRecord

from .__main__ import ALL, COUNTS
from .explorer import bounds, explore, in_words
from .factors import FACTORS, pairs_of
from .paper import FOUND, PROOF, with_tables
from .plants import PLANTS
from .slices import BROKEN, SLICES
from .world import ASSUMPTIONS, Slice

ROOT = Path(__file__).parents[2]
RECORDED = json.loads(COUNTS.read_text())
AGAIN = "after a look at why: make explore"


def held(name: str) -> None:
    found = explore(ALL[name])
    assert found.violation is None, in_words(found)
    recorded = RECORDED[name]
    assert (found.states, found.moves) == (recorded["states"], recorded["moves"]), AGAIN


@pytest.mark.parametrize("name", [s.name for s in SLICES if s.short])
def test_every_invariant_holds_in_every_state_of_the_slice_and_their_number_is_the_recorded_one(name: str) -> None:
    held(name)


@pytest.mark.prove
@pytest.mark.parametrize("name", [s.name for s in SLICES if not s.short])
def test_every_invariant_holds_in_every_state_of_the_longer_slice_too(name: str) -> None:
    held(name)


def test_the_recorded_counts_are_those_of_todays_slices_within_todays_bounds() -> None:
    assert {name: each["bounds"] for name, each in RECORDED.items()} == {s.name: bounds(s) for s in SLICES}, AGAIN


def test_the_page_says_what_was_recorded() -> None:
    assert with_tables(PROOF.read_text(), RECORDED, json.loads(FOUND.read_text())) == PROOF.read_text(), AGAIN


def test_every_planted_bug_was_found_within_a_minute() -> None:
    found = json.loads(FOUND.read_text())
    assert found.keys() == PLANTS.keys(), AGAIN
    assert [name for name, each in found.items() if each["breaks"] not in PLANTS[name].breaks or each["seconds"] >= 60] == []


KINDS = {
    "a call before its intent": "call-before-intent",
    "an attempt without a row": "attempt-without-row",
    "a key that is recomputed": "key-recomputed",
    "an absence that is counted from the start": "absence-from-the-start",
    "a fold of the last attempt": "last-attempt-counts",
    "an answer that is applied twice": "answer-twice",
    "a compensation of a step in doubt": "undo-of-a-doubt",
    "an epoch that is not checked": "epoch-unchecked",
}
"""The kinds of bugs that an exploration of such a protocol has to find, and the plants that are those."""


def test_a_bug_of_each_kind_is_planted() -> None:
    assert set(KINDS.values()) <= PLANTS.keys()


@pytest.mark.parametrize("explored", BROKEN, ids=lambda s: s.name)
def test_with_an_assumption_broken_the_double_is_found_and_the_assumption_named(explored: Slice) -> None:
    found = explore(explored, limit=200_000)
    assert found.violation is not None and (found.violation.invariant, found.violation.what) == ("I2", "step 1 has 2 effects")
    (assumption,) = found.assumption
    assert f"the assumption that fails: {assumption}" in in_words(found)


def test_every_pair_of_factors_is_in_a_slice() -> None:
    covered = set().union(*(pairs_of(s) for s in SLICES))
    assert covered == set(combinations(FACTORS, 2))


def test_what_tells_two_states_apart_knows_every_field_of_a_record() -> None:
    """A field that is new has to be looked at in `world.canonical`: forgotten, it would make two states one."""
    assert set(StepRecord.__slots__) == {
        "absent", "answer", "attempts", "cases", "effect", "epoch", "error", "evidence", "generation", "granted",
        "granted_until", "handles", "input_hash", "input_ref", "keys", "last_seq", "looks", "name", "once", "once_window_us",
        "origin", "output_ref", "path", "policy_digest", "settle_from", "status", "step_seq", "suspect",
    }  # fmt: skip
    assert set(Attempt.__slots__) == {
        "call_ended", "cleared", "code", "detail", "ended", "epoch", "generation", "leased", "number", "outcome",
        "retry_after_us", "started",
    }  # fmt: skip
    assert Answer._fields == ("seq", "then", "even_now", "by")
    assert Look._fields == ("seq", "answer", "why", "started", "finished", "epoch", "attempt", "look_again_us")


def test_what_breaks_with_an_assumption_holds_with_it() -> None:
    held_with_it = [(s.steps, s.may) for s in SLICES]
    assert all((s.steps, s.may) in held_with_it for s in BROKEN)


def test_each_assumption_is_broken_by_a_slice() -> None:
    assert {name for s in BROKEN for name in s.broken} == set(ASSUMPTIONS)


@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if plant.patch is None])
def test_a_bug_planted_in_the_owners_hand_is_found_and_told_as_a_story(name: str) -> None:
    plant = PLANTS[name]
    found = explore(ALL[plant.slice], plant.hand, plant.world)
    assert found.violation is not None and found.violation.invariant in plant.breaks
    assert in_words(found).count("\n") == len(found.story) > 0


LONGER = {"window-unchecked", "window-without-margin"}
PATCHED = [pytest.param(n, marks=[pytest.mark.prove] * (n in LONGER)) for n, plant in PLANTS.items() if plant.patch is not None]


@pytest.mark.parametrize("name", PATCHED)
def test_a_bug_planted_in_the_real_protocol_is_found_in_a_process_of_its_own(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.explore", "--plant", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "does not hold" in run.stdout and "found after" in run.stdout
