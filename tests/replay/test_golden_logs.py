"""Golden logs: what a release has left behind is folded and gone on with by today's code, and comes to the same."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from golden import FOLDER, dump, replayed
from make_golden import SCENARIOS, SUMS, made

from doubtless.events import FORMAT, CaseKind, Effect, Kind, StepStatus, TaskStatus

FILES = sorted(FOLDER.glob("format-*/*.jsonl"))
AGAIN = "after a wanted change of an unreleased format: .venv/bin/python tests/replay/make_golden.py"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def log_of(path: Path) -> str:
    return dump(line for line in lines(path) if "expected" not in line)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_log_is_folded_and_resumed_with_the_same_end(path: Path, tmp_path: Path) -> None:
    (expected,) = [line["expected"] for line in lines(path) if "expected" in line]
    found = json.loads(json.dumps(replayed(log_of(path), tmp_path)))
    assert found["folded"] == expected["folded"], AGAIN
    assert found["end"] == expected["end"], AGAIN


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("format-*")), ids=lambda folder: folder.name)
def test_the_golden_files_of_a_format_are_those_that_its_list_names(folder: Path) -> None:
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jsonl"))}
    listed = dict(reversed(line.split("  ")) for line in (folder / SUMS).read_text().splitlines())
    assert sums == listed, f"a golden file was changed, added or removed without its list; {AGAIN}"
    formats = {line["row"]["format"] for path in folder.glob("*.jsonl") for line in lines(path) if "row" in line}
    assert formats == {int(folder.name.removeprefix("format-"))}


def test_todays_format_has_a_file_for_each_scenario() -> None:
    assert {path.stem for path in (FOLDER / f"format-{FORMAT}").glob("*.jsonl")} == set(SCENARIOS), AGAIN


def test_every_kind_of_event_every_status_and_every_case_is_in_a_golden_log() -> None:
    rows = [line["row"] for path in FILES for line in lines(path) if "row" in line]
    folds = [fold for path in FILES for line in lines(path) if "expected" in line for fold in line["expected"]["folded"].values()]
    missing = set(Kind) - {row["kind"] for row in rows}
    missing |= set(TaskStatus) - {fold["status"] for fold in folds}
    missing |= set(StepStatus) - {step[1] for fold in folds for step in fold["steps"].values()}
    missing |= set(CaseKind) - {kind for fold in folds for kind in fold["cases"]}
    missing |= set(Effect) - {row["effect_class"] for row in rows if "effect_class" in row}
    assert missing == set(), AGAIN


@pytest.mark.parametrize("name", ["done", "killed-in-flight", "children"])
def test_a_golden_log_is_made_the_same_each_time(name: str, tmp_path: Path) -> None:
    assert made(name, tmp_path / "one") == made(name, tmp_path / "two")


def test_a_golden_log_in_which_one_row_was_changed_is_not_taken(tmp_path: Path) -> None:
    text = log_of(FOLDER / f"format-{FORMAT}" / "done.jsonl")
    changed = text.replace('"status":"done","step_name":"create"', '"status":"not_applied","step_name":"create"')
    assert changed != text
    with pytest.raises(AssertionError):
        replayed(changed, tmp_path)
