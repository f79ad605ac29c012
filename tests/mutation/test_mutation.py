"""The list of guards fits the code and the tests of today, and some of it is run whole; `make mutants` runs all."""

from __future__ import annotations

from collections import Counter

import pytest

from .guards import GUARDS, Guard
from .run import PROOF, fault_of, try_without, with_table

BY_NAME = {guard.name: guard for guard in GUARDS}


def test_each_guard_s_text_occurs_once_in_its_file_and_the_tests_that_miss_it_exist() -> None:
    assert [f"{guard.name}: {fault}" for guard in GUARDS if (fault := fault_of(guard)) is not None] == []


def test_each_guard_has_a_name_of_its_own_and_is_taken_away_in_its_own_way() -> None:
    assert Counter(guard.name for guard in GUARDS).most_common(1)[0][1] == 1
    assert Counter((guard.file, guard.old, guard.new) for guard in GUARDS).most_common(1)[0][1] == 1
    assert [guard.name for guard in GUARDS if guard.old == guard.new or not guard.tests] == []


def test_the_page_lists_todays_guards_with_their_tests() -> None:
    page = PROOF.read_text(encoding="utf-8")
    assert with_table(page) == page, "after a look at it: make mutants"


@pytest.mark.parametrize(
    "name",
    [
        "the worst of all attempts decides, not the last",
        "a case takes one answer (compare-and-set in the store)",
        "the log has no gap",
    ],
)
def test_a_guard_that_is_taken_away_is_missed_by_its_test(name: str) -> None:
    outcome = try_without(BY_NAME[name])
    assert outcome.caught, f"{outcome.why}\n{outcome.said}"


def test_a_change_that_takes_no_guard_away_is_told_as_a_survivor() -> None:
    harmless = Guard(
        "none: only a word of a sentence",
        "fold.py",
        '"""The fold of all rows of one step."""',
        '"""The fold of each row of one step."""',
        ("unit/test_fold.py::test_nothing_logged_is_no_record",),
    )
    outcome = try_without(harmless)
    assert not outcome.caught and outcome.why == "its tests pass"


def test_code_that_cannot_even_be_imported_is_not_taken_for_a_guard_that_was_missed() -> None:
    broken = Guard(
        "none: the module does not load",
        "fold.py",
        "Literal[\"done\", \"not_sent\", \"rejected\", \"unknown\"]\n",
        "Literal[\"done\", \"not_sent\", \"rejected\", \"unknown\"]\nraise RuntimeError\n",
        ("unit/test_fold.py::test_nothing_logged_is_no_record",),
    )
    outcome = try_without(broken)
    assert not outcome.caught


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"old": "no such text"}, "the old text occurs 0 times"),
        ({"old": "    "}, "times in fold.py"),
        ({"new": "for a in ("}, "the new text is no Python"),
        ({"tests": ("unit/test_fold.py::test_that_is_not_there",)}, "there is no test"),
    ],
)
def test_an_entry_that_has_rotted_says_how(change: dict[str, object], said: str) -> None:
    fault = fault_of(BY_NAME["the worst of all attempts decides, not the last"]._replace(**change))  # type: ignore[arg-type]
    assert fault is not None and said in fault
