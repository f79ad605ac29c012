"""A task with `snapshot_every`: it resumes from the nearest snapshot and the tail, and nothing of it can be told from outside."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import apsw
import pytest
from snapshot_ground import Ground, expected, once_each

from doubtless import Doubtless, StepTableError
from doubtless.snapshots import FORMAT, Snapshot, digest_of
from doubtless.snapshotting import Snapshotting


def test_without_snapshot_every_there_is_no_snapshot(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.app(every=None), at=10)
    assert ground.snapshots() == []
    app = ground.app(every=None)
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert set(begun_at) == {0}


def test_a_resume_begins_at_the_newest_snapshot_and_does_no_effect_again(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.app(), at=10)
    places = [snapshot.event_seq for snapshot in ground.snapshots()]
    begun_at.clear()
    app = ground.app()
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert begun_at == [places[-1]]
    assert ground.world.counts() == once_each()
    assert app.verify() == []


def test_a_snapshot_is_made_each_time_so_many_steps_were_settled_and_the_last_two_stay(ground: Ground) -> None:
    ground.stopped(ground.app(), at=10)
    held = [json.loads(snapshot.content)["fold"] for snapshot in ground.snapshots()]
    assert [len(fold["settled"]["paths"]) for fold in held] == [6, 9]
    assert all(fold["open"] == {} for fold in held)


def test_after_a_resume_the_next_snapshot_stands_on_the_one_before(ground: Ground) -> None:
    ground.stopped(ground.app(), at=7)
    ground.stopped(ground.app(), at=10)
    assert [len(json.loads(s.content)["fold"]["settled"]["paths"]) for s in ground.snapshots()] == [6, 9]
    assert ground.app().verify() == []


def test_a_task_that_has_ended_keeps_no_snapshot(ground: Ground) -> None:
    ground.stopped(ground.app(), at=10)
    assert len(ground.snapshots()) == 2
    app = ground.app()
    app.run(app.declared_tasks["reconcile"], task_id="t")
    assert ground.snapshots() == []


def test_a_task_that_ends_after_all_its_snapshots_were_damaged_leaves_none_for_verify_to_find(ground: Ground) -> None:
    ground.stopped(ground.app(), at=10)
    ground.sql("UPDATE snapshots SET content = 'x'")
    app = ground.app()
    assert len(app.verify()) == 2
    app.run(app.declared_tasks["reconcile"], task_id="t")  # ends before the next one is due
    assert app.verify() == []


def test_what_is_open_when_a_snapshot_is_made_is_read_again_whole(ground: Ground, begun_at: list[int]) -> None:
    """A branch that is under way at that moment is in doubt after the crash, and is not sent again."""
    app, other = ground.app(), ground.app()
    reached = asyncio.Event()
    declare_branches(app, ground, reached)

    async def stopped() -> None:
        running = asyncio.create_task(app.arun(app.declared_tasks["branches"], task_id="b"))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(stopped())
    app.close()
    (snapshot,) = ground.snapshots("b")
    assert list(json.loads(snapshot.content)["fold"]["open"]) == ["1"]
    assert other.verify() == []
    begun_at.clear()
    log = load(other, "b")
    assert begun_at == [snapshot.event_seq]
    assert [record.path for record in log.open_records()] == ["1"]
    assert log.open_records()[0].in_doubt
    assert ground.world.counts()["slow 0"] == 1


def declare_branches(app: Doubtless, ground: Ground, reached: asyncio.Event) -> None:
    @app.step(effect="non_idem_write")
    async def slow(number: int) -> dict[str, Any]:
        ground.world.do("slow", number)
        await asyncio.Event().wait()
        return {}

    @app.step(effect="read")
    async def quick(number: int) -> int:
        return number

    @app.task(snapshot_every=3)
    async def branches() -> None:
        first = slow(0)
        others = [quick(n) for n in range(3)]
        waiting = asyncio.ensure_future(first)
        await asyncio.sleep(0)
        await asyncio.gather(*others)
        reached.set()
        await waiting


def load(app: Doubtless, task_id: str) -> Any:
    """The log's view as the next owner of the task would load it."""
    from doubtless.log import TaskLog
    from doubtless.snapshots import Plan

    store = app.runtime.store
    claim = store.claim(task_id)
    try:
        return TaskLog(store, claim, owner=claim.head.owner, plan=Plan(3))
    finally:
        store.release(task_id, claim.epoch)


# ---------------------------------------------------------------- bad ones


def reseal(ground: Ground, **changes: Any) -> None:
    """Change the newest snapshot, with a digest that is right for what it says now."""
    old = ground.snapshots()[-1]
    new = old._replace(**changes)
    new = new._replace(digest=digest_of(*new[:5]))
    ground.sql("DELETE FROM snapshots WHERE task_id = ? AND event_seq = ?", old[:2])
    ground.sql("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", new)


def forge_state(old: Snapshot) -> str:
    """The content with one output changed: what a wrong cache would make of the task."""
    content = json.loads(old.content)
    content["fold"]["settled"]["outputs"][0] = "inline:4711"
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def damage(ground: Ground) -> None:
    old = ground.snapshots()[-1]
    ground.sql("UPDATE snapshots SET content = ? WHERE event_seq = ?", (forge_state(old), old.event_seq))


def another_task(ground: Ground) -> None:
    ground.stopped(ground.app(), task_id="u", at=10)
    theirs = ground.snapshots("u")[-1]
    ground.sql("DELETE FROM snapshots WHERE task_id = 'u' OR event_seq = ?", (ground.snapshots()[-1].event_seq,))
    ground.sql("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", ("t", *theirs[1:]))


def another_task_resealed(ground: Ground) -> None:
    another_task(ground)
    reseal(ground, task_id="t")


def ahead(ground: Ground) -> None:
    reseal(ground, event_seq=999)


def another_log(ground: Ground) -> None:
    reseal(ground, row_hash=b"x" * 32)


def another_format(ground: Ground) -> None:
    reseal(ground, format=FORMAT + 1)


def at_another_row(ground: Ground) -> None:
    reseal(ground, event_seq=ground.snapshots()[-1].event_seq - 1)


BAD: dict[Callable[[Ground], None], str] = {
    damage: "it is damaged",
    another_task: "it is damaged",
    another_task_resealed: "it was not made of this log",
    ahead: "it is ahead of the log",
    another_log: "it was not made of this log",
    another_format: f"it has format {FORMAT + 1}, and this version makes {FORMAT}",
    at_another_row: "it was not made of this log",
}


@pytest.mark.parametrize("harm", BAD, ids=lambda harm: harm.__name__)
def test_a_bad_snapshot_is_said_by_verify_ignored_by_the_resume_and_made_anew(
    ground: Ground, begun_at: list[int], harm: Callable[[Ground], None]
) -> None:
    ground.stopped(ground.app(), at=10)
    good = ground.snapshots()[0].event_seq
    harm(ground)
    app = ground.app()
    (said,) = app.verify()  # the log itself has nothing
    assert said.where == "snapshots"
    assert "task t " in said.what
    assert BAD[harm] in said.what
    before = ground.world.counts()
    begun_at.clear()
    ground.stopped(app, at=11)
    assert begun_at == [good]
    assert [snapshot.event_seq for snapshot in ground.snapshots()][:1] == [good]
    assert len(ground.snapshots()) == 2
    assert ground.app().verify() == []
    app = ground.app()
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert ground.world.counts() - before == Counter({"look 10": 1, "pay 11": 1})


def test_deleted_snapshots_change_nothing_but_speed(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.app(), at=10)
    app = ground.app()
    assert app.runtime.store.drop_snapshots("other") == 0
    assert app.runtime.store.drop_snapshots() == 2
    assert app.verify() == []
    begun_at.clear()
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert begun_at == [0]
    assert ground.world.counts() == once_each()


def test_a_snapshot_that_holds_something_else_than_the_log_is_found_by_verify(ground: Ground) -> None:
    """Forged whole, digest and all: no resume can see it, the fold of the log can (I9)."""
    ground.stopped(ground.app(), at=10)
    reseal(ground, content=forge_state(ground.snapshots()[-1]))
    (said,) = ground.app().verify()
    assert said.where == "snapshots"
    assert "does not hold what the log says" in said.what


def test_content_that_no_version_can_read_is_ignored(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.app(), at=10)
    for content in ('{"fold":{}}', "[]", "not json", '{"fold":null,"state":1}'):
        reseal(ground, content=content)
        assert len(ground.app().verify()) == 1
        begun_at.clear()
        load(ground.app(), "t")
        assert begun_at == [ground.snapshots()[0].event_seq]


def test_a_field_that_is_not_what_it_should_be_is_ignored(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.app(), at=10)
    content = json.loads(ground.snapshots()[-1].content)
    content["fold"]["cancel"] = 998  # a row that is not there
    reseal(ground, content=json.dumps(content))
    log = load(ground.app(), "t")
    assert begun_at[-1] == 0
    assert len(log.settled) == 10


# ---------------------------------------------------------------- making one fails


def full(point: str) -> None:
    if point == "snapshot:before":
        raise apsw.FullError("database or disk is full")


def test_a_disk_too_full_for_a_snapshot_is_said_and_changes_nothing(ground: Ground, capfd: pytest.CaptureFixture[str]) -> None:
    app = ground.app(hooks=full)
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert ground.snapshots() == []
    assert ground.world.counts() == once_each()
    said = capfd.readouterr().err
    assert said.count("a snapshot of task t was not written") == 1
    assert "its log has everything" in said
    assert app.verify() == []


def test_snapshots_that_cannot_be_read_are_said_and_the_log_is_folded_from_zero(
    ground: Ground, begun_at: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    ground.stopped(ground.app(), at=10)
    ground.sql("ALTER TABLE snapshots RENAME TO gone")
    begun_at.clear()
    app = ground.app()
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert begun_at == [0]
    assert "a snapshot of task t cannot be read" in capfd.readouterr().err


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "20"])
def test_a_snapshot_every_that_is_no_number_of_steps_is_a_fault(every: Any) -> None:
    app = Doubtless("sqlite:////nowhere/at/all.db")

    @app.task(snapshot_every=every)
    def reconcile() -> None: ...

    assert len(app.check()) == 1
    assert "snapshot_every" in app.check()[0]
    with pytest.raises(StepTableError):
        app.run(reconcile, "t")


def test_between_two_snapshots_only_a_few_rows_are_kept_whole_and_the_snapshot_is_the_same(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr("doubtless.snapshotting.MANY", 4)
    saw = Snapshotting.saw

    def counting(self: Snapshotting, *args: Any) -> None:
        saw(self, *args)
        kept.append(len(self.later))

    monkeypatch.setattr(Snapshotting, "saw", counting)
    ground.stopped(ground.app(every=9), at=10)
    assert max(kept) <= 4 < len(kept)
    assert len(ground.snapshots()) == 1
    assert ground.app(every=9).verify() == []


def test_after_a_snapshot_that_could_not_be_made_no_rows_are_kept_for_the_next(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[int] = []
    monkeypatch.setattr("doubtless.snapshotting.MANY", 4)
    saw = Snapshotting.saw

    def counting(self: Snapshotting, *args: Any) -> None:
        saw(self, *args)
        kept.append(len(self.later))

    def broken(self: object, rows: object, digest: bytes) -> None:
        raise KeyError("a fold that cannot be made")

    monkeypatch.setattr(Snapshotting, "saw", counting)
    app = ground.app(every=9)
    monkeypatch.setattr("doubtless.snapshotting.TaskFold.take", broken)
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert kept[-1] == 0 and max(kept) < 4 + 2
    assert capsys.readouterr().err.count("a snapshot of task t cannot be made") == 1
    assert ground.world.counts() == once_each()
