"""What the tests of several folders share: a PostgreSQL server of their own, started when the first test asks for it.

Whoever runs the tests in a shell's background has Ctrl-C ignored, which every process inherits: the programs of the tests that
are sent one would wait for ever. So it is taken out of what they inherit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.postgres.server import MISSING, Server, servers

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
