"""C11: a result and the snapshot after it are two commits. Killed between them, in either order, nothing is lost or done again."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from snapshot_ground import Ground, expected, once_each

from doubtless.events import row_hash, seal
from doubtless.snapshots import snapshot_of
from doubtless.store.recover import recover
from doubtless.store.sqlite import SqliteStore
from doubtless.taskfold import TaskFold

STEPS = 12

POINTS = ("result:written", "snapshot:before", "snapshot:after")
"""After the commit of a step's result; before the commit of a snapshot; after it."""


def killed(ground: Ground, point: str, skip: int, *, stateful: bool = False) -> bool:
    """Run the task in a process that is killed at this point, after `skip` of them; False: it came to its end before."""
    pid = os.fork()
    if pid == 0:
        try:
            live_until(ground, point, skip, stateful)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def live_until(ground: Ground, point: str, skip: int, stateful: bool) -> None:
    """The life of that process."""
    left = [skip]
    effects = [len(ground.world.counts())]

    def at(here: str) -> None:
        done = sum(ground.world.counts().values())
        if here == "append:after" and done > effects[0]:
            here, effects[0] = "result:written", done
        if here == point:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    app = ground.stateful(every=3, turns=STEPS, hooks=at) if stateful else ground.app(every=3, steps=STEPS, hooks=at)
    out = app.run(app.declared_tasks["converse" if stateful else "reconcile"], task_id="t")
    os._exit(0 if out else 2)


def lives(ground: Ground, rng: random.Random, *, stateful: bool = False) -> None:
    """Kill process after process at points that `rng` draws, until one comes to its end; then look at everything."""
    for _ in range(30):
        if not killed(ground, rng.choice(POINTS), rng.randrange(4), stateful=stateful):
            break
        app = ground.app()
        assert app.verify() == []
        places = {row.event_seq for row in app.store.rows("t")}
        assert {snapshot.event_seq for snapshot in ground.snapshots()} <= places
        assert len(ground.snapshots()) <= 2
        assert max(ground.world.counts().values()) == 1
        app.close()
    app = ground.stateful(every=3, turns=STEPS) if stateful else ground.app(every=3, steps=STEPS)
    value = app.run(app.declared_tasks["converse" if stateful else "reconcile"], task_id="t")
    if stateful:
        assert value == {"turns": STEPS, "sum": STEPS * (STEPS - 1)}
        assert max(ground.world.counts().values()) == 1
    else:
        assert value == expected(STEPS)
        assert ground.world.counts() == once_each(STEPS)
    assert app.verify() == []


@pytest.mark.parametrize("stateful", [False, True], ids=["plain", "state"])
@pytest.mark.parametrize("seed", range(8))
def test_killed_around_its_snapshots_a_task_comes_to_the_same_end_with_each_effect_once(
    ground: Ground, seed: int, stateful: bool
) -> None:
    lives(ground, random.Random(seed), stateful=stateful)


def test_no_snapshot_is_made_between_an_intent_and_its_call_also_where_one_is_due_after_a_kill(ground: Ground) -> None:
    assert killed(ground, "snapshot:before", 2)  # nine steps are settled, and the snapshot of the last three is owed
    last: list[str] = []

    def at(here: str) -> None:
        if here == "snapshot:before":
            last.append(SqliteStore(str(ground.file), clock=ground.clock.now).rows("t")[-1].kind)

    app = ground.app(every=3, steps=STEPS, hooks=at)
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected(STEPS)
    assert last
    assert "StepIntended" not in last


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_seeds_of_kills_around_snapshots(ground: Ground, seed: int) -> None:
    lives(ground, random.Random(1000 + seed), stateful=bool(seed % 2))


@pytest.mark.parametrize("skip", range(3))
def test_killed_between_a_result_and_its_snapshot_the_result_stands_and_the_tail_is_read(
    ground: Ground, begun_at: list[int], skip: int
) -> None:
    assert killed(ground, "snapshot:before", skip)
    kept = [json.loads(snapshot.content)["fold"]["settled"]["paths"] for snapshot in ground.snapshots()]
    assert [len(settled) for settled in kept] == [3, 6][:skip]
    app = ground.app(steps=STEPS)
    begun_at.clear()
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected(STEPS)
    assert begun_at == [([snapshot_place(n) for n in (3, 6)][:skip] or [0])[-1]]
    assert ground.world.counts() == once_each(STEPS)


def snapshot_place(settled: int) -> int:
    """The row at which so many steps are settled: accepted and claimed rows first, a read one row, a write two."""
    return 1 + settled + settled // 2 + CLAIMED


CLAIMED = 1


def test_a_snapshot_of_a_result_that_was_never_written_is_ignored(ground: Ground, begun_at: list[int]) -> None:
    """The other order: the snapshot is there, and the row that it was made at is not (nor is another one in its place)."""
    ground.stopped(ground.app(), at=8)
    app = ground.app()
    store = app.store
    assert isinstance(store, SqliteStore)
    rows = store.rows("t")
    last = rows[-1]
    made = next(row for row in rows if row.path == "7" and row.kind == "StepSettled")
    unwritten = seal(
        [made._replace(path="9", step_seq=9, step_name="look", output_ref="inline:4711")], last.event_seq, row_hash(last)
    )
    fold = TaskFold(lambda path, until: [])
    fold.take([*rows, *unwritten], row_hash(unwritten[0]))
    store.put_snapshot(snapshot_of("t", fold), before=ground.snapshots()[-1].event_seq)
    ghost = fold.seq
    assert ghost == last.event_seq + 1
    assert [problem.what for problem in app.verify()] == [
        f"the snapshot of task t at row {ghost} is ignored: it is ahead of the log; the log has everything"
    ]
    begun_at.clear()
    ground.stopped(app, at=10)
    assert 0 < begun_at[0] < ghost
    app = ground.app()  # meanwhile another row stands where the ghost's would have been
    assert app.verify() == []
    assert app.run(app.declared_tasks["reconcile"], task_id="t") == expected()
    assert ground.world.counts() == once_each()


def test_after_a_restored_backup_a_newer_snapshot_is_ahead_and_ignored(ground: Ground, begun_at: list[int]) -> None:
    """The whole store goes back, and somebody puts the newer cache beside it: it is of a log that is not this one."""
    ground.stopped(ground.app(), at=5)
    backup, older = ground.file.read_bytes(), ground.snapshots()[-1].event_seq
    ground.stopped(ground.app(), at=11)
    newer = ground.snapshots()[-1]
    for name in ("-wal", "-shm", ".mark"):
        Path(str(ground.file) + name).unlink(missing_ok=True)
    ground.file.write_bytes(backup)
    ground.sql("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", newer)
    said = ground.app().verify()
    assert any("it is ahead of the log" in problem.what for problem in said)
    recover(str(ground.file), by="ann", why="restored", clock=ground.clock.now, accept=True)
    begun_at.clear()
    ground.stopped(ground.app(), at=5)
    assert begun_at == [older]
