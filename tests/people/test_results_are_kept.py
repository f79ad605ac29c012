"""After the effect nothing re-runs the step: a result that cannot be recorded is kept until it can be (rule 6)."""

from __future__ import annotations

import errno
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people_ground import Child, Clock, Desk, MakeApp, answer, land_and_lose_the_reply

from doubtless import Doubtless, NeedsHuman, StepFailed, TaskFailed
from doubtless.answers import Abandon, Answer, Deny, DidNotHappen, Happened
from doubtless.errors import AnswerRefused, StoreUnavailable
from doubtless.events import Kind
from doubtless.store.recover import recover
from doubtless.store.sqlite import SqliteStore

MakeDesk = Callable[..., Desk]


class Full:
    """A task with one write of a large result, before which the store's file can be told to grow no more."""

    def __init__(self, app: Doubtless, size: int = 20_000, effect: str = "non_idem_write", **policy: Any) -> None:
        self.app = app
        self.effects = 0
        self.after: Callable[[], None] = self.fill
        self.fails: Exception | None = None

        @app.step(effect=effect, timeout="PT5S", **policy)  # type: ignore[arg-type]
        def pay(order: str) -> dict[str, Any]:
            self.effects += 1
            self.after()
            if self.fails is not None:
                raise self.fails
            return {"id": "payment-1", "receipt": "r" * size}

        @app.task
        def settle_order(order: str) -> str:
            try:
                return pay(order=order)["id"]
            except StepFailed as error:
                raise RuntimeError("the code stops here") from error

        self.task = settle_order

    def fill(self) -> None:
        """From now on the file has no room."""
        store = self.app.store
        store.limit_pages(store.pages())  # type: ignore[attr-defined]

    def empty(self) -> None:
        """There is room again."""
        self.app.store.limit_pages(None)  # type: ignore[attr-defined]
        self.after = lambda: None

    def run(self) -> Any:
        return self.app.run(self.task, "f1", order="o1")

    def lost(self) -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as error:
            self.run()
        return error.value


@pytest.fixture
def full(make_app: MakeApp) -> Full:
    return Full(make_app(store_patience=1))


def spilled(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "people.db.spill").glob("*.json"))


# ---------------------------------------------------------------- the store is full


def test_a_result_for_which_there_is_no_room_is_spilled_beside_the_database_and_settles_its_step_later(
    full: Full, tmp_path: Path
) -> None:
    error = full.lost()
    (file,) = spilled(tmp_path)
    assert file.name in error.message
    assert "pay at 1 is done" in error.message
    assert "doubtless resume MODULE:APP f1" in error.hint
    full.empty()
    assert full.run() == "payment-1"
    assert (full.effects, spilled(tmp_path)) == (1, [])
    (step,) = full.app.show("f1").steps
    assert (step.status, step.calls, step.output["receipt"]) == ("done", 1, "r" * 20_000)
    assert full.app.verify() == []


def test_the_result_is_offered_again_for_as_long_as_store_patience_says(make_app: MakeApp, clock: Clock) -> None:
    full = Full(make_app(store_patience="PT5S"))
    before = clock.waited
    full.lost()
    assert clock.waited - before == pytest.approx(5, abs=0.3)


def test_room_that_comes_back_in_time_is_used_and_nobody_hears_of_it(make_app: MakeApp, clock: Clock, tmp_path: Path) -> None:
    full = Full(make_app(store_patience=1))
    pause = clock.pause

    def turn(seconds: float, stop: Any) -> None:
        pause(seconds, stop)
        full.empty()

    clock.pause = turn  # type: ignore[method-assign]
    assert full.run() == "payment-1"
    assert (full.effects, spilled(tmp_path)) == (1, [])


def test_while_the_store_is_still_full_the_spilled_result_stays_and_the_step_is_not_run_again(full: Full, tmp_path: Path) -> None:
    full.lost()
    for _ in range(2):
        full.lost()
    assert len(spilled(tmp_path)) == 1
    full.empty()
    assert full.run() == "payment-1"
    assert full.effects == 1


def test_another_process_settles_the_step_from_the_spill(full: Full, make_app: MakeApp) -> None:
    full.lost()
    full.empty()
    full.app.close()
    other = Full(make_app())
    other.after = lambda: None
    assert other.run() == "payment-1"
    assert (full.effects, other.effects) == (1, 0)


def test_resume_all_and_the_inbox_show_a_step_whose_result_is_spilled(full: Full) -> None:
    full.lost()
    assert [doubt.path for doubt in full.app.inbox().doubts] == ["1"]
    full.empty()
    assert full.app.resume_all() == {"f1": "done"}


class Disk:
    """Refuses the write points that are named in it, as a full disk does."""

    def __init__(self) -> None:
        self.refuses: set[str] = set()
        self.refused: list[str] = []

    def __call__(self, point: str) -> None:
        if point in self.refuses:
            self.refused.append(point)
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_result_that_can_be_spilled_nowhere_is_kept_in_the_process(make_app: MakeApp) -> None:
    disk = Disk()
    full = Full(make_app(store_patience=1, hooks=disk))
    disk.refuses = {"spill:write"}
    error = full.lost()
    assert "only in this process, which must not end" in error.message
    assert disk.refused
    full.lost()  # it is still full: the result stays kept
    full.empty()
    assert full.run() == "payment-1"
    assert full.effects == 1


@pytest.mark.parametrize("vouched", [False, True])
def test_a_task_whose_log_was_lost_takes_in_what_was_spilled_of_its_first_life(
    full: Full, make_app: MakeApp, clock: Clock, tmp_path: Path, vouched: bool
) -> None:
    store = full.app.store
    assert isinstance(store, SqliteStore)
    store.info()
    with sqlite3.connect(store.path) as live, sqlite3.connect(tmp_path / "backup.db") as backup:
        live.backup(backup)
    full.lost()
    full.app.close()
    for end in ("-wal", "-shm"):
        Path(store.path + end).unlink(missing_ok=True)
    (tmp_path / "backup.db").replace(store.path)
    assert recover(store.path, clock=clock.now, accept=True, by="ann", why="the disk died").accepted

    other = Full(make_app())
    if vouched:  # for more than she knows: the write is sent again, and the evidence of the first one stands in the log
        other.after = lambda: None
        other.app.store.end_suspect(by="ann", why="all was looked up")
        assert other.run() == "payment-1"
    else:
        with pytest.raises(NeedsHuman):
            other.run()
    assert (full.effects, other.effects, spilled(tmp_path)) == (1, int(vouched), [])
    (kept,) = [row for row in other.app.store.rows("f1") if row.kind == Kind.EVIDENCE_STORED]
    assert "payment-1" in str(other.app.runtime.content.get(kept.output_ref or ""))


def test_a_result_that_is_kept_in_the_process_alone_is_a_doubt_when_the_process_dies(
    make_desk: MakeDesk, child: Callable[..., Child]
) -> None:
    lost = child("result_is_lost_with_the_process", "order-1")
    said = lost.hear()
    assert said.startswith("1 task order-1: pay at 1 is done")
    assert "only in this process" in said
    assert lost.killed()
    desk = make_desk()
    case = desk.doubt()
    assert (case.kind, desk.calls) == ("doubt", 0)
    answer(desk.app, case, Happened({"id": "payment-1"}))
    assert desk.run() == "payment-1"


def test_a_result_above_a_mebibyte_is_kept_too_when_its_folder_cannot_be_written(make_app: MakeApp, tmp_path: Path) -> None:
    disk = Disk()
    full = Full(make_app(store_patience=1, hooks=disk), size=2_000_000)
    full.after = lambda: disk.refuses.add("blob:write")
    error = full.lost()
    assert spilled(tmp_path)[0].name in error.message
    full.lost()
    full.after = lambda: None
    disk.refuses.clear()
    assert full.run() == "payment-1"
    assert (full.effects, spilled(tmp_path)) == (1, [])
    assert len(full.app.show("f1").steps[0].output["receipt"]) == 2_000_000


def test_an_outcome_for_which_there_is_no_room_leaves_a_doubt_that_is_settled_and_not_a_step_that_stands(
    make_app: MakeApp,
) -> None:
    """The attempt has no row of its end; whoever claims the task next asks the other side, as after a death."""
    full = Full(make_app(store_patience=1), query=lambda: {"id": "payment-1", "receipt": ""})
    full.fails = ConnectionResetError("lost " + "x" * 400)

    def fail_to_append() -> None:
        append = full.app.store.append

        def refuse(events: Any, **options: Any) -> None:
            if any(event.kind == "AttemptEnded" for event in events):
                raise StoreUnavailable("the disk is full", hint="free space", written=False)
            append(events, **options)

        full.app.store.append = refuse  # type: ignore[method-assign]

    full.after = fail_to_append
    full.lost()
    del full.app.store.append
    assert full.run() == "payment-1"
    assert full.effects == 1


def test_a_spilled_success_of_a_step_that_a_person_has_settled_otherwise_meanwhile_is_a_contradiction(
    full: Full, tmp_path: Path
) -> None:
    full.lost()
    (file,) = spilled(tmp_path)
    content = file.read_bytes()
    file.unlink()  # the file is not there when the task is looked at: another host's folder, not yet mounted
    full.empty()
    with pytest.raises(NeedsHuman):
        full.run()
    (case,) = full.app.inbox().cases
    answer(full.app, case, DidNotHappen("fail", even_now=True))
    with pytest.raises(NeedsHuman, match="the code stops here"):
        full.run()
    file.write_bytes(content)
    for _ in range(2):
        with pytest.raises(NeedsHuman):
            full.run()
    kinds = [row.kind for row in full.app.store.rows("f1")]
    assert kinds.count("EvidenceStored") == 1
    assert sorted(one.kind for one in full.app.inbox().cases) == ["code_error", "contradiction"]
    assert (spilled(tmp_path), full.effects) == ([], 1)
    assert full.app.verify() == []


# ---------------------------------------------------------------- full before anything was sent


def test_a_write_whose_intent_cannot_be_recorded_is_not_called(full: Full) -> None:
    append = full.app.store.append

    def refuse(events: Any, **options: Any) -> None:
        if any(event.kind == "StepIntended" for event in events):
            raise StoreUnavailable("the disk is full", hint="free space, then resume", written=False)
        append(events, **options)

    full.app.store.append = refuse  # type: ignore[method-assign]
    assert "free space" in full.lost().hint
    assert full.effects == 0
    del full.app.store.append
    full.empty()
    assert full.run() == "payment-1"
    assert full.effects == 1


def test_a_task_whose_input_cannot_be_recorded_does_not_exist(full: Full) -> None:
    full.app.store.info()
    full.fill()
    with pytest.raises(StoreUnavailable, match="free space"):
        full.app.run(full.task, "f1", order="x" * 20_000)
    assert full.app.tasks() == []
    full.empty()
    assert full.app.run(full.task, "f1", order="x" * 20_000) == "payment-1"


def test_a_param_above_a_mebibyte_for_which_there_is_no_room_is_not_sent(make_app: MakeApp) -> None:
    disk = Disk()
    app = make_app(hooks=disk, store_patience=1)
    sent: list[int] = []

    @app.step(effect="non_idem_write")
    def upload(text: str) -> dict[str, int]:
        sent.append(len(text))
        return {"size": len(text)}

    @app.task
    def send(size: int) -> dict[str, int]:
        return upload(text="x" * size)

    disk.refuses = {"blob:write"}
    with pytest.raises(StoreUnavailable, match="free space"):
        app.run(send, "s1", size=2_000_000)
    assert sent == []
    assert not any(row.path for row in app.store.rows("s1"))
    disk.refuses = set()
    assert app.run(send, "s1", size=2_000_000) == {"size": 2_000_000}


# ---------------------------------------------------------------- outputs that cannot be used


class Odd:
    """A task whose write returns what the test says, and then reads on."""

    def __init__(self, app: Doubtless, output: Any) -> None:
        self.app = app
        self.effects = 0
        self.got: list[Any] = []

        @app.step(effect="non_idem_write")
        def count() -> int:
            self.effects += 1
            return output  # type: ignore[no-any-return]

        @app.task
        def add_one() -> int:
            self.got.append(count())
            return self.got[-1] + 1

        self.task = add_one

    def run(self) -> Any:
        return self.app.run(self.task, "odd")

    def case(self) -> Any:
        with pytest.raises(NeedsHuman) as stopped:
            self.run()
        (case,) = stopped.value.cases
        return self.app.case(case)


class Unstorable:
    pass


@pytest.mark.parametrize(
    "output, said", [(Unstorable(), "Unstorable"), ({1, 2}, "set"), (float("nan"), "float"), ("\ud800", "str")]
)
def test_an_output_that_cannot_be_serialised_leaves_the_step_done_without_it_and_asks_for_it(
    app: Doubtless, output: Any, said: str
) -> None:
    odd = Odd(app, output)
    case = odd.case()
    assert (case.kind, case.step, sorted(case.answers)) == ("output", "count", ["answer", "deny"])
    assert said in case.why
    (step,) = app.show("odd").steps
    assert (step.status, step.output) == ("done", None)
    settled = next(row for row in app.store.rows("odd") if row.kind == "StepSettled")
    assert settled.output_ref is None
    assert odd.case().id == case.id  # run again: the same case, no second effect
    assert (odd.effects, odd.got) == (1, [])


def test_an_output_that_does_not_fit_the_annotation_is_stored_as_it_came_and_asks_for_another(app: Doubtless) -> None:
    odd = Odd(app, {"count": "seven"})
    case = odd.case()
    assert case.kind == "output"
    assert "expected int" in case.why
    (step,) = app.show("odd").steps
    assert (step.status, step.output) == ("done", {"count": "seven"})
    assert (odd.case().id, odd.effects, odd.got) == (case.id, 1, [])


@pytest.mark.parametrize("output", [Unstorable(), {"count": "seven"}])
def test_answer_lets_the_task_go_on_with_the_value_and_deny_fails_the_step_as_abandoned(make_app: MakeApp, output: Any) -> None:
    odd = Odd(make_app(), output)
    answer(odd.app, odd.case(), Answer(7))
    for _ in range(2):
        assert odd.run() == 8
    assert (odd.effects, odd.got) == (1, [7])
    (step,) = odd.app.show("odd").steps
    assert (step.status, step.output) == ("done", 7)
    assert odd.app.verify() == []


@pytest.mark.parametrize("output", [Unstorable(), {"count": "seven"}])
def test_deny_fails_the_step_as_abandoned_and_the_effect_stands(make_app: MakeApp, output: Any) -> None:
    odd = Odd(make_app(), output)
    answer(odd.app, odd.case(), Deny(), why="nobody knows")
    for _ in range(2):
        with pytest.raises(TaskFailed) as failed:
            odd.run()
        assert failed.value.context["failure"]["kind"] == "abandoned"
    assert (odd.effects, odd.app.show("odd").steps[0].status) == (1, "done")


def test_the_task_sees_a_denied_output_as_step_failed(app: Doubtless) -> None:
    seen: list[StepFailed] = []

    @app.step(effect="non_idem_write")
    def count() -> int:
        return Unstorable()  # type: ignore[return-value]

    @app.task
    def careful() -> str:
        try:
            return str(count())
        except StepFailed as error:
            seen.append(error)
            return "without"

    with pytest.raises(NeedsHuman):
        app.run(careful, "c1")
    answer(app, app.inbox().cases[0], Deny())
    assert app.run(careful, "c1") == "without"
    assert (seen[0].kind, seen[0].reason) == ("abandoned", "output_denied")


@pytest.mark.parametrize("said", [Answer("seven"), Answer(None), Answer({1}), Answer(float("nan")), Happened(7), Abandon()])
def test_an_answer_that_the_step_could_not_return_either_is_refused(app: Doubtless, said: Any) -> None:
    odd = Odd(app, Unstorable())
    case = odd.case()
    with pytest.raises(AnswerRefused):
        answer(app, case, said)
    assert app.case(case.id).hash == case.hash


def test_an_unserialisable_output_whose_store_is_full_still_asks_for_the_output_later(app: Doubtless, tmp_path: Path) -> None:
    odd = Odd(app, Unstorable())
    append = app.store.append

    def refuse(events: Any, **options: Any) -> None:
        if any(event.kind == "StepSettled" for event in events):
            raise StoreUnavailable("the disk is full", hint="free space", written=False)
        append(events, **options)

    app.store.append = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        odd.run()
    assert len(spilled(tmp_path)) == 1
    del app.store.append
    case = odd.case()
    assert (case.kind, odd.effects) == ("output", 1)
    answer(app, case, Answer(7))
    assert odd.run() == 8


@pytest.mark.parametrize("output", [Unstorable(), {"count": "seven"}])
def test_a_late_result_that_cannot_be_used_makes_the_step_done_and_asks_for_its_output(make_desk: MakeDesk, output: Any) -> None:
    desk = make_desk()
    desk.goes = [land_and_lose_the_reply]
    desk.doubt()
    from people_ground import contradict

    contradict(desk, output if isinstance(output, Unstorable) else 7)  # type: ignore[arg-type]
    (case,) = desk.needs_human()
    assert desk.app.case(case).kind == "output"
    assert (desk.step().status, desk.calls) == ("done", 1)
    answer(desk.app, desk.app.case(case), Answer({"id": "payment-1"}))
    assert desk.run() == "payment-1"


def test_a_look_back_that_finds_an_unusable_output_asks_for_it(make_desk: MakeDesk) -> None:
    from doubtless.outcomes import Found

    desk = make_desk(query=lambda: Found(["no", "mapping"]))
    desk.goes = [land_and_lose_the_reply]
    (case,) = desk.needs_human()
    assert desk.app.case(case).kind == "output"
    assert desk.step().status == "done"
    answer(desk.app, desk.app.case(case), Answer({"id": "payment-1"}))
    assert desk.run() == "payment-1"
    assert desk.calls == 1


# ---------------------------------------------------------------- a disk that takes no more, in a process of its own

PROGRAM = Path(__file__).with_name("full_disk.py")


@pytest.mark.parametrize("size", [100, 20_000, 2_000_000])
def test_with_no_room_for_any_file_the_effect_happens_once_and_the_task_ends_when_there_is_room(
    tmp_path: Path, size: int
) -> None:
    """RLIMIT_FSIZE from right after the effect on: log, spill and content folder all refuse; then the limit is lifted."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "full.db"), str(size)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0]["error"] == "store_unavailable"
    assert "resume MODULE:APP f1" in said[0]["hint"]
    assert said[-1] == {"out": size, "effects": 1, "problems": []}


def test_the_limit_that_this_suite_sets_is_one_that_the_system_has() -> None:
    assert hasattr(resource, "RLIMIT_FSIZE")
