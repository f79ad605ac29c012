"""Simulate: `python -m tests.simulation SEEDS` plays so many seeds on all cores and prints what they came through.

--first N      the first seed (0)
--seed N       one seed, with its story; shrunk to a test when it fails
--plant NAME   with one guard taken away: a seed has to find it (exit 0)
--until-found  stop at the first seed that finds something (exit 1)
--record       write the figures into docs/proof.md
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial

from .coverage import expected
from .many import Report, simulate, some, spread, together
from .plants import plant_of, search
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
    parser.add_argument("--until-found", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return one(chosen.seed)
    if chosen.plant:
        return planted(chosen.plant, chosen.first, chosen.seeds)
    if chosen.until_found:
        return until_found(chosen.first, chosen.seeds, chosen.jobs)
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


def until_found(first: int, seeds: int, jobs: int) -> int:
    """Play until a seed finds something wrong; exit 1 then."""
    reports = spread(first, seeds, jobs, partial(some, stop_at=1))
    for report in reports:
        for seed, wrong in report.failed.items():
            print(f"seed {seed}: {wrong[0].splitlines()[0]}", flush=True)
            reports.close()
            return 1
    return 0


def planted(name: str, first: int, seeds: int) -> int:
    """Look for a planted bug; exit 0 when a seed finds it."""
    print(f"{name}: without the guard: {plant_of(name).guard}", flush=True)
    found, seconds = search(name, seeds, first)
    print(f"found after {seconds:.0f} s: {found}" if found else f"not found in {seeds} seeds, {seconds:.0f} s")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
