"""Many seeds: play them, check them, count what they came through."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from doubtless.store import owners

from .check import check
from .coverage import situations
from .play import play
from .scenario import Scenario, draw

CHUNK = 25
FAST = "/dev/shm"


class Result(NamedTuple):
    """What a run came to: what is wrong with it (nothing, if all is well), what it came through, and its story."""

    wrong: list[str]
    seen: Counter[str]
    story: list[str]


class Report(NamedTuple):
    """What some seeds came to."""

    seeds: int
    failed: dict[int, list[str]]
    seen: Counter[str]
    seconds: float


def simulate(scenario: Scenario) -> Result:
    """Play a scenario to its end and check it."""
    folder = tempfile.mkdtemp(prefix="doubtless-sim-", dir=FAST if os.path.isdir(FAST) else None)
    try:
        with warnings.catch_warnings():  # coroutines of killed processes are never awaited
            warnings.simplefilter("ignore", RuntimeWarning)
            played = play(scenario, folder)
            wrong = check(played)
        return Result(wrong, situations(played), played.story)
    finally:
        owners._OWNERS.pop(f"{folder}/s.db.owners", None)
        shutil.rmtree(folder, ignore_errors=True)


def log_of(scenario: Scenario) -> list[bytes]:
    """The rows that a run leaves, column by column: the same, byte by byte, whenever and wherever it is played."""
    from .check import open_store

    folder = tempfile.mkdtemp(prefix="doubtless-sim-", dir=FAST if os.path.isdir(FAST) else None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            played = play(scenario, folder)
            store = open_store(played)
            try:
                heads = store.heads()
                return [repr(tuple(row)).encode() for head in heads for row in store.rows(head.task_id)]
            finally:
                store.close()
    finally:
        owners._OWNERS.pop(f"{folder}/s.db.owners", None)
        shutil.rmtree(folder, ignore_errors=True)


def some(seeds: Iterable[int], stop_at: int = 1 << 30) -> Report:
    """Play these seeds, one after the other."""
    begun, failed, seen, count = time.monotonic(), dict[int, list[str]](), Counter[str](), 0
    for seed in seeds:
        scenario = draw(seed)
        result = simulate(scenario)
        count += 1
        seen.update(result.seen)
        if result.wrong:
            failed[seed] = result.wrong
            if len(failed) >= stop_at:
                break
    gc.collect()
    return Report(count, failed, seen, time.monotonic() - begun)


def _looks_away() -> None:
    """In a process that only plays: what killed processes leave behind is collected without a word."""
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore", RuntimeWarning)


def spread(first: int, count: int, jobs: int, work: Callable[[list[int]], Report] = some) -> Generator[Report, None, None]:
    """Play so many seeds on so many processes; the reports of their chunks as they come."""
    numbers = [list(range(at, min(at + CHUNK, first + count))) for at in range(first, first + count, CHUNK)]
    # A pool of `multiprocessing`: the executor of `concurrent.futures` stops for ever when its processes are renewed (3.11).
    with multiprocessing.get_context("spawn").Pool(jobs, _looks_away, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(work, numbers)  # whoever has seen enough closes this: what is still played is ended


def together(reports: Iterable[Report]) -> Report:
    """One report of many."""
    begun, whole = time.monotonic(), Report(0, {}, Counter(), 0.0)
    for report in reports:
        whole.seen.update(report.seen)
        whole.failed.update(report.failed)
        whole = whole._replace(seeds=whole.seeds + report.seeds)
    return whole._replace(seconds=time.monotonic() - begun)
