"""Simulate: `python -m tests.simulation SEEDS` plays so many seeds on all cores and prints what they came through.

--first N      the first seed (0)
--seed N       one seed, with its story; shrunk to a test when it fails
--plant NAME   with one guard taken away: a seed has to find it (exit 0), within a minute
--record       write the figures into docs/proof.md
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from .coverage import expected
from .many import Report, planted_some, simulate, some, spread, together
from .scenario import draw
from .shrink import as_test, shrink

ENOUGH = 2000
"""From so many seeds on everything that is expected must have been met."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plant")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return one(chosen.seed)
    if chosen.plant:
        return planted(chosen.plant, chosen.first, chosen.seeds, chosen.jobs)
    report = together(told(spread(chosen.first, chosen.seeds, chosen.jobs)))
    missing = show(report)
    for seed, wrong in sorted(report.failed.items())[:3]:
        print(f"\nseed {seed}: {wrong[0]}")
        explain(seed)
    good = not report.failed and not (missing and report.seeds >= ENOUGH)
    if chosen.record and good:
        from .paper import record

        record(report, chosen.first)
    return 0 if good else 1


def told(reports: Iterable[Report]) -> Iterator[Report]:
    """Say every now and then how far it is."""
    done = 0
    for report in reports:
        before, done = done, done + report.seeds
        if done // 5000 != before // 5000:
            print(f"{done} seeds", flush=True)
        for seed, wrong in report.failed.items():
            print(f"seed {seed}: {wrong[0].splitlines()[0]}", flush=True)
        yield report


def show(report: Report) -> list[str]:
    """Print what was covered; what is missing."""
    for what, times in sorted(report.seen.items()):
        print(f"{what:45} {times:>10}")
    print(f"{report.seeds} seeds in {report.seconds:.0f} s: {len(report.failed)} failed")
    missing = [what for what in expected() if not report.seen[what]]
    if missing:
        print(f"never met: {', '.join(missing)}")
    return missing


def one(seed: int) -> int:
    result = simulate(draw(seed))
    print(*result.story, sep="\n")
    if not result.wrong:
        print(f"seed {seed}: nothing is wrong")
        return 0
    print(*result.wrong, sep="\n")
    explain(seed)
    return 1


def explain(seed: int) -> None:
    """Shrink a failing seed and print the test."""
    shrunk = shrink(draw(seed), lambda scenario: simulate(scenario).wrong)
    print(f"\nafter {shrunk.tries} smaller ones:\n")
    print(as_test(shrunk, seed))
    print(*simulate(shrunk.scenario).story, sep="\n")
    print(*shrunk.wrong, sep="\n")


def planted(name: str, first: int, seeds: int, jobs: int) -> int:
    """Look for a planted bug; exit 0 when a seed finds it."""
    seen: Counter[str] = Counter()
    played = 0
    for report in spread(first, seeds, jobs, partial(planted_some, name)):
        played += report.seeds
        seen.update(report.seen)
        for seed, wrong in report.failed.items():
            print(f"{name}: seed {seed} finds it, after {played} seeds: {wrong[0].splitlines()[0]}", flush=True)
            os._exit(0)
    print(f"{name}: not found in {played} seeds")
    return 1


__all__ = ["main", "some"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
