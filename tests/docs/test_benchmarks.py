"""The benchmarks' own machinery: each section has its place, and what is measured again replaces itself and nothing else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def loaded(name: str) -> ModuleType:
    """A module of the benchmarks, which are no package."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_section_that_is_measured_has_its_place_on_the_page() -> None:
    ask = "import bench, json; print(json.dumps([*bench.SECTIONS]))"
    said = subprocess.run([sys.executable, "-c", ask], cwd=BENCHMARKS, capture_output=True, text=True, check=True).stdout
    names = json.loads(said)
    assert len(names) > 5
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name in names:
        begin, end = page.index(f"<!-- measured: {name} -->"), page.index(f"<!-- end of {name} -->")
        assert begin < end
    assert page.count("<!-- measured: ") == len(names)
    assert "<!-- measured: growth -->" in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_a_section_that_is_measured_again_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    sections, page = loaded("sections"), tmp_path / "page.md"
    page.write_text("# A\n<!-- measured: one -->\nold\n<!-- end of one -->\nB\n<!-- measured: two -->\n<!-- end of two -->\nC\n")
    sections.put(page, "one", r"new \1")
    sections.put(page, "two", "other")
    sections.put(page, "one", r"newer \g<0>")
    assert page.read_text() == (
        "# A\n<!-- measured: one -->\n\nnewer \\g<0>\n\n<!-- end of one -->\nB\n"
        "<!-- measured: two -->\n\nother\n\n<!-- end of two -->\nC\n"
    )
    before = page.read_text()
    with pytest.raises(ValueError, match="three"):
        sections.put(page, "three", "lost")
    assert page.read_text() == before


def test_turns_are_taken_in_order_the_first_round_is_not_counted_and_a_ratio_is_of_one_round() -> None:
    measuring = loaded("measuring")
    called: list[str] = []
    times = {"a": iter([9.0, 1.0, 2.0, 30.0]), "b": iter([9.0, 1.0, 1.0, 10.0])}

    def work(name: str) -> float:
        called.append(name)
        return next(times[name])

    turns = measuring.take_turns({"a": lambda: work("a"), "b": lambda: work("b")}, 3)
    assert called == ["a", "b"] * 4
    assert turns.times == {"a": [1.0, 2.0, 30.0], "b": [1.0, 1.0, 10.0]}
    assert turns.ratio("a", "b") == 2.0


@pytest.mark.prove
def test_every_section_can_be_measured() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / "bench.py"), "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prove
def test_a_grown_log_is_a_log() -> None:
    command = [sys.executable, str(BENCHMARKS / "growth.py"), "--events", "60_000", "--api", "2_000", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 sampled tasks of those that were loaded: verified, no problem." in done.stdout
