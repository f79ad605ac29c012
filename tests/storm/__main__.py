"""``python -m tests.storm MINUTES``: a storm of so many minutes, and what must hold afterwards.

``--plant "a guard's name"`` plays it with a copy of the product from which that guard of `tests/mutation` is taken away; ``--believe
SECONDS`` with an `absent_after` that is shorter than the storm's own delays. Both are there to see the storm find it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation.plants import plant

from .bounds import Bounds
from .check import check
from .report import Figures, figures
from .storm import Settings, Storm


def main() -> int:
    parser = argparse.ArgumentParser(description="kill, stop and cut workers and PostgreSQL, and count the effects outside")
    parser.add_argument("minutes", type=float, nargs="?", default=5.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--record", action="store_true", help="write docs/storm.md")
    parser.add_argument("--plant", metavar="GUARD", help="without this guard of tests/mutation: something must be found wrong")
    parser.add_argument("--believe", type=float, metavar="SECONDS", help="an absent_after that promises too much")
    chosen = parser.parse_args()
    if chosen.plant:
        return planted(chosen.plant)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"seed {seed}; everything is kept in {folder}", flush=True)
    bounds = Bounds(believed=chosen.believe)
    wrong, seen = play(Settings(seed, chosen.minutes * 60, folder, chosen.workers, chosen.tasks, bounds))
    print(seen.text())
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"{'failed' if wrong else 'nothing is wrong'}; python -m tests.storm {chosen.minutes:g} --seed {seed}; {folder}")
    if chosen.record and not wrong and "STORM_PLANTED" not in os.environ:
        from .paper import record

        record(seen, bounds)
    return 1 if wrong else 0


def planted(name: str) -> int:
    """The same command on a copy of the product without that guard."""
    with tempfile.TemporaryDirectory(prefix="storm-planted-") as copy:
        plant(name, Path(copy))
        at = sys.argv.index("--plant")
        command = [sys.executable, "-m", "tests.storm", *sys.argv[1:at], *sys.argv[at + 2 :]]
        environment = os.environ | {"PYTHONPATH": copy, "PYTHONDONTWRITEBYTECODE": "1", "STORM_PLANTED": name}
        return subprocess.run(command, env=environment, check=False).returncode


def play(settings: Settings) -> tuple[list[str], Figures]:
    """Run a storm and check it; its story, its log and its books stay in the folder."""
    from .keep import keep

    storm = Storm(settings)
    try:
        storm.run()
        wrong = check(storm)
        return wrong, figures(storm)
    finally:
        keep(storm)
        storm.close()


if __name__ == "__main__":
    sys.exit(main())
