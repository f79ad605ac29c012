"""Explore: `python -m tests.explore` explores every slice, on all cores; `--record` writes the counts down.

--slice NAME   one slice (or a broken one), with its story when an invariant does not hold
--plant NAME   with one guard taken away: the explorer has to find it (exit 0), with its story
--plants       every planted bug, each in a process of its own, and how long it takes to find it
--short        the slices of `make test`
--new          the slices that have no recorded count within today's bounds
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from .explorer import Found, bounds, explore, in_words
from .paper import FOUND, PROOF, with_tables
from .plants import PLANTS
from .slices import BROKEN, LOOSENED, SLICES
from .world import Slice

COUNTS = Path(__file__).with_name("counts.json")
ALL = {each.name: each for each in (*SLICES, *BROKEN, *LOOSENED)}


def by_name(name: str) -> Found:
    """Explore the slice of this name; a plain function, so that another process can be asked to."""
    return explore(ALL[name])


def planted(name: str) -> Found:
    """Explore with one guard taken away. Call it in a process that ends afterwards: it may patch the protocol."""
    plant = PLANTS[name]
    if plant.patch is not None:
        plant.patch()
    return explore(ALL[plant.slice], plant.hand, plant.world)


def as_recorded(explored: Slice, found: Found) -> dict[str, Any]:
    return {
        "states": found.states, "moves": found.moves, "deepest": found.deepest, "seconds": round(found.seconds, 1),
        "bounds": bounds(explored),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore")
    parser.add_argument("--slice", choices=sorted(ALL))
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--plants", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    chosen = parser.parse_args(arguments)
    if chosen.plant:
        return show_planted(chosen.plant)
    if chosen.plants:
        return all_planted(chosen.jobs, record=chosen.record)
    recorded: dict[str, Any] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    known = {name for name, each in recorded.items() if chosen.new and name in ALL and each["bounds"] == bounds(ALL[name])}
    names = [chosen.slice] if chosen.slice else [s.name for s in SLICES if (s.short or not chosen.short) and s.name not in known]
    wrong = total = 0
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for found in pool.map(by_name, names):
            total += found.states
            print(f"{found.name:22} {found.states:>9} states {found.moves:>9} moves {found.seconds:7.1f} s", flush=True)
            print(f"{'':22} {bounds(ALL[found.name])}")
            if found.violation is not None:
                print(in_words(found))
                wrong += not found.assumption
            recorded[found.name] = as_recorded(ALL[found.name], found)
    print(f"{total} states in {len(names)} slices; every invariant held in each" if not wrong else f"{wrong} slices do not hold")
    if chosen.record and not wrong:
        counts = {s.name: recorded[s.name] for s in SLICES if s.name in recorded}
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
        PROOF.write_text(with_tables(PROOF.read_text(), counts, json.loads(FOUND.read_text())))
    return 1 if wrong else 0


def all_planted(jobs: int, *, record: bool) -> int:
    """Look for every planted bug; `record` writes down what it broke, after how many states and seconds."""
    from . import __main__ as by_its_name  # a process of its own finds the function there, not in what is run

    came: dict[str, Any] = {}
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:  # a patch of the protocol ends with its process
        for name, found in zip(PLANTS, pool.map(by_its_name.planted, PLANTS), strict=True):
            broke = None if found.violation is None else found.violation.invariant
            print(f"{name:28} {'NOT FOUND' if broke is None else broke:22} {found.states:>9} states {found.seconds:6.1f} s", flush=True)
            came[name] = {"breaks": broke, "states": found.states, "seconds": round(found.seconds, 1), "story": len(found.story)}
    missed = [name for name, each in came.items() if each["breaks"] not in PLANTS[name].breaks]
    print(f"{len(came)} planted bugs, {len(came) - len(missed)} found" + (f"; not: {', '.join(missed)}" if missed else ""))
    if record and not missed:
        FOUND.write_text(json.dumps(came, indent=1) + "\n")
        PROOF.write_text(with_tables(PROOF.read_text(), json.loads(COUNTS.read_text()), came))
    return 1 if missed else 0


def show_planted(name: str) -> int:
    found = planted(name)
    print(f"{name}: without the guard: {PLANTS[name].guard}")
    if found.violation is None:
        print(f"not found in {found.states} states")
        return 1
    print(in_words(found))
    print(f"found after {found.states} states, {found.seconds:.1f} s")
    return 0 if found.violation.invariant in PLANTS[name].breaks else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
