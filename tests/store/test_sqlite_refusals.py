"""What a SQLite store refuses, with the reason and what to do; nothing is touched, and nothing fresh is put in its place."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from store_ground import Begin, MakeStore, TurnClock, accepted, intended

from doubtless.errors import StoreDamaged, StoreError, StoreRefused, StoreSuspect
from doubtless.store import open_store
from doubtless.store.opening import open_database
from doubtless.store.place import REMOTE, file_system_of, missing_pages, read_header, refuse_old_sqlite
from doubtless.store.sqlite import SqliteStore


def _bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


@pytest.mark.parametrize("path", ["", ":memory:", "  ", "file:recon.db?mode=memory", "a\0b"])
def test_a_store_in_memory_is_refused(path: str, clock: TurnClock) -> None:
    with pytest.raises(StoreRefused, match="names no file"):
        SqliteStore(path, clock=clock)


@pytest.mark.parametrize(
    "url", ["recon.db", "sqlite:recon.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/recon.db", "mysql://h/d",
            "sqlite:///recon.db?mode=ro"],
)  # fmt: skip
def test_a_url_that_names_no_sqlite_file_is_refused(
    url: str, clock: TurnClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreRefused):
        open_store(url, clock=clock).info()
    assert os.listdir(tmp_path) == []


def test_a_url_names_a_file_beside_the_working_directory_or_an_absolute_one(
    clock: TurnClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("sqlite:///recon.db", clock=clock).path == str(tmp_path / "recon.db")
    assert open_store(f"sqlite:///{tmp_path}/a b.db", clock=clock).path == str(tmp_path / "a b.db")
    assert os.listdir(tmp_path) == []  # nothing is made before its first use


def test_windows_is_refused(clock: TurnClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StoreRefused, match="Windows"):
        open_store("sqlite:///recon.db", clock=clock)


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.0"])
def test_a_sqlite_that_can_corrupt_the_log_is_refused(version: str) -> None:
    with pytest.raises(StoreRefused, match=r"apsw>=3\.51\.3"):
        refuse_old_sqlite(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0", None])
def test_a_sqlite_that_is_new_enough_is_taken(version: str | None) -> None:
    refuse_old_sqlite(version)


def test_a_missing_directory_is_refused_and_not_made(clock: TurnClock, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="mkdir -p"):
        SqliteStore(str(tmp_path / "no" / "recon.db"), clock=clock).info()
    assert os.listdir(tmp_path) == []


def test_a_directory_in_the_files_place_is_refused(clock: TurnClock, tmp_path: Path) -> None:
    (tmp_path / "recon.db").mkdir()
    with pytest.raises(StoreRefused, match="is a directory"):
        SqliteStore(str(tmp_path / "recon.db"), clock=clock).info()


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Drops root's rights, which no permission binds; does nothing for an ordinary user."""
    user = os.geteuid()
    if user == 0:
        for folder in (tmp_path, *tmp_path.parents):
            if "pytest-of-" in str(folder) and folder.stat().st_uid == 0:
                folder.chmod(0o755)

    def drop() -> None:
        if user == 0:
            os.seteuid(65534)

    yield drop
    if user == 0:
        os.seteuid(0)


def test_a_read_only_directory_is_refused(clock: TurnClock, tmp_path: Path, as_nobody: Callable[[], None]) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    as_nobody()
    with pytest.raises(StoreRefused, match="chmod u\\+wx"):
        SqliteStore(str(folder / "recon.db"), clock=clock).info()


def test_a_read_only_file_is_refused(clock: TurnClock, tmp_path: Path, as_nobody: Callable[[], None]) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    store = SqliteStore(str(folder / "recon.db"), clock=clock)
    store.info()
    store.close()
    folder.chmod(0o777)
    for file in folder.iterdir():
        file.chmod(0o444 if file.is_file() else 0o777)
    as_nobody()
    with pytest.raises(StoreRefused, match="is read-only"):
        SqliteStore(str(folder / "recon.db"), clock=clock).info()


@pytest.mark.parametrize("kind", [*sorted(REMOTE), "fuse.sshfs", ""])
def test_a_network_or_unknown_file_system_is_refused(kind: str, clock: TurnClock, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused):
        SqliteStore(str(tmp_path / "recon.db"), clock=clock, file_system=lambda path: kind).info()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs"])
def test_a_local_file_system_is_taken(kind: str, clock: TurnClock, tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "recon.db"), clock=clock, file_system=lambda path: kind)
    assert store.info().schema == 1
    store.close()


def test_the_file_system_is_that_of_the_innermost_mount() -> None:
    assert file_system_of("/proc/self") == "proc"
    assert file_system_of("/") not in ("", "proc")


def test_a_file_with_a_second_name_is_refused(make_store: MakeStore, clock: TurnClock, tmp_path: Path) -> None:
    make_store().info()
    os.link(tmp_path / "recon.db", tmp_path / "other.db")
    with pytest.raises(StoreRefused, match="hard links"):
        make_store().info()


def test_a_symbolic_link_leads_to_the_one_store(make_store: MakeStore, clock: TurnClock, tmp_path: Path) -> None:
    namespace = make_store().info().namespace
    os.symlink("recon.db", tmp_path / "link.db")
    linked = SqliteStore(str(tmp_path / "link.db"), clock=clock)
    assert linked.info().namespace == namespace
    assert linked._owner is make_store()._owner
    linked.close()


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"id,amount\n" * 500, b"SQLite format 3\0" + b"\xff" * 80, b"SQLite format 3\0" * 300]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(clock: TurnClock, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "recon.db"
    file.write_bytes(content)
    with pytest.raises(StoreRefused):
        SqliteStore(str(file), clock=clock).info()
    assert _bytes(tmp_path) == {"recon.db": content}


@pytest.mark.parametrize("application", [0, 77])
def test_another_applications_database_is_refused_and_left_as_it_is(clock: TurnClock, tmp_path: Path, application: int) -> None:
    file = tmp_path / "recon.db"
    db = sqlite3.connect(file)
    db.execute(f"PRAGMA application_id = {application}")
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = _bytes(tmp_path)
    with pytest.raises(StoreRefused, match="another application"):
        SqliteStore(str(file), clock=clock).info()
    assert _bytes(tmp_path) == before


@pytest.mark.parametrize("in_wal", [False, True])
def test_a_newer_schema_is_refused_and_left_as_it_is(make_store: MakeStore, tmp_path: Path, in_wal: bool) -> None:
    store = make_store()
    store.info()
    store.close()
    db = apsw.Connection(str(tmp_path / "recon.db"))
    keep = apsw.Connection(str(tmp_path / "recon.db")) if in_wal else None
    if keep is not None:
        keep.execute("SELECT 1 FROM meta").fetchall()
    db.pragma("user_version", 2)
    db.close()
    header = read_header(str(tmp_path / "recon.db"))
    assert header is not None
    assert header.schema == (1 if in_wal else 2)
    before = _bytes(tmp_path)["recon.db"]
    with pytest.raises(StoreRefused, match="upgrade doubtless"):
        make_store().info()
    assert _bytes(tmp_path)["recon.db"] == before
    if keep is not None:
        keep.close()


def test_a_newer_format_of_a_row_is_refused(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch)._replace(format=2))
    with pytest.raises(StoreRefused, match="upgrade doubtless"):
        store.rows("recon-1")


def test_another_namespace_than_the_stores_is_refused(make_store: MakeStore) -> None:
    assert make_store(namespace=b"prod").info().namespace == b"prod"
    assert make_store().info().namespace == b"prod"
    with pytest.raises(StoreRefused, match="namespace"):
        make_store(namespace=b"test").info()


@pytest.mark.parametrize("namespace", [b"", b"x" * 65])
def test_a_namespace_of_no_or_too_many_bytes_is_refused(make_store: MakeStore, namespace: bytes) -> None:
    with pytest.raises(StoreRefused, match="namespace"):
        make_store(namespace=namespace).info()


def test_a_store_opened_to_look_creates_and_writes_nothing(
    begin: Begin, make_store: MakeStore, clock: TurnClock, tmp_path: Path
) -> None:
    with pytest.raises(StoreRefused, match="nothing was created"):
        SqliteStore(str(tmp_path / "none.db"), clock=clock, read_only=True).info()
    w = begin()
    looking = make_store(read_only=True)
    assert len(looking.rows("recon-1")) == 1
    for deed in (
        lambda: looking.accept(accepted("recon-2", clock())),
        lambda: looking.release("recon-1", w.epoch),
        lambda: looking.append(w.seal(intended("recon-1", clock(), w.epoch + 1))),
    ):
        with pytest.raises(StoreRefused, match="only to look"):
            deed()
    assert "none.db" not in "".join(os.listdir(tmp_path))


# ------------------------------------------------------------ damage


def _closed_store(begin: Begin, store: SqliteStore, clock: TurnClock, rows: int = 40) -> Path:
    w = begin()
    for step in range(1, rows + 1):
        w.append(intended("recon-1", clock(), w.epoch, step))
    store.release("recon-1", w.epoch)
    store.close()
    assert not os.path.exists(store.path + "-wal")
    return Path(store.path)


def _try(copy: Path, clock: TurnClock) -> int | None:
    """How many rows a store gives back; None when it is refused."""
    store = SqliteStore(str(copy), clock=clock)
    try:
        return len(store.rows("recon-1"))
    except (StoreDamaged, StoreRefused):
        return None
    finally:
        store.close()


EVERY_BYTE = pytest.param(1, marks=pytest.mark.prove)


@pytest.mark.parametrize("stride", [31, EVERY_BYTE])
def test_a_file_cut_at_any_byte_of_its_last_page_never_opens_as_if_it_were_whole_or_empty(
    begin: Begin, store: SqliteStore, clock: TurnClock, stride: int
) -> None:
    file = _closed_store(begin, store, clock)
    whole = file.read_bytes()
    page = 4096
    for cut in [*range(len(whole) - page, len(whole), stride), len(whole) - 1]:
        file.write_bytes(whole[:cut])
        with pytest.raises(StoreDamaged, match=r"it ends after \d+ bytes of .*recover"):
            SqliteStore(str(file), clock=clock).rows("recon-1")
        assert file.read_bytes() == whole[:cut]
    file.write_bytes(whole)
    assert _try(file, clock) == 41


def test_a_file_cut_at_any_page_is_refused(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    file = _closed_store(begin, store, clock)
    whole = file.read_bytes()
    for cut in [0, 1, 50, 99, 100, 512, *range(4096, len(whole), 4096)]:
        file.write_bytes(whole[:cut])
        assert _try(file, clock) is None
        assert file.read_bytes() == whole[:cut]


@pytest.mark.parametrize("stride", [97, EVERY_BYTE])
def test_a_wal_cut_at_any_byte_of_its_last_frame_loses_that_row_alone(
    begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path, stride: int
) -> None:
    w = begin()
    for step in range(1, 6):
        w.append(intended("recon-1", clock(), w.epoch, step))
    place = tmp_path / "killed"
    place.mkdir()
    before = {end: Path(store.path + end).read_bytes() for end in ("", "-wal", ".mark")}
    wal = before["-wal"]
    for cut in [*range(len(wal) - 4096 - 24, len(wal), stride), len(wal)]:
        for end, content in before.items():
            (place / f"recon.db{end}").write_bytes(content[:cut] if end == "-wal" else content)
        (place / "recon.db-shm").unlink(missing_ok=True)
        assert _try(place / "recon.db", clock) == (6 if cut == len(wal) else 5), cut


def test_a_file_that_was_cut_while_its_pages_were_copied_is_whole_with_its_wal(
    begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path
) -> None:
    w = begin()
    for step in range(1, 60):
        w.append(intended("recon-1", clock(), w.epoch, step))
    wal = Path(store.path + "-wal").read_bytes()
    store.release("recon-1", w.epoch)
    store.close()  # copies all pages and removes the WAL
    whole = Path(store.path).read_bytes()
    place = tmp_path / "killed"
    place.mkdir()
    shutil.copy(store.path + ".mark", place / "recon.db.mark")
    (place / "recon.db").write_bytes(whole[:-5000])  # killed in the middle of that: the WAL is still there
    assert missing_pages(str(place / "recon.db"))
    (place / "recon.db-wal").write_bytes(wal)
    assert _try(place / "recon.db", clock) == 60


def test_a_file_whose_beginning_is_damaged_is_refused_as_the_store_that_it_was(
    begin: Begin, store: SqliteStore, clock: TurnClock
) -> None:
    file = _closed_store(begin, store, clock)
    file.write_bytes(b"\0" * 4096 + file.read_bytes()[4096:])
    with pytest.raises(StoreDamaged, match="was a store"):
        SqliteStore(str(file), clock=clock).info()


@pytest.mark.parametrize("ending", ["gone", "empty"])
def test_a_fresh_store_is_never_opened_where_one_used_to_be(
    begin: Begin, store: SqliteStore, clock: TurnClock, ending: str, tmp_path: Path
) -> None:
    file = _closed_store(begin, store, clock)
    if ending == "gone":
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(StoreSuspect, match="recover --accept"):
        SqliteStore(str(file), clock=clock).info()
    assert file.exists() == (ending == "empty")


def test_a_wal_without_its_database_is_refused_and_kept(
    begin: Begin, store: SqliteStore, clock: TurnClock, tmp_path: Path
) -> None:
    begin()
    wal = Path(store.path + "-wal").read_bytes()
    (tmp_path / "other.db-wal").write_bytes(wal)
    with pytest.raises(StoreSuspect, match="-wal is there"):
        SqliteStore(str(tmp_path / "other.db"), clock=clock).info()
    assert (tmp_path / "other.db-wal").read_bytes() == wal


def test_a_database_without_wal_is_brought_back_to_it(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    file = _closed_store(begin, store, clock)
    db = sqlite3.connect(file)
    assert db.execute("PRAGMA journal_mode = delete").fetchone() == ("delete",)
    db.close()
    again = SqliteStore(str(file), clock=clock)
    connection = open_database(again._place)
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    connection.close()


def test_a_place_where_wal_is_impossible_is_refused(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    file = _closed_store(begin, store, clock)
    db = apsw.Connection(str(file))
    assert db.pragma("journal_mode", "delete") == "delete"
    db.execute("BEGIN")
    db.execute("SELECT * FROM meta").fetchall()  # while somebody reads, the mode cannot change
    with pytest.raises(StoreError):
        SqliteStore(str(file), clock=clock, busy_timeout=0.01).info()
    db.close()


def test_the_driver_in_use_is_one_that_is_taken() -> None:
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)
