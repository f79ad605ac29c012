"""Celery with a folder as its broker: real worker processes, and every message that a dead worker had is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.outside import World

from . import cells
from .on_celery import Folder
from .recon import reconcile


@pytest.mark.engines
@pytest.mark.parametrize(("effect", "cell", "look"), cells.SHORT[:2] + cells.SHORT[3:])
def test_what_a_dead_worker_had_is_found_by_the_sweep_and_no_write_happens_twice(
    world: World, tmp_path: Path, effect: str, cell: str, look: str
) -> None:
    cells.play(Folder(), world, tmp_path, effect, cell, look)


def test_the_reconciliation_ends_with_each_effect_once_although_its_worker_is_killed_and_a_reply_lost(tmp_path: Path) -> None:
    reconcile(Folder(), tmp_path)
