"""``python -m tests.storm MINUTES``: a storm of so many minutes, and what must hold afterwards."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

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
    chosen = parser.parse_args()
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"seed {seed}; everything is kept in {folder}", flush=True)
    wrong, seen = play(Settings(seed, chosen.minutes * 60, folder, chosen.workers, chosen.tasks))
    print(seen.text())
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"{'failed' if wrong else 'nothing is wrong'}; python -m tests.storm {chosen.minutes:g} --seed {seed}; {folder}")
    if chosen.record and not wrong:
        from .paper import record

        record(seen, Bounds())
    return 1 if wrong else 0


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
