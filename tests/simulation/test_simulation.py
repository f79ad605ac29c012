"""The simulation in its short form, and that it can be trusted: it repeats itself, it covers, it shrinks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .many import log_of, simulate, some
from .paper import PROOF, with_figures
from .plants import PLANTS, plant, search
from .scenario import Call, Fault, Scenario, Write, draw
from .shrink import as_test, shrink

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", [0, 1000])
def test_in_some_hundred_random_runs_every_guarantee_holds(first: int) -> None:
    """`make prove` makes some thousand."""
    report = some(range(first, first + 60))
    assert report.failed == {}
    assert report.seen["fault kill"] > 12 and report.seen["takeover"] > 12 and report.seen["a done task"] > 12


def test_the_same_seed_is_the_same_run_byte_by_byte() -> None:
    for seed in range(200, 212):
        scenario = draw(seed)
        assert log_of(scenario) == log_of(scenario)


def test_the_same_seed_is_the_same_run_in_another_process_with_other_hashes() -> None:
    code = (
        "import hashlib; from tests.simulation.many import log_of; from tests.simulation.scenario import draw\n"
        "print(hashlib.sha256(b''.join(row for seed in range(300, 312) for row in log_of(draw(seed)))).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": number}, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for number in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_a_seed_draws_the_same_scenario_always_and_another_seed_another() -> None:
    assert draw(7) == draw(7) != draw(8)


def test_a_killed_write_is_settled_and_happens_no_more_than_once() -> None:
    for at in range(40):
        result = simulate(Scenario((Write("absent", calls=(Call("lost"),)),), faults=(Fault("kill", at),)))
        assert result.wrong == [], (at, result.story)


def test_what_is_shrunk_fails_still_and_is_printed_as_a_test() -> None:
    large = draw(11)._replace(ends="abort")

    def run(scenario: Scenario) -> list[str]:
        return ["I2: too much"] if any(isinstance(node, Write) for node in scenario.nodes) or scenario.nodes == large.nodes else []

    shrunk = shrink(large._replace(nodes=(*large.nodes, Write("query", calls=(Call("lost"),)))), run)
    assert shrunk.scenario == Scenario((Write(shrunk.scenario.nodes[0].kind),)) or len(shrunk.scenario.nodes) == 1  # type: ignore[union-attr]
    assert "assert simulate(Scenario(nodes=(Write(" in as_test(shrunk, 11)


@pytest.mark.parametrize("name", ["call-before-intent", "attempt-without-row", "key-recomputed", "answer-twice"])
def test_a_planted_bug_is_found(name: str) -> None:
    found, _ = search(name, 600, jobs=1)
    assert found is not None


def test_every_plant_still_fits_the_product(tmp_path: Path) -> None:
    for name in PLANTS:
        (tmp_path / name).mkdir()
        plant(name, tmp_path / name)


def test_the_page_holds_the_recorded_figures() -> None:
    text = PROOF.read_text()
    assert with_figures(text) == text
