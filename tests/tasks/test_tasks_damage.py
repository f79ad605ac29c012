"""Damage in a task's log is told before anything is sent or written because of it; the claim is given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tasks_ground import migrated

from doubtless import Doubtless, DoubtlessError, NeedsHuman, StoreDamaged, TaskFrozen, UnknownTask, injected
from doubtless.events import Event, Kind, draft
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock, Killed, harness
from doubtless.worker import Worker

PATIENCE = 20.0
Make = Callable[[], Doubtless]


class Shop:
    """What the programs of this file share: the effects, and whether the next reply is lost."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.lost = False
        self.looked = 0
        self.sent = threading.Event()

    def declare(self, app: Doubtless) -> Any:
        @app.step(effect="read")
        def price(item: str) -> int:
            return 500

        @app.step(effect="read")
        def stock(item: str) -> int:
            self.looked += 1
            if self.looked == 1:
                raise KeyboardInterrupt
            return 7

        @app.task
        def look(item: str) -> int:
            return price(item=item) + stock(item=item)

        @app.task
        def count(item: str) -> int:
            found = price(item=item)
            self.looked += 1
            if self.looked == 1:
                raise KeyboardInterrupt
            return {500: 1}[found]

        @app.step(effect="non_idem_write")
        def pay(amount: int, idempotency_key: str = injected()) -> dict[str, int]:
            self.paid.append(amount)
            self.sent.set()
            if self.lost:
                raise ConnectionResetError("the reply was lost")
            return {"receipt": len(self.paid)}

        @app.task
        def buy(item: str) -> int:
            return pay(amount=price(item=item))["receipt"]

        return buy


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def make(tmp_path: Path, shop: Shop) -> Iterator[Make]:
    """Makes the app as another process has it."""
    made: list[Doubtless] = []

    def app() -> Doubtless:
        made.append(Doubtless(f"sqlite:///{tmp_path / 'shop.db'}", clock=FakeClock(), namespace="tests"))
        shop.declare(made[-1])
        return made[-1]

    yield app
    for one in made:
        one.close()


@pytest.fixture
def spoil(tmp_path: Path) -> Callable[[str], None]:
    def run(statement: str) -> None:
        db = apsw.Connection(str(tmp_path / "shop.db"))
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
        assert db.changes()
        for _, sql in triggers:
            db.execute(sql)
        db.close()

    return run


def test_a_changed_path_does_not_let_a_write_in_doubt_be_sent_a_second_time(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    shop.lost = True
    with pytest.raises(NeedsHuman):
        first.run(first.declared_tasks["buy"], "t-1", item="tea")
    first.close()
    spoil("UPDATE events SET path = '7' WHERE path = '2'")
    second = make()
    for _ in range(2):  # and the claim was given back
        with pytest.raises(StoreDamaged, match="not what was written"):
            second.resume("t-1")
    assert shop.paid == [500]


def test_nothing_is_sent_because_of_a_changed_output(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    first.freeze("pay", why="an incident", by="ann")
    with pytest.raises(TaskFrozen):
        first.run(first.declared_tasks["buy"], "t-1", item="tea")
    first.thaw("pay", by="ann", why="over")
    first.close()
    spoil(f"UPDATE events SET output_ref = 'inline:900' WHERE path = '1' AND kind = '{Kind.STEP_SETTLED}'")
    second = make()
    rows = second.store.head("t-1")
    with pytest.raises(StoreDamaged):
        second.run(second.declared_tasks["buy"], "t-1", item="tea")
    assert shop.paid == []
    assert rows is not None
    assert {problem.where for problem in second.verify()} == {"t-1"}


def test_nothing_is_read_because_of_a_changed_output(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    with pytest.raises(KeyboardInterrupt):
        first.run(first.declared_tasks["look"], "t-1", item="tea")
    first.close()
    spoil(f"UPDATE events SET output_ref = 'inline:900' WHERE path = '1' AND kind = '{Kind.STEP_SETTLED}'")
    with pytest.raises(StoreDamaged):
        make().resume("t-1")
    assert shop.looked == 1


def test_no_case_is_opened_for_the_error_that_task_code_makes_of_a_damaged_output(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    with pytest.raises(KeyboardInterrupt):
        first.run(first.declared_tasks["count"], "t-1", item="tea")
    first.close()
    spoil(f"UPDATE events SET output_ref = 'inline:900' WHERE path = '1' AND kind = '{Kind.STEP_SETTLED}'")
    second = make()
    with pytest.raises(StoreDamaged):
        second.run(second.declared_tasks["count"], "t-1", item="tea")
    assert second.store.cases(settled=True) == []


def test_a_task_that_ended_gives_its_output_only_where_its_last_row_is_what_was_written(
    make: Make, spoil: Any, shop: Shop
) -> None:
    first = make()
    assert first.run(first.declared_tasks["buy"], "t-1", item="tea") == 1
    first.close()
    spoil(f"UPDATE events SET output_ref = 'inline:2' WHERE kind = '{Kind.TASK_ENDED}'")
    second = make()
    with pytest.raises(StoreDamaged):
        second.run(second.declared_tasks["buy"], "t-1", item="tea")
    with pytest.raises(StoreDamaged):
        second.show("t-1")


def test_a_claim_that_only_replays_reads_no_chain_and_one_that_does_more_reads_it_once(
    make: Make, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    first.freeze("pay", why="an incident", by="ann")
    with pytest.raises(TaskFrozen):
        first.run(first.declared_tasks["buy"], "t-1", item="tea")
    first.thaw("pay", by="ann", why="over")
    first.close()
    second, checked = make(), []
    check = second.store.check_chain
    monkeypatch.setattr(second.store, "check_chain", lambda *args, **more: (checked.append(shop.paid[:]), check(*args, **more)))
    assert second.run(second.declared_tasks["buy"], "t-1", item="tea") == 1
    assert checked == [[]], "once, and before the write"


def test_a_worker_says_that_a_task_is_damaged_leaves_it_alone_for_a_while_and_runs_the_others(
    make: Make, spoil: Any, shop: Shop
) -> None:
    first = make()
    for task_id in ("t-1", "t-2"):
        first.start(first.declared_tasks["buy"], task_id, item="tea")
    first.close()
    spoil("UPDATE events SET boot_at = boot_at + 1 WHERE task_id = 't-1'")
    second, said = make(), []
    worker = Worker(second, concurrency=1, say=said.append)
    with worker:
        assert shop.sent.wait(PATIENCE)
    head = second.store.head("t-1")
    assert head is not None
    worker._stop.clear()
    assert worker._begin(head, {}, None) == 0
    worker._damaged["t-1"] -= 61  # as if it had been found a minute earlier
    assert not worker._is_damaged("t-1")
    assert len(said) == 1
    assert "StoreDamaged: task t-1" in said[0]
    assert second.run(second.declared_tasks["buy"], "t-2", item="tea") == 1
    assert shop.paid == [500]
    assert any(isinstance(error, StoreDamaged) for error in worker.errors)


def test_damaged_data_of_a_row_is_damage_and_no_other_error() -> None:
    for text in ('{"policy":', "[1]", "7", '{"a":1e9999}x'):
        row = draft("t-1", Kind.STEP_INTENDED, FakeClock().now(), status="uncertain")._replace(event_seq=3, data=text)
        assert isinstance(row, Event)
        with pytest.raises(StoreDamaged, match="row 3 of its log is damaged") as caught:
            _ = row.details
        assert caught.value.hint


@pytest.mark.parametrize(
    "ref",
    ["", "inline:", "inline:{", 'inline:{"$map":1}', "inline:\ud800", "sha256:", "sha256:00", "sha256:" + "0" * 64, "facts:", "facts::1-2",
     "facts:t-1:1-", "facts:t-1:9" + "9" * 99 + "-1", "facts:t-1:²-3", "\x00", "x" * 100_000, None, 7, b"inline:1"],
)  # fmt: skip
def test_whatever_is_asked_for_as_content_is_given_or_refused_with_a_hint(make: Make, ref: Any) -> None:
    app = make()
    with pytest.raises(DoubtlessError) as caught:
        app.content(ref)
    assert caught.value.hint
    assert len(caught.value.message) < 500
    with pytest.raises(UnknownTask):
        app.content("facts:t-1:1-2")


def test_a_write_whose_owner_died_in_resume_all_is_in_the_inbox_before_anybody_takes_the_task_over(tmp_path: Path, shop: Shop) -> None:
    app = Doubtless("sqlite:///elsewhere.db")
    buy = shop.declare(app)
    with harness(app, tmp_path) as ground:
        app.start(buy, "t-1", item="tea")
        ground.kill("pay", after="effect")
        with pytest.raises(Killed):
            app.resume_all()
        assert shop.paid == [500]
        (doubt,) = app.inbox().doubts
        assert (doubt.task_id, doubt.step) == ("t-1", "pay")
        assert "its owner died" in doubt.why


def test_a_task_whose_log_is_damaged_is_in_the_inbox_and_hides_no_other(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    shop.lost = True
    for task_id in ("t-1", "t-2"):
        with pytest.raises(NeedsHuman):
            first.run(first.declared_tasks["buy"], task_id, item="tea")
    first.close()
    spoil("UPDATE events SET attempt = 7 WHERE task_id = 't-1' AND path = '2' AND attempt = 1")
    inbox = make().inbox()
    assert {case.task_id for case in inbox.cases} == {"t-1", "t-2"}
    (doubt,) = inbox.doubts
    assert doubt.task_id == "t-1"
    assert "damaged" in doubt.why


def test_a_task_whose_rows_are_gone_is_told_as_damaged_when_it_is_shown(tmp_path: Path) -> None:
    app = Doubtless(f"sqlite:///{tmp_path / 'gone.db'}")

    @app.task
    def nothing() -> int:
        return 1

    assert app.run(nothing, "t") == 1
    db = app.store._link._connection  # type: ignore[attr-defined]
    db.execute("DROP TRIGGER events_no_delete")
    db.execute("DELETE FROM events WHERE task_id = 't'")
    with pytest.raises(StoreDamaged):
        app.show("t")
    app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def living(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Doubtless, Callable[[int], None]]]:
    """A process that runs, and what deletes a task's rows from a place on behind it."""
    url = f"sqlite:///{tmp_path / 'behind.db'}" if request.param == "sqlite" else migrated(request, tmp_path)
    app = Doubtless(url, clock=FakeClock(), namespace="tests")

    def delete(place: int) -> None:
        if isinstance(app.store, PostgresStore):
            with psycopg.connect(app.store.place.conninfo, autocommit=True) as db:
                events = f'"{app.store.place.schema}".events'
                db.execute(f"ALTER TABLE {events} DISABLE TRIGGER ALL".encode())
                db.execute(f"DELETE FROM {events} WHERE event_seq >= {place}".encode())
                for trigger in ("events_append_only", "events_gapless"):
                    db.execute(f"ALTER TABLE {events} ENABLE ALWAYS TRIGGER {trigger}".encode())
            return
        db = apsw.Connection(str(tmp_path / "behind.db"))
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM events WHERE event_seq >= ?", (place,))
        for _, sql in triggers:
            db.execute(sql)
        db.close()

    yield app, delete
    app.close()


@pytest.mark.parametrize("form", ["sync", "async"])
def test_rows_that_are_deleted_behind_a_running_process_are_told_as_damage_and_what_it_did_is_kept(
    living: tuple[Doubtless, Callable[[int], None]], form: str
) -> None:
    """Its next row has no place, and there is nothing newer to take in: it would decide again and again."""
    app, delete = living
    paid: list[int] = []

    def paying(amount: int) -> int:
        paid.append(amount)
        if amount == 2:
            delete(3)
        return amount

    if form == "sync":
        pay = app.step(effect="non_idem_write")(paying)

        @app.task
        def task() -> None:
            for amount in (1, 2, 3):
                pay(amount)
    else:

        @app.step(effect="non_idem_write")
        async def apay(amount: int) -> int:
            return paying(amount)

        @app.task
        async def task() -> None:
            for amount in (1, 2, 3):
                await apay(amount)

    with pytest.raises(StoreDamaged, match="kept in") as damage:
        app.run(task, "t")
    assert "doubtless recover" in (damage.value.hint or "")
    assert paid == [1, 2]
    ((_, spilled),) = app.store.spilled("t")
    assert (spilled.path, spilled.output_ref) == ("2", "inline:2")


def test_rows_that_are_deleted_before_a_write_are_told_as_damage_and_it_is_not_sent(
    living: tuple[Doubtless, Callable[[int], None]],
) -> None:
    app, delete = living
    paid: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    @app.task
    def task() -> None:
        pay(1)
        delete(3)
        pay(2)

    with pytest.raises(StoreDamaged, match="the log ends at row 2"):
        app.run(task, "t")
    assert paid == [1]


def test_a_task_that_has_ended_by_its_head_and_not_by_its_log_is_damaged(make: Make, spoil: Any, shop: Shop) -> None:
    first = make()
    assert first.run(first.declared_tasks["buy"], "t-1", item="tea") == 1
    first.close()
    spoil(f"DELETE FROM events WHERE kind = '{Kind.TASK_ENDED}'")
    second = make()
    with pytest.raises(StoreDamaged):
        second.run(second.declared_tasks["buy"], "t-1", item="tea")


@pytest.mark.parametrize("column", ["step_seq", "status"])
def test_a_value_of_another_type_in_the_log_is_damage_and_no_other_error(
    make: Make, tmp_path: Path, shop: Shop, column: str
) -> None:
    first = make()
    with pytest.raises(KeyboardInterrupt):
        first.run(first.declared_tasks["count"], "t-1", item="tea")
    first.close()
    db = apsw.Connection(str(tmp_path / "shop.db"))  # a flipped bit in a record's header does that; a STRICT table takes it from nobody
    db.execute("DROP TRIGGER events_no_update")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, WITHOUT ROWID', 'WITHOUT ROWID') WHERE name = 'events'")
    db.close()
    db = apsw.Connection(str(tmp_path / "shop.db"))
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute(f"UPDATE events SET {column} = x'00' WHERE path = '1'")
    db.close()
    second = make()
    with pytest.raises(StoreDamaged):
        second.run(second.declared_tasks["count"], "t-1", item="tea")
