"""Agents resume from the nearest snapshot and the tail: what the model is shown, what it did, and what it costs are the same."""

from __future__ import annotations

from typing import Any

import pytest
from snapshot_ground import Ground

from doubtless import Doubtless, Fail, Finish, NeedsHuman, State, StepCall, TaskFailed, TaskFrozen, Turn


def declared(ground: Ground, turns: int, seen: list[Any], every: int | None = 5) -> tuple[Doubtless, Any]:
    """An agent that looks and pays in turn, `turns` times, then calls `last`; `seen` gets what it was shown."""
    app = ground.app(every=None)

    @app.step(effect="non_idem_write")
    def last(number: int) -> int:
        ground.world.do("last", number)
        return number

    def choose(state: State) -> Any:
        seen.append((state.choices, state.facts, state.turns))
        number = state.choices
        if number > turns:
            return Finish({"choices": number})
        if number == turns:
            return Turn([StepCall("last", {"number": number})])
        return Turn([StepCall("look", {"number": number}), StepCall("pay", {"number": number})], memo={"turn": number})

    return app, app.agent("reconciler", choose=choose, steps=["look", "pay", "last"], snapshot_every=every, max_choices=None)


def stands(ground: Ground, task_id: str, turns: int, every: int | None = 5) -> None:
    """Let the agent come to its frozen step: so far it has chosen, and no further."""
    app, agent = declared(ground, turns, [], every)
    app.freeze("last", why="not yet")
    with pytest.raises(TaskFrozen):
        app.run(agent, task_id, goal="reconcile")
    app.close()


def test_an_agent_goes_on_from_its_snapshot_as_from_zero(ground: Ground, begun_at: list[int]) -> None:
    shown: list[list[Any]] = []
    for task_id, every in (("snapped", 5), ("plain", None), ("deleted", 5)):
        stands(ground, task_id, 12, every)
        if task_id == "deleted":
            assert ground.snapshots(task_id)
            ground.sql("DELETE FROM snapshots WHERE task_id = ?", (task_id,))
        place = [snapshot.event_seq for snapshot in ground.snapshots(task_id)][-1:] or [0]
        seen: list[Any] = []
        app, agent = declared(ground, 12, seen, every)
        app.thaw("last")
        begun_at.clear()
        assert app.run(agent, task_id, goal="reconcile") == {"choices": 13}
        assert begun_at == place
        shown.append(seen)
        assert app.verify() == []
        app.close()
    assert shown[0] == shown[1] == shown[2]
    assert len(shown[0]) == 1  # no choice was asked for again
    assert set(ground.world.counts().values()) == {3}  # once for each of the three agents


def test_an_agent_s_resume_reads_no_more_after_a_long_history(ground: Ground, read_rows: list[int]) -> None:
    """The time is measured by `make bench`; here: the rows that are read, which are what a history could cost."""
    counts: list[int] = []
    for turns in (30, 300):
        stands(ground, f"a{turns}", turns)
        app, agent = declared(ground, turns, [])
        read_rows.clear()
        with pytest.raises(TaskFrozen):
            app.run(agent, f"a{turns}", goal="reconcile")
        counts.append(sum(read_rows))
        app.close()
    assert counts[0] == counts[1] < 20


def test_an_agent_s_snapshot_is_bounded(ground: Ground) -> None:
    stands(ground, "short", 100)
    stands(ground, "long", 300)
    short, long = (max(len(s.content) for s in ground.snapshots(task)) for task in ("short", "long"))
    assert long < short * 1.05


def undoable(ground: Ground, turns: int, lost: int | None = None) -> tuple[Doubtless, Any]:
    """An agent whose every `order` can be withdrawn; after so many turns its model has nothing to say."""
    app = ground.app(every=None)

    @app.step(effect="non_idem_write")
    def withdraw(number: int) -> dict[str, Any]:
        receipt = ground.world.do("withdraw", number)
        if ground.world.counts()[f"withdraw {number}"] > 1:
            raise KeyboardInterrupt  # sent twice: the test ends here
        if number == lost:
            raise ConnectionResetError("the reply was lost")
        return receipt

    @app.step(effect="non_idem_write", compensate=withdraw)
    def order(number: int) -> dict[str, Any]:
        return ground.world.do("order", number)

    def choose(state: State) -> Any:
        if state.choices == turns:
            raise ValueError("the model has nothing to say")
        return Turn([StepCall("order", {"number": state.choices})])

    return app, app.agent("reconciler", choose=choose, steps=["order"], snapshot_every=5, max_choices=None)


def test_an_agent_that_resumes_from_a_snapshot_and_is_failed_undoes_everything_once(ground: Ground, begun_at: list[int]) -> None:
    """What is to be undone is before the snapshot: neither the plan nor the records of it may come from the tail alone."""
    app, agent = undoable(ground, 12)
    with pytest.raises(NeedsHuman) as stopped:
        app.run(agent, "a", goal="reconcile")
    newest = ground.snapshots("a")[-1].event_seq
    app.close()
    app, agent = undoable(ground, 12)
    (case,) = stopped.value.cases
    app.settle(case, Fail(), by="ann", why="enough", shown=app.inbox().cases[0].hash)
    begun_at.clear()
    with pytest.raises(TaskFailed):
        app.run(agent, "a", goal="reconcile")
    assert begun_at[0] == newest
    assert app.show("a").status == "compensated"
    undone = [line for line in ground.world.path.read_text().splitlines() if "withdraw" in line]
    assert undone == [f"withdraw {n}" for n in reversed(range(12))]
    assert app.verify() == []


def test_a_doubt_about_undoing_what_is_before_the_snapshot_is_a_doubt_and_nothing_is_sent_again(ground: Ground) -> None:
    app, agent = undoable(ground, 12)
    with pytest.raises(NeedsHuman) as stopped:
        app.run(agent, "a", goal="reconcile")
    app.close()
    app, agent = undoable(ground, 12, lost=4)
    app.settle(stopped.value.cases[0], Fail(), by="ann", why="enough", shown=app.inbox().cases[0].hash)
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            app.run(agent, "a", goal="reconcile")
    (case,) = app.inbox().cases
    assert case.kind == "compensation"
    assert ground.world.counts()["withdraw 4"] == 1
    assert ground.world.counts()["withdraw 3"] == 0
    assert app.verify() == []


def row_bytes(ground: Ground, task_id: str) -> list[int]:
    """How long each row of the log is, all columns together."""
    rows = ground.sql("SELECT * FROM events WHERE task_id = ?", (task_id,))
    return [sum(len(value) if isinstance(value, str | bytes) else 8 for value in row if value is not None) for row in rows]


@pytest.mark.parametrize("steps", [40, pytest.param(500, marks=pytest.mark.prove)])
def test_an_agent_s_log_grows_with_its_steps_and_holds_large_outputs_once(ground: Ground, steps: int) -> None:
    """C103: outputs of 2 MB leave refs in the log; the same content is stored once."""
    app = ground.app(every=None)
    big = "x" * 2_000_000

    @app.step(effect="read")
    def fetch(number: int) -> str:
        return big

    def choose(state: State) -> Any:
        return Finish(None) if state.choices == steps else Turn([StepCall("fetch", {"number": state.choices})])

    agent = app.agent("reader", choose=choose, steps=["fetch"], snapshot_every=20, max_choices=None)
    app.run(agent, "a", goal="read")
    lengths = row_bytes(ground, "a")
    assert max(lengths) < 4096
    assert sum(lengths) < steps * 2_000  # 500 steps: 1 MB
    content = [file for file in (ground.folder / "recon.db.blobs").rglob("*") if file.is_file()]
    assert len(content) == 1
    assert 2_000_000 <= content[0].stat().st_size < 2_001_000
