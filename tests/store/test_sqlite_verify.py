"""Verify finds what does not hold: in the log, its content, its projections, beside it."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from store_ground import Begin, MakeStore, TurnClock, case_opened, case_settled, intended, parked, settled

from doubtless.blobs import Content
from doubtless.errors import StoreDamaged
from doubtless.events import STORE_TASK, Kind, draft, seal
from doubtless.store.mark import encode
from doubtless.store.sqlite import SqliteStore
from doubtless.store.verify import SqliteSource

Spoil = Callable[..., list[str]]


@pytest.fixture
def spoil(begin: Begin, store: SqliteStore, clock: TurnClock) -> Spoil:
    """Fills a store, spoils it through a foreign connection without triggers, and says what verify finds."""
    content = Content(store, store.folder)
    w = begin()
    small, blob = content.put("x" * 1000)
    large, none = content.put("y" * 2_000_000)
    assert blob is not None
    assert none is None
    w.append(intended("recon-1", clock(), w.epoch, ref=small), blobs=(blob,))
    w.append(settled("recon-1", clock(), w.epoch, ref=large))
    w.append(intended("recon-1", clock(), w.epoch, 2))
    w.append(case_opened("recon-1", clock(), w.epoch), parked("recon-1", clock(), w.epoch, "needs_human"))
    store.add("recon-1", [case_settled("recon-1", clock(), "recon-1:5")])
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock(), data={"by": "ann", "why": "an incident"})])
    assert store.verify() == []

    def run(*statements: str) -> list[str]:
        store.close()
        db = sqlite3.connect(store.path)
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in triggers:
            db.execute(sql)
        db.commit()
        db.close()
        return [f"{problem.where} {problem.event_seq}: {problem.what}" for problem in store.verify()]

    return run


def _found(problems: list[str], words: str) -> bool:
    return any(words in problem for problem in problems)


@pytest.mark.parametrize(
    "column",
    [
        "input_ref = 'inline:{\"amount\":2}'",
        "started_at = started_at + 1",
        "idempotency_key = zeroblob(32)",
        "step_name = 'pax'",
        "attempt = 2",
    ],
)
def test_a_row_with_one_changed_column_is_found(spoil: Spoil, column: str) -> None:
    problems = spoil(f"UPDATE events SET {column} WHERE task_id = 'recon-1' AND event_seq = 4")
    assert _found(problems, "recon-1 4: row 4 is not what it was when row 5 was written")


def test_a_change_in_the_row_that_parked_a_task_is_found(spoil: Spoil) -> None:
    assert _found(spoil("UPDATE events SET finished_at = 1 WHERE event_seq = 6"), "row 6 is not what it was")


def test_a_changed_last_row_of_a_task_at_rest_is_found(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    w.append(parked("recon-1", clock(), w.epoch))
    store.close()
    db = sqlite3.connect(store.path)
    db.execute("DROP TRIGGER events_no_update")
    db.execute("UPDATE events SET boot_at = boot_at + 1 WHERE event_seq = 2")
    db.commit()
    db.close()
    said = [problem.what for problem in store.verify()]
    assert "row 2 is not what it was when it changed the head" in said
    assert "the trigger events_no_update is gone: the log was not protected" in said


def test_a_row_missing_in_the_middle_is_found(spoil: Spoil) -> None:
    assert _found(spoil("DELETE FROM events WHERE event_seq = 3"), "recon-1 3: rows 3 to 3 are missing")


def test_rows_missing_at_the_end_of_a_task_at_rest_are_found(spoil: Spoil) -> None:
    assert _found(spoil("DELETE FROM events WHERE event_seq >= 6"), "row 7, which changed the head, is missing")


def test_a_whole_task_missing_from_the_log_is_found(spoil: Spoil) -> None:
    assert _found(spoil("DELETE FROM events WHERE task_id = 'recon-1'"), "recon-1 None: the head has no log")


def test_missing_content_is_found(spoil: Spoil) -> None:
    assert _found(spoil("DELETE FROM blobs"), "recon-1 2: the content of its input_ref is missing")


def test_damaged_content_is_found(spoil: Spoil) -> None:
    assert _found(spoil("UPDATE blobs SET content = x'00'"), "is damaged")


@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_a_large_content_that_is_missing_or_damaged_is_found(spoil: Spoil, store: SqliteStore, what: str) -> None:
    (file,) = Path(store.folder.path).glob("*/*")
    if what == "missing":
        file.unlink()
    else:
        file.write_bytes(b"y" * 1_999_999 + b"z")
    assert _found(spoil(), what)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE tasks SET status = 'done'", "the head's status is 'done', the log says 'ready'"),
        ("UPDATE tasks SET wake_at = 5", "the head's wake_at is 5"),
        ("UPDATE tasks SET why = 'x'", "the head's why is 'x'"),
        ("DELETE FROM tasks", "the log has the task, the heads do not"),
        ("UPDATE cases SET settled_by = 'bob'", "case recon-1:5"),
        ("DELETE FROM cases", "case recon-1:5"),
        ("DELETE FROM freezes", "frozen are {}"),
        ("UPDATE meta SET suspect = 1", "suspect is True, the log says False"),
        ("INSERT INTO cases VALUES ('x:1', 'x', 1, NULL, 'doubt', 1, NULL, NULL, NULL, NULL)", "case x:1"),
    ],
)
def test_a_projection_that_the_log_does_not_fold_to_is_found(spoil: Spoil, statement: str, words: str) -> None:
    assert _found(spoil(statement), words)


def test_a_mark_ahead_of_the_log_is_found(spoil: Spoil, store: SqliteStore) -> None:
    mark = store._mark.read()
    Path(store._mark.path).write_bytes(encode(mark._replace(generation=99)))  # type: ignore[union-attr, arg-type]
    assert _found(spoil(), "the mark has seen 99")


def test_a_damaged_spilled_result_is_found_and_a_whole_one_is_not(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    name = store.spill(settled("recon-1", clock(), w.epoch))
    assert store.verify() == []
    file = Path(store.path + ".spill") / name
    file.write_bytes(file.read_bytes().replace(b"pay", b"pax"))
    assert [(p.where, p.what) for p in store.verify()] == [(name, "the spilled result is damaged")]
    assert store.spilled("recon-1") == []


def test_a_flipped_byte_in_the_file_is_found(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    for step in range(1, 20):
        w.append(intended("recon-1", clock(), w.epoch, step))
    w.append(parked("recon-1", clock(), w.epoch))
    store.close()
    file = Path(store.path)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'inline:{"amount":1}', b'inline:{"amount":2}'))
    assert any("is not what it was" in problem.what for problem in store.verify())


@pytest.mark.parametrize("column", ["step_name", "path", "status", "input_ref", "data"])
def test_a_value_whose_type_was_damaged_hides_no_other_fault_and_is_told_by_whoever_reads_it(
    begin: Begin, store: SqliteStore, make_store: MakeStore, clock: TurnClock, column: str
) -> None:
    for task in ("recon-1", "recon-2"):
        w = begin(task)
        for step in (1, 2):
            w.append(intended(task, clock(), w.epoch, step))
            w.append(settled(task, clock(), w.epoch, step))
        store.append(seal([parked(task, clock(), w.epoch)], w.seq, w.hash))
    store.close()
    with sqlite3.connect(store.path) as db:  # a flipped bit in a record's header does that; a STRICT table takes it from nobody
        (strict,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'events'").fetchone()
        (trigger,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'events_no_update'").fetchone()
        db.executescript(
            "DROP TRIGGER events_no_update; PRAGMA writable_schema = ON;"
            "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, WITHOUT ROWID', 'WITHOUT ROWID') WHERE name = 'events'"
        )
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE events SET {column} = CAST(coalesce({column}, 'x') AS BLOB) WHERE task_id = 'recon-1' AND event_seq = 2")
        db.execute("UPDATE events SET step_name = 'pax' WHERE task_id = 'recon-2' AND event_seq = 2")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'events'", (strict,))
        db.execute(trigger)
    told = {(problem.where, problem.event_seq) for problem in make_store().verify()}
    assert {("recon-1", 2), ("recon-2", 2)} <= told
    with pytest.raises(StoreDamaged):
        make_store().rows("recon-1")


def test_verify_changes_nothing(spoil: Spoil, store: SqliteStore, make_store: MakeStore) -> None:
    store.close()
    before = {
        name: os.stat(os.path.join(os.path.dirname(store.path), name)).st_mtime_ns
        for name in os.listdir(os.path.dirname(store.path))
    }
    make_store().verify()
    after = {name: os.stat(os.path.join(os.path.dirname(store.path), name)).st_mtime_ns for name in before}
    assert after == before


def test_verify_sees_one_moment_while_others_append(
    begin: Begin, store: SqliteStore, make_store: MakeStore, clock: TurnClock
) -> None:
    w = begin()
    stop = threading.Event()

    def work() -> None:
        step = 1
        while not stop.is_set():
            w.append(intended("recon-1", clock(), w.epoch, step))
            step += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert [make_store().verify() for _ in range(10)] == [[]] * 10
    finally:
        stop.set()
        thread.join()


def test_whether_content_is_there_is_asked_once_and_said_of_every_row_that_names_it(
    begin: Begin, store: SqliteStore, clock: TurnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Content(store, store.folder)
    w = begin()
    ref, blob = content.put("x" * 1000)
    assert blob is not None
    w.append(intended("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))
    w.append(settled("recon-1", clock(), w.epoch, ref=ref))
    asked: list[str] = []
    read = SqliteSource.read

    def counted(self: SqliteSource, name: str, args: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        asked.append(name)
        return read(self, name, args)

    monkeypatch.setattr(SqliteSource, "read", counted)
    assert store.verify() == []
    assert asked.count("has_blob") == 1
    store.close()
    with sqlite3.connect(store.path) as db:
        db.execute("DROP TRIGGER blobs_no_delete")
        db.execute("DELETE FROM blobs")
    db.close()
    missing = [problem.event_seq for problem in store.verify() if "is missing" in problem.what]
    assert missing == [2, 3]
