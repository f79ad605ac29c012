"""Resuming a task that has so many finished steps, beside reading and decoding the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import psycopg

import doubtless
from floor import read_back
from ground import DIFFERENCE, SHOWN, TASK_ID, Ground, unsynced
from measuring import Turns, held, seconds, take_turns, us
from postgres_floor import read_back as read_back_postgres
from sections import table

LIMIT = 1.5
LESS = (
    ("ours", "without inputs", "… beside less by hand: the inputs are not read"),
    ("ours", "contents only", "… beside less by hand: contents decoded, no steps known"),
    ("anew", "floor", "… in a new process that goes on: the whole chain of the log is checked, too"),
)


def measured(ground: Ground) -> str:
    """A resume with so many finished write steps, with and without snapshots, beside each way by hand, and an agent's."""
    rows = []
    for store in ground.stores:
        for finished, every in ((100, None), (1_000, None), *(() if ground.quick else ((10_000, None), (10_000, 100)))):
            turns = _resume(ground, store, finished, every)
            how = "" if every is None else f", a snapshot every {every}"
            ratio = turns.ratio("ours", "floor")
            limit = held(ratio, LIMIT) if finished == 10_000 and every is None else ""
            name = f"{SHOWN[store]}: {finished:,} finished write steps{how}, per step"
            rows.append([name, f"{turns.median('ours'):.1f}", f"{turns.median('floor'):.1f}", f"{ratio:.2f}", limit])
            if finished == 10_000 and every is None:
                rows += [_beside(turns, *one) for one in LESS]
    short, long = (100, 400) if ground.quick else (100, 2_000)
    turns = _agent(ground, short, long)
    ratio = turns.ratio("ours", "floor")
    rows.append([f"SQLite: an agent after {long:,} choices, against after {short:,} (as the floor)", us(turns.median("ours")),
                 us(turns.median("floor")), f"{ratio:.2f}", held(ratio, 1.5)])  # fmt: skip
    return table(["", "µs", "floor, µs", "ratio", "limit"], rows)


def _resume(ground: Ground, store: str, finished: int, every: int | None) -> Turns:
    app, step = ground.app(store)
    app.store.info()
    unsynced(app)
    app.freeze("notify", why="the task stands here: it is resumed again and again")

    @app.task(snapshot_every=every)
    def many(steps: int) -> None:
        for i in range(steps):
            step["write"](difference=DIFFERENCE, amount=i)
        step["notify"](text="done")

    def run() -> None:
        try:
            app.run(many, TASK_ID, steps=finished)
        except doubtless.TaskFrozen:
            return
        raise AssertionError("the task went past the frozen step")

    run()
    back = _read_back(ground, store, app)

    def by_hand() -> None:
        assert back() == finished

    def anew() -> None:
        app.store._chained.clear()  # type: ignore[attr-defined]  # what a new process does not know
        run()

    works = {
        "ours": lambda: seconds(run) / finished * 1e6,
        "floor": lambda: seconds(by_hand) / finished * 1e6,
    }
    if finished == 10_000 and every is None:
        works["without inputs"] = lambda: seconds(lambda: back("without inputs")) / finished * 1e6
        works["contents only"] = lambda: seconds(lambda: back("contents only")) / finished * 1e6
        works["anew"] = lambda: seconds(anew) / finished * 1e6
    turns = take_turns(works, 5 if ground.quick else {100: 41, 1_000: 31}.get(finished, 15))
    app.close()
    return turns


def _beside(turns: Turns, ours: str, floor: str, name: str) -> list[str]:
    return [name, f"{turns.median(ours):.1f}", f"{turns.median(floor):.1f}", f"{turns.ratio(ours, floor):.2f}", ""]


def _read_back(ground: Ground, store: str, app: Any) -> Callable[..., int]:
    if store == "sqlite":
        reader = apsw.Connection(app.store.path)
        return lambda way="whole": read_back(reader, TASK_ID, way)
    assert ground.cluster is not None
    connection = psycopg.connect(ground.cluster.plain, autocommit=True, cursor_factory=psycopg.RawCursor)
    return lambda way="whole": read_back_postgres(connection, app.store.place.schema, TASK_ID, way)


def _agent(ground: Ground, short: int, long: int) -> Turns:
    """Resuming an agent after a long history, against after a short one: from its snapshot, whole, in turn."""
    app, _ = ground.app("sqlite")
    app.store.info()
    unsynced(app)
    app.freeze("notify", why="the agent stands here: it is resumed again and again")
    history = short

    def choose(state: doubtless.State) -> doubtless.Turn:
        if state.choices >= history:
            return doubtless.Turn([doubtless.StepCall("notify", {"text": "done"})])
        return doubtless.Turn([doubtless.StepCall("match_orders", {"difference": {}, "amount": state.choices})])

    agent = app.agent("agent", choose=choose, steps=["match_orders", "notify"], max_choices=None, snapshot_every=20)

    def run(task_id: str) -> None:
        try:
            app.run(agent, task_id, goal="stand before the frozen step")
        except doubtless.TaskFrozen:
            return
        raise AssertionError("the agent went past the frozen step")

    for history in (short, long):
        run(f"after-{history}")
    works = {
        "ours": lambda: seconds(lambda: run(f"after-{long}")) * 1e6,
        "floor": lambda: seconds(lambda: run(f"after-{short}")) * 1e6,
    }
    turns = take_turns(works, 3 if ground.quick else 31)
    app.close()
    return turns
