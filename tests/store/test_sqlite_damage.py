"""Damage that only a file can have: a WAL that breaks in its middle, texts that are none, words that no schema lets in."""

from __future__ import annotations

import io
import os
import shutil
import struct
from hashlib import sha256
from pathlib import Path

import apsw
import pytest
from store_ground import Begin, MakeStore, TurnClock, intended, settled

from doubtless.errors import StoreDamaged, StoreSuspect, UsageError
from doubtless.store.base import Blob
from doubtless.store.recover import recover
from doubtless.store.sqlite import SqliteStore
from doubtless.store.wal import _Sum, lost_commits

HEADER, FRAME = 32, 24 + 4096


@pytest.fixture
def killed(begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path) -> Path:
    """The files of a store whose process was killed: several commits are in the WAL alone."""
    w = begin()
    for step in (1, 2, 3):
        w.append(intended("recon-1", clock(), w.epoch, step))
        w.append(settled("recon-1", clock(), w.epoch, step))
    content = b"x" * 30_000  # so that the last commit has several frames
    w.append(intended("recon-1", clock(), w.epoch, 4), blobs=(Blob(sha256(content).digest(), content),))
    (tmp_path / "killed").mkdir()
    for suffix in ("", "-wal", ".mark"):
        shutil.copy(store.path + suffix, tmp_path / "killed" / ("recon.db" + suffix))
    return tmp_path / "killed" / "recon.db"


def change(path: Path, at: int, to: bytes | None = None) -> None:
    with open(f"{path}-wal", "r+b") as file:
        file.seek(at)
        old = file.read(1 if to is None else len(to))
        file.seek(at)
        file.write(bytes([old[0] ^ 1]) if to is None else to)


def frames(path: Path) -> int:
    return (os.path.getsize(f"{path}-wal") - HEADER) // FRAME


def commits(path: Path) -> list[int]:
    """The frames that end a transaction."""
    content = Path(f"{path}-wal").read_bytes()
    return [n for n in range(frames(path)) if content[HEADER + n * FRAME + 4 : HEADER + n * FRAME + 8] != bytes(4)]


def open_again(path: Path, clock: TurnClock) -> SqliteStore:
    return SqliteStore(str(path), clock=clock)


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 2000])
def test_a_wal_that_is_damaged_in_its_middle_is_refused_and_left_as_it_is(killed: Path, clock: TurnClock, at: int) -> None:
    change(killed, HEADER + commits(killed)[-3] * FRAME + at)
    before = Path(f"{killed}-wal").read_bytes()
    other = open_again(killed, clock)
    with pytest.raises(StoreDamaged, match="its WAL is damaged at frame") as caught:
        other.info()
    assert "doubtless recover" in (caught.value.hint or "")
    assert any("WAL is damaged" in problem.what for problem in other.verify())
    other.close()
    assert Path(f"{killed}-wal").read_bytes() == before


@pytest.mark.parametrize("back", [1, 2])
def test_a_wal_that_is_torn_in_its_last_commit_is_what_a_loss_of_power_leaves(killed: Path, clock: TurnClock, back: int) -> None:
    """Also with one whole commit frame behind the torn one: the frames of one commit are written in any order."""
    last, before = commits(killed)[-1], commits(killed)[-2]
    torn = last if back == 1 else before + 1
    assert last > before + 1
    change(killed, HEADER + torn * FRAME + 24 + 100)
    assert lost_commits(str(killed)) == ""
    store = open_again(killed, clock)
    store.check_chain("recon-1")
    assert store.verify() == []
    store.close()


def test_what_a_failed_sync_left_behind_a_torn_end_is_no_commit_that_was_lost(killed: Path, clock: TurnClock) -> None:
    """A commit whose sync failed is written over from its first frame on; its last frames may stand behind the new ones."""
    begun, last = commits(killed)[-2] + 1, commits(killed)[-1]
    assert last - begun >= 4
    content = Path(f"{killed}-wal").read_bytes()
    salts, chained, over = content[16:24], content[HEADER + (begun - 1) * FRAME :][16:24], b""
    for size in (0, 40):  # a commit of two frames in the place of the first two
        head, page = struct.pack(">II", 2, size) + salts, b"y" * 4096
        summed = _Sum(content[:HEADER])
        summed.go_on(chained)
        summed.fits(head[:8] + page, b"")
        chained = struct.pack(">2I", summed._one, summed._other)
        over += head + chained + page
    change(killed, HEADER + begun * FRAME, over)
    assert lost_commits(str(killed)) == ""
    change(killed, HEADER + begun * FRAME + 24 + 100)  # the loss of power tears it
    assert lost_commits(str(killed)) == ""


def test_a_frame_that_another_process_is_writing_while_the_wal_is_read_is_no_damage(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before it was written, with the commits behind it read after: as two processes that write meet an opening one."""
    whole, at = Path(f"{killed}-wal").read_bytes(), HEADER + commits(killed)[-3] * FRAME
    reads = [whole[:at] + b"\0" * FRAME + whole[at + FRAME :], whole]

    def opened(path: str, mode: str) -> io.BytesIO:
        return io.BytesIO(reads.pop(0))

    monkeypatch.setattr("doubtless.store.wal.open", opened, raising=False)
    assert lost_commits(str(killed)) == ""
    assert not reads


def test_a_wal_that_stays_damaged_while_others_write_to_it_is_refused(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path(f"{killed}-wal").read_bytes()
    change(killed, HEADER + commits(killed)[-4] * FRAME)
    damaged = Path(f"{killed}-wal").read_bytes()
    reads = [damaged[: HEADER + commits(killed)[-1] * FRAME], damaged]
    monkeypatch.setattr("doubtless.store.wal.open", lambda path, mode: io.BytesIO(reads.pop(0)), raising=False)
    assert len(damaged) == len(whole)
    assert "its WAL is damaged at frame" in lost_commits(str(killed))


def test_a_wal_whose_header_is_damaged_is_refused(killed: Path, clock: TurnClock) -> None:
    change(killed, 24)
    with pytest.raises(StoreDamaged, match="the header of its WAL"):
        open_again(killed, clock).info()


def test_no_wal_an_empty_one_and_a_whole_one_are_fine(killed: Path, tmp_path: Path) -> None:
    assert lost_commits(str(killed)) == ""
    Path(f"{tmp_path}/x-wal").write_bytes(b"")
    assert lost_commits(f"{tmp_path}/x") == ""
    assert lost_commits(f"{tmp_path}/none") == ""


def test_a_text_that_is_no_utf8_is_damage(begin: Begin, store: SqliteStore, make_store: MakeStore) -> None:
    begin()
    db = store._link._connection
    assert db is not None
    db.execute("UPDATE tasks SET why = CAST(x'ff41' AS TEXT)")
    for read in (lambda other: other.head("recon-1"), lambda other: other.heads()):
        with pytest.raises(StoreDamaged, match="is damaged"):
            read(make_store())
    assert store.verify()


@pytest.mark.parametrize("where", ["meta SET blobs", "events SET step_name"])
def test_a_store_with_a_text_that_is_no_utf8_is_told_by_recover_as_damaged(
    begin: Begin, store: SqliteStore, clock: TurnClock, where: str
) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch, 1))
    db = store._link._connection
    assert db is not None
    db.execute("DROP TRIGGER events_no_update")
    db.execute(f"UPDATE {where} = CAST(x'9a' AS TEXT)")
    store.close()
    with pytest.raises(StoreDamaged, match="damaged") as told:
        recover(store.path, clock=clock, accept=False)
    assert told.value.hint


def test_content_that_is_no_content_is_not_what_was_written(begin: Begin, store: SqliteStore) -> None:
    begin()
    db = store._link._connection
    assert db is not None
    db.execute("DROP TABLE blobs")
    db.execute("CREATE TABLE blobs (digest BLOB PRIMARY KEY, content ANY)")
    db.execute("INSERT INTO blobs VALUES (?, 'text')", (b"d" * 32,))
    assert store.blob(b"d" * 32) == b""


def test_a_text_that_is_no_text_can_be_asked_for_by_nobody(store: SqliteStore) -> None:
    with pytest.raises(UsageError, match="lone surrogate"):
        store.head("\ud800")


def test_nothing_is_concluded_from_a_head_whose_status_is_none_that_there_is(
    begin: Begin, store: SqliteStore, make_store: MakeStore
) -> None:
    begin()
    db = store._link._connection
    assert db is not None
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute("UPDATE tasks SET status = 'dane'")
    for read in (lambda other: other.head("recon-1"), lambda other: other.heads()):
        with pytest.raises(StoreDamaged, match="has the status 'dane'"):
            read(make_store())


def test_nothing_is_concluded_from_a_row_whose_kind_is_none_that_there_is(
    begin: Begin, store: SqliteStore, make_store: MakeStore, clock: TurnClock
) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch))
    db = store._link._connection
    assert db is not None
    db.execute("DROP TRIGGER events_no_update")
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute("UPDATE events SET kind = 'StepIntendex' WHERE event_seq = 2")  # the last one: nothing is chained to it yet
    with pytest.raises(StoreDamaged, match="row 2"):
        make_store().last("recon-1")


def test_a_namespace_that_is_not_the_marks_is_refused(begin: Begin, store: SqliteStore, make_store: MakeStore) -> None:
    """Every key is made with it: with another one, the keys of all writes would be new ones."""
    begin()
    store.close()
    db = apsw.Connection(store.path)
    db.execute("UPDATE meta SET namespace = x'00112233'")
    db.close()
    with pytest.raises(StoreSuspect, match="the mark has another namespace"):
        make_store().info()


def test_a_store_whose_wal_was_damaged_is_gone_on_with_in_suspect_mode_once_somebody_says_so(killed: Path, clock: TurnClock) -> None:
    change(killed, HEADER + commits(killed)[-3] * FRAME + 100)
    assert "WAL is damaged" in recover(str(killed), clock=clock, accept=False).reason
    assert recover(str(killed), accept=True, by="ann", why="no backup", clock=clock).accepted
    store = open_again(killed, clock)
    assert store.info().suspect
    store.check_chain("recon-1")
    assert store.verify() == []
    store.close()
