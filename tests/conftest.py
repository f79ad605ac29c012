"""What the tests of several folders share: a PostgreSQL server of their own, started when the first test asks for it.

Whoever runs the tests in a shell's background has Ctrl-C ignored, which every process inherits: the programs of the tests that
are sent one would wait for ever. So it is taken out of what they inherit, and a hangup with it.

The tests' folders are in memory, where there is room: thousands of stores are made and synced, and no test takes away what a disk
has acknowledged but by its own means (`tests/power`). `PYTEST_DEBUG_TEMPROOT=/tmp` puts them on a disk.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from examples.reconciliation.outside import Outside
from tests import nursery
from tests.postgres.server import MISSING, Server, servers

Outside.start = nursery.Popen
hypothesis.settings.register_profile("short", max_examples=40)
if os.environ.get("FUZZ") != "prove":
    hypothesis.settings.load_profile("short")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

MEMORY = "/dev/shm"
ROOM = 4 << 30
"""Free bytes there, of which the tests need a part."""


def pytest_configure(config: pytest.Config) -> None:
    if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_unconfigure(config: pytest.Config) -> None:
    """What was in memory does not stay there, unless something has failed."""
    folders = getattr(config, "_tmp_path_factory", None)
    made = getattr(folders, "_basetemp", None)
    if made is not None and not hasattr(config, "workerinput") and str(made).startswith(MEMORY) and not config.stash.get(FAILED, True):
        shutil.rmtree(made, ignore_errors=True)


FAILED = pytest.StashKey[bool]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[FAILED] = bool(exitstatus)
    nursery.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """What takes long begins first, so that no process of the run has it left when the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for this process of the test run. Without server programs: skipped here, a failure in CI."""
    if not servers():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    server = Server().start()
    yield server
    server.remove()
