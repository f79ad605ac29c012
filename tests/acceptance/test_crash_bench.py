"""The crash bench: Doubtless's own row of it, in three of its cells, played as `make crash-bench` plays them all."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "benchmarks" / "crash"


def test_no_payment_is_made_twice_whether_the_owner_died_after_it_or_two_came_at_once(tmp_path: Path) -> None:
    out, noted = tmp_path / "page.md", tmp_path / "noted.json"
    command = [sys.executable, "crash_bench.py", "--peers", "Doubtless", "--cells", "B,E,GB", "--out", out, "--json", noted]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(noted.read_text())["rows"]
    seen = {letter: (cell["effects"], cell["requests"], cell["word"]) for letter, cell in row["cells"].items()}
    assert seen == {"B": (1, 1, "asks"), "E": (1, 1, "done"), "GB": (1, 1, "done")}
    assert [said["word"] for said in row["cells"]["E"]["said"]] == ["busy", "done"], "the second process is told who has it"
    page = out.read_text(encoding="utf-8")
    assert "| 1 asks | 1 done | 1 done |" in page
    assert "**B** (killed right after the effect" in page, "the page says where Doubtless is not the best"
    again = tmp_path / "again.md"
    command = [sys.executable, "crash_bench.py", "--peers", "Doubtless", "--cells", "B,E,GB", "--noted", noted, "--out", again]
    subprocess.run(command, cwd=BENCH, capture_output=True, text=True, timeout=60, check=True)
    assert again.read_text(encoding="utf-8") == page, "the page is written again from what was noted"


def test_an_adapter_is_at_most_forty_lines_without_the_blank_ones() -> None:
    adapters = sorted((BENCH / "adapters").glob("*.py"))
    assert len(adapters) > 8
    for adapter in adapters:
        lines = [line for line in adapter.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert len(lines) <= 40, adapter.name


def test_everybody_in_the_matrix_has_pins_and_an_adapter_or_a_reason() -> None:
    """By hand: it fails for an entry with a file that is not there."""
    asked = "import json, peers; print(json.dumps([entry._asdict() for entry in peers.ENTRIES]))"
    done = subprocess.run([sys.executable, "-c", asked], cwd=BENCH, capture_output=True, text=True, check=True)
    for entry in json.loads(done.stdout):
        assert entry["reason"] or (BENCH / "adapters" / entry["adapter"]).is_file(), entry["name"]
        if entry["requirements"]:
            pins = (BENCH / "requirements" / entry["requirements"]).read_text(encoding="utf-8").splitlines()
            assert any(pin.startswith(entry["package"] + "==") for pin in pins), entry["name"]
            assert all("==" in pin for pin in pins), entry["name"]


RENDERED = """
from peers import ENTRIES
from report import Row, page
from situations import SITUATIONS, Result, Said
a, b = SITUATIONS[:2]
def cell(effects, word, stuck=False):
    return Result(effects, effects, [Said("one", "killed", ""), Said("one", word, "see /somebody/s/home/task.py")], word, stuck, 1.0)
rows = [
    Row(ENTRIES[0], "0", "", {"A": cell(0, "asks"), "B": cell(1, "asks")}),
    Row(ENTRIES[1], "1", "", {"A": cell(1, "done"), "B": cell(2, "done")}),
    Row(ENTRIES[2], "2", "", {"A": cell(0, "done"), "B": cell(1, "failed")}),
    Row(ENTRIES[3], "3", "", {"A": cell(0, "busy", True), "B": "could not be played: no request ever came"}),
    Row(ENTRIES[4], "", "no wheel for this machine", {}),
]
print(page(rows, [a, b], 60.0))
"""


def test_the_page_marks_what_the_count_contradicts_and_says_who_did_better_than_doubtless() -> None:
    done = subprocess.run([sys.executable, "-c", RENDERED], cwd=BENCH, capture_output=True, text=True, check=True)
    names = [line.split("[")[1].split("]")[0] for line in done.stdout.splitlines() if line.startswith("| [")]
    assert f"| {names[1]} | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in done.stdout
    assert f"| {names[2]} | 2 | 0 | 0 | 0 | 0 | 1 | 1 | 0 |" in done.stdout
    ends = [line.split(") ", 1)[1] for line in done.stdout.splitlines() if line.startswith("| [")]
    assert ends == ["0 | 0 asks | 1 asks |", "1 | 1 done | **2 done** |", "2 | **0 done** | **1 failed** |", "3 | 0 stuck | ? |"]
    assert f"One effect and `done` without anybody: {names[1]} (but paid twice in B)." in done.stdout
    assert "and says `asks`: a person has to look. Nobody did better." in done.stdout
    assert "no wheel for this machine" in done.stdout
    assert "/somebody" not in done.stdout, "folders of the machine"
    assert "{" not in done.stdout, "a place of the page that nobody filled"
