"""Each case from the field that this project answers is mapped to its tests (`tests/cases.json`), and those exist."""

from __future__ import annotations

import ast
import json
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
    C91 C93 C97 C108
    C105 C106
    C02 C35 C96 C103
""".split()
"""By group: A, B, C, D, E, G, I, K; of each, what concerns a task, a store and a person alone."""


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
        file, _, name = node.partition("::")
        assert (ROOT / file).is_file(), node
        assert name in names_in(file), node


def test_a_test_that_does_not_exist_would_be_noticed() -> None:
    assert "test_the_tests_of_a_case_exist_and_none_is_named_twice" in names_in("tests/people/test_cases_map.py")
    assert "test_of_nothing" not in names_in("tests/people/test_cases_map.py")
