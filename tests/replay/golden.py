"""Golden logs as files: how a store's log is written as lines of JSON, read into a fresh store, and brought to its end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw
from golden_program import World, answer, build

from doubtless import Doubtless, DoubtlessError
from doubtless.events import COLUMNS, STORE_TASK, TERMINAL, Event, Kind, seal, upcast
from doubtless.fold import fold_steps
from doubtless.store.base import Blob
from doubtless.testing import harness

FOLDER = Path(__file__).parent / "golden"
Lines = list[dict[str, Any]]


# ---------------------------------------------------------------- a row and its JSON


def written(event: Event) -> dict[str, Any]:
    """A row as JSON: its columns by name, those that are empty left out, digests in hex."""
    values = {name: value for name, value in event._asdict().items() if value is not None}
    return {name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in values.items()}


def read(row: dict[str, Any]) -> Event:
    """The row again; of an older format as today's code reads it."""
    values = {name: bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for name, value in row.items()}
    return upcast([values.get(name) for name in COLUMNS])


def dump(lines: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)


# ---------------------------------------------------------------- out of a store


def export(app: Doubtless) -> tuple[list[list[Event]], dict[bytes, bytes]]:
    """All logs of a store, by task, and all content of its database."""
    path = str(app.store.path)  # type: ignore[attr-defined]
    with_sql = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    ids = [task for (task,) in with_sql.execute("SELECT task_id FROM events WHERE event_seq = 1 ORDER BY task_id")]
    blobs = {bytes(digest): bytes(content) for digest, content in with_sql.execute("SELECT digest, content FROM blobs")}
    with_sql.close()
    return [normal(app.store.rows(task)) for task in ids], blobs


def normal(rows: list[Event]) -> list[Event]:
    """The rows without what differs from one making to the next: owners, epochs, boots, tracebacks; chained anew."""
    epochs: dict[int | None, int | None] = {None: None}
    made: list[Event] = []
    traced = any("traceback" in row.details for row in rows)
    for row in rows:
        epochs.setdefault(row.epoch, 1000 + len(epochs))
        data = row.data
        if isinstance(data, str):
            value = json.loads(data)
            for key in {"owner", "was"} & value.keys():
                value[key] = "an-owner"
            if "traceback" in value:  # its frames are those of one release, one Python, one machine
                first, *_, last = value["traceback"].strip().splitlines()
                value["traceback"] = f"{first}\n  (frames)\n{last}\n"
            if traced and "shown" in value:  # a hash over that text
                value["shown"] = "0" * 64
            data = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        made.append(row._replace(epoch=epochs[row.epoch], data=data, boot_at=row.boot_at & ((1 << 47) - 1)))
    return seal(made, 0, None)


# ---------------------------------------------------------------- into a fresh store


def load(lines: Lines, app: Doubtless) -> None:
    """Put the logs into the app's store, which is fresh, by the store's own methods: its projections follow the rows."""
    store = app.store
    store.info()
    blobs = [Blob(bytes.fromhex(line["digest"]), line["content"].encode()) for line in lines if "content" in line]
    rows = [read(line["row"]) for line in lines if "row" in line]
    for task in dict.fromkeys(row.task_id for row in rows):
        first, *rest = [row for row in rows if row.task_id == task]
        if task == STORE_TASK:
            store.add(task, [first, *rest])
            continue
        store.accept(first, blobs)
        blobs = []
        for row in rest:
            store.add(task, [row])


def logs(app: Doubtless) -> list[Event]:
    """All rows of the app's store."""
    ids = [head.task_id for head in app.tasks()]
    return [row for task in [*ids, STORE_TASK] for row in app.store.rows(task)]


# ---------------------------------------------------------------- what comes of it


def folded(app: Doubtless) -> dict[str, Any]:
    """How all tasks stand: status, and of each step name, status, effect class, attempts, input and output as they are shown."""
    result: dict[str, Any] = {}
    for head in app.tasks():
        view = app.show(head.task_id)
        records = fold_steps(app.store.rows(head.task_id))
        steps = {
            step.path: [step.name, str(step.status), str(step.effect), len(records[step.path].attempts), step.params, step.output]
            for step in view.steps
        }
        result[head.task_id] = {"task": head.task_name, "status": str(head.status), "steps": steps, "cases": [c.kind for c in view.cases]}
    return result


def finish(app: Doubtless, world: World) -> dict[str, Any]:
    """Bring every task to its end with today's code: resumed, its cases answered; how each ended, and what was called for it."""
    for _ in range(30):
        waiting = [head for head in app.tasks() if head.status not in TERMINAL and app.knows(head.task_name) and "/" not in head.task_id]
        if not waiting and not app.inbox().cases:
            break
        for frozen in app.store.frozen():
            app.thaw(None if frozen == "*" else frozen)
        for head in waiting:
            try:
                app.resume(head.task_id)
            except DoubtlessError:
                pass  # it stands at a case, or has ended otherwise
        for case in app.inbox().cases:
            app.settle(case.id, answer(case), by="anna", why="golden", shown=case.hash)
    for head in app.tasks():
        if head.status not in TERMINAL and app.store.first(head.task_id).details.get("session"):
            with app.session(head.task_id) as session:
                session.call("create", what="a", call_id="another")
                session.finish({"resumed": True})
    views = [app.show(head.task_id) for head in app.tasks()]
    ends = {view.id: [str(view.status), view.output if view.status == "done" else view.error] for view in views}
    return {"ends": ends, "called": dict(sorted(world.calls.items())), "effects": len(world.effects)}


def replayed(text: str, folder: Path) -> dict[str, Any]:
    """A golden file folded and resumed by today's code: all that its expectation says."""
    lines: Lines = [json.loads(line) for line in text.splitlines()]
    world = World(lines[0]["world"])
    app, _ = build(world)
    os.makedirs(folder, exist_ok=True)
    with harness(app, folder, start=lines[0]["now"]) as h:
        load(lines, app)
        rows = [read(line["row"]) for line in lines if "row" in line]
        assert sorted(logs(app), key=lambda r: (r.task_id, r.event_seq)) == sorted(rows, key=lambda r: (r.task_id, r.event_seq))
        assert app.verify() == []
        before = folded(app)
        end = finish(app, world)
        for row in rows:  # nothing that was logged has changed
            assert app.store.rows(row.task_id)[row.event_seq - 1] == row
        assert app.verify() == []
        if not any(row.kind == Kind.STORE_RECOVERED for row in rows):
            h.assert_quiet()
    return {"folded": before, "end": end}
