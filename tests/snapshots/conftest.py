"""The snapshots' fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_ground import Ground

from doubtless.store.sqlite import SqliteStore


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.end()


@pytest.fixture
def begun_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which row each load of a log has begun to read it; 0: from zero."""
    seen: list[int] = []
    real = SqliteStore.outline

    def outline(store: SqliteStore, task_id: str, *, after: int = 0) -> object:
        seen.append(after)
        return real(store, task_id, after=after)

    monkeypatch.setattr(SqliteStore, "outline", outline)
    return seen


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each read of the store has given."""
    from doubtless.store.link import Link

    counts: list[int] = []
    real = Link.all

    def counting(link: Link, *args: object) -> object:
        rows = real(link, *args)  # type: ignore[arg-type]
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(Link, "all", counting)
    return counts
