"""A fork is a new task: what came before its point is answered from the original's log, which stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
from fork_ground import Ground, Steps, answer, log_of, needs_human, question, seven, story

from doubtless import Abort, Answer, AnswerRefused, InputDiffers, StepFailed, TaskFailed, UnknownTask, UsageError
from doubtless.conclusion import obligations


def test_steps_before_the_point_are_answered_from_the_original_and_its_log_is_untouched(ground: Ground) -> None:
    app, work = ground.release(seven)
    output = app.run(work, "t")
    before = log_of(app, "t")

    fork = app.fork("t", at=6)
    assert (fork.id, fork.forked_from, fork.at, fork.taken, fork.stands) == ("t@6", "t", 6, 5, ())
    effects, reads = list(ground.effects), dict(ground.reads)
    assert app.resume("t@6") == output
    assert (ground.effects, dict(ground.reads)) == (effects, reads)
    assert story(app, "t@6") == {path: (name, "done", 0) for path, (name, _, _) in story(app, "t").items()}
    assert log_of(app, "t") == before


def test_reads_run_again_from_the_point_on(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.read("a"), have.read("a"), have.read("a")])
    assert app.run(work, "t") == [1, 2, 3]
    app.fork("t", at=2)
    assert app.resume("t@2") == [1, 4, 5]


def test_before_its_first_write_a_fork_shows_what_stands_and_asks(ground: Ground) -> None:
    app, work = ground.release(seven)
    app.run(work, "t")
    fork = app.fork("t", at=2)
    assert [(one.task, one.path, one.step, one.status, one.params["what"]) for one in fork.stands] == [
        ("t", "2", "pay", "done", "first"),
        ("t", "4", "put", "done", "second"),
        ("t", "5", "tell", "done", "third"),
    ]
    error = needs_human(lambda: app.resume("t@2"))
    case = question(app)
    assert error.cases == (case.id,)
    assert (case.task_id, case.path, case.step) == ("t@2", None, None)
    assert [(one["step"], one["params"], one["output"]["what"]) for one in case.evidence["stands"]] == [
        ("pay", {"what": "first"}, "first"),
        ("put", {"what": "second"}, "second"),
        ("tell", {"what": "third"}, "third"),
    ]
    assert case.evidence["params"] == {"what": "first"}
    assert list(case.answers) == ["answer", "deny"]
    assert len(ground.effects) == 3
    needs_human(lambda: app.resume("t@2"))  # it stays one question
    assert question(app).id == case.id


def test_the_first_write_asks_also_when_it_is_another_one_than_those_that_stand(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.read("a"), have.pay("first")])
    app.run(work, "t")
    app, _ = ground.release(lambda have: [have.read("a"), have.tell("instead")])
    app.fork("t", at=2)
    needs_human(lambda: app.resume("t@2"))
    case = question(app)
    assert case.evidence["fork"]["answers"] == ["run", "run_all"]  # nothing that stands fits: there is nothing to take over
    with pytest.raises(AnswerRefused, match="does not take"):
        app.settle(case.id, Answer("reuse"), by="anna", why="", shown=case.hash)
    assert ground.n("tell") == 0
    answer(app, "run")
    app.resume("t@2")
    assert ground.n("tell") == 1


def test_where_nothing_stands_a_fork_does_not_ask(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.read("a"), have.read("b")])
    app.run(work, "t")
    app, _ = ground.release(seven)
    app.fork("t", at=2)
    app.resume("t@2")
    assert len(ground.effects) == 3


@pytest.mark.parametrize("said, effects", [("reuse", 0), ("run", 1), ("deny", 0)])
def test_each_answer_does_what_it_says(ground: Ground, said: str, effects: int) -> None:
    def code(have: Steps) -> Any:
        try:
            return have.pay("first")["id"]
        except StepFailed as error:
            return (error.kind, error.reason)

    app, work = ground.release(code)
    first = app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, said)
    expected = {"reuse": first, "run": 2, "deny": ("not_applied", "denied")}[said]
    assert app.resume("t@1") == (list(expected) if said == "deny" else expected)
    assert app.run(work, "t@1") == app.resume("t@1")
    assert ground.n("pay") == 1 + effects
    keys = [key for _, _, key in ground.effects]
    assert len(set(keys)) == len(keys), "the fork's key is its own"


def test_each_write_is_asked_about_until_a_person_answers_for_all(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay(str(i))["id"] for i in range(4)])
    assert app.run(work, "t") == [1, 2, 3, 4]
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, "run")
    needs_human(lambda: app.resume("t@1"))
    assert question(app).evidence["fork"]["path"] == "2"
    assert len(question(app).evidence["stands"]) == 3, "what is accounted for is not listed again"
    answer(app, "reuse_all")
    assert app.resume("t@1") == [5, 2, 3, 4]


@pytest.mark.parametrize("policy, output", [("reuse", [1, 2]), ("run", [3, 4])])
def test_a_fork_that_was_told_does_not_ask(ground: Ground, policy: str, output: list[int]) -> None:
    app, work = ground.release(lambda have: [have.pay("a")["id"], have.put("b")["id"]])
    app.run(work, "t")
    app.fork("t", at=1, idem_write=policy, non_idem_write=policy)
    assert app.resume("t@1") == output
    assert app.inbox().cases == []


def test_the_policy_is_by_effect_class(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.put("b")["id"], have.pay("a")["id"]])
    app.run(work, "t")
    app.fork("t", at=1, idem_write="run")
    needs_human(lambda: app.resume("t@1"))
    assert (ground.n("put"), ground.n("pay")) == (2, 1)
    assert question(app).evidence["fork"]["step"] == "pay"


def test_reuse_asks_where_nothing_fits(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("100")["id"], have.tell("paid")["id"]])
    app.run(work, "t")
    app, _ = ground.release(lambda have: [have.pay("90")["id"], have.tell("paid")["id"]])
    app.fork("t", at=1, non_idem_write="reuse")
    needs_human(lambda: app.resume("t@1"))
    assert question(app).evidence["params"] == {"what": "90"}
    assert ground.n("pay") == 1
    answer(app, "run")
    assert app.resume("t@1") == [3, 2]


def test_a_person_may_take_over_what_stands_at_another_place(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("a")["id"], have.tell("b")["id"]])
    app.run(work, "t")
    app, _ = ground.release(lambda have: [have.read("new"), have.pay("a")["id"], have.tell("b")["id"]])
    app.fork("t", at=1, non_idem_write="reuse")
    for left in (["pay", "tell"], ["tell"]):
        needs_human(lambda: app.resume("t@1"))
        assert [one["step"] for one in question(app).evidence["stands"]] == left
        answer(app, "reuse")
    assert app.resume("t@1")[1:] == [1, 2]
    assert len(ground.effects) == 2


def test_what_a_fork_took_over_it_does_not_owe(ground: Ground) -> None:
    def fails(have: Steps) -> None:
        have.pay("a")
        have.pay("b")
        raise Abort("no")

    app, work = ground.release(lambda have: [have.pay("a"), have.pay("b")])
    app.run(work, "t")
    app, work = ground.release(fails)
    app.fork("t", at=2, non_idem_write="reuse")
    with pytest.raises(TaskFailed):
        app.resume("t@2")
    assert app.show("t@2").status == "failed"
    assert obligations(app.runtime, log_of(app, "t@2")) == []
    assert ground.undone == []


def test_a_fork_is_one_task_however_often_it_is_asked_for(ground: Ground) -> None:
    app, work = ground.release(seven)
    app.run(work, "t")
    assert app.fork("t", at=3) == app.fork("t", at=3)
    assert app.fork("t", at=3, task_id="other").id == "other"
    for wrong in ({"at": 4}, {"at": 3, "non_idem_write": "run"}):
        with pytest.raises(InputDiffers, match="exists"):
            app.fork("t", task_id="other", **wrong)
    with pytest.raises(InputDiffers, match="exists"):
        app.fork("t", at=3, task_id="t")
    assert {head.task_id for head in app.tasks()} == {"t", "t@3", "other"}


def test_a_fork_of_a_fork_knows_what_stands_in_the_whole_line(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("a")["id"], have.pay("b")["id"], have.pay("c")["id"]])
    app.run(work, "t")
    app.fork("t", at=2, non_idem_write="run")
    assert app.resume("t@2") == [1, 4, 5]

    fork = app.fork("t@2", at=3, task_id="second")
    assert fork.taken == 2
    assert [(one.task, one.path) for one in fork.stands] == [("t@2", "3"), ("t", "2"), ("t", "3")]
    needs_human(lambda: app.resume("second"))
    assert {(one["task"], one["path"]) for one in question(app).evidence["stands"]} == {("t@2", "3"), ("t", "3")}
    answer(app, "reuse")
    assert app.resume("second") == [1, 4, 5]

    whole = app.fork("second", at=1, task_id="third")
    made = [(one.task, one.path) for one in whole.stands]
    assert made == [("t", "1"), ("t@2", "2"), ("t@2", "3"), ("t", "2"), ("t", "3")], "each where it was made, and once"


def test_a_fork_at_no_place_of_the_original_is_refused(ground: Ground) -> None:
    app, work = ground.release(seven)
    app.run(work, "t")
    for at in (0, 7, -1, "3", True, 2.0):
        with pytest.raises(UsageError, match="no place"):
            app.fork("t", at=at)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no policy"):
        app.fork("t", at=1, idem_write="maybe")  # type: ignore[arg-type]
    with pytest.raises(UnknownTask):
        app.fork("nobody", at=1)
    assert [head.task_id for head in app.tasks()] == ["t"]


def test_a_step_in_doubt_at_or_before_the_point_refuses_the_fork_and_is_named(ground: Ground) -> None:
    app, work = ground.release(seven)
    ground.raises = ConnectionResetError()
    needs_human(lambda: app.run(work, "t"))
    for at in (2, 3):
        with pytest.raises(UsageError, match="step 2, pay at 2, is in doubt"):
            app.fork("t", at=at)
    fork = app.fork("t", at=1)
    assert [(one.step, one.status) for one in fork.stands] == [("pay", "needs_human")]


def test_what_is_in_doubt_beyond_the_point_cannot_be_taken_over(ground: Ground) -> None:
    app, work = ground.release(seven)
    ground.raises = ConnectionResetError()
    needs_human(lambda: app.run(work, "t"))
    ground.raises = None
    app.fork("t", at=1, non_idem_write="reuse")
    needs_human(lambda: app.resume("t@1"))
    case = next(case for case in app.inbox().cases if case.kind == "question")
    assert case.evidence["fork"]["answers"] == ["run", "run_all"]
    assert ground.n("pay") == 1


def test_there_is_no_rewinding_and_the_error_names_fork(ground: Ground) -> None:
    app, work = ground.release(seven)
    app.run(work, "t")
    before = log_of(app, "t")
    with pytest.raises(UsageError, match=r"not rewound.*app\.fork"):
        app.resume("t", at=2)
    with pytest.raises(UsageError, match="takes no since"):
        app.resume("t", since=2)
    assert log_of(app, "t") == before
