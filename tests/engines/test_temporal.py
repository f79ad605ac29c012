"""Temporal's SDK with its workers killed and stopped, against a stand-in for its server; and its own environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.outside import World

from . import cells
from .on_temporal import Temporal
from .recon import reconcile

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def engine() -> Iterator[Temporal]:
    pytest.importorskip("temporalio")
    pytest.importorskip("grpc")
    yield Temporal()


@pytest.mark.parametrize(("effect", "cell", "look"), list(cells.names()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    engine: Temporal, world: World, tmp_path: Path, effect: str, cell: str, look: str, store: str
) -> None:
    cells.play(engine, world, tmp_path, effect, cell, look, store)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(
    engine: Temporal, tmp_path: Path
) -> None:
    reconcile(engine, tmp_path)


def test_the_reconciliation_ends_so_on_postgresql_too(engine: Temporal, tmp_path: Path, postgres_store: str) -> None:
    reconcile(engine, tmp_path, postgres_store)
