"""The log of an agent grows with what is new in each turn, not with its history; a resume reads its snapshot and the tail."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from agents_ground import Releases, Script, World, call, rows, turn

from doubtless import Finish, NeedsHuman, State

LARGE = 2_000_000


def bytes_of(row: Any) -> int:
    """A row's own bytes: all its columns."""
    return sum(len(column) if isinstance(column, str | bytes) else 8 for column in row if column is not None)


def steps_with_large_outputs(release: Releases, count: int) -> tuple[Any, list[State]]:
    app = release()

    @app.step(effect="read")
    def fetch(page: int) -> str:
        return "x" * LARGE

    script = Script(*(turn(call("fetch", page=number), memo="m" * 50) for number in range(count)), Finish("done"))
    assert app.run(app.agent("clerk", choose=script, steps=[fetch]), "t1", goal="") == "done"
    return app, script.states


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.prove)])
def test_the_log_of_steps_with_large_outputs_grows_linearly_and_the_same_content_is_stored_once(
    release: Releases, tmp_path: Path, count: int
) -> None:
    app, states = steps_with_large_outputs(release, count)
    log = [bytes_of(row) for row in rows(app, "t1")]
    assert len(log) <= 2 * count + 5
    assert max(log) < 4096
    assert sum(log) < 2000 * count
    half, whole = sum(log[: len(log) // 2]), sum(log)
    assert whole < 2.2 * half, "the second half is no larger than the first one"
    content = [Path(folder) / file for folder, _, files in os.walk(tmp_path) for file in files if not file.startswith("agents.db")]
    assert [file.stat().st_size for file in content if file.stat().st_size >= LARGE] == [LARGE + 2]
    assert max(len(json.dumps([state.turns, state.facts])) for state in states) < 150_000
    app.close()
    database = tmp_path / "agents.db"
    assert database.stat().st_size <= max(1 << 20, 2000 * count), "the whole database, its snapshots included"


def endless(world: World, count: int, snapshot_every: int | None, release: Releases, task_id: str = "t1") -> tuple[Any, Any, Script]:
    """An agent of so many turns that then stands before a person."""
    app = release()
    script = Script(
        *(turn(call("look", f"c{number}", day=str(number))) for number in range(count)), turn(call("send", "s", to="anna")), Finish("done")
    )
    world.lose.add("anna")
    agent = app.agent("clerk", choose=script, steps=["look", "send"], snapshot_every=snapshot_every)
    with pytest.raises(NeedsHuman):
        app.run(agent, task_id, goal="")
    return app, agent, script


def read_at_resume(release: Releases, world: World, count: int, snapshot_every: int | None, task_id: str) -> tuple[int, State]:
    """How many rows a resume in a new process reads, and the state that its model is shown then."""
    from agents_ground import answer

    from doubtless import Happened

    _, _, script = endless(world, count, snapshot_every, release, task_id)
    app = release()
    answer(app, Happened({"id": 1}))
    later = Script(*script.lines)
    agent = app.agent("clerk", choose=later, steps=["look", "send"], snapshot_every=snapshot_every)
    read = [0]
    outline = app.store.outline

    def counted(*args: Any, **kwargs: Any) -> Any:
        found = list(outline(*args, **kwargs))
        read[0] += len(found)
        return found

    app.store.outline = counted  # type: ignore[method-assign]
    assert app.run(agent, task_id, goal="") == "done"
    assert later.asked == [count + 1]
    return read[0], later.states[0]


def test_a_resume_reads_its_snapshot_and_the_tail_however_long_the_history_is(release: Releases, world: World) -> None:
    short, _ = read_at_resume(release, world, 30, 10, "short")
    long, _ = read_at_resume(release, world, 120, 10, "long")
    assert short <= 30
    assert long <= 30, "and not the 240 rows of its history"
    whole, _ = read_at_resume(release, world, 120, None, "whole")
    assert whole > 240


def test_the_state_from_a_snapshot_is_the_state_from_zero(release: Releases, world: World) -> None:
    _, with_it = read_at_resume(release, world, 75, 10, "with")
    _, without = read_at_resume(release, world, 75, None, "without")
    assert with_it.earlier is not None
    assert without.earlier is not None
    assert with_it.earlier["ref"] == "facts:with:1-56"
    assert [with_it.turns, with_it.facts, with_it.choices, with_it.cost] == [
        without.turns, without.facts, without.choices, without.cost
    ]  # fmt: skip
    assert {**with_it.earlier, "ref": ""} == {**without.earlier, "ref": ""}
    assert with_it.cost == 75


@pytest.mark.prove
def test_an_agent_of_two_thousand_steps_resumes_as_fast_as_one_of_a_hundred(release: Releases) -> None:
    def standing(count: int) -> str:
        """A task that stands where its budget ends, so that each resume goes the whole way and asks nothing."""
        script = Script(*(turn(call("look", day=str(number))) for number in range(count)))
        app = release()
        with pytest.raises(NeedsHuman):
            app.run(app.agent("clerk", choose=script, steps=["look"], max_choices=count), f"t{count}", goal="")
        return f"t{count}"

    def resume(task_id: str, count: int) -> float:
        app = release()
        agent = app.agent("clerk", choose=Script(), steps=["look"], max_choices=count)
        app.tasks()
        app.tools(["look"])
        begun = time.process_time()
        with pytest.raises(NeedsHuman):
            app.run(agent, task_id, goal="")
        return time.process_time() - begun

    short, long = standing(100), standing(2000)
    times = [(resume(short, 100), resume(long, 2000)) for _ in range(15)]
    assert min(slow for _, slow in times) < 1.5 * min(fast for fast, _ in times)
