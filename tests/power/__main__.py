"""`python -m tests.power`: every disk that a power loss may leave, on all cores; `--record` writes the figures into docs/proof.md.

--draws N    draws at random per operation (6)
--seed N     the seed of the draws (1)
--plant P    with a fault put into the product (`--plants` lists them): the first thing that is lost
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from .plants import PLANTS, SAID, search
from .recovering import LOST, Lost, judge_recovery, record_recovery
from .replay import Covered, record, replay

SHARDS = 16
PAGE = Path(__file__).parents[2] / "docs" / "proof.md"


def whole(shard: int, *, seed: int, draws: int) -> Covered:
    """One of `SHARDS` parts of the operations, each in every way."""
    return replay(record(), seed=seed * SHARDS + shard, draws=draws, start=shard, every=SHARDS)


def recovery(lost: Lost, *, seed: int, draws: int) -> Covered:
    """A recovery, each operation in every way."""
    return replay(record_recovery(lost), seed=seed, draws=draws, judge=judge_recovery)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--plants", action="store_true")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.plants:
        print("\n".join(f"{name}: {says}" for name, (_, says) in PLANTS.items()))
        return 0
    if asked.plant:
        covered = search(asked.plant)
        print("\n".join(map(str, covered.findings)) or f"not found in {covered.states} states")
        return 0 if covered.findings else 1
    begun = time.monotonic()
    with ProcessPoolExecutor(asked.jobs) as pool:
        parts = list(pool.map(partial(whole, seed=asked.seed, draws=asked.draws), range(SHARDS)))
        recoveries = list(pool.map(partial(recovery, seed=asked.seed, draws=asked.draws), LOST))
    seconds = time.monotonic() - begun
    rows = [("both tasks, from the store's creation", parts[0].operations, sum(part.states for part in parts))]
    rows += [
        (f"`recover --accept`, the database {lost}", one.operations, one.states)
        for lost, one in zip(LOST, recoveries, strict=True)
    ]
    findings = [finding for one in (*parts, *recoveries) for finding in one.findings]
    for what, operations, states in rows:
        print(f"{what}: {operations} operations and marks, {states:,} states")
    print(f"{sum(row[2] for row in rows):,} states, {len(findings)} findings, {seconds:.0f} s")
    for finding in findings[:20]:
        print(finding)
    if asked.record and not findings:
        _write_down(rows, asked.draws, asked.seed)
    return 1 if findings else 0


def _write_down(rows: list[tuple[str, int, int]], draws: int, seed: int) -> None:
    table = ["| recorded | operations and marks | states replayed |", "|---|--:|--:|"]
    table += [f"| {what} | {operations} | {states:,} |" for what, operations, states in rows]
    table += [
        "",
        f"`python -m tests.power --draws {draws} --seed {seed}`: {sum(row[2] for row in rows):,} states, and nothing is lost in any.",
        "",
    ]
    table += ["| taken away | the first finding says | command |", "|---|---|---|"]
    table += [f"| {says} | {SAID[name]} | `python -m tests.power --plant {name}` |" for name, (_, says) in PLANTS.items()]
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- power: written by make power -->", "<!-- /power -->"
    body = "\n".join(table)
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{body}\n\n{end}", text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
