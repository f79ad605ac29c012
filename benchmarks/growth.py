"""`make growth`: what a log of millions of events costs: appends, claims, a resume, the inbox, sizes.

Some events come through the API, from tasks side by side; the rest is loaded by COPY: tasks that were made through the API
first, written again under other ids, chained anew. At each size everything is measured in the grown store and, in turn, in
an empty one on the same server. Samples of the loaded tasks are verified.

    python benchmarks/growth.py --events 20_000_000 --api 2_000_000 [--folder FOLDER] [--page docs/scale.md]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

import doubtless
from doubtless import Doubtless, injected
from doubtless.events import COLUMNS, STORE_TASK, Event, row_hash
from doubtless.store.base import Problem, Wanted
from doubtless.store.pg.rows import params_of
from doubtless.store.pg.verify import PostgresSource
from doubtless.store.verify import Beside, checks_of
from postgres import Cluster
from sections import ROOT, machine, put, table

DIFFERENCE = {"order": "A-17", "kind": "missing"}
STEPS = 10
LONG = 1_000
"""Write steps of the task that is resumed."""
MIX = {"done": 9_889, "waiting": 100, "asking": 10, "ready": 1}
"""Of so many loaded tasks: ended, asleep, before a person, accepted."""
TASK_COLUMNS = ("task_id", "task_name", "status", "input_hash", "wake_at", "created_at", "updated_at", "why", "awaits", "queue",
                "priority", "tail_seq", "tail_hash")  # fmt: skip
BATCH = 2_000


class Program:
    """The app on one store, with tasks that come to rest in every way."""

    def __init__(self, url: str) -> None:
        self.app = app = Doubtless(url)

        @app.step(effect="non_idem_write")
        def create_adjustment(difference: dict[str, Any], amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
            return {"id": "sheet-4711", "amount": amount, "state": "open", "key": idempotency_key[:8]}

        @app.step(effect="non_idem_write", name="create_adjustment_async")
        async def create_async(difference: dict[str, Any], amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
            return {"id": "sheet-4711", "amount": amount, "state": "open", "key": idempotency_key[:8]}

        @app.step(effect="non_idem_write")
        def notify(text: str) -> dict[str, Any]:
            return {"sent": text}

        @app.step(effect="non_idem_write", attempts=1)
        def approve(sheet: str) -> dict[str, Any]:
            raise TimeoutError("no reply")

        @app.task
        def many(steps: int, end: str) -> None:
            for n in range(steps):
                create_adjustment(difference=DIFFERENCE, amount=n)
            if end == "waiting":
                app.sleep("P300D")
            elif end == "asking":
                approve(sheet="sheet-4711")
            elif end == "frozen":
                notify(text="done")

        @app.task
        async def beside(steps: int) -> None:
            for n in range(steps):
                await create_async(difference=DIFFERENCE, amount=n)

        self.write, self.many, self.beside = create_adjustment, many, beside

    def resumed(self, task_id: str, steps: int) -> None:
        """Run a task up to the frozen step."""
        with suppress(doubtless.TaskFrozen):
            self.app.run(self.many, task_id, steps=steps, end="frozen")
            raise AssertionError("the task went past the frozen step")

    def templates(self) -> dict[str, str]:
        """A task of each kind, by its id."""
        app = self.app
        app.run(self.many, "made-done", steps=STEPS, end="done")
        with suppress(doubtless.TaskWaiting):
            app.run(self.many, "made-waiting", steps=STEPS, end="waiting", wait=False)
        with suppress(doubtless.NeedsHuman):
            app.run(self.many, "made-asking", steps=STEPS, end="asking")
        app.start(self.many, "made-ready", steps=STEPS, end="done")
        return {kind: f"made-{kind}" for kind in MIX}

    def through_the_api(self, events: int, side_by_side: int) -> float:
        """So many events, from tasks side by side; events a second."""
        per_task = 2 * STEPS + 2
        tasks = max(side_by_side, events // per_task)

        async def one(names: Iterator[int]) -> None:
            for n in names:
                await self.app.arun(self.beside, f"api-{n}", steps=STEPS)

        async def every() -> None:
            names = iter(range(tasks))
            await asyncio.gather(*[one(names) for _ in range(side_by_side)])

        begun = time.perf_counter()
        asyncio.run(every())
        return tasks * per_task / (time.perf_counter() - begun)


# ---------------------------------------------------------------- loading


class Template:
    """A task that was made through the API, to be written again under other ids."""

    def __init__(self, program: Program, connection: psycopg.Connection[Any], schema: str, task_id: str) -> None:
        self.task_id = task_id
        self.rows = program.app.store.rows(task_id)
        self.middles = ["\t".join(map(field, params_of(row)[1:-1])) for row in self.rows]
        found = connection.execute(f'SELECT {", ".join(TASK_COLUMNS)} FROM "{schema}".tasks WHERE task_id = $1', (task_id,))
        row = found.fetchone()
        assert row is not None
        self.head = dict(zip(TASK_COLUMNS, row, strict=True))
        self.cases = program.app.store.cases(task_id=task_id)

    def again(self, task_id: str) -> tuple[list[str], str, list[str]]:
        """Its rows, its head and its cases under another id, as lines of COPY."""
        lines, before, tail = [], None, b""
        for row, middle in zip(self.rows, self.middles, strict=True):
            lines.append(f"{task_id}\t{middle}\t{field(before)}\n")
            before = row_hash(Event._make((task_id, *row[1:-1], before)))
            if row.event_seq == self.head["tail_seq"]:
                tail = before
        head = {**self.head, "task_id": task_id, "tail_hash": tail}
        cases = [case._replace(case_id=f"{task_id}:{case.event_seq}", task_id=task_id) for case in self.cases]
        return lines, line(head.values()), [line(case) for case in cases]


def field(value: object) -> str:
    """A value as COPY reads it."""
    if value is None:
        return r"\N"
    if isinstance(value, bytes):
        return rf"\\x{value.hex()}"
    return str(value).replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n")


def line(values: Iterable[object]) -> str:
    return "\t".join(map(field, values)) + "\n"


class Loader:
    """Writes tasks by COPY, each batch in one transaction: rows, heads and cases."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, templates: dict[str, Template]) -> None:
        self.connection, self.schema, self.templates = connection, schema, templates
        self.kinds = [kind for kind, count in MIX.items() for _ in range(count)]
        random.Random(7).shuffle(self.kinds)
        self.tasks = 0

    def load(self, events: int) -> None:
        """At least so many events more."""
        while events > 0:
            rows, heads, cases = [], [], []
            for _ in range(BATCH):
                kind = self.kinds[self.tasks % len(self.kinds)]
                made = self.templates[kind].again(f"loaded-{self.tasks:09}-{kind}")
                rows += made[0]
                heads.append(made[1])
                cases += made[2]
                self.tasks += 1
            with self.connection.transaction(), self.connection.cursor() as cursor:
                self._copy(cursor, "events", COLUMNS, rows)
                self._copy(cursor, "tasks", TASK_COLUMNS, heads)
                self._copy(cursor, "cases", doubtless_case_columns(), cases)
            events -= len(rows)

    def _copy(self, cursor: Any, name: str, columns: Sequence[str], lines: Sequence[str]) -> None:
        with cursor.copy(f'COPY "{self.schema}".{name} ({", ".join(columns)}) FROM STDIN'.encode()) as copy:
            copy.write("".join(lines))


def doubtless_case_columns() -> tuple[str, ...]:
    from doubtless.store.base import CaseRow

    return CaseRow._fields


# ---------------------------------------------------------------- verifying a sample


class Sample:
    """What `verify` reads, of some tasks only."""

    suspect = False

    def __init__(self, source: PostgresSource, tasks: Sequence[str]) -> None:
        self._source, self._tasks = source, sorted(tasks)

    def read(self, name: str, args: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        if name == "all_rows":
            return [row for task in self._tasks for row in self._source.read("rows", (task, 0))]
        if name in ("tails", "cases_all"):
            place = 0 if name == "tails" else 1
            return [row for row in self._source.read(name) if row[place] in set(self._tasks)]
        return self._source.read(name, args)


def verified(program: Program, cluster: Cluster, schema: str, tasks: Sequence[str]) -> list[Problem]:
    """What `doubtless verify` would say of these tasks."""
    store = program.app.store
    from doubtless.store.pg.link import connect

    connection = connect(cluster.plain, "the grown store", autocommit=False)
    try:
        source = Sample(PostgresSource(connection, schema), tasks)
        return list(checks_of(source, Beside(store.folder, None))[0]())
    finally:
        connection.close()


# ---------------------------------------------------------------- measuring


class Figures(NamedTuple):
    """What was measured at one size: of the grown store, of the empty one, in microseconds."""

    events: int
    tasks: int
    times: dict[str, tuple[float, float]]
    sizes: dict[str, int]


def median_us(work: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times)


def measure(grown: Program, empty: Program, quick: bool) -> dict[str, tuple[float, float]]:
    """The same work in both stores, in turn; medians."""
    rounds = 3 if quick else 9
    names = ("a write step", "claim and release", "a worker's look for due tasks", f"resume of {LONG:,} finished steps",
             "the newest row of a task", "check of one task's chain", "the inbox")  # fmt: skip
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}

    def turn(number: int) -> None:
        for place, program in enumerate((grown, empty)):
            for name, value in once(program, number).items():
                times[name][place].append(value)

    for number in range(rounds):
        turn(number)
    return {name: (statistics.median(a), statistics.median(b)) for name, (a, b) in times.items()}


def once(program: Program, number: int) -> dict[str, float]:
    app, store = program.app, program.app.store
    found: dict[str, float] = {}

    @app.task(name=f"steps-{number}-{random.random()}")
    def steps() -> None:
        found["a write step"] = median_us(lambda: program.write(difference=DIFFERENCE, amount=number), 60)

    app.run(steps, f"measured-{number}-{time.time_ns()}")

    def claimed() -> None:
        claim = store.claim("standing-long")
        store.release("standing-long", claim.epoch)

    def looked() -> float:
        now = store.now().wall
        begun = time.perf_counter()
        due = store.due(Wanted(("many", "beside")), limit=4, now=now)
        taken = (time.perf_counter() - begun) * 1e6
        for claim in due.claims:
            store.release(claim.head.task_id, claim.epoch)
        return taken

    found["claim and release"] = median_us(claimed, 20)
    found["a worker's look for due tasks"] = statistics.median(looked() for _ in range(9))
    found[f"resume of {LONG:,} finished steps"] = median_us(lambda: program.resumed("standing-long", LONG), 3)
    found["the newest row of a task"] = median_us(lambda: store.last("standing-long"), 20)
    found["check of one task's chain"] = median_us(lambda: store_check(store), 3)
    if number < 3:  # it takes long
        found["the inbox"] = median_us(app.inbox, 1)
    return found


def store_check(store: Any) -> None:
    store._chained.pop("standing-long", None)
    store.check_chain("standing-long")


def sizes(connection: psycopg.Connection[Any], schema: str) -> dict[str, int]:
    """Bytes of each table and index, the database's, and of what is not on disk any more."""
    rows = connection.execute(
        "SELECT c.relname, pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) "
        "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relkind IN ('r', 'i') ORDER BY 2 DESC", (schema,)
    ).fetchall()  # fmt: skip
    return dict(rows)


def counted(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    row = connection.execute(
        f'SELECT (SELECT count(*) FROM "{schema}".events), (SELECT count(*) FROM "{schema}".tasks)'.encode()
    ).fetchone()
    assert row is not None
    return row[0], row[1]


# ---------------------------------------------------------------- the run


def grow(cluster: Cluster, options: argparse.Namespace) -> tuple[list[Figures], list[str]]:
    """Grow a store to each size and measure there; with notes."""
    notes: list[str] = []
    grown, empty = Program(cluster.store("grown")), Program(cluster.store("empty"))
    connection = psycopg.connect(cluster.plain, autocommit=True, cursor_factory=psycopg.RawCursor)
    for program in (grown, empty):
        program.app.freeze("notify", why="the task stands here: it is resumed again and again")
        program.resumed("standing-long", LONG)
    templates = {kind: Template(grown, connection, "grown", task) for kind, task in grown.templates().items()}
    loader = Loader(connection, "grown", templates)
    rate = grown.through_the_api(options.api, 50)
    told(notes, f"{options.api:,} events through the API, 50 async tasks side by side: {rate:,.0f} events a second.")
    figures = []
    for target in levels(options.events):
        events, _ = counted(connection, "grown")
        begun = time.perf_counter()
        loader.load(target - events)
        seconds = time.perf_counter() - begun
        if target > events:
            told(notes, f"From {events:,} to {target:,} events by COPY: {(target - events) / seconds:,.0f} events a second.")
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")
        figures.append(Figures(*counted(connection, "grown"), measure(grown, empty, options.quick), sizes(connection, "grown")))
        told(notes, f"  at {target:,}: {figures[-1].times}")
        sample = [f"loaded-{n:09}-{loader.kinds[n % len(loader.kinds)]}" for n in sampled(loader.tasks)]
        problems = verified(grown, cluster, "grown", [STORE_TASK, *sample])
        if problems:
            raise AssertionError(f"what was loaded is no log: {problems[:3]}")
        if sample:
            told(notes, f"{len(sample)} sampled tasks of those that were loaded: verified, no problem.")
        if target == levels(options.events)[0]:
            begun = time.perf_counter()
            found = grown.app.verify()
            assert found == [], found[:3]
            told(notes, f"`doubtless verify` of all {figures[-1].events:,} events: {time.perf_counter() - begun:.0f} s.")
    begun = time.perf_counter()
    connection.execute(b'VACUUM (FREEZE, ANALYZE) "grown".events')
    told(notes, f"`VACUUM (FREEZE)` of the events at the end: {time.perf_counter() - begun:.0f} s.")
    grown.app.close()
    empty.app.close()
    connection.close()
    return figures, notes


def told(notes: list[str], note: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {note}", flush=True)
    if not note.startswith(" "):
        notes.append(note)


def levels(events: int) -> list[int]:
    return [size for size in (events // 100, events // 10, events) if size]


def sampled(tasks: int) -> list[int]:
    return sorted(random.Random(11).sample(range(tasks), min(200, tasks)))


def page(figures: list[Figures], notes: list[str], version: str) -> str:
    """The section of docs/scale.md."""
    head = ["", *[f"{f.events:,} events" for f in figures], "an empty store"]
    rows = [["tasks", *[f"{f.tasks:,}" for f in figures], ""]]
    for name in figures[0].times:
        empty = statistics.median(f.times[name][1] for f in figures)
        times = [f.times[name] for f in figures]
        rows.append([name, *[f"{shown(ours)} ({ours / other:.2f})" for ours, other in times], shown(empty)])
    large = [name for name, size in figures[-1].sizes.items() if size > 1 << 20]
    for name in large:
        rows.append([f"`{name}`", *[f"{f.sizes.get(name, 0) / 1e6:,.0f} MB" for f in figures], ""])
    rows.append(["bytes an event, all tables and indexes", *[f"{sum(f.sizes.values()) / f.events:.0f}" for f in figures], ""])
    said = "\n".join(f"- {note}" for note in notes)
    bracket = "In brackets: so many times what it is in an empty store on the same server, measured in turn."
    return f"{machine(version)}\n\n{bracket}\n\n{table(head, rows)}\n\n{said}"


def shown(microseconds: float) -> str:
    return f"{microseconds / 1e3:.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=lambda text: int(text.replace("_", "")), default=20_000_000)
    parser.add_argument("--api", type=lambda text: int(text.replace("_", "")), default=2_000_000)
    parser.add_argument("--folder", default=os.environ.get("BENCH_DIR"), help="where the database is made, and removed")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--page", type=Path, help="the page whose section is written; default: print it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was begun is ended
    folder = tempfile.mkdtemp(prefix="growth-", dir=options.folder)
    os.chmod(folder, 0o755)
    free = shutil.disk_usage(folder).free
    if free < options.events * 1_500:
        needed = options.events * 1_500 / 1e9
        parser.error(f"{options.events:,} events and their WAL take about {needed:.0f} GB; {free / 1e9:.0f} are free")
    try:
        with Cluster(folder, shared_buffers="1GB", max_wal_size="8GB", checkpoint_timeout="15min") as cluster:
            figures, notes = grow(cluster, options)
            text = page(figures, notes, cluster.version)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(text)
    if options.page:
        put(ROOT / options.page if not options.page.is_absolute() else options.page, "growth", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
