"""Content above 1 MiB in an object store: there before its event, checked on read; and nothing is lost when the store fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bucket_ground import BUCKET, Log, Proxy, ask, forget_claims, objects, url_of

from doubtless import Doubtless, NeedsHuman, StoreDamaged, StoreRefused, StoreUnavailable, injected
from doubtless.events import Kind
from doubtless.store import bucket
from doubtless.store.blobstore import open_place, parse_place, whole
from doubtless.store.bucket import PART, Bucket
from doubtless.testing import FakeClock

BIG = 1_500_000
FAILING = ["refused", "lost", "unavailable", "read_only", "hangs"]


class Shop:
    """A task with one write, `print_report`, whose params or result are large; each app is another program on one log."""

    def __init__(self, log: Log, url: str | None) -> None:
        self.log = log
        self.folder = log.folder
        self.url = url
        self.clock = FakeClock()
        self.effects = 0
        self.swallowed: list[BaseException] = []
        self.before_return: Callable[[], None] = lambda: None
        self.apps: list[Doubtless] = []

    def app(self, **options: Any) -> Doubtless:
        options = {"blobs": self.url, "store_patience": 0.05, **options}
        app = Doubtless(self.log.url, namespace="blobs", clock=self.clock, **options)
        self.apps.append(app)

        @app.step(effect="non_idem_write", timeout="PT5S")
        def print_report(lines: str) -> dict[str, Any]:
            self.effects += 1
            self.before_return()
            return {"pages": lines[:5], "pdf": "p" * BIG}

        @app.task
        def report(lines: str) -> int:
            try:
                return len(print_report(lines=lines)["pdf"])
            except Exception as error:  # a careless task: nothing of the store's trouble may reach it
                self.swallowed.append(error)
                return -1

        self.step, self.task = print_report, report
        return app

    def run(self, app: Doubtless, lines: str = "short") -> Any:
        return app.run(self.task, "r1", lines=lines)

    def rows(self, app: Doubtless, kind: Kind) -> int:
        return sum(row.kind == kind for row in app.store.rows("r1"))

    def close(self) -> None:
        for app in self.apps:
            if app._store is not None:
                forget_claims(app.store)
            app.close()


@pytest.fixture
def shop(log: Log, proxy: Proxy, prefix: str) -> Iterator[Shop]:
    one = Shop(log, url_of(proxy, prefix))
    yield one
    one.close()


@pytest.fixture
def held(proxy: Proxy, prefix: str) -> Bucket:
    store = open_place(parse_place(url_of(proxy, prefix)), lambda: FakeClock().now().wall)
    assert isinstance(store, Bucket)
    return store


def content_of(size: int) -> tuple[bytes, bytes]:
    content = os.urandom(1 << 16) * (size // (1 << 16)) + b"x" * (size % (1 << 16))
    return sha256(content).digest(), content


# ---------------------------------------------------------------- put, get, whole


@pytest.mark.parametrize("size", [(1 << 20) + 1, PART, PART + 1, 3 * PART + 17])
def test_content_comes_back_as_it_was_put_whole_or_in_parts(held: Bucket, size: int) -> None:
    digest, content = content_of(size)
    assert held.get(digest) is None
    assert not held.holds(digest)
    held.put(digest, content)
    assert held.holds(digest)
    assert held.get(digest) == content
    assert whole(held, digest)
    (one,) = held.stored()
    assert (one.digest, one.size) == (digest, size)


def test_an_object_is_named_by_the_sha256_of_what_it_holds(held: Bucket, server: int, prefix: str) -> None:
    digest, content = content_of(BIG)
    held.put(digest, content)
    assert objects(server, prefix) == [f"{prefix}/sha256/{digest.hex()[:2]}/{digest.hex()[2:]}"]


def test_content_that_is_there_is_not_sent_again_under_a_condition_that_holds(held: Bucket, proxy: Proxy) -> None:
    digest, content = content_of(BIG)
    proxy.log.clear()
    held.put(digest, content)
    assert len(proxy.sent("PUT")) == 1
    held._now = lambda: next(iter(held.stored())).modified
    held.put(digest, content)
    assert len(proxy.sent("PUT")) == 2  # refused by If-None-Match; it was read back, and nothing overwritten
    assert proxy.sent("GET")


@pytest.mark.parametrize("bytes_there", [b"y" * BIG, b"cut"])
def test_other_bytes_under_its_name_are_replaced_when_the_content_is_put(
    held: Bucket, server: int, bytes_there: bytes
) -> None:
    digest, content = content_of(BIG)
    ask(server, "PUT", f"/{BUCKET}/{held.key(digest)}", bytes_there)
    held._now = lambda: next(iter(held.stored())).modified
    held.put(digest, content)
    assert held.get(digest) == content


@pytest.mark.parametrize(("mode", "size"), [*((mode, BIG) for mode in FAILING), ("lost", PART + 1), ("read_only", PART + 1)])
def test_a_put_that_fails_says_so_and_leaves_no_half_of_it_under_the_name(
    held: Bucket, proxy: Proxy, server: int, prefix: str, mode: str, size: int
) -> None:
    digest, content = content_of(size)
    proxy.mode = mode
    with pytest.raises(StoreUnavailable, match="cannot be written to s3://content/"):
        held.put(digest, content)
    proxy.release.set()
    proxy.mode = "through"
    assert held.get(digest) in (None, content)
    held.put(digest, content)
    assert held.get(digest) == content


@pytest.mark.parametrize("mode", ["refused", "cut", "unavailable", "hangs"])
def test_a_get_that_fails_is_no_missing_content(held: Bucket, proxy: Proxy, mode: str) -> None:
    digest, content = content_of(BIG)
    held.put(digest, content)
    proxy.mode = mode
    for look in (held.get, held.holds) if mode != "cut" else (held.get,):
        with pytest.raises(StoreUnavailable, match="nothing was run again"):
            look(digest)
    proxy.release.set()


def test_a_bucket_that_is_not_there_is_no_missing_content(proxy: Proxy) -> None:
    store = open_place(parse_place(f"s3://nowhere/p?endpoint={proxy.endpoint}"), lambda: 0)
    for look in (store.get, store.holds):
        with pytest.raises(StoreUnavailable, match="there is no bucket nowhere"):
            look(b"d" * 32)


# ---------------------------------------------------------------- steps


def test_large_params_and_results_lie_in_the_bucket_and_are_there_for_the_next_program(
    shop: Shop, server: int, prefix: str
) -> None:
    assert shop.run(shop.app(), "l" * BIG) == BIG
    assert len(objects(server, prefix)) == 2
    assert not shop.log.blobs.exists()
    again = shop.app(blobs=None)  # the log knows the place, and how to reach it
    assert shop.run(again, "l" * BIG) == BIG
    assert again.show("r1").steps[0].output["pdf"] == "p" * BIG
    assert shop.effects == 1


def test_content_is_in_the_bucket_before_the_event_that_names_it(shop: Shop, proxy: Proxy) -> None:
    app = shop.app()
    seen: list[int] = []
    proxy.after = lambda method, path: seen.append(shop.rows(app, Kind.STEP_INTENDED)) if method == "PUT" else None
    shop.run(app, "l" * BIG)
    assert seen[:1] == [0]
    assert seen[-1] == 1  # the result's: its intent stands, its own row does not
    assert shop.rows(app, Kind.STEP_SETTLED) == 1


@pytest.mark.parametrize("mode", FAILING)
def test_a_write_whose_params_cannot_be_stored_is_not_called(shop: Shop, proxy: Proxy, mode: str) -> None:
    app = shop.app()
    app.start(shop.task, "r1", lines="short")
    params = "l" * BIG

    @app.task
    def longer() -> int:
        return len(shop.step(lines=params)["pdf"])

    proxy.mode = mode
    with pytest.raises(StoreUnavailable, match="print_report at 1 was not called, nothing was sent"):
        app.run(longer, "r2")
    assert shop.effects == 0
    assert not any(row.kind == Kind.STEP_INTENDED for row in app.store.rows("r2"))
    proxy.mode = "through"
    proxy.release.set()
    assert app.run(longer, "r2") == BIG
    assert shop.effects == 1


@pytest.mark.parametrize("mode", FAILING)
def test_a_result_that_the_bucket_does_not_take_is_kept_and_the_effect_is_not_repeated(
    shop: Shop, proxy: Proxy, server: int, prefix: str, mode: str
) -> None:
    app = shop.app()
    shop.before_return = lambda: setattr(proxy, "mode", mode)
    with pytest.raises(StoreUnavailable, match="is done but cannot be recorded"):
        shop.run(app)
    (kept,) = shop.log.spilled()
    assert "p" * 1000 in kept.read_text()
    assert shop.rows(app, Kind.STEP_SETTLED) == 0
    with pytest.raises(StoreUnavailable):  # still down: nothing is lost, and nothing is run again
        shop.run(app)
    assert shop.log.spilled() == [kept]
    assert shop.effects == 1
    proxy.mode = "through"
    proxy.release.set()
    assert shop.run(shop.app()) == BIG
    assert shop.log.spilled() == []
    assert shop.effects == 1
    assert len(objects(server, prefix)) == 1
    assert shop.swallowed == []


def test_a_bucket_that_comes_back_in_time_gets_the_result_and_nothing_is_spilled(shop: Shop, proxy: Proxy) -> None:
    app = shop.app(store_patience=600)
    shop.before_return = lambda: setattr(proxy, "mode", "unavailable")
    pauses: list[float] = []
    pause = app.runtime.pause

    def back(seconds: float, stop: Any) -> None:
        pauses.append(seconds)
        proxy.mode = "through" if len(pauses) == 2 else proxy.mode
        pause(seconds, stop)

    app.runtime.pause = back
    assert shop.run(app) == BIG
    assert len(pauses) == 2
    assert shop.effects == 1
    assert shop.log.spilled() == []


@pytest.mark.parametrize("mode", ["refused", "cut", "unavailable", "hangs", "gone", "other"])
def test_a_result_that_cannot_be_read_runs_nothing_again_and_is_no_failure_that_task_code_could_swallow(
    shop: Shop, proxy: Proxy, mode: str
) -> None:
    app = shop.app()

    @app.task
    def twice() -> str:
        try:
            shop.step(lines="one")
        except Exception as error:
            shop.swallowed.append(error)
        raise RuntimeError("the code is at fault here")

    app.start(twice, "r1")
    with pytest.raises(Exception, match="r1"):
        app.run(twice, "r1")
    assert shop.effects == 1
    proxy.mode = mode
    expected = StoreDamaged if mode in ("gone", "other") else StoreUnavailable
    with pytest.raises(expected, match="nothing was run again"):
        app.resume("r1")
    proxy.mode = "through"
    proxy.release.set()
    assert shop.effects == 1
    assert shop.swallowed == []
    assert shop.rows(app, Kind.TASK_ENDED) == 0
    assert shop.rows(app, Kind.STEP_SETTLED) == 1


def test_params_that_come_slowly_from_the_bucket_are_not_sent_again_once_the_key_s_window_is_over(
    shop: Shop, proxy: Proxy
) -> None:
    app = shop.app()
    sent: list[str] = []

    @app.step(effect="idem_write", key_window="PT10M", timeout="PT5S", backoff="PT1S")
    def charge(lines: str, idempotency_key: str = injected()) -> dict[str, str]:
        sent.append(idempotency_key)
        raise ConnectionResetError("the reply was lost")

    @app.task
    def bill(lines: str) -> Any:
        return charge(lines=lines)

    def slow(method: str, path: str) -> None:
        if method == "GET" and sent:
            shop.clock.advance("PT11M")

    proxy.after = slow
    with pytest.raises(NeedsHuman):
        app.run(bill, "b1", lines="l" * BIG)
    assert len(sent) == 1
    ended = [row for row in app.store.rows("b1") if row.kind == Kind.ATTEMPT_ENDED]
    assert [json.loads(row.error or "{}")["kind"] for row in ended] == ["unknown", "not_sent"]


# ---------------------------------------------------------------- the place


def test_a_log_whose_content_is_in_one_place_is_not_opened_with_another(shop: Shop, proxy: Proxy) -> None:
    shop.run(shop.app())
    for other in (url_of(proxy, "elsewhere"), f"file://{shop.folder}/content"):
        with pytest.raises(StoreRefused, match="it would not be found there"):
            shop.run(shop.app(blobs=other))
    second = Proxy(int(proxy.endpoint.rpartition(":")[2]))  # the same bucket, reached another way
    try:
        app = shop.app(blobs=(shop.url or "").replace(proxy.endpoint, second.endpoint))
        assert app.show("r1").steps[0].output["pdf"] == "p" * BIG
        assert second.log
    finally:
        second.close()
    assert shop.effects == 1


def test_content_from_the_time_before_the_bucket_is_read_from_where_it_is(shop: Shop, server: int, prefix: str) -> None:
    first = shop.app(blobs=None)
    shop.run(first)
    first.close()
    app = shop.app()
    assert shop.run(app) == BIG
    assert app.show("r1").steps[0].output["pdf"] == "p" * BIG
    assert objects(server, prefix) == []
    app.run(shop.task, "r2", lines="l" * BIG)
    assert len(objects(server, prefix)) == 2
    assert shop.effects == 2
    assert app.verify() == []


def test_two_logs_under_one_prefix_do_not_share_objects(
    shop: Shop, make_log: Callable[[Path], Log], server: int, prefix: str
) -> None:
    shop.run(shop.app())
    (shop.folder / "other").mkdir()
    other = Shop(make_log(shop.folder / "other"), shop.url)
    other.run(other.app())
    assert len({name.removeprefix(prefix).split("/")[1] for name in objects(server, prefix)}) == 2
    other.close()


def test_the_environment_names_the_place_too(shop: Shop, server: int, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.url is not None
    monkeypatch.setenv("DOUBTLESS_BLOBS", shop.url)
    shop.run(shop.app(blobs=None))
    assert len(objects(server, prefix)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/prefix", "s3://bucket/p?secret_access_key=x", "s3://", "gs://bucket", "relative/path",
        "file://host/path", "https://bucket.example.org",
    ],
)  # fmt: skip
def test_a_place_that_is_none_or_holds_credentials_is_refused_before_anything_is_written(log: Log, url: str) -> None:
    shop = Shop(log, url)
    with pytest.raises(StoreRefused, match="blobs="):
        shop.run(shop.app())
    assert shop.effects == 0
    shop.close()


def test_without_obstore_a_bucket_is_refused_at_start_and_not_when_the_first_large_result_comes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StoreRefused, match="needs obstore"):
        shop.run(shop.app())
    assert shop.effects == 0


def test_a_folder_of_ones_own_choice_holds_the_content(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, f"file://{tmp_path}/content")
    assert shop.run(shop.app()) == BIG
    assert shop.run(shop.app(blobs=None)) == BIG
    assert shop.run(shop.app(blobs=f"{tmp_path}/content")) == BIG
    assert [path.stat().st_size > BIG for path in (tmp_path / "content").rglob("*") if path.is_file()] == [True]
    assert shop.effects == 1
    shop.close()


def test_a_forked_child_is_told_that_the_connections_did_not_follow(held: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, content = content_of(BIG)
    held.put(digest, content)
    monkeypatch.setattr(bucket, "_used_by", os.getpid() + 1)
    with pytest.raises(StoreUnavailable, match="forked"):
        held.get(digest)
