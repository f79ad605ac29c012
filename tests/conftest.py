"""What the tests of several folders share: a PostgreSQL server of their own, started when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.postgres.server import MISSING, Server, servers


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
