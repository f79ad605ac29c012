"""Task code that keeps a state of its own beside the log, as agents do: it goes on from the state, and reads only the tail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from snapshot_ground import Ground

from doubtless import NeedsHuman
from doubtless.calls import current
from doubtless.events import Kind, draft


def total(turns: int) -> dict[str, int]:
    return {"turns": turns, "sum": sum(n * 2 for n in range(turns))}


def resumed(ground: Ground, app: Any = None, **params: Any) -> Any:
    app = app or ground.stateful()
    return app.run(app.declared_tasks["converse"], task_id="t", **params)


def test_a_resume_goes_on_from_the_state_and_reads_only_the_tail(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.stateful(), "converse", at=17)
    newest = ground.snapshots()[-1]
    state = json.loads(newest.content)["state"]
    assert json.loads(newest.content)["fold"]["settled"]["paths"] == []
    begun_at.clear()
    assert resumed(ground) == total(20)
    assert begun_at == [newest.event_seq]
    assert ground.began == json.loads(state["text"])["turns"] > 10
    assert max(ground.world.counts().values()) == 1
    assert ground.app().verify() == []


def test_a_resume_reads_as_many_rows_after_a_long_history_as_after_a_short_one(ground: Ground, read_rows: list[int]) -> None:
    def rows_read(turns: int) -> tuple[int, int]:
        task = f"t{turns}"
        ground.stopped(ground.stateful(), "converse", task, at=turns, upto=turns + 1)
        (rows,) = ground.sql("SELECT count(*) FROM events WHERE task_id = ?", (task,))[0]
        read_rows.clear()
        app = ground.stateful()
        assert app.run(app.declared_tasks["converse"], task_id=task, upto=turns + 1) == total(turns + 1)
        return rows, sum(read_rows)

    (short, few), (long, as_few) = rows_read(24), rows_read(240)
    assert long > 9 * short
    assert as_few == few < 30


def test_the_state_s_size_is_the_snapshot_s_size_however_long_the_history(ground: Ground) -> None:
    sizes: list[int] = []
    for turns in (24, 240):
        task = f"t{turns}"
        ground.stopped(ground.stateful(), "converse", task, at=turns, upto=turns + 1)
        sizes.append(len(ground.snapshots(task)[-1].content))
    assert sizes[1] - sizes[0] < 20


def test_without_its_snapshots_the_state_is_folded_from_zero_to_the_same(ground: Ground, begun_at: list[int]) -> None:
    ground.stopped(ground.stateful(), "converse", at=17)
    ground.sql("DELETE FROM snapshots")
    begun_at.clear()
    assert resumed(ground) == total(20)
    assert begun_at == [0]
    assert ground.began == 0
    assert max(ground.world.counts().values()) == 1


def test_replay_makes_no_snapshot_of_a_past_that_the_log_has_left_behind(ground: Ground) -> None:
    """C05: a state of turn four at the place of turn seventeen would be a past that never met its future."""
    ground.stopped(ground.stateful(), "converse", at=17)
    ground.sql("DELETE FROM snapshots")
    ground.stopped(ground.stateful(), "converse", at=10)
    assert ground.snapshots() == []
    assert resumed(ground) == total(20)
    assert max(ground.world.counts().values()) == 1


@pytest.mark.parametrize("version", ["tests:2", None])
def test_a_state_of_another_version_of_the_code_is_ignored(ground: Ground, begun_at: list[int], version: str | None) -> None:
    ground.stopped(ground.stateful(), "converse", at=17)
    begun_at.clear()
    if version is None:  # the same task, which keeps no state any more: a plain fold
        app = ground.stateful()
        task = app.declared_tasks["converse"]
        assert task.code.plan is not None
        task.code = task.code._replace(plan=task.code.plan._replace(state=None))
    else:
        app = ground.stateful(version=version)
    assert resumed(ground, app) == total(20)
    assert begun_at == [0]
    assert ground.began == 0
    assert max(ground.world.counts().values()) == 1


def test_news_about_a_place_before_the_snapshot_makes_it_fold_from_zero(ground: Ground, begun_at: list[int]) -> None:
    """A person's retry reopens a step that the state has behind it: the state would not know what comes of it."""
    ground.stopped(ground.stateful(), "converse", at=17)
    app = ground.stateful()
    app.store.add("t", [draft("t", Kind.EVIDENCE_STORED, app.clock.now(), path="2", step_seq=2, step_name="pay", attempt=1,
                              output_ref="inline:1", data={"what": "late_result"})])  # fmt: skip
    begun_at.clear()
    ground.stopped(app, "converse", at=17)
    assert begun_at == [ground.snapshots()[-1].event_seq]  # evidence changes nothing of what replay gives
    reopened = draft(
        "t", Kind.RETRY_ALLOWED, app.clock.now(), path="1", step_seq=1, step_name="look", status="started", data={"by": "ann"}
    )
    app = ground.stateful()
    app.store.add("t", [reopened])
    begun_at.clear()
    ground.stopped(app, "converse", at=17)
    assert begun_at[0] > 0
    assert begun_at[-1] == 0
    assert ground.began == 0


@pytest.mark.parametrize("every", [4, 15], ids=["behind a snapshot", "before the first one"])
def test_news_that_comes_while_it_runs_is_in_no_later_snapshot(ground: Ground, every: int) -> None:
    app = ground.stateful(every=every)
    ground.done_hook = lambda: retry_once(app)
    asked: list[int] = []

    def retry_once(app: Any) -> None:
        if ground.world.counts()["pay 9"] and not asked:
            asked.append(1)
            app.store.add("t", [draft("t", Kind.RETRY_ALLOWED, app.clock.now(), path="1", step_seq=1, step_name="look",
                                      status="started", data={"by": "ann"})])  # fmt: skip

    ground.stopped(app, "converse", at=17)
    (said,) = ground.sql("SELECT event_seq FROM events WHERE task_id = 't' AND kind = 'RetryAllowed'")[0]
    assert asked
    assert bool(ground.snapshots()) == (every == 4)
    assert all(snapshot.event_seq < said for snapshot in ground.snapshots())


def test_drift_after_the_snapshot_is_refused_as_ever(ground: Ground) -> None:
    ground.stopped(ground.stateful(), "converse", at=17)
    app = ground.stateful()
    look, code = app.steps["look"], app.declared_tasks["converse"].code

    def drifted(upto: int = 20) -> Any:
        scope: Any = current.get()
        state = json.loads(scope.run.restored.state)
        return look(number=state["turns"] + 1000)

    app.declared_tasks["converse"].code = code._replace(fn=drifted)
    with pytest.raises(NeedsHuman):
        resumed(ground, app)
    (case,) = app.inbox().cases
    assert case.kind == "diverged"
    assert max(ground.world.counts().values()) == 1


def test_code_that_ends_before_the_tail_does_is_diverged(ground: Ground) -> None:
    ground.stopped(ground.stateful(), "converse", at=17)
    app = ground.stateful()
    code = app.declared_tasks["converse"].code
    app.declared_tasks["converse"].code = code._replace(fn=lambda upto: None)
    with pytest.raises(NeedsHuman):
        resumed(ground, app)
    (case,) = app.inbox().cases
    assert case.kind == "diverged"


def test_a_fork_begins_with_its_own_past_not_with_the_original_s_newest_state(ground: Ground, begun_at: list[int]) -> None:
    """C05: the original's newest snapshot is no state of the fork, which goes another way from an earlier step."""
    ground.stopped(ground.stateful(), "converse", at=17)
    app = ground.stateful()
    forked = app.fork("t", at=4, non_idem_write="reuse", idem_write="reuse")
    begun_at.clear()
    assert app.run(app.declared_tasks["converse"], task_id=forked.id) == total(20)
    assert begun_at[0] == 0
    assert ground.began == 0
    assert all(snapshot.task_id != forked.id for snapshot in ground.snapshots("t"))


def test_a_state_that_cannot_be_made_into_text_is_said_and_the_task_goes_on(
    ground: Ground, capfd: pytest.CaptureFixture[str]
) -> None:
    app = ground.stateful()
    code = app.declared_tasks["converse"].code

    def broken() -> str:
        raise ValueError("no text")

    def converse(upto: int = 20) -> int:
        scope: Any = current.get()
        for number in range(6):
            app.steps["look"](number=number)
            scope.run.snapshot_state(broken)
        return 6

    app.declared_tasks["converse"].code = code._replace(fn=converse)
    assert resumed(ground, app) == 6
    assert "a snapshot of task t cannot be made: no text" in capfd.readouterr().err
