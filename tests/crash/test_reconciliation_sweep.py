"""The reconciliation killed at write points and resumed: the office's books end as undisturbed, and nothing is there twice.

`make test` kills at every n-th point, another selection each time; `make prove` at all of them, and then again while it
resumes. What a point is, is checked against what `strace` sees: no file of the store is written or synced outside one.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from examples.reconciliation import generate, load, match
from examples.reconciliation.outside import Outside
from tests import nursery

from doubtless import DidNotHappen, Happened, StoreRefused
from doubtless.answers import AnyAnswer
from doubtless.events import Kind, StepStatus
from doubtless.timeline import StepView, TaskView

from .clock import TurnedClock
from .outside import environment
from .reconciliation import NEEDS_HUMAN, READS, RECEIPT, TASK, WRITES, build, write_books
from .sweep import KILL_AT, RECORD, Kill, Subject, Swept, run_killed, run_undisturbed, sweep

SHEETS = 3
EVERY = 6
"""The short form kills at every sixth point, counted class by class."""

TABLES = {
    "sheets": "id, reference, run, subject, body, status",
    "approvals": "id, reference, run, body, status",
    "messages": "id, run, text",
    "closings": "id, run, body",
    "effects": "kind, reference, subject",
}
KINDS = {"create_adjustment": "sheet", "submit_approval": "approval", "notify": "message", "close_run": "closing"}
ROUTES = {
    "create_adjustment": "POST /adjustments",
    "submit_approval": "POST /approvals",
    "notify": "POST /chat/messages",
    "close_run": "PUT /runs/{id}/close",
}
ENDS = {"before": "after", "write": "written", "sync": "synced", "drop": "dropped"}
"""How a point that opens something that is written is spelled, and the point that closes it."""


# ---------------------------------------------------------------- what the office counted


class Ledger:
    """The office's own database, read as an auditor would: beside the server, without a request."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as database:
            return database.execute(query, values).fetchall()

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that was made, without the times."""
        return {table: self.rows(f"SELECT {columns} FROM {table}") for table, columns in TABLES.items()}

    def made(self, step: str, key: str, run: str) -> list[str]:
        """The ids of what a step's key made; the chat keeps no keys, so there of what stands in its run."""
        match step:
            case "create_adjustment":
                return [f"A-{number}" for (number,) in self.rows("SELECT id FROM sheets WHERE reference = ?", key)]
            case "submit_approval":
                return [f"P-{number}" for (number,) in self.rows("SELECT id FROM approvals WHERE reference = ?", key)]
            case "notify":
                return [f"M-{number}" for (number,) in self.rows("SELECT id FROM messages WHERE run = ?", run)]
            case _:
                made = self.rows("SELECT 1 FROM effects WHERE kind = 'closing' AND reference = ?", key)
                return [f"C-{number}" for (number,) in self.rows("SELECT id FROM closings WHERE run = ?", run)] if made else []

    def requests(self, step: str, key: str) -> int:
        """How many requests came from a step."""
        return len(self.rows("SELECT 1 FROM requests WHERE route = ? AND reference = ?", ROUTES[step], key))


# ---------------------------------------------------------------- the subject


class Reconciliation(Subject):
    """The reconciliation of small books, with a server of its own for each run. `full`: its disk is full once."""

    def __init__(self, folder: Path, *, full: bool = False) -> None:
        self.books = folder / "books"
        self.full = full
        self.offices: dict[Path, Outside] = {}
        self.answers: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        write_books(self.books, seed=1, keep=SHEETS)

    def office(self, place: Path) -> Outside:
        if place not in self.offices:
            self.offices[place] = Outside(place / "office.db")
        return self.offices[place]

    def command(self, place: Path, *, full: bool) -> list[str]:
        more = ["full" if full else "long"] if self.full else []
        return [sys.executable, "-m", f"{__package__}.reconciliation", str(place), self.office(place).url, str(self.books), *more]

    def run(self, place: Path, environment_too: Mapping[str, str]) -> int:
        # The disk is full for whoever is counted or killed; whoever brings it all to its end has made room before.
        command = self.command(place, full=bool(environment_too))
        return nursery.run(command, env={**environment(), **environment_too}, check=False, timeout=120).returncode

    def check(self, place: Path) -> None:
        ledger = Ledger(place / "office.db")
        counted = ledger.rows("SELECT kind, subject, count(*) FROM effects GROUP BY kind, subject HAVING count(*) > 1")
        assert counted == [], f"counted twice at the server: {counted}"
        app = build(place, self.office(place).url, read_only=True).app
        try:
            if any(head.task_id == TASK for head in app.tasks()):
                view = app.show(TASK)
                check_writes(view, ledger)
                inbox = app.inbox()
                listed = {case.path for case in inbox.cases} | {doubt.path for doubt in inbox.doubts}
                unsettled = {step.path for step in view.steps if step.name in WRITES and step.status not in SETTLED}
                assert view.owner_alive or view.wake_at is not None or unsettled <= listed, (
                    f"I6: a doubt that nobody sees: {view}"
                )
                assert app.verify() == []
            else:
                assert ledger.everything()["effects"] == [], "an effect of a task that is not recorded"
        except StoreRefused:  # killed before there was a store
            assert ledger.everything()["effects"] == [], "an effect without a store"
        finally:
            app.close()

    def finish(self, place: Path) -> None:
        for _ in range(10):
            code = self.run(place, {})
            if code == 0:
                return
            assert code == NEEDS_HUMAN, f"it ends with exit code {code}"
            self.settle(place)
        raise AssertionError("it does not come to an end")

    def settle(self, place: Path) -> None:
        """Answer every open case by what the server counted."""
        app = build(place, self.office(place).url).app
        try:
            cases = app.inbox().cases
            assert cases, "it needs a person and asks nothing"
            steps = {step.path: step for step in app.show(TASK).steps}
            for case in cases:
                answer = self.answer(steps[str(case.path)], Ledger(place / "office.db"))
                app.settle(case.id, answer, by="auditor", why="the office's books", shown=case.hash)
                self.answers[type(answer).__name__] += 1
        finally:
            app.close()

    def answer(self, step: StepView, ledger: Ledger) -> AnyAnswer:
        assert step.name == "notify", f"whoever can be asked, or takes a key, needs no person: {step}"
        made = ledger.made(step.name, step.keys[0], step.params["run"])
        if not made:
            return DidNotHappen(then="retry")
        return Happened({"id": made[0], "run": step.params["run"], **({"receipt": RECEIPT} if self.full else {})})

    def state(self, place: Path) -> object:
        app = build(place, self.office(place).url).app
        try:
            view = app.show(TASK)
            steps = [(step.path, step.name, str(step.status), in_short(step.output), step.keys) for step in view.steps]
            for row in app.store.rows(TASK):
                if row.kind == Kind.LOOKED_BACK:
                    self.looks[row.details["answer"]] += 1
            self.looks["waited"] += TurnedClock(place / "clock").turned() >= 120_000_000
            return Ledger(place / "office.db").everything(), str(view.status), view.output, steps, app.inbox()
        finally:
            app.close()
            self.offices.pop(place).stop()

    def stop(self) -> None:
        """No server is left."""
        for office in self.offices.values():
            office.stop()


def in_short(output: Any) -> str:
    """An output, or the digest of a long one: enough to compare, and a failure stays readable."""
    text = json.dumps(output, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 300 else f"{text[:60]}… sha256 {sha256(text.encode()).hexdigest()}"


SETTLED = (StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED)


def check_writes(view: TaskView, ledger: Ledger) -> None:
    """What the log says of each write is true at the server, and the server has nothing that the log does not know."""
    known: Counter[str] = Counter()
    for step in view.steps:
        if step.name not in WRITES:
            continue
        [key] = step.keys
        made = ledger.made(step.name, key, step.params["run"])
        known[KINDS[step.name]] += len(made)
        assert len(made) <= 1, f"made twice: {made}: {step}"
        assert ledger.requests(step.name, "" if step.name == "notify" else key) <= step.calls, (
            f"I1: a request of no attempt: {step}"
        )
        if step.status == StepStatus.DONE:
            assert made == [step.output["id"]], f"done in the log, at the server {made}: {step}"
        if step.status == StepStatus.NOT_APPLIED:
            assert not made, f"not_applied in the log, at the server {made}: {step}"
    counted = Counter(kind for (kind,) in ledger.rows("SELECT kind FROM effects"))
    assert counted == known, f"counted at the server {counted}, known to the log {known}"


@pytest.fixture(params=["", "full"], ids=["", "disk_full"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reconciliation]:
    made = Reconciliation(tmp_path, full=bool(request.param))
    yield made
    made.stop()


# ---------------------------------------------------------------- the points


def class_of(point: str) -> str:
    """What kind of moment a point is: the short form takes some of each."""
    what, _, when = point.rpartition(":")
    if what in READS:
        return "the call of a read"
    if what in WRITES:
        return f"the call of a write, {when}"
    if what in ("blob", "mark", "spill", "close", "prepare", "build"):
        return "a file"
    return f"a commit, {when}"


def nth_of_each_class(points: list[str], offset: int) -> list[int]:
    """Every n-th point (the first is 1), counted class by class: some of each class, whatever the offset."""
    by_class = sorted(range(1, len(points) + 1), key=lambda k: (class_of(points[k - 1]), k))
    chosen = by_class[offset % EVERY :: EVERY]
    assert {class_of(points[k - 1]) for k in chosen} == {class_of(point) for point in points}, "a class of points is left out"
    return chosen


def check_points(points: list[str], *, full: bool) -> None:
    """The points of an undisturbed run are those that the story has."""
    counted = Counter(points)
    for write, times in {"create_adjustment": SHEETS, "submit_approval": 1, "notify": 1, "close_run": 1}.items():
        assert counted[f"{write}:call"] == counted[f"{write}:called"] == times
    for point, times in counted.items():
        start, _, end = point.rpartition(":")
        if end in ENDS:
            assert counted[f"{start}:{ENDS[end]}"] == times, f"{point} and its end do not come equally often: {counted}"
    assert counted["blob:write"] == len(READS), "two outputs and the params of the matching are files of their own"
    assert counted["spill:write"] == counted["spill:drop"] == (1 if full else 0)
    if not full:
        commits = counted["append:before"]
        assert commits == len(READS) + 2 * (SHEETS + 3) + 1, f"a read is one commit, a write two, the end one: {commits}"


def check_swept(subject: Reconciliation, swept: Swept) -> None:
    assert swept.wrong == [], f"{len(swept.wrong)} of {swept.runs} runs:\n" + "\n".join(swept.wrong)
    assert subject.answers["Happened"], "no run was settled by what the server counted"
    assert subject.answers["DidNotHappen"], "no run was settled by what the server did not count"
    assert subject.looks["found"], "no look-back found what was made"
    assert subject.looks["absent"], "no look-back found nothing"
    assert subject.looks["waited"], "the clock was never turned past absent_after"


# ---------------------------------------------------------------- the kills


def test_the_small_books_leave_the_differences_that_were_kept(tmp_path: Path) -> None:
    write_books(tmp_path, seed=1, keep=SHEETS)
    entries, orders = load.load_statement(tmp_path / "statement.csv"), load.load_orders(tmp_path / "orders.csv")
    found = {difference["order"] for difference in match.match(entries, orders, generate.DAY)}
    assert found == {truth.order for truth in generate.generate(1, rows=1).truth[:SHEETS]}


def test_killed_at_some_points_of_each_class_and_resumed_the_reconciliation_ends_as_undisturbed(tmp_path: Path) -> None:
    seed = int(os.environ.get("SWEEP_SEED") or random.SystemRandom().randrange(10_000))
    subject = Reconciliation(tmp_path, full=seed // EVERY % 2 == 1)
    try:
        points, undisturbed = run_undisturbed(subject, tmp_path / "undisturbed")
        check_points(points, full=subject.full)
        chosen = nth_of_each_class(points, seed)
        with ThreadPoolExecutor(2) as pool:
            killed = pool.map(lambda k: run_killed(subject, tmp_path / str(k), Kill(k), points, undisturbed), chosen)
        wrong = [line for line in killed if line is not None]
    finally:
        subject.stop()
    assert wrong == [], f"run this again with SWEEP_SEED={seed}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("offset", range(EVERY))
def test_each_class_of_points_is_in_every_short_form(offset: int) -> None:
    points = [f"{name}:{when}" for name in (*READS, *WRITES) for when in ("call", "called")] * 2
    points += ["append:before", "append:after", "blob:write", "blob:written"] * EVERY
    assert len(nth_of_each_class(points, offset)) >= len(points) // EVERY
    assert sorted(k for n in range(EVERY) for k in nth_of_each_class(points, n)) == list(range(1, len(points) + 1))


@pytest.mark.prove
def test_killed_at_any_point_and_resumed_the_reconciliation_ends_as_undisturbed(subject: Reconciliation, tmp_path: Path) -> None:
    swept = sweep(subject, tmp_path)
    check_points(swept.points, full=subject.full)
    assert swept.runs == len(swept.points)
    check_swept(subject, swept)


@pytest.mark.prove
def test_killed_at_any_point_and_again_while_it_resumes_the_reconciliation_ends_as_undisturbed(
    subject: Reconciliation, tmp_path: Path
) -> None:
    swept = sweep(subject, tmp_path, second_kills=1)
    assert swept.runs == 2 * len(swept.points)
    check_swept(subject, swept)


# ---------------------------------------------------------------- the points against the system calls


class Seen(NamedTuple):
    """One line of the trace: a ``point`` (its name), a ``sync`` or a ``write`` (the file's path)."""

    what: str
    of: str


SYNCS = ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync")
CHANGES = (
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "ftruncate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
)
CALL = re.compile(r'^\d+ +(\w+)\((?:\d+<([^>]*)>)?(?:AT_FDCWD[^,]*, )?,? ?(?:"((?:[^"\\]|\\.)*)")?')


def traced(subject: Reconciliation, place: Path) -> list[Seen]:
    """What an undisturbed run does to the files in its folder, as the system sees it, with its points between."""
    trace, record = place.parent / "trace", place.parent / "record"
    calls = ",".join(f"?{name}" for name in (*SYNCS, *CHANGES))
    strace = ["strace", "-f", "-y", "-s", "64", "-o", str(trace), "-e", f"trace={calls}"]
    command = [*strace, *subject.command(place, full=True)]
    environs = {**environment(), RECORD: str(record), "PYTHONDONTWRITEBYTECODE": "1"}
    assert nursery.run(command, env=environs, check=False, timeout=120).returncode == 0, trace.read_text()[-2000:]
    seen = [parsed for line in trace.read_text().splitlines() if (parsed := seen_in(line, place, record)) is not None]
    assert [each.of for each in seen if each.what == "point"] == record.read_text().split(), "the trace misses points"
    return seen


def seen_in(line: str, place: Path, record: Path) -> Seen | None:
    """What a line of the trace says of the run's files. A call that was interrupted counts where it began."""
    found = CALL.match(line)
    if found is None:
        return None
    call, path, text = found.group(1), found.group(2), found.group(3)
    if path == str(record):
        return Seen("point", text.removesuffix("\\n"))
    if call in SYNCS:  # a sync that names no file syncs everything: never overlooked
        return Seen("sync", "?" if path is None else path)
    target = path or text or ""
    inside = target.startswith(f"{place}/recon.db")
    return Seen("write", target) if inside else None


def part_of(path: str, place: Path) -> str:
    """Which of the store's files a path is, without what differs from run to run."""
    name = os.path.relpath(path, place)
    if name.startswith(("recon.db.blobs/", "recon.db.spill/")):
        return name.partition("/")[0].removeprefix("recon.db.") + (" file" if name.endswith(".part") else " folder")
    return {".": "folder", "recon.db": "database", "recon.db.blobs": "blobs folder", "recon.db.spill": "spill folder"}.get(
        name, name.removeprefix("recon.db").lstrip("-.")
    )


class Span(NamedTuple):
    """From a point that opens a write to the one that closes it, and what was synced between them."""

    name: str
    syncs: Counter[str]


def spans(seen: list[Seen], place: Path) -> tuple[list[Span], list[Seen]]:
    """The spans of a trace, and what was synced or written outside all of them."""
    found: list[Span] = []
    outside: list[Seen] = []
    opened: str | None = None
    for each in seen:
        if each.what == "point":
            start, _, end = each.of.rpartition(":")
            if end in ENDS:
                assert opened is None, f"{each.of} inside {opened}"
                opened = f"{start}:{ENDS[end]}"
                found.append(Span(each.of, Counter()))
            elif end in ENDS.values():
                assert each.of == opened, f"{each.of} closes {opened}"
                opened = None
        elif opened is None:
            outside.append(each)
        elif each.what == "sync":
            found[-1].syncs[part_of(each.of, place)] += 1
    return found, outside


NOT_DURABLE = (".db-shm", ".db.owners/")
"""The WAL's index and the owners' lock files mean nothing without a living process: written at any time, never synced."""

SYNCED = {
    "mark:sync": [Counter({"mark": 1, "folder": 1})],
    # Not synced, on purpose: a mark that is too low refuses nothing.
    "mark:write": [Counter()],
    # The empty file becomes a WAL database through a rollback journal: its header twice, its name, the first page.
    "prepare:before": [Counter({"journal": 2, "folder": 1, "database": 1})],
    # The WAL is copied into the database, whose name is then made durable.
    "build:before": [Counter({"wal": 1, "database": 1, "folder": 1})],
    "close:write": [Counter({"wal": 1, "database": 1})],
    # The content; the name in each folder that is new.
    "blob:write": [
        Counter({"blobs file": 1, "blobs folder": 2}),
        Counter({"blobs file": 1, "blobs folder": 2, "folder": 1}),
    ],
    "spill:write": [Counter({"spill file": 1, "spill folder": 1, "folder": 1})],
    "spill:drop": [Counter({"spill folder": 1})],
}
COMMIT = Counter({"wal": 1})
FIRST_COMMIT = Counter({"wal": 2, "folder": 1})
"""The first commit after the WAL was made also syncs its header and its name."""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: nobody else can count the file syncs")
def test_every_file_sync_that_the_system_sees_lies_at_a_point(subject: Reconciliation, tmp_path: Path) -> None:
    place = tmp_path / "traced"
    place.mkdir()
    seen = traced(subject, place)
    check_points([each.of for each in seen if each.what == "point"], full=subject.full)
    found, outside = spans(seen, place)
    syncs = [each for each in outside if each.what == "sync"]
    assert syncs == [], f"synced where no point is: {syncs}"
    writes = [each.of for each in outside if not any(part in each.of for part in NOT_DURABLE)]
    assert writes == [], f"written where no point is: {writes}"

    commits = [span for span in found if span.name not in SYNCED]
    assert {span.name.rpartition(":")[2] for span in commits} == {"before"}, f"a write that the table does not know: {commits}"
    firsts = [span.name for span in commits if span.syncs == FIRST_COMMIT]
    assert firsts == ["create:before", "accept:before"], f"a WAL is made at the creation and after it, not at {firsts}"
    off = [span for span in commits if span.syncs != (FIRST_COMMIT if span.name in firsts else COMMIT)]
    assert off == [], f"of {len(commits)} commits {len(off)} do not sync the WAL once: {off}"
    off = [span for span in found if span.name in SYNCED and span.syncs not in SYNCED[span.name]]
    assert off == [], f"files that are not synced as they must be: {off}"

    total = sum(each.what == "sync" for each in seen)
    explained = len(commits) + 2 * len(firsts) + sum(span.syncs.total() for span in found if span.name in SYNCED)
    assert total == explained, f"strace counts {total} syncs, the points explain {explained}"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: nobody else can count the file syncs")
def test_the_points_of_the_sweep_are_those_of_the_traced_run(tmp_path: Path) -> None:
    subject = Reconciliation(tmp_path)
    try:
        swept, _ = run_undisturbed(subject, tmp_path / "undisturbed")
        place = tmp_path / "traced"
        place.mkdir()
        assert swept == [each.of for each in traced(subject, place) if each.what == "point"]
    finally:
        subject.stop()


def test_a_sync_outside_the_points_is_seen(tmp_path: Path) -> None:
    record = tmp_path / "record"
    lines = [
        f'7  write(3<{record}>, "append:before\\n", 14) = 14',
        f"7  fdatasync(6<{tmp_path}/recon.db-wal>) = 0",
        f'7  write(3<{record}>, "append:after\\n", 13 <unfinished ...>',
        "8  +++ exited with 0 +++",
        "7  <... write resumed>) = 13",
        f"8  fsync(6<{tmp_path}/recon.db> <unfinished ...>",
        f'7  pwrite64(6<{tmp_path}/recon.db>, "\\0\\"x", 4, 0) = 4',
        f'7  rename("{tmp_path}/recon.db.x", "y") = 0',
        f'7  unlinkat(AT_FDCWD</tmp>, "{tmp_path}/recon.db-wal", 0) = 0',
        "7  sync() = 0",
    ]
    seen = [each for line in lines if (each := seen_in(line, tmp_path, record)) is not None]
    found, outside = spans(seen, tmp_path)
    assert found == [Span("append:before", Counter({"wal": 1}))]
    assert [(each.what, os.path.basename(each.of)) for each in outside] == [
        ("sync", "recon.db"), ("write", "recon.db"), ("write", "recon.db.x"), ("write", "recon.db-wal"), ("sync", "?"),
    ]  # fmt: skip


def test_a_store_whose_creation_was_cut_off_is_no_damaged_store_to_whoever_only_looks(tmp_path: Path) -> None:
    subject = Reconciliation(tmp_path)
    try:
        points, _ = run_undisturbed(subject, tmp_path / "undisturbed")
        for k in (points.index("prepare:before") + 1, points.index("create:before") + 1):
            place = tmp_path / str(k)
            place.mkdir()
            assert subject.run(place, {KILL_AT: str(k)}) == -signal.SIGKILL
            app = build(place, subject.office(place).url, read_only=True).app
            with pytest.raises(StoreRefused, match="there is no store in"):
                app.tasks()
            app.close()
    finally:
        subject.stop()


def test_a_write_whose_absence_was_proven_is_in_the_inbox_when_its_owner_died_before_it_was_sent_again(tmp_path: Path) -> None:
    subject = Reconciliation(tmp_path)
    try:
        points, undisturbed = run_undisturbed(subject, tmp_path / "undisturbed")
        place = tmp_path / "killed"
        place.mkdir()
        assert subject.run(place, {KILL_AT: str(points.index("submit_approval:call") + 1)}) == -signal.SIGKILL
        resumed, again = tmp_path / "resumed", tmp_path / "again"
        for copy in (resumed, again):
            shutil.copytree(place, copy)
        record = tmp_path / "record"
        assert subject.run(resumed, {RECORD: str(record)}) == 0
        sent = record.read_text().split().index("submit_approval:call")
        assert subject.run(again, {KILL_AT: str(sent - 1)}) == -signal.SIGKILL  # before the row of its next attempt
        assert proven(again, subject)
        subject.check(again)
        subject.finish(again)
        assert subject.state(again) == undisturbed
    finally:
        subject.stop()


def proven(place: Path, subject: Reconciliation) -> bool:
    """Whether the last thing that the log has is an absence that counts as proof."""
    app = build(place, subject.office(place).url, read_only=True).app
    try:
        last = app.store.last(TASK)
        return last is not None and last.kind == Kind.LOOKED_BACK and "proof" in app.show(TASK).steps[-1].story[-1].what
    finally:
        app.close()
