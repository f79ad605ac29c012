"""The public API, called in any order by Hypothesis, with crashes, lost replies, deploys, answers and a clock that jumps ahead.

The reference is small: what really happened outside, counted by key; and what may be said of a task and of a step. After each
call: an error is one of Doubtless's own, with a word on what to do; no intent has had its effect more often than its own call and
a person's permissions allow; what has ended stays as it ended; `show`, `tasks` and a fold from the first row agree. At the end:
`verify` finds nothing, every doubt is being looked after, and what is done is there.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from fuzz_program import TASKS, World, declare
from fuzz_store import scratch
from fuzzing import examples
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from doubtless import (
    Abandon,
    Answer,
    Compensate,
    Deny,
    DidNotHappen,
    Doubtless,
    DoubtlessError,
    Fail,
    Happened,
    LetStand,
    Noted,
    Retry,
)
from doubtless.answers import SPELLED, TAKES
from doubtless.canonical import decode, encode
from doubtless.events import STEP_MOVES, TERMINAL, Effect, Kind, StepStatus, TaskStatus
from doubtless.fold import Moves, fold_steps
from doubtless.testing import Killed, harness

NAMES = [*TASKS, "clerk", "trainee"]
orders = st.sampled_from(["o1", "o2", "o3"])
ids = st.builds("{}-{}".format, st.sampled_from(NAMES), orders)
waits = st.sampled_from([True, False, "PT1M"])
goes = st.lists(st.sampled_from(["well", "well", "lost", "vanish", "reject", "unsent", "busy"]), max_size=4)
answers: st.SearchStrategy[Any] = st.sampled_from([
    Happened({"id": "by hand"}), DidNotHappen("retry"), DidNotHappen("fail"), DidNotHappen("retry", even_now=True), Abandon(), Retry(),
    Fail(), Compensate(), LetStand(), Noted(), Answer(True), Answer("no"), Deny(),
])  # fmt: skip
places = [("before", "intent"), ("after", "intent"), ("after", "effect"), ("before", "record"), ("after", "record"), ("after", "query")]


class TheApi(RuleBasedStateMachine):
    """One store, one program in several releases, one world."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=scratch())
        self.app = Doubtless("sqlite:///elsewhere.db", store_patience=0.001)
        self.ground = harness(self.app, self.folder)
        self.world = World(self.ground.clock)
        declare(self.app, self.world)
        self.release = 0
        self.ended: dict[str, tuple[str, Any]] = {}
        self.settled: dict[str, str] = {}
        self.statuses: dict[tuple[str, str], StepStatus] = {}

    def teardown(self) -> None:
        try:
            self.world.goes.clear()
            self.world.lags = False
            while isinstance(self.call(self.app.resume_all), Killed):
                pass  # a death that was ordered before
            assert self.app.verify() == []
            self.ground.assert_quiet()
            self.what_is_done_is_there()
        finally:
            self.ground.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, do: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call something: a value, an error of Doubtless's own, or a death of the process."""
        try:
            return do(*args, **options)
        except DoubtlessError as error:
            assert error.message, type(error)
            assert error.hint or error.code in KNOWN_BY_THEIR_MESSAGE, f"{type(error).__name__} without a hint: {error.message}"
            return error
        except Killed as error:
            return error

    # ------------------------------------------------------------ rules

    @rule(name=st.sampled_from(NAMES), order=orders, how=goes, wait=waits)
    def run(self, name: str, order: str, how: list[str], wait: Any) -> None:
        self.world.goes[:] = how
        task_id = f"{name}-{order}"
        task = self.app.declared_tasks[name]
        given = {"goal" if name in ("clerk", "trainee") else "order": task_id}
        if name == "later":
            self.call(asyncio.run, self.app.arun(task, task_id=task_id, wait=wait, **given))
        else:
            self.call(self.app.run, task, task_id=task_id, wait=wait, **given)
        self.world.goes.clear()

    @rule(name=st.sampled_from(TASKS), order=orders)
    def start(self, name: str, order: str) -> None:
        self.call(self.app.start, self.app.declared_tasks[name], task_id=f"{name}-{order}", order=f"{name}-{order}")

    @rule(task_id=ids, how=goes, wait=waits)
    def resume(self, task_id: str, how: list[str], wait: Any) -> None:
        self.world.goes[:] = how
        self.call(self.app.resume, task_id, wait=wait)
        self.world.goes.clear()

    @rule(wait=waits)
    def resume_all(self, wait: Any) -> None:
        told = self.call(self.app.resume_all, wait=wait)
        assert isinstance(told, dict | Killed), told

    @rule(step=st.sampled_from(["pay", "remit", "chat", "book", "refund"]), point=st.sampled_from(places))
    def order_a_death(self, step: str, point: tuple[str, Any]) -> None:
        when, what = point
        self.call(self.ground.kill, step, **{when: what})

    @rule()
    def restart(self) -> None:
        self.ground.restart()

    @rule()
    def deploy(self) -> None:
        """The process ends, and a new release of the program goes on: some policies are others."""
        self.ground.close()
        self.release += 1
        old = self.ground
        self.app = Doubtless("sqlite:///elsewhere.db", store_patience=0.001)
        self.ground = harness(self.app, self.folder)
        self.ground.url = self.app._url = old.url
        self.app._clock = self.ground.clock = self.world._clock = old.clock
        declare(self.app, self.world, self.release)

    @rule(seconds=st.sampled_from([1, 30, 61, 600, 3700, 90_000]))
    def wait_for_a_while(self, seconds: int) -> None:
        self.ground.advance(seconds)

    @rule(lags=st.booleans())
    def lag(self, lags: bool) -> None:
        self.world.lags = lags

    @rule(number=st.integers(0, 5), answer=answers, fits=st.booleans(), stale=st.sampled_from([False, False, False, True]))
    def settle(self, number: int, answer: Any, fits: bool, stale: bool) -> None:
        cases = self.app.inbox().cases
        if not cases:
            return
        case = cases[number % len(cases)]
        if fits and type(answer) not in TAKES[case.kind]:
            answer = {"code_error": Fail(), "diverged": Fail(), "hold": Compensate(), "contradiction": Noted(), "output": Deny(),
                      "question": Answer(True)}.get(case.kind, Abandon())  # fmt: skip
        said = self.call(self.app.settle, case.id, answer, by="ann", why="looked", shown="0" * 64 if stale else case.hash)
        if isinstance(said, BaseException):
            return
        assert not stale and type(answer) in TAKES[case.kind]
        assert case.id not in self.settled, f"{case.id} was settled twice (I8)"
        self.settled[case.id] = SPELLED[type(answer)]
        again = self.call(self.app.settle, case.id, answer, by="bob", why="looked too", shown=case.hash)
        assert isinstance(again, DoubtlessError) and again.code in ("already_settled", "case_changed"), again

    @rule(task_id=ids)
    def compensate(self, task_id: str) -> None:
        self.call(self.app.compensate, task_id, by="ann", why="wanted", wait=False)

    @rule(task_id=ids)
    def cancel(self, task_id: str) -> None:
        self.call(self.app.cancel, task_id, by="ann", why="unwanted", wait=False)

    @rule(task_id=ids, at=st.integers(1, 5), policy=st.sampled_from(["ask", "reuse"]))
    def fork(self, task_id: str, at: int, policy: Any) -> None:
        made = self.call(self.app.fork, task_id, at=at, non_idem_write=policy)
        if not isinstance(made, BaseException):
            self.call(self.app.resume, made.id, wait=False)

    @rule(step=st.sampled_from([None, "pay", "nothing"]), on=st.booleans())
    def freeze(self, step: str | None, on: bool) -> None:
        if on:
            self.call(self.app.freeze, step, why="an incident", by="ann")
        else:
            self.call(self.app.thaw, step, by="ann")

    @rule(order=orders, payload=st.sampled_from([True, False, "junk"]), event_id=st.sampled_from([None, "e1", "e2"]))
    def send(self, order: str, payload: Any, event_id: str | None) -> None:
        self.call(self.app.send_event, f"ask-{order}", "approve", payload, event_id=event_id)

    @rule(order=orders, call_id=st.sampled_from(["c1", "c2", "c3", None]), how=goes, ends=st.sampled_from(["well", "badly", "finish"]))
    def session(self, order: str, call_id: str | None, how: list[str], ends: str) -> None:
        self.world.goes[:] = how

        def visit() -> None:
            with self.app.session(f"thread-{order}", wait=False) as session:
                session.call("pay", order=f"thread-{order}", amount=9, call_id=call_id)
                if ends == "badly":
                    raise Died
                if ends == "finish":
                    session.finish({"ok": True})

        try:
            self.call(visit)
        except Died:
            pass
        self.world.goes.clear()

    @rule(task_id=ids)
    def look(self, task_id: str) -> None:
        view = self.call(self.app.show, task_id)
        facts = self.call(self.app.facts, task_id)
        if not isinstance(view, BaseException):
            assert view.status in set(TaskStatus)
            assert {fact.path for fact in facts if fact.path} <= {step.path for step in view.steps}

    # ------------------------------------------------------------ what holds

    @invariant()
    def no_intent_has_more_effects_than_its_call_and_permissions(self) -> None:
        store = self.app.store
        effects = self.world.under()
        allowed: Counter[tuple[str, str]] = Counter()
        for head in store.heads():
            rows = store.rows(head.task_id)
            permitted = Counter(
                row.path for row in rows if row.kind == Kind.CASE_SETTLED and row.details.get("answer") in ("did_not_happen", "retry")
            )  # fmt: skip
            for path, record in fold_steps(rows).items():
                for key in record.keys:
                    allowed[record.name, key.hex()] = 1 + permitted[path]
        over = {what: (count, allowed[what]) for what, count in effects.items() if count > allowed[what]}
        assert not over, f"effects, and how many were allowed: {over}"

    @invariant()
    def statuses_move_as_the_table_says_and_what_has_ended_stays(self) -> None:
        store = self.app.store
        for head in store.heads():
            rows = store.rows(head.task_id)
            moves = Moves()
            assert [move for row in rows for move in moves.add(row)] == []
            for path, record in fold_steps(rows).items():
                before, now = self.statuses.get((head.task_id, path)), StepStatus(record.status)
                assert before is None or before == now or reaches(before, now), (head.task_id, path, before, now)
                self.statuses[head.task_id, path] = now
            ended = self.ended.get(head.task_id)
            if head.status in TERMINAL:
                if ended is not None and ended[0] != "done":
                    assert ended[0] == head.status, (head.task_id, ended, head.status)
                self.ended[head.task_id] = (head.status, None)
            elif ended is not None:
                assert ended[0] == "done", (head.task_id, ended, head.status)  # a person's wish to undo it

    @precondition(lambda self: bool(self.ended))
    @invariant()
    def what_is_shown_is_the_fold(self) -> None:
        task_id = sorted(self.ended)[-1]
        view = self.app.show(task_id)
        records = fold_steps(self.app.store.rows(task_id))
        assert [(step.path, step.status) for step in view.steps] == [(path, record.status) for path, record in records.items()]
        assert encode(decode(encode(view.params))) == encode(view.params)

    def what_is_done_is_there(self) -> None:
        """What the log says of a write, without a person's word in it, is what the world says."""
        store, effects = self.app.store, self.world.under()
        for head in store.heads():
            rows = store.rows(head.task_id)
            spoken = {row.path for row in rows if row.kind == Kind.CASE_SETTLED}
            for path, record in fold_steps(rows).items():
                if record.effect == Effect.READ or path in spoken or record.origin is not None or not record.keys or record.name.startswith("$"):
                    continue
                there = sum(effects[record.name, key.hex()] for key in record.keys)
                if record.status in (StepStatus.DONE, StepStatus.COMPENSATED) and "/" not in (record.name or ""):
                    assert there or record.name not in WRITES, (head.task_id, path, record.name, record.status)
                if record.status == StepStatus.NOT_APPLIED:
                    assert not there, (head.task_id, path, record.name)


WRITES = frozenset({"pay", "remit", "chat", "book", "refund"})
KNOWN_BY_THEIR_MESSAGE = frozenset({"step_failed"})


class Died(Exception):
    """The host of a session dies inside it."""


def reaches(before: StepStatus, now: StepStatus) -> bool:
    """Whether one status can be come to from another one, in some moves."""
    seen, open_ = set(), [before]
    while open_:
        for after in STEP_MOVES[open_.pop()]:
            if after not in seen:
                seen.add(after)
                open_.append(after)
    return now in seen


def test_the_public_api_keeps_its_promises_in_any_order_of_calls() -> None:
    run_state_machine_as_test(TheApi, settings=examples(12, steps=20))
