"""`doubtless demo`: the accident, and the same work with Doubtless, counted at the server: under a minute, no questions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples.reconciliation.demo import Count, report

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60.0

COUNTED = {
    "(a) sheets for the one difference": 2,
    "(a) approvals": 2,
    "(b) sheets": 12,
    "(b) sheets for any one difference": 1,
    "(b) approvals": 1,
    "(b) requests for an approval": 1,
    "(b) messages in the chat": 1,
    "(b) closings": 1,
    "(c) cases in the inbox": 1,
    "(c) sheets": 12,
    "(c) sheets for any one difference": 1,
    "(c) approvals": 1,
    "(c) requests for an approval": 1,
    "(c) messages in the chat": 1,
    "(c) closings": 1,
    "(d) sheets": 12,
    "(d) sheets withdrawn": 12,
    "(d) the last one first": 1,
    "(d) approvals": 1,
    "(d) approvals withdrawn": 1,
    "(d) messages in the chat": 0,
    "(d) closings": 0,
}
LINE = re.compile(r"^  (\([a-d]\) .*?) +(\d+)  ok$", re.MULTILINE)


def make_demo() -> list[str]:
    """The command that `make demo` runs once everything is installed."""
    command = ["make", "--no-print-directory", "-n", "demo"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    program, *options = said[-1].split()
    assert options == ["demo"], said
    return [str(ROOT / program), *options]


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with nothing to read, none of the tests' own environment, and a minute to do it in."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DOUBTLESS", "RECON", "PYTHON"))}
    started = time.monotonic()
    ended = subprocess.run(
        command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MINUTE, check=False
    )
    assert time.monotonic() - started < MINUTE
    return ended


def test_the_demo_counts_what_it_promises_in_under_a_minute_from_any_folder(tmp_path: Path) -> None:
    command = make_demo()
    if not os.access(command[0], os.X_OK):
        command = [sys.executable, "-m", "doubtless.cli", "demo"]
    ended = run(command, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {what: int(counted) for what, counted in LINE.findall(ended.stdout)} == COUNTED
    assert "OFF" not in ended.stdout
    for part in ("(a) a plain retry loop", "(b) Doubtless", "(c) Doubtless", "(d) Doubtless", "$ doubtless settle "):
        assert part in ended.stdout
    assert re.search(r"process \d+ is dead; the server holds 1 approval", ended.stdout)
    assert re.search(r"↺ +4–15 +create_adjustment ×12 +non_idem_write +compensated +each once", ended.stdout)
    assert list(tmp_path.iterdir()) == [], "the demo leaves nothing where it is started"


def test_the_demo_keeps_its_files_where_it_is_told_to(tmp_path: Path) -> None:
    ended = run([sys.executable, "-m", "doubtless.cli", "demo", "--keep", "kept"], tmp_path)
    assert ended.returncode == 0, ended.stderr
    kept = {file.name for file in (tmp_path / "kept").iterdir()}
    assert {"statement.csv", "orders.csv", "b-recon.db", "c-recon.db", "d-recon.db", "a-office.db"} <= kept


def test_one_count_that_is_off_is_named_and_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = Count("(b) sheets", 12, 12), Count("(b) approvals", 1, 2)
    assert report([right]) == 0
    assert "OFF" not in capsys.readouterr().out
    for counts in ([wrong], [right, wrong], [wrong, right]):
        assert report(counts) != 0
        said = capsys.readouterr().out
        assert re.search(r"\(b\) approvals +2  OFF, expected 1$", said, re.MULTILINE)


def test_a_demo_whose_count_is_off_exits_with_a_failure(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from examples.reconciliation import demo\n"
        "demo.PARTS = (lambda case: [demo.Count('(c) approvals', 1, 2)],)\n"
        "sys.exit(demo.main([]))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "OFF, expected 1" in ended.stdout
