"""gc: content that nothing names is found and deleted; what anything names, or may come to name, is never touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bucket_ground import BUCKET, Log, Proxy, ask, objects, url_of
from test_object_store import BIG, Shop
from tests import nursery

from doubtless import Doubtless, StoreRefused, StoreUnavailable, UsageError
from doubtless.events import Kind
from doubtless.snapshots import Snapshot
from doubtless.store.folder import Folder


class Kept(Shop):
    """A log whose content is in a bucket or in a folder; the log's clock stands `days` after everything was put."""

    def litter(self, app: Doubtless, text: str = "x") -> bytes:
        """Content whose event was never written: its writer was killed in between."""
        ref, _ = app.runtime.content.put(text * BIG)
        assert isinstance(ref, bytes)
        return ref

    def later(self) -> None:
        self.clock.advance("P9D")  # the test clock is behind, or ahead of, the bucket's by no more than this


@pytest.fixture(params=["s3", "folder"])
def kept(request: pytest.FixtureRequest, log: Log, tmp_path: Path, proxy: Proxy, prefix: str) -> Iterator[Kept]:
    one = Kept(log, url_of(proxy, prefix) if request.param == "s3" else f"file://{tmp_path}/content")
    import time

    one.clock._turn(int(time.time() * 1e6) - one.clock.now().wall)
    yield one
    one.close()


def swept(app: Doubtless, **options: Any) -> Any:
    beside, elsewhere = app.gc(**options)
    assert beside.stored == 0
    return elsewhere


def test_what_nothing_names_is_deleted_once_it_is_old_and_what_an_event_names_never(kept: Kept) -> None:
    app = kept.app()
    kept.run(app, "l" * BIG)
    left = kept.litter(app)
    young = swept(app)
    assert (young.stored, young.found, young.removed) == (3, (), 0)
    kept.later()
    would = swept(app, dry_run=True)
    assert ([one.digest for one in would.found], would.bytes_found, would.removed) == ([left], BIG, 0)
    assert swept(app, dry_run=True).stored == 3
    assert swept(app).removed == 1
    assert swept(app).stored == 2
    assert app.verify(content=True) == []
    assert app.show("r1").steps[0].output["pdf"] == "p" * BIG


def test_content_that_is_put_again_counts_as_new_until_its_event_is_written(kept: Kept) -> None:
    app = kept.app()
    old = kept.litter(app)
    place = app._elsewhere(app.store)
    assert place is not None
    (one,) = place.stored()
    if isinstance(place, Folder):
        os.utime(place.file_of(old), (1, 1))
    else:
        kept.clock.advance("PT2H")  # to the bucket's clock the object is two hours younger than to this one
    before = one.modified + 1 if not isinstance(place, Folder) else 2_000_000
    app.runtime.content.put("x" * BIG)
    (again,) = place.stored()
    assert again.modified >= one.modified
    if isinstance(place, Folder):
        assert not place.drop(old, before)
        assert place.holds(old)
    assert not place.drop(old, again.modified)
    assert place.drop(old, again.modified + 1)
    assert not place.drop(old, again.modified + 1)


def test_what_is_put_again_while_gc_looks_is_left_alone(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    app = kept.app()
    kept.litter(app)
    kept.later()
    unnamed = app.store.unnamed
    drops: list[Any] = []

    def meanwhile(digests: set[bytes]) -> set[bytes]:
        found = unnamed(digests)
        place = app._elsewhere(app.store)
        drops.append([place.drop(digest, 1) for digest in found])  # type: ignore[union-attr]  before anything was put
        return found

    monkeypatch.setattr(app.store, "unnamed", meanwhile)
    assert swept(app).removed == 1
    assert drops == [[False]]


def test_what_a_spilled_result_or_a_snapshot_names_is_kept(kept: Kept) -> None:
    app = kept.app()
    one, two, three = (kept.litter(app, letter) for letter in "abc")
    assert app.store.unnamed({one, two, three}) == {one, two, three}
    app.start(kept.task, "r1", lines="x")
    event = app.store.first("r1")
    app.store.spill(event._replace(kind=Kind.EVIDENCE_STORED, output_ref=one))
    seen = json.dumps({"ref": f"sha256:{two.hex()}"})
    app.store.put_snapshot(Snapshot("r1", 1, bytes(32), 1, seen, bytes(32)))
    kept.later()
    assert [found.digest for found in swept(app, dry_run=True).found] == [three]
    assert kept.log.spilled()


def test_gc_refuses_an_age_below_an_hour_and_a_store_in_suspect_mode(kept: Kept) -> None:
    from doubtless.store import recover_store

    app = kept.app()
    kept.litter(app)
    with pytest.raises(UsageError, match="younger than"):
        app.gc(older_than="PT59M")
    app.close()
    recover_store(kept.log.url, clock=kept.clock.now, state="", accept=True, by="kim", why="restored")
    kept.later()
    with pytest.raises(StoreRefused, match="suspect mode"):
        kept.app().gc()


def test_the_bucket_down_gc_and_verify_say_so_and_delete_nothing(
    log: Log, proxy: Proxy, prefix: str, server: int
) -> None:
    shop = Kept(log, url_of(proxy, prefix))
    app = shop.app()
    shop.run(app)
    shop.later()
    proxy.mode = "refused"
    with pytest.raises(StoreUnavailable, match="cannot be listed"):
        app.gc()
    (problem,) = app.verify()
    assert "cannot be listed" in problem.what
    assert len(objects(server, prefix)) == 1
    shop.close()


def test_verify_names_what_is_missing_and_with_content_what_is_not_what_was_put(
    log: Log, proxy: Proxy, prefix: str, server: int
) -> None:
    shop = Kept(log, url_of(proxy, prefix))
    app = shop.app()
    shop.run(app, "l" * BIG)
    assert app.verify(content=True) == []
    result = sha256(('{"pages":"lllll","pdf":"' + "p" * BIG + '"}').encode())
    name = f"{result.hexdigest()[:2]}/{result.hexdigest()[2:]}"
    (key,) = [one for one in objects(server, prefix) if one.endswith(name)]
    ask(server, "PUT", f"/{BUCKET}/{key}", b"other bytes")
    assert app.verify() == []
    assert [(one.where, one.what) for one in app.verify(content=True)] == [
        (f"s3://{BUCKET}/{key}", f"the content of sha256:{result.hexdigest()} is damaged")
    ]
    ask(server, "DELETE", f"/{BUCKET}/{key}")
    (gone,) = app.verify()
    assert gone.what == f"the content of its output_ref is missing (sha256:{result.hexdigest()})"
    shop.close()


def cli(kept: Kept, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "doubtless.cli", *words, "--store", kept.log.url]
    return nursery.run(command, capture_output=True, text=True, check=False)


def test_the_commands_find_the_place_in_the_log(kept: Kept) -> None:
    app = kept.app()
    kept.run(app, "l" * BIG)
    left = kept.litter(app)
    place = app._elsewhere(app.store)
    assert place is not None
    if isinstance(place, Folder):
        os.utime(place.file_of(left), (1, 1))
    for words in (["gc", "--dry-run"], ["gc"]):
        done = cli(kept, *words, "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)["places"][1]
        if isinstance(place, Folder):
            assert said["digests"] == [f"sha256:{left.hex()}"]
            assert said["removed"] == (0 if "--dry-run" in words else 1)
        assert (said["stored"], said["bytes_stored"] > 3 * BIG) == (3, True)
    assert cli(kept, "verify", "--content").stdout == "nothing found: the log of 1 task holds together\n"
    other = cli(kept, "gc", "--blobs", "s3://other/place")
    assert other.returncode == 6
    assert "it would not be found there" in other.stderr


LARGE = """
import os, sys, threading
from hashlib import sha256
from doubtless.store.blobstore import open_place, parse_place, whole

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10

def grown(deed):
    before, peak, done = resident(), [0], threading.Event()
    def watch():
        while not done.wait(0.002):
            peak.append(resident())
    watcher = threading.Thread(target=watch)
    watcher.start()
    deed()
    peak.append(resident())
    done.set()
    watcher.join()
    return max(peak) - before

size = int(sys.argv[2])
store = open_place(parse_place(sys.argv[1]), lambda: 0)
store.put(sha256(b"x").digest(), b"x")  # the connections and their threads are there
content = os.urandom(1 << 20) * (size >> 20)
digest = sha256(content).digest()
put = grown(lambda: store.put(digest, content))
del content
right = []
read = grown(lambda: right.append(whole(store, digest)))
assert right == [True]
print(put, read)
"""


@pytest.mark.parametrize("mebibytes", [64, pytest.param(200, marks=pytest.mark.prove)])
def test_a_large_content_is_sent_and_read_in_parts_with_bounded_memory(
    server: int, proxy: Proxy, prefix: str, mebibytes: int
) -> None:
    url = f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{server}"
    command = [sys.executable, "-c", LARGE, url, str(mebibytes << 20)]
    done = nursery.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    put, read = map(int, done.stdout.split())
    assert put < 40 * 1024  # KiB, beside the content itself: a few parts under way
    assert read < 40 * 1024


@pytest.mark.parametrize("given", [5, b"s3://bucket", ["s3://bucket"]])
def test_a_place_for_content_that_is_no_text_is_refused_at_once(given: Any) -> None:
    with pytest.raises(UsageError, match="no URL"):
        Doubtless("sqlite:///x.db", blobs=given)
