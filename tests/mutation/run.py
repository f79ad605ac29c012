"""Take one guard away at a time, and see a named test fail: `python -m tests.mutation.run` (`make mutants`).

Each entry of `guards.py` is applied to a copy of `src` in a folder of its own; its named tests run against that copy.
Caught: a test fails, as a test does. Survived: they pass, or something else than a test's failure came of it.

NAME …      only the guards whose name holds one of these texts
--jobs N    so many at once (the default: one for each core)
--record    write the table of docs/proof.md anew
--full      of a guard that survived, what pytest said
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from .guards import GUARDS, REDUNDANT, Guard

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "doubtless"
PROOF = ROOT / "docs" / "proof.md"
BEGIN, END = "<!-- mutants: written by make mutants -->\n", "<!-- /mutants -->"
PATIENCE = 120
"""Seconds that the tests of one guard may take; one that hangs is not caught by a test's failure."""


class Outcome(NamedTuple):
    """What came of one guard's removal."""

    guard: Guard
    caught: bool
    why: str
    seconds: float
    said: str = ""


def fault_of(guard: Guard) -> str | None:
    """Why an entry of the list does not fit the code any more; None when it does."""
    text = (PACKAGE / guard.file).read_text(encoding="utf-8")
    found = text.count(guard.old)
    if found != 1:
        return f"the old text occurs {found} times in {guard.file}"
    if guard.file.endswith(".py"):
        try:
            ast.parse(text.replace(guard.old, guard.new))
        except SyntaxError as error:
            return f"the new text is no Python: {error}"
    for test in guard.tests:
        file, _, name = test.partition("::")
        path = ROOT / "tests" / file
        if not path.is_file() or not re.search(rf"^(async )?def {re.escape(name)}\(", path.read_text(encoding="utf-8"), re.M):
            return f"there is no test {test}"
    return None


def try_without(guard: Guard) -> Outcome:
    """Run the guard's named tests against a copy of the package that lacks it."""
    began = time.monotonic()
    fault = fault_of(guard)
    if fault is not None:
        return Outcome(guard, False, fault, 0.0)
    with tempfile.TemporaryDirectory(prefix="doubtless-mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder, "doubtless"), ignore=shutil.ignore_patterns("*.pyc.*"))  # with what is compiled
        changed = Path(folder, "doubtless", guard.file)
        Path(cache_from_source(str(changed))).unlink(missing_ok=True)
        changed.write_text(changed.read_text(encoding="utf-8").replace(guard.old, guard.new), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        where = subprocess.run(
            [sys.executable, "-c", "import doubtless; print(doubtless.__file__)"], cwd=ROOT, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if not where.stdout.startswith(folder):
            return Outcome(guard, False, "the changed copy is not what is imported", time.monotonic() - began, where.stderr)
        tests = [f"tests/{test}" for test in guard.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(guard, False, f"its tests hang ({PATIENCE} s)", time.monotonic() - began)
    seconds = time.monotonic() - began
    failed = re.search(r"^FAILED tests/(\S+)", run.stdout, re.M)
    if run.returncode == 1 and failed:
        return Outcome(guard, True, failed[1].split("[")[0], seconds)
    why = "its tests pass" if run.returncode == 0 else f"no test failed, pytest ended with {run.returncode}"
    return Outcome(guard, False, why, seconds, run.stdout[-3000:] + run.stderr[-1000:])


def in_a_line(outcome: Outcome) -> str:
    """guard → test → caught or survived."""
    word = "caught" if outcome.caught else "SURVIVED"
    return f"{word:8} {outcome.seconds:5.1f} s  {outcome.guard.name} → {outcome.why}"


def table() -> str:
    """The guards and their tests, as docs/proof.md lists them."""
    rows = [
        f"| {g.name} | `{g.file}` | {', '.join(f'`tests/{test}`'.replace('::', '` `') for test in g.tests)} |" for g in GUARDS
    ]
    twice = [f"| {what} | {why} |" for what, why in REDUNDANT.items()]
    return "\n".join(
        [
            f"{len(GUARDS)} guards.",
            "",
            "| guard | in | the test that fails without it |",
            "|---|---|---|",
            *rows,
            "",
            "Checks that stand twice, so that no test can see one of them go by itself:",
            "",
            "| check | why |",
            "|---|---|",
            *twice,
            "",
        ]
    )


def with_table(page: str) -> str:
    """The page, with today's list in its place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PROOF} has no place for the list of guards")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--full", action="store_true")
    chosen = parser.parse_args(arguments)
    guards = [g for g in GUARDS if not chosen.names or any(name in g.name for name in chosen.names)]
    survived = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for outcome in pool.map(try_without, guards):
            survived += not outcome.caught
            print(in_a_line(outcome), flush=True)
            if chosen.full and not outcome.caught:
                print(outcome.said)
    print(f"{len(guards)} guards, {len(guards) - survived} caught, {survived} survived")
    if chosen.record and not survived and not chosen.names:
        PROOF.write_text(with_table(PROOF.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if survived or not guards else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
