"""Content above 1 MiB and several hosts: what one host alone has is not taken for the log's, and nothing is lost by saying so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_ground import Log, Proxy, objects, url_of
from test_object_store import BIG, Shop

from doubtless import Doubtless, StoreRefused, StoreUnavailable, host
from doubtless.events import Kind
from doubtless.store.blobstore import parse_place, write_down
from doubtless.store.pg import content


class Hosts:
    """Two hosts, of which each has another folder under the path `srv`: which one this process runs on now is said by `on`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.srv = folder / "srv"
        self.url = f"file://{self.srv}/content"
        self._folder = folder
        self._patch = monkeypatch
        self.on("ann")

    def on(self, name: str, sees: str | None = None) -> None:
        """Go on at a host; `sees`: whose folder is mounted there (its own)."""
        disk = self._folder / f"disk-of-{sees or name}"
        disk.mkdir(exist_ok=True)
        self.srv.unlink(missing_ok=True)
        self.srv.symlink_to(disk)
        self._patch.setattr(host, "name", lambda: name)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.delenv("DOUBTLESS_BLOBS", raising=False)
    return Hosts(tmp_path, monkeypatch)


@pytest.fixture
def shop(log: Log, hosts: Hosts) -> Iterator[Shop]:
    one = Shop(log, hosts.url)
    yield one
    one.close()


def test_a_host_that_does_not_see_the_folder_of_the_log_s_content_is_refused_and_told_where_it_lies(
    shop: Shop, hosts: Hosts
) -> None:
    shop.run(shop.app())
    hosts.on("bob")
    for blobs in (shop.url, None):
        app = shop.app(blobs=blobs)
        before = app.store.rows("r1")
        with pytest.raises(StoreRefused, match=rf"lies in the folder {hosts.srv}/content/\w+ of host ann, which host bob does") as said:
            app.run(shop.task, "r2", lines="x")
        assert 'blobs="s3://bucket/prefix"' in str(said.value.hint)
        assert app.store.rows("r1") == before
        assert app.store.head("r2") is None
    assert shop.effects == 1
    assert [*(hosts.srv / "content").rglob("*")] == []


def test_a_host_on_which_the_same_folder_is_mounted_goes_on_with_what_another_one_put(shop: Shop, hosts: Hosts) -> None:
    shop.run(shop.app())
    hosts.on("bob", sees="ann")
    assert shop.run(shop.app()) == BIG
    app = shop.app(blobs=None)
    app.run(shop.task, "r2", lines="l" * BIG)
    assert app.verify(content=True) == []
    assert shop.effects == 2


def test_a_folder_that_is_not_there_any_more_makes_no_result_lost_and_no_write_sent_again(shop: Shop, hosts: Hosts) -> None:
    app = shop.app()
    shop.before_return = lambda: hosts.on("ann", sees="nobody")
    with pytest.raises(StoreUnavailable, match="is done but cannot be recorded") as said:
        shop.run(app)
    assert "which host ann does not see" in said.value.message
    (kept,) = shop.log.spilled()
    with pytest.raises(StoreUnavailable, match="which host ann does not see"):
        shop.run(app)
    assert shop.log.spilled() == [kept]
    hosts.on("ann")
    assert shop.run(app) == BIG
    assert shop.log.spilled() == []
    assert shop.effects == 1


def test_a_write_is_not_called_where_the_folder_of_its_params_is_not_there(shop: Shop, hosts: Hosts) -> None:
    app, big = shop.app(), "l" * BIG

    @app.task
    def longer() -> int:
        return len(shop.step(lines=big)["pdf"])

    app.start(longer, "r1")
    hosts.on("ann", sees="nobody")
    with pytest.raises(StoreUnavailable, match="print_report at 1 was not called, nothing was sent"):
        app.run(longer, "r1")
    assert shop.rows(app, Kind.STEP_INTENDED) == 0
    hosts.on("ann")
    assert app.run(longer, "r1") == BIG
    assert shop.effects == 1


def test_content_that_lies_in_a_folder_that_is_not_there_is_unreachable_and_not_damaged(shop: Shop, hosts: Hosts) -> None:
    app = shop.app()
    shop.run(app)
    hosts.on("ann", sees="nobody")
    with pytest.raises(StoreUnavailable, match="nothing was run again"):
        _ = app.show("r1").steps[0].output
    looking = Doubtless(shop.log.url, read_only=True)
    assert [head.task_id for head in looking.tasks()] == ["r1"]
    (problem,) = looking.verify()
    assert "which host ann does not see" in problem.what
    with pytest.raises(StoreUnavailable, match="cannot be listed"):
        looking.gc(dry_run=True)
    looking.close()
    assert shop.effects == 1


def test_of_two_hosts_that_begin_at_once_one_place_stands_and_the_other_leaves_no_folder_behind(
    shop: Shop, hosts: Hosts
) -> None:
    place = parse_place(hosts.url)
    store = shop.app().store
    faster: list[str] = []

    def meanwhile(written: str) -> str:
        hosts.on("bob")
        faster.append(write_down(place, "ab" * 8, store.place_blobs))
        hosts.on("ann")
        return store.place_blobs(written)

    stands = write_down(place, "cd" * 8, meanwhile)
    assert [stands] == faster
    assert stands.endswith(f"#{'ab' * 8}@bob")
    assert [*(hosts.srv / "content").iterdir()] == []
    with pytest.raises(StoreRefused, match="of host bob, which host ann does not see"):
        shop.run(shop.app())
    hosts.on("bob")
    assert shop.run(shop.app()) == BIG


def test_a_folder_that_cannot_be_made_is_refused_before_the_log_names_it(shop: Shop, hosts: Hosts) -> None:
    (hosts.srv / "content").write_text("a file stands here")
    with pytest.raises(StoreRefused, match="cannot be made"):
        shop.run(shop.app())
    assert shop.effects == 0
    (hosts.srv / "content").unlink()
    assert shop.run(shop.app()) == BIG


# ---------------------------------------------------------------- PostgreSQL, and no `blobs`

on_postgres = pytest.mark.parametrize("make_log", ["postgres"], indirect=True)


@on_postgres
def test_without_a_place_a_teams_content_is_in_the_database_and_every_host_has_it(
    log: Log, hosts: Hosts, tmp_path: Path
) -> None:
    shop = Shop(log, None)
    app = shop.app()
    assert shop.run(app, "l" * BIG) == BIG
    hosts.on("bob")
    log.url = log.url.replace(str(tmp_path / "mark"), str(tmp_path / "mark-of-bob"))
    there = shop.app()
    assert shop.run(there, "l" * BIG) == BIG
    assert there.show("r1").steps[0].output["pdf"] == "p" * BIG
    assert there.verify(content=True) == []
    assert shop.effects == 1
    assert not log.blobs.exists()
    shop.close()


@on_postgres
def test_a_result_that_the_database_does_not_take_is_said_with_what_takes_it_and_is_not_lost(
    log: Log, proxy: Proxy, server: int, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "LARGEST", BIG)
    shop = Shop(log, None)
    with pytest.raises(StoreUnavailable, match=f"is more than the database takes .{BIG}.") as said:
        shop.run(shop.app())
    assert 'blobs="s3://' in said.value.message + str(said.value.hint)
    assert "the step is not run again" in str(said.value.hint)
    assert len(log.spilled()) == 1
    assert shop.effects == 1
    again = shop.app(blobs=url_of(proxy, prefix))
    assert shop.run(again) == BIG
    assert shop.effects == 1
    assert len(objects(server, prefix)) == 1
    assert again.verify(content=True) == []
    shop.close()


@on_postgres
def test_a_write_whose_params_the_database_does_not_take_is_not_called(
    log: Log, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "LARGEST", 2 * BIG)
    shop = Shop(log, None)

    def begin(app: Doubtless) -> object:
        @app.task
        def longer() -> int:
            return len(shop.step(lines="l" * (2 * BIG))["pdf"])

        return app.run(longer, "r1")

    with pytest.raises(StoreUnavailable, match="was not called, nothing was sent"):
        begin(shop.app())
    assert shop.effects == 0
    assert begin(shop.app(blobs=url_of(proxy, prefix))) == BIG
    assert shop.effects == 1
    shop.close()
