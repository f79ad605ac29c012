"""Disks that are full, locks that are held, files that cannot be written: nothing half-written, and it says what is known."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, accepted, case_opened, intended, parked, settled

from doubtless.blobs import Content
from doubtless.errors import StoreUnavailable, UsageError
from doubtless.store.base import Blob
from doubtless.store.link import RETRY_SECONDS
from doubtless.store.sqlite import SqliteStore


def test_on_a_full_disk_nothing_is_half_written_and_later_it_goes_on(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    store.limit_pages(store.pages())
    written = 0
    with pytest.raises(StoreUnavailable) as caught:
        for step in range(1, 2000):
            w.append(intended("recon-1", clock(), w.epoch, step))
            written += 1
    assert caught.value.context["written"] is False
    assert "disk is full" in str(caught.value)
    assert len(store.rows("recon-1")) == written + 1
    content = Content(store, store.folder)
    ref, blob = content.put("x" * 20_000)
    assert blob is not None
    with pytest.raises(StoreUnavailable):
        w.append(intended("recon-1", clock(), w.epoch, 2, ref), case_opened("recon-1", clock(), w.epoch), blobs=(blob,))
    assert store.blob(blob.digest) is None
    assert store.cases() == []
    with pytest.raises(StoreUnavailable):
        for n in range(100):
            store.accept(accepted(f"other-{n}", clock()))
    store.limit_pages(None)
    w.append(intended("recon-1", clock(), w.epoch, 2, ref), case_opened("recon-1", clock(), w.epoch), blobs=(blob,))
    assert store.verify() == []


def test_on_a_full_disk_a_claim_is_not_half_made(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    store.accept(accepted("recon-2", clock()))
    with pytest.raises(StoreUnavailable):
        store.limit_pages(store.pages())
        for step in range(1, 2000):
            w.append(intended("recon-1", clock(), w.epoch, step))
    store._owner.let_go("recon-1", w.epoch)
    with pytest.raises(StoreUnavailable):
        store.claim("recon-1")  # a takeover: its row does not fit
    assert "recon-1" not in store._owner.tasks
    store.limit_pages(None)
    assert store.claim("recon-1").takeover
    assert store.verify() == []


def test_a_lock_held_too_long_is_told_and_nothing_is_written(begin: Begin, make_store: MakeStore, clock: TurnClock) -> None:
    w = begin()
    w.store.close()
    impatient = make_store(busy_timeout=0.02)
    mine = Writer(impatient, "recon-1", type("C", (), {"epoch": w.epoch})())
    other = apsw.Connection(impatient.path)
    other.execute("BEGIN IMMEDIATE")
    for rows in (
        [intended("recon-1", clock(), w.epoch)],
        [settled("recon-1", clock(), w.epoch), case_opened("recon-1", clock(), w.epoch)],
    ):
        with pytest.raises(StoreUnavailable) as caught:
            mine.append(*rows)
        assert caught.value.context["written"] is False
        assert "write lock" in str(caught.value)
    other.execute("ROLLBACK")
    other.close()
    mine.append(intended("recon-1", clock(), w.epoch))
    assert len(impatient.rows("recon-1")) == 2


def test_a_held_lock_is_tried_again_at_one_short_constant_interval(
    begin: Begin, make_store: MakeStore, clock: TurnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = begin()
    impatient = make_store(busy_timeout=0.02)
    mine = Writer(impatient, "recon-1", type("C", (), {"epoch": w.epoch})())
    other = apsw.Connection(impatient.path)
    other.execute("BEGIN IMMEDIATE")
    slept: list[float] = []
    monkeypatch.setattr("doubtless.host.sleep", slept.append)
    with pytest.raises(StoreUnavailable):
        mine.append(intended("recon-1", clock(), w.epoch))
    other.execute("ROLLBACK")
    other.close()
    assert len(slept) > 20
    assert set(slept) == {RETRY_SECONDS}


def test_an_append_waits_for_a_lock_that_is_given_back(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    other = apsw.Connection(store.path)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Event()

    def append() -> None:
        w.append(intended("recon-1", clock(), w.epoch))
        done.set()

    thread = threading.Thread(target=append)
    thread.start()
    assert not done.wait(0.05)
    other.execute("ROLLBACK")
    assert done.wait(10)
    thread.join()
    other.close()


class TornVFS(apsw.VFS):
    """The system's files, of which the n-th sync or write of the WAL fails."""

    def __init__(self) -> None:
        self.fail: Callable[[str], bool] = lambda deed: False
        super().__init__("torn", "")

    def xOpen(self, name, flags):  # type: ignore[no-untyped-def]
        return TornFile(self, name, flags)


class TornFile(apsw.VFSFile):
    def __init__(self, vfs: TornVFS, name, flags) -> None:  # type: ignore[no-untyped-def]
        self._vfs = vfs
        self._wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._wal and self._vfs.fail("write"):
            super().xWrite(data[: len(data) // 2], offset)
            raise apsw.IOError("torn")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._wal and self._vfs.fail("sync"):
            raise apsw.IOError("unsynced")
        super().xSync(flags)


@pytest.fixture
def torn(monkeypatch: pytest.MonkeyPatch) -> TornVFS:
    """Stores opened from here on lie on a disk that can fail."""
    vfs = TornVFS()
    real = apsw.Connection

    def connection(path: str, **options: object) -> apsw.Connection:
        return real(path, vfs="torn", **options)  # type: ignore[arg-type]

    monkeypatch.setattr("doubtless.store.opening.apsw.Connection", connection)
    return vfs


@contextmanager
def _failing(vfs: TornVFS, deed: str, at: int) -> Iterator[list[str]]:
    seen: list[str] = []

    def fail(what: str) -> bool:
        if what == deed:
            seen.append(what)
        return what == deed and len(seen) == at

    vfs.fail = fail
    try:
        yield seen
    finally:
        vfs.fail = lambda what: False


@pytest.mark.parametrize("deed", ["write", "sync"])
@pytest.mark.parametrize("several", [False, True])
def test_whatever_write_or_sync_fails_the_log_holds_all_of_an_append_or_nothing(
    torn: TornVFS, make_store: MakeStore, clock: TurnClock, deed: str, several: bool
) -> None:
    store = make_store()
    store.accept(accepted("recon-1", clock()))
    w = Writer(store, "recon-1", store.claim("recon-1"))
    step, failed = 0, 0
    for at in range(1, 30):
        step += 1
        rows = [intended("recon-1", clock(), w.epoch, step)]
        blobs: tuple[Blob, ...] = ()
        if several:
            ref, blob = Content(store, store.folder).put(str(step) * 9000)
            assert blob is not None
            rows, blobs = [intended("recon-1", clock(), w.epoch, step, ref), case_opened("recon-1", clock(), w.epoch)], (blob,)
        before = len(store.rows("recon-1"))
        try:
            with _failing(torn, deed, at) as seen:
                w.append(*rows, blobs=blobs)
            assert len(seen) < at
            break  # clean: no write of it was left to fail
        except StoreUnavailable as error:
            failed += error.context["written"] is False
            assert len(store.rows("recon-1")) == before
            w.append(*rows, blobs=blobs)  # it is offered again
    else:
        pytest.fail("no run was clean")
    assert failed == step - 1 > 0
    assert store.verify() == []
    again = make_store()
    store.close()
    assert again.verify() == []
    assert len(again.rows("recon-1")) == w.seq


@pytest.mark.parametrize("several", [False, True])
def test_each_append_is_synced_before_it_returns(torn: TornVFS, make_store: MakeStore, clock: TurnClock, several: bool) -> None:
    store = make_store()
    store.accept(accepted("recon-1", clock()))
    w = Writer(store, "recon-1", store.claim("recon-1"))
    for step in (1, 2, 3):
        rows = [intended("recon-1", clock(), w.epoch, step), *[case_opened("recon-1", clock(), w.epoch)] * several]
        with _failing(torn, "sync", 0) as seen:
            w.append(*rows)
        assert seen, "the append returned, and its rows may be lost with the power"


def test_a_commit_that_stands_although_its_error_came_late_counts_as_written(
    begin: Begin, store: SqliteStore, clock: TurnClock
) -> None:
    w = begin()
    rows = w.seal(intended("recon-1", clock(), w.epoch), case_opened("recon-1", clock(), w.epoch))
    link = store._link
    original = link.hooks

    def late(name: str) -> None:
        if name == "append:before":  # the commit is done, and then the driver says that it failed
            assert link.cursor is not None
            link.cursor.execute("COMMIT")
            raise apsw.IOError("late")

    link.hooks = late
    try:
        store.append(rows)
    finally:
        link.hooks = original
    assert store.rows("recon-1")[1:] == rows
    assert store.verify() == []


def test_a_hook_that_raises_takes_the_transaction_back(make_store: MakeStore, clock: TurnClock) -> None:
    class Stop(BaseException):
        pass

    stop = False

    def hook(name: str) -> None:
        if stop and name.endswith(":before"):
            raise Stop

    store = make_store(hooks=hook)
    store.accept(accepted("recon-1", clock()))
    w = Writer(store, "recon-1", store.claim("recon-1"))
    stop = True
    for deed in (
        lambda: w.append(parked("recon-1", clock(), w.epoch)),
        lambda: w.append(intended("recon-1", clock(), w.epoch)),
        lambda: store.accept(accepted("recon-2", clock())),
        lambda: store.release("recon-1", w.epoch),
    ):
        with pytest.raises(Stop):
            deed()
    stop = False
    assert len(store.rows("recon-1")) == 1
    assert store.head("recon-2") is None
    w.append(parked("recon-1", clock(), w.epoch))
    assert store.verify() == []


# ------------------------------------------------------------ content and spilled results


@contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_content_that_the_disk_does_not_take_leaves_nothing_half_written(store: SqliteStore) -> None:
    store.info()
    content = Content(store, store.folder)
    with _file_size_limit(1_000_000), pytest.raises(StoreUnavailable) as caught:
        content.put("x" * 3_000_000)
    assert caught.value.context["written"] is False
    assert [p for p in Path(store.folder.path).rglob("*") if p.is_file()] == []
    ref, blob = content.put("x" * 3_000_000)
    assert blob is None
    assert content.get(ref) == "x" * 3_000_000


def test_a_log_beyond_the_file_size_limit_is_unavailable_and_whole(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    wal = Path(store.path + "-wal").stat().st_size
    with _file_size_limit(wal + 20_000), pytest.raises(StoreUnavailable):
        for step in range(1, 100):
            w.append(intended("recon-1", clock(), w.epoch, step))
    w.append(intended("recon-1", clock(), w.epoch, 99))
    assert len(store.rows("recon-1")) == w.seq
    assert store.verify() == []


def test_a_result_is_spilled_whole_and_comes_back_until_it_is_dropped(
    begin: Begin, store: SqliteStore, make_store: MakeStore, clock: TurnClock
) -> None:
    w = begin()
    ref, blob = Content(store, store.folder).put("x" * 1000)
    assert blob is not None
    one = store.spill(settled("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))
    two = store.spill(settled("recon-1", clock(), w.epoch, 2, 'inline:"ü"'))
    store.spill(settled("other", clock(), 7))
    assert [name for name, _ in make_store().spilled("recon-1")] == [one, two]
    event = store.spilled("recon-1")[0][1]
    assert event.output_ref == ref
    assert Content(store, store.folder).get(event.output_ref) == "x" * 1000
    assert event.epoch == w.epoch
    assert event == settled("recon-1", clock(), w.epoch, ref=ref)._replace(finished_at=event.finished_at, boot_at=event.boot_at)
    store.drop_spilled(one)
    store.drop_spilled(one)
    assert [name for name, _ in store.spilled("recon-1")] == [two]


def test_a_name_that_leads_out_of_the_spill_is_refused(store: SqliteStore) -> None:
    with pytest.raises(UsageError):
        store.drop_spilled("../recon.db")


def test_a_result_that_cannot_be_spilled_is_told(begin: Begin, store: SqliteStore, clock: TurnClock) -> None:
    w = begin()
    with _file_size_limit(100), pytest.raises(StoreUnavailable, match="cannot be kept"):
        store.spill(settled("recon-1", clock(), w.epoch))
    assert store.spilled("recon-1") == []
    assert list((Path(store.path + ".spill")).iterdir()) == []
