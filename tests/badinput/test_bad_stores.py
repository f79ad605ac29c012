"""A store that cannot be used is refused at first use: the reason, what to type, and not a byte made or changed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from bad_ground import Clock, MakeApp, Trap, everything, says_what_to_type

from doubtless import Doubtless
from doubtless.errors import DoubtlessError, StoreDamaged, StoreRefused, StoreSuspect, StoreUnavailable, UsageError
from doubtless.store import path_of
from doubtless.store.sqlite import SqliteStore

USES: dict[str, Callable[[Doubtless, Any], Any]] = {
    "run": lambda app, task: app.run(task, "t1"), "start": lambda app, task: app.start(task, "t1"),
    "resume": lambda app, task: app.resume("t1"), "resume_all": lambda app, task: app.resume_all(),
    "tasks": lambda app, task: app.tasks(), "show": lambda app, task: app.show("t1"), "inbox": lambda app, task: app.inbox(),
    "verify": lambda app, task: app.verify(), "freeze": lambda app, task: app.freeze(None, why="stop"),
    "worker": lambda app, task: app.worker().start(),
}  # fmt: skip


def refused(app: Doubtless, folder: Path, kind: type[DoubtlessError], *words: str, use: str = "run") -> DoubtlessError:
    """The error of using this app, which has changed nothing in the folder, however often it is tried."""

    @app.task
    def any_task() -> None:
        raise AssertionError("it was called")

    before = everything(folder)
    for _ in range(2):
        with pytest.raises(kind) as error:
            USES[use](app, any_task)
        assert everything(folder) == before
    says_what_to_type(error.value, *words)
    return error.value


# ---------------------------------------------------------------- no store, or one that is none


@pytest.mark.parametrize("use", USES)
def test_without_a_url_nothing_runs_and_nothing_is_kept_in_memory(make_app: MakeApp, folder: Path, use: str) -> None:
    """C04: no durable log, no run: refused at first use, by whatever method that is."""
    error = refused(make_app(None), folder, UsageError, "no durable log", "DOUBTLESS_STORE", "sqlite:///", use=use)
    assert everything(folder) == {}
    assert "$DOUBTLESS_STORE" in error.message


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://", "sqlite:///"])
def test_a_log_in_memory_is_refused(make_app: MakeApp, folder: Path, url: str, use: str) -> None:
    """C04: never degrade silently to what is gone with its process."""
    refused(make_app(url), folder, StoreRefused, "sqlite:///recon.db", use=use)
    assert everything(folder) == {}


def test_a_store_that_is_given_after_the_first_refusal_is_used(
    make_app: MakeApp, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C04: attaching a store late is no silent change of mind: what ran before it was refused, not done without a log."""
    app = make_app(None)
    refused(app, folder, UsageError, "no durable log")
    monkeypatch.setenv("DOUBTLESS_STORE", "sqlite:///late.db")

    @app.task
    def fine() -> str:
        return "ok"

    assert app.run(fine, "t2") == "ok"
    assert (folder / "late.db").exists()


def test_the_variable_is_read_at_first_use_and_a_url_in_the_code_goes_before_it(
    make_app: MakeApp, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_variable, by_code = make_app(None), make_app("sqlite:///code.db")
    monkeypatch.setenv("DOUBTLESS_STORE", "sqlite:///variable.db")
    for app in (by_variable, by_code):
        app.store.info()
    assert sorted(path.name for path in folder.glob("*.db")) == ["code.db", "variable.db"]


@pytest.mark.parametrize("value", ["", "recon.db", "mysql://host/db", "sqlite:recon.db"])
def test_a_variable_that_names_no_store_is_refused(
    make_app: MakeApp, folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("DOUBTLESS_STORE", value)
    refused(make_app(None), folder, DoubtlessError, "sqlite:///")
    assert everything(folder) == {}


@pytest.mark.parametrize(
    "url", ["recon.db", "sqlite:/recon.db", "sqlite://host/recon.db", "sqlite:///recon.db?mode=memory", "http://recon.db"]
)
def test_a_url_that_names_no_store_is_refused_with_one_that_does(make_app: MakeApp, folder: Path, url: str) -> None:
    refused(make_app(url), folder, StoreRefused, "sqlite:///")
    assert everything(folder) == {}


# ---------------------------------------------------------------- places


@pytest.mark.parametrize("command", ["migrate", "recover", "tasks", "worker"])
def test_without_the_driver_every_command_on_postgresql_says_what_to_install(folder: Path, command: str) -> None:
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "psycopg.py").write_text("raise ImportError('there is none')\n")
    (hidden / "shop.py").write_text("from doubtless import Doubtless\napp = Doubtless('postgresql://db.invalid/orders')\n")
    said = [command, "shop:app"] if command == "worker" else [command, "--store", "postgresql://db.invalid/orders"]
    done = subprocess.run(
        [Path(sys.executable).with_name("doubtless"), *said], capture_output=True, text=True, cwd=hidden, check=False,
        env={**os.environ, "PYTHONPATH": str(hidden), "XDG_STATE_HOME": str(folder / "state")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert "pip install 'doubtless[postgres]'" in done.stderr


def test_a_postgresql_url_with_an_option_that_nobody_knows_is_refused_with_options_that_do(make_app: MakeApp, folder: Path) -> None:
    """Nobody was asked: the advice is to look at the URL, not at the server."""
    url = f"postgresql://db.invalid/orders?mark={folder}/mark&leese=PT5S"
    refused(make_app(url), folder, StoreRefused, "leese", "docs/postgres.md", "?schema=doubtless")


def test_where_no_connection_comes_about_the_url_is_named_as_a_reason_too(make_app: MakeApp, folder: Path) -> None:
    url = f"postgresql://app:secret@127.0.0.1:1/orders?mark={folder}/mark"
    error = refused(make_app(url), folder, StoreUnavailable, "the URL's host, role, password and database")
    assert "secret" not in str(error)
    assert "\n" not in str(error)


def test_a_missing_directory_is_named_and_not_made(make_app: MakeApp, folder: Path) -> None:
    refused(make_app(f"sqlite:///{folder}/no/such/recon.db"), folder, StoreRefused, f"{folder}/no/such", "mkdir -p")
    assert everything(folder) == {}


def test_a_directory_in_the_files_place_is_refused(make_app: MakeApp, folder: Path) -> None:
    (folder / "recon.db").mkdir()
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "recon.db is a directory")


@pytest.fixture
def as_nobody(folder: Path) -> Iterator[Callable[[], None]]:
    """Drops root's rights, which no permission binds; does nothing for an ordinary user."""
    user = os.geteuid()
    if user == 0:
        for place in (folder, *folder.parents):
            mode = place.stat().st_mode
            if place.stat().st_uid == 0 and mode & 0o005 != 0o005:  # never a folder that everybody has, such as /dev/shm
                place.chmod(mode | 0o055)

    def drop() -> None:
        if user == 0:
            os.seteuid(65534)

    yield drop
    if user == 0:
        os.seteuid(0)


def test_a_directory_that_cannot_be_written_is_refused(make_app: MakeApp, folder: Path, as_nobody: Callable[[], None]) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o555)
    as_nobody()
    refused(make_app(f"sqlite:///{locked}/recon.db"), folder, StoreRefused, "cannot be written", "chmod u+wx")


def test_a_file_that_cannot_be_written_is_refused(make_app: MakeApp, folder: Path, as_nobody: Callable[[], None]) -> None:
    make_app("sqlite:///recon.db").store.info()
    (folder / "recon.db").chmod(0o444)
    folder.chmod(0o777)
    as_nobody()
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "recon.db is read-only", "chmod u+rw")


@pytest.mark.parametrize("kind", ["nfs4", "9p", "cifs", "smb3", "fuse.sshfs", "virtiofs"])
def test_a_network_or_shared_file_system_is_refused(make_app: MakeApp, folder: Path, clock: Clock, kind: str) -> None:
    """C17: SQLite's WAL and the locks of owners do not work there; it is refused by name, and never switched silently."""
    app = make_app("sqlite:///recon.db")
    app._open = lambda url, **options: SqliteStore(path_of(url), clock=clock.now, file_system=lambda path: kind)
    error = refused(app, folder, StoreRefused, "recon.db", "network or shared file system", "local disk")
    assert error.context["file_system"] == kind
    assert everything(folder) == {}


def test_the_store_says_wal_and_full_when_it_is_asked_back(make_app: MakeApp) -> None:
    """C16, C17: each commit is synced (NORMAL in WAL mode may lose the last ones with the power), in WAL and nothing else."""
    app = make_app("sqlite:///recon.db")
    app.store.info()
    connection = app.store._link._connection  # type: ignore[attr-defined]
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2


def test_a_place_where_no_wal_is_possible_is_refused(make_app: MakeApp, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: what journal_mode reads back as is what counts; there is no silent other mode."""
    from doubtless.store import opening

    used(make_app)
    plain = apsw.Connection("recon.db")
    plain.pragma("journal_mode", "delete")
    plain.close()

    def without_shared_memory(place: opening.Place, flags: int) -> apsw.Connection:
        return apsw.Connection(place.path, flags=flags, vfs="unix-dotfile")

    monkeypatch.setattr(opening, "connect", without_shared_memory)
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "journal_mode reads back as delete", "local disk")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("content", [b"id,amount\n1,500\n", b"\0" * 4096, b"SQLite format 4\0" + b"\0" * 100, b"xy"])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(make_app: MakeApp, folder: Path, content: bytes) -> None:
    (folder / "recon.db").write_bytes(content)
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "recon.db is not a database")


def test_an_empty_file_that_may_have_held_a_store_is_refused(make_app: MakeApp, folder: Path) -> None:
    (folder / "recon.db").touch()
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "recon.db is empty", "rm ")


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_another_applications_database_is_refused_and_left_as_it_is(make_app: MakeApp, folder: Path, journal: str) -> None:
    other = sqlite3.connect("recon.db")
    other.execute(f"PRAGMA journal_mode = {journal}")
    other.execute("CREATE TABLE orders (id)")
    other.commit()
    other.close()
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "recon.db is another application's database")


def test_a_newer_schema_is_refused_and_left_as_it_is(make_app: MakeApp, folder: Path) -> None:
    first = make_app("sqlite:///recon.db")
    first.store.info()
    first.close()
    newer = apsw.Connection("recon.db")
    newer.pragma("user_version", 99)
    newer.pragma("wal_checkpoint(truncate)")
    newer.close()
    refused(make_app("sqlite:///recon.db"), folder, StoreRefused, "schema 99", "upgrade doubtless")


def test_another_namespace_is_refused(make_app: MakeApp, folder: Path) -> None:
    first = make_app("sqlite:///recon.db", namespace="finance")
    first.store.info()
    first.close()
    with pytest.raises(StoreRefused) as error:
        make_app("sqlite:///recon.db", namespace="hr").store.info()
    says_what_to_type(error.value, "namespace", "never changes")


# ---------------------------------------------------------------- stores that are not what they were


def used(make_app: MakeApp, task_ids: tuple[str, ...] = ("t1",)) -> Doubtless:
    """A store with finished tasks, closed."""
    app = make_app("sqlite:///recon.db")
    Filled(app).run(*task_ids)
    app.close()
    return app


class Filled:
    """An app whose write the world counts, so that what a refused store would have done again can be seen."""

    def __init__(self, app: Doubtless) -> None:
        self.app = app
        self.sent: list[str] = []

        @app.step(effect="non_idem_write")
        def pay(order: str) -> dict[str, str]:
            self.sent.append(order)
            return {"id": order, "text": "x" * 3000}

        @app.task
        def settle_order(order: str) -> str:
            return pay(order=order)["id"]

        self.task = settle_order

    def run(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.app.run(self.task, task_id, order=task_id)


@pytest.mark.parametrize("cut", [1, 100, 4096, 8192, 12_288])
def test_a_store_that_was_cut_is_refused_as_damaged(make_app: MakeApp, folder: Path, cut: int) -> None:
    used(make_app)
    path = folder / "recon.db"
    os.truncate(path, path.stat().st_size - cut)
    refused(make_app("sqlite:///recon.db"), folder, StoreDamaged, "recon.db is damaged", "doubtless recover")


def test_a_store_cut_to_nothing_is_refused_and_not_made_anew(make_app: MakeApp, folder: Path) -> None:
    used(make_app)
    os.truncate(folder / "recon.db", 0)
    refused(make_app("sqlite:///recon.db"), folder, StoreSuspect, "doubtless recover --accept")


def test_a_store_that_is_gone_is_not_made_anew(make_app: MakeApp, folder: Path) -> None:
    """C18: an empty log would mean that nothing was ever sent."""
    used(make_app)
    (folder / "recon.db").unlink()
    refused(make_app("sqlite:///recon.db"), folder, StoreSuspect, "is gone", "doubtless recover --accept")
    assert not (folder / "recon.db").exists()


def test_a_store_without_its_mark_is_refused(make_app: MakeApp, folder: Path) -> None:
    used(make_app)
    (folder / "recon.db.mark").unlink()
    refused(make_app("sqlite:///recon.db"), folder, StoreSuspect, "mark is missing", "doubtless recover --accept")


def test_a_store_whose_first_page_is_overwritten_is_refused(make_app: MakeApp, folder: Path) -> None:
    used(make_app)
    with open(folder / "recon.db", "r+b") as file:
        file.write(b"not a database any more" + b"\0" * 100)
    refused(make_app("sqlite:///recon.db"), folder, StoreDamaged, "was a store", "doubtless recover --accept")


def test_looking_at_a_store_that_is_not_there_makes_none(make_app: MakeApp, folder: Path) -> None:
    app = make_app("sqlite:///recon.db", read_only=True)
    for look in ("tasks", "inbox", "show", "freeze"):
        refused(app, folder, StoreRefused, "recon.db", use=look)
    assert everything(folder) == {}


def test_a_store_opened_to_look_runs_nothing(make_app: MakeApp, folder: Path) -> None:
    used(make_app)
    app = make_app("sqlite:///recon.db", read_only=True)
    filled = Filled(app)
    assert app.show("t1").status == "done"
    for call in (lambda: filled.run("t2"), lambda: app.freeze(None, why="stop")):
        with pytest.raises(StoreRefused, match="opened only to look"):
            call()
    assert filled.sent == []


def test_a_refused_store_is_used_once_its_fault_is_mended(make_app: MakeApp, folder: Path, trap: Trap) -> None:
    app = make_app(f"sqlite:///{folder}/new/recon.db")
    refused(app, folder, StoreRefused, "mkdir -p")
    (folder / "new").mkdir()
    Filled(app).run("t1")
    assert app.show("t1").status == "done"
