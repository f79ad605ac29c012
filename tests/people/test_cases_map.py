"""Each case from the field that this project answers is mapped to its tests (`tests/cases.json`), and those exist.

A test that ends with ``[postgres]`` there is run on PostgreSQL, too; so are those under `tests/postgres`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES: dict[str, list[str]] = json.loads((ROOT / "tests" / "cases.json").read_text())

ANSWERED = """
    C04 C10
    C11 C12 C13 C14 C16 C17 C18 C20
    C22 C23 C24 C25 C26 C27 C29 C30
    C32 C33 C34 C36 C37 C38 C39 C41 C42 C44 C46 C48 C49 C51
    C52 C54 C55 C57 C58 C59 C61
    C73 C75 C76 C78
    C80 C81 C82 C84 C86 C87 C88 C90
    C91 C93 C97 C108
    C105 C106
    C02 C35 C96 C103
""".split()
"""By group: A, B, C, D, E, G, H, I, K; of each, what concerns a task, a store and a person alone."""

ON_POSTGRES = "C11 C12 C13 C14 C16 C17 C18 C20 C80 C81 C82 C84 C86 C87 C88 C90".split()
"""Groups B and H: crash windows and the log; leases, zombies, clocks and concurrent runs."""

HERE = "[postgres]"


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of all test functions in a file."""
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


@pytest.mark.parametrize("case", ANSWERED)
def test_a_case_has_tests(case: str) -> None:
    assert CASES.get(case)


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_exist_and_none_is_named_twice(case: str) -> None:
    assert len(set(CASES[case])) == len(CASES[case])
    for node in CASES[case]:
        file, _, name = node.removesuffix(HERE).partition("::")
        assert (ROOT / file).is_file(), node
        assert name in names_in(file), node


@pytest.mark.parametrize("case", ON_POSTGRES)
def test_a_case_of_the_log_and_of_owners_has_tests_on_postgresql(case: str) -> None:
    assert [node for node in CASES[case] if node.endswith(HERE) or node.startswith("tests/postgres/")]


def test_what_is_said_to_run_on_postgresql_does() -> None:
    said = {node.removesuffix(HERE) for case in CASES for node in CASES[case] if node.endswith(HERE)}
    files = sorted({node.partition("::")[0] for node in said})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:randomly", "-o", "addopts=", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    runs = {node for node, _, params in (line.partition("[") for line in done.stdout.splitlines()) if "postgres" in params}
    assert len(said) > 15
    assert sorted(said - runs) == []


def test_a_test_that_does_not_exist_would_be_noticed() -> None:
    assert "test_the_tests_of_a_case_exist_and_none_is_named_twice" in names_in("tests/people/test_cases_map.py")
    assert "test_of_nothing" not in names_in("tests/people/test_cases_map.py")
