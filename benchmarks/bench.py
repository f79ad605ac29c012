"""`make bench`: the cost of a step and of a resume, as ratios to a hand-written floor in the same run.

Product and floor take turns inside one process (A B A B …), with the same pragmas on the same disk; a ratio is
taken per round and its median reported. Absolute times are this machine's; ratios are what to look at.
Writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import doubtless
from doubtless import Doubtless, injected
from floor import Floor, read_back

TASK_ID = "recon-2026-11-28"  # 16 characters
ROOT = Path(__file__).resolve().parent.parent


def create_adjustment(difference: dict[str, Any], amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
    """A write's body: nothing but an answer, so that the log is all that is measured."""
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": idempotency_key[:8]}


def match_orders(difference: dict[str, Any], amount: int) -> dict[str, Any]:
    """A read's body."""
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}


def notify(text: str) -> dict[str, Any]:
    """The write before which a task stands while it is resumed again and again."""
    return {"sent": text}


class Row(NamedTuple):
    """One line of the table; times in microseconds per step."""

    what: str
    ours: float
    floor: float
    ratio: float
    limit: str


def declare(url: str) -> tuple[Doubtless, dict[str, Any]]:
    """An app with one step of each kind that is measured."""
    app = Doubtless(url)
    return app, {
        "write": app.step(effect="non_idem_write")(create_adjustment),
        "read": app.step(effect="read")(match_orders),
        "notify": app.step(effect="non_idem_write")(notify),
    }


def per_step(work: Callable[[int], object], count: int) -> float:
    """Microseconds for one of `count` calls."""
    begun = time.perf_counter()
    for i in range(count):
        work(i)
    return (time.perf_counter() - begun) / count * 1e6


def steps(folder: str, rounds: int, count: int) -> list[Row]:
    """A write and a read inside one task, each beside the floor, in turn."""
    app, step = declare(f"sqlite:///{folder}/steps.db")
    floor = Floor(f"{folder}/floor.db")
    difference = {"order": "A-17", "kind": "missing"}
    timed: dict[str, list[tuple[float, float]]] = {"write": [], "read": [], "thin": []}

    def turn(number: int) -> None:
        task = f"{TASK_ID}-{number}"

        def write(i: int) -> None:
            floor.write(task, i, "create_adjustment", create_adjustment, difference=difference, amount=i)

        def thin(i: int) -> None:
            floor.write_thin(f"{task}-thin", i, "create_adjustment", create_adjustment, difference=difference, amount=i)

        def read(i: int) -> None:
            floor.read(task, i + count, "match_orders", match_orders, difference=difference, amount=i)

        pairs = {
            "write": (
                per_step(lambda i: step["write"](difference=difference, amount=i), count),
                per_step(write, count),
            ),
            "read": (
                per_step(lambda i: step["read"](difference=difference, amount=i), count),
                per_step(read, count),
            ),
        }
        pairs["thin"] = (pairs["write"][0], per_step(thin, count))
        if number >= 0:  # the first round warms caches and is not counted
            for kind, pair in pairs.items():
                timed[kind].append(pair)

    @app.task
    def measure() -> None:
        for number in range(-1, rounds):
            turn(number)

    app.run(measure, TASK_ID)
    names = {
        "write": "a write step, two durable commits",
        "read": "a read step, one commit",
        "thin": "the write step beside a thinner floor: key, params and output only",
    }
    return [ratio(names[kind], pairs, "≤ 1.25" if kind == "write" else "") for kind, pairs in timed.items()]


def ratio(what: str, pairs: list[tuple[float, float]], limit: str) -> Row:
    """Medians of both sides, and the median of the rounds' ratios."""
    ours, floor = zip(*pairs, strict=True)
    return Row(what, statistics.median(ours), statistics.median(floor), statistics.median(a / b for a, b in pairs), limit)


def resume(folder: str, finished: int, rounds: int, every: int | None = None) -> Row:
    """Resuming a task with so many finished write steps, against reading and decoding the same rows."""
    name = f"{folder}/resume-{finished}-{every}.db"
    app, step = declare(f"sqlite:///{name}")
    app.store.info()
    unsynced(app)
    app.freeze("notify", why="the task stands here: it is resumed again and again")

    @app.task(snapshot_every=every)
    def many(steps: int) -> None:
        for i in range(steps):
            step["write"](difference={"order": "A-17", "kind": "missing"}, amount=i)
        step["notify"](text="done")

    def run() -> None:
        try:
            app.run(many, TASK_ID, steps=finished)
        except doubtless.TaskFrozen:
            return
        raise AssertionError("the task went past the frozen step")

    run()
    reader = apsw.Connection(name)
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        run()
        middle = time.perf_counter()
        assert read_back(reader, TASK_ID) == finished
        pairs.append(((middle - begun) / finished * 1e6, (time.perf_counter() - middle) / finished * 1e6))
    how = "" if every is None else f", a snapshot every {every}"
    return ratio(f"resume with {finished:,} finished write steps{how}, per step", pairs[1:], "≤ 2")


def agent_resume(folder: str, rounds: int, short: int, long: int) -> Row:
    """Resuming an agent after a long history, against after a short one: from its snapshot, whole, in turn."""
    app, _ = declare(f"sqlite:///{folder}/agents.db")
    app.store.info()
    unsynced(app)
    app.freeze("notify", why="the agent stands here: it is resumed again and again")
    history = short

    def choose(state: doubtless.State) -> doubtless.Turn:
        if state.choices >= history:
            return doubtless.Turn([doubtless.StepCall("notify", {"text": "done"})])
        return doubtless.Turn([doubtless.StepCall("match_orders", {"difference": {}, "amount": state.choices})])

    agent = app.agent("agent", choose=choose, steps=["match_orders", "notify"], max_choices=None, snapshot_every=20)

    def run(task_id: str) -> float:
        begun = time.perf_counter()
        try:
            app.run(agent, task_id, goal="stand before the frozen step")
        except doubtless.TaskFrozen:
            return (time.perf_counter() - begun) * 1e6
        raise AssertionError("the agent went past the frozen step")

    for history in (short, long):
        run(f"after-{history}")
    pairs = [(run(f"after-{long}"), run(f"after-{short}")) for _ in range(rounds + 1)][1:]
    return ratio(f"resume of an agent after {long:,} choices, against after {short:,} (as the floor)", pairs, "≤ 1.5")


def unsynced(app: Doubtless) -> None:
    """Fill a database faster: its syncs are not what is measured here."""
    connection = apsw.Connection(app.store.path)  # type: ignore[attr-defined]
    connection.close()
    with app.store._link.lock:  # type: ignore[attr-defined]
        app.store._link.ready().execute("PRAGMA synchronous = OFF")  # type: ignore[attr-defined]


def growth(folder: str, count: int) -> tuple[float, float]:
    """Bytes of the file per write step after VACUUM, beside the content itself (params and output)."""
    app, step = declare(f"sqlite:///{folder}/growth.db")
    app.store.info()
    unsynced(app)

    @app.task
    def many(steps: int) -> None:
        for i in range(steps):
            step["write"](difference={"order": "A-17", "kind": "missing"}, amount=i)

    app.run(many, TASK_ID, steps=count)
    app.close()
    connection = apsw.Connection(f"{folder}/growth.db")
    (content,) = connection.execute(
        "SELECT coalesce(sum(length(input_ref) - 7), 0) + coalesce(sum(length(output_ref) - 7), 0) FROM events"
    ).fetchone()
    connection.execute("VACUUM")
    connection.close()
    size = os.path.getsize(f"{folder}/growth.db")
    return (size - content) / count, content / count


def import_time(rounds: int) -> tuple[float, float, float]:
    """Milliseconds of a fresh interpreter with our import and with the base's, from compiled modules; their ratio."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPYCACHEPREFIX": cache}

        def timed(code: str) -> float:
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)
            return (time.perf_counter() - begun) * 1e3

        pairs = [(timed("import doubtless"), timed("import asyncio, sqlite3, json")) for _ in range(rounds + 1)][1:]
    row = ratio("", pairs, "")
    return row.ours, row.floor, row.ratio


def dbos_steps(folder: str, rounds: int, count: int) -> float | None:
    """Microseconds of a DBOS step on SQLite that does the same nothing; None when it is not installed."""
    try:
        import dbos_peer  # type: ignore[import-not-found]
    except ImportError:
        return None
    measured: float = dbos_peer.per_step(folder, rounds, count)
    return measured


def page(rows: list[Row], grown: tuple[float, float], imported: tuple[float, float, float], peer: float | None) -> str:
    """docs/benchmarks.md."""
    if peer is not None:
        one_commit = rows[1].floor
        name = f"DBOS {version('dbos')} on SQLite: a step, one commit"
        rows.insert(2, Row(name, peer, one_commit, peer / one_commit, ""))
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; run it on your machine. Product and floor take turns in one process, with the same",
        "pragmas (WAL, `synchronous=FULL`) on the same disk; a ratio is the median of the rounds' ratios. The floor is",
        "[benchmarks/floor.py](../benchmarks/floor.py): the same durable commits, written by hand.",
        "",
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}.",
        "",
        "| what | µs | floor, µs | ratio | limit |",
        "|---|---:|---:|---:|---|",
        *(f"| {r.what} | {r.ours:.0f} | {r.floor:.0f} | {r.ratio:.2f} | {r.limit} |" for r in rows),
        "",
        f"File growth per write step after VACUUM: {grown[0]:.0f} bytes beside {grown[1]:.0f} bytes of content (limit 450).",
        "",
        f"`import doubtless`: {imported[0]:.0f} ms; `import asyncio, sqlite3, json`: {imported[1]:.0f} ms; "
        f"ratio {imported[2]:.2f} (limit 1.5).",
        "",
    ]
    if peer is None:
        lines += ["DBOS is not installed here: `pip install doubtless[bench]` adds it to this table.", ""]
    else:
        lines += [
            "DBOS makes a step's result durable after the call, in one commit; what died between the effect and that commit runs",
            "again. Its line has the floor of a read step, which makes one commit too.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="few rounds, and print only: for a look, not for the page")
    options = parser.parse_args()
    rounds, count = (3, 50) if options.quick else (options.rounds, options.steps)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        rows = steps(folder, rounds, count)
        rows += [resume(folder, n, max(3, rounds // 2)) for n in ((1_000,) if options.quick else (1_000, 10_000))]
        rows.append(resume(folder, 1_000 if options.quick else 10_000, max(3, rounds // 2), every=100))
        rows.append(agent_resume(folder, rounds, 100, 400 if options.quick else 2_000))
        text = page(rows, growth(folder, 500 if options.quick else 5_000), import_time(rounds), dbos_steps(folder, rounds, count))
    print(text)
    if not options.quick:
        (ROOT / "docs").mkdir(exist_ok=True)
        (ROOT / "docs" / "benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
