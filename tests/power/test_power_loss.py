"""Power loss: what was acknowledged is there, whole, on every disk that may be left; and the check finds what is planted."""

from __future__ import annotations

from unittest import mock

import pytest

from doubtless.store import recover
from doubtless.store.opening import build

from .plants import PLANTS
from .recorder import Recorder
from .recovering import Lost, judge_recovery, record_recovery
from .replay import Covered, record, replay

SHARDS = 8
DRAWS = 6


def _assert_nothing_found(covered: Covered) -> None:
    assert not covered.findings, f"{len(covered.findings)} of {covered.states} states:\n" + "\n".join(
        map(str, covered.findings[:10])
    )


def first(recorder: Recorder, kind: str, path: str) -> int:
    """The place of the first operation of this kind on a path that has this in it."""
    return next(at for at, op in enumerate(recorder.ops) if op.kind == kind and path in op.path)


def fact(recorder: Recorder, name: str) -> int:
    """The place of the first mark of this name."""
    return next(at for at, op in enumerate(recorder.ops) if op.kind == "mark" and op.fact[0] == name)


def test_the_recorded_run_has_all_that_can_be_lost() -> None:
    recorder = record()
    kinds = {op.kind for op in recorder.ops}
    assert kinds == {"create", "mkdir", "rename", "unlink", "write", "truncate", "sync", "syncdir", "mark"}
    facts = [op.fact[0] for op in recorder.ops if op.kind == "mark"]
    rows = {row.kind for op in recorder.ops if op.kind == "mark" and op.fact[0] == "rows" for row in op.fact[1]}
    assert facts.count("call") == facts.count("effect") == 8 and facts.count("spilled") == 1
    assert {"StepIntended", "AttemptEnded", "StepSettled", "CaseOpened", "CaseSettled", "EvidenceStored", "TaskEnded"} <= rows
    database = next(op.file for op in recorder.ops if op.kind == "create" and op.path == "recon.db")
    opened = fact(recorder, "opened")
    copies = [at for at, op in enumerate(recorder.ops) if op.kind == "sync" and op.file == database and at > opened]
    assert len(copies) > 3, "the WAL is copied into the database in the middle of the run"


def test_after_a_power_loss_at_any_operation_all_that_was_acknowledged_is_there_and_nothing_is_done_twice() -> None:
    covered = replay(record(), singly=False, telling=True)
    assert covered.states > 350
    _assert_nothing_found(covered)


@pytest.mark.prove
@pytest.mark.parametrize("shard", range(SHARDS))
def test_whatever_of_the_unsynced_is_missing_torn_or_drawn_at_random_nothing_acknowledged_is(shard: int) -> None:
    covered = replay(record(), seed=shard, draws=DRAWS, singly=True, start=shard, every=SHARDS)
    _assert_nothing_found(covered)


WHERE = {  # from where on a plant can do harm, so that it is found soon
    "content-unsynced": ("mkdir", "blobs"),
    "names-unsynced": ("mkdir", "blobs"),
    "new-folders-unsynced": ("mkdir", "blobs"),
    "spill-unsynced": ("mkdir", "spill"),
    "spilled-dropped-first": ("mkdir", "spill"),
    "mark-before-the-commit": ("mkdir", "owners"),
}
SAID = {
    "synchronous-normal": "is not there",
    "synchronous-off": "another application's database",
    "content-unsynced": "damaged",
    "spill-unsynced": "spilled result",
    "names-unsynced": "missing",
    "new-folders-unsynced": "missing",
    "mark-unsynced": "its beginning is damaged",
    "mark-name-unsynced": "has no mark",
    "mark-before-the-commit": "does not fit its mark",
    "spilled-dropped-first": "the spilled result of post_entry",
}


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_what_keeps_the_log_through_a_power_loss_is_missed_when_it_is_taken_away(plant: str) -> None:
    recorder = record(PLANTS[plant]())
    if plant in WHERE:
        start = first(recorder, *WHERE[plant])
    elif plant.startswith("synchronous"):
        start = fact(recorder, "call")
    else:
        start = 0
    covered = replay(recorder, start=start, singly=plant == "mark-name-unsynced", telling=not plant.startswith("mark"), enough=1)
    assert any(SAID[plant] in finding.what for finding in covered.findings), covered.findings


def test_a_call_whose_attempt_has_no_row_on_the_disk_is_noticed() -> None:
    recorder = record(PLANTS["synchronous-normal"]())
    covered = replay(recorder, start=fact(recorder, "call"), singly=False, enough=1)
    silent = [finding.what for finding in covered.findings if not finding.told]
    assert any("calls were made under key" in what and "0 attempts have a row" in what for what in silent), covered.findings


@pytest.mark.parametrize("lost", ["gone", "gone, but its WAL is there", "older"])
def test_after_a_power_loss_in_recover_the_store_is_refused_or_suspect_and_recover_can_be_said_again(lost: Lost) -> None:
    covered = replay(record_recovery(lost), singly=False, telling=lost != "older", judge=judge_recovery)
    assert covered.states > 15
    _assert_nothing_found(covered)


@pytest.mark.prove
@pytest.mark.parametrize("lost", ["gone", "gone, but its WAL is there", "older"])
def test_whatever_is_missing_or_torn_after_a_power_loss_in_recover_a_person_gets_on(lost: Lost) -> None:
    _assert_nothing_found(replay(record_recovery(lost), draws=DRAWS, judge=judge_recovery))


def test_a_recover_that_makes_the_database_in_its_place_is_noticed() -> None:
    in_place = mock.patch.object(recover, "_make_anew", lambda place, mark: build(place, mark, suspect=True))
    covered = replay(record_recovery("gone", in_place), singly=False, judge=judge_recovery, enough=1)
    assert covered.findings
