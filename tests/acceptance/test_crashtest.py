"""`doubtless crashtest` and `doubtless.testing.crashtest`: sound tasks pass, and what is planted is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NotRequired, TypedDict
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from doubtless import Abort, Doubtless, Finish, Rejected, State, StepCall, Turn, UsageError, executor, injected
from doubtless.events import Effect
from doubtless.protocol import AskHuman, Call, LookBack, decide
from doubtless.testing import CountingWorld, CrashReport, FakeClock, crashtest, harness
from doubtless.testing.crashtest import scratch
from doubtless.testing.server import serving
from doubtless.testing.standins import StandIns, value_of
from doubtless.testing.trial import Found, Trial, Trouble


class Sheet(TypedDict):
    id: str
    amount: Decimal
    tags: NotRequired[list[str]]


@dataclass
class Booked:
    sheet: Sheet
    state: Literal["open", "closed"]
    until: date | None = None


SHOP = '''
from doubtless import Doubtless, injected
from doubtless.testing import CountingWorld

app = Doubtless("sqlite:///real.db")

def real(*args, **kwargs):
    open("real-was-called", "w").close()

def find(idempotency_key):
    real()

@app.step(effect="read")
def price(order: str) -> int:
    print("looking up a price")
    return 5

@app.step(effect="non_idem_write", query=find, absent_after="PT2M", on_absent="retry")
def create_sheet(order: str, amount: int, idempotency_key: str = injected()) -> dict:
    real()

@app.step(effect="non_idem_write")
def notify(text: str) -> dict:
    real()

@app.on_case
def page(case):
    real()

@app.task
def adjust(order: str) -> str:
    sheet = create_sheet(order=order, amount=price(order=order))
    notify(text=sheet["id"])
    return sheet["id"]

crashtest_world = CountingWorld()

def crashtest_fakes():
    return {
        "create_sheet": lambda order, amount, idempotency_key: crashtest_world.do("sheet", key=idempotency_key),
        "create_sheet.query": crashtest_world.find,
        "notify": lambda text: crashtest_world.do("message"),
    }
'''


def shop(folder: Path, *options: str, source: str = SHOP) -> subprocess.CompletedProcess[str]:
    """The command, in a folder with that app; nothing of it may touch what is real."""
    (folder / "shop.py").write_text(source)
    environment = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "doubtless.cli", "crashtest", "shop:app", "adjust", "-p", "order=A-17", *options]
    with TemporaryDirectory(dir=scratch()) as place:
        done = subprocess.run(
            command, cwd=folder, env=environment | {"TMPDIR": place}, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert not os.listdir(place), "a scratch store is left"
    assert os.listdir(folder) == ["shop.py"], "the real store was opened, or something real called"
    return done


def test_a_sound_task_passes_and_the_report_counts_each_step(tmp_path: Path) -> None:
    done = shop(tmp_path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["wrong"], report["notes"], report["ends"]) == ([], [], {"done": report["runs"]})
    steps = {step["step"]: step for step in report["steps"]}
    assert {name: step["most_effects"] for name, step in steps.items() if name != "price"} == {"create_sheet": 1, "notify": 1}
    assert set(steps["create_sheet"]["doubts"]) == {"its reply", "the look-back found it"}
    assert steps["create_sheet"]["people"] == 0 < steps["notify"]["people"]


def test_an_absent_after_that_is_shorter_than_the_lag_is_reported_with_exit_code_1(tmp_path: Path) -> None:
    done = shop(tmp_path, "--lag", "PT10M")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG  create_sheet at 2: 2 effects\n" in done.stdout
    assert "first: the reply of create_sheet lost, its look-back 10 min late\n" in done.stdout
    assert "WRONG  the world counts 2 of sheet, undisturbed 1\n" in done.stdout


def test_writes_without_fakes_are_refused_and_made_up_only_when_asked(tmp_path: Path) -> None:
    bare = SHOP.partition("crashtest_world = ")[0]
    refused = shop(tmp_path, source=bare)
    assert refused.returncode == 2
    assert "these have no fake: create_sheet, notify; nothing was called" in refused.stderr
    assert shop(tmp_path, "--fake", source=bare).returncode == 0


# ---------------------------------------------------------------- planted


class Desk:
    """An app with a counting world: a read, a write that can be asked for, one that cannot, and one to be undone."""

    def __init__(self, **options: Any) -> None:
        self.app = app = Doubtless("sqlite:///never-made.db")
        self.world = world = CountingWorld()
        options = {"absent_after": "PT2M", "on_absent": "retry", "query": world.find} | options

        @app.step(effect="read")
        def look(order: str) -> int:
            return 5

        @app.step(effect="non_idem_write", **options)
        def create(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do("sheet", key=idempotency_key)

        @app.step(effect="idem_write", idempotent_by="the sheet's id")
        def withdraw(result: dict[str, Any]) -> dict[str, Any]:
            return {"withdrawn": result["id"]}

        @app.step(effect="non_idem_write", compensate=withdraw)
        async def book(order: str) -> dict[str, Any]:
            return world.do("booking")

        self.look, self.create, self.book = look, create, book

    def test(self, task: Any, **options: Any) -> CrashReport:
        return crashtest(self.app, task, {"order": "A-17"}, world=self.world, real=True, **options)

    def create_alone(self) -> Any:
        @self.app.task
        def task(order: str) -> dict[str, Any]:
            return self.create(order=order)

        return task


def said(report: CrashReport) -> list[str]:
    return [one.what for one in report.wrong]


def test_an_async_task_with_branches_that_fails_is_undone_at_every_point() -> None:
    desk = Desk()

    @desk.app.task
    async def task(order: str) -> None:
        await desk.app.parallel(lambda: desk.book(order="a"), lambda: desk.book(order="b"))
        raise Abort("nobody wants it")

    report = desk.test(task)
    assert (said(report), report.undisturbed, report.ends) == ([], "compensated", {"compensated": report.runs})
    assert {step.step: step.most_effects for step in report.steps} == {"book": 1, "withdraw": 1}


def test_a_read_that_writes_is_reported_by_the_world() -> None:
    desk = Desk()

    @desk.app.step(effect="read")
    def look_and_note(order: str) -> dict[str, Any]:
        return desk.world.do("note")

    @desk.app.task
    def task(order: str) -> int:
        look_and_note(order=order)
        return desk.look(order=order)

    assert said(desk.test(task)) == ["the world counts 2 of note, undisturbed 1"]


def test_an_absence_that_the_log_believes_and_the_world_does_not_is_reported() -> None:
    desk = Desk(on_absent="fail")
    task = desk.create_alone()
    assert said(desk.test(task)) == []
    assert "create at 1: not applied, says the log, and it was made" in said(desk.test(task, lag="PT10M"))


def test_a_look_back_that_finds_somebody_elses_object_is_reported() -> None:
    desk = Desk(query=lambda order: {"id": "another", "order": order})
    assert "create at 1: its look-back found something that this task has not made" in said(desk.test(desk.create_alone()))


def test_a_task_that_goes_another_way_on_replay_is_reported() -> None:
    desk, turns = Desk(), []

    @desk.app.task
    def task(order: str) -> None:
        turns.append(order)
        if len(turns) % 2 == 0:
            desk.create(order=order)
        desk.look(order=order)

    told = said(desk.test(task))
    assert any(text.startswith("it does not end: diverged: the task: at place 1") for text in told)
    assert not [text for text in told if "effects" in text], "a call of another step at the same place is no effect of this one"


def test_a_protocol_that_sends_again_what_is_in_doubt_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(policy: Any, record: Any, now: Any) -> Any:
        action = decide(policy, record, now)
        doubt = isinstance(action, AskHuman | LookBack) and record is not None and policy.effect == Effect.NON_IDEM_WRITE
        return Call(len(record.attempts) + 1) if doubt else action

    desk = Desk()
    task = desk.create_alone()
    assert said(desk.test(task)) == []
    monkeypatch.setattr(executor, "decide", again)
    assert "create at 1: 2 effects" in said(desk.test(task))


def test_a_doubt_without_a_case_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(run: Any, record: Any, why: str, *, anew: bool = False) -> Iterator[Any]:
        raise run.park(why, human=True)
        yield

    desk = Desk()

    @desk.app.task
    async def task(order: str) -> dict[str, Any]:
        return await desk.book(order=order)

    monkeypatch.setattr(executor, "ask", ask)
    told = said(desk.test(task))
    assert "in doubt, without a case and without a time to look again: the task: book at 1" in told
    assert "it does not end: it needs a person, and asks nothing" in told


def test_a_second_run_that_is_let_in_beside_a_stopped_owner_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    task = desk.create_alone()
    monkeypatch.setattr(desk.app, "resume", lambda task_id, wait: None)
    assert "a second run beside a stopped owner ran it" in said(desk.test(task))


# ---------------------------------------------------------------- what happens


def test_each_trouble_happens_where_it_was_ordered_and_the_points_are_all_commits_and_calls(tmp_path: Path) -> None:
    desk = Desk()
    task = desk.create_alone()
    begun = FakeClock().now().wall
    stand_ins = StandIns(desk.app, None, fake=False, outputs={}, real=True)

    def attempt(name: str, trouble: Trouble | None) -> Found:
        (tmp_path / name).mkdir()
        with Trial(desk.app, str(tmp_path / name), stand_ins, trouble) as trial:
            found = trial.carry_out(task, name, {"order": "A-17"}, None)
            assert (trial.clock.now().wall - begun >= 3_600_000_000) == (name == "stopped"), name
            return found

    calm = [point.words for point in attempt("calm", None).arrivals]
    commits = ["begin", "StepIntended of create", "StepSettled of create", "TaskEnded"]
    assert [words for words in calm if "commit" in words] == [f"{w} the commit of {c}" for c in commits for w in ("before", "after")]
    at = calm.index("after the call of create") + 1
    for name, trouble, looks, claims in (
        ("lost", Trouble("", at, "lose"), (1, 1), 0),
        ("lost-before", Trouble("", at, "lose", then="before"), (2, 1), 1),
        ("lost-after", Trouble("", at, "lose", then="after"), (2, 2), 1),
        ("late", Trouble("", at, "lose", lags=("create", 60_000_000)), (2, 2), 0),
        ("killed", Trouble("", at, "kill"), (1, 1), 1),
        ("stopped", Trouble("", at - 1, "stop"), (0, 0), 0),
    ):
        found = attempt(name, trouble)
        words = [point.words for point in found.arrivals]
        assert (found.end, found.wrong, found.reached) == ("done", [], True), name
        looked = tuple(words.count(f"{when} the look-back of create") for when in ("before", "after"))
        assert (looked, words.count("after the commit of claim")) == (looks, claims), name


def test_agents_children_and_the_librarys_own_steps_are_gone_through_too() -> None:
    desk = Desk()
    child = desk.create_alone()

    @desk.app.task
    def parent(order: str) -> list[Any]:
        desk.app.sleep("PT1H")
        return [desk.app.now().isoformat(), child(order=order)]

    def choose(state: State) -> Turn | Finish:
        return Finish("made") if state.facts else Turn(calls=[StepCall("create", {"order": "A-17"}, "c1")])

    agent = desk.app.agent("agent", choose=choose, steps=[desk.create])
    for report in (desk.test(parent), crashtest(desk.app, agent, {"goal": "a sheet"}, world=desk.world, real=True)):
        assert (said(report), report.ends) == ([], {"done": report.runs})
        assert [(step.step, step.most_effects) for step in report.steps] == [("create", 1)]


def test_a_world_over_http_counts_what_the_real_steps_of_a_crash_test_send_it() -> None:
    app, world = Doubtless("sqlite:///never-made.db"), CountingWorld()
    with serving(world) as url:

        def find(idempotency_key: str) -> Any:
            try:
                with urlopen(f"{url}/find?key={idempotency_key}") as reply:
                    return json.load(reply)
            except HTTPError as error:
                with error:
                    return None if error.code == 404 else {"several": json.load(error)}

        @app.step(effect="non_idem_write", query=find, absent_after="PT2M", on_absent="retry")
        def create(order: str, idempotency_key: str = injected()) -> Any:
            data = json.dumps({"order": order}).encode()
            with urlopen(Request(f"{url}/sheet", data, {"Idempotency-Key": idempotency_key})) as reply:
                return json.load(reply)

        @app.task
        def task(order: str) -> Any:
            return create(order=order)

        report = crashtest(app, task, {"order": "A-17"}, world=world, real=True)
        assert (said(report), report.steps[0].people) == ([], 0)
        with urlopen(f"{url}/effects/sheet") as reply:
            assert [effect["order"] for effect in json.load(reply)] == ["A-17"], "of the last run"
        with pytest.raises(HTTPError, match="400") as refused, urlopen(Request(f"{url}/sheet", b"[1")):
            pass
        refused.value.close()
    assert world.count() == 1


# ---------------------------------------------------------------- what is whose


def test_a_task_that_does_not_end_undisturbed_is_reported_and_not_disturbed() -> None:
    desk = Desk()

    @desk.app.task
    def task(order: str) -> None:
        raise KeyError(order)

    report = desk.test(task)
    assert (report.runs, len(report.wrong)) == (0, 1)
    assert said(report)[0].startswith("it does not end: code_error")


def test_a_refusal_inside_a_reply_and_an_effect_before_an_error_are_no_false_alarm() -> None:
    desk = Desk()
    refused: set[str] = set()

    def refuse(reply: Any) -> Rejected | None:
        return Rejected("full") if isinstance(reply, dict) and reply.get("full") else None

    @desk.app.step(effect="non_idem_write", retry_rejected=True, classify=refuse)
    def knock(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        full = idempotency_key not in refused and not refused
        refused.add(idempotency_key)
        return {"full": full}

    @desk.app.step(effect="non_idem_write", query=desk.world.find)
    def break_off(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        desk.world.do("parcel", key=idempotency_key)
        raise ConnectionResetError

    @desk.app.task
    def task(order: str) -> None:
        refused.clear()
        knock(order=order)
        break_off(order=order)

    report = desk.test(task)
    assert (said(report), report.undisturbed) == ([], "done")


def test_a_step_that_says_itself_that_it_was_refused_is_answered_for_when_it_is_killed_before_its_record() -> None:
    desk = Desk()

    @desk.app.step(effect="non_idem_write")
    def refuse(order: str) -> dict[str, Any]:
        raise Rejected("422")

    @desk.app.task
    def task(order: str) -> None:
        refuse(order=order)

    report = desk.test(task)
    assert (said(report), report.undisturbed, set(report.ends)) == ([], "failed", {"failed"})
    assert next(step for step in report.steps if step.step == "refuse").people > 0


def test_fakes_are_made_up_for_typed_dicts_dataclasses_and_whatever_is_made_of_them() -> None:
    app = Doubtless("sqlite:///never-made.db")

    @app.step(effect="non_idem_write")
    def book(order: str) -> Booked:
        raise AssertionError("the real one")

    @app.task
    def task(order: str) -> str:
        booked = book(order=order)
        return f"{booked.sheet['id']} {booked.sheet['amount']} {booked.state} {booked.until}"

    made = value_of(Booked, "book-1", 1)
    assert made == Booked({"id": "book-1", "amount": Decimal(1), "tags": ["book-1"]}, "open", date(2026, 11, 28))
    report = crashtest(app, task, {"order": "A-17"}, fake=True)
    assert (said(report), report.undisturbed) == ([], "done")
    with pytest.raises(LookupError):
        value_of(threading.Lock, "x", 1)


def test_an_idem_write_whose_other_side_ignores_its_key_is_reported_by_the_world() -> None:
    desk = Desk()

    @desk.app.step(effect="idem_write")
    def stamp(order: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return desk.world.do("stamp", key=idempotency_key)  # it sees the key, and makes another one all the same

    @desk.app.task
    def task(order: str) -> None:
        stamp(order=order)

    assert said(desk.test(task)) == ["the world counts 2 of stamp, undisturbed 1"]
    desk.world = CountingWorld(honours_keys=True)
    assert said(desk.test(task)) == []


def test_of_a_step_that_was_undone_the_report_says_what_had_settled_its_doubts() -> None:
    desk = Desk(compensate="withdraw")

    @desk.app.task
    def task(order: str) -> None:
        desk.create(order=order)
        raise Abort("enough")

    report = desk.test(task)
    assert (said(report), report.undisturbed) == ([], "compensated")
    (create,) = (step for step in report.steps if step.step == "create")
    assert create.doubts.keys() == {"its reply", "the look-back found it"}


def test_a_query_that_never_finds_anything_is_reported_whatever_follows_from_it() -> None:
    for on_absent, what in (("retry", "create at 1: 2 effects"), ("fail", "create at 1: not applied, says the log, and it was made")):
        desk = Desk(query=lambda idempotency_key: None, on_absent=on_absent)
        assert what in said(desk.test(desk.create_alone()))


def test_a_log_that_verify_finds_fault_with_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    task = desk.create_alone()
    monkeypatch.setattr(desk.app, "verify", lambda: ["a row is gone"])
    assert said(desk.test(task)) == ["verify: a row is gone"]


def test_a_fake_write_that_its_real_query_would_look_for_is_refused() -> None:
    desk = Desk()
    fakes: dict[str, Callable[..., Any]] = {name: lambda **params: {"id": 1} for name in ("create", "book", "withdraw")}
    with pytest.raises(UsageError, match="looked for by the real query: create"):
        crashtest(desk.app, desk.create_alone(), {"order": "A-17"}, fakes=fakes)
    with pytest.raises(UsageError, match="no such step"):
        crashtest(desk.app, "task", {"order": "A-17"}, fakes={"creat": fakes["create"]})


def test_no_hook_is_called_and_the_app_has_its_own_parts_again(tmp_path: Path) -> None:
    desk, paged = Desk(), []
    desk.app.on_case(lambda case: paged.append(case.id))

    @desk.app.task
    async def task(order: str) -> dict[str, Any]:
        return await desk.book(order=order)

    assert desk.test(task).steps[0].people > 0
    assert paged == []
    with harness(desk.app, tmp_path) as h:
        h.lose_reply(desk.book)
        with pytest.raises(Exception, match="person"):
            h.run(task, "t", order="A-17")
    assert len(paged) == 1
