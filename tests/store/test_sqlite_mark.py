"""The high-water mark: a log that stops short of it is refused, and recover goes on in suspect mode."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_ground import Begin, Child, MakeStore, TurnClock, Writer, accepted, intended, parked, settled

from doubtless.errors import StoreDamaged, StoreRefused, StoreSuspect, UsageError
from doubtless.events import STORE_TASK, Kind
from doubtless.store.mark import CREATING, READY, Mark, MarkFile, Unfit, decode, encode
from doubtless.store.recover import recover, salvage
from doubtless.store.sqlite import SqliteStore

StartChild = Callable[..., Child]


def _mark(store: SqliteStore) -> Mark:
    mark = MarkFile(store.path + ".mark").read()
    assert isinstance(mark, Mark)
    return mark


def test_a_mark_reads_back_as_it_was_written_and_has_one_length() -> None:
    marks = [Mark(CREATING, b"i" * 16, 0, b"n"), Mark(READY, b"\0" * 16, 2**63, b"\xff" * 64), Mark(READY, b"i" * 16, 7, b"prod")]
    assert [decode(encode(mark)) for mark in marks] == marks
    assert len({len(encode(mark)) for mark in marks}) == 1


def test_a_mark_that_was_cut_or_changed_in_any_byte_is_unfit() -> None:
    content = encode(Mark(READY, b"i" * 16, 7, b"prod"))
    for place in range(len(content)):
        assert isinstance(decode(content[:place]), Unfit)
        assert isinstance(decode(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]), Unfit)
    assert decode(b"") == Unfit("it is empty", True)
    assert decode(bytes(len(content))) == Unfit("it is empty", True)  # its length was on the disk, what it says was not


def test_the_mark_follows_claims_parks_and_ends_and_no_append(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    store.accept(accepted("recon-0", clock()))
    assert _mark(store).generation == 0
    assert _mark(store).state == READY
    w = begin()
    assert _mark(store).generation == 1
    w.append(intended("recon-1", clock(), w.epoch))
    w.append(settled("recon-1", clock(), w.epoch))
    assert _mark(store).generation == 1
    w.append(parked("recon-1", clock(), w.epoch))
    assert _mark(store).generation == 2
    assert store.verify() == []


def test_the_mark_follows_a_commit_of_many_beginnings_and_ends(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    writers = [begin(name) for name in "ab"]
    since = _mark(store).generation
    tickets: list[Any] = [store.submit_begin(accepted(name, clock())) for name in "xy"]
    tickets += [store.submit(w.seal(parked(w.task_id, clock(), w.epoch))) for w in writers]
    store.flush()
    assert _mark(store).generation == since + 1
    for ticket in tickets:
        store.landed(ticket)
    assert _mark(store).generation == since + 1
    store.begin(accepted("z", clock()))
    assert _mark(store).generation == since + 2


def test_the_mark_is_never_lowered_nor_made_anew_nor_anothers(store: SqliteStore) -> None:
    store.info()
    file = store._mark
    file.raise_to(_mark(store).store_id, 9)
    file.raise_to(_mark(store).store_id, 8)
    assert _mark(store).generation == 9
    file.raise_to(b"x" * 16, 10)
    assert _mark(store).generation == 9
    assert "not this store's" in file.fault
    os.unlink(file.path)
    file.raise_to(b"x" * 16, 10)
    assert not os.path.exists(file.path)
    assert "opened" in file.fault
    assert any("mark" in problem.what for problem in store.verify())


def _backup(store: SqliteStore, to: Path) -> None:
    store.close()
    source, target = sqlite3.connect(store.path), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def _restored(begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path) -> Path:
    """A store whose database was put back to a backup taken before its last park."""
    w = begin()
    _backup(store, tmp_path / "backup")
    w.append(intended("recon-1", clock(), w.epoch))
    w.append(parked("recon-1", clock(), w.epoch))
    store.close()
    shutil.move(tmp_path / "backup", store.path)
    return Path(store.path)


def test_a_database_restored_from_a_backup_is_refused_with_the_command_to_type(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore, tmp_path: Path
) -> None:
    file = _restored(begin, store, clock, tmp_path)
    before = file.read_bytes()
    with pytest.raises(StoreSuspect) as caught:
        make_store().info()
    assert f"doubtless recover --accept --by NAME --why TEXT --store sqlite:///{file}" in str(caught.value)
    assert "seen 2" in str(caught.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("what", ["missing", "another store's", "unreadable", "empty", "unfinished"])
def test_a_database_without_its_mark_is_refused(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore, what: str
) -> None:
    w = begin()
    store.release("recon-1", w.epoch)
    store.close()
    mark = _mark(store)
    match what:
        case "missing":
            os.unlink(store.path + ".mark")
        case "another store's":
            Path(store.path + ".mark").write_bytes(encode(mark._replace(store_id=b"x" * 16)))
        case "unreadable":
            Path(store.path + ".mark").write_bytes(encode(mark)[:-1] + b"x")
        case "empty":
            Path(store.path + ".mark").write_bytes(b"")
        case "unfinished":
            Path(store.path + ".mark").write_bytes(encode(mark._replace(state=CREATING)))
    with pytest.raises(StoreSuspect, match="recover --accept"):
        make_store().info()
    looking = make_store(read_only=True)
    assert len(looking.rows("recon-1")) == 1  # people can look
    assert [p for p in looking.verify() if p.where.endswith(".mark")]


# ------------------------------------------------------------ creation


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("mark:sync", 1), ("mark:synced", 1), ("prepare:before", 1), ("prepare:after", 1), ("create:before", 1),
        ("create:after", 1), ("build:before", 1), ("build:after", 1), ("mark:sync", 2), ("mark:synced", 2),
        ("accept:before", 1), ("accept:after", 1), ("claim:before", 1), ("claim:after", 1), ("mark:write", 1),
        ("mark:written", 1),
        ("append:before", 1), ("append:after", 1), ("append:before", 2), ("append:after", 2), ("append:before", 3),
        ("append:after", 3),
        ("mark:write", 2), ("mark:written", 2),
    ],
)  # fmt: skip
def test_a_process_killed_at_any_write_point_leaves_a_store_that_opens_and_goes_on(
    make_store: MakeStore, child: StartChild, clock: TurnClock, point: str, count: int
) -> None:
    one = child("die", point, str(count), "recon-1")
    assert one.process.wait() == -signal.SIGKILL
    store = make_store()
    store.accept(accepted("recon-1", clock()))
    rows = store.rows("recon-1")
    head = store.head("recon-1")
    assert head is not None
    w = Writer(store, "recon-1", store.claim("recon-1"))
    w.append(intended("recon-1", clock(), w.epoch, 9))
    assert store.rows("recon-1")[: len(rows)] == rows
    assert store.verify() == []


def test_no_write_point_is_left_out_of_the_kills(store: SqliteStore, make_store: MakeStore, clock: TurnClock) -> None:
    seen: list[str] = []
    store = make_store(hooks=seen.append)
    store.accept(accepted("recon-1", clock()))
    w = Writer(store, "recon-1", store.claim("recon-1"))
    w.append(intended("recon-1", clock(), w.epoch))
    w.append(settled("recon-1", clock(), w.epoch))
    w.append(parked("recon-1", clock(), w.epoch))
    assert seen == [
        "mark:sync", "mark:synced", "prepare:before", "prepare:after", "create:before", "create:after", "build:before",
        "build:after", "mark:sync", "mark:synced", "accept:before", "accept:after",
        "claim:before", "claim:after", "mark:write", "mark:written", "append:before", "append:after", "append:before",
        "append:after", "append:before", "append:after", "mark:write", "mark:written",
    ]  # fmt: skip


@pytest.mark.parametrize("time", range(4))
def test_processes_that_create_one_store_at_once_make_one(child: StartChild, time: int) -> None:
    children = [child("open") for _ in range(4)]
    assert [one.hear() for one in children] == ["ready"] * 4
    for one in children:
        one.say()
    assert len({one.hear() for one in children}) == 1


def test_an_empty_file_under_an_unfinished_mark_becomes_the_store(make_store: MakeStore, tmp_path: Path) -> None:
    (tmp_path / "recon.db.mark").write_bytes(encode(Mark(CREATING, b"i" * 16, 0, b"n")))
    (tmp_path / "recon.db").write_bytes(b"")
    assert make_store().info().schema == 1


def test_another_applications_database_under_an_unfinished_mark_is_left_as_it_is(make_store: MakeStore, tmp_path: Path) -> None:
    (tmp_path / "recon.db.mark").write_bytes(encode(Mark(CREATING, b"i" * 16, 0, b"n")))
    db = sqlite3.connect(tmp_path / "recon.db")
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = (tmp_path / "recon.db").read_bytes()
    with pytest.raises(StoreRefused, match="another application"):
        make_store().info()
    assert (tmp_path / "recon.db").read_bytes() == before


# ------------------------------------------------------------ recover


def test_recover_without_accept_says_what_is_wrong_and_changes_nothing(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore, tmp_path: Path
) -> None:
    file = _restored(begin, store, clock, tmp_path)
    found = recover(str(file), clock=clock, accept=False)
    assert "seen 2" in found.reason
    assert not found.accepted
    assert found.salvage.rows == 1
    with pytest.raises(StoreSuspect):
        make_store().info()


def test_recover_goes_on_in_suspect_mode_until_a_person_ends_it(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore, tmp_path: Path
) -> None:
    namespace = store.info().namespace
    file = _restored(begin, store, clock, tmp_path)
    assert recover(str(file), clock=clock, accept=True, by="ann", why="the disk died").accepted
    again = make_store()
    assert again.info().suspect
    assert again.info().namespace == namespace
    row = again.last(STORE_TASK)
    assert row is not None
    assert row.kind == Kind.STORE_RECOVERED
    assert {"by": "ann", "why": "the disk died", "suspect": True, "marked": 2, "logged": 1}.items() <= row.details.items()
    assert again.verify() == []
    again.end_suspect(by="ann", why="all was looked up")
    assert not again.info().suspect
    assert not make_store().info().suspect
    assert again.verify() == []
    assert again.claim("recon-1").takeover  # its owner of before the backup is gone


def test_recover_needs_who_says_so_and_why(begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path) -> None:
    file = _restored(begin, store, clock, tmp_path)
    for missing in ({"by": "ann"}, {"why": "x"}, {}):
        with pytest.raises(UsageError):
            recover(str(file), clock=clock, accept=True, **missing)


def test_recover_takes_a_store_that_fits_its_mark_too(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore
) -> None:
    w = begin()
    store.release("recon-1", w.epoch)
    store.close()
    found = recover(store.path, clock=clock, accept=True, by="ann", why="both files were restored")
    assert found.reason == ""
    assert make_store().info().suspect


def test_recover_is_refused_while_a_process_runs_tasks(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    begin()
    with pytest.raises(StoreRefused, match="runs tasks"):
        recover(store.path, clock=clock, accept=True, by="ann", why="x")


def test_a_recover_that_was_killed_before_its_mark_leaves_a_store_that_is_refused_and_recovers_again(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore, tmp_path: Path
) -> None:
    file = _restored(begin, store, clock, tmp_path)

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "recover:after":
            raise Killed

    with pytest.raises(Killed):
        recover(str(file), clock=clock, accept=True, by="ann", why="x", hooks=kill)
    with pytest.raises(StoreSuspect):
        make_store().info()
    recover(str(file), clock=clock, accept=True, by="ann", why="x")
    assert make_store().info().suspect
    assert make_store().verify() == []


def test_a_database_that_is_gone_is_made_anew_only_by_recover_and_keeps_the_namespace(
    begin: Begin, store: SqliteStore, clock: TurnClock, make_store: MakeStore
) -> None:
    w = begin()
    namespace = store.info().namespace
    store.release("recon-1", w.epoch)
    store.close()
    os.unlink(store.path)
    assert recover(store.path, clock=clock, accept=False).reason == "the database is gone"
    assert not os.path.exists(store.path)
    recover(store.path, clock=clock, accept=True, by="ann", why="the disk died")
    again = make_store()
    assert again.info().namespace == namespace
    assert again.info().suspect
    assert again.heads() == []
    assert again.verify() == []


def test_recover_finds_nothing_where_nothing_was(clock: TurnClock, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="no mark of one"):
        recover(str(tmp_path / "recon.db"), clock=clock, accept=True, by="ann", why="x")
    assert os.listdir(tmp_path) == []


def test_a_damaged_file_fails_closed_and_its_unsettled_intents_can_still_be_listed(
    begin: Begin, store: SqliteStore, clock: TurnClock
) -> None:
    for task in ("recon-1", "recon-2"):
        w = begin(task)
        for step in range(1, 30):
            w.append(intended(task, clock(), w.epoch, step))
            if step > 1:
                w.append(settled(task, clock(), w.epoch, step))
        store.release(task, w.epoch)
    store.close()
    file = Path(store.path)
    whole = file.read_bytes()
    page = max(n for n in range(2, len(whole) // 4096) if b"recon-1" in whole[n * 4096 + 2000 : n * 4096 + 4096])
    file.write_bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :])
    damaged = file.read_bytes()
    with pytest.raises(StoreDamaged) as caught:
        recover(str(file), clock=clock, accept=True, by="ann", why="x")
    found = caught.value.context["salvage"]
    assert 0 < found.rows < 116
    assert any(intent.path == "1" for intent in found.intents)
    assert found.damage
    assert file.read_bytes() == damaged
    looking = SqliteStore(store.path, clock=clock, read_only=True)
    assert looking.verify() != []
    looking.close()


def test_a_salvage_of_a_whole_log_reads_every_row(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    for step in (1, 2):
        w.append(intended("recon-1", clock(), w.epoch, step))
    w.append(settled("recon-1", clock(), w.epoch, 1))
    found = salvage(store.path)
    assert (found.rows, [intent.path for intent in found.intents], found.damage) == (4, ["2"], "")
