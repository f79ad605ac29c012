"""Restate: its own server, its workers killed, calls that outlive its timeouts and are tried again while they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.outside import World

from . import cells
from .on_restate import Restate, binary
from .recon import reconcile

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restate]:
    pytest.importorskip("restate")
    if binary() is None:
        pytest.skip("there is no restate-server here")
    engine = Restate(tmp_path_factory.mktemp("restate"))
    yield engine
    engine.close()


@pytest.mark.parametrize(("effect", "cell", "look"), list(cells.names()))
def test_no_write_happens_twice_and_no_doubt_is_silent(
    engine: Restate, world: World, tmp_path: Path, effect: str, cell: str, look: str, store: str
) -> None:
    cells.play(engine, world, tmp_path, effect, cell, look, store)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(
    engine: Restate, tmp_path: Path
) -> None:
    reconcile(engine, tmp_path)


def test_the_reconciliation_ends_so_on_postgresql_too(engine: Restate, tmp_path: Path, postgres_store: str) -> None:
    reconcile(engine, tmp_path, postgres_store)
