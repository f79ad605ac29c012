from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bucket_ground import Log, Proxy, s3_server

from doubtless.store import bucket


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    hangs = hasattr(request.node, "callspec") and request.node.callspec.params.get("mode") == "hangs"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("DOUBTLESS_BLOBS", raising=False)
    monkeypatch.setattr(bucket, "TIMEOUT", 1.5 if hangs else 30.0)
    monkeypatch.setattr(bucket, "RETRY_FOR", 0.3)
    one = Proxy(server)
    yield one
    one.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own in the bucket that all share."""
    import re

    return re.sub(r"\W+", "-", request.node.name)[-80:].strip("-")


@pytest.fixture(params=["sqlite", "postgres"])
def make_log(request: pytest.FixtureRequest) -> Callable[[Path], Log]:
    """Makes logs, each test on both stores; they are empty, and PostgreSQL's are migrated."""
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    return lambda folder: Log(folder, server)


@pytest.fixture
def log(make_log: Callable[[Path], Log], tmp_path: Path) -> Log:
    return make_log(tmp_path)
