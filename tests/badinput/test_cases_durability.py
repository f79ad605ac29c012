"""Cases from the field about crash windows and the log's durability (group B, C20 included), on real files."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from bad_ground import Clock, MakeApp, everything
from durable_child import Books
from store_places import Place
from tests import nursery

from doubtless import Doubtless, NeedsHuman, injected
from doubtless.answers import DidNotHappen, Happened
from doubtless.errors import StoreDamaged, StoreSuspect, StoreUnavailable
from doubtless.store.recover import recover

CHILD = Path(__file__).with_name("durable_child.py")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """The other side: a file outside of the store's folder."""
    return tmp_path / "world.txt"


def killed(deed: str, world: Path, url: str = "sqlite:///bad.db") -> None:
    """Run a deed in a process of its own, which is killed in it."""
    done = nursery.run(
        [sys.executable, str(CHILD), url, deed, str(world)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == -9, done.stderr


def books_of(make_app: MakeApp, world: Path, url: str = "sqlite:///bad.db", **options: Any) -> Books:
    return Books(make_app(url, namespace="books"), world, **options)


# ---------------------------------------------------------------- C12, C13: what was acknowledged is there


def test_a_task_that_was_accepted_is_there_after_a_kill_before_its_first_step(
    make_app: MakeApp, world: Path, place: Place
) -> None:
    """C12: `start` returns only once the task is durable; what a new process finds is a task that is ready to run."""
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from bad_ground import Clock; from durable_child import Books\n"
        "from doubtless import Doubtless\n"
        "app = Doubtless(sys.argv[3], clock=Clock(), namespace='books')\n"
        "app.start(Books(app, Path(sys.argv[2])).task, 'b1'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = nursery.run(
        [sys.executable, "-c", program, str(CHILD.parent), str(world), place.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    books = books_of(make_app, world, place.url)
    assert [(head.task_id, head.status) for head in books.app.tasks()] == [("b1", "ready")]
    assert books.app.resume_all() == {"b1": "done"}
    assert len(books.lines()) == 5


def test_all_five_steps_are_there_after_a_kill(make_app: MakeApp, world: Path, place: Place, clock: Clock) -> None:
    """C13: nothing is flushed on close only; after SIGKILL the log holds all that was recorded, and none is done again."""
    killed("die_after_five", world, place.url)
    clock.advance("PT1H")  # its lease, where a lease says who is alive
    books = books_of(make_app, world, place.url)
    settled = [row.path for row in books.app.store.rows("b1") if row.kind == "StepSettled"]
    assert settled == ["1", "2", "3", "4", "5"]
    assert books.app.verify() == []

    @books.app.step(effect="read")
    def rest() -> int:
        return 0

    @books.app.task(name="keep_books_and_rest")
    def keep() -> int:
        return sum(books.book(number=number)["number"] for number in range(1, 6)) + rest()

    assert books.app.run(keep, "b1") == 15
    assert len(books.lines()) == 5


def test_a_task_without_events_is_reported_as_damage_and_not_as_empty(make_app: MakeApp, world: Path, place: Place) -> None:
    """C13: a head row whose log is gone is no task that has not begun."""
    books = books_of(make_app, world, place.url)
    books.app.run(books.task, "b1")
    books.app.close()
    place.tamper("DELETE FROM events WHERE task_id = 'b1'")
    said = [problem.what for problem in books_of(make_app, world, place.url).app.verify()]
    assert "the head has no log" in said


# ---------------------------------------------------------------- C14: torn writes, full disks


def test_a_log_cut_at_any_byte_of_its_last_row_keeps_exactly_the_whole_rows(
    make_app: MakeApp, world: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14: a torn tail is no row; what was whole stays, and the write whose row is torn away is not sent again."""
    killed("die_with_the_whole_log_in_the_wal", world)
    wal = folder / "bad.db-wal"
    whole = read_rows(folder)
    assert [row.kind for row in whole][-1] == "StepIntended"
    frame = 24 + 4096
    size = wal.stat().st_size
    intended = books_of(make_app, world)
    intended.app.close()
    seen = set()
    for cut in [*range(1, frame, 331), frame - 1, frame]:
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(folder, copy)
        os.truncate(copy / "bad.db-wal", size - cut)
        rows = read_rows(copy)
        assert rows == whole[: len(rows)]
        assert len(whole) - len(rows) == 1
        seen.add(len(rows))
        shutil.rmtree(copy)
    assert len(seen) == 1


def read_rows(folder: Path) -> list[Any]:
    app = Doubtless(f"sqlite:///{folder}/bad.db", clock=Clock(), read_only=True)
    try:
        return app.store.rows("b1")
    finally:
        app.close()


def test_a_torn_intent_means_that_nothing_was_called_and_an_untorn_one_that_it_is_in_doubt(
    make_app: MakeApp, world: Path
) -> None:
    """C14: after the kill in the third call the intent stands; the look-back finds the effect and nothing is sent twice."""
    killed("die_with_the_whole_log_in_the_wal", world)
    assert len(Books(make_app(), world).lines()) == 3
    books = books_of(make_app, world, steps=3)
    assert books.app.run(books.task, "b1") == 6
    assert len(books.lines()) == 3
    assert books.app.verify() == []


def test_when_the_intent_does_not_fit_on_the_disk_nothing_is_called_and_later_it_goes_on(
    make_app: MakeApp, world: Path, place: Place
) -> None:
    """C14: a failed append stops the writer, with no further effect; once space is free two more appends follow whole."""
    books = books_of(make_app, world, place.url)
    store = books.app.store
    books.app.start(books.task, "b1")

    def fill(number: int) -> None:
        if number == 2:
            append = store.append

            def full(events: Any, **options: Any) -> None:
                if any(event.kind == "StepIntended" for event in events):
                    raise StoreUnavailable("the disk is full", hint="free space", written=False)
                append(events, **options)

            store.append = full  # type: ignore[method-assign]

    books.after = fill
    with pytest.raises(StoreUnavailable):
        books.app.resume("b1")
    assert len(books.lines()) == 2
    del store.append
    books.after = lambda number: None
    assert books.app.resume("b1") == 15
    assert len(books.lines()) == 5
    assert books.app.verify() == []


def test_a_file_that_may_not_grow_takes_no_half_of_anything(make_app: MakeApp, world: Path) -> None:
    """C14: with the page limit at every size from the present one on, each run stops whole, and the last one is done."""
    books = books_of(make_app, world)
    store = books.app.store
    books.app.start(books.task, "b1")

    @books.app.step(effect="read")
    def big(number: int) -> str:
        return str(number) * 6000

    @books.app.task
    def grow() -> int:
        return sum(len(big(number=number)) for number in range(1, 9))

    books.app.start(grow, "g1")
    stops = 0
    for room in range(30):
        store.limit_pages(store.pages() + room)
        try:
            assert books.app.resume("g1") == 8 * 6000
            break
        except StoreUnavailable:
            stops += 1
            assert books.app.verify() == []
    assert stops >= 1
    store.limit_pages(None)
    assert books.app.resume("g1") == 8 * 6000
    assert books.app.verify() == []


# ---------------------------------------------------------------- C18: no healing by forgetting


def test_a_damaged_log_fails_closed_and_its_open_intents_can_still_be_listed(
    make_app: MakeApp, world: Path, folder: Path
) -> None:
    """C18: two open intents, then damage: no fresh file is put in its place; `recover` lists both, and changes nothing."""
    killed("die_in_two_intents", world)
    books_of(make_app, world).app.store.info()  # opened and closed once: all of it is in the file now
    raw = apsw.Connection("bad.db")
    raw.pragma("wal_checkpoint(truncate)")
    pages = raw.pragma("page_count")
    raw.close()
    os.truncate(folder / "bad.db", (pages - 1) * 4096)
    before = {name: what for name, what in everything(folder).items() if not name.endswith("-shm")}
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="doubtless recover"):
            books_of(make_app, world).app.store.info()
    with pytest.raises(StoreDamaged) as damage:
        recover(str(folder / "bad.db"), clock=Clock().now, accept=False)
    assert damage.value.context["intents"] == ["tell-1 1 announce", "tell-2 1 announce"]
    after = everything(folder)
    assert {name: what for name, what in after.items() if name in before} == before
    assert sorted(after.keys() - before.keys() - {"bad.db-shm", "bad.db-wal"}) == []


def test_two_open_intents_are_two_doubts_for_whoever_comes_next(
    make_app: MakeApp, world: Path, place: Place, clock: Clock
) -> None:
    """C18: with the file whole, what was in flight at the kill is in the inbox at once, and nothing is sent again."""
    killed("die_in_two_intents", world, place.url)
    clock.advance("PT1H")
    books = books_of(make_app, world, place.url)
    assert sorted((doubt.task_id, doubt.step) for doubt in books.app.inbox().doubts) == [
        ("tell-1", "announce"),
        ("tell-2", "announce"),
    ]
    assert {why.split(":")[0] for why in books.app.resume_all().values()} == {"needs_human"}
    assert len(books.app.inbox().cases) == 2
    assert len(books.lines()) == 2


# ---------------------------------------------------------------- C20: a restored backup


@pytest.fixture
def restored(make_app: MakeApp, world: Path, place: Place) -> Books:
    """A store that was put back to a moment before two tasks of which the world knows."""
    books = books_of(make_app, world, place.url)
    books.app.run(books.tell, "tell-1", number=1)
    books.app.close()
    place.back_up()
    books.app.run(books.task, "b1")
    books.app.run(books.tell, "tell-2", number=2)
    books.app.close()
    place.put_back()
    return books


def test_a_restored_backup_is_noticed_by_the_mark_and_refused(
    restored: Books, make_app: MakeApp, world: Path, folder: Path, place: Place
) -> None:
    """C20: the high-water mark outside of the database shows that the log knows less than was done."""
    before = everything(folder)
    with pytest.raises(StoreSuspect, match=rf"doubtless recover --accept --by NAME --why TEXT --store {place.shown}"):
        books_of(make_app, world, place.url).app.resume("b1")
    assert {name: what for name, what in everything(folder).items() if name in before} == before
    assert len(restored.lines()) == 7


def test_in_suspect_mode_a_write_that_the_log_does_not_know_is_looked_up_and_not_sent(
    restored: Books, make_app: MakeApp, world: Path, place: Place
) -> None:
    """C20: every write beyond the recovered mark passes the look-back; the lost results are found again, one each."""
    place.accept()
    books = books_of(make_app, world, place.url)
    assert books.app.run(books.task, "b1") == 15
    assert len(books.lines()) == 7
    steps = books.app.show("b1").steps
    assert {step.settled_by for step in steps} == {"the look-back found it"}
    assert [step.calls for step in steps] == [0] * 5


def test_in_suspect_mode_a_write_that_nobody_can_be_asked_about_is_a_case(
    restored: Books, make_app: MakeApp, world: Path, place: Place
) -> None:
    """C20: without a query only a person knows; what was known before the backup is answered from the log."""
    place.accept()
    books = books_of(make_app, world, place.url)
    assert books.app.run(books.tell, "tell-1", number=1) == {"number": 1}
    with pytest.raises(NeedsHuman):
        books.app.run(books.tell, "tell-2", number=2)
    (case,) = books.app.inbox().cases
    assert case.evidence["attempts"][0]["code"] == "suspect"
    books.app.settle(case.id, Happened({"number": 2}), by="ann", why="it is in the chat", shown=case.hash)
    assert books.app.run(books.tell, "tell-2", number=2) == {"number": 2}
    assert books.lines().count("announced 2") == 1


def test_in_suspect_mode_a_key_that_may_be_old_protects_nothing(
    restored: Books, make_app: MakeApp, world: Path, place: Place
) -> None:
    """C20: an idem_write whose first send may lie before the backup counts as past its key window: a person is asked."""
    place.accept()
    app = make_app(place.url, namespace="books")
    sent: list[str] = []

    @app.step(effect="idem_write")
    def put(value: int, idempotency_key: str = injected()) -> dict[str, int]:
        sent.append(idempotency_key)
        return {"value": value}

    @app.task
    def put_it() -> dict[str, int]:
        return put(value=1)

    with pytest.raises(NeedsHuman):
        app.run(put_it, "p1")
    assert sent == []


@pytest.mark.parametrize("even_now", [False, True])
def test_what_a_person_said_before_the_backup_is_not_done_a_second_time_after_it(
    make_app: MakeApp, place: Place, even_now: bool
) -> None:
    """C20: `did_not_happen("retry")` is in the backup, and acted after it was made: restored, it is asked again, not sent."""
    sent: list[int] = []

    def app_of() -> tuple[Doubtless, Any]:
        app = make_app(place.url, namespace="books")

        @app.step(effect="non_idem_write")
        def announce(number: int) -> dict[str, int]:
            sent.append(number)
            if len(sent) == 1:
                raise ConnectionResetError
            return {"number": number}

        @app.task
        def tell(number: int) -> dict[str, int]:
            return announce(number=number)

        return app, tell

    app, tell = app_of()
    with pytest.raises(NeedsHuman):
        app.run(tell, "tell-1", number=1)
    (case,) = app.inbox().cases
    app.settle(case.id, DidNotHappen("retry", even_now=even_now), by="ann", why="not in the chat", shown=case.hash)
    app.close()
    place.back_up()
    assert app.run(tell, "tell-1", number=1) == {"number": 1}
    app.close()
    place.put_back()
    place.accept()
    app, tell = app_of()
    with pytest.raises(NeedsHuman):
        app.run(tell, "tell-1", number=1)
    assert sent == [1, 1]
    (case,) = app.inbox().cases
    assert [each["code"] for each in case.evidence["attempts"]] == ["ConnectionResetError", "suspect"]


def test_suspect_mode_lasts_until_a_person_ends_it(restored: Books, make_app: MakeApp, world: Path, place: Place) -> None:
    """C20: a new task is as suspect as an old one, since its id may have been used before the backup was put back."""
    place.accept()
    books = books_of(make_app, world, place.url)
    with pytest.raises(NeedsHuman):
        books.app.run(books.tell, "tell-3", number=3)
    books.app.store.end_suspect(by="ann", why="all tasks of that day were checked")  # type: ignore[attr-defined]
    books.app.close()
    assert books.app.run(books.tell, "tell-4", number=4) == {"number": 4}
    kinds = [row.kind for row in books.app.store.rows("$store")]
    assert kinds == ["StoreRecovered", "StoreRecovered"]
    assert books.app.verify() == []
