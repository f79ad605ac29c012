"""The yardstick for many tasks in one process: the same rows by hand, with commits that all tasks of an event loop share.

It writes what the product writes for a task of write steps, all columns of it: canonical JSON, a keyed digest of the params and a
key, the hash of each row and the chain; a row before the call and one after it, each durable before the task goes on. What it
does without are policies, checks, owners, cases, freezes, replay, timeouts, and anything that can go wrong.

The floor is what one writes by hand for an event loop: a writer thread that commits what lies there in one statement, again and
again. Two other ways are measured beside it, and have no limit: a commit at the end of each turn of the loop, in its own thread,
which holds up all that the loop does for the length of each sync; and the product's own way (`doubtless.turns`), which is not by
hand, and with which the floor becomes faster whenever the product does (docs/decisions/0020).
`python benchmarks/shared_floor.py [URL]` prints the ratios; with a `postgresql://` URL, of a database of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from hashlib import blake2b, sha256
from typing import Any, Protocol, cast

import apsw

from doubtless import Doubtless, injected
from doubtless.turns import Turn
from measuring import seconds, take_turns

_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_NAMESPACE = b"benchmark"

COLUMNS = (
    ("task_id", "TEXT"), ("event_seq", "INTEGER"), ("step_seq", "INTEGER"), ("path", "TEXT"), ("step_name", "TEXT"),
    ("kind", "TEXT"), ("status", "TEXT"), ("attempt", "INTEGER"), ("effect_class", "TEXT"), ("idempotency_key", "BLOB"),
    ("input_hash", "BLOB"), ("input_ref", "TEXT"), ("output_ref", "TEXT"), ("error", "TEXT"), ("data", "BLOB"),
    ("started_at", "INTEGER"), ("finished_at", "INTEGER"), ("boot_at", "INTEGER"), ("epoch", "INTEGER"),
    ("format", "INTEGER"), ("prev_hash", "BLOB"),
)  # fmt: skip
Row = tuple[Any, ...]


# ---------------------------------------------------------------- where rows go


Gone = Callable[[], None] | None


class Sink(Protocol):
    """What commits many rows in one statement, durable at return; `gone` is called right before it is sent."""

    def commit(self, rows: Sequence[Row], gone: Gone = None) -> None: ...


class SqliteSink:
    """One SQLite file, with the pragmas of the product."""

    def __init__(self, path: str) -> None:
        self.connection = apsw.Connection(path)
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
        self.connection.execute(f"CREATE TABLE log ({columns}, PRIMARY KEY (task_id, event_seq)) WITHOUT ROWID")
        self.cursor = self.connection.cursor()
        self.many: dict[int, str] = {}

    def commit(self, rows: Sequence[Row], gone: Gone = None) -> None:
        count = len(rows)
        if count not in self.many:
            row = f"({','.join('?' * len(COLUMNS))})"
            self.many[count] = f"INSERT INTO log VALUES {','.join([row] * count)}"
        values = [value for row in rows for value in row]
        if gone is not None:
            gone()
        self.cursor.execute(self.many[count], values)


class PostgresSink:
    """One table of a PostgreSQL database; all rows of a commit in one statement, from one text."""

    def __init__(self, url: str) -> None:
        import psycopg

        types = {"TEXT": "text", "INTEGER": "bigint", "BLOB": "bytea"}
        columns = ", ".join(f"{name} {types[kind]}" for name, kind in COLUMNS)
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor)
        self.connection.execute("DROP TABLE IF EXISTS log")
        self.connection.execute(f"CREATE TABLE log ({columns}, PRIMARY KEY (task_id, event_seq))".encode())
        self.insert = f"INSERT INTO log SELECT * FROM json_to_recordset($1::json) AS given ({columns})".encode()
        self.names, self.prepared = [name for name, _ in COLUMNS], False

    def commit(self, rows: Sequence[Row], gone: Gone = None) -> None:
        server, said = self.connection.pgconn, self._said(rows).encode()
        if not self.prepared:
            server.prepare(b"insert", self.insert, [114])
            self.prepared = True
        if gone is not None:
            gone()
        result = server.exec_prepared(b"insert", [said], [1])
        assert result.command_tuples == len(rows), result.error_message

    def _said(self, rows: Sequence[Row]) -> str:
        said = [
            {name: "\\x" + value.hex() if type(value) is bytes else value for name, value in zip(self.names, row, strict=True)}
            for row in rows
        ]
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------- who commits


class ThreadWriter:
    """A thread that commits what lies there, again and again; batches grow by themselves."""

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self.sink, self.loop = sink, loop
        self.waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self.lock, self.wake, self.ended = threading.Lock(), threading.Semaphore(0), False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def put(self, row: Row) -> asyncio.Future[None]:
        future = self.loop.create_future()
        with self.lock:
            first = not self.waiting
            self.waiting.append((row, future))
        if first:
            self.wake.release()
        return future

    def _work(self) -> None:
        while not self.ended:
            self.wake.acquire()
            with self.lock:
                taken, self.waiting = self.waiting, []
            if taken:
                self.sink.commit([row for row, _ in taken])
                self.loop.call_soon_threadsafe(self._done, [future for _, future in taken])

    @staticmethod
    def _done(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def close(self) -> None:
        self.ended = True
        self.wake.release()
        self.thread.join()


class TurnWriter:
    """Commits at the end of each turn of the event loop what was put down in it."""

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self.sink, self.loop = sink, loop
        self.rows: list[Row] = []
        self.futures: list[asyncio.Future[None]] = []

    def put(self, row: Row) -> asyncio.Future[None]:
        if not self.rows:
            self.loop.call_soon(self._commit)
        self.rows.append(row)
        future = self.loop.create_future()
        self.futures.append(future)
        return future

    def _commit(self) -> None:
        rows, self.rows = self.rows, []
        futures, self.futures = self.futures, []
        self.sink.commit(rows)
        for future in futures:
            future.set_result(None)

    def close(self) -> None:
        pass


class Put:
    """A row that waits; `done`: it has been committed."""

    __slots__ = ("done", "row")

    def __init__(self, row: Row) -> None:
        self.row, self.done = row, False


class HalvesWriter:
    """Commits as the product does: in a thread that is handed half of the rows, while the loop works for the other half."""

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self.sink, self.far = sink, isinstance(sink, PostgresSink)
        self.waiting: deque[Put] = deque()
        self.turn = Turn(loop, cast(Any, self))

    def put(self, row: Row) -> asyncio.Future[None]:
        put = Put(row)
        self.waiting.append(put)
        return self.turn.end(put)

    def flush(self, most: int | None = None, gone: Gone = None) -> int:
        taken = [self.waiting.popleft() for _ in range(min(most or len(self.waiting), len(self.waiting)))]
        self.sink.commit([put.row for put in taken], gone)
        for put in taken:
            put.done = True
        return len(self.waiting)

    def close(self) -> None:
        pass


Writer = ThreadWriter | TurnWriter | HalvesWriter
FLOOR, IN_THE_LOOP, PRODUCTS_OWN = "floor", "commits in the loop's thread", "the product's own thread"
WRITERS: dict[str, type[Writer]] = {FLOOR: ThreadWriter, IN_THE_LOOP: TurnWriter, PRODUCTS_OWN: HalvesWriter}
OURS = "Doubtless"


# ---------------------------------------------------------------- a task by hand


class Chain:
    """One task's rows: encoded, hashed, chained, durable one after the other."""

    def __init__(self, writer: Writer, task: str) -> None:
        self.writer, self.task = writer, task
        self.seq, self.hash, self.epoch = 0, b"", int.from_bytes(os.urandom(8)) >> 2

    async def put(
        self, kind: str, *, step: int | None = None, name: str | None = None, status: str | None = None,
        attempt: int | None = None, effect: str | None = None, key: bytes | None = None, digest: bytes | None = None,
        given: str | None = None, made: str | None = None, data: bytes | None = None, began: bool = False,
    ) -> None:  # fmt: skip
        """Write one row; durable at return."""
        self.seq += 1
        now, boot = time.time_ns() // 1000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        path = None if step is None else str(step)
        prev = self.hash or None
        began_at, ended_at = (now, None) if began else (None, now)
        row = (
            self.task, self.seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, None, data, began_at,
            ended_at, boot, self.epoch, 1, prev,
        )  # fmt: skip
        text = (
            f"{self.task}\0{self.seq}\0{step}\0{path}\0{name}\0{kind}\0{status}\0{attempt}\0{effect}\0{key and key.hex()}\0"
            f"{digest and digest.hex()}\0{given}\0{made}\0None\0{data and data.hex()}\0{began_at}\0{ended_at}\0{boot}\0"
            f"{self.epoch}\0001\0{prev and prev.hex()}"
        )
        self.hash = sha256(text.encode()).digest()
        await self.writer.put(row)

    async def write(self, step: int, name: str, fn: Callable[..., Coroutine[Any, Any, Any]], policy: bytes, **params: Any) -> Any:
        """A write step: its row, the call with what that row holds, the row of its result."""
        text = _dump(params)
        digest = blake2b(text.encode(), key=_NAMESPACE, person=b"input", digest_size=32).digest()
        place = f'["key:1","{self.task}","{step}","{name}",0,{text}]'
        key = blake2b(place.encode(), key=_NAMESPACE, person=b"key", digest_size=32).digest()
        await self.put(
            "StepIntended", step=step, name=name, status="uncertain", attempt=1, effect="non_idem_write", key=key, digest=digest,
            given="inline:" + text, data=policy, began=True,
        )  # fmt: skip
        output = _dump(await fn(**json.loads(text), idempotency_key=key.hex()))
        await self.put("StepSettled", step=step, name=name, status="done", attempt=1, made="inline:" + output)
        return json.loads(output)


async def by_hand(writer: Writer, task: str, steps: int) -> None:
    """A task of write steps, from its acceptance to its end."""
    chain, policy = Chain(writer, task), b"p" * 32
    await chain.put("TaskAccepted", name="many", status="ready", digest=b"i" * 32, given='inline:{"steps":' + str(steps) + "}")
    await chain.put("TaskClaimed", status="running")
    for n in range(1, steps + 1):
        await chain.write(n, "create_adjustment", create_adjustment, policy, difference=DIFFERENCE, amount=n)
    await chain.put("TaskEnded", status="done", made="inline:null")


DIFFERENCE = {"order": "A-17", "kind": "missing"}


async def create_adjustment(difference: dict[str, Any], amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
    """A write's body: nothing but an answer, so that the log is all that is measured."""
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": idempotency_key[:8]}


# ---------------------------------------------------------------- side by side


@contextlib.contextmanager
def works(folder: str, tasks: int, steps: int, *, url: str | None = None) -> Iterator[dict[str, Callable[[], float]]]:
    """So many async tasks of so many write steps in one process, by each of `WRITERS` and by the product (`OURS`), to take turns.

    `url`: a PostgreSQL database for all of them, migrated; without one, SQLite files in `folder`. Each says how many seconds
    it took.
    """
    app = Doubtless(url or f"sqlite:///{folder}/shared-{tasks}-{steps}.db")
    step = app.step(effect="non_idem_write")(create_adjustment)
    sink = PostgresSink(url.partition("?")[0]) if url else SqliteSink(f"{folder}/shared-floor-{tasks}-{steps}.db")
    numbers = itertools.count()

    @app.task
    async def many(steps: int) -> None:
        for n in range(1, steps + 1):
            await step(difference=DIFFERENCE, amount=n)

    async def ours() -> None:
        name = f"recon-{next(numbers)}"
        await asyncio.gather(*[app.arun(many, f"{name}-{n}", steps=steps) for n in range(tasks)])

    async def floor(kind: type[Writer]) -> None:
        writer, name = kind(sink, asyncio.get_running_loop()), f"floor-{next(numbers)}"
        await asyncio.gather(*[by_hand(writer, f"{name}-{n}", steps) for n in range(tasks)])
        writer.close()

    def of(made: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], float]:
        return lambda: seconds(lambda: asyncio.run(made()))

    yield {**{name: of(partial(floor, kind)) for name, kind in WRITERS.items()}, OURS: of(ours)}
    app.close()


def main() -> None:
    """Print the times and the ratios."""
    url = sys.argv[1] if len(sys.argv) > 1 else None
    rounds, steps, tasks = int(os.environ.get("ROUNDS", "7")), int(os.environ.get("STEPS", "40")), 50
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder, works(folder, tasks, steps, url=url) as them:
        turns = take_turns(them, rounds)
    for name in them:
        each = turns.median(name) / tasks / steps * 1e6
        print(f"{name}: {each:.1f} µs a write step; Doubtless is {turns.ratio(name, OURS):.0%} as fast")


if __name__ == "__main__":
    main()
