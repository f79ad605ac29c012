"""Forks at the edges: what moves while they wait, who has the original, branches, agents, sessions, used-up steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fork_ground import Ground, Steps, answer, log_of, needs_human, question, story

from doubtless import (
    Abandon,
    Abort,
    AlreadySettled,
    Answer,
    Deny,
    Finish,
    Happened,
    LetStand,
    NotSent,
    Retry,
    StepCall,
    StepFailed,
    TaskBusy,
    TaskFailed,
    TaskWaiting,
    Turn,
    UsageError,
    passes,
)
from doubtless.beyond import Fork, standing, terms_of
from doubtless.events import Kind, StepStatus, draft
from doubtless.heldwrites import before_write


def test_an_original_that_is_being_run_is_busy(ground: Ground) -> None:
    inside, leave = threading.Event(), threading.Event()

    def code(have: Steps) -> Any:
        have.pay("one")
        inside.set()
        assert leave.wait(20)
        return have.tell("two")

    app, work = ground.release(code)
    runner = threading.Thread(target=app.run, args=(work, "t"))
    runner.start()
    try:
        assert inside.wait(20)
        with pytest.raises(TaskBusy, match="being run"):
            app.fork("t", at=1)
        assert app.store.head("t@1") is None
    finally:
        leave.set()
        runner.join(20)
    app.fork("t", at=1)


def test_a_doubt_that_is_settled_while_the_question_is_open_is_asked_about_anew(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.read("a"), have.pay("one")])
    ground.raises = ConnectionResetError()
    needs_human(lambda: app.run(work, "t"))
    ground.raises = None
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    doubt, old = sorted(app.inbox().cases, key=lambda case: case.kind)
    assert (doubt.kind, old.kind) == ("doubt", "question")
    app.settle(doubt.id, Happened({"id": 7}), by="anna", why="seen", shown=doubt.hash)
    needs_human(lambda: app.resume("t@1"))
    new = question(app)
    assert new.id != old.id
    assert new.evidence["fork"]["answers"] == ["reuse", "run", "reuse_all", "run_all"]
    answer(app, "reuse")
    assert app.resume("t@1") == [2, {"id": 7}]
    assert ground.n("pay") == 1


def test_what_was_undone_while_the_answer_was_on_its_way_is_not_taken_over(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("one")["id"], have.tell("two")["id"]])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, "reuse")
    undone = draft("t", Kind.STEP_SETTLED, app.store.now(), step_seq=1, path="1", step_name="pay", status=StepStatus.COMPENSATED)
    app.store.add("t", [undone])
    needs_human(lambda: app.resume("t@1"))
    case = question(app)
    assert case.evidence["fork"]["answers"] == ["run", "run_all"]
    assert [one["step"] for one in case.evidence["stands"]] == ["tell"]
    answer(app, "run")
    needs_human(lambda: app.resume("t@1"))
    answer(app, "reuse")
    assert app.resume("t@1") == [3, 2]


def test_a_question_whose_reason_is_gone_is_closed_and_the_write_runs(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.pay("one")["id"])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    undone = draft("t", Kind.STEP_SETTLED, app.store.now(), step_seq=1, path="1", step_name="pay", status=StepStatus.COMPENSATED)
    app.store.add("t", [undone])
    assert app.resume("t@1") == 2
    assert app.inbox().cases == []


def test_a_step_that_was_undone_before_the_point_refuses_the_fork(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("one"), have.tell("two")])
    app.run(work, "t")
    undone = draft("t", Kind.STEP_SETTLED, app.store.now(), step_seq=1, path="1", step_name="pay", status=StepStatus.COMPENSATED)
    app.store.add("t", [undone])
    with pytest.raises(UsageError, match=r"step 1, pay at 1, was undone.*doubtless fork MODULE:APP t --at 1"):
        app.fork("t", at=2)
    assert [one.step for one in app.fork("t", at=1).stands] == ["tell"]


def test_an_output_that_a_person_has_yet_to_give_refuses_the_fork_and_a_given_one_is_taken_over(ground: Ground) -> None:
    def code(have: Steps) -> Any:
        return have.app.steps["odd"]()

    app, work = ground.release(code)

    @app.step(effect="non_idem_write")
    def odd() -> Any:
        return object()

    needs_human(lambda: app.run(work, "t"))
    with pytest.raises(UsageError, match="waits for its output"):
        app.fork("t", at=2)
    (case,) = app.inbox().cases
    app.settle(case.id, Answer("given"), by="anna", why="seen", shown=case.hash)
    assert app.run(work, "t") == "given"
    app.fork("t", at=2)
    assert app.resume("t@2") == "given"

    needs_human(lambda: app.run(work, "u"))
    (case,) = app.inbox().cases
    app.settle(case.id, Deny(), by="anna", why="seen", shown=case.hash)
    with pytest.raises(TaskFailed, match="output_denied"):
        app.run(work, "u")
    app.fork("u", at=2)
    with pytest.raises(TaskFailed, match="output_denied"):
        app.resume("u@2")


def test_failures_before_the_point_are_the_same_failures(ground: Ground) -> None:
    def code(have: Steps) -> Any:
        try:
            have.pay("one")
        except StepFailed as error:
            return [error.kind, have.read("a")]

    app, work = ground.release(code)
    ground.raises = ConnectionResetError()
    needs_human(lambda: app.run(work, "t"))
    (case,) = app.inbox().cases
    app.settle(case.id, Abandon(), by="anna", why="nobody knows", shown=case.hash)
    assert app.run(work, "t") == ["abandoned", 1]
    app.fork("t", at=2)
    assert app.resume("t@2") == ["abandoned", 2]
    assert [(one.step, one.status) for one in app.fork("t", at=1).stands] == [("pay", "failed")]


def test_a_used_up_write_that_was_taken_over_is_not_reopened_by_a_retry(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.pay("one"))
    ground.raises = NotSent("offline")
    needs_human(lambda: app.run(work, "t"))
    ground.raises = None
    app.fork("t", at=2)
    needs_human(lambda: app.resume("t@2"))
    case = next(case for case in app.inbox().cases if case.task_id == "t@2")
    app.settle(case.id, Retry(), by="anna", why="online", shown=case.hash)
    needs_human(lambda: app.resume("t@2"))  # nothing of it is the fork's own to send: fork before it
    assert ground.n("pay") == 3
    assert app.store.rows("t@2", path="1")[-1].kind == Kind.STEP_SETTLED


def test_a_read_that_was_not_settled_before_the_point_is_called_anew(ground: Ground) -> None:
    calls, paid = [], threading.Event()

    def code(have: Steps) -> Any:
        def right() -> Any:
            done = have.pay("x")["id"]
            paid.set()
            return done

        return have.app.parallel(have.app.steps["flaky"], right)

    app, work = ground.release(code)

    @app.step(effect="read")
    def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            assert paid.wait(20)
            raise ConnectionResetError
        return len(calls)

    with pytest.raises(TaskWaiting):
        app.run(work, "t", wait=False)
    assert {path: status for path, (_, status, _) in story(app, "t").items()} == {"1.1.1": "started", "1.2.1": "done"}
    assert app.fork("t", at=3).taken == 1
    assert app.resume("t@3") == [2, 1]
    assert ground.n("pay") == 1


def test_branches_are_held_against_what_stands_at_their_own_places(ground: Ground) -> None:
    def code(have: Steps) -> Any:
        return [one["what"] for one in have.app.map(lambda what: have.pay(what), ["a", "b", "c"])]

    app, work = ground.release(code)
    app.run(work, "t")
    fork = app.fork("t", at=1, non_idem_write="reuse")
    assert {one.path for one in fork.stands} == {"1.1.1", "1.2.1", "1.3.1"}
    assert app.resume("t@1") == ["a", "b", "c"]
    assert ground.n("pay") == 3
    app.fork("t", at=1, task_id="asks")
    for _ in range(3):
        needs_human(lambda: app.resume("asks"))
        case = next(case for case in app.inbox().cases)
        app.settle(case.id, Answer("reuse"), by="anna", why="seen", shown=case.hash)
    assert app.resume("asks") == ["a", "b", "c"]
    assert ground.n("pay") == 3


def test_an_async_task_is_forked_the_same_way(ground: Ground) -> None:
    app, _ = ground.release(lambda have: None)
    paid = []

    @app.step(effect="non_idem_write")
    async def apay(what: str) -> int:
        paid.append(what)
        return len(paid)

    @app.task
    async def awork() -> list[int]:
        return [await apay("one"), await apay("two")]

    assert app.run(awork, "t") == [1, 2]
    app.fork("t", at=2)
    needs_human(lambda: app.resume("t@2"))
    answer(app, "run")
    assert app.resume("t@2") == [1, 3]


def test_an_agents_fork_keeps_its_choices_and_asks_before_its_first_write(ground: Ground) -> None:
    app, _ = ground.release(lambda have: None)
    asked = []

    def choose(state: Any) -> Turn | Finish:
        asked.append(len(state.turns))
        return Turn([StepCall("pay", {"what": "x"})]) if not state.turns else Finish("ok")

    helper = app.agent("helper", choose=choose, steps=["pay"], snapshot_every=None)
    assert app.run(helper, "t", goal="g") == "ok"
    assert asked == [0, 1]
    app.fork("t", at=2)
    needs_human(lambda: app.resume("t@2"))
    assert question(app).evidence["fork"]["step"] == "pay"
    answer(app, "reuse")
    assert app.resume("t@2") == "ok"
    assert asked == [0, 1, 1], "the first choice was taken over, the second made again"
    assert ground.n("pay") == 1


def test_a_session_is_not_forked(ground: Ground) -> None:
    app, _ = ground.release(lambda have: None)
    with app.session("s") as session:
        session.call("pay", what="x", call_id="c1")
    with pytest.raises(UsageError, match="session"):
        app.fork("s", at=1)


def test_other_code_after_an_answer_is_asked_about_anew(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.pay("one")["id"])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, "run")
    app, work = ground.release(lambda have: have.pay("ten")["id"])
    needs_human(lambda: app.resume("t@1"))
    assert question(app).evidence["params"] == {"what": "ten"}
    assert ground.n("pay") == 1


def test_a_fork_of_a_child_task_is_a_task_of_its_own(ground: Ground) -> None:
    have: list[Steps] = []
    app, work = ground.release(lambda steps: [have.append(steps), child()][1])

    @app.task
    def child() -> int:
        return have[-1].pay("x")["id"]

    assert app.run(work, "t") == 1
    fork = app.fork("t/1", at=1, non_idem_write="reuse")
    assert fork.id == "t.1@1"
    assert app.resume(fork.id) == 1
    assert story(app, fork.id) == {"1": ("pay", "done", 0)}
    assert log_of(app, "t/1")[-1].kind == Kind.TASK_ENDED


def test_an_original_whose_effects_may_be_undone_next_is_settled_first(ground: Ground) -> None:
    app, _ = ground.release(lambda have: None)

    @app.task(on_failure="hold")
    def careful() -> None:
        app.steps["pay"]("one")
        raise Abort("no")

    needs_human(lambda: app.run(careful, "t"))
    with pytest.raises(UsageError, match=r"not settled; no fork was made.*doubtless inbox t:"):
        app.fork("t", at=2)
    (case,) = app.inbox().cases
    app.settle(case.id, LetStand(), by="anna", why="kept", shown=case.hash)
    with pytest.raises(TaskFailed):
        app.resume("t")
    assert [one.step for one in app.fork("t", at=1).stands] == ["pay"]


def test_what_a_failed_original_has_undone_neither_stands_nor_is_built_on(ground: Ground) -> None:
    app, work = ground.release(lambda have: (have.pay("one"), have.tell("two"), (_ for _ in ()).throw(Abort("no"))))
    with pytest.raises(TaskFailed):
        app.run(work, "t")
    assert app.show("t").status == "compensated"
    with pytest.raises(UsageError, match="was undone"):
        app.fork("t", at=2)
    assert [one.step for one in app.fork("t", at=1).stands] == ["tell"]


def test_a_fork_undoes_what_it_did_itself_and_nothing_else(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("a"), have.pay("b")])
    app.run(work, "t")
    app, work = ground.release(lambda have: (have.pay("a"), have.pay("b"), have.pay("c"), (_ for _ in ()).throw(Abort("no"))))
    app.fork("t", at=2, non_idem_write="reuse")
    with pytest.raises(TaskFailed):
        app.resume("t@2")
    assert app.show("t@2").status == "compensated"
    assert [result["what"] for result in ground.undone] == ["c"]


def test_a_fork_that_ends_without_the_write_that_it_asked_about_closes_its_question(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.read("a"), have.pay("one")])
    app.run(work, "t")
    app.fork("t", at=2)
    needs_human(lambda: app.resume("t@2"))
    case = question(app)
    app, work = ground.release(lambda have: have.read("a"))
    assert app.resume("t@2") == 1
    assert app.inbox().cases == []
    with pytest.raises(AlreadySettled):
        app.settle(case.id, Answer("run"), by="anna", why="late", shown=case.hash)


def test_a_write_with_a_business_key_that_is_run_again_gets_the_originals_output(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.app.steps["give_back"]("o1")["number"])
    refunds = []

    @app.step(effect="non_idem_write", once="refund:{order}")
    def give_back(order: str) -> dict[str, Any]:
        refunds.append(order)
        return {"number": len(refunds)}

    assert app.run(work, "t") == 1
    fork = app.fork("t", at=1, non_idem_write="run")
    assert app.resume(fork.id) == 1
    assert refunds == ["o1"]
    (step,) = app.show(fork.id).steps
    assert (step.calls, step.status) == (0, "done")
    second = app.fork(fork.id, at=1, task_id="second")
    assert [(one.task, one.path) for one in second.stands] == [("t", "1")], "one effect, where it was made"

    assert app.run(work, "u") == 1  # no fork: its output is t's as well
    read: dict[str, int] = {}
    standing(app.store, terms_of(app.store.first(app.fork("u", at=1).id)), read)
    assert set(read) == {"u", "t"}, "what t becomes has to be looked at"


@pytest.mark.parametrize("whose", ["original", "child", "maker"])
def test_what_is_undone_while_the_fork_runs_is_not_taken_over(ground: Ground, whose: str) -> None:
    """Whichever log of the line moves: the original's, its child's, or that of the task whose effect it had taken over."""
    have: list[Steps] = []
    undo: list[tuple[str, str]] = []

    def code(steps: Steps) -> Any:
        have.append(steps)
        first = steps.pay("a")["id"]
        for task_id, path in undo:
            now, status = app.store.now(), StepStatus.COMPENSATED
            app.store.add(task_id, [draft(task_id, Kind.STEP_SETTLED, now, step_seq=2, path=path, step_name="tell", status=status)])
        return [first, child() if whose == "child" else steps.tell("b")["id"]]

    app, work = ground.release(code)

    @app.task
    def child() -> int:
        return have[-1].tell("b")["id"]

    assert app.run(work, "t") == [1, 2]
    original = "t"
    if whose == "maker":
        original = app.fork("t", at=1, task_id="between", non_idem_write="reuse").id
        assert app.resume("between") == [1, 2]
    undo.append(("t/2", "1") if whose == "child" else ("t", "2"))
    fork = app.fork(original, at=1, task_id="f", non_idem_write="reuse")
    assert app.resume(fork.id) == [1, 3]


def test_a_fork_that_is_cancelled_before_its_question_is_answered_ends_and_asks_no_more(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("one"), have.tell("two")])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    app.cancel("t@1", by="anna", why="not needed")
    assert app.show("t@1").status == "cancelled"
    assert app.inbox().cases == []
    assert len(ground.effects) == 2


def test_a_done_original_that_was_compensated_by_order_is_not_built_on(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("one")["id"], have.tell("two")["id"]])
    app.run(work, "t")
    app.compensate("t", by="anna", why="wrong day")
    assert len(ground.undone) == 1
    with pytest.raises(UsageError, match="was undone"):
        app.fork("t", at=2)
    fork = app.fork("t", at=1, non_idem_write="reuse")
    assert [one.step for one in fork.stands] == ["tell"]
    needs_human(lambda: app.resume(fork.id))
    answer(app, "run")
    assert app.resume(fork.id) == [3, 2], "paid anew, told once"


@pytest.mark.parametrize("first", ["reuse", "deny", "run"])
def test_an_effect_is_not_made_again_unasked_because_the_fork_has_another_order(ground: Ground, first: str) -> None:
    """The fork decides about its first write at the place of an effect that its second one equals: that one is asked about."""
    app, work = ground.release(lambda have: [have.pay("one"), have.pay("two")])
    app.run(work, "t")

    def turned(have: Steps) -> Any:
        try:
            two = have.pay("two")
        except StepFailed:
            two = None
        return [two, have.pay("one")]

    app, _ = ground.release(turned)
    app.fork("t", at=1, task_id="f")
    needs_human(lambda: app.resume("f"))
    answer(app, first)
    needs_human(lambda: app.resume("f"))
    assert ground.n("pay", "one") == 1
    case = question(app)
    assert "reuse" in case.evidence["fork"]["answers"]
    assert [one["path"] for one in case.evidence["stands"]] == (["1"] if first == "reuse" else ["1", "2"])
    answer(app, "reuse")
    assert app.resume("f")[1] == {"id": 1, "what": "one"}
    assert (ground.n("pay", "one"), ground.n("pay", "two")) == (1, 2 if first == "run" else 1)


def two_that_ask(ground: Ground, monkeypatch: pytest.MonkeyPatch, effects: int) -> Any:
    """A fork in which two branches would have the effects that stand, and have both asked; then the first goes first."""

    def code(number: int) -> Any:
        return lambda have: [one["id"] for one in have.app.parallel(*[lambda: have.pay("one")] * number)]

    app, work = ground.release(code(effects))
    app.run(work, "t")
    app, _ = ground.release(code(2))
    app.fork("t", at=1, task_id="f")
    both, first = threading.Barrier(2), threading.Event()

    def together(*args: Any) -> Any:
        both.wait(20)
        return before_write(*args)

    def in_order(run: Any, fork: Fork, definition: Any, path: str, *args: Any) -> Any:
        assert path == "1.1.1" or first.wait(20)
        try:
            return before_write(run, fork, definition, path, *args)
        finally:
            first.set()

    with monkeypatch.context() as patched:
        patched.setattr(passes, "before_write", together)
        needs_human(lambda: app.resume("f"))
    assert len(app.inbox().cases) == 2
    monkeypatch.setattr(passes, "before_write", in_order)
    return app


def tell_both(app: Any, *said: str) -> None:
    cases = sorted(app.inbox().cases, key=lambda case: case.evidence["fork"]["path"])
    for case, one in zip(cases, said, strict=True):
        app.settle(case.id, Answer(one), by="anna", why="once", shown=case.hash)


def test_an_answer_to_reuse_never_becomes_a_run_when_a_branch_beside_has_taken_the_effect(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = two_that_ask(ground, monkeypatch, 1)
    tell_both(app, "reuse", "reuse")
    for _ in range(2):
        needs_human(lambda: app.resume("f"))
    assert ground.n("pay") == 1
    assert question(app).evidence["fork"]["answers"] == ["run", "run_all"]
    answer(app, "deny")
    with pytest.raises(TaskFailed):
        app.resume("f")
    assert ground.n("pay") == 1


@pytest.mark.parametrize("first", ["run", "run_all"])
@pytest.mark.parametrize("effects", [1, 2])
def test_what_was_said_of_a_write_counts_before_what_was_said_of_all_writes_and_of_the_one_beside(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, first: str, effects: int
) -> None:
    app = two_that_ask(ground, monkeypatch, effects)
    tell_both(app, first, "reuse")
    assert app.resume("f") == [effects + 1, app.resume("t")[-1]]
    assert ground.n("pay") == effects + 1


def test_an_answer_to_reuse_what_was_undone_meanwhile_is_asked_about_anew_also_when_nothing_else_stands(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.pay("one")["id"])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, "reuse")
    undone = draft("t", Kind.STEP_SETTLED, app.store.now(), step_seq=1, path="1", step_name="pay", status=StepStatus.COMPENSATED)
    app.store.add("t", [undone])
    needs_human(lambda: app.resume("t@1"))
    assert (ground.n("pay"), question(app).evidence["stands"]) == (1, [])
    answer(app, "run")
    assert app.resume("t@1") == 2


def test_an_answer_that_a_branch_beside_takes_in_between_two_looks_is_not_overlooked(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question's reason goes away, and a person denies the write, while the fork looks at what stands."""
    app, work = ground.release(lambda have: have.pay("one")["id"])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    runs: list[Any] = []
    open_effects = Fork.open_effects

    def beside() -> None:
        if runs[0].log.lock.acquire(blocking=False):
            try:
                runs[0].log.refresh()
            finally:
                runs[0].log.lock.release()

    def look(fork: Fork, *args: Any, **options: Any) -> Any:
        if app.inbox().cases:
            now, status = app.store.now(), StepStatus.COMPENSATED
            app.store.add("t", [draft("t", Kind.STEP_SETTLED, now, step_seq=1, path="1", step_name="pay", status=status)])
            answer(app, "deny")
            branch = threading.Thread(target=beside)
            branch.start()
            branch.join(20)
        return open_effects(fork, *args, **options)

    monkeypatch.setattr(Fork, "open_effects", look)
    monkeypatch.setattr(passes, "before_write", lambda run, *args: runs.append(run) or before_write(run, *args))
    with pytest.raises(TaskFailed):
        app.resume("t@1")
    assert ground.n("pay") == 1


def test_an_effect_that_comes_at_the_place_of_one_that_was_taken_from_elsewhere_is_asked_about(ground: Ground) -> None:
    """The original goes on while its fork waits; the fork has taken over another effect of it at that place."""

    def code(have: Steps) -> Any:
        return [have.pay("one")["id"], have.app.wait_for("go"), have.pay("one")["id"]]

    def later(have: Steps) -> Any:
        return [have.read("a"), have.read("b"), have.pay("one")["id"], have.app.wait_for("on"), have.pay("one")["id"]]

    app, work = ground.release(code)
    needs_human(lambda: app.run(work, "t"))
    forking, _ = ground.release(later)
    forking.fork("t", at=1, task_id="f")
    needs_human(lambda: forking.resume("f"))
    asked = next(case for case in forking.inbox().cases if case.task_id == "f")
    forking.settle(asked.id, Answer("reuse"), by="anna", why="looked", shown=asked.hash)
    needs_human(lambda: forking.resume("f"))
    app.send_event("t", "go")
    assert app.resume("t") == [1, None, 2]
    forking.send_event("f", "on")
    needs_human(lambda: forking.resume("f"))
    assert [one["path"] for one in question(forking).evidence["stands"]] == ["3"]
    answer(forking, "reuse")
    assert forking.resume("f") == [1, 1, 1, None, 2]
    assert ground.n("pay") == 2
