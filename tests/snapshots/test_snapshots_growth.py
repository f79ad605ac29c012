"""C103: a snapshot holds refs, only the last two stay, and what is stored grows with what is new, never with the state."""

from __future__ import annotations

from typing import Any

import pytest
from snapshot_ground import Ground

from doubtless import Doubtless
from doubtless.snapshots import Snapshot
from doubtless.store.sqlite import SqliteStore

BIG = "x" * 2_000_000


def declared(ground: Ground, every: int | None) -> Doubtless:
    app = ground.app(every=every)

    @app.step(effect="read")
    def fetch(number: int) -> str:
        return BIG

    @app.task(snapshot_every=every)
    def collect(upto: int) -> int:
        found = 0
        for number in range(upto):
            if number == ground.stop_at:
                raise KeyboardInterrupt
            found += len(fetch(number))
        return found

    return app


def sizes(ground: Ground, steps: int, every: int | None) -> tuple[int, int, int]:
    """Bytes of the log's rows, of the snapshots, and of the content, after so many steps."""
    task = f"t{steps}-{every}"
    ground.stopped(declared(ground, every), "collect", task, at=steps, upto=steps + 1)
    columns = "length(path) + length(step_name) + 32 * 2 + coalesce(length(output_ref), 0) + coalesce(length(input_ref), 0)"
    (log,) = ground.sql(f"SELECT sum({columns}) FROM events WHERE task_id = ?", (task,))[0]
    (cache,) = ground.sql("SELECT coalesce(sum(length(content)), 0) FROM snapshots WHERE task_id = ?", (task,))[0]
    blobs = sum(file.stat().st_size for file in (ground.folder / "recon.db.blobs").rglob("*") if file.is_file())
    return log, cache, blobs


def test_snapshots_hold_refs_and_grow_with_the_number_of_steps_alone(ground: Ground) -> None:
    _, few, content = sizes(ground, 40, 5)
    _, many, same = sizes(ground, 80, 5)
    assert content == same  # one content, stored once
    assert 1.8 < many / few < 2.2
    assert many < 80 * 2 * 250
    assert len(ground.snapshots("t80-5")) == 2
    assert BIG[:100] not in ground.snapshots("t80-5")[-1].content


def test_the_database_grows_with_what_is_new_however_often_snapshots_are_made(ground: Ground) -> None:
    def pages(every: int | None, folder: str) -> int:
        here = Ground(ground.folder / folder)
        here.folder.mkdir()
        here.stopped(here.app(every=every, steps=301), at=300)
        size = here.file.stat().st_size
        here.end()
        return size

    without, often = pages(None, "without"), pages(5, "often")
    assert often < without + 2 * 300 * 250
    grown: Any = often / without
    assert grown < 2


def test_all_snapshots_together_are_as_long_as_the_log_is_not_as_its_square(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    real = SqliteStore.put_snapshot

    def put(store: SqliteStore, snapshot: Snapshot, *, before: int | None = None) -> None:
        written.append(len(snapshot.content))
        real(store, snapshot, before=before)

    monkeypatch.setattr(SqliteStore, "put_snapshot", put)
    totals: list[int] = []
    for steps in (160, 640):
        written.clear()
        ground.stopped(ground.app(every=5), task_id=f"t{steps}", at=steps, upto=steps + 1)
        totals.append(sum(written))
        assert len(written) > 8
    assert totals[1] / totals[0] < 6  # 4 in a line, 16 in a square
    state = ground.stateful(every=5)
    written.clear()
    ground.stopped(state, "converse", "s", at=400, upto=401)
    assert len(written) > 400 * 1.5 / 6 * 0.7  # a state of bounded size is kept every N steps, to the end
