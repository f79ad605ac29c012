"""Cases from the field (groups B and H) that take another form on PostgreSQL: torn logs, full disks, power, files, names of owners.

The rest of both groups runs on both stores where it stands: `tests/cases.json` says which tests.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres.server import Server

from doubtless import Doubtless, NeedsHuman, StoreUnavailable, host, injected
from doubtless.errors import StaleEpoch
from doubtless.events import Kind, TaskStatus, draft, row_hash, seal
from doubtless.store.base import Wanted
from doubtless.store.pg.migrate import migrate
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

Open = Callable[..., PostgresStore]
MakeApp = Callable[..., Doubtless]
SEGMENT = 16 << 20


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    """Servers of this test alone."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(**options))
        return made[-1]

    yield make
    for server in made:
        server.remove()


def accept(store: PostgresStore, clock: FakeClock, task_id: str) -> None:
    row = draft(
        task_id, Kind.TASK_ACCEPTED, clock.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
        input_ref="inline:{}",
    )  # fmt: skip
    assert store.accept(row) is None


def append(store: PostgresStore, clock: FakeClock, epoch: int, said: str) -> None:
    last = store.last("t-1")
    assert last is not None
    row = draft("t-1", Kind.HANDLE_RECORDED, clock.now(), path="1", step_seq=1, epoch=epoch, data={"handle": said})
    store.append(seal([row], last.event_seq, row_hash(last)))


# ------------------------------------------------------------ C14: torn writes, full disks


@pytest.mark.parametrize("cuts", [4, pytest.param(40, marks=pytest.mark.prove)])
def test_a_server_s_log_that_is_torn_anywhere_in_the_last_row_keeps_exactly_the_whole_rows(
    own_server: Callable[..., Server], tmp_path: Path, clock: FakeClock, cuts: int
) -> None:
    """C14: the power goes while the last row is written: it is whole or not there, and the log takes rows again."""
    server = own_server().start()
    url = server.url(mark=str(tmp_path / "mark"), schema="doubtless")
    migrate(url, state=str(tmp_path))
    options: dict[str, Any] = {"clock": clock.now, "own_clock": True, "heartbeat": False, "state": str(tmp_path)}
    store = PostgresStore(url, **options)
    accept(store, clock, "t-1")
    epoch = store.claim("t-1").epoch
    append(store, clock, epoch, "x" * 900)
    begin = position(server)
    append(store, clock, epoch, "y" * 900)
    end = position(server)
    whole = store.rows("t-1")
    store._leases.held.clear()
    store.close()
    server.stop(kill=True)
    seen = set()
    for cut in [*range(begin + 1, end, max(1, (end - begin) // cuts)), end]:
        other = own_server(data=server.data)
        tear(Path(other.data), cut)
        other.start()
        there = PostgresStore(url.replace(f":{server.port}/", f":{other.port}/"), **options)
        rows = there.rows("t-1")
        assert rows == whole[: len(rows)]
        assert len(whole) - len(rows) in (0, 1)
        assert there.verify() == []
        clock.advance(120)
        append(there, clock, there.claim("t-1").epoch, "z")
        assert there.verify() == []
        seen.add(len(rows))
        there._leases.held.clear()
        there.close()
        other.remove()
    assert seen == {len(whole), len(whole) - 1}


def position(server: Server) -> int:
    """Where the server's own log ends, in bytes; all of it is on the disk."""
    with server.connect() as connection:
        found = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    assert found is not None
    return int(found[0])  # type: ignore[call-overload,no-any-return]


def tear(data: Path, cut: int) -> None:
    """Let what stands behind a position of the server's log never have been written."""
    for name in sorted(os.listdir(data / "pg_wal")):
        if len(name) != 24:
            continue
        start = (int(name[8:16], 16) * 0x1_0000_0000) + int(name[16:], 16) * SEGMENT
        with open(data / "pg_wal" / name, "r+b") as file:
            if start <= cut < start + SEGMENT:
                file.seek(cut - start)
                file.write(bytes(SEGMENT - (cut - start)))
            elif start > cut:
                file.write(bytes(SEGMENT))


FULL = """
CREATE TABLE room (rows_left bigint);
INSERT INTO room VALUES (1000000);
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE room SET rows_left = rows_left - 1;
  IF (SELECT rows_left FROM room) < 0 THEN
    RAISE EXCEPTION 'could not extend file "base/5/16402": No space left on device' USING ERRCODE = 'disk_full';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER a_full_disk BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION full_disk();
ALTER TABLE events ENABLE ALWAYS TRIGGER a_full_disk;
"""
"""A disk that has room for so many rows, and no more."""


def test_a_disk_that_is_full_at_any_row_stops_the_writer_whole_and_costs_no_result_and_no_second_effect(
    server: Server, url: str, make_app: MakeApp
) -> None:
    """C14: for every number of rows for which there is room, until a run is clean."""
    name = url.partition("schema=")[2].partition("&")[0]
    with server.connect(options=f"-c search_path={name}") as admin:
        admin.execute(FULL)

        def leave(rows: int) -> None:
            admin.execute(f"UPDATE room SET rows_left = {rows}".encode())

        stopped = 0
        for room in range(1, 20):
            app, sent = make_app(store_patience=0.01), list[str]()

            @app.step(effect="non_idem_write")
            def pay(amount: int, idempotency_key: str = injected()) -> dict[str, int]:
                sent.append(idempotency_key)  # noqa: B023
                return {"paid": amount}

            @app.task
            def settle() -> int:
                return sum(pay(amount=amount)["paid"] for amount in (1, 2, 3))  # noqa: B023

            leave(1_000_000)
            app.start(settle, f"t-{room}")
            leave(room - 1)
            try:
                assert app.resume(f"t-{room}") == 6
                assert len(set(sent)) == len(sent) == 3
                leave(1_000_000)
                break
            except StoreUnavailable as error:
                assert "No space left on device" in error.message or "is kept in" in error.message
                stopped += 1
            assert app.verify() == []
            leave(1_000_000)
            assert app.resume(f"t-{room}") == 6
            assert len(set(sent)) == len(sent) == 3
            assert app.verify() == []
            app.close()
        assert stopped >= 6


# ------------------------------------------------------------ C12, C16: power


def test_what_was_acknowledged_is_there_when_the_server_loses_its_power_in_the_call(
    own_server: Callable[..., Server], tmp_path: Path, make_app: MakeApp, clock: FakeClock
) -> None:
    """C12, C16: the task that was accepted and the intent whose effect is out survive; the write is in doubt, not sent again."""
    server = own_server().start()
    url = server.url(mark=str(tmp_path / "mark"))
    migrate(url, state=str(tmp_path))
    sent: list[str] = []

    class Gone(BaseException):
        """This process ends here, too."""

    def build() -> tuple[Doubtless, Any]:
        app = make_app(url, clock=clock, store_patience=0.01)

        @app.step(effect="non_idem_write")
        def pay(idempotency_key: str = injected()) -> dict[str, str]:
            sent.append(idempotency_key)
            server.stop(kill=True)
            raise Gone

        @app.task
        def settle() -> dict[str, str]:
            return pay()

        return app, settle

    app, task = build()
    app.start(task, "accepted")
    with pytest.raises(BaseException):  # noqa: B017  its death, or the store's that is away
        app.run(task, "paid")
    store: Any = app.store
    store._leases.held.clear()
    server.start()
    clock.advance("PT1H")
    other, task = build()
    assert {head.task_id: head.status for head in other.tasks()}.keys() == {"accepted", "paid"}
    assert [row.kind for row in other.store.rows("accepted")] == [Kind.TASK_ACCEPTED]
    assert other.show("paid").steps[0].status in ("uncertain", "needs_human")
    with pytest.raises(NeedsHuman):
        other.run(task, "paid")
    assert len(sent) == 1
    assert other.verify() == []


# ------------------------------------------------------------ C17: file systems


def test_nothing_of_the_log_depends_on_this_machine_s_file_system(
    url: str, tmp_path: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: where files cannot be locked, as on many network file systems, the log is none the worse: no file of it is here."""

    def no_locks(*args: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(fcntl, "lockf", no_locks)
    app = make_app()

    @app.step(effect="non_idem_write")
    def pay(lines: str) -> dict[str, str]:
        return {"pdf": "p" * 1_500_000}

    @app.task
    def settle() -> int:
        return len(pay(lines="l" * 1_500_000)["pdf"])

    assert app.run(settle, "t-1") == 1_500_000
    assert app.verify() == []
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["mark"]  # what C20 needs beside the database


# ------------------------------------------------------------ C87: owners


def test_a_process_of_the_same_name_and_number_keeps_no_orphan_alive_and_every_orphan_is_found_by_one_look(
    open_store: Open, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C87: a pod that was started again under its old name, with its old process number, is another owner."""
    monkeypatch.setattr(host, "name", lambda: "pod-1")
    monkeypatch.setattr(host, "pid", lambda: 7)
    dead, again = open_store(), open_store()
    for task_id in ("t-1", "t-2", "t-3"):
        accept(dead, clock, task_id)
    old, _ = (dead.claim(task_id) for task_id in ("t-1", "t-2"))
    orphaned = dead.leases.owner()
    dead.leases.held.clear()
    again.claim("t-3")
    assert again.leases.owner() != orphaned
    assert again.leases.owner().partition("-")[0] == orphaned.partition("-")[0] == "7"
    assert orphaned.partition("@")[2] == again.leases.owner().partition("@")[2]
    clock.advance(20)
    again.leases.beat()
    clock.advance(20)
    again.leases.beat()
    assert not again.owner_alive(orphaned)
    assert again.owner_alive(again.leases.owner())
    due = again.due(Wanted(("task",)), limit=10, now=clock.now().wall)
    assert [head.task_id for head in due.heads] == ["t-1", "t-2"]
    assert again.claim("t-1").takeover
    with pytest.raises(StaleEpoch):
        append(dead, clock, old.epoch, "by a zombie")
