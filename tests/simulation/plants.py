"""Planted bugs: each takes one guard out of a copy of the product, and seeds play with that copy; one has to find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from tests.mutation.guards import GUARDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "doubtless"

Change = tuple[str, str, str]
"""A file of the package, the text that is the guard (once there), the text without it."""


class Plant(NamedTuple):
    """A planted bug: the guard that is gone, and how it is taken away."""

    guard: str
    changes: tuple[Change, ...]


def _of(name: str) -> Plant:
    guard = next(guard for guard in GUARDS if guard.name == name)
    return Plant(name, ((guard.file, guard.old, guard.new),))


ROWS = "    if rows:\n        try:\n            if shares:\n"

PLANTS: dict[str, Plant] = {
    "call-before-intent": Plant(
        "the intent is durable before the call",
        (("attempts.py", ROWS, ROWS.replace("if rows:", "if rows and record is not None:")),),
    ),
    "attempt-without-row": Plant(
        "each further attempt has its row before it begins",
        (("attempts.py", ROWS, ROWS.replace("if rows:", "if rows and record is None:")),),
    ),
    "key-recomputed": _of("the key is the intent's, not made anew"),
    "absence-from-the-start": _of("the absence clock starts at the last possible send"),
    "last-attempt-counts": _of("the worst of all attempts decides, not the last"),
    "answer-twice": _of("a permission is used up by its attempt"),
    "undo-of-a-doubt": Plant(
        "only what is proven done is compensated",
        (
            (
                "obligations.py",
                "record.status not in (StepStatus.DONE, StepStatus.COMPENSATED):",
                "not (record.status in (StepStatus.DONE, StepStatus.COMPENSATED) or record.in_doubt):",
            ),
            ("tasks.py", "records = [r for r in self.log.open_records() if not r.undoes]", "records = [] if self.log.ending else [r for r in self.log.open_records() if not r.undoes]"),
        ),
    ),
    "epoch-unchecked": _of("an append under an old epoch is refused"),
}  # fmt: skip
"""One of each kind that must be found within a minute; every other guard of `tests/mutation` can be planted by its name."""


def plant_of(name: str) -> Plant:
    """A plant by its short name, or the removal of a guard by the guard's."""
    return PLANTS[name] if name in PLANTS else _of(name)


def plant(name: str, folder: Path) -> None:
    """Put a copy of the package without that guard into the folder."""
    shutil.copytree(PACKAGE, folder / "doubtless", ignore=shutil.ignore_patterns("*.pyc.*"))  # with what is compiled
    for file, old, new in plant_of(name).changes:
        changed = folder / "doubtless" / file
        text = changed.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise LookupError(f"{file} holds {old!r} {text.count(old)} times")
        Path(cache_from_source(str(changed))).unlink(missing_ok=True)
        changed.write_text(text.replace(old, new), encoding="utf-8")


def search(name: str, seeds: int, first: int = 0, jobs: int | None = None) -> tuple[str | None, float]:
    """Play seeds with that bug until one finds it: what that seed says (None: none of them does), and the seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="doubtless-planted-") as folder:
        plant(name, Path(folder))
        command = [sys.executable, "-m", "tests.simulation", str(seeds), "--first", str(first), "--until-found"]
        if jobs is not None:
            command += ["--jobs", str(jobs)]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    if not said and done.returncode:
        raise RuntimeError(f"the search itself failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return (said[0] if said else None), time.monotonic() - begun
