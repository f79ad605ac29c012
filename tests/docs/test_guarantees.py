"""docs/guarantees.md stays true: what it names is collected and can be run, and what is evidence is named."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.docs.guarantees import COMMAND, PAGE, ROOT, Guarantee, chosen, numbered, read, to_run
from tests.explore.__main__ import ALL
from tests.explore.plants import PLANTS
from tests.mutation.guards import GUARDS

TEXT = PAGE.read_text(encoding="utf-8")
GUARANTEES = read(TEXT)

NO_EVIDENCE = {
    "tests/docs/test_benchmarks.py": "it is about how figures are measured",
    "tests/docs/test_docs_run.py": "it is about the docs",
    "tests/docs/test_guarantees.py": "it is this one",
    "tests/people/test_cases_map.py": "it is about the map of the cases",
    "tests/unit/test_nursery.py": "it is about how processes of the tests begin",
    "tests/unit/test_rows_made_straight.py": "the same rows by a shorter way: whatever stands on `draft` stands on them",
}
"""Test modules that stand for no guarantee, and why."""


@cache
def collected() -> frozenset[str]:
    """The ids of all tests that pytest collects, slow proofs included, without their parameters."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:randomly", "-o", "addopts="]
    done = subprocess.run([*command, "tests"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return frozenset(line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line)


@cache
def targets() -> frozenset[str]:
    """The targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def fault_of(check: str) -> str | None:
    """Why a check cannot be run; None when it can."""
    if check.startswith("tests/"):
        if any(test == check or test.startswith(check + "::") for test in collected()):
            return None
        return f"pytest collects no {check}"
    words = shlex.split(check)
    match words:
        case ["python", "-m", "tests.explore", *options]:
            known = {"--slice": ALL, "--plant": PLANTS}
            pairs = list(zip(options[::2], options[1::2], strict=False))
            right = len(options) % 2 == 0 and all(option in known and name in known[option] for option, name in pairs)
            return None if right and pairs else f"the exploration knows no {' '.join(options)}"
        case ["python", "-m", "tests.mutation.run", *names] if names:
            unknown = [name for name in names if not any(name in guard.name for guard in GUARDS)]
            return f"no guard is called {unknown[0]!r}" if unknown else None
        case ["python", "-m", "tests.simulation", seeds]:
            return None if seeds.isdecimal() and int(seeds) > 0 else f"no number of seeds: {seeds}"
        case ["make", target, *settings] if all("=" in setting for setting in settings):
            return None if target in targets() else f"the Makefile has no target {target}"
        case _:
            return f"nobody knows how to run {check}"


def test_every_guarantee_has_checks_and_the_command_that_runs_them() -> None:
    assert len(GUARANTEES) > 120
    for each in GUARANTEES:
        assert each.checks, f"docs/guarantees.md:{each.line}: no check: {each.says}"
        assert each.command == f"{COMMAND}{each.name}", f"docs/guarantees.md:{each.line}: no command: type `make docs`"
    assert [name for name, times in Counter(each.name for each in GUARANTEES).items() if times > 1] == []
    assert numbered(TEXT) == TEXT, "type `make docs`"


def test_every_check_that_is_named_is_collected_or_can_be_run() -> None:
    faults = [(each.name, fault) for each in GUARANTEES for check in each.checks if (fault := fault_of(check)) is not None]
    assert faults == []


def test_every_invariant_and_every_rule_of_the_design_is_a_guarantee() -> None:
    stated = set().union(*(each.marks for each in GUARANTEES))
    assert {f"I{n}" for n in range(1, 11)} | {f"rule {n}" for n in range(1, 13)} <= stated


def test_every_test_module_is_evidence_for_a_guarantee_or_says_why_it_is_none() -> None:
    named = {check.partition("::")[0] for each in GUARANTEES for check in each.tests}
    modules = {test.partition("::")[0] for test in collected()}
    assert sorted(modules - named - NO_EVIDENCE.keys()) == [], "name it in docs/guarantees.md, at what it is evidence for"
    assert sorted(NO_EVIDENCE.keys() & named) == []


def test_the_promise_of_the_readme_is_the_first_section_sentence_by_sentence() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = " ".join(line[2:] for line in readme.splitlines() if line.startswith("> "))
    sentences = [f"{sentence.strip()}." for sentence in quoted.split(". ") if sentence.strip(". ")]
    promised = [each.says for each in GUARANTEES if each.section == "The promise"]
    assert promised == [sentence.replace("..", ".") for sentence in sentences]
    assert "docs/guarantees.md#the-promise" in readme


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("tests/unit/test_fold.py::test_that_is_not_there", "pytest collects no"),
        ("tests/unit/test_nothing.py", "pytest collects no"),
        ("python -m tests.explore --slice nothing", "the exploration knows no"),
        ("python -m tests.explore", "the exploration knows no"),
        ("python -m tests.mutation.run 'no such guard'", "no guard is called"),
        ("python -m tests.simulation none", "no number of seeds"),
        ("make coffee", "the Makefile has no target"),
        ("rm -rf /", "nobody knows how to run"),
    ],
)
def test_a_check_that_has_rotted_says_how(check: str, fault: str) -> None:
    assert (fault_of(check) or "").startswith(fault)


def test_a_guarantee_is_found_by_its_id_its_section_its_invariant_and_its_rule() -> None:
    first = GUARANTEES[0]
    assert chosen(GUARANTEES, [first.name]) == [first]
    assert {each.section for each in chosen(GUARANTEES, ["doubt"])} == {"Doubts"}
    assert all("I4" in each.marks for each in chosen(GUARANTEES, ["I4"]))
    assert all("rule 8" in each.marks for each in chosen(GUARANTEES, ["rule 8"]))
    with pytest.raises(SystemExit, match="no guarantee is called"):
        chosen(GUARANTEES, ["nothing"])


def test_a_row_without_a_command_gets_the_next_number_of_its_section_and_the_others_keep_theirs() -> None:
    page = "## Doubts\n\n| guarantee | tests |\n|---|---|\n| a | `tests/a.py` |\n| b | `tests/b.py` | `make guarantee G=doubt-1` |\n"
    got = read(numbered(page))
    assert [(each.says, each.name) for each in got] == [("a", "doubt-2"), ("b", "doubt-1")]
    assert numbered(numbered(page)) == numbered(page)


def test_the_command_of_a_guarantee_runs_its_checks_and_tells_a_failure(tmp_path: Path) -> None:
    mine = Guarantee("S", "s-1", "it is so", ("tests/unit/test_once.py", "python -m tests.explore --plant call-before-intent"), "", 1)
    tests, other = to_run(mine, whole=False)
    assert tests[-1] == "tests/unit/test_once.py" and "prove or not prove" not in tests
    assert other[1:] == ["-m", "tests.explore", "--plant", "call-before-intent"]
    assert "prove or not prove" in next(to_run(mine, whole=True))
    run = [sys.executable, "-m", "tests.docs.guarantees"]
    small = next(each for each in GUARANTEES if each.checks == ("tests/unit/test_once.py",))
    right = subprocess.run([*run, small.name], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert right.returncode == 0 and "all of it holds" in right.stdout, right.stdout + right.stderr
    assert "tests/unit/test_once.py" in right.stdout
