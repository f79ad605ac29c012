"""`make bench`: what a step, a resume and a log cost, as ratios to a floor written by hand and to others, in the same run.

    python benchmarks/bench.py [--quick] [--only steps,resume,…] [--others none|DBOS,…] [--venvs FOLDER] [--absurd-schema FILE]

Product, floor and peers take turns (A B C A B C …) on the same disk, on SQLite and on a PostgreSQL server of the benchmarks'
own; a ratio is the median of the rounds' ratios. Absolute times are this machine's; ratios are what to look at. Each section of
docs/benchmarks.md is written by itself, with the machine and the day, so that one can be measured again (`--only`).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import footprint
import memory
import one_task
import payloads
import processes
import resuming
import side_by_side
from ground import Ground
from others import Others
from postgres import cluster
from sections import ROOT, machine, put

PAGE = ROOT / "docs" / "benchmarks.md"
SECTIONS: dict[str, Callable[[Ground], str]] = {
    "steps": one_task.steps,
    "task": one_task.tasks,
    "beside": side_by_side.measured,
    "resume": resuming.measured,
    "payloads": payloads.measured,
    "processes": processes.measured,
    "memory": memory.measured,
    "footprint": footprint.measured,
}


def main() -> int:
    """Measure the sections that are asked for, and write each in its place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rounds, without the others, and print only: for a look")
    parser.add_argument("--only", help=f"sections, separated by commas: {', '.join(SECTIONS)}")
    parser.add_argument("--others", help="the peers that are measured, separated by commas, or none; default: all")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-bench", help="where the peers' environments are kept")
    parser.add_argument("--absurd-schema", type=Path, help="what `absurdctl init` puts into a database, as a file")
    parser.add_argument("--folder", default=os.environ.get("BENCH_DIR"), help="on which disk; default: the temporary one")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose sections are written")
    parser.add_argument("--print", action="store_true", help="write no page")
    told = parser.parse_args()
    wanted = list(SECTIONS) if told.only is None else told.only.split(",")
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r}: {', '.join(SECTIONS)}")
    failed = 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was begun is ended
    with tempfile.TemporaryDirectory(prefix="doubtless-bench-", dir=told.folder, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # the PostgreSQL server may be another user's
        with cluster(folder) as server:
            names = "none" if told.quick and told.others is None else told.others
            others = Others(told.venvs.resolve(), folder, server, names, told.absurd_schema)
            ground = Ground(folder, server, others, told.quick)
            for name in wanted:
                failed += not one(name, ground, None if told.quick or told.print else told.page)
    return 1 if failed else 0


def one(name: str, ground: Ground, page: Path | None) -> bool:
    """Measure one section, and write it; False: it could not be measured, and what stands on the page stays."""
    print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
    begun = time.monotonic()
    try:
        text = SECTIONS[name](ground)
    except Exception:
        traceback.print_exc()
        return False
    version = "" if ground.cluster is None else ground.cluster.version
    text = f"{machine(version)}\n\n{text.strip()}\n"
    print(f"{text}\n({time.monotonic() - begun:.0f} s)\n", flush=True)
    if page is not None:
        put(page, name, text)
    return True


if __name__ == "__main__":
    sys.exit(main())
