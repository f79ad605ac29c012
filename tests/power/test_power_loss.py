"""Power loss: what was acknowledged is there, whole, on every disk that may be left; and the check finds what is planted."""

from __future__ import annotations

import random
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest

from doubtless.store import folder, recover
from doubtless.store.opening import build

from .check import Finding, Known, laid_out
from .disk import State
from .plants import PLANTS, SAID, fact, search
from .recorder import Recorder
from .recovering import LOST, Lost, judge_recovery, record_recovery
from .replay import Covered, record, replay

SHARDS = 8
DRAWS = 6


def _assert_nothing_found(covered: Covered) -> None:
    assert not covered.findings, f"{len(covered.findings)} of {covered.states} states:\n" + "\n".join(
        map(str, covered.findings[:10])
    )


def test_the_recorded_run_has_all_that_can_be_lost() -> None:
    recorder = record()
    kinds = {op.kind for op in recorder.ops}
    assert kinds == {"create", "mkdir", "rename", "unlink", "write", "truncate", "sync", "syncdir", "mark"}
    facts = [op.fact[0] for op in recorder.ops if op.kind == "mark"]
    rows = {row.kind for op in recorder.ops if op.kind == "mark" and op.fact[0] == "rows" for row in op.fact[1]}
    assert facts.count("call") == facts.count("effect") == 8
    assert facts.count("spilled") == 1 and facts.count("snapshot") == 2
    assert {"StepIntended", "AttemptEnded", "StepSettled", "CaseOpened", "CaseSettled", "EvidenceStored", "TaskEnded"} <= rows
    database = next(op.file for op in recorder.ops if op.kind == "create" and op.path == "recon.db")
    opened = fact(recorder, "opened")
    copies = [at for at, op in enumerate(recorder.ops) if op.kind == "sync" and op.file == database and at > opened]
    assert len(copies) > 3, "the WAL is copied into the database in the middle of the run"


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.prove)])
def test_after_a_power_loss_at_any_operation_all_that_was_acknowledged_is_there_and_nothing_is_done_twice(every: int) -> None:
    """In the short form at each sixth operation, of which one is the first by chance."""
    covered = replay(record(), singly=False, telling=True, start=random.SystemRandom().randrange(every), every=every)
    assert covered.states > 350 // every // 2
    _assert_nothing_found(covered)


@pytest.mark.prove
@pytest.mark.parametrize("shard", range(SHARDS))
def test_whatever_of_the_unsynced_is_missing_torn_or_drawn_at_random_nothing_acknowledged_is(shard: int) -> None:
    covered = replay(record(), seed=shard, draws=DRAWS, singly=True, start=shard, every=SHARDS)
    _assert_nothing_found(covered)


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_what_keeps_the_log_through_a_power_loss_is_missed_when_it_is_taken_away(plant: str) -> None:
    covered = search(plant)
    assert any(SAID[plant] in finding.what for finding in covered.findings), covered.findings


def test_a_call_whose_attempt_has_no_row_on_the_disk_is_noticed() -> None:
    recorder = record(PLANTS["synchronous-normal"][0]())
    covered = replay(recorder, start=fact(recorder, "call"), singly=False, enough=1)
    silent = [finding.what for finding in covered.findings if not finding.told]
    assert any("calls were made under key" in what and "0 attempts have a row" in what for what in silent), covered.findings


@pytest.mark.parametrize("lost", LOST)
def test_after_a_power_loss_in_recover_the_store_is_refused_or_suspect_and_recover_can_be_said_again(lost: Lost) -> None:
    covered = replay(record_recovery(lost), singly=False, telling=lost != "older", judge=judge_recovery)
    assert covered.states > 15
    _assert_nothing_found(covered)


@pytest.mark.prove
@pytest.mark.parametrize("lost", LOST)
def test_whatever_is_missing_or_torn_after_a_power_loss_in_recover_a_person_gets_on(lost: Lost) -> None:
    _assert_nothing_found(replay(record_recovery(lost), draws=DRAWS, judge=judge_recovery))


def test_a_recover_that_makes_the_database_in_its_place_is_noticed() -> None:
    in_place = mock.patch.object(recover, "_make_anew", lambda place, mark: build(place, mark, suspect=True))
    covered = replay(record_recovery("gone", in_place), singly=False, judge=judge_recovery, enough=1)
    assert covered.findings


CONTENT = b"a statement" * 200


def digest(content: bytes) -> bytes:
    return sha256(content).digest()


@pytest.mark.parametrize("again", [CONTENT, CONTENT + b"."])
@pytest.mark.parametrize("synced", [True, False])
def test_content_of_a_process_that_died_before_it_synced_the_name_is_synced_by_whoever_writes_it_again(
    tmp_path: Path, synced: bool, again: bytes
) -> None:
    """Also where it is other content: the folder is the same."""
    recorder = Recorder(str(tmp_path))
    with recorder.recording():
        with mock.patch.object(folder, "sync_directory", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
            folder.Folder(f"{tmp_path}/blobs").put(digest(CONTENT), CONTENT)
        with mock.patch.object(folder, "sync_directory", folder.sync_directory if synced else lambda path: None):
            folder.Folder(f"{tmp_path}/blobs").put(digest(again), again)
        recorder.mark(("opened", None))

    def judge(state: State, known: Known, at: int) -> list[Finding]:
        with laid_out(state) as place:
            held = folder.Folder(f"{place}/blobs").get(digest(again))
        return [Finding(at, state.how, "the content is not there", False)] if known.opened and held != again else []

    assert bool(replay(recorder, judge=judge).findings) != synced
