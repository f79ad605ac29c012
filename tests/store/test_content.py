"""Content and refs: small inline, larger by digest in the database, large in the folder; checked on read."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from store_ground import Begin, TurnClock, intended, only_sqlite

from doubtless.blobs import Content, show_ref
from doubtless.errors import StoreDamaged
from doubtless.store.base import Store


@pytest.fixture
def content(store: Store) -> Content:
    return Content(store, store.folder)


@pytest.mark.parametrize("text", ["", "x" * 256, "ü" * 128, "inline:", "\U0001f600" * 64])
def test_up_to_256_bytes_stand_in_the_ref(content: Content, text: str) -> None:
    ref, blob = content.put(text)
    assert ref == "inline:" + text
    assert blob is None
    assert content.get(ref) == text
    assert show_ref(ref) == ref


@pytest.mark.parametrize("text", ["x" * 257, "ü" * 129, "x" * (1 << 20)])
def test_up_to_a_mebibyte_is_a_blob_of_the_append(
    begin: Begin, store: Store, clock: TurnClock, content: Content, text: str
) -> None:
    ref, blob = content.put(text)
    digest = sha256(text.encode()).digest()
    assert ref == digest
    assert blob == (digest, text.encode())
    assert show_ref(ref) == "sha256:" + digest.hex()
    assert not content.known(digest)
    assert not Path(store.folder.path).exists()
    with pytest.raises(StoreDamaged, match="is missing"):
        content.get(ref)
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch, ref=ref), blobs=(blob,))
    assert content.get(ref) == text
    assert content.known(digest)


@only_sqlite
@pytest.mark.parametrize("text", ["x" * ((1 << 20) + 1), "ü" * (1 << 19) + "x"])
def test_above_a_mebibyte_it_is_a_synced_file_at_return(store: Store, content: Content, text: str) -> None:
    points: list[str] = []
    store.folder._hooks = points.append
    ref, blob = content.put(text)
    assert blob is None
    assert isinstance(ref, bytes)
    assert Path(store.folder.file_of(ref)).read_bytes() == text.encode()
    assert points == ["blob:write", "blob:written"]
    assert content.put(text) == (ref, None)
    assert points == ["blob:write", "blob:written"]
    assert content.get(ref) == text
    assert content.known(ref)
    assert list(store.folder.digests()) == [ref]


@only_sqlite
def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(
    store: Store, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    sync, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        done.append(("synced", os.fstat(descriptor).st_ino))

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        done.append(("named", os.stat(new).st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    ref, _ = content.put("x" * ((1 << 20) + 1))
    assert isinstance(ref, bytes)
    file = Path(store.folder.file_of(ref))
    parents = [path.stat().st_ino for path in (file.parent, file.parent.parent, file.parent.parent.parent)]
    assert done[:2] == [("synced", file.stat().st_ino), ("named", file.stat().st_ino)]
    assert {("synced", inode) for inode in parents} <= set(done[2:])  # each was new: so its name has to last, too


@only_sqlite
def test_content_that_is_not_what_was_written_is_never_given_back(store: Store, content: Content) -> None:
    ref, _ = content.put("x" * 2_000_000)
    assert isinstance(ref, bytes)
    Path(store.folder.file_of(ref)).write_bytes(b"x" * 1_999_999 + b"y")
    with pytest.raises(StoreDamaged, match="is damaged"):
        content.get(ref)


@pytest.mark.parametrize("ref", [None, "sha256:00", "plain text"])
def test_what_is_no_ref_is_refused(content: Content, ref: str | None) -> None:
    with pytest.raises(StoreDamaged, match="is no ref"):
        content.get(ref)


@only_sqlite
def test_a_cut_file_is_written_again_when_its_content_comes_again(store: Store, content: Content) -> None:
    ref, _ = content.put("x" * 2_000_000)
    assert isinstance(ref, bytes)
    Path(store.folder.file_of(ref)).write_bytes(b"x" * 5)
    content.put("x" * 2_000_000)
    assert content.get(ref) == "x" * 2_000_000
